"""langgraph: its prebuilt ReAct agent on langchain-openai, `stream_mode="messages"`."""

# pyright: reportMissingImports=false
import os
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.drivers import OnText, Run

NAME = "langgraph"
ENVIRONMENT = "langgraph"
PACKAGES = ["langgraph==1.2.24", "langchain-openai==1.7.4", "langchain-core==1.8.3", "pydantic==2.14.4"]
IMPORTS = "from langgraph.prebuilt import create_react_agent; from langchain_openai import ChatOpenAI"


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"
    warnings.simplefilter("ignore")
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    agent = create_react_agent(ChatOpenAI(model=model, base_url=base_url, api_key="x", stream_usage=True), [add])
    question = {"messages": [{"role": "user", "content": "go"}]}

    async def run(on_text: OnText) -> None:
        async for message, _ in agent.astream(question, {"recursion_limit": 10_000}, stream_mode="messages"):
            if message.type == "AIMessageChunk" and message.content:
                on_text(message.content)

    yield run
