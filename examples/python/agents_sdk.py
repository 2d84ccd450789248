"""A recorded worker and a supervisor with the OpenAI Agents SDK: python agents_sdk.py [STORE]

`worker.tool` below `function_tool` records each call of a tool, and hooks record what the model
says. The supervisor reads the evidence with a tool. The models are scripts, so the example needs no
key and no network: use `model="…"` of your provider in their place.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, RunConfig, RunHooks, Runner, Usage, function_tool
from agents.items import ModelResponse
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import swarmletfs

WITHOUT_TRACING = RunConfig(tracing_disabled=True)


class ScriptedModel(Model):
    """Answers with its script, one output a call: a text, or a tool with its arguments."""

    def __init__(self, *script: str | tuple[str, dict[str, Any]]) -> None:
        self.script = list(script)
        self.seen: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        self.seen.append(input)
        step = self.script.pop(0)
        output: Any
        if isinstance(step, str):
            text = ResponseOutputText(type="output_text", text=step, annotations=[])
            output = ResponseOutputMessage(
                id="message", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            name, arguments = step
            call_id = f"call-{len(self.seen)}"
            output = ResponseFunctionToolCall(
                type="function_call", call_id=call_id, name=name, arguments=json.dumps(arguments)
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("the script does not stream")


class Recorder(RunHooks[Any]):
    """Records what the model of a worker says."""

    def __init__(self, worker: swarmletfs.Worker) -> None:
        self.worker = worker

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        for item in response.output:
            if isinstance(item, ResponseOutputMessage):
                text = "".join(part.text for part in item.content if isinstance(part, ResponseOutputText))
                self.worker.message("assistant", text)


async def run_worker(store: str, task: str, model: Model) -> str:
    """Runs a worker and returns its id."""
    with swarmletfs.Worker.create(store, task=task) as worker:

        # What it raises is recorded as a failure, and the model is told.
        @function_tool
        @worker.tool
        def check_dump(database: str) -> str:
            """Checks the newest dump of a database."""
            raise RuntimeError(f"{database}: checksum mismatch in block 17")

        agent = Agent(name="worker", model=model, tools=[check_dump])
        worker.message("user", task)
        done = await Runner.run(agent, task, hooks=Recorder(worker), run_config=WITHOUT_TRACING)
        worker.finish(result=str(done.final_output))
    return worker.id


async def supervise(store: str) -> None:
    """Runs a worker, and a supervisor that reads its evidence."""
    boasting = ScriptedModel(("check_dump", {"database": "billing"}), "The dump of billing is fine.")
    id = await run_worker(store, "Check the dump of billing", boasting)
    view = swarmletfs.open(store)

    @function_tool
    def get_worker_evidence(worker_id: str) -> str:
        """Returns an excerpt of a worker's tool outputs, failures first."""
        return view.worker(worker_id).evidence(budget="2k")

    model = ScriptedModel(("get_worker_evidence", {"worker_id": id}), "The worker's claim does not hold.")
    agent = Agent(name="supervisor", model=model, tools=[get_worker_evidence])
    done = await Runner.run(agent, f"Does the claim of {id} hold?", run_config=WITHOUT_TRACING)
    print(model.seen[-1][-1]["output"])
    print(done.final_output)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    swarmletfs.init(folder)
    asyncio.run(supervise(folder))
