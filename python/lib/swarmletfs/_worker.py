"""Recording: a worker that works now, and its calls."""

from __future__ import annotations

import functools
import inspect
import json
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from . import _native
from ._errors import Invalid
from ._view import StrPath

P = ParamSpec("P")
R = TypeVar("R")

INPUT_MAX = 1 << 20
"""Largest input of a call, as JSON, in bytes."""


def init(path: StrPath) -> None:
    """Makes a store at `path`: a new or empty folder. A store that exists stays as it is."""
    _native.init(os.fspath(path))


class Call:
    """A call of a tool that is being recorded. Readers see its output while it is written.

    Used with `with`, it ends when the block ends. An exception in the block is its failure, and the
    end of its output.
    """

    def __init__(self, worker: Worker, call: _native.Call) -> None:
        self._worker = worker
        self._call = call
        self._ended = False

    @property
    def seq(self) -> int:
        """The number of the call."""
        return self._call.seq()

    @property
    def path(self) -> str:
        """The path of the output in the worker's folder."""
        return self._call.path()

    def write(self, output: str | bytes) -> None:
        """Adds to the output."""
        self._call.write(_bytes(output))

    def end(
        self,
        *,
        exit_code: int | None = None,
        success: bool | None = None,
        error: str = "",
        truncated: bool = False,
        duration: float | None = None,
    ) -> int:
        """Ends the call and returns the size of its output in bytes.

        Without `exit_code` and `success` the outcome is not known: readers judge the output.
        `duration` is in seconds; without it, the time since the beginning is recorded.
        """
        size = self._call.end(success, exit_code, error, truncated, duration)
        self._ended = True
        self._worker._warn()
        return size

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if error is None:
            self.end()
        else:
            reason = _describe(error)
            self.write(f"<tool-error> {reason}\n")
            self.end(success=False, error=reason)


class Worker:
    """A worker that is being recorded into a store. Several threads may record one worker.

    Used with `with`, it finishes when the block ends, and an exception in the block is its failure.

    >>> with swarmletfs.Worker.create(store, task="Check the disks", run="48") as worker:
    ...     worker.message("assistant", "I look at the root file system.")
    ...     _ = worker.record("df", "/dev/sda1  40G  40G  0  100%  /", exit_code=0)
    ...     with worker.call("clean", input={"path": "/tmp"}) as call:
    ...         call.write("removed 3 files")
    ...     _ = worker.put("outputs/report.md", "The disk is full.")
    ...     worker.finish(result="The disk is full.")
    >>> swarmletfs.open(store).worker(worker.id).status
    'completed'
    """

    def __init__(self, recorder: _native.Recorder) -> None:
        self._recorder = recorder
        self._finished = False

    @classmethod
    def create(
        cls,
        store: StrPath | None = None,
        *,
        task: str,
        id: str | None = None,
        run: str | int | None = None,
        job: str | int | None = None,
        owner: str | int | None = None,
        parent: str | None = None,
        type: str | None = None,
        model: str | None = None,
        tags: Iterable[str] = (),
        cwd: StrPath | None = None,
        context: Mapping[str, str | bytes] | None = None,
        sync: bool = True,
    ) -> Worker:
        """Creates a worker. Readers see all of it at once.

        Without `store`, it is that of `$SWARMLET_STORE` or the nearest one from the current folder
        upwards. Without `id`, the id is made from the time and the task. `context` is kept as files
        `context/<key>`. Without `sync`, changes do not wait for the disk: the last ones can be
        lost if the machine stops.
        """
        given = {"run": run, "job": job, "owner": owner, "parent": parent, "type": type, "model": model}
        words = [(key, str(value)) for key, value in given.items() if value is not None]
        files = [(key, _bytes(content)) for key, content in (context or {}).items()]
        path = None if store is None else os.fspath(store)
        folder = None if cwd is None else os.fspath(cwd)
        worker = cls(_native.Recorder.create(path, sync, task, id, words, [*tags], folder, files))
        worker._warn()
        return worker

    @classmethod
    def open(cls, store: StrPath | None = None, id: str | None = None, *, sync: bool = True) -> Worker:
        """Opens a worker to record more of it. Without `id`, it is that of `$SWARMLET_WORKER`."""
        path = None if store is None else os.fspath(store)
        return cls(_native.Recorder.open(path, sync, id))

    @property
    def id(self) -> str:
        """The id."""
        return self._recorder.id()

    def call(self, tool: str, *, input: Any = None) -> Call:
        """Begins a call. `input` is what the tool was given: arguments, or a text.

        What is no JSON is recorded as its `repr`. A call that is never ended has no outcome.
        """
        return Call(self, self._recorder.begin_call(tool, _input(input)))

    @overload
    def record(
        self,
        tool: str,
        output: str | bytes,
        *,
        input: Any = ...,
        exit_code: int | None = ...,
        success: bool | None = ...,
        error: str = ...,
        duration: float | None = ...,
    ) -> int: ...

    @overload
    def record(self, tool: Callable[P, R]) -> Callable[P, R]: ...

    def record(
        self,
        tool: str | Callable[P, R],
        output: str | bytes = b"",
        *,
        input: Any = None,
        exit_code: int | None = None,
        success: bool | None = None,
        error: str = "",
        duration: float | None = None,
    ) -> int | Callable[P, R]:
        """Records a call that has ended, and returns its number.

        As a decorator, it is `tool` without options.
        """
        if not isinstance(tool, str):
            return self.tool(tool)
        call = self.call(tool, input=input)
        with call:
            call.write(output)
            call.end(exit_code=exit_code, success=success, error=error, duration=duration)
        return call.seq

    @overload
    def tool(self, function: Callable[P, R]) -> Callable[P, R]: ...

    @overload
    def tool(self, *, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def tool(self, function: Callable[P, R] | None = None, *, name: str | None = None) -> Any:
        """Records the calls of a function or coroutine function: arguments, result, exceptions.

        A call that returns is recorded as a success, and one that raises as a failure.

        >>> worker = swarmletfs.Worker.create(store, task="Divide", id="divider")
        >>> @worker.tool
        ... def divide(a: int, b: int) -> float:
        ...     return a / b
        >>> divide(1, b=2)
        0.5
        >>> divide(1, 0)
        Traceback (most recent call last):
        ZeroDivisionError: division by zero
        >>> worker.finish(error="it cannot divide by zero")
        >>> calls = swarmletfs.open(store).worker("divider").index()["tool_calls"]
        >>> [(call["tool"], call["outcome"]) for call in calls]
        [('divide', 'ok'), ('divide', 'failed')]
        """
        if function is None:
            return functools.partial(self._wrap, name=name)
        return self._wrap(function, name=name)

    def _wrap(self, function: Callable[P, R], *, name: str | None) -> Callable[P, R]:
        tool = str(name or getattr(function, "__name__", type(function).__name__))
        signature = inspect.signature(function)

        def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
            # The function itself reports arguments that do not fit.
            try:
                given = dict(signature.bind(*args, **kwargs).arguments)
            except TypeError:
                given = {"args": args, "kwargs": kwargs}
            given.pop("self", None)
            return given

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def record_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self.call(tool, input=arguments(args, kwargs)) as call:
                    result = await function(*args, **kwargs)
                    _end_with_result(call, result)
                return result

            return cast(Callable[P, R], record_coroutine)

        @functools.wraps(function)
        def record_function(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.call(tool, input=arguments(args, kwargs)) as call:
                result = function(*args, **kwargs)
                _end_with_result(call, result)
            return result

        return record_function

    def message(self, role: Literal["user", "assistant", "system", "tool"], content: str, **fields: Any) -> None:
        """Adds a message to the conversation. docs/FORMATS.md has the other `fields`."""
        self._recorder.message(_json({"role": role, "content": content, **fields}))
        self._warn()

    def put(self, path: StrPath | bytes, content: str | bytes) -> int:
        """Writes a file such as `outputs/report.md`, as a whole, and returns its size in bytes."""
        size = self._recorder.put(os.fsencode(path), _bytes(content))
        self._warn()
        return size

    def annotate(self, notes: str) -> None:
        """Sets the supervisor's notes, also after the end; an empty text removes them."""
        self._recorder.annotate(notes)
        self._warn()

    def finish(
        self,
        status: Literal["completed", "failed", "abandoned"] | None = None,
        *,
        result: str | None = None,
        summary: str = "",
        error: str = "",
        exit_code: int | None = None,
    ) -> None:
        """Finishes the worker: its record does not change any more.

        `result` is its final words, and `summary` one line that serves as its title. Without a
        status, a worker with an `error` or an `exit_code` other than 0 has failed.
        """
        has_failed = bool(error) or exit_code not in (None, 0)
        if has_failed and status == "completed":
            raise Invalid("cannot finish as completed with an error or another exit code than 0; try failed")
        end = status or ("failed" if has_failed else "completed")
        self._recorder.finish(end, result, summary, error, exit_code)
        self._finished = True
        self._warn()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._finished:
            return
        if error is None:
            self.finish()
        else:
            self.finish("failed", error=_describe(error))

    def __repr__(self) -> str:
        return f"<Worker {self.id}>"

    def _warn(self) -> None:
        """Warns of problems that did not prevent a change."""
        for problem in self._recorder.take_warnings():
            warnings.warn(problem, RuntimeWarning, stacklevel=3)


def _end_with_result(call: Call, result: Any) -> None:
    """Ends the call of a function that returned `result`."""
    if result is not None:
        call.write(result if isinstance(result, (str, bytes)) else _json(result))
    call.end(success=True)


def _bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)


def _json(value: Any) -> str:
    """Returns JSON, in which other values are their `repr`."""
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(repr(value), ensure_ascii=False)
    # JSON cannot hold surrogates.
    return text.encode("utf-8", "replace").decode()


def _input(value: Any) -> str | None:
    """Returns the input of a call as JSON, shortened to what can be recorded."""
    if value is None:
        return None
    text = _json(value)
    if len(text.encode()) > INPUT_MAX:
        # Quotes and backslashes are escaped once more.
        return _json(text[: INPUT_MAX // 8] + "…")
    return text


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()
