#!/usr/bin/env python3
"""Runs the real Claude Code as an MCP client of `swarmletfs mcp` in each role, and checks what came of it.

usage: by_mcp.py SWARMLETFS PROGRAM DIR
  SWARMLETFS  the program whose `mcp` serves the tools
  PROGRAM     Claude Code
  DIR         a new directory: project/ is the repository, store/ has the worker `fix`

A supervisor creates the worker. A session with the tools of that worker, and no other way to write, corrects the
project in its view and finishes. A session without a role reads what it did. The supervisor reads its changes and tries
to apply them: without a terminal, this program asks nobody and cancels the question, so nothing is applied. With a hook
that answers by a yes, they are.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mcp_session
import session
from mcp_session import call

CLAIM = "The total is right now."
RESOURCE = "swarm:///workers/fix/summary"

# The tools that a supervisor has beside those of a reader.
SUPERVISOR_TOOLS = {"annotate_worker", "apply_changes", "changes", "create_worker", "read_note", "write_note"}
WORKER_TOOLS = {
    "ls", "read_file", "write_file", "edit_file", "delete_file", "glob", "grep", "execute", "note", "finish",
}

SUPERVISOR_BEGINS = [
    [call("swarm", "create_worker", task="Correct the total", id="fix", run="9")],
    [call("swarm", "write_note", path="plan.md", content="fix corrects the total.\n")],
    [{"text": "It may begin."}],
]

WORKER = [
    [
        call("work", "ls", path="."), call("work", "read_file", path="price.sh"), call("work", "glob", pattern="*.sh"),
        call("work", "grep", pattern="sum=0", output_mode="content"),
    ],
    [
        call("work", "edit_file", path="price.sh", old_string="sum=0", new_string="sum=5"),
        call("work", "write_file", path="docs/total.md", content="The sum begins with 5.\n"),
        call("work", "delete_file", path="build.sh"),
    ],
    [call("work", "execute", command="sh ./test.sh 2>&1 | tail -1")],
    [call("work", "note", text="The sum began with 0.")],
    [call("work", "finish", result=CLAIM)],
    [{"text": CLAIM}],
]

READER = [
    [call("swarm", "list_workers", status="completed"), call("swarm", "list_dir", path="workers/fix/tool_calls")],
    [call("swarm", "get_evidence", worker="fix"), call("swarm", "grep", pattern="2 tests, 0 failed")],
    [call("swarm", "search", query="sum begins"), call("swarm", "read_file", path="supervisor/plan.md")],
    [{"tool": "ReadMcpResourceTool", "input": {"server": "swarm", "uri": RESOURCE}}],
    [{"text": "All is read."}],
]

SUPERVISOR_ENDS = [
    [call("swarm", "summarize", worker="fix"), call("swarm", "changes", worker="fix")],
    [call("swarm", "annotate_worker", worker="fix", text="Looks right."), call("swarm", "read_note", path="plan.md")],
    [{"text": "A person must apply it."}],
]

APPLY = [[call("swarm", "apply_changes", worker="fix")], [{"text": "That was it."}]]


def files(folder):
    """Returns the content of every file of a directory, without those of git."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def check_parts(what, text, parts):
    """Checks that a text has all of these parts."""
    for part in parts:
        assert part in text, f"{part!r} is missing in {what}: {text}"


class Roles:
    """The sessions, one after the other, on one project and one store."""

    def __init__(self, swarmletfs, program, out):
        self.swarmletfs, self.program, self.out = swarmletfs, program, out
        self.project, self.store = out / "project", out / "store"
        self.project.mkdir(parents=True)
        session.make_project(self.project, session.environment(out))
        self.command("init", self.store)
        self.before = files(self.project)
        self.supervisor_tools = set()

    def command(self, *words):
        """Returns what a command prints."""
        command = [self.swarmletfs, *map(str, words)]
        environment = session.environment(self.out) | {"SWARMLET_STORE": str(self.store)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def play(self, name, role, turns, **options):
        """Runs a session whose server has this role."""
        label = "work" if role.startswith("worker:") else "swarm"
        arguments = ["mcp", "--store", str(self.store)]
        if role:
            arguments += ["--as", role]
        arguments += ["--workspace", str(self.project)] if label == "work" else ["--no-cache"]
        server = (label, [self.swarmletfs, *arguments])
        return mcp_session.run(self.program, self.out / name, self.project, server, turns, **options)

    def check_project_is_unchanged(self):
        """Checks that the project is as at the start."""
        assert files(self.project) == self.before, f"the project has changed: {files(self.project)}"

    def begin(self):
        """Lets a supervisor create the worker."""
        played = self.play("begin", "supervisor", SUPERVISOR_BEGINS)
        self.supervisor_tools = played.tools
        created, noted = played.texts()
        assert json.loads(created)["worker_id"] == "fix" and noted == "wrote supervisor/plan.md", (created, noted)
        check_parts("the worker", self.command("worker", "show", "fix"), ["running", "task     Correct the total"])

    def work(self):
        """Lets the worker do its work, and checks its record by commands."""
        played = self.play("work", "worker:fix", WORKER)
        assert played.tools == WORKER_TOOLS, f"the tools of a worker: {played.tools}"
        listed, read, found, matched, edited, written, deleted, executed, noted, finished = played.texts()
        names = {entry["name"] for entry in json.loads(listed)}
        assert {"price.sh", "build.sh", "README.md"} <= names, f"the project: {names}"
        assert read.rstrip("\n") == self.before["price.sh"].decode().rstrip("\n"), read
        assert found.split() == ["build.sh", "price.sh", "test.sh"], found
        assert matched.strip() == "price.sh:3:    sum=0", matched
        assert edited == "edited price.sh: 1 replacement" and written == "wrote docs/total.md", (edited, written)
        assert deleted == "deleted build.sh" and noted == "noted", (deleted, noted)
        assert finished == "the worker has finished", finished
        assert json.loads(executed) == {"stdout": "2 tests, 0 failed\n", "stderr": "", "exit_code": 0}, executed
        self.check_project_is_unchanged()
        self.wait_for_changes()

        summary = self.command("worker", "show", "fix")
        check_parts("the summary", summary, ["status   completed", "outcome  ok", "calls    9: 0 failed", CLAIM])
        calls = self.command("ls", "workers/fix/tool_calls").split()
        tools = ["ls", "read_file", "glob", "grep", "edit_file", "write_file", "delete_file", "execute", "note"]
        # The calls of one turn come in any order.
        assert sorted(name[4:-4] for name in calls) == sorted(tools), f"the recorded calls: {calls}"
        evidence = self.command("cat", "workers/fix/evidence.txt")
        check_parts("the evidence", evidence, ["Calls: 9 (0 failed, 0 unknown)", "2 tests, 0 failed"])
        changes = self.command("changes", "fix")
        parts = ["-    sum=0\n+    sum=5\n", "+The sum begins with 5.\n", "deleted file mode"]
        check_parts("the changes", changes, parts)

    def wait_for_changes(self):
        """Waits for the record of the changes, which can come after the session."""
        draft = self.store / "drafts/fix/draft.json"
        end = time.monotonic() + session.LIMIT
        while json.loads(draft.read_text(encoding="utf-8"))["state"] != "ended":
            assert time.monotonic() < end, "the changes are not recorded"
            time.sleep(0.01)

    def read(self):
        """Lets a session without a role read all of it. It changes nothing in the store."""
        before = files(self.store)
        played = self.play("read", "", READER)
        more = self.supervisor_tools - played.tools
        is_part = played.tools < self.supervisor_tools
        assert is_part and more == SUPERVISOR_TOOLS, f"the tools of a reader: {played.tools}"
        listed, calls, evidence, matches, passages, note, summary = played.texts()
        assert [worker["id"] for worker in json.loads(listed)["workers"]] == ["fix"], listed
        assert len(json.loads(calls)["entries"]) == 9, calls
        check_parts("the evidence", evidence, ["2 tests, 0 failed"])
        check_parts("the matching lines", matches, ["_execute.txt:", "2 tests, 0 failed"])
        check_parts("the passages", passages, ["workers/fix/changes/docs/total.md", "The sum begins with 5."])
        assert note.rstrip() == "fix corrects the total.", note
        check_parts("the resource", summary, [RESOURCE, CLAIM])
        assert files(self.store) == before, "a reader has changed the store"

    def end(self):
        """Lets the supervisor look at the changes, and apply them."""
        summary, changes, annotated, note = self.play("end", "supervisor", SUPERVISOR_ENDS).texts()
        check_parts("the summary", summary, ["changes  3 files", CLAIM])
        check_parts("the changes", changes, ["+    sum=5", "+The sum begins with 5."])
        assert annotated == "fix is annotated" and note.rstrip() == "fix corrects the total.", (annotated, note)

        played = self.play("cancel", "supervisor", APPLY)
        canceled = {"texts": ["nothing was applied: the question was canceled"], "error": True}
        assert played.results == [canceled], f"without a person: {played.results}"
        self.check_project_is_unchanged()

        played = self.play("apply", "supervisor", APPLY, says_yes=True)
        [question] = played.questions
        # In a terminal, this program shows the first three lines.
        first, hint, change = question["message"].splitlines()[:3]
        assert first == f"Apply 4 changes of worker fix to {self.project}?", first
        assert hint == "To see all of it: `swarmletfs changes fix`" and change == "remove build.sh", (hint, change)
        check_parts("the question", question["message"], ["add docs\n", "+    sum=5"])
        [applied] = played.texts()
        assert applied.startswith("applied 4 changes to "), applied
        after = files(self.project)
        assert b"sum=5" in after.pop("price.sh") and after.pop("docs/total.md") == b"The sum begins with 5.\n", after
        assert after == {name: text for name, text in self.before.items() if name not in ("price.sh", "build.sh")}

        log = [json.loads(line) for line in self.command("audit", "--json").splitlines()]
        results = [(entry["role"], entry["result"]) for entry in log if entry["action"] == "apply"]
        assert len(results) == 2 and "canceled" in results[0][1], f"the log of changes: {results}"
        assert results[1] == ("supervisor", "ok"), f"the log of changes: {results}"


def main():
    swarmletfs, program, out = sys.argv[1:]
    roles = Roles(str(Path(swarmletfs).resolve()), program, Path(out).resolve())
    roles.begin()
    roles.work()
    roles.read()
    roles.end()
    print("claude-code: each role by MCP")


if __name__ == "__main__":
    os.umask(0o022)
    main()
