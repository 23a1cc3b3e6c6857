"""The loop of raw_aiohttp on the openai SDK as a transport: its client, its auth, none of its objects.

What ownloop stands on, so the difference between the two is ownloop's own.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.drivers import Run
from bench.drivers.raw_aiohttp import events_of, loop

NAME = "openai SDK, bytes"
ENVIRONMENT = "sdk-bytes"
PACKAGES = ["openai[aiohttp]==3.57.0", "aiohttp==3.14.5", "orjson==3.13.0"]
IMPORTS = "import openai, orjson"


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    import openai

    http_client = openai.DefaultAioHttpClient()
    async with openai.AsyncOpenAI(base_url=base_url, api_key="x", http_client=http_client) as client:

        async def post(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            # What goes in extra_body, the SDK does not walk through at each turn.
            create = client.chat.completions.with_streaming_response.create
            async with create(model=model, messages=[], stream=True, extra_body=body) as response:
                async for event in events_of(response.iter_bytes()):
                    yield event

        yield loop(post, model)
