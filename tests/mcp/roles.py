"""Clients of the official Python SDK in a role, with a person who answers questions in one way.

stdin: a list of sessions, which run one after the other: {"command": [...], or "url" and "token",
"mode": "auto" or "legacy", "answer": ..., "calls": [{"tool": ..., "arguments": {...}}]}. The answer is null for a
client that cannot ask, "yes", "unticked", "decline", "cancel", or "late": a yes after the seconds
in "delay". stdout: for each session the names of its tools, the results and the questions.
"""

import asyncio
import json
import sys

import httpx2
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult


async def session(wanted: dict) -> dict:
    questions = []

    async def answer(_context, params) -> ElicitResult:
        questions.append({"message": params.message, "schema": params.requested_schema})
        kind = wanted["answer"]
        if kind == "late":
            await asyncio.sleep(wanted["delay"])
        if kind in ("decline", "cancel"):
            return ElicitResult(action=kind)
        return ElicitResult(action="accept", content={"apply": kind != "unticked"})

    if "url" in wanted:
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {wanted['token']}"})
        server = streamable_http_client(wanted["url"], http_client=http)
    else:
        command, *arguments = wanted["command"]
        server = StdioServerParameters(command=command, args=arguments)
    callback = answer if wanted["answer"] else None
    results = []
    async with Client(server, mode=wanted["mode"], elicitation_callback=callback) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        for call in wanted["calls"]:
            try:
                called = await client.call_tool(call["tool"], call["arguments"])
                texts = [content.text for content in called.content]
                results.append({"texts": texts, "error": bool(called.is_error)})
            except Exception as error:
                results.append({"texts": [str(error)], "error": True})
    return {"tools": tools, "results": results, "questions": questions}


async def main(sessions: list) -> list:
    return [await session(wanted) for wanted in sessions]


print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
