"""A client of the official Python SDK: asks what stdin says, and prints what it is answered, as JSON.

stdin: {"command": [...]} or {"url": ..., "token": ...}, and "asks": a list of
{"tool": ..., "arguments": {...}} and {"resource": uri}. stdout: what the server says of itself,
and for each ask its texts, and whether it is an error.
"""

import asyncio
import json
import sys

import httpx2
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


async def ask(client: Client, what: dict) -> dict:
    try:
        if "resource" in what:
            read = await client.read_resource(what["resource"])
            return {"texts": [content.text for content in read.contents], "error": False}
        called = await client.call_tool(what["tool"], what["arguments"])
        return {"texts": [content.text for content in called.content], "error": bool(called.is_error)}
    except Exception as error:
        return {"texts": [str(error)], "error": True}


async def main(wanted: dict) -> dict:
    if "command" in wanted:
        command, *arguments = wanted["command"]
        transport = stdio_client(StdioServerParameters(command=command, args=arguments))
    else:
        headers = {"Authorization": f"Bearer {wanted['token']}"}
        http = httpx2.AsyncClient(headers=headers, timeout=60)
        transport = streamable_http_client(wanted["url"], http_client=http)
    async with Client(transport) as client:
        tools = (await client.list_tools()).tools
        resources = await client.list_resources()
        templates = (await client.list_resource_templates()).resource_templates
        return {
            "tools": [tool.model_dump(mode="json") for tool in tools],
            "resources": [resource.uri for resource in resources.resources],
            "templates": [template.uri_template for template in templates],
            "answers": [await ask(client, what) for what in wanted["asks"]],
        }


print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
