"""The part of the Messages API that an agent program needs. The id of a call is toolu_CONVERSATION-TURN-BLOCK."""

import json

from model import event_stream, whole


def accepts(path):
    """Returns true if this path asks for an answer of the model."""
    return path.endswith("/v1/messages")


def count(path):
    """Returns the answer to a request that counts tokens."""
    return {"input_tokens": 1000} if path.endswith("/count_tokens") else None


def tools(request):
    """Returns the names of the tools that the program offers."""
    return [tool.get("name") for tool in request.get("tools") or []]


def messages(request):
    """Returns the messages of a request."""
    return request.get("messages")


def first_words(request):
    """Returns the text of the first message."""
    content = (messages(request) or [{}])[0].get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content if isinstance(block, dict))


def turn(request, _turns):
    """Returns the number of answers that a request holds."""
    return sum(message.get("role") == "assistant" for message in messages(request) or [])


def answer(_path, request, tag, blocks):
    """Returns the body and the type of an answer."""
    content = []
    for index, block in enumerate(blocks):
        if "text" in block:
            content.append({"type": "text", "text": block["text"]})
        else:
            identifier = f"toolu_{tag}-{index}"
            content.append({"type": "tool_use", "id": identifier, "name": block["tool"], "input": block["input"]})
    calls = any(block["type"] == "tool_use" for block in content)
    message = {
        "id": f"msg_{tag}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model"),
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1000 + 100 * turn(request, None), "output_tokens": 50},
    }
    return event_stream(events(message)) if request.get("stream") else whole(message)


def events(message):
    """Returns the events that stream a message."""
    start = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}
