"""Helpers for LangChain and LangGraph: tools, a recorder, and a model that reads evidence.

They need langchain-core: `pip install swarmletfs[langchain]`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from copy import copy
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ToolMessage,
    convert_to_messages,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from ._errors import Error
from ._view import Budget, View
from ._worker import Call, Worker

TEXT_MAX = 16_000
"""Most bytes of a file or output in the answer of one tool."""

ROLES = {"system": "system", "human": "user"}


def tools(view: View) -> list[BaseTool]:
    """Returns tools with which a supervisor reads the workers of a view.

    An error is an answer of the tool, so that a model can read it and try again.

    >>> from swarmletfs.langchain import tools
    >>> summarize = {tool.name: tool for tool in tools(swarmletfs.open(store))}["summarize_worker_output"]
    >>> "No space left on device" in summarize.invoke({"worker_id": "restore"})
    True
    """

    def list_worker_artifacts(
        status_filter: str | None = None, task_type_filter: str | None = None, limit: int = 10
    ) -> str:
        """Lists workers, one JSON object per line: id, status (what a worker reports of itself), outcome
        (what its record shows), cause of a failure, task, type, times."""
        found = view.workers(status=status_filter, type=task_type_filter, limit=limit)
        return "\n".join(json.dumps(dict(worker.info)) for worker in found) or "no worker matches all of these filters"

    def read_worker_file(worker_id: str, file_path: str, max_lines: int | None = None, offset: int = 0) -> str:
        """Reads a file by its path in the worker's folder, such as outputs/report.md or summary. A long file
        comes in parts: offset is the number of bytes to skip."""
        content = view.worker(worker_id).read(file_path, offset=offset, size=TEXT_MAX + 1)
        return _part(content, offset, max_lines)

    def search_worker_artifacts(
        query: str,
        search_type: Literal["grep", "semantic"] = "grep",
        worker_filter: list[str] | None = None,
        file_pattern: str | None = None,
    ) -> str:
        """Searches the files of all workers or of those in worker_filter: with grep for a regex, otherwise by
        words and meaning, best passage first. file_pattern is a glob such as *.md."""
        if search_type == "grep":
            return view.grep(query, workers=worker_filter, glob=file_pattern).text
        return view.search(query, workers=worker_filter, mode="both", glob=file_pattern).text

    def summarize_worker_output(worker_id: str, focus: str | None = None) -> str:
        """Summarizes a worker on one screen: outcome and cause, task, tool calls, its final words, and checks of
        its claims against its record. With focus, also the passages that match these words."""
        return view.worker(worker_id).summary(focus=focus)

    def compare_worker_outputs(worker_ids: list[str], comparison_aspect: str | None = None) -> str:
        """Compares two to eight workers: files as diffs, passages that only one has, calls and how they ended.
        With comparison_aspect, only what matches these words."""
        return view.compare(worker_ids, aspect=comparison_aspect).text

    def get_worker_evidence(worker_id: str, budget_bytes: int | None = None) -> str:
        """Returns proof of what a worker did: an excerpt of its tool outputs within a budget, failures first."""
        return view.worker(worker_id).evidence(budget=budget_bytes)

    def get_tool_output(
        worker_id: str | None = None, call: int | str | None = None, artifact_id: str | None = None, offset: int = 0
    ) -> str:
        """Returns the exact output of a tool call: of a worker, by the call's number or file, or by the artifact
        id of a [TOOL_OUTPUT:artifact_id=...] stub. A long output comes in parts: offset is the number of bytes
        to skip."""
        if artifact_id is not None:
            content = view.tool_output(artifact_id)
        elif worker_id is None or call is None:
            raise ToolException("name a worker_id and a call, or an artifact_id")
        else:
            content = view.worker(worker_id).tool_output(int(call) if str(call).isdecimal() else call)
        return _part(content[max(offset, 0) :][: TEXT_MAX + 1], offset, None)

    functions = [
        list_worker_artifacts,
        read_worker_file,
        search_worker_artifacts,
        summarize_worker_output,
        compare_worker_outputs,
        get_worker_evidence,
        get_tool_output,
    ]
    return [StructuredTool.from_function(_explaining(function), handle_tool_error=True) for function in functions]


class WorkerRecorder(BaseCallbackHandler):
    """Records what one agent does while it does it: messages, tool calls, and its end.

        worker = swarmletfs.Worker.create(store, task=task)
        agent.invoke({"messages": [("user", task)]}, {"callbacks": [WorkerRecorder(worker)]})

    The first chain that starts with it is the worker: its end finishes the worker. A tool that
    knows its exit code returns it in its artifact, as `{"exit_code": 1}`.
    """

    # LangChain only logs what a handler raises. A record with gaps is worse than a worker that stops.
    raise_error = True

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.words = ""
        """The last words of the agent so far."""
        self._root: UUID | None = None
        self._seen: set[str] = set()
        self._calls: dict[UUID, tuple[Call, str | None]] = {}
        self._lock = threading.Lock()

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Notes the first chain."""
        with self._lock:
            self._root = self._root or run_id

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Finishes the worker after the first chain."""
        if run_id == self._root:
            self.worker.finish("completed", result=self.words)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Finishes the worker after the first chain, as failed."""
        if run_id == self._root:
            self.worker.finish("failed", error=f"{type(error).__name__}: {error}")

    def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **_: Any) -> None:
        """Records the messages that the model has not seen before."""
        for message in messages[0]:
            # Each call of the model has all messages. Its answers and those of tools are recorded below.
            key = message.id or f"{message.type}:{message.text}"
            if message.type in ROLES and key not in self._seen:
                self._seen.add(key)
                self._message(ROLES[message.type], message.text)

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """Records the answer of the model."""
        generation = response.generations[0][0]
        if not isinstance(generation, ChatGeneration) or not isinstance(generation.message, AIMessage):
            return
        message = generation.message
        self.words = str(message.text)
        calls = [{"id": call["id"], "name": call["name"], "args": call["args"]} for call in message.tool_calls]
        self._message("assistant", self.words, **({"tool_calls": calls} if calls else {}))

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, tool_call_id: str | None = None, **extra: Any
    ) -> None:
        """Begins a call."""
        tool = (serialized or {}).get("name") or extra.get("name") or "tool"
        arguments = extra.get("inputs")
        call = self.worker.call(tool, input=input_str if arguments is None else arguments)
        self._calls[run_id] = (call, tool_call_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Ends a call. Without an exit code or an error, its outcome is not known: a tool that returns has
        not always done what it was asked to do."""
        call, call_id = self._calls.pop(run_id)
        artifact = getattr(output, "artifact", None)
        exit_code = artifact.get("exit_code") if isinstance(artifact, dict) else None
        has_failed = getattr(output, "status", None) == "error" and not exit_code
        text = getattr(output, "text", output)
        call.write(text if isinstance(text, str) else str(text))
        call.end(exit_code=exit_code if isinstance(exit_code, int) else None, success=False if has_failed else None)
        self._message("tool", f"(in {call.path})", tool_call_id=call_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Ends a call that failed."""
        call, call_id = self._calls.pop(run_id)
        reason = f"{type(error).__name__}: {error}"
        call.write(f"<tool-error> {reason}\n")
        call.end(success=False, error=reason)
        self._message("tool", f"(in {call.path})", tool_call_id=call_id)

    def _message(self, role: str, content: str, **fields: Any) -> None:
        self.worker.message(role, content, **fields)  # type: ignore[arg-type]


class ExpandingModel(Runnable[LanguageModelInput, AIMessage]):
    """A chat model whose calls see evidence after the markers in tool messages.

        model = ExpandingModel(ChatAnything(…), view, budget="16k").bind_tools(tools)

    The messages themselves do not change, so the state of a graph and its checkpoints hold only the
    marker. An error of reading is an error of the call: without evidence, the model would believe its workers.
    """

    def __init__(
        self, model: Runnable[LanguageModelInput, Any], view: View, *, budget: Budget | None = None
    ) -> None:
        """`budget` is the size of all evidence in a call."""
        self.model: Any = model
        self.view = view
        self.budget = budget

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ExpandingModel:
        """Returns a copy with tools, as the model itself binds them."""
        bound = copy(self)
        bound.model = self.model.bind_tools(tools, **kwargs)
        return bound

    def expand(self, input: LanguageModelInput) -> list[BaseMessage]:
        """Returns the messages of `input`, those that hold markers as copies with the evidence in them."""
        given: Any = [("user", input)] if isinstance(input, str) else input
        messages = convert_to_messages(given)
        at = [index for index, message in enumerate(messages) if _holds_marker(message)]
        if not at:
            return messages
        # An artifact is not for the model, and need not be JSON.
        sent = messages_to_dict([messages[index].model_copy(update={"artifact": None}) for index in at])
        received = messages_from_dict(self.view.expand(sent, format="langchain", budget=self.budget))
        for index, message in zip(at, received, strict=True):
            messages[index] = messages[index].model_copy(update={"content": message.content})
        return messages

    def invoke(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        """Calls the model."""
        answer: AIMessage = self.model.invoke(self.expand(input), config, **kwargs)
        return answer

    async def ainvoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        """Calls the model."""
        answer: AIMessage = await self.model.ainvoke(await asyncio.to_thread(self.expand, input), config, **kwargs)
        return answer

    def stream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[AIMessage]:
        """Calls the model, and yields its answer in parts."""
        yield from self.model.stream(self.expand(input), config, **kwargs)

    async def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[AIMessage]:
        """Calls the model, and yields its answer in parts."""
        async for chunk in self.model.astream(await asyncio.to_thread(self.expand, input), config, **kwargs):
            yield chunk


def _holds_marker(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage) and "[evidence:" in str(message.content).lower()


def _explaining(function: Any) -> Any:
    """Returns `function` with errors that LangChain gives to the model."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Error as error:
            raise ToolException(str(error)) from error

    return call


def _part(content: bytes, offset: int, max_lines: int | None) -> str:
    """Returns the beginning of `content`, with a note on how to continue if that is not all."""
    part = content[:TEXT_MAX]
    if max_lines is not None:
        part = b"".join(part.splitlines(keepends=True)[: max(max_lines, 0)])
    text = part.decode("utf-8", "replace")
    if len(part) < len(content):
        text += f"\n[... more follows; continue with offset {offset + len(part)} ...]"
    return text
