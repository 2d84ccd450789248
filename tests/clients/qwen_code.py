#!/usr/bin/env python3
"""Runs the real Qwen Code in a small project against a scripted model on loopback, and checks what it recorded.

usage: qwen_code.py [--hold TURN]... PROGRAM DIR
  PROGRAM      Qwen Code
  DIR          a new directory for all that the session leaves; home/.qwen is its own directory
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

small_script.py tells its turns.
"""

import chat_api
import scenario
import session
import small_script
from session import lines
from small_script import call


def script(project):
    """Returns what the model says and calls in a project's directory."""
    return small_script.script(
        lambda text: call("run_shell_command", command=text, is_background=False),
        lambda name, text: call("write_file", file_path=f"{project}/{name}", content=text),
        lambda name, old, new: call("edit", file_path=f"{project}/{name}", old_string=old, new_string=new),
        lambda name: call("read_file", file_path=f"{project}/{name}"),
        lambda prompt: call("agent", description="Run the tests", prompt=prompt, run_in_background=False),
    )


def environment(out, url):
    """Returns the variables of the session."""
    return session.environment(out) | {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1"}


def results(transcript):
    """Returns the name and the status of each call. A subagent's calls have none."""
    return [
        (part["functionResponse"]["name"], line["toolCallResult"].get("status"))
        for line in transcript
        if line["type"] == "tool_result"
        for part in line["message"]["parts"]
    ]


def check_record(out):
    """Checks that the transcripts hold what the script is for. This fails if a new version records it otherwise."""
    [project] = (out / "home/.qwen/projects").iterdir()
    [main] = [lines(path) for path in project.glob("chats/*.jsonl")]
    [tester] = [lines(path) for path in project.glob("subagents/*/agent-*.jsonl")]
    assert results(main) == [
        ("run_shell_command", "success"),
        ("run_shell_command", "error"),
        ("read_file", "success"),
        ("read_file", "success"),
        ("write_file", "success"),
        ("edit", "success"),
        ("edit", "error"),
        ("run_shell_command", "success"),
        ("run_shell_command", "error"),
        ("no_such_tool", "error"),
        ("agent", "success"),
    ], f"the calls: {results(main)}"
    assert results(tester) == [("run_shell_command", None)], f"the calls of the subagent: {results(tester)}"
    assert main[-1]["message"]["parts"] == [{"text": scenario.CLAIMS["main"]}], f"{main[-1]}"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out)
    play = script(options.out / "project")
    words = ["--yolo", "--auth-type", "openai", "--model", "scripted", scenario.PROMPT]
    session.run([str(options.program), *words], options.out, chat_api, play, options.hold, environment)
    session.check_requests(options.out, play)
    check_record(options.out)
    print("Qwen Code: a session with a subagent, as its script says")


if __name__ == "__main__":
    main()
