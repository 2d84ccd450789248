"""Reading: answers equal those of the command line, and errors have its sentences."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import swarmletfs
from swarmletfs.__main__ import find_program


def run(store: Path, *arguments: str, stdin: str = "", code: int = 0) -> str:
    """Runs the program and returns what it prints; its errors after a failure."""
    command = [find_program(), arguments[0], "--store", str(store), *arguments[1:]]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert done.returncode == code, done
    return done.stdout or done.stderr


def normalized(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("swarmletfs: the store is"))


@pytest.fixture
def swarm(store: Path) -> Path:
    """A store with three workers of two runs."""
    for id, run, code in [("builder", "47", 0), ("restorer", "48", 1), ("checker", "48", 0)]:
        worker = swarmletfs.Worker.create(store, task=f"Be a {id}", id=id, run=run, type="ops", owner=7)
        worker.record("sh", f"output of {id}: timeout after 3 s\n" * 50, input={"command": id}, exit_code=code)
        worker.put("outputs/report.md", f"# Report of {id}\n\nOne line.\n")
        worker.finish(result=f"{id} is done", exit_code=code)
    return store


def test_answers_equal_those_of_the_command_line(swarm: Path) -> None:
    view = swarmletfs.open(swarm)
    assert view.summary() == run(swarm, "cat", "summary")
    assert view.summary(run=48) == run(swarm, "cat", "runs/48/summary")
    assert view.evidence(budget="4k") == run(swarm, "cat", "evidence.4k.txt")
    assert view.evidence(run="latest", budget=3000) == run(swarm, "cat", "runs/latest/evidence.3000.txt")
    assert view.index() == json.loads(run(swarm, "cat", "index.json"))
    worker = view.worker("rest")
    assert worker.id == "restorer"
    assert worker.summary() == run(swarm, "cat", "workers/restorer/summary")
    assert worker.summary(focus="timeout") == run(swarm, "cat", "workers/restorer/summary@timeout")
    assert worker.evidence(budget="500tok") == run(swarm, "cat", "workers/restorer/evidence.500tok.txt")
    assert worker.index() == json.loads(run(swarm, "cat", "workers/restorer/index.json"))
    text = "See [EVIDENCE:run_id=48,job_id=-,worker_id=restorer]."
    assert view.expand(text, budget="2k") == run(swarm, "expand", "--budget", "2k", stdin=text)


def test_queries_equal_those_of_the_command_line(swarm: Path) -> None:
    view = swarmletfs.open(swarm)
    for path in [".", "runs/48", "workers/builder"]:
        assert str(view.grep("TIMEOUT", path, ignore_case=True, context=1)) == run(
            swarm, "grep", "-i", "-C", "1", "TIMEOUT", path
        )
        assert [view.search("timeout report", path, budget="1k").data] == json.loads(
            run(swarm, "search", "-b", "1k", "--json", "timeout report", path)
        )
        assert view.search("how it went", path, mode="meaning").text == run(swarm, "search", "--semantic", "how it went", path)
    answer = view.compare(["builder", view.worker("checker")], aspect="report")
    assert answer.text == run(swarm, "compare", "--aspect", "report", "builder", "checker", code=1)
    assert view.worker("builder").grep("Report", glob="*.md").data["lines"] == 1
    assert answer.complete


def test_workers_are_filtered(swarm: Path) -> None:
    view = swarmletfs.open(swarm)
    assert {worker.id for worker in view.workers()} == {"builder", "restorer", "checker"}
    assert [worker.id for worker in view.workers(status="failed")] == ["restorer"]
    assert [worker.id for worker in view.workers(run=47, type="ops")] == ["builder"]
    assert view.workers(tag="none") == []
    assert len(view.workers(limit=2)) == 2
    [failed] = view.workers(outcome="failed")
    assert (failed.status, failed.outcome, failed.info["cause"][:6]) == ("failed", "failed", "exit=1")


def test_files_of_workers_are_read(swarm: Path) -> None:
    worker = swarmletfs.open(swarm).worker("builder")
    assert worker.read("outputs/report.md") == b"# Report of builder\n\nOne line.\n"
    assert worker.read("outputs/report.md", offset=2, size=6) == b"Report"
    assert worker.read("outputs/report.md", offset=1000) == b""
    assert swarmletfs.Entry("tool_calls", "folder") in worker.list()
    assert worker.tool_output(1) == worker.tool_output("001_sh.txt") == worker.read("tool_calls/001_sh.txt")
    assert worker.changes() == ""


def test_views_hide_other_owners_and_runs(swarm: Path) -> None:
    assert [worker.id for worker in swarmletfs.open(swarm, run=47).workers()] == ["builder"]
    assert swarmletfs.open(swarm, owner="8").workers() == []
    with pytest.raises(swarmletfs.NotFound):
        swarmletfs.open(swarm, run="47").worker("checker")


def test_errors_have_the_sentences_of_the_command_line(swarm: Path, tmp_path: Path) -> None:
    view = swarmletfs.open(swarm)
    for path in ["nothing", "workers/nobody/summary", "workers/builder/../../../etc"]:
        with pytest.raises(swarmletfs.NotFound) as missing:
            view.read(path)
        assert normalized(run(swarm, "cat", path, code=1)) == f"swarmletfs: {missing.value}"
    with pytest.raises(swarmletfs.Invalid) as invalid:
        view.grep("(")
    assert str(invalid.value) == run(swarm, "grep", "(", code=2).rstrip()
    with pytest.raises(swarmletfs.Error) as absent:
        swarmletfs.open(tmp_path / "nowhere")
    assert normalized(run(tmp_path / "nowhere", "ls", code=1)) == f"swarmletfs: {absent.value}"
    refusals: list[Callable[[], object]] = [
        lambda: view.evidence(budget="many"),
        lambda: view.evidence(budget=-1),
        lambda: view.since("yesterday"),
        lambda: view.wait(timeout=-1.0),
        lambda: view.wait(timeout=float("nan")),
        lambda: view.compare(["builder"]),
        lambda: view.grep("x", context=1000),
        lambda: view.workers(limit=-1),
        lambda: view.expand([], format="other"),  # type: ignore[call-overload]
        lambda: view.expand("text", format="openai"),  # type: ignore[call-overload]
    ]
    for refused in refusals:
        with pytest.raises((swarmletfs.Invalid, swarmletfs.NotFound)):
            refused()
    assert issubclass(swarmletfs.NotFound, (swarmletfs.Error, LookupError))


def test_names_do_not_lead_elsewhere(swarm: Path) -> None:
    view = swarmletfs.open(swarm)
    for id in ["", ".", "..", "builder/..", "../workers", "a\0b", "\udcff", "x" * 5000]:
        with pytest.raises(swarmletfs.Error):
            view.worker(id)


def test_messages_are_expanded(swarm: Path) -> None:
    marker = "[EVIDENCE:run_id=48,job_id=-,worker_id=restorer]"
    messages = [{"role": "user", "content": marker}, {"role": "tool", "content": marker, "tool_call_id": "1"}]
    expanded = swarmletfs.open(swarm).expand(messages, format="openai")
    assert expanded[0] == messages[0]
    assert "timeout after 3 s" in expanded[1]["content"]


def test_changes_since_a_cursor(swarm: Path) -> None:
    view = swarmletfs.open(swarm)
    cursor = view.since().cursor
    assert "builder" not in view.since(cursor).text
    swarmletfs.Worker.create(swarm, task="More", id="late")
    later = view.since(cursor)
    assert "late" in later.text and later.cursor != cursor
    assert view.since("0").cursor


def test_wait_returns_on_an_event_and_on_a_timeout(swarm: Path) -> None:
    view = swarmletfs.open(swarm)
    assert view.wait().occurred
    worker = swarmletfs.Worker.create(swarm, task="Wait", id="slow")
    waited = view.wait(timeout=0.2)
    assert not waited.occurred and "slow" in waited.text
    finisher = threading.Timer(0.5, worker.finish)
    finisher.start()
    done = view.wait(timeout=30, since=waited.cursor)
    finisher.join()
    assert done.occurred and "4 completed" in done.text.replace("3 completed, 1 failed", "4 completed")


def test_a_view_shows_at_once_what_was_written_before(store: Path) -> None:
    view = swarmletfs.open(store)
    assert view.workers() == []
    for number in range(5):
        worker = swarmletfs.Worker.create(store, task="Write", id=f"w{number}", sync=False)
        assert view.worker(worker.id).status == "running"
        worker.record("sh", f"output {number}")
        assert view.worker(worker.id).tool_output(1) == b"output %d" % number
        worker.finish()
        assert view.worker(worker.id).status == "completed"
    assert len(view.workers()) == 5


def test_a_view_works_in_a_forked_process(swarm: Path) -> None:
    view = swarmletfs.open(swarm)
    expected = view.summary()
    child = os.fork()
    if child == 0:
        # Without the machinery of pytest.
        os._exit(0 if view.summary() == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_reading_starts_no_process(swarm: Path) -> None:
    """The commands probe stores in a process of their own program, which Python is not."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    swarmletfs.open([swarm, swarm]).summary()
    assert resource.getrusage(resource.RUSAGE_CHILDREN) == before


def test_several_stores_are_one_view(swarm: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    swarmletfs.init(other)
    swarmletfs.Worker.create(other, task="Elsewhere", id="far")
    view = swarmletfs.open([swarm, other])
    assert len(view.stores) == 2
    assert len(view.workers()) == 4


def test_the_store_is_found_as_by_the_command_line(swarm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARMLET_STORE", str(swarm))
    assert len(swarmletfs.open().workers()) == 3


def test_the_interpreter_runs_while_a_view_reads(swarm: Path) -> None:
    """A wait holds neither the interpreter nor the view."""
    view = swarmletfs.open(swarm)
    swarmletfs.Worker.create(swarm, task="Go on", id="open")
    waiter = threading.Thread(target=lambda: view.wait(timeout=2))
    waiter.start()
    reads = 0
    while waiter.is_alive():
        view.worker("open").summary()
        reads += 1
    assert reads > 3
