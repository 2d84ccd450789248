#!/usr/bin/env python3
"""Runs the real Codex CLI in a small project against a scripted model on loopback, and checks what it recorded.

usage: codex.py [--hold TURN]... PROGRAM DIR
  PROGRAM      Codex CLI
  DIR          a new directory for all that the session leaves; home/.codex is its own directory
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it

Its turns:

  0  a masked failure: the tests fail, and the exit code is lost in a pipe
  1  a command that fails with exit code 1; turn 4 repeats it successfully
  2  a patch that adds a file and changes another
  3  a patch that does not fit, which changes nothing
  4  the command of turn 1 again, and beside it one that fails with exit code 2
  5  a subagent, which fails and says that it succeeded
  6  the wait for it
  7  the false claim
"""

import json

import responses_api
import scenario
import session
from scenario import TESTER
from session import lines

CONFIG = """\
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
[analytics]
enabled = false
"""
# The tools of subagents.
AGENTS = {"namespace": "multi_agent_v1"}


def command(text):
    """Returns a call of the shell."""
    return {"tool": "exec_command", "input": {"cmd": text}}


def patch(*hunks):
    """Returns a call that changes files."""
    return {"custom": "apply_patch", "input": "\n".join(["*** Begin Patch", *hunks, "*** End Patch", ""])}


def agent_of(request):
    """Returns the input of the wait for the subagent that the model started."""
    outputs = (item["output"] for item in request["input"] if item.get("type") == "function_call_output")
    agent = next(json.loads(output)["agent_id"] for output in outputs if '"agent_id"' in output)
    return {"targets": [agent], "timeout_ms": 60000}


def script():
    """Returns what the model says and calls."""
    task = f"{TESTER}: run the tests"
    return {
        "main": [
            [{"text": "I run the tests first."}, command("sh ./test.sh 2>&1 | tail -5")],
            [command("sh ./build.sh")],
            [
                patch(
                    "*** Add File: build.conf", "+shop=corner",
                    "*** Update File: README.md", "@@", "-The prices of a shop.", "+The prices of a corner shop.",
                )
            ],
            [patch("*** Update File: price.sh", "@@", "-    sum = 0", "+    sum=5")],
            [command("sh ./build.sh"), command("exit 2")],
            [{"tool": "spawn_agent", "input": {"message": task}, **AGENTS}],
            [{"tool": "wait_agent", "input": agent_of, **AGENTS}],
            [{"text": scenario.CLAIMS["main"]}],
        ],
        "agents": {TESTER: [[command("sh ./test.sh")], [{"text": scenario.CLAIMS[TESTER]}]]},
    }


def environment(out, url):
    """Returns the variables of the session, and writes its configuration."""
    home = out / "home/.codex"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG.format(url=url), encoding="utf-8")
    return session.environment(out) | {"CODEX_HOME": str(home), "SCRIPTED_KEY": "none"}


def check_record(out):
    """Checks that the transcripts hold what the script is for. This fails if a new version records it otherwise."""
    transcripts = [lines(path) for path in sorted((out / "home/.codex/sessions").glob("*/*/*/rollout-*.jsonl"))]
    assert len(transcripts) == 2, f"one transcript of the session and one of its subagent: {len(transcripts)}"
    main, tester = sorted(transcripts, key=lambda records: "parent_thread_id" in records[0]["payload"])
    assert tester[0]["payload"]["parent_thread_id"] == main[0]["payload"]["id"], "the parent of the subagent"
    records = [record["payload"] for transcript in (main, tester) for record in transcript]
    items = {record["item"]["id"]: record["item"] for record in records if record.get("type") == "item_completed"}
    codes = {name: item["exit_code"] for name, item in items.items() if item["type"] == "CommandExecution"}
    assert codes == {
        "call_main-00-1": 0,
        "call_main-01-0": 1,
        "call_main-04-0": 0,
        "call_main-04-1": 2,
        f"call_{TESTER}-00-0": 1,
    }, f"the exit codes: {codes}"
    assert "1 failed" in items["call_main-00-1"]["aggregated_output"], "a masked failure"
    changed = {path.rsplit("/", 1)[1] for path in items["call_main-02-0"]["changes"]}
    assert changed == {"build.conf", "README.md"}, f"the changed files: {changed}"
    assert "call_main-03-0" not in items, "the patch that does not fit changes nothing"
    ends = [transcript[-1]["payload"]["last_agent_message"] for transcript in (main, tester)]
    assert ends == [scenario.CLAIMS["main"], scenario.CLAIMS[TESTER]], f"the final words: {ends}"


def main():
    options = session.options(__doc__)
    session.make_directories(options.out)
    words = ["exec", "--dangerously-bypass-approvals-and-sandbox", scenario.PROMPT]
    session.run([str(options.program), *words], options.out, responses_api, script(), options.hold, environment)
    session.check_requests(options.out, script())
    check_record(options.out)
    print("Codex CLI: a session with a subagent, as its script says")


if __name__ == "__main__":
    main()
