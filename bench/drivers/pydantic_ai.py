"""pydantic-ai: `run_stream_events`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.drivers import OnText, Run

NAME = "pydantic-ai"
ENVIRONMENT = "pydantic-ai"
PACKAGES = ["pydantic-ai-slim[openai]==2.68.0", "openai==3.57.0", "pydantic==2.14.4"]
IMPORTS = "from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIChatModel"


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    from pydantic_ai import Agent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    agent = Agent(OpenAIChatModel(model, provider=OpenAIProvider(base_url=base_url, api_key="x")))
    agent.tool_plain(add)
    limits = UsageLimits(request_limit=None)

    async def run(on_text: OnText) -> None:
        async with agent.run_stream_events("go", usage_limits=limits) as events:
            async for event in events:
                if isinstance(event, PartDeltaEvent):
                    if isinstance(event.delta, TextPartDelta):
                        on_text(event.delta.content_delta)
                elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    on_text(event.part.content)

    yield run
