#!/usr/bin/env python3
"""Runs sessions of the real Claude Code as clients of `swarmletfs mcp`, for the pages of docs/scenarios.

usage: scenario_by_mcp.py PROGRAM DIR < SESSIONS
  PROGRAM  Claude Code
  DIR      a new directory for what the sessions leave

stdin: a list of sessions: {"command": [...], "role": ..., "project": ..., "answer": "yes" or null,
"calls": [{"tool": ..., "arguments": {...}}]}. The calls of a session are made one after the other. Sessions of workers
that follow each other run at once: none makes its second call before each has the result of its first. stdout: for
each session the names of its tools, the results and the questions, as tests/mcp/roles.py prints them.
"""

import itertools
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mcp_session
from mcp_session import call

SERVER = "swarm"
LAST_WORDS = [{"text": "All calls are made."}]


def run(program, out, wanted, model_class):
    """Runs a session, and returns what it did."""
    turns = [[call(SERVER, made["tool"], **made["arguments"])] for made in wanted["calls"]]
    played = mcp_session.run(
        program, out, wanted["project"], (SERVER, wanted["command"]), [*turns, LAST_WORDS],
        says_yes=wanted["answer"] == "yes", model_class=model_class,
    )
    return {"tools": sorted(played.tools), "results": played.results, "questions": played.questions}


def main():
    program, out = sys.argv[1], Path(sys.argv[2]).resolve()
    done = []
    for is_worker, following in itertools.groupby(json.load(sys.stdin), lambda wanted: wanted["role"] != "supervisor"):
        sessions = list(following)
        # A supervisor sees what the session before it did.
        for together in [sessions] if is_worker else [[wanted] for wanted in sessions]:
            model_class = mcp_session.meeting(len(together))
            with ThreadPoolExecutor(len(together)) as threads:
                running = [
                    threads.submit(run, program, out / str(len(done) + place), wanted, model_class)
                    for place, wanted in enumerate(together)
                ]
            done += [session.result() for session in running]
    print(json.dumps(done))


if __name__ == "__main__":
    os.umask(0o022)
    main()
