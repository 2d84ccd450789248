#!/usr/bin/env python3
"""Runs the real OpenHands in a small project against a scripted model on loopback, and checks what it recorded.

usage: openhands.py [--hold TURN]... PROGRAM DIR
  PROGRAM      the Python that has the packages openhands-sdk and openhands-tools
  DIR          a new directory for all that the session leaves; conversations/ is that of its record
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

Its turns:

  0  a masked failure: the tests fail, and the exit code is lost in a pipe
  1  a command that fails with exit code 1; turn 4 repeats it successfully
  2  a new file, and an edit
  3  an edit that fails, because its text is not in the file
  4  the command of turn 1 again, and beside it one that fails with exit code 2
  5  a call of a tool that does not exist
  6  the end, with the false claim
"""

import json

import chat_api
import scenario
import session

# What a program that uses OpenHands does: a conversation with a shell and an editor, written to a directory.
PROGRAM = """\
import os
import sys
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool

project, conversations, task = sys.argv[1:]
model = LLM(model="openai/scripted", api_key="none", base_url=os.environ["MODEL"], usage_id="agent", num_retries=0)
agent = Agent(llm=model, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
conversation = Conversation(agent=agent, workspace=project, persistence_dir=conversations, visualizer=None)
conversation.send_message(task)
conversation.run()
conversation.close()
"""


def command(text):
    """Returns a call of the shell."""
    return {"tool": "terminal", "input": {"command": text}}


def script(project):
    """Returns what the model says and calls in a project's directory."""

    def edit(name, **arguments):
        return {"tool": "file_editor", "input": {"path": f"{project}/{name}", **arguments}}

    def replace(name, old, new):
        return edit(name, command="str_replace", old_str=old, new_str=new)

    return {
        "main": [
            [{"text": "I run the tests first."}, command("sh ./test.sh 2>&1 | tail -5")],
            [command("sh ./build.sh")],
            [
                edit("build.conf", command="create", file_text="shop=corner\n"),
                replace("README.md", "of a shop", "of a corner shop"),
            ],
            [replace("price.sh", "    count=0\n", "    count=5\n")],
            [command("sh ./build.sh"), command("(exit 2)")],
            [{"tool": "no_such_tool", "input": {}}],
            [{"tool": "finish", "input": {"message": scenario.CLAIMS["main"]}}],
        ]
    }


def environment(out, url):
    """Returns the variables of the session."""
    return session.environment(out) | {
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
        "MODEL": f"{url}/v1",
    }


def check_record(out):
    """Checks that the record holds what the script is for. This fails if a new version records it otherwise."""
    [conversation] = (out / "conversations").iterdir()
    events = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(conversation.glob("events/event-*.json"))]
    observations = [event["observation"] for event in events if event["kind"] == "ObservationEvent"]
    codes = [seen["exit_code"] for seen in observations if seen["kind"] == "TerminalObservation"]
    assert codes == [0, 1, 0, 2], f"the exit codes: {codes}"
    errors = [seen["is_error"] for seen in observations if seen["kind"] == "FileEditorObservation"]
    assert errors == [False, False, True], f"the edits: {errors}"
    assert sum(event["kind"] == "AgentErrorEvent" for event in events) == 1, "the tool that does not exist"
    state = json.loads((conversation / "base_state.json").read_text(encoding="utf-8"))
    assert state["execution_status"] == "finished", state["execution_status"]


def main():
    options = session.options(__doc__)
    out = options.out
    session.make_directories(out, "conversations")
    play = script(out / "project")
    words = ["-c", PROGRAM, str(out / "project"), str(out / "conversations"), scenario.PROMPT]
    session.run([str(options.program), *words], out, chat_api, play, options.hold, environment)
    session.check_requests(out, play)
    check_record(out)
    print("OpenHands: a session, as its script says")


if __name__ == "__main__":
    main()
