"""A supervisor and two workers as plain loops, without a framework: python loop.py [STORE]

Each worker is a loop that calls a model and runs the tools it asks for. The model is a script here,
so the example needs no key and no network; `ask` is where a client of a provider goes. One worker
claims a success that its record denies, and the supervisor finds out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import swarmletfs

Message = dict[str, Any]
Model = Callable[[list[Message]], Message]


def scripted(*answers: Message) -> Model:
    """Returns a model that gives these answers, one a call."""
    rest: Iterator[Message] = iter(answers)
    return lambda messages: next(rest)


def ask_for(tool: str, **arguments: Any) -> Message:
    """Returns the message of a model that asks for a tool."""
    return {"role": "assistant", "content": "", "tool_calls": [{"name": tool, "args": arguments}]}


def run_worker(store: str, task: str, ask: Model) -> str:
    """Runs a worker until its model asks for no more tools, and returns its id."""
    with swarmletfs.Worker.create(store, task=task) as worker:

        def shell(command: str) -> str:
            """Runs a command, and records its output while it runs."""
            with worker.call("shell", input={"command": command}) as call:
                done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                call.write(done.stdout)
                call.end(exit_code=done.returncode)
            return done.stdout.decode(errors="replace")

        @worker.tool
        def write_report(text: str) -> None:
            """Writes the report."""
            worker.put("outputs/report.md", text)

        tools: dict[str, Callable[..., Any]] = {"shell": shell, "write_report": write_report}
        messages: list[Message] = [{"role": "user", "content": task}]
        worker.message("user", task)
        while True:
            answer = ask(messages)
            messages.append(answer)
            calls = answer.get("tool_calls", [])
            worker.message("assistant", answer["content"], **({"tool_calls": calls} if calls else {}))
            if not calls:
                break
            for call in calls:
                result = tools[call["name"]](**call["args"])
                messages.append({"role": "tool", "content": str(result)})
        worker.finish(result=answer["content"])
    return worker.id


def supervise(store: str) -> None:
    """Runs the workers, and prints what they claim and what their records show."""
    honest = scripted(
        ask_for("shell", command="printf 'one\\ntwo\\n' | wc -l"),
        ask_for("write_report", text="There are two lines.\n"),
        {"role": "assistant", "content": "There are two lines."},
    )
    boasting = scripted(
        ask_for("shell", command="echo 'restore: no space left on device'; exit 1"),
        {"role": "assistant", "content": "The restore test passed."},
    )
    ids = [run_worker(store, "Count the lines", honest), run_worker(store, "Test a restore", boasting)]
    view = swarmletfs.open(store)
    for worker in map(view.worker, ids):
        claim = worker.read("result.txt").decode()
        print(f"{worker.info['task']}: it says {claim!r}; its record shows {worker.outcome}")
        for check in worker.index()["checks"]:
            print(f"  {check['says']}")
    print(view.worker(ids[1]).evidence(budget="1k"))


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    swarmletfs.init(folder)
    supervise(folder)
