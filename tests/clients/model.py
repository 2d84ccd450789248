"""A model on loopback that plays a script: the part of the Messages API that an agent program needs.

A script is {"main": [turn, …], "agents": {NAME: [turn, …]}, "after": {NAME: turn}}. A turn is a list of blocks:
{"text": …}, or {"tool": NAME, "input": {…}}. A request of a conversation whose first message holds the name of an agent
gets that agent's turns, and any other gets those of "main". The number of answers that a request holds is its turn, so
the same script gives the same conversation every time. An agent in "after" gets no answer before that turn of "main".
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# How long a held turn waits to be released, in seconds.
HOLD_MAX = 120


def text_of(message):
    """Returns the text of a message of a request."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content if isinstance(block, dict))


class ScriptedModel:
    """Serves a script until it is closed, and writes every request to a file, one JSON object a line."""

    def __init__(self, script, log, hold=None, held=None):
        """Before the turn `hold` of "main", the model creates the file `held` and waits until somebody removes it."""
        self.script, self.log, self.hold, self.held = script, Path(log), hold, held and Path(held)
        self.lock = threading.Lock()
        self.answered = threading.Condition()
        self.last_of_main = -1
        model = self

        class Handler(RequestHandler):
            owner = model

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def write(self, path, name, turn, request):
        """Adds a request to the log."""
        entry = {
            "time": time.time(),
            "path": path,
            "conversation": name,
            "turn": turn,
            "model": request.get("model"),
            "tools": [tool.get("name") for tool in request.get("tools") or []],
            "messages": request.get("messages"),
        }
        with self.lock, self.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")

    def place(self, request):
        """Returns the conversation and the turn that a request asks for."""
        messages = request.get("messages") or []
        if not request.get("tools"):
            return None, 0  # a title, or a summary of the session
        first = text_of(messages[0])
        name = next((name for name in self.script.get("agents", {}) if name in first), "main")
        return name, sum(message.get("role") == "assistant" for message in messages)

    def wait(self, name, turn):
        """Waits while this turn is held, and while it must come after a turn of "main"."""
        if self.held and name == "main" and turn == self.hold:
            self.held.touch()
            end = time.monotonic() + HOLD_MAX
            while self.held.exists() and time.monotonic() < end:
                time.sleep(0.01)
        first = self.script.get("after", {}).get(name, -1)
        with self.answered:
            self.answered.wait_for(lambda: self.last_of_main >= first, HOLD_MAX)

    def note_answer(self, name, turn):
        """Lets those continue that wait for this answer."""
        if name == "main":
            with self.answered:
                self.last_of_main = max(self.last_of_main, turn)
                self.answered.notify_all()

    def message(self, name, turn, request):
        """Returns the answer to a request as one message."""
        if name is None:
            blocks = [{"text": "Work on the project"}]
        else:
            turns = self.script["main"] if name == "main" else self.script["agents"][name]
            blocks = turns[turn] if turn < len(turns) else [{"text": "I have nothing to add."}]
        tag = f"{name or 'title'}-{turn:02}"
        content = []
        for index, block in enumerate(blocks):
            if "text" in block:
                content.append({"type": "text", "text": block["text"]})
            else:
                identifier = f"toolu_{tag}-{index}"
                content.append(
                    {"type": "tool_use", "id": identifier, "name": block["tool"], "input": block["input"]}
                )
        calls = any(block["type"] == "tool_use" for block in content)
        return {
            "id": f"msg_{tag}",
            "type": "message",
            "role": "assistant",
            "model": request.get("model"),
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1000 + 100 * turn, "output_tokens": 50},
        }


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


class RequestHandler(BaseHTTPRequestHandler):
    """Answers one connection of the agent program."""

    protocol_version = "HTTP/1.1"
    owner = None

    def log_message(self, *_):
        """Says nothing on stderr."""

    def answer(self, code, body, kind="application/json"):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.answer(404, b'{"type": "error", "error": {"type": "not_found_error", "message": "not here"}}')

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            self.answer(200, b'{"input_tokens": 1000}')
            return
        if not path.endswith("/v1/messages"):
            self.do_GET()
            return
        request = json.loads(body)
        name, turn = self.owner.place(request)
        self.owner.write(path, name, turn, request)
        self.owner.wait(name, turn)
        message = self.owner.message(name, turn, request)
        if request.get("stream"):
            stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events(message))
            self.answer(200, stream.encode(), "text/event-stream")
        else:
            self.answer(200, json.dumps(message).encode())
        self.owner.note_answer(name, turn)
