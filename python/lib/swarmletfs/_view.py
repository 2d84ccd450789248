"""Reading: a view of one or more stores, and the workers in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, overload

from . import _native
from ._errors import Invalid, NotFound

StrPath = str | os.PathLike[str]
Budget = int | str
"""The size of an answer: bytes as a number or as "4k", or tokens as "2000tok"."""

Messages = TypeVar("Messages", bound="list[Any] | dict[str, Any]")


@dataclass(frozen=True)
class Answer:
    """The answer to a query. `str(answer)` is the text that the command prints."""

    text: str
    """The text, within the budget."""
    data: Mapping[str, Any] = field(repr=False)
    """The object that the command prints with `--json`."""

    @property
    def complete(self) -> bool:
        """True if everything was read; if not, the first line of the text says what is missing."""
        return bool(self.data["complete"])

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Changes:
    """What changed since a cursor. `str(changes)` is the text that the command prints."""

    text: str
    """One line per worker; the last line is the cursor."""
    occurred: bool = True
    """False if a wait timed out; the text then lists the workers that have not finished."""

    @property
    def cursor(self) -> str:
        """The cursor for the next call."""
        return self.text.rstrip("\n").rpartition("\n")[2]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Entry:
    """An entry of a folder of the tree."""

    name: str
    """The name. Bytes that are not UTF-8 are surrogates, as in `os.listdir`."""
    kind: str
    """`file`, `folder` or `link`."""


class View:
    """A view of stores: what `swarmletfs mount` with the same options shows.

    A view may be used by several threads at once, and no method holds the interpreter while it
    reads. Each call sees what was written before it. `swarmletfs.open` makes one.

    >>> view = swarmletfs.open(store)
    >>> [worker.id for worker in view.workers(status="failed")]
    ['restore']
    >>> print(view.read("workers/restore/tool_calls/001_pg_restore.txt").decode(), end="")
    pg_restore: error: No space left on device
    """

    def __init__(
        self,
        store: StrPath | Iterable[StrPath] | None = None,
        *,
        owner: str | int | None = None,
        run: str | int | None = None,
        max_time: float | None = None,
    ) -> None:
        """See `swarmletfs.open`."""
        if store is None:
            stores = []
        elif isinstance(store, (str, os.PathLike)):
            stores = [os.fspath(store)]
        else:
            stores = [os.fspath(one) for one in store]
        self._tree = _native.Tree(stores, _word(owner), _word(run), max_time)

    @property
    def stores(self) -> Sequence[str]:
        """The absolute paths of the stores."""
        return [os.fspath(path) for path in self._tree.stores()]

    def workers(
        self,
        *,
        status: str | None = None,
        outcome: str | None = None,
        attention: str | None = None,
        type: str | None = None,
        tag: str | None = None,
        run: str | int | None = None,
        limit: int | None = None,
    ) -> Sequence[RecordedWorker]:
        """Returns the workers that match all arguments, newest first.

        `status` is what a worker reports of itself: `running`, `completed`, `failed`, `abandoned`.
        `outcome` is what its record shows: `ok`, `failed`, `unknown`. `attention` is whether it needs
        a person: `high`, `low`, `none`. `run` may be `latest`.
        """
        folder = b"." if run is None else b"runs/" + _component(str(run)) + b"/."
        if limit is not None and limit < 0:
            raise Invalid(f"cannot use {limit} as a limit: it is negative")
        rows = json.loads(self._tree.workers(folder, status, outcome, attention, type, tag, limit))
        return [RecordedWorker(self, row["id"], row) for row in rows]

    def worker(self, id: str) -> RecordedWorker:
        """Returns the worker with this id, or the only one whose id begins so.

        Raises `NotFound` if there is none.
        """
        path = self._tree.resolve(b"workers/" + _component(id))
        return RecordedWorker(self, os.fsdecode(path.rpartition(b"/")[2]), None)

    def summary(self, *, run: str | int | None = None) -> str:
        """Returns the summary of the swarm or of a run: one screen."""
        return self._text(_folder(run) + b"summary")

    def evidence(self, *, run: str | int | None = None, budget: Budget | None = None) -> str:
        """Returns excerpts of tool outputs, failures first, within a budget."""
        return self._text(_folder(run) + _evidence_name(budget))

    def index(self, *, run: str | int | None = None) -> dict[str, Any]:
        """Returns index.json of the swarm or of a run; docs/index.schema.json describes it."""
        return _object(self._text(_folder(run) + b"index.json"))

    def read(self, path: StrPath | bytes, *, offset: int = 0, size: int | None = None) -> bytes:
        """Returns a file by its path in the tree, or `size` bytes of it from `offset` on.

        Names that are made on request work, such as `grep/timeout` or `summary@disk full`.
        """
        if offset < 0 or (size is not None and size < 0):
            raise Invalid("cannot read a negative number of bytes")
        return self._tree.read(os.fsencode(path), offset, size)

    def list(self, path: StrPath | bytes = ".") -> Sequence[Entry]:
        """Returns the entries of a folder of the tree, sorted by name."""
        return [Entry(os.fsdecode(name), kind) for name, kind in self._tree.list(os.fsencode(path))]

    def grep(
        self,
        pattern: str,
        path: StrPath | bytes = ".",
        *,
        workers: Iterable[str | RecordedWorker] | None = None,
        ignore_case: bool = False,
        context: int = 0,
        glob: str | None = None,
        budget: Budget | None = None,
    ) -> Answer:
        """Returns the lines that match a regex, failed workers first.

        `path` is the root, a run, a worker, a file or folder of a worker, or a folder such as
        `by/outcome/failed`. With `workers`, it is not used: only their files are searched.

        >>> answer = swarmletfs.open(store).grep("NO SPACE", "workers/restore/tool_calls", ignore_case=True)
        >>> answer.data["lines"]
        1
        """
        if not 0 <= context <= 100:
            raise Invalid(f"cannot use {context} lines of context: at most 100 are shown")
        size, ids = _size(budget), None if workers is None else _ids(workers)
        return _answer(self._tree.grep(os.fsencode(path), ids, pattern, ignore_case, context, glob, size))

    def search(
        self,
        query: str,
        path: StrPath | bytes = ".",
        *,
        workers: Iterable[str | RecordedWorker] | None = None,
        mode: Literal["words", "meaning", "both"] = "words",
        glob: str | None = None,
        budget: Budget | None = None,
    ) -> Answer:
        """Returns the passages that words match, or that are closest to their meaning, best first.

        Words may be "phrases", -words, and filters such as `status:failed`.
        """
        ids = None if workers is None else _ids(workers)
        return _answer(self._tree.search(os.fsencode(path), ids, query, mode, glob, _size(budget)))

    def compare(
        self, workers: Iterable[str | RecordedWorker], *, aspect: str | None = None, budget: Budget | None = None
    ) -> Answer:
        """Returns what two to eight workers share and where they differ."""
        return _answer(self._tree.compare(_ids(workers), aspect, _size(budget)))

    @overload
    def expand(self, text: str, *, format: Literal["text"] = ..., budget: Budget | None = ...) -> str: ...

    @overload
    def expand(
        self, text: Messages, *, format: Literal["openai", "anthropic", "langchain"], budget: Budget | None = ...
    ) -> Messages: ...

    def expand(self, text: Any, *, format: str = "text", budget: Budget | None = None) -> Any:
        """Returns a copy of a text or of messages, with evidence after each marker.

        A marker is `[EVIDENCE:run_id=48,job_id=1,worker_id=abc]`; `-` stands for any run or job.
        Messages are a list, or a request with one under `messages` or `input`; only markers in
        tool results count there. `format` is `openai`, `anthropic` or `langchain`.

        >>> view = swarmletfs.open(store)
        >>> text = view.expand("See [EVIDENCE:run_id=-,job_id=-,worker_id=restore].")
        >>> "No space left on device" in text
        True
        """
        is_text = isinstance(text, str)
        if is_text != (format == "text"):
            raise Invalid("cannot expand: a str has the format text, and messages have another one")
        given = text if is_text else json.dumps(text)
        expanded, _ = self._tree.expand(format, given.encode("utf-8", "surrogatepass"), _size(budget))
        decoded = expanded.decode("utf-8", "surrogatepass")
        return decoded if is_text else json.loads(decoded)

    def tool_output(self, artifact_id: str) -> bytes:
        """Returns an output that was stored outside of its worker's folder, by its artifact id."""
        return self._tree.output(None, None, artifact_id)

    def since(self, cursor: str = "now") -> Changes:
        """Returns what changed since a cursor: `now` for a cursor only, `0` for everything."""
        return Changes(self._text(b"since/" + _component(cursor)))

    def wait(
        self,
        *,
        until: Literal["finished", "failed", "waiting", "attention", "any"] = "finished",
        timeout: float | None = None,
        since: str | None = None,
    ) -> Changes:
        """Waits until all workers have finished, one has failed, one waits for a person, or anything has changed.

        `timeout` is in seconds. If it passes, `occurred` of the answer is False.

        >>> swarmletfs.open(store).wait(until="failed").occurred
        True
        """
        occurred, text = self._tree.wait(until, since, timeout)
        return Changes(text, occurred)

    def _text(self, path: bytes) -> str:
        return self._tree.read(path, 0, None).decode("utf-8", "replace")


class RecordedWorker:
    """A worker of a view.

    >>> worker = swarmletfs.open(store).worker("restore")
    >>> worker.info["cause"]
    'exit=1: pg_restore: error: No space left on device'
    >>> worker.tool_output(1)
    b'pg_restore: error: No space left on device\\n'
    """

    def __init__(self, view: View, id: str, row: Mapping[str, Any] | None) -> None:
        self._view = view
        self._id = id
        self._info = row

    @property
    def id(self) -> str:
        """The id."""
        return self._id

    @property
    def info(self) -> Mapping[str, Any]:
        """The fields of index.json about the worker, as they were when it was found."""
        if self._info is None:
            self._info = self.index()
        return self._info

    @property
    def status(self) -> str:
        """What the worker reports of itself."""
        return str(self.info["status"])

    @property
    def attention(self) -> dict[str, Any] | None:
        """Whether it needs a person, and why: `level` and `reasons`. None if it was not read in time."""
        return self.info.get("attention")

    @property
    def outcome(self) -> str | None:
        """What the record shows; None if it was not read in time."""
        outcome = self.info.get("outcome")
        return None if outcome is None else str(outcome)

    def summary(self, *, focus: str | None = None) -> str:
        """Returns the summary: one screen. `focus` adds the passages that these words match."""
        name = b"summary" if focus is None else b"summary@" + _component(focus)
        return self._view._text(self._path(name))

    def evidence(self, *, budget: Budget | None = None) -> str:
        """Returns an excerpt of the tool outputs, failures first, within a budget."""
        return self._view._text(self._path(_evidence_name(budget)))

    def index(self) -> dict[str, Any]:
        """Returns index.json of the worker."""
        return _object(self._view._text(self._path(b"index.json")))

    def changes(self, *, budget: Budget | None = None) -> str:
        """Returns the changes of files as a diff; empty if the worker changed none."""
        name = b"changes.diff" if budget is None else f"changes.{_budget_name(budget)}.diff".encode()
        try:
            return self._view._text(self._path(name))
        except NotFound:
            self._view._tree.resolve(self._path(b"."))
            return ""

    def read(self, path: StrPath | bytes, *, offset: int = 0, size: int | None = None) -> bytes:
        """Returns a file in the worker's folder, or `size` bytes of it from `offset` on."""
        return self._view.read(self._path(os.fsencode(path)), offset=offset, size=size)

    def list(self, path: StrPath | bytes = ".") -> Sequence[Entry]:
        """Returns the entries of a folder in the worker's folder."""
        return self._view.list(self._path(os.fsencode(path)))

    def tool_output(self, call: int | str) -> bytes:
        """Returns the output of a call by its number or file, also if it was stored elsewhere."""
        if isinstance(call, str):
            return self._view._tree.output(self._id, None, call)
        if call < 0:
            raise Invalid(f"cannot use {call} as the number of a call: it is negative")
        return self._view._tree.output(self._id, call, None)

    def grep(self, pattern: str, path: StrPath | bytes = ".", **options: Any) -> Answer:
        """Returns the lines of the worker's files that match; see `View.grep`."""
        return self._view.grep(pattern, self._path(os.fsencode(path)), **options)

    def search(self, query: str, path: StrPath | bytes = ".", **options: Any) -> Answer:
        """Returns the passages of the worker's files that words match; see `View.search`."""
        return self._view.search(query, self._path(os.fsencode(path)), **options)

    def __repr__(self) -> str:
        return f"<RecordedWorker {self._id}>"

    def _path(self, name: bytes) -> bytes:
        return b"workers/" + _component(self._id) + b"/" + name


def _ids(workers: Iterable[str | RecordedWorker]) -> list[str]:
    return [worker.id if isinstance(worker, RecordedWorker) else worker for worker in workers]


def _word(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def _component(name: str) -> bytes:
    """Returns one component of a path, in which `%XX` is decoded. No file has the name of NUL."""
    if name in ("", ".", ".."):
        return b"\0"
    return os.fsencode(name).replace(b"/", b"%2F")


def _folder(run: str | int | None) -> bytes:
    return b"" if run is None else b"runs/" + _component(str(run)) + b"/"


def _size(budget: Budget | None) -> str | None:
    return None if budget is None else str(budget)


def _budget_name(budget: Budget) -> str:
    return _native.budget_name(str(budget))


def _evidence_name(budget: Budget | None) -> bytes:
    return b"evidence.txt" if budget is None else f"evidence.{_budget_name(budget)}.txt".encode()


def _answer(answer: tuple[str, str]) -> Answer:
    text, data = answer
    return Answer(text, json.loads(data))


def _object(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text)
    return parsed
