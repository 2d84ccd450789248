"""A chat model that reads the evidence for its workers' markers, and never keeps it.

    model = ExpandingModel(ChatAnything(…), store="/data/swarmlet", run="48", budget="16k").bind_tools(tools)
    model.invoke(messages)

Before each call, `swarmletfs expand` inserts the worker's evidence after every marker
`[EVIDENCE:run_id=…,job_id=…,worker_id=…]` in tool messages. The original messages do not change, so a
graph's state and its checkpoints hold only the marker.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from copy import copy
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ToolMessage,
    convert_to_messages,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.runnables import Runnable, RunnableConfig

# An answer that takes longer is not worth a hanging model.
TIMEOUT_SECONDS = 60


class ExpansionError(RuntimeError):
    """The evidence could not be put in. The model was not called: without evidence it would believe its workers."""


class ExpandingModel(Runnable[LanguageModelInput, AIMessage]):
    """A chat model, or one with tools bound to it, whose calls see evidence where their messages hold markers."""

    def __init__(
        self,
        model: BaseChatModel | Runnable[LanguageModelInput, AIMessage],
        *,
        store: str | os.PathLike[str],
        run: str | None = None,
        owner: str | int | None = None,
        budget: str | int | None = None,
    ) -> None:
        """`run` and `owner` bound what a marker may lead to; `budget` is the size of all evidence in a call."""
        self.model: Any = model
        self.options = {"store": os.fspath(store), "run": run, "owner": owner, "budget": budget}

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> "ExpandingModel":
        """The same with tools, as the model itself binds them."""
        bound = copy(self)
        bound.model = self.model.bind_tools(tools, **kwargs)
        return bound

    def invoke(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        return self.model.invoke(self.expand(input), config, **kwargs)

    async def ainvoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        return await self.model.ainvoke(await asyncio.to_thread(self.expand, input), config, **kwargs)

    def stream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[AIMessage]:
        yield from self.model.stream(self.expand(input), config, **kwargs)

    async def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[AIMessage]:
        async for chunk in self.model.astream(await asyncio.to_thread(self.expand, input), config, **kwargs):
            yield chunk

    def expand(self, input: LanguageModelInput) -> list[BaseMessage]:
        """The messages of `input`, those that hold markers as copies with the evidence in them."""
        messages = convert_to_messages([("user", input)] if isinstance(input, str) else input)
        at = [i for i, message in enumerate(messages) if holds_marker(message)]
        if not at:
            return messages
        # An artifact is not for the model, and need not be JSON.
        sent = [messages[i].model_copy(update={"artifact": None}) for i in at]
        received = messages_from_dict(json.loads(self._run(json.dumps(messages_to_dict(sent)))))
        if len(received) != len(sent):
            raise ExpansionError(f"swarmletfs expand was given {len(sent)} messages and answered with {len(received)}")
        for i, message in zip(at, received, strict=True):
            messages[i] = messages[i].model_copy(update={"content": message.content})
        return messages

    def _run(self, messages: str) -> str:
        command = [os.environ.get("SWARMLETFS", "swarmletfs"), "expand", "--format", "langchain"]
        for name, value in self.options.items():
            command += [] if value is None else [f"--{name}", str(value)]
        try:
            done = subprocess.run(command, input=messages.encode(), capture_output=True, timeout=TIMEOUT_SECONDS)
        except OSError as error:
            raise ExpansionError(f"{error}: put swarmletfs on PATH, or its path in $SWARMLETFS") from error
        if done.returncode != 0:
            told = done.stderr.decode(errors="replace").strip()
            raise ExpansionError(f"swarmletfs expand ended with exit code {done.returncode}: {told}")
        return done.stdout.decode()


def holds_marker(message: BaseMessage) -> bool:
    """Whether it is worth a look: only tools' messages are expanded, and most hold no marker."""
    return isinstance(message, ToolMessage) and "[evidence:" in str(message.content).lower()
