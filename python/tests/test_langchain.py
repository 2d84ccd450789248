"""The helpers for LangChain: tools, recorder and expanding model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from pydantic import Field

import swarmletfs
from swarmletfs.langchain import TEXT_MAX, ExpandingModel, WorkerRecorder, tools


class ScriptedModel(BaseChatModel):
    """Answers with its script, one message a call, and keeps what it saw last."""

    script: list[AIMessage]
    seen: list[BaseMessage] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen = messages
        return ChatResult(generations=[ChatGeneration(message=self.script.pop(0))])


@pytest.fixture
def named(store: Path) -> dict[str, BaseTool]:
    for id, code in [("builder", 0), ("restorer", 1)]:
        with swarmletfs.Worker.create(store, task=f"Be a {id}", id=id, type="ops") as worker:
            worker.record("sh", f"output of {id}\n" * 3000, exit_code=code)
            worker.put("outputs/report.md", f"# Report of {id}\n\nEnd\n")
            worker.finish(exit_code=code)
    return {tool.name: tool for tool in tools(swarmletfs.open(store))}


def test_tools_have_the_names_that_supervisors_know(named: dict[str, BaseTool]) -> None:
    assert list(named) == [
        "list_worker_artifacts",
        "read_worker_file",
        "search_worker_artifacts",
        "summarize_worker_output",
        "compare_worker_outputs",
        "get_worker_evidence",
        "get_tool_output",
    ]
    assert all(tool.description for tool in named.values())
    assert set(named["read_worker_file"].args) == {"worker_id", "file_path", "max_lines", "offset"}


def test_tools_read_workers(named: dict[str, BaseTool], store: Path) -> None:
    view = swarmletfs.open(store)
    listed = named["list_worker_artifacts"].invoke({"status_filter": "failed"})
    assert json.loads(listed)["id"] == "restorer"
    assert named["list_worker_artifacts"].invoke({"task_type_filter": "none"}).startswith("no worker matches")
    read = {"worker_id": "builder", "file_path": "outputs/report.md"}
    assert named["read_worker_file"].invoke(read) == "# Report of builder\n\nEnd\n"
    assert named["read_worker_file"].invoke({**read, "max_lines": 1}).startswith("# Report of builder\n\n[... more")
    found = named["search_worker_artifacts"].invoke({"query": "Report", "file_pattern": "*.md", "worker_filter": ["builder"]})
    assert "1:# Report of builder" in found and "restorer" not in found
    assert "report" in named["search_worker_artifacts"].invoke({"query": "report", "search_type": "semantic"}).lower()
    assert named["summarize_worker_output"].invoke({"worker_id": "builder"}) == view.worker("builder").summary()
    assert "Report" in named["compare_worker_outputs"].invoke({"worker_ids": ["builder", "restorer"]})
    evidence = named["get_worker_evidence"].invoke({"worker_id": "restorer", "budget_bytes": 900})
    assert evidence == view.worker("restorer").evidence(budget=900)


def test_long_outputs_come_in_parts(named: dict[str, BaseTool], store: Path) -> None:
    whole = swarmletfs.open(store).worker("builder").tool_output(1).decode()
    for call in [1, "1", "001_sh.txt"]:
        first = named["get_tool_output"].invoke({"worker_id": "builder", "call": call})
        assert first == f"{whole[:TEXT_MAX]}\n[... more follows; continue with offset {TEXT_MAX} ...]"
    rest = named["get_tool_output"].invoke({"worker_id": "builder", "call": 1, "offset": len(whole) - 5})
    assert rest == whole[-5:]


def test_a_model_can_read_an_error_of_a_tool(named: dict[str, BaseTool]) -> None:
    assert "no such file or folder" in named["summarize_worker_output"].invoke({"worker_id": "nobody"})
    assert "regex" in named["search_worker_artifacts"].invoke({"query": "("})
    assert "budget" in named["get_worker_evidence"].invoke({"worker_id": "builder", "budget_bytes": -1})
    assert "name a worker_id" in named["get_tool_output"].invoke({})
    assert named["read_worker_file"].invoke({"worker_id": "builder", "file_path": "../restorer/metadata.json"})


def test_an_agent_is_recorded(store: Path) -> None:
    @tool(response_format="content_and_artifact")
    def check(path: str) -> tuple[str, dict[str, int]]:
        """Checks a path."""
        return f"{path} is broken", {"exit_code": 3}

    @tool
    def fail() -> str:
        """Fails."""
        raise ValueError("it fails")

    def agent(question: str, config: Any) -> str:
        call: Any = {"name": "check", "args": {"path": "/x"}, "id": "1", "type": "tool_call"}
        model = ScriptedModel(script=[AIMessage("", tool_calls=[call]), AIMessage("It is broken.")])
        messages: list[BaseMessage] = [HumanMessage(question)]
        messages.append(model.invoke(messages, config))
        messages.append(check.invoke(call, config))
        with pytest.raises(ValueError):
            fail.invoke({}, config)
        return str(model.invoke(messages, config).text)

    worker = swarmletfs.Worker.create(store, task="Check", id="agent")
    recorder = WorkerRecorder(worker)
    answer = RunnableLambda(agent).invoke("Check /x", {"callbacks": [recorder]})
    read = swarmletfs.open(store).worker("agent")
    assert (answer, read.status, read.read("result.txt")) == ("It is broken.", "completed", b"It is broken.")
    calls = read.index()["tool_calls"]
    assert [(call["tool"], call["outcome"], call.get("exit_code")) for call in calls] == [
        ("check", "failed", 3),
        ("fail", "failed", None),
    ]
    assert read.tool_output(1) == b"/x is broken"
    roles = [json.loads(line)["role"] for line in read.read("thread.jsonl").splitlines()]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]


def test_an_agent_that_raises_has_failed(store: Path) -> None:
    def agent(_: str) -> str:
        raise RuntimeError("broken")

    worker = swarmletfs.Worker.create(store, task="Check", id="agent")
    with pytest.raises(RuntimeError):
        RunnableLambda(agent).invoke("x", {"callbacks": [WorkerRecorder(worker)]})
    assert swarmletfs.open(store).worker("agent").index()["error"] == "RuntimeError: broken"


def test_a_model_sees_evidence_that_messages_do_not_keep(named: dict[str, BaseTool], store: Path) -> None:
    scripted = ScriptedModel(script=[AIMessage("seen"), AIMessage("seen"), AIMessage("seen")])
    model = ExpandingModel(scripted, swarmletfs.open(store), budget="2k").bind_tools([])
    marker = "[EVIDENCE:run_id=-,job_id=-,worker_id=restorer]"
    messages = [HumanMessage(marker), ToolMessage(marker, tool_call_id="1", artifact=object())]
    assert model.invoke(messages).content == "seen"
    assert scripted.seen[0].content == marker
    assert "output of restorer" in scripted.seen[1].content
    assert messages[1].content == marker
    assert [part.content for part in model.stream(messages)] == ["seen"]
    assert model.invoke("no marker").content == "seen"
