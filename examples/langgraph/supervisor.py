"""A supervisor that starts three workers and finds out which of them told the truth. See README.md."""

import argparse
import itertools
import json
import secrets
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import messages_to_dict
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph

from agents import agent
from expanding import ExpandingModel
from judging import supervise
from recorder import WorkerRecorder, swarmletfs
from scripted import ScriptedModel
from workers import WORKERS

OWNER = 7
WORDS_MAX = 250
FRAME = "--- Evidence for Worker"


@dataclass
class Report:
    """A run, and what was seen of it against what is kept of it."""

    store: str
    run_id: str
    workers: list[dict[str, Any]]
    synthesis: str
    raw_bytes: int  # what the workers' tools returned
    seen_chars: int  # what the supervisor's model saw in its last call
    frames_seen: int  # the workers' evidence in that
    checkpoints: int
    checkpoint_bytes: int  # all checkpoints together
    memory_bytes: int  # the messages in the last of them
    frames_kept: int  # evidence in any checkpoint: none


def payload(recorder: WorkerRecorder, words: str) -> str:
    """What the supervisor remembers of a worker, a few hundred bytes: its own words and where the evidence lies."""
    # On one line, and without a marker: a worker must not choose whose evidence is shown for its own.
    line = " ".join(words.split()).replace("[EVIDENCE:", "[\\EVIDENCE:")
    cut = line.encode()[:WORDS_MAX].decode(errors="ignore")
    ended = f"Worker {recorder.worker_id} ({recorder.task_type}) ended: {recorder.status}"
    return f"{ended}\nIts own words: {cut}\n\n{recorder.marker}"


def spawning(store: Path, run_id: str, crew: list[WorkerRecorder]) -> BaseTool:
    """The tool that has a worker do a task. Each worker's recorder is added to `crew`."""
    jobs = itertools.count(1)

    @tool
    def spawn_worker(task: str, task_type: str) -> str:
        """Has a worker do a task, and returns what the worker says of it."""
        answer, tools = WORKERS[task_type]
        recorder = WorkerRecorder(
            store,
            task,
            run_id=run_id,
            job_id=str(next(jobs)),
            owner_id=OWNER,
            task_type=task_type,
            tags=["example"],
        )
        crew.append(recorder)
        worker = agent(ScriptedModel(answer=answer), tools)
        try:
            worker.invoke({"messages": [("user", task)]}, {"callbacks": [recorder]})
        except Exception as error:
            return payload(recorder, f"none, it ended with {error!r}")
        return payload(recorder, recorder.words)

    return spawn_worker


def run(store: Path, *, budget: str = "16k", blind: bool = False) -> tuple[Report, CompiledStateGraph, RunnableConfig]:
    """Runs the story in `store`. Also the supervisor's graph and the config of its thread, for who wants to look.

    `blind` leaves the expansion out: the model then sees what the supervisor remembers, and no more.
    """
    swarmletfs("init", str(store))
    run_id = secrets.token_hex(4)
    crew: list[WorkerRecorder] = []
    model = ScriptedModel(answer=supervise)
    seeing = ExpandingModel(model, store=store, run=run_id, owner=OWNER, budget=budget)
    graph = agent(model if blind else seeing, [spawning(store, run_id, crew)], InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": run_id}}

    messages = graph.invoke({"messages": [("user", "Are the nightly backups in order?")]}, config)["messages"]
    synthesis = messages[-1].text
    notes = store / "supervisor"
    notes.mkdir(exist_ok=True)
    (notes / "synthesis.md").write_text(synthesis + "\n", encoding="utf-8")

    crew.sort(key=lambda recorder: recorder.job_id or "")
    seen = "\n".join(message.text for message in model.seen)
    kept = serialized(graph, config)
    report = Report(
        store=str(store),
        run_id=run_id,
        workers=[told_of(recorder) for recorder in crew],
        synthesis=synthesis,
        raw_bytes=sum(raw_bytes(recorder) for recorder in crew),
        seen_chars=len(seen),
        frames_seen=seen.count(FRAME),
        checkpoints=len(kept),
        checkpoint_bytes=sum(map(len, kept)),
        memory_bytes=len(json.dumps(messages_to_dict(messages)).encode()),
        frames_kept=sum(FRAME.encode() in checkpoint for checkpoint in kept),
    )
    return report, graph, config


def serialized(graph: CompiledStateGraph, config: RunnableConfig) -> list[bytes]:
    """Every checkpoint of the thread, and of graphs within it, as the checkpointer writes it."""
    saver = graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)
    found = saver.list(config)
    return [saver.serde.dumps_typed((c.checkpoint, c.metadata, c.pending_writes))[1] for c in found]


def told_of(recorder: WorkerRecorder) -> dict[str, Any]:
    """A worker as the report tells of it."""
    told = {name: getattr(recorder, name) for name in ("worker_id", "job_id", "task_type", "status")}
    return {**told, "words": recorder.words, "raw_bytes": raw_bytes(recorder)}


def raw_bytes(recorder: WorkerRecorder) -> int:
    """How much a worker's tools returned."""
    return sum(file.stat().st_size for file in (recorder.folder / "tool_calls").iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, metavar="DIR", help="record the workers there (a new temporary folder)")
    parser.add_argument("--budget", default="16k", metavar="SIZE", help="how large all evidence in a call may be (16k)")
    parser.add_argument("--blind", action="store_true", help="expand no markers: what the supervisor would believe")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    store = args.store or Path(tempfile.mkdtemp(prefix="swarm-"))
    report, _, _ = run(store, budget=args.budget, blind=args.blind)
    if args.json:
        print(json.dumps(asdict(report), indent=2))
        return
    print(f"{report.synthesis}\n")
    print(f"the workers' tools returned  {report.raw_bytes:>7} bytes")
    print(f"the model saw in a call      {report.seen_chars:>7} characters, evidence of {report.frames_seen} workers")
    print(f"the supervisor remembers     {report.memory_bytes:>7} bytes")
    kept = f"evidence in {report.frames_kept} of {report.checkpoints}"
    print(f"its checkpoints hold         {report.checkpoint_bytes:>7} bytes, {kept}")
    print(f"\nThe record is in {report.store}")


if __name__ == "__main__":
    main()
