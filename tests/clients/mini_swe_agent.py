#!/usr/bin/env python3
"""Runs the real mini-swe-agent in a small project against a scripted model on loopback, and checks what it recorded.

usage: mini_swe_agent.py [--hold TURN]... PROGRAM DIR
  PROGRAM      the Python that has mini-swe-agent
  DIR          a new directory for all that the session leaves; runs/price-list is that of its record
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

Its turns:

  0  a masked failure: the tests fail, and the exit code is lost in a pipe
  1  a command that fails with exit code 1; turn 3 repeats it successfully
  2  three commands at once, of which the second fails
  3  the command of turn 1 again
  4  the false claim, and the submission
"""

import json
import shlex

import chat_api
import scenario
import session

RECORD = "runs/price-list/price-list.traj.json"


def command(text):
    """Returns a call of the shell."""
    return {"tool": "bash", "input": {"command": text}}


def script():
    """Returns what the model says and calls."""
    claim = scenario.CLAIMS["main"]
    submit = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {shlex.quote(claim)}"
    return {
        "main": [
            [{"text": "I run the tests first."}, command("sh ./test.sh 2>&1 | tail -5")],
            [command("sh ./build.sh")],
            [command("echo shop=corner >build.conf"), command("exit 2"), command("cat build.conf")],
            [command("sh ./build.sh")],
            [{"text": claim}, command(submit)],
        ]
    }


def environment(out, url):
    """Returns the variables of the session."""
    return session.environment(out) | {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": str(out / "home/config"),
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "none",
        "OPENAI_API_BASE": f"{url}/v1",
    }


def check_record(out):
    """Checks that the record holds what the script is for. This fails if a new version records it otherwise."""
    record = json.loads((out / RECORD).read_text(encoding="utf-8"))
    assert record["trajectory_format"].startswith("mini-swe-agent-1"), record["trajectory_format"]
    codes = [message["extra"]["returncode"] for message in record["messages"] if message["role"] == "tool"]
    assert codes[:6] == [0, 1, 0, 2, 0, 0], f"the exit codes: {codes}"
    info = record["info"]
    assert info["exit_status"] == "Submitted" and info["submission"].strip() == scenario.CLAIMS["main"], f"{info}"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out, "runs/price-list")
    words = ["-m", "minisweagent.run.mini", "--yolo", "--exit-immediately", "--model", "openai/scripted"]
    words += ["--task", scenario.PROMPT, "--output", str(options.out / RECORD)]
    session.run([str(options.program), *words], options.out, chat_api, script(), options.hold, environment)
    session.check_requests(options.out, script())
    check_record(options.out)
    print("mini-swe-agent: a session, as its script says")


if __name__ == "__main__":
    main()
