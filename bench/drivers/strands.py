"""strands-agents: `stream_async` on its OpenAI model, no conversation manager."""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false, reportAttributeAccessIssue=false
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.drivers import OnText, Run

NAME = "strands"
ENVIRONMENT = "strands"
PACKAGES = ["strands-agents[openai]==1.62.0", "openai==2.54.0", "pydantic==2.14.4"]
IMPORTS = "from strands import Agent, tool; from strands.models.openai import OpenAIModel"


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    from openai import AsyncOpenAI
    from strands import Agent, tool
    from strands.agent.conversation_manager import NullConversationManager
    from strands.models.openai import OpenAIModel

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async with AsyncOpenAI(base_url=base_url, api_key="x") as client:
        llm = OpenAIModel(client=client, model_id=model)

        async def run(on_text: OnText) -> None:
            # An Agent of theirs is one conversation.
            manager = NullConversationManager()
            agent = Agent(model=llm, tools=[add], callback_handler=None, conversation_manager=manager)
            async for event in agent.stream_async("go"):
                if text := event.get("data"):
                    on_text(text)

        yield run
