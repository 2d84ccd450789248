#!/usr/bin/env python3
"""Runs the real opencode in a small project against a scripted model on loopback, and checks what it recorded.

usage: opencode.py [--hold TURN]... PROGRAM DIR
  PROGRAM      opencode
  DIR          a new directory for all that the session leaves; home/.local/share/opencode has the database
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

small_script.py tells its turns.
"""

import json
import sqlite3

import chat_api
import scenario
import session
import small_script
from small_script import call


def script(project):
    """Returns what the model says and calls in a project's directory."""
    return small_script.script(
        lambda text: call("bash", command=text),
        lambda name, text: call("write", filePath=f"{project}/{name}", content=text),
        lambda name, old, new: call("edit", filePath=f"{project}/{name}", oldString=old, newString=new),
        agent=lambda prompt: call("task", description="Run the tests", prompt=prompt, subagent_type="general"),
    )


def environment(out, url):
    """Returns the variables of the session."""
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"scripted": {}}}
    settings = {"provider": {"loopback": provider}, "autoupdate": False, "share": "disabled"}
    return session.environment(out) | {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def check_record(out):
    """Checks that the record holds what the script is for. This fails if a new version records it otherwise."""
    # Without writing to it: a test reads it as the program left it.
    database = sqlite3.connect(f"file:{out}/home/.local/share/opencode/opencode.db?mode=ro", uri=True)
    sessions = database.execute("SELECT id FROM session ORDER BY parent_id IS NOT NULL").fetchall()
    assert len(sessions) == 2, f"the sessions: {sessions}"
    rows = [
        [json.loads(data) for data, in database.execute("SELECT data FROM part WHERE session_id = ? ORDER BY id", id)]
        for id in sessions
    ]
    calls = [
        [
            (part["tool"], part["state"]["status"], part["state"].get("metadata", {}).get("exit"))
            for part in parts
            if part["type"] == "tool"
        ]
        for parts in rows
    ]
    assert calls == [
        [
            ("bash", "completed", 0),
            ("bash", "completed", 1),
            ("write", "completed", None),
            ("edit", "completed", None),
            ("edit", "error", None),
            ("bash", "completed", 0),
            ("bash", "completed", 2),
            ("invalid", "completed", None),
            ("task", "completed", None),
        ],
        [("bash", "completed", 1)],
    ], f"the calls: {calls}"
    for parts, name in zip(rows, ["main", scenario.TESTER]):
        assert any(part.get("text") == scenario.CLAIMS[name] for part in parts), f"the false claim of {name}"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out)
    play = script(options.out / "project")
    words = ["run", "--model", "loopback/scripted", scenario.PROMPT]
    session.run([str(options.program), *words], options.out, chat_api, play, options.hold, environment)
    session.check_requests(options.out, play)
    check_record(options.out)
    print("opencode: a session with a subagent, as its script says")


if __name__ == "__main__":
    main()
