"""ownloop on its OpenAI-compatible backend, with the store in memory."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.drivers import CHECKOUT, OnText, Run

NAME = "ownloop, memory"
ENVIRONMENT = "ownloop"
PACKAGES = [CHECKOUT]
IMPORTS = "from ownloop import Agent, tool"


@asynccontextmanager
async def opened(base_url: str, model: str, store: Path | None = None) -> AsyncGenerator[Run]:
    from ownloop import Agent, tool
    from ownloop.backends.openai_compatible import OpenAICompatibleAdapter
    from ownloop.backends.profiles import OPENAI
    from ownloop.core.events import Delta

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    # As it talks to OpenAI, so with connections that are used again: everybody else here does that with any server.
    adapter = OpenAICompatibleAdapter(base_url, model, profile=OPENAI)
    agent = Agent("bench", model=adapter, tools=[add], max_turns=1000)
    async with agent.open(store=store) as hosted:

        async def run(on_text: OnText) -> None:
            async for event in hosted.stream("go"):
                if type(event) is Delta:
                    on_text(event.text)

        yield run
