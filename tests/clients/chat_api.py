"""The part of the chat completions API that an agent program needs. The id of a call is call_CONVERSATION-TURN-BLOCK."""

import json

from model import whole


def accepts(path):
    """Returns true if this path asks for an answer of the model."""
    return path.endswith("/chat/completions")


def count(_path):
    """Returns nothing: no request of this API counts tokens."""


def tools(request):
    """Returns the names of the tools that the program offers."""
    return [tool["function"]["name"] for tool in request.get("tools") or []]


def messages(request):
    """Returns the messages of a request."""
    return request.get("messages")


def text_of(message):
    """Returns the text of a message."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def first_words(request):
    """Returns the text of the first message of the user."""
    users = (message for message in messages(request) or [] if message.get("role") == "user")
    return text_of(next(users, {}))


def turn(request, _turns):
    """Returns the number of answers that a request holds."""
    return sum(message.get("role") == "assistant" for message in messages(request) or [])


def answer(_path, request, tag, blocks):
    """Returns the body and the type of an answer."""
    text = "\n".join(block["text"] for block in blocks if "text" in block)
    calls = [
        {
            "id": f"call_{tag}-{index}",
            "type": "function",
            "function": {"name": block["tool"], "arguments": json.dumps(block["input"])},
        }
        for index, block in enumerate(blocks)
        if "tool" in block
    ]
    message = {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})
    length = len(messages(request) or [])
    usage = {"prompt_tokens": 1000 + 10 * length, "completion_tokens": 50, "total_tokens": 1050 + 10 * length}
    base = {"id": f"chatcmpl-{tag}", "created": 1, "model": request.get("model")}
    finish = "tool_calls" if calls else "stop"
    if not request.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return whole({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    numbered = [{"index": index, **call} for index, call in enumerate(calls)]
    delta = message | ({"tool_calls": numbered} if calls else {})
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": usage},
    ]
    lines = (f"data: {json.dumps({**base, 'object': 'chat.completion.chunk', **chunk})}\n\n" for chunk in chunks)
    return "".join(lines) + "data: [DONE]\n\n", "text/event-stream"
