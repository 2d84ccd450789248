"""Records a LangChain or LangGraph worker as a directory that swarmletfs reads.

    recorder = WorkerRecorder(store, new_worker_id(task), task, run_id="48", job_id="1")
    agent.invoke({"messages": [("user", task)]}, {"callbacks": [recorder]})
    recorder.marker  # stands for the worker's evidence in a text

<store>/workers/<worker_id>/
    metadata.json              identity and status; replaced as a whole
    task.txt, result.txt       the task, and the final words if the worker has ended
    thread.jsonl               the messages; a tool message holds only the place of its output
    metrics.jsonl              the duration of each call, and its outcome if known
    tool_calls/NNN_<tool>.txt  the unchanged output of each call
"""

import json
import os
import re
import secrets
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

ROLES = {"system": "system", "human": "user"}


def new_worker_id(task: str) -> str:
    """An id that sorts by time and can be read: `2026-01-20T10-00-00_check-the-disks_a1b2c3`."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.lower())[:30].strip("-")
    return f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}_{slug}_{secrets.token_hex(3)}"


@dataclass
class Call:
    """A tool call, from its announcement by the model to its end."""

    number: int
    tool: str
    id: str | None
    start_ts: str = ""
    clock: float = 0.0
    metrics: dict[str, Any] | None = None

    @property
    def file(self) -> str:
        """Where its output lies in the worker's folder."""
        return f"tool_calls/{self.number:03d}_{self.tool}.txt"


class WorkerRecorder(BaseCallbackHandler):
    """Writes what one worker does while it does it. The first chain that starts with it is the worker."""

    # LangChain only logs what a handler raises. A record with gaps is worse than a worker that stops.
    raise_error = True

    def __init__(
        self,
        store: str | os.PathLike[str],
        worker_id: str,
        task: str,
        *,
        run_id: str | None = None,
        job_id: str | None = None,
        owner_id: str | int | None = None,
        task_type: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}", worker_id):
            raise ValueError(f"not a worker id: {worker_id!r}")
        self.words = ""
        self.folder = Path(store) / "workers" / worker_id
        # An id that is taken is an error: two workers must not write one record.
        (self.folder / "tool_calls").mkdir(parents=True, exist_ok=False)
        optional = {"run_id": run_id, "job_id": job_id, "task_type": task_type, "tags": list(tags)}
        self.metadata: dict[str, Any] = {
            "worker_id": worker_id,
            "task": task,
            "status": "created",
            "created_at": now(),
            **{name: value for name, value in optional.items() if value},
            "config": {} if owner_id is None else {"owner_id": owner_id},
        }
        self._lock = threading.Lock()  # tools that are called together run in threads
        self._root: UUID | None = None
        self._clock = 0.0
        self._calls = 0
        self._announced: dict[str | None, Call] = {}
        self._running: dict[UUID, Call] = {}
        self._unwritten: dict[str, deque[Call]] = defaultdict(deque)
        self._heard: set[str] = set()
        self._write("task.txt", task)
        self._save()

    @property
    def status(self) -> str:
        return self.metadata["status"]

    @property
    def marker(self) -> str:
        """The marker that `swarmletfs expand` puts the worker's evidence behind."""
        run, job, worker = (self.metadata.get(name, "-") for name in ("run_id", "job_id", "worker_id"))
        return f"[EVIDENCE:run_id={run},job_id={job},worker_id={worker}]"

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **_: Any) -> None:
        if self._root is None:
            self._root, self._clock = run_id, time.monotonic()
            self._save(status="running", started_at=now())
        elif self.status != "running":
            raise RuntimeError("a recorder records one worker, and this one has ended")

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        if run_id == self._root:
            self._write("result.txt", self.words)
            self._end(status="success")

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if run_id == self._root:
            self._end(status="failed", error=f"{type(error).__name__}: {error}")

    def on_chat_model_start(self, serialized: Any, messages: list[list[BaseMessage]], **_: Any) -> None:
        with self._lock:
            for message in messages[0]:
                # Each call of the model brings all messages again. Its own answers and the tools' are recorded below.
                key = message.id or f"{message.type}:{message.text}"
                if message.type in ROLES and key not in self._heard:
                    self._heard.add(key)
                    self._say(ROLES[message.type], message.text)

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        generation = response.generations[0][0]
        if not isinstance(generation, ChatGeneration) or not isinstance(generation.message, AIMessage):
            return
        message = generation.message
        with self._lock:
            self.words = message.text
            asked = []
            for tool_call in message.tool_calls:
                # Numbered as the model asks for them: in which order they start, or end, is left to chance.
                call = self._number(tool_call["name"], tool_call["id"])
                self._announced[call.id] = call
                asked.append({"id": call.id, "name": call.tool, "args": tool_call["args"]})
            self._say("assistant", message.text, **({"tool_calls": asked} if asked else {}))

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, tool_call_id: str | None = None, **extra: Any
    ) -> None:
        name = (serialized or {}).get("name") or extra.get("name") or "tool"
        with self._lock:
            call = self._announced.pop(tool_call_id, None) or self._number(name, tool_call_id)
            call.start_ts, call.clock = now(), time.monotonic()
            self._running[run_id] = call

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        # A tool that knows an exit code tells it in its artifact. Without one, and without an error, how the call ended
        # is not known: a tool that returns has not always done what it was asked.
        artifact = getattr(output, "artifact", None)
        exit_code = artifact.get("exit_code") if isinstance(artifact, dict) else None
        success = exit_code == 0 if isinstance(exit_code, int) else None
        if getattr(output, "status", None) == "error":
            success = False
        self._returned(run_id, text_of(output), success=success, exit_code=exit_code)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        told = f"{type(error).__name__}: {error}"
        self._returned(run_id, f"<tool-error> {told}\n", success=False, error=told)

    def _number(self, name: str, call_id: str | None) -> Call:
        self._calls += 1
        # What can stand in a file's name is the tool's name in all of the record, so that its parts agree.
        call = Call(self._calls, re.sub(r"[^A-Za-z0-9.-]", "_", name)[:100], call_id)
        self._unwritten[call.tool].append(call)
        return call

    def _returned(self, run_id: UUID, output: str, **outcome: Any) -> None:
        with self._lock:
            call = self._running.pop(run_id)
            self._write(call.file, output)
            self._say("tool", f"(in {call.file})", tool_call_id=call.id, name=call.tool)
            call.metrics = {
                "event": "tool_call",
                "tool": call.tool,
                "start_ts": call.start_ts,
                "end_ts": now(),
                "duration_ms": milliseconds_since(call.clock),
                **outcome,
            }
            # The n-th line of a tool belongs to its n-th file, so a call that ends early waits for those before it.
            waiting = self._unwritten[call.tool]
            while waiting and waiting[0].metrics:
                self._append("metrics.jsonl", waiting.popleft().metrics)

    def _end(self, **changes: Any) -> None:
        with self._lock:
            for call in (call for calls in self._unwritten.values() for call in calls if call.metrics):
                self._append("metrics.jsonl", call.metrics)
            self._unwritten.clear()
        self._save(finished_at=now(), duration_ms=milliseconds_since(self._clock), **changes)

    def _say(self, role: str, content: str, **fields: Any) -> None:
        self._append("thread.jsonl", {"role": role, "content": content, "timestamp": now(), **fields})

    def _append(self, name: str, fields: Any) -> None:
        with open(self.folder / name, "a", encoding="utf-8", newline="") as file:
            file.write(json.dumps(fields, default=str) + "\n")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_bytes(text.encode("utf-8", "backslashreplace"))

    def _save(self, **changes: Any) -> None:
        self.metadata |= changes
        # Renamed into place, so that no reader meets half a record.
        self._write(".metadata.json.new", json.dumps(self.metadata, indent=2))
        os.replace(self.folder / ".metadata.json.new", self.folder / "metadata.json")


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


def now() -> str:
    return datetime.now(UTC).isoformat()


def milliseconds_since(clock: float) -> int:
    return round((time.monotonic() - clock) * 1000)
