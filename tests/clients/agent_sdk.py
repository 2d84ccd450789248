#!/usr/bin/env python3
"""Runs the real Claude Agent SDK, whose session store writes parts, against a scripted model on loopback.

usage: agent_sdk.py PROGRAM DIR [ENDPOINT BUCKET PREFIX]
  PROGRAM   the module of the SDK; Claude Code is in the package beside it
  DIR       a new directory for all that the session leaves:
              project/        the git repository it worked in
              config/         the configuration directory, with the local transcripts below projects/
              parts/          the parts, unless they are objects
              requests.jsonl  what the model was asked
              result.json     what the SDK said
  ENDPOINT  the S3 server that gets the parts beneath PREFIX of BUCKET, with the keys of the environment
"""

import json
import os
import sys

import claude_code
import messages_api
import scenario
import session

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
CLAIM = scenario.CLAIMS["main"]


def script():
    """Returns what the model says: a masked failure, an error, and a subagent that makes a false claim."""
    tests = scenario.bash("sh ./test.sh 2>&1 | tail -5", "Run the tests")
    return {
        "main": [
            [{"text": "I run the tests first."}, tests],
            [scenario.bash("sh ./build.sh", "Build")],
            [{"text": "A helper runs the tests."}, scenario.agent(scenario.TESTER, "Run the tests", False)],
            [{"text": CLAIM}],
        ],
        "agents": {
            scenario.TESTER: [
                [scenario.bash("sh ./test.sh", "Run the tests")],
                [{"text": scenario.CLAIMS[scenario.TESTER]}],
            ]
        },
    }


def environment(out, url):
    """Returns the variables of the session."""
    keys = {key: os.environ[key] for key in KEYS if key in os.environ}
    return claude_code.environment(out, url) | keys


def run(program, out, place):
    """Runs the session and writes what it leaves to `out`."""
    session.make_directories(out, "config")
    settings = {"permissions": scenario.PERMISSIONS}
    (out / "config/settings.json").write_text(json.dumps(settings), encoding="utf-8")
    modules = program.parents[2]
    claude = next(modules.glob("@anthropic-ai/claude-code-*/claude"))
    runner = claude_code.RECORDER.parent / "agent_sdk.mjs"
    said = session.run(
        ["node", str(runner), str(program), str(claude), scenario.PROMPT, *(place or [str(out / "parts")])],
        out, messages_api, script(), (), environment,
    )
    (out / "result.json").write_text(said, encoding="utf-8")


def check(out):
    """Checks that the session went as the script says, and that every line of a transcript is in a part."""
    [result] = session.lines(out / "result.json")
    assert result["result"] == CLAIM, f"the false claim comes last: {result}"
    session.check_requests(out, script())
    transcripts = list((out / "config/projects").rglob("*.jsonl"))
    assert len(transcripts) == 2, f"the session and its subagent: {transcripts}"
    parts = list((out / "parts").rglob("part-*.jsonl"))
    if not parts:
        return
    uuids = [{record.get("uuid") for path in paths for record in session.lines(path)} for paths in (transcripts, parts)]
    assert uuids[0] == uuids[1], "the parts hold the records of the transcripts"


def main():
    arguments = session.options(__doc__)
    run(arguments.program, arguments.out, arguments.hook)
    check(arguments.out)
    print("agent-sdk: a session with a subagent, in parts")


if __name__ == "__main__":
    sys.exit(main())
