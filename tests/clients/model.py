"""A model on loopback that plays a script, for any API that an agent program speaks.

A script is {"main": [turn, …], "agents": {NAME: [turn, …]}, "after": {NAME: turn}}. A turn is a list of blocks:
{"text": …}, or {"tool": NAME, "input": {…}}. An input may be a function of the request. A turn [{"error": TEXT}] is an
error of the API. A request of a conversation whose first message holds the name of an agent
gets that agent's turns, and any other gets those of "main". What the model already said in a request decides its turn,
so the same script gives the same conversation every time. An agent in "after" gets no answer before that turn of "main".

A module per API says which requests it answers and how: messages_api, responses_api, gemini_api, chat_api.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# How long a held turn waits to be released, in seconds.
HOLD_MAX = 120
# What the model says when its script is over.
NOTHING = [{"text": "I have nothing to add."}]


class ScriptedModel:
    """Serves a script until it is closed, and writes every request to a file, one JSON object a line."""

    def __init__(self, api, script, log, holds=(), held=None):
        """Before each turn of "main" in `holds`, the model writes its number to the file `held`, and waits until
        somebody removes the file."""
        self.api, self.script, self.log = api, script, Path(log)
        self.holds, self.held = set(holds), held and Path(held)
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
            "tools": self.api.tools(request),
            "messages": self.api.messages(request),
        }
        with self.lock, self.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")

    def place(self, request):
        """Returns the conversation and the turn that a request asks for."""
        if not self.api.tools(request):
            return None, 0  # a title, or a summary of the session
        first = self.api.first_words(request)
        name = next((name for name in self.script.get("agents", {}) if name in first), "main")
        return name, self.api.turn(request, self.turns(name))

    def turns(self, name):
        """Returns the turns of a conversation."""
        return self.script["main"] if name == "main" else self.script["agents"][name]

    def blocks(self, name, turn, request):
        """Returns what the model says in a turn."""
        if name is None:
            return [{"text": "Work on the project"}]
        turns = self.turns(name)
        blocks = turns[turn] if turn < len(turns) else NOTHING
        return [
            {**block, "input": block["input"](request)} if callable(block.get("input")) else block for block in blocks
        ]

    def wait(self, name, turn):
        """Waits while this turn is held, and while it must come after a turn of "main"."""
        if self.held and name == "main" and turn in self.holds:
            self.holds.remove(turn)
            # Whoever sees the file can read its number.
            number = self.held.with_suffix(".new")
            number.write_text(str(turn), encoding="utf-8")
            number.rename(self.held)
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
        model, api = self.owner, self.owner.api
        if counted := api.count(path):
            self.answer(200, json.dumps(counted).encode())
            return
        if not api.accepts(path):
            self.do_GET()
            return
        request = json.loads(body)
        name, turn = model.place(request)
        model.write(path, name, turn, request)
        model.wait(name, turn)
        blocks = model.blocks(name, turn, request)
        if "error" in blocks[0]:
            error = {"message": blocks[0]["error"], "type": "invalid_request_error"}
            self.answer(400, json.dumps({"error": error}).encode())
            return
        answer, kind = api.answer(path, request, f"{name or 'title'}-{turn:02}", blocks)
        self.answer(200, answer.encode(), kind)
        model.note_answer(name, turn)


def event_stream(events):
    """Returns the body and the type of an answer that is a stream of events."""
    lines = (
        (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n" for event in events
    )
    return "".join(lines), "text/event-stream"


def whole(answer):
    """Returns the body and the type of an answer that comes at once."""
    return json.dumps(answer), "application/json"
