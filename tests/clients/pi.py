#!/usr/bin/env python3
"""Runs the real pi in a small project against a scripted model on loopback, and checks what it recorded.

usage: pi.py [--hold TURN]... PROGRAM DIR
  PROGRAM      pi
  DIR          a new directory for all that the session leaves; home/.pi/agent/sessions is that of its record
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

small_script.py tells its turns.
"""

import json

import chat_api
import scenario
import session
import small_script
from small_script import call


def script():
    """Returns what the model says and calls."""
    return small_script.script(
        lambda text: call("bash", command=text),
        lambda name, text: call("write", path=name, content=text),
        lambda name, old, new: call("edit", path=name, edits=[{"oldText": old, "newText": new}]),
    )


def environment(out, url):
    """Returns the variables of the session, and writes which model there is."""
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none", "models": [{"id": "scripted"}]}
    home = out / "home/.pi/agent"
    home.mkdir(parents=True)
    (home / "models.json").write_text(json.dumps({"providers": {"loopback": provider}}), encoding="utf-8")
    return session.environment(out) | {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}


def check_record(out):
    """Checks that the record holds what the script is for. This fails if a new version records it otherwise."""
    [record] = (out / "home/.pi/agent/sessions").rglob("*.jsonl")
    messages = [line["message"] for line in session.lines(record) if line["type"] == "message"]
    results = [(message["toolName"], message["isError"]) for message in messages if message["role"] == "toolResult"]
    assert results == [
        ("bash", False),
        ("bash", True),
        ("write", False),
        ("edit", False),
        ("edit", True),
        ("bash", False),
        ("bash", True),
        ("no_such_tool", True),
    ], f"the results: {results}"
    assert messages[-1]["content"] == [{"type": "text", "text": scenario.CLAIMS["main"]}], f"{messages[-1]}"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out)
    words = ["--print", "--provider", "loopback", "--model", "scripted", scenario.PROMPT]
    session.run([str(options.program), *words], options.out, chat_api, script(), options.hold, environment)
    session.check_requests(options.out, script())
    check_record(options.out)
    print("pi: a session, as its script says")


if __name__ == "__main__":
    main()
