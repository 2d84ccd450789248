"""The part of the Responses API that an agent program needs. The id of a call is call_CONVERSATION-TURN-BLOCK.

A block {"custom": NAME, "input": TEXT} calls a tool that takes a text in place of JSON. A block {"tool": NAME,
"namespace": NAMESPACE, …} calls a tool of a group."""

import json

from model import event_stream

# Items of the model in a request; a reasoning item never comes from a script.
SAID = ("function_call", "custom_tool_call")


def accepts(path):
    """Returns true if this path asks for an answer of the model."""
    return path.endswith("/responses")


def count(_path):
    """Returns nothing: no request of this API counts tokens."""


def tools(request):
    """Returns the names of the tools that the program offers: in the request, or in an item of its input."""
    added = (item.get("tools") for item in messages(request) or [] if item.get("type") == "additional_tools")
    lists = [request.get("tools"), *added]
    return [tool.get("name") or tool.get("type") for tools in lists for tool in tools or []]


def messages(request):
    """Returns the messages of a request."""
    return request.get("input")


def first_words(request):
    """Returns the texts of the user that the program did not add itself. A subagent may start with those of its parent.

    A task that another agent gives counts as well: a service would decrypt it."""
    users = (
        "\n".join(part.get("text") or part.get("encrypted_content", "") for part in item.get("content") or [])
        for item in messages(request) or []
        if item.get("role") == "user" or item.get("recipient", "/root") != "/root"
    )
    return "\n".join(text for text in users if not text.startswith("<"))


def turn(request, turns):
    """Returns the first turn of which the request lacks a block."""
    said = sum(
        item.get("type") in SAID or (item.get("type") == "message" and item.get("role") == "assistant")
        for item in messages(request) or []
    )
    for number, blocks in enumerate(turns):
        if said < len(blocks):
            return number
        said -= len(blocks)
    return len(turns)


def answer(_path, request, tag, blocks):
    """Returns the body and the type of an answer."""
    return event_stream(events(tag, blocks, len(messages(request) or [])))


def item_of(tag, index, block):
    """Returns a block as an item of the answer."""
    identifier = f"{tag}-{index}"
    if "text" in block:
        content = [{"type": "output_text", "text": block["text"], "annotations": []}]
        return {"type": "message", "role": "assistant", "id": f"msg_{identifier}", "content": content}
    call = {"call_id": f"call_{identifier}", "status": "completed"}
    if "custom" in block:
        call |= {"type": "custom_tool_call", "name": block["custom"], "input": block["input"]}
        return {"id": f"ctc_{identifier}", **call}
    if "namespace" in block:
        call["namespace"] = block["namespace"]
    call |= {"type": "function_call", "name": block["tool"], "arguments": json.dumps(block["input"])}
    return {"id": f"fc_{identifier}", **call}


def events(tag, blocks, length):
    """Returns the events that stream an answer."""
    yield {"type": "response.created", "response": {"id": f"resp_{tag}"}}
    for index, block in enumerate(blocks):
        item = item_of(tag, index, block)
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    usage = {
        "input_tokens": 1000 + 10 * length,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1050 + 10 * length,
    }
    done = {"id": f"resp_{tag}", "status": "completed", "output": [], "usage": usage}
    yield {"type": "response.completed", "response": done}
