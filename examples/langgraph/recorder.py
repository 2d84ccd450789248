"""Records a LangChain or LangGraph worker with swarmletfs.

    recorder = WorkerRecorder(store, task, run_id="48", job_id="1")
    agent.invoke({"messages": [("user", task)]}, {"callbacks": [recorder]})
    recorder.marker  # stands for the worker's evidence in a text

`swarmletfs init` made the store. Each message and each call that ended runs one `swarmletfs worker` command.
"""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

ROLES = {"system": "system", "human": "user"}
# Longest argument of a command, in bytes. Linux refuses more than 128 KiB.
ARGUMENT_MAX = 100_000


class RecordingError(RuntimeError):
    """The record could not be written."""


def swarmletfs(*arguments: str, stdin: bytes = b"", **options: object) -> str:
    """Runs a command of swarmletfs and returns what it prints. An option that is None is left out."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    command = [os.environ.get("SWARMLETFS", "swarmletfs"), *arguments, *map(printable, given)]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True)
    except OSError as error:
        raise RecordingError(f"{error}: put swarmletfs on PATH, or its path in $SWARMLETFS") from error
    if done.returncode != 0:
        raise RecordingError(done.stderr.decode(errors="replace").strip())
    return done.stdout.decode().strip()


class WorkerRecorder(BaseCallbackHandler):
    """Records what one worker does while it does it. The first chain that starts with it is the worker."""

    # LangChain only logs what a handler raises. A record with gaps is worse than a worker that stops.
    raise_error = True

    def __init__(
        self,
        store: str | os.PathLike[str],
        task: str,
        *,
        worker_id: str | None = None,
        run_id: str | None = None,
        job_id: str | None = None,
        owner_id: str | int | None = None,
        task_type: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """`worker_id` must not be taken; without it, the worker gets an id made from the time and the task."""
        self.run_id, self.job_id, self.task_type = run_id, job_id, task_type
        self.status, self.words = "running", ""
        self._store = os.fspath(store)
        self._root: UUID | None = None
        self._seen: set[str] = set()
        self._running: dict[UUID, tuple[str, str | None, object, float]] = {}
        described = {"id": worker_id, "run": run_id, "job": job_id, "owner": owner_id, "type": task_type}
        created = self._worker("create", *(f"--tag={tag}" for tag in tags), "--json", task=task, **described)
        self.worker_id: str = json.loads(created)["worker"]
        self.folder = Path(store) / json.loads(created)["path"]

    @property
    def marker(self) -> str:
        """The marker that `swarmletfs expand` puts the worker's evidence behind."""
        return f"[EVIDENCE:run_id={self.run_id or '-'},job_id={self.job_id or '-'},worker_id={self.worker_id}]"

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **_: Any) -> None:
        if self._root is None:
            self._root = run_id
        elif self.status != "running":
            raise RuntimeError("a recorder records one worker, and this one has ended")

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        if run_id == self._root:
            self._finish("completed", result="-", stdin=text_bytes(self.words))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if run_id == self._root:
            self._finish("failed", error=f"{type(error).__name__}: {error}")

    def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **_: Any) -> None:
        new = []
        for message in messages[0]:
            # Each call of the model brings all messages again. Its own answers and the tools' are recorded below.
            key = message.id or f"{message.type}:{message.text}"
            if message.type in ROLES and key not in self._seen:
                self._seen.add(key)
                new.append({"role": ROLES[message.type], "content": message.text})
        self._message(*new)

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        generation = response.generations[0][0]
        if not isinstance(generation, ChatGeneration) or not isinstance(generation.message, AIMessage):
            return
        message = generation.message
        self.words = message.text
        calls = [{"id": call["id"], "name": call["name"], "args": call["args"]} for call in message.tool_calls]
        self._message({"role": "assistant", "content": message.text, **({"tool_calls": calls} if calls else {})})

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, tool_call_id: str | None = None, **extra: Any
    ) -> None:
        tool = (serialized or {}).get("name") or extra.get("name") or "tool"
        arguments = extra.get("inputs")
        self._running[run_id] = (tool, tool_call_id, input_str if arguments is None else arguments, time.monotonic())

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        # A tool that knows an exit code returns it in its artifact. Without one, and without an error, it is not known
        # how the call ended: a tool that returns has not always done what it was asked to do.
        artifact = getattr(output, "artifact", None)
        exit_code = artifact.get("exit_code") if isinstance(artifact, dict) else None
        if getattr(output, "status", None) == "error" and not exit_code:
            self._record(run_id, text_of(output), outcome="failed")
        else:
            self._record(run_id, text_of(output), exit=exit_code if isinstance(exit_code, int) else None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._record(run_id, f"<tool-error> {reason}\n", outcome="failed", error=reason)

    def _record(self, run_id: UUID, output: str, **outcome: object) -> None:
        tool, call_id, arguments, start = self._running.pop(run_id)
        path = self._worker(
            "record",
            self.worker_id,
            stdin=text_bytes(output),
            tool=tool,
            input=json_of(arguments),
            duration_ms=round((time.monotonic() - start) * 1000),
            **outcome,
        )
        self._message({"role": "tool", "tool_call_id": call_id, "name": tool, "content": f"(in {path})"})

    def _message(self, *messages: dict[str, Any]) -> None:
        if messages:
            self._worker("message", self.worker_id, stdin="\n".join(map(json_of, messages)).encode())

    def _finish(self, status: str, **end: Any) -> None:
        self._worker("finish", self.worker_id, status=status, **end)
        self.status = status

    def _worker(self, command: str, *arguments: str, **options: Any) -> str:
        return swarmletfs("worker", command, *map(printable, arguments), store=self._store, **options)


def text_of(output: Any) -> str:
    """What a tool returned, as text."""
    content = output.content if isinstance(output, ToolMessage) else output
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = [block.get("text") if isinstance(block, dict) else block for block in blocks]
    # A text stays as it is; of anything else, as an image, its JSON.
    pairs = zip(texts, blocks, strict=True)
    return "\n".join(text if isinstance(text, str) else json.dumps(block, default=str) for text, block in pairs)


def json_of(value: object) -> str:
    """Encodes a value as JSON, with `?` for half a surrogate pair, which JSON cannot hold."""
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()


def text_bytes(text: str) -> bytes:
    """Encodes a text; half a surrogate pair becomes `\\ud800`."""
    return text.encode("utf-8", "backslashreplace")


def printable(argument: str) -> str:
    """An argument that a command can take. The thread has the full text of a task or an input that is cut."""
    return text_bytes(argument).replace(b"\0", b"\\0")[:ARGUMENT_MAX].decode(errors="ignore")
