#!/usr/bin/env python3
"""Runs the real Claude Code as an MCP client of `swarmletfs mcp` in each role, and checks what came of it.

usage: by_mcp.py SWARMLETFS PROGRAM DIR
  SWARMLETFS  the program whose `mcp` serves the tools
  PROGRAM     Claude Code
  DIR         a new directory: project/ is the repository, store/ has the worker `fix`

A supervisor creates the worker. A session with the tools of that worker, and no other way to write, corrects the
project in its view and finishes. The supervisor reads its changes and tries to apply them: this program asks no person
without a terminal, so nothing is applied.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import claude_code
import messages_api
import scenario
import session
from model import ScriptedModel

CLAIM = "The total is right now."


def tool(server, name, **arguments):
    """Returns a call of a tool of an MCP server."""
    return {"tool": f"mcp__{server}__{name}", "input": arguments}


SUPERVISOR_BEGINS = [[tool("swarm", "create_worker", task="Correct the total", id="fix")], [{"text": "It may begin."}]]

WORKER = [
    [tool("work", "read_file", path="price.sh"), tool("work", "grep", pattern="sum=0", output_mode="content")],
    [tool("work", "edit_file", path="price.sh", old_string="sum=0", new_string="sum=5")],
    [tool("work", "execute", command="sh ./test.sh 2>&1 | tail -1")],
    [tool("work", "note", text="The sum began with 0.")],
    [tool("work", "finish", result=CLAIM)],
    [{"text": CLAIM}],
]

SUPERVISOR_ENDS = [
    [tool("swarm", "summarize", worker="fix"), tool("swarm", "changes", worker="fix")],
    [tool("swarm", "annotate_worker", worker="fix", text="Looks right.")],
    [tool("swarm", "apply_changes", worker="fix")],
    [{"text": "A person must apply it."}],
]


def run(swarmletfs, program, out, name, turns, server):
    """Runs a session with one MCP server, and returns the requests to its model."""
    home = out / name
    session.make_directories(home, "config")
    label, arguments = server
    config = {"mcpServers": {label: {"command": swarmletfs, "args": ["mcp", *map(str, arguments)]}}}
    settings = {"permissions": {**scenario.PERMISSIONS, "allow": [f"mcp__{label}"]}}
    (home / "config/settings.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [program, "--print", scenario.PROMPT, "--strict-mcp-config", "--mcp-config", json.dumps(config)]
    with ScriptedModel(messages_api, {"main": turns}, home / "requests.jsonl") as model:
        done = subprocess.run(
            command, cwd=out / "project", env=claude_code.environment(home, model.url), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=session.LIMIT,
        )
    assert done.returncode == 0, f"{name} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return [request for request in session.lines(home / "requests.jsonl") if request["conversation"] == "main"]


def text(request):
    """Returns all that a model was told, as text."""
    return json.dumps(request["messages"])


def main():
    swarmletfs, program, out = sys.argv[1:]
    swarmletfs, out = str(Path(swarmletfs).resolve()), Path(out).resolve()
    project, store = out / "project", out / "store"
    project.mkdir(parents=True)
    session.make_project(project, session.environment(out))
    subprocess.run([swarmletfs, "init", store], check=True, stdout=subprocess.DEVNULL)
    before = (project / "price.sh").read_bytes()
    supervisor = ("swarm", ["--as", "supervisor", "--no-cache", "--store", store])
    worker = ("work", ["--as", "worker:fix", "--store", store, "--workspace", project])

    run(swarmletfs, program, out, "begin", SUPERVISOR_BEGINS, supervisor)
    metadata = json.loads((store / "workers/fix/metadata.json").read_text(encoding="utf-8"))
    assert metadata["status"] == "running" and metadata["task"] == "Correct the total", metadata

    requests = run(swarmletfs, program, out, "work", WORKER, worker)
    offered = {name for name in requests[0]["tools"] if name.startswith("mcp__")}
    expected = {"ls", "read_file", "write_file", "edit_file", "delete_file", "glob", "grep", "execute", "note", "finish"}
    assert offered == {f"mcp__work__{name}" for name in expected}, f"the tools of a worker: {offered}"
    said = text(requests[-1])
    for part in ("2 tests, 0 failed", "edited price.sh: 1 replacement", "the worker has finished"):
        assert part in said, f"{part!r} is missing in {said}"
    assert (project / "price.sh").read_bytes() == before, "the project has not changed"

    # The changes are recorded after the session, whether or not the program waits for that.
    draft = store / "drafts/fix/draft.json"
    end = time.monotonic() + session.LIMIT
    while json.loads(draft.read_text(encoding="utf-8"))["state"] != "ended" and time.monotonic() < end:
        time.sleep(0.01)

    requests = run(swarmletfs, program, out, "end", SUPERVISOR_ENDS, supervisor)
    said = text(requests[-1])
    for part in ("+    sum=5", CLAIM, "fix is annotated"):
        assert part in said, f"{part!r} is missing in {said}"
    assert (project / "price.sh").read_bytes() == before, "nothing is applied without a person"
    subprocess.run([swarmletfs, "apply", "--store", store, "--yes", "fix"], check=True, stdout=subprocess.DEVNULL)
    assert "sum=5" in (project / "price.sh").read_text(encoding="utf-8")
    can_ask = "mcp__swarm__apply_changes" in requests[0]["tools"]
    print(f"claude-code: each role by MCP; apply_changes is {'offered' if can_ask else 'not offered'} without a terminal")


if __name__ == "__main__":
    os.umask(0o022)
    main()
