"""openai-agents: `Runner.run_streamed` on its chat-completions model, tracing off."""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.drivers import OnText, Run

NAME = "openai-agents"
ENVIRONMENT = "openai-agents"
PACKAGES = ["openai-agents==0.24.0", "openai==3.57.0", "pydantic==2.14.4"]
IMPORTS = "from agents import Agent, Runner, OpenAIChatCompletionsModel"


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async with AsyncOpenAI(base_url=base_url, api_key="x") as client:
        agent = Agent(name="bench", model=OpenAIChatCompletionsModel(model=model, openai_client=client), tools=[add])

        async def run(on_text: OnText) -> None:
            result = Runner.run_streamed(agent, "go", max_turns=1000)
            async for event in result.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    on_text(event.data.delta)

        yield run
