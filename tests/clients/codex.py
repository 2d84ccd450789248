#!/usr/bin/env python3
"""Runs the real Codex CLI in a small project against a scripted model on loopback, and checks what it recorded.

usage: codex.py [--hold TURN]... PROGRAM DIR [HOOK ARGUMENT...]
  PROGRAM      Codex CLI
  DIR          a new directory for all that the session leaves; home/.codex is its own directory
  HOOK         the hook that tells a session about its ended subagents, put into the settings by its own command
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

With a hook, DIR/v2 has a second session, with the newer tools of subagents: a wait does not say who ended, and a
subagent whose model fails has no event. Its turns:

  0  a subagent, which fails and says that it succeeded
  1  the wait for it
  2  a subagent whose model fails
  3  the wait for it
  4  the false claim
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import recorder
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
# The tools of subagents, and the newer ones.
AGENTS = {"namespace": "multi_agent_v1"}
AGENTS_V2 = {"namespace": "collaboration"}
V2 = "[features]\nmulti_agent_v2 = true\n"
# The subagent whose model fails.
BROKEN = "BROKEN"
FAILURE = "FAILED - total of the list: got 35, expected 40"


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
        # The session waits before the subagent ends.
        "after": {TESTER: 6},
    }


def script_v2():
    """Returns what the model says and calls with the newer tools of subagents."""
    def spawn(agent):
        call = {"task_name": agent.lower(), "message": f"{agent}: run the tests", "fork_turns": "none"}
        return [{"tool": "spawn_agent", "input": call, **AGENTS_V2}]

    wait = [{"tool": "wait_agent", "input": {"timeout_ms": 60000}, **AGENTS_V2}]
    return {
        "main": [spawn(TESTER), wait, spawn(BROKEN), wait, [{"text": scenario.CLAIMS["main"]}]],
        "agents": {**script()["agents"], BROKEN: [[{"error": "the model is broken"}]]},
        "after": {TESTER: 1, BROKEN: 3},
    }


def environment(out, url, more="", hook=()):
    """Returns the variables of the session, and writes its configuration."""
    home = out / "home/.codex"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG.format(url=url) + more, encoding="utf-8")
    variables = session.environment(out) | {"CODEX_HOME": str(home), "SCRIPTED_KEY": "none"}
    if hook:
        install_hook(out, home, hook, variables)
    return variables


def install_hook(out, home, hook, variables):
    """Lets the hook put itself into the settings, and puts the recorder before it."""
    subprocess.run([hook[0], "hook", "install", "codex", "--yes"], env=variables, capture_output=True, check=True)
    file = home / "hooks.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    command = shlex.join([sys.executable, str(Path(recorder.__file__).resolve()), str(out / "hooks.jsonl"), *hook])
    for entry in (entry for matchers in settings["hooks"].values() for matcher in matchers for entry in matcher["hooks"]):
        entry["command"] = command
    # No hook should be set for this event; one that is must stay silent.
    settings["hooks"]["SubagentStop"] = [{"hooks": [{"type": "command", "command": command}]}]
    file.write_text(json.dumps(settings), encoding="utf-8")


def check_hook(out, told):
    """Checks that the hook says something about each subagent once, and that it reaches the model of the session.

    `told` has the names of the subagents and their proofs, by the turns that read them. Returns the longest time of the
    hook."""
    hooks = lines(out / "hooks.jsonl")
    contexts = []
    for hook in hooks:
        name = hook["input"]["hook_event_name"]
        assert hook["exit"] == 0 and not hook["stderr"], f"{name}: exit {hook['exit']}, {hook['stderr']}"
        if hook["output"]:
            answer = json.loads(hook["output"])["hookSpecificOutput"]
            assert name == answer["hookEventName"] == "PostToolUse", f"{name}: {answer}"
            contexts.append(answer["additionalContext"])
    assert any(hook["input"]["hook_event_name"] == "SubagentStop" for hook in hooks), "an end without an answer"
    assert len(contexts) == len(told), f"one context about each subagent: {contexts}"
    for context, (first, (agent, proof)) in zip(contexts, told.items()):
        assert f"({agent}): failed" in context and proof in context, f"{agent}, {proof!r} are missing in {context}"
        for request in lines(out / "requests.jsonl"):
            seen = any(context == part.get("text") for item in request["messages"] for part in item.get("content") or [])
            wanted = request["conversation"] == "main" and request["turn"] >= first
            assert seen == wanted, f"{context!r} in turn {request['turn']} of {request['conversation']}: {seen}"
    return max(hook["milliseconds"] for hook in hooks)


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


def run(options, out, played, more=""):
    """Runs a session, and checks that it was played to its end."""
    session.make_directories(out)
    trust = ["--dangerously-bypass-hook-trust"] if options.hook else []
    words = ["exec", "--dangerously-bypass-approvals-and-sandbox", *trust, scenario.PROMPT]
    session.run(
        [str(options.program), *words], out, responses_api, played, options.hold,
        lambda out, url: environment(out, url, more, options.hook),
    )
    session.check_requests(out, played)


def main():
    options = session.options(__doc__)
    run(options, options.out, script())
    check_record(options.out)
    print("Codex CLI: a session with a subagent, as its script says", flush=True)
    if options.hook:
        longest = check_hook(options.out, {7: ("agent", FAILURE)})
        options.hold = []
        run(options, options.out / "v2", script_v2(), V2)
        told = {2: ("/root/tester", FAILURE), 4: ("/root/broken", "the model is broken")}
        longest = max(longest, check_hook(options.out / "v2", told))
        print(f"Codex CLI: two more subagents, longest hook {longest} ms")


if __name__ == "__main__":
    main()
