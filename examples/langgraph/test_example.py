"""Tests of the example. Run with `python -m unittest`; needs swarmletfs on PATH, or its path in $SWARMLETFS."""

import asyncio
import json
import os
import shutil
import tempfile
import threading
import unittest
from pathlib import Path
from unittest.mock import patch

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool

from agents import agent
from expanding import ExpandingModel, ExpansionError
from recorder import RecordingError, WorkerRecorder, swarmletfs
from scripted import ScriptedModel, calls, following
from supervisor import FRAME, OWNER, run, serialized
from workers import WORKERS


class InAFolder(unittest.TestCase):
    def setUp(self) -> None:
        self.store = Path(tempfile.mkdtemp(prefix="swarm-"))
        self.addCleanup(shutil.rmtree, self.store, ignore_errors=True)
        swarmletfs("init", str(self.store))


class TheStory(InAFolder):
    def test_with_evidence_it_is_known_whose_claims_do_not_hold(self) -> None:
        report, _, _ = run(self.store)
        honest, liar, quiet = report.synthesis.splitlines()
        self.assertIn("holds", honest)
        self.assertIn("DOES NOT HOLD", liar)
        self.assertIn("tool_calls/003_restore_dump.txt", liar)
        self.assertIn("No space left on device", liar)
        self.assertIn("DOES NOT HOLD", quiet)
        self.assertIn("tool_calls/002_check_certificate.txt", quiet)
        self.assertEqual(report.frames_seen, len(WORKERS))
        self.assertLess(report.seen_chars, 16 * 1024 + report.memory_bytes)
        self.assertEqual({worker["status"] for worker in report.workers}, {"completed"})

    def test_without_evidence_all_are_believed(self) -> None:
        report, _, _ = run(self.store, blind=True)
        self.assertEqual(report.frames_seen, 0)
        self.assertEqual(report.synthesis.count("taken at its word"), len(WORKERS))

    def test_no_checkpoint_holds_evidence(self) -> None:
        report, graph, config = run(self.store)
        self.assertGreater(report.raw_bytes, 100_000)
        self.assertLess(report.memory_bytes, 8_000)
        states = [repr(state) for state in graph.get_state_history(config)]
        self.assertEqual(len(states), report.checkpoints)
        # Nor may outputs come in by another way, as with the workers' own messages.
        for told in (FRAME, "invoice_0001_pkey", "billing-335.dump"):
            self.assertFalse([state for state in states if told in state])
            self.assertFalse([kept for kept in serialized(graph, config) if told.encode() in kept])
        remembered = [message for message in graph.get_state(config).values["messages"] if message.type == "tool"]
        for message in remembered:
            self.assertLessEqual(len(message.text.encode()), 500)
            self.assertIn("[EVIDENCE:run_id=", message.text)


class TheRecorder(InAFolder):
    def record(self, model: ScriptedModel, *tools: BaseTool) -> Path:
        recorder = WorkerRecorder(self.store, "a task", worker_id="w", run_id="r", job_id="1", owner_id=OWNER)
        self.assertEqual(self.metadata(recorder.folder)["status"], "running")
        agent(model, tools).invoke({"messages": [("user", "a task")]}, {"callbacks": [recorder]})
        return recorder.folder

    def metadata(self, folder: Path) -> dict:
        return json.loads((folder / "metadata.json").read_text())

    def lines(self, file: Path) -> list[dict]:
        return [json.loads(line) for line in file.read_text().splitlines()]

    def ended_calls(self, folder: Path) -> list[dict]:
        """The calls in metrics.jsonl, in the order in which they ended."""
        return [line for line in self.lines(folder / "metrics.jsonl") if line["event"] == "tool_call"]

    def test_calls_that_run_together_keep_their_outputs_and_outcomes(self) -> None:
        second_is_back = threading.Event()

        @tool(response_format="content_and_artifact")
        def look(at: str) -> tuple[str, dict]:
            """Looks. What is asked for first comes back last."""
            if at == "a":
                second_is_back.wait(10)
            else:
                threading.Timer(0.2, second_is_back.set).start()
            return at, {"exit_code": int(at == "b")}

        steps = following(calls(("look", {"at": "a"}), ("look", {"at": "b"})), AIMessage("done"))
        folder = self.record(ScriptedModel(answer=steps), look)
        first, second = self.ended_calls(folder)
        for call, at, exit_code in ((first, "b", 1), (second, "a", 0)):
            self.assertEqual((folder / f"tool_calls/{call['seq']:03}_look.txt").read_text(), at)
            self.assertEqual((call["input"], call["exit_code"]), ({"at": at}, exit_code))
        roles = [line["role"] for line in self.lines(folder / "thread.jsonl")]
        self.assertEqual(roles, ["user", "assistant", "tool", "tool", "assistant"])

    def test_names_outputs_and_errors_are_taken_as_they_come(self) -> None:
        def fails(text: str) -> str:
            raise ValueError(text)

        odd = StructuredTool.from_function(fails, name="../a b", description="Fails.")
        blocks = StructuredTool.from_function(
            lambda: ["one\r\n", {"type": "text", "text": "two"}, {"type": "image", "url": "x"}],
            name="blocks",
            description="-",
        )
        steps = following(calls(("../a b", {"text": "broken \ud800"})), calls(("blocks", {})), AIMessage("done"))
        folder = self.record(ScriptedModel(answer=steps), odd, blocks)
        failed = (folder / "tool_calls/001_.._a_b.txt").read_text()
        self.assertEqual(failed, "<tool-error> ValueError: broken \\ud800\n")
        written = (folder / "tool_calls/002_blocks.txt").read_bytes()
        self.assertEqual(written, b'one\r\n\ntwo\n{"type": "image", "url": "x"}')
        self.assertEqual([call.get("success") for call in self.ended_calls(folder)], [False, None])

    def test_a_worker_that_raises_has_failed(self) -> None:
        with self.assertRaises(IndexError):
            self.record(ScriptedModel(answer=following()))
        metadata = self.metadata(self.store / "workers/w")
        self.assertEqual(metadata["status"], "failed")
        self.assertIn("IndexError", metadata["error"])

    def test_a_record_that_cannot_be_written_ends_the_worker(self) -> None:
        @tool
        def destroy() -> str:
            """Takes the record away."""
            shutil.rmtree(self.store)
            return "done"

        with self.assertLogs("langchain_core"), self.assertRaises(RecordingError):
            self.record(ScriptedModel(answer=following(calls(("destroy", {})), AIMessage("done"))), destroy)


class TheExpandingModel(InAFolder):
    def test_every_way_to_call_it_sees_evidence_and_changes_no_message(self) -> None:
        report, graph, config = run(self.store)
        messages = graph.get_state(config).values["messages"][:-1]
        # What is no JSON must not be in the way.
        last = messages[-1]
        assert isinstance(last, ToolMessage)
        last.artifact = object()
        before = repr(messages)
        inner = ScriptedModel(answer=lambda seen: AIMessage(str(sum(m.text.count(FRAME) for m in seen))))
        model = ExpandingModel(inner, store=self.store, run=report.run_id, owner=OWNER, budget="4k").bind_tools([])

        async def streamed() -> str:
            return "".join([chunk.text async for chunk in model.astream(messages)])

        told = [
            model.invoke(messages).text,
            asyncio.run(model.ainvoke(messages)).text,
            "".join(chunk.text for chunk in model.stream(messages)),
            asyncio.run(streamed()),
        ]
        self.assertEqual(told, ["3"] * 4)
        self.assertEqual(repr(messages), before)
        self.assertIs(getattr(inner.seen[-1], "artifact", None), last.artifact)

    def test_the_evidence_of_another_run_is_not_shown(self) -> None:
        _, graph, config = run(self.store)
        messages = graph.get_state(config).values["messages"]
        seen = ExpandingModel(ScriptedModel(answer=following()), store=self.store, run="another").expand(messages)
        self.assertNotIn(FRAME, repr(seen))

    def test_a_command_that_fails_is_an_error_that_says_why(self) -> None:
        model = ExpandingModel(ScriptedModel(answer=following()), store=self.store)
        marked = [HumanMessage("?"), ToolMessage("[EVIDENCE:run_id=1,job_id=1,worker_id=w]", tool_call_id="1")]
        failing = self.store / "failing"
        failing.write_text("#!/bin/sh\necho no such store >&2\nexit 1\n")
        failing.chmod(0o755)
        for command, told in ((failing, "exit code 1: no such store"), (self.store / "none", "put swarmletfs on PATH")):
            with patch.dict(os.environ, {"SWARMLETFS": str(command)}), self.assertRaisesRegex(ExpansionError, told):
                model.invoke(marked)


if __name__ == "__main__":
    unittest.main()
