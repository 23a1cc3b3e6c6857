"""A loop of your own, on any of our backends: the model measures a workload and says what is wasted.

    python examples/workload_auditor.py W1                                   # the loop below
    MODEL=anthropic:claude-sonnet-5 python examples/workload_auditor.py W1   # a real model, by one word
    ownloop run examples/workload_auditor.py "Audit this workload: W1."      # the same tools in ownloop's

`audit` is the whole life of a `Backend`: say something, take a turn, hand back the results, until the model is done or
MAX_STEPS is reached. It keeps no journal and asks nobody; for that, the same tools make an `Agent` at the end. The tiny
local model stops after its first measurement; a real one goes on to the price.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

import ownloop
from ownloop import Agent, ToolCall, tool
from ownloop.backends.base import AdapterBackend
from ownloop.backends.models import open_model

MAX_STEPS = 8
MODEL = os.environ.get("MODEL", "local")
PROMPT = "You audit workloads on GPUs. Measure first, then say in one sentence what is wasted and what it costs."
FLEET = {"W1": ("2 of its 8 GPUs", 2.4), "W2": ("4 of its 4 GPUs", 1.9), "W3": ("0 of its 2 GPUs", 0.8)}  # EUR an hour


@tool(read_only=True)
def measure_workload(name: str) -> str:
    """Measure how many of its GPUs a workload uses."""
    return f"Your workload {name} uses {FLEET[name][0]}."


@tool(read_only=True)
def price_of_gpus(name: str) -> str:
    """Tell what a workload pays for each of its GPUs."""
    return f"Your workload {name} pays {FLEET[name][1]:g} EUR an hour for each GPU."


TOOLS = {tool.spec.name: tool for tool in (measure_workload, price_of_gpus)}


def call_tool(call: ToolCall) -> tuple[str, bool]:
    """Return what the tool says, and whether that is an error: the model reads both."""
    try:
        return TOOLS[call.name](**call.input), False
    except Exception as error:  # noqa: BLE001 - whatever a tool raises, the loop goes on
        return f"{type(error).__name__}: {error}", True


async def audit(backend: ownloop.Backend, workload: str) -> AsyncIterator[str]:
    """Yield what the model says and does, until it is done."""
    backend.add_user_message(f"Audit this workload: {workload}.")
    for _ in range(MAX_STEPS):
        turn = await backend.next_turn([tool.spec.schema() for tool in TOOLS.values()])
        for text in turn.text_blocks:
            yield text
        for call in turn.tool_calls:
            content, is_error = call_tool(call)
            yield f"→ {call.name} {call.input}\n← {content}"
            backend.add_tool_result(call.id, call.name, content, is_error)
        if turn.stop_reason == "end_turn":
            return
    yield f"(stopped after {MAX_STEPS} steps)"


agent = Agent("auditor", model=MODEL, instructions=PROMPT, tools=list(TOOLS.values()), MAX_STEPS=MAX_STEPS)


async def main(workload: str) -> None:
    async with aclosing(AdapterBackend(open_model(MODEL), system_prompt=PROMPT)) as backend:
        async for line in audit(backend, workload):
            print(line)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "W1"))
    except ownloop.OwnloopError as error:
        sys.exit(str(error))
