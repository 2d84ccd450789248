#!/usr/bin/env python3
"""Stands between a program and a hook: writes down what the hook is told, what it answers and how long it takes.

usage: recorder.py LOG [COMMAND ARGUMENT...]
  Without COMMAND, it answers as a hook should: with a context where one reaches the session that started a subagent.
"""

import json
import subprocess
import sys
import time


def stand_in(event):
    """Returns what a hook might answer to an event.

    A subagent that ends is told nothing: a context would reach the subagent, which would then continue."""
    name = event["hook_event_name"]
    ended = event["tool_response"].get("status") == "completed" if name == "PostToolUse" else (
        event.get("prompt", "").startswith("<task-notification>")
    )
    if not ended:
        return ""
    return json.dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": f"stand-in for {name}"}})


def main():
    log, command = sys.argv[1], sys.argv[2:]
    told = sys.stdin.read()
    entry = {"time": time.time(), "input": json.loads(told), "milliseconds": 0, "exit": 0, "stderr": ""}
    if command:
        start = time.monotonic()
        run = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
        entry["milliseconds"] = round((time.monotonic() - start) * 1000, 1)
        entry |= {"output": run.stdout, "exit": run.returncode, "stderr": run.stderr}
    else:
        entry["output"] = stand_in(entry["input"])
    # One write, since the hooks of two subagents can run at the same time.
    with open(log, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(entry) + "\n")
    sys.stdout.write(entry["output"])
    sys.stderr.write(entry["stderr"])
    return entry["exit"]


if __name__ == "__main__":
    sys.exit(main())
