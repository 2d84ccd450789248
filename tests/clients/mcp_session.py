"""Runs the real Claude Code as the client of one MCP server, against a scripted model on loopback."""

import json
import shlex
import subprocess
import sys
import threading

import claude_code
import messages_api
import recorder
import scenario
import session
from model import HOLD_MAX, ScriptedModel

# What a hook prints to answer a question of an MCP server in place of a person.
YES = {"hookEventName": "Elicitation", "action": "accept", "content": {"apply": True}}


def call(server, tool, **arguments):
    """Returns a call of a tool of an MCP server."""
    return {"tool": f"mcp__{server}__{tool}", "input": arguments}


def run(program, out, project, server, turns, says_yes=False, model_class=ScriptedModel):
    """Runs a session in `project`, whose model plays `turns`, and returns what it did.

    `out` is a new directory for what the session leaves. `server` is the name of its MCP server with the command that
    starts it. With `says_yes`, a hook answers each question of the server by a yes."""
    session.make_directories(out, "config")
    label, (command, *arguments) = server
    config = {"mcpServers": {label: {"command": command, "args": arguments}}}
    settings = {"permissions": {**scenario.PERMISSIONS, "allow": [f"mcp__{label}"]}}
    if says_yes:
        answer = json.dumps({"hookSpecificOutput": YES})
        hook = [sys.executable, recorder.__file__, str(out / "hooks.jsonl"), "printf", "%s", answer]
        settings["hooks"] = {"Elicitation": [{"hooks": [{"type": "command", "command": shlex.join(hook)}]}]}
    (out / "config/settings.json").write_text(json.dumps(settings), encoding="utf-8")
    words = ["--print", scenario.PROMPT, "--strict-mcp-config", "--mcp-config", json.dumps(config)]
    with model_class(messages_api, {"main": turns}, out / "requests.jsonl") as model:
        # A server may start slowly on a busy machine.
        environment = claude_code.environment(out, model.url) | {"MCP_TIMEOUT": str(1000 * session.LIMIT)}
        done = subprocess.run(
            [program, *words], cwd=project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=session.LIMIT + HOLD_MAX,
        )
    assert done.returncode == 0, f"{out.name} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return Played(out, label, turns)


class Played:
    """What a session did."""

    def __init__(self, out, label, turns):
        requests = [entry for entry in session.lines(out / "requests.jsonl") if entry["conversation"] == "main"]
        prefix = f"mcp__{label}__"
        self.tools = {name.removeprefix(prefix) for name in requests[0]["tools"] if name.startswith(prefix)}
        contents = [message["content"] for message in requests[-1]["messages"] if isinstance(message["content"], list)]
        blocks = [block for content in contents for block in content if block.get("type") == "tool_result"]
        found = {block["tool_use_id"]: block for block in blocks}
        self.results = [
            self.result(found, turn, block)
            for turn, said in enumerate(turns) for block, part in enumerate(said) if "tool" in part
        ]
        log = out / "hooks.jsonl"
        self.questions = [entry["input"] for entry in session.lines(log)] if log.exists() else []

    @staticmethod
    def result(found, turn, block):
        """Returns the result of a call as its model saw it: the texts, and true for an error."""
        identifier = f"toolu_main-{turn:02}-{block}"
        assert identifier in found, f"the result of {identifier} did not reach the model, only {sorted(found)}"
        content = found[identifier]["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        return {"texts": texts, "error": bool(found[identifier].get("is_error"))}

    def texts(self):
        """Returns the text of each result. None of them may be an error."""
        for result in self.results:
            assert not result["error"], f"an error: {result}"
        return ["\n".join(result["texts"]) for result in self.results]


def meeting(count):
    """Returns a kind of model for `count` sessions that run at once: none gets its second answer before all of them
    have the result of their first."""
    arrived, changed = set(), threading.Condition()

    class Meeting(ScriptedModel):
        def wait(self, name, turn):
            if name == "main" and turn == 1:
                with changed:
                    arrived.add(self)
                    changed.notify_all()
                    assert changed.wait_for(lambda: len(arrived) == count, HOLD_MAX), f"{len(arrived)} of {count} run"
            super().wait(name, turn)

    return Meeting
