"""Recording: calls as functions, context managers and decorators; messages, files and ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import swarmletfs
from swarmletfs.__main__ import find_program


def calls(store: Path, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = swarmletfs.open(store).worker(id).index()["tool_calls"]
    return found


def records(store: Path, id: str) -> list[dict[str, Any]]:
    """Returns the records of the calls that have ended."""
    lines = map(json.loads, (store / "workers" / id / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "duration_ms" in line]


def test_a_worker_is_described(store: Path) -> None:
    worker = swarmletfs.Worker.create(
        store,
        task="Check",
        run=48,
        job="1",
        owner=7,
        type="ops",
        model="m",
        tags=["nightly"],
        cwd=store,
        context={"plan.md": "first"},
    )
    info = swarmletfs.open(store).worker(worker.id).info
    expected = {"task": "Check", "run_id": "48", "job_id": "1", "owner_id": "7", "task_type": "ops"}
    assert {key: info[key] for key in expected} == expected
    assert swarmletfs.open(store).worker(worker.id).read("context/plan.md") == b"first"
    child = swarmletfs.Worker.create(store, task="Help", id="child", parent=worker.id)
    assert child.id == "child"


def test_a_call_is_recorded_by_function(store: Path) -> None:
    worker = swarmletfs.Worker.create(store, task="Work", id="w")
    assert worker.record("sh", "one", input={"command": "ls"}, exit_code=0) == 1
    assert worker.record("sh", b"\xff\x00two", exit_code=2, error="bad", duration=1.5) == 2
    assert worker.record("sh", "three") == 3
    assert [call["outcome"] for call in calls(store, "w")] == ["ok", "failed", "unknown"]
    first, second, _ = records(store, "w")
    assert first["input"] == {"command": "ls"}
    assert (second["error"], second["duration_ms"]) == ("bad", 1500)
    assert swarmletfs.open(store).worker("w").tool_output(2) == b"\xff\x00two"


def test_a_call_is_recorded_by_a_block(store: Path) -> None:
    worker = swarmletfs.Worker.create(store, task="Work", id="w")
    with worker.call("build", input="make") as call:
        call.write("first\n")
        assert swarmletfs.open(store).worker("w").tool_output(call.seq) == b"first\n"
        call.write(b"second\n")
        assert call.end(exit_code=0) == 13
    with pytest.raises(KeyError), worker.call("build"):
        raise KeyError("gone")
    assert [call["outcome"] for call in calls(store, "w")] == ["ok", "failed"]
    assert records(store, "w")[1]["error"] == "KeyError: 'gone'"
    with pytest.raises(swarmletfs.Invalid, match="call 1: it has ended"):
        call.write("more")
    with pytest.raises(swarmletfs.Invalid, match="it has ended"):
        call.end()


def test_functions_are_recorded_by_a_decorator(store: Path) -> None:
    worker = swarmletfs.Worker.create(store, task="Work", id="w")

    @worker.record
    def add(a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    @worker.tool(name="fetch_page")
    async def fetch(url: str) -> str:
        return f"page of {url}"

    @worker.tool
    def nothing(thing: object) -> None:
        if thing is None:
            raise ValueError("nothing")

    assert add(1, b=3) == 4 and add.__doc__ == "Adds."
    assert asyncio.run(fetch("x")) == "page of x"
    nothing(object)
    with pytest.raises(ValueError):
        nothing(None)
    with pytest.raises(TypeError):
        add()  # type: ignore[call-arg]
    assert [(call["tool"], call["outcome"]) for call in calls(store, "w")] == [
        ("add", "ok"),
        ("fetch_page", "ok"),
        ("nothing", "ok"),
        ("nothing", "failed"),
        ("add", "failed"),
    ]
    assert records(store, "w")[0]["input"] == {"a": 1, "b": 3}
    assert records(store, "w")[2]["input"] == {"thing": "<class 'object'>"}
    assert swarmletfs.open(store).worker("w").tool_output(1) == b"4"


def test_an_end_is_recorded(store: Path) -> None:
    worker = swarmletfs.Worker.create(store, task="Work", id="w")
    worker.message("assistant", "Done é", tool_calls=[])
    assert worker.put("outputs/a/b.bin", b"\x00\x01") == 2
    worker.finish(result="All is well.", summary="Well")
    read = swarmletfs.open(store).worker("w")
    assert (read.status, read.read("result.txt")) == ("completed", b"All is well.")
    assert "Done é".encode() in read.read("thread.jsonl") or b"Done" in read.read("thread.jsonl")
    worker.annotate("Seen.")
    assert "Seen." in swarmletfs.open(store).worker("w").summary()
    changes: list[Callable[[], object]] = [lambda: worker.record("sh", "x"), lambda: worker.put("outputs/x", "x"), worker.finish]
    for change in changes:
        with pytest.raises(swarmletfs.Finished, match="it has finished"):
            change()


def test_a_block_ends_the_worker(store: Path) -> None:
    with swarmletfs.Worker.create(store, task="Work", id="good"):
        pass
    with pytest.raises(RuntimeError), swarmletfs.Worker.create(store, task="Work", id="bad"):
        raise RuntimeError("broken")
    with swarmletfs.Worker.create(store, task="Work", id="given") as worker:
        worker.finish("abandoned", error="no time")
    view = swarmletfs.open(store)
    assert [view.worker(id).status for id in ("good", "bad", "given")] == ["completed", "failed", "abandoned"]
    assert view.worker("bad").index()["error"] == "RuntimeError: broken"


def test_a_worker_is_opened_by_name_and_by_the_environment(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swarmletfs.Worker.create(store, task="Work", id="w").record("sh", "one")
    assert swarmletfs.Worker.open(store, "w").record("sh", "two") == 2
    monkeypatch.setenv("SWARMLET_STORE", str(store))
    monkeypatch.setenv("SWARMLET_WORKER", "w")
    assert swarmletfs.Worker.open().record("sh", "three") == 3


def test_errors_have_the_sentences_of_the_command_line(store: Path, tmp_path: Path) -> None:
    worker = swarmletfs.Worker.create(store, task="Work", id="w")
    with pytest.raises(swarmletfs.NotFound) as missing:
        swarmletfs.Worker.open(store, "nobody")
    done = subprocess.run(
        [find_program(), "worker", "put", "nobody", "x", "--store", str(store)], input="", capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1] == f"swarmletfs: {missing.value}"
    with pytest.raises(swarmletfs.Error, match="the id is taken"):
        swarmletfs.Worker.create(store, task="Work", id="w")
    with pytest.raises(swarmletfs.Error, match="swarmletfs init"):
        swarmletfs.Worker.create(tmp_path / "nowhere", task="Work")
    refusals: list[Callable[[], object]] = [
        lambda: worker.record("", "x"),
        lambda: worker.put("../x", "x"),
        lambda: worker.put("metadata.json", "x"),
        lambda: worker.put("", "x"),
        lambda: worker.message("stranger", "x"),  # type: ignore[arg-type]
        lambda: worker.finish("completed", error="x"),
        lambda: worker.finish("other"),  # type: ignore[arg-type]
        lambda: worker.record("sh", "x", duration=-1.0),
        lambda: swarmletfs.Worker.create(store, task="Work", run=" "),
        lambda: swarmletfs.Worker.create(store, task="x" * (2 << 20)),
    ]
    for refused in refusals:
        with pytest.raises(swarmletfs.Invalid):
            refused()


def test_large_and_strange_inputs_are_recorded(store: Path) -> None:
    worker = swarmletfs.Worker.create(store, task="Work", id="w")
    loop: list[Any] = []
    loop.append(loop)
    for value in ["x" * (2 << 20), loop, {1, 2}, {"f": float("nan")}, {(1, 2): 3}, "\udcff", b"bytes"]:
        worker.record("sh", "out", input=value)
    assert len(calls(store, "w")) == 7


def test_threads_record_one_worker(store: Path) -> None:
    worker = swarmletfs.Worker.create(store, task="Work", id="w", sync=False)
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.extend(worker.record("sh", "x") for _ in range(10))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 81))
