"""Scenarios of the crash kit; to see them tried: `python -m ownloop.testing.crash tests.testing.crash_scenarios`."""

import asyncio

from ownloop.agent import Agent
from ownloop.backends.scripted import Turn, call, calls, say, think, wait
from ownloop.core.backend import Adapter, ModelRequest
from ownloop.core.messages import text_of
from ownloop.core.ports import ToolContext
from ownloop.testing.crash import Outside, People, Scenario
from ownloop.tools.decorator import tool

CHUNK = 40
"""Characters in one delta: a few parts for each response are enough."""


@tool(read_only=True)
async def look_up(order: str, context: ToolContext[Outside]) -> str:
    """Look up an order."""
    context.deps.effect("look_up", context, {"order": order})
    return f"{order}: paid, delivered."


@tool(approval="ask")
async def refund(order: str, euros: int, context: ToolContext[Outside]) -> str:
    """Refund an order."""
    context.deps.effect("refund", context, {"order": order, "euros": euros})
    return f"Refunded {euros} euros."


@tool(on_unknown="retry")
async def ship(order: str, context: ToolContext[Outside]) -> str:
    """Ship an order."""
    context.deps.effect("ship", context, {"order": order})
    return "Shipped."


@tool(on_unknown="error")
async def mail(to: str, context: ToolContext[Outside]) -> str:
    """Write to a customer."""
    context.deps.effect("mail", context, {"to": to})
    return "Sent."


@tool(on_unknown="ask")
def charge(euros: int, context: ToolContext[Outside]) -> str:
    """Charge a card."""
    context.deps.effect("charge", context, {"euros": euros})
    return "Charged."


@tool
async def watch_parcel(order: str, context: ToolContext[Outside]) -> str:
    """Watch a parcel until it arrives."""
    context.deps.effect("watch_parcel", context, {"order": order})
    await asyncio.Event().wait()
    return "It has arrived."


def shop(model: Adapter, outside: Outside) -> Agent:
    tools = [look_up, refund, ship, mail, charge, watch_parcel]
    return Agent("shop", model=model, instructions="Help the customer.", tools=tools, deps=outside)


async def approve_with_an_edit(people: People) -> None:
    await people.send("Refund A1, please.", key="first")
    await people.answer("refund", {"approved": True, "edited_input": {"order": "A1", "euros": 5}})


APPROVAL = Scenario(
    agent=shop,
    script=[
        think("What did they buy?", chunk=CHUNK)
        + wait(2500)
        + calls(
            call("look_up", {"order": "A1"}, chunk=CHUNK),
            call("refund", {"order": "A1", "euros": 50}, chunk=CHUNK),
        ),
        say("I refunded 5 euros.", chunk=CHUNK),
    ],
    people=approve_with_an_edit,
    ends=["completed"],
)
"""Two calls side by side; one of them needs a person, who changes its input. A long thought leaves tails."""


async def order_three_things(people: People) -> None:
    await people.send("Ship it, write to them, charge them.", key="first")


ON_UNKNOWN = Scenario(
    agent=shop,
    script=[
        calls(
            call("ship", {"order": "A1"}, chunk=CHUNK),
            call("mail", {"to": "ann"}, chunk=CHUNK),
            call("charge", {"euros": 7}, chunk=CHUNK),
        ),
        say("All done.", chunk=CHUNK),
    ],
    people=order_three_things,
    ends=["completed"],
    if_not_run={"outcome": "again"},
)
"""Three calls side by side, one for each `on_unknown`."""


def _by_the_last_word(request: ModelRequest) -> Turn:
    """What the model of INTERRUPTIONS says, whatever came before: people may be late, or early, after a crash."""
    last = request.messages[-1]
    if last.role == "tool":
        return say("As you wish.", chunk=CHUNK)
    if "watch" in text_of(last.blocks):
        return call("watch_parcel", {"order": "A1"}, chunk=CHUNK)
    if "refund" in text_of(last.blocks):
        return call("refund", {"order": "A1", "euros": 50}, chunk=CHUNK)
    return say("I see.", chunk=CHUNK)


async def change_their_minds(people: People) -> None:
    await people.send("A refund, please.", key="first")
    await people.until("the request", lambda facts: any(f.body.kind == "interaction_requested" for f in facts))
    await people.send("Be quick.", key="steer", steer=True)
    second = await people.send("Then watch my parcel.", key="second")
    await people.answer("refund", {"approved": False, "note": "too much"})
    await people.started("watch_parcel")
    await people.cancel(second)


INTERRUPTIONS = Scenario(
    agent=shop,
    script=_by_the_last_word,
    people=change_their_minds,
    ends=["completed", "cancelled|completed"],
)
"""A refusal, a message in the middle of a run, one that waits for its end, and a cancel while a tool runs."""
