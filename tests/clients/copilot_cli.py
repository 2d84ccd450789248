#!/usr/bin/env python3
"""Runs the real GitHub Copilot CLI in a small project against a scripted model on loopback, and checks its record.

usage: copilot_cli.py [--hold TURN]... PROGRAM DIR
  PROGRAM      GitHub Copilot CLI
  DIR          a new directory for all that the session leaves; home/.copilot is its own directory
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

small_script.py tells its turns.
"""

import functools

import chat_api
import scenario
import session
import small_script
from small_script import call


def script(project):
    """Returns what the model says and calls in a project's directory."""
    return small_script.script(
        lambda text: call("bash", command=text, description="Run it"),
        lambda name, text: call("create", path=f"{project}/{name}", file_text=text),
        lambda name, old, new: call("edit", path=f"{project}/{name}", old_str=old, new_str=new),
        agent=lambda prompt: call(
            "task", name="tester", agent_type="task", mode="sync", description="Run the tests", prompt=prompt
        ),
    )


def environment(out, url, program):
    """Returns the variables of the session."""
    return session.environment(out) | {
        # The program unpacks itself there, which scripts/clients has let it do.
        "COPILOT_CACHE_HOME": str(program.parents[2] / "home/.cache/copilot"),
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
        "COPILOT_MODEL": "scripted",
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
    }


def check_record(out):
    """Checks that the record holds what the script is for. This fails if a new version records it otherwise."""
    [record] = (out / "home/.copilot/session-state").glob("*/events.jsonl")
    events = session.lines(record)
    messages = [event for event in events if event["type"] == "assistant.message"]
    names = {call["toolCallId"]: call["name"] for event in messages for call in event["data"]["toolRequests"]}
    ends = {
        event["data"]["toolCallId"]: (event["data"]["success"], event["data"].get("shellExecution", {}).get("exitCode"))
        for event in events
        if event["type"] == "tool.execution_complete"
    }
    # Calls of one answer may end in any order.
    assert [(name, *ends[call]) for call, name in names.items()] == [
        ("bash", True, 0),
        ("bash", True, 1),
        ("create", True, None),
        ("edit", True, None),
        ("edit", False, None),
        ("bash", True, 0),
        ("bash", True, 2),
        ("no_such_tool", False, None),
        ("task", True, None),
        ("bash", True, 1),
    ], f"the calls: {names}, {ends}"
    [tester] = [event for event in events if event["type"] == "subagent.completed"]
    assert any(event.get("agentId") == tester["agentId"] for event in messages), "the messages of the subagent"
    assert messages[-1]["data"]["content"] == scenario.CLAIMS["main"], "the false claim"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out)
    play = script(options.out / "project")
    words = ["--allow-all-tools", "--prompt", scenario.PROMPT]
    variables = functools.partial(environment, program=options.program)
    session.run([str(options.program), *words], options.out, chat_api, play, options.hold, variables)
    session.check_requests(options.out, play)
    check_record(options.out)
    print("GitHub Copilot CLI: a session with a subagent, as its script says")


if __name__ == "__main__":
    main()
