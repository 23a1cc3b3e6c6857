"""google-adk with its LiteLLM model, SSE streaming, sessions in memory."""

# pyright: reportMissingImports=false
import os
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.drivers import OnText, Run

NAME = "google-adk"
ENVIRONMENT = "google-adk"
PACKAGES = ["google-adk==2.13.0", "litellm==1.110.2", "pydantic==2.14.4"]
IMPORTS = (
    "from google.adk.agents import LlmAgent; from google.adk.runners import Runner; "
    "from google.adk.models.lite_llm import LiteLlm; from google.adk.sessions import InMemorySessionService"
)


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR")
    warnings.simplefilter("ignore")
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from google.genai import types

    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    llm = LiteLlm(f"openai/{model}", api_base=base_url, api_key="x")
    sessions = InMemorySessionService()
    agent = LlmAgent(name="bench", model=llm, tools=[add])
    runner = Runner(app_name="bench", agent=agent, session_service=sessions)
    config = RunConfig(streaming_mode=StreamingMode.SSE, max_llm_calls=0)

    async def run(on_text: OnText) -> None:
        session = await sessions.create_session(app_name="bench", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text="go")])
        events = runner.run_async(user_id="u", session_id=session.id, new_message=message, run_config=config)
        async for event in events:
            if event.partial and event.content:
                for part in event.content.parts or ():
                    if part.text:
                        on_text(part.text)

    yield run
