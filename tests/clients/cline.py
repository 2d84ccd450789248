#!/usr/bin/env python3
"""Runs the real Cline CLI in a small project against a scripted model on loopback, and checks what it recorded.

usage: cline.py [--hold TURN]... PROGRAM DIR
  PROGRAM      the Cline CLI
  DIR          a new directory for all that the session leaves; home/.cline is its own directory
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

small_script.py tells its turns.
"""

import json
import subprocess

import chat_api
import scenario
import session
import small_script
from small_script import call


def script(project):
    """Returns what the model says and calls in a project's directory."""
    return small_script.script(
        lambda text: call("run_commands", commands=[text]),
        lambda name, text: call("editor", path=f"{project}/{name}", new_text=text),
        lambda name, old, new: call("editor", path=f"{project}/{name}", old_text=old, new_text=new),
        agent=lambda prompt: call("spawn_agent", systemPrompt="You run tests.", task=prompt),
    )


def connect(program, env, url):
    """Tells the program which model there is."""
    words = ["auth", "openai", "--apikey", "none", "--baseurl", f"{url}/v1", "--modelid", "scripted"]
    # Its session would be another one, and says nothing.
    subprocess.run([program, *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=60)


def results(record):
    """Returns the tool and the success of each call of a conversation. Some are told as JSON in a string."""
    blocks = [block for message in record["messages"] for block in message["content"]]
    found = []
    for block in blocks:
        if block["type"] == "tool_result":
            content = block["content"]
            told = json.loads(content) if isinstance(content, str) and content.startswith("{") else content
            [told] = told if isinstance(told, list) else [told]
            failed = block.get("is_error") or isinstance(told, dict) and told.get("success") is False
            found.append((block["name"], not failed))
    return found


def check_record(out):
    """Checks that the record holds what the script is for. This fails if a new version records it otherwise."""
    [folder] = (out / "home/.cline/data/sessions").iterdir()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.messages.json")]
    [main] = [record for record in records if record["agent"] == "lead"]
    [tester] = [record for record in records if record["agent"] == "subagent"]
    assert results(main) == [
        ("run_commands", True),
        ("run_commands", False),
        ("editor", True),
        ("editor", True),
        ("editor", False),
        ("run_commands", True),
        ("run_commands", False),
        ("no_such_tool", False),
        ("spawn_agent", True),
    ], f"the calls: {results(main)}"
    assert results(tester) == [("run_commands", False)], f"the calls of the subagent: {results(tester)}"
    assert main["messages"][-1]["content"] == [{"type": "text", "text": scenario.CLAIMS["main"]}], f"{main['messages'][-1]}"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out)
    program = str(options.program)

    def environment(out, url):
        # Without it, a process of its own serves later sessions and stays.
        env = session.environment(out) | {"CLINE_SESSION_BACKEND_MODE": "local"}
        connect(program, env, url)
        return env

    play = script(options.out / "project")
    session.run([program, scenario.PROMPT], options.out, chat_api, play, options.hold, environment)
    session.check_requests(options.out, play)
    check_record(options.out)
    print("Cline CLI: a session with a subagent, as its script says")


if __name__ == "__main__":
    main()
