"""The part of the Gemini API that an agent program needs. This API gives calls no ids; the program makes its own."""

from model import event_stream, whole


def accepts(path):
    """Returns true if this path asks for an answer of the model."""
    return path.endswith((":generateContent", ":streamGenerateContent"))


def count(path):
    """Returns the answer to a request that counts tokens."""
    return {"totalTokens": 1000} if path.endswith(":countTokens") else None


def tools(request):
    """Returns the names of the tools that the program offers."""
    return [
        function.get("name")
        for tool in request.get("tools") or []
        for function in tool.get("functionDeclarations") or []
    ]


def messages(request):
    """Returns the messages of a request."""
    return request.get("contents")


def first_words(request):
    """Returns the text of the first message that the program did not add itself."""
    for content in messages(request) or []:
        text = "\n".join(part.get("text", "") for part in content.get("parts") or [])
        if content.get("role") == "user" and not text.startswith("<"):
            return text
    return ""


def turn(request, _turns):
    """Returns the number of answers that a request holds."""
    return sum(content.get("role") == "model" for content in messages(request) or [])


def answer(path, request, tag, blocks):
    """Returns the body and the type of an answer."""
    parts = [
        {"text": block["text"]}
        if "text" in block
        else {"functionCall": {"name": block["tool"], "args": block["input"]}}
        for block in blocks
    ]
    length = len(messages(request) or [])
    usage = {
        "promptTokenCount": 1000 + 10 * length,
        "candidatesTokenCount": 50,
        "totalTokenCount": 1050 + 10 * length,
    }
    content = {"role": "model", "parts": parts}
    response = {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": usage,
        "modelVersion": path.rsplit("/", 1)[-1].split(":")[0],
        "responseId": f"response_{tag}",
    }
    return event_stream([response]) if path.endswith(":streamGenerateContent") else whole(response)
