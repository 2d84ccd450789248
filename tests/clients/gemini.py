#!/usr/bin/env python3
"""Runs the real Gemini CLI in a small project against a scripted model on loopback, and checks what it recorded.

usage: gemini.py [--hold TURN]... PROGRAM DIR
  PROGRAM      Gemini CLI
  DIR          a new directory for all that the session leaves; home/.gemini is its own directory
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

Its turns:

  0  a masked failure: the tests fail, and the exit code is lost in a pipe
  1  a command that fails with exit code 1; turn 4 repeats it successfully
  2  a new file, and an edit
  3  an edit that fails, because its text is not in the file
  4  the command of turn 1 again, and beside it a read of a file that is not there
  5  a subagent, which fails and says that it succeeded
  6  the false claim
"""

import json

import gemini_api
import scenario
import session
from scenario import TESTER
from session import lines

SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
}
# A subagent of the user.
AGENT = """\
---
name: tester
description: Runs the tests.
tools:
  - run_shell_command
---
You run the tests of the project.
"""
# With a model of its own, the program asks no other one which to take.
MODEL = "gemini-3-flash"


def command(text):
    """Returns a call of the shell."""
    return {"tool": "run_shell_command", "input": {"command": text, "description": "Run it"}}


def script(project):
    """Returns what the model says and calls in a project's directory."""

    def replace(name, old, new):
        edit = {"file_path": f"{project}/{name}", "old_string": old, "new_string": new, "instruction": "Correct it"}
        return {"tool": "replace", "input": edit}

    conf = {"file_path": f"{project}/build.conf", "content": "shop=corner\n"}
    task = {"agent_name": "tester", "prompt": f"{TESTER}: run the tests"}
    return {
        "main": [
            [{"text": "I run the tests first."}, command("sh ./test.sh 2>&1 | tail -5")],
            [command("sh ./build.sh")],
            [{"tool": "write_file", "input": conf}, replace("README.md", "of a shop", "of a corner shop")],
            [replace("price.sh", "    count=0\n", "    count=5\n")],
            [command("sh ./build.sh"), {"tool": "read_file", "input": {"file_path": f"{project}/absent.txt"}}],
            [{"tool": "invoke_agent", "input": task}],
            [{"text": scenario.CLAIMS["main"]}],
        ],
        "agents": {
            TESTER: [
                [command("sh ./test.sh")],
                [{"tool": "complete_task", "input": {"result": scenario.CLAIMS[TESTER]}}],
            ]
        },
    }


def environment(out, url):
    """Returns the variables of the session, and writes its settings."""
    home = out / "home/.gemini"
    (home / "agents").mkdir(parents=True)
    (home / "agents/tester.md").write_text(AGENT, encoding="utf-8")
    (home / "settings.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    return session.environment(out) | {
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }


def calls(transcript):
    """Returns the name and the status of each call in the last form of each message."""
    found = {record["id"]: record["toolCalls"] for record in transcript if "toolCalls" in record}
    return [(call["name"], call["status"]) for message in found.values() for call in message]


def check_record(out):
    """Checks that the transcripts hold what the script is for. This fails if a new version records it otherwise."""
    chats = out / "home/.gemini/tmp/project/chats"
    [main] = [lines(path) for path in chats.glob("session-*.jsonl")]
    [tester] = [lines(path) for path in chats.glob("*/*.jsonl")]
    assert calls(main) == [
        ("run_shell_command", "success"),
        ("run_shell_command", "success"),
        ("write_file", "success"),
        ("replace", "success"),
        ("replace", "error"),
        ("run_shell_command", "success"),
        ("read_file", "error"),
        ("invoke_agent", "success"),
    ], f"the calls: {calls(main)}"
    assert "Exit Code: 1" in json.dumps(main), "a command that fails has the status success"
    assert [name for name, _ in calls(tester)] == ["run_shell_command", "complete_task"], f"{calls(tester)}"
    assert any(record.get("content") == scenario.CLAIMS["main"] for record in main), "the false claim"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out)
    play = script(options.out / "project")
    words = ["--yolo", "--model", MODEL, "--prompt", scenario.PROMPT]
    session.run([str(options.program), *words], options.out, gemini_api, play, options.hold, environment)
    session.check_requests(options.out, play)
    check_record(options.out)
    print("Gemini CLI: a session with a subagent, as its script says")


if __name__ == "__main__":
    main()
