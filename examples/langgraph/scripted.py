"""A chat model without an LLM: a function of the messages gives the answer."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field

Answer = Callable[[list[BaseMessage]], AIMessage]


class ScriptedModel(BaseChatModel):
    """Answers with what `answer` makes of the messages, and remembers what it saw last."""

    answer: Answer
    seen: list[BaseMessage] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=[tool.name for tool in tools], **kwargs)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen = messages
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])


def calls(*asked: tuple[str, dict[str, Any]]) -> AIMessage:
    """A message that asks for tools, each by its name and arguments; they run together."""
    return AIMessage("", tool_calls=[ToolCall(name=name, args=args, id=f"call-{uuid4()}") for name, args in asked])


def following(*steps: AIMessage) -> Answer:
    """An answer that goes through `steps`, one a call."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        said = sum(isinstance(message, AIMessage) for message in messages)
        return steps[said].model_copy()

    return answer
