#!/usr/bin/env python3
"""Runs the real Claude Code in a small project against a scripted model on loopback, and checks what came of it.

usage: claude_code.py [--hold TURN]... PROGRAM DIR [HOOK ARGUMENT...]
  PROGRAM      Claude Code
  DIR          a new directory for all that the session leaves:
                 project/        the git repository it worked in
                 config/         its configuration directory, with the transcripts below projects/
                 requests.jsonl  what the model was asked
                 hooks.jsonl     what the hook was told and what it answered
                 result.json     what the program printed
  HOOK         the hook that tells a session about its ended subagents; without it, a stand-in
  --hold TURN  before this turn of the session, creates DIR/held and waits until somebody removes it
"""

import json
import shlex
import sys
from pathlib import Path

import messages_api
import recorder
import scenario
import session
from session import lines

RECORDER = Path(recorder.__file__).resolve()
# The settings that people copy.
EXAMPLE = RECORDER.parents[2] / "examples/claude-code/.claude/settings.json"


def settings(hook):
    """Returns the settings of the session: those of the example, with the hook as another shell command."""
    hooks = json.loads(EXAMPLE.read_text(encoding="utf-8"))["hooks"]
    for entry in (entry for matchers in hooks.values() for matcher in matchers for entry in matcher["hooks"]):
        assert entry["command"] == "swarmletfs hook claude-code", f"the command of the example: {entry}"
        entry["command"] = hook
    # No hook should be set for this event; one that is must stay silent.
    hooks["SubagentStop"] = [{"hooks": [{"type": "command", "command": hook}]}]
    return {"permissions": scenario.PERMISSIONS, "hooks": hooks}


def environment(out, url):
    """Returns the variables of the session."""
    return session.environment(out) | {
        "CLAUDE_CODE_TMPDIR": str(out / "tmp"),
        "CLAUDE_CONFIG_DIR": str(out / "config"),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        # All tools stand in the first request, so that the script need not search for them.
        "ENABLE_TOOL_SEARCH": "false",
    }


def run(program, out, hook, holds):
    """Runs the session and writes what it leaves to `out`."""
    session.make_directories(out, "config")
    # The session runs in another directory than its caller.
    hook = [str(Path(hook[0]).resolve()) if Path(hook[0]).exists() else hook[0], *hook[1:]] if hook else []
    command = shlex.join([sys.executable, str(RECORDER), str(out / "hooks.jsonl"), *hook])
    (out / "config/settings.json").write_text(json.dumps(settings(command), indent=2), encoding="utf-8")
    said = session.run(
        [str(program), "--print", scenario.PROMPT, "--output-format", "json"],
        out, messages_api, scenario.script(out / "project"), holds, environment,
    )
    (out / "result.json").write_text(said, encoding="utf-8")


def results(transcripts):
    """Returns the record of the result of every call, by the call's id."""
    found = {}
    for record in (record for path in transcripts for record in lines(path) if record.get("type") == "user"):
        content = record["message"]["content"]
        for block in content if isinstance(content, list) else []:
            if block.get("type") == "tool_result":
                found[block["tool_use_id"]] = (block, record)
    return found


def check_record(out):
    """Checks that the transcripts hold what the script is for. This fails if a new version records it otherwise."""
    projects = out / "config/projects"
    assert len(list(projects.glob("*/*.jsonl"))) == 1, "one transcript of the session"
    subagents = list(projects.glob("*/*/subagents/agent-*.jsonl"))
    assert len(subagents) == 2, "one transcript of each subagent"
    found = results(projects.rglob("*.jsonl"))

    def result(conversation, turn, block=0):
        return found[f"toolu_{conversation}-{turn:02}-{block}"]

    for call in (("main", 0, 1), (scenario.REVIEWER, 0, 1)):
        block, _ = result(*call)
        assert not block.get("is_error") and "1 failed" in block["content"], f"a masked failure: {block}"
    for call in (("main", 1), ("main", 5), ("main", 6), ("main", 7), (scenario.TESTER, 2)):
        block, _ = result(*call)
        assert block["is_error"], f"an error: {block}"
    for call in (("main", 6), ("main", 7)):
        _, record = result(*call)
        assert "toolDenialKind" in record, f"a call that did not run: {record}"
    assert not result("main", 8)[0].get("is_error"), "the repeated call goes well"
    # Only the session's own results have a patch; those of a subagent have the input of the call alone.
    for block, file in ((1, "price.sh"), (3, "README.md")):
        edited = result("main", 3, block)[1]["toolUseResult"]
        assert edited["filePath"] == f"{out}/project/{file}" and edited["structuredPatch"], f"an edit: {edited}"
    assert not result(scenario.TESTER, 1)[0].get("is_error"), "an edit of a subagent"
    assert not (out / "project/report.md").exists(), "nobody wrote the report"
    said = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert said["result"] == scenario.CLAIMS["main"], f"the false claim comes last: {said}"


def check_hook(out):
    """Checks that what the hook says reaches the session, and disturbs nobody. Returns its longest time."""
    requests = [request for request in lines(out / "requests.jsonl") if request["conversation"]]
    hooks = lines(out / "hooks.jsonl")
    told = {}
    for hook in hooks:
        event, output = hook["input"], hook["output"]
        name = event["hook_event_name"]
        assert hook["exit"] == 0 and not hook["stderr"], f"{name}: exit {hook['exit']}, {hook['stderr']}"
        context = json.loads(output)["hookSpecificOutput"] if output else {}
        assert context.get("hookEventName", name) == name, f"{name}: an answer to another event: {output}"
        if name == "SubagentStop":
            assert Path(event["agent_transcript_path"]).exists(), f"{name}: no transcript of the subagent"
            turn = None
        elif name == "PostToolUse":
            turn = 10 if event["tool_response"]["status"] == "completed" else None
        else:
            turn = 12 if event["prompt"].startswith("<task-notification>") else None
        assert bool(output) == (turn is not None), f"{name}: {output!r}, expected {'a' if turn else 'no'} context"
        if turn:
            told[turn] = context["additionalContext"]
    assert sorted(told) == [10, 12], f"a context about both subagents: {told}"
    for turn, context in told.items():
        for request in requests:
            seen = context in "\n".join(text(request))
            wanted = request["conversation"] == "main" and request["turn"] >= turn
            assert seen == wanted, f"{context!r} in turn {request['turn']} of {request['conversation']}: {seen}"
    for agent in (scenario.TESTER, scenario.REVIEWER):
        turns = sum(request["conversation"] == agent for request in requests)
        wanted = len(scenario.script("")["agents"][agent])
        assert turns == wanted, f"the hook does not prolong {agent}: {turns} turns, expected {wanted}"
    return max(hook["milliseconds"] for hook in hooks)


def text(request):
    """Returns every text of a request's messages."""
    def walk(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, dict)):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from walk(inner)
    return walk(request["messages"])


def main():
    options = session.options(__doc__)
    run(options.program, options.out, options.hook, options.hold)
    check_record(options.out)
    longest = check_hook(options.out)
    by = f", longest hook {longest} ms" if options.hook else ""
    print(f"Claude Code: a session with two subagents, as its script says{by}")


if __name__ == "__main__":
    main()
