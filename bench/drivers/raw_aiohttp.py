"""The limit in pure Python: aiohttp, orjson, a hand-written loop and nothing else."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from bench.drivers import SCHEMA, OnText, Run

NAME = "raw aiohttp"
ENVIRONMENT = "raw-aiohttp"
PACKAGES = ["aiohttp==3.14.5", "orjson==3.13.0"]
IMPORTS = "import aiohttp, orjson"

Post: TypeAlias = Callable[[dict[str, Any]], AsyncIterator[dict[str, Any]]]
"""Send a body, and yield the JSON of each event that comes back."""

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    import aiohttp
    import orjson

    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=2**18) as http:

        async def post(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            headers = {"content-type": "application/json"}
            async with http.post(f"{base_url}/chat/completions", data=orjson.dumps(body), headers=headers) as response:
                async for event in events_of(response.content.iter_any()):
                    yield event

        yield loop(post, model)


async def events_of(reads: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    import orjson

    rest = b""
    async for data in reads:
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line.startswith(b"data: {"):
                yield orjson.loads(line[6:])


def loop(post: Post, model: str) -> Run:
    """Return the least agent: turns until one asks for no tool."""

    async def run(on_text: OnText) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        while await turn(post, model, messages, on_text):
            pass

    return run


async def turn(post: Post, model: str, messages: list[dict[str, Any]], on_text: OnText) -> bool:
    """Ask once, run what is called, and append both; False when nothing was called."""
    import orjson

    options = {"stream": True, "stream_options": {"include_usage": True}}
    texts: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    async for event in post({"model": model, "messages": messages, "tools": [TOOL], **options}):
        for choice in event["choices"]:
            delta = choice["delta"]
            if text := delta.get("content"):
                texts.append(text)
                on_text(text)
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"arguments": ""})
                if "id" in part:
                    call["id"], call["name"] = part["id"], part["function"]["name"]
                call["arguments"] += part["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    messages.append(message)
    if calls:
        message["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls.values()
        ]
        for call in calls.values():
            result = str(await add(**orjson.loads(call["arguments"])))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return bool(calls)


async def add(a: int, b: int) -> int:
    return a + b
