"""The loop that supervisor and workers share: call the model and run the tools it requests, until it requests none."""

from collections.abc import Sequence
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def agent(model: Any, tools: Sequence[BaseTool], checkpointer: BaseCheckpointSaver | None = None) -> CompiledStateGraph:
    """An agent as a graph. `model` is a chat model, or anything else that has bind_tools and invoke."""
    bound = model.bind_tools(tools)

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", think)
    # The model is told of a tool's error, and goes on.
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    # False, not None: a graph that runs inside of another's tool would else write into that one's checkpoints.
    return graph.compile(checkpointer=checkpointer or False)
