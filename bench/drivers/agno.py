"""agno: `arun(stream=True)`, no database, telemetry off."""

# pyright: reportMissingImports=false
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.drivers import OnText, Run

NAME = "agno"
ENVIRONMENT = "agno"
PACKAGES = ["agno==3.1.10", "openai==3.57.0", "pydantic==2.14.4"]
IMPORTS = "from agno.agent import Agent; from agno.models.openai import OpenAIChat"


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat

    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    agent = Agent(model=OpenAIChat(id=model, base_url=base_url, api_key="x"), tools=[add], telemetry=False)

    async def run(on_text: OnText) -> None:
        async for event in agent.arun("go", stream=True):
            if event.event == "RunContent" and event.content:
                on_text(event.content)

    yield run
