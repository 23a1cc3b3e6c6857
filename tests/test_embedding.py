"""`agent.base`: a declarative agent in a host of another kind, which knows only the contract of AgentBase."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ownloop.agent import Agent
from ownloop.backends.scripted import ScriptedBackend, call, hang, say
from ownloop.core.agent_base import AgentBase, AgentInteraction, AgentInteractionRequest
from ownloop.errors import InvalidRequestError
from ownloop.runtime.foreign import ForeignAgent
from ownloop.tools.decorator import tool


class OtherHost:
    """A host of another kind: it prints logs and asks whoever sits at it."""

    def __init__(self, answer: Any = None) -> None:
        self.logs: list[Any] = []
        self.asked: list[AgentInteractionRequest] = []
        self.answer = answer
        self.agent: AgentBase | None = None

    async def start(self, agent_class: type[AgentBase], config: Any = None) -> None:
        self.agent = await agent_class.create(config, self.on_logs, self.on_request)

    async def on_logs(self, entries: list[Any]) -> None:
        self.logs += entries

    async def on_request(self, request: AgentInteractionRequest) -> None:
        self.asked.append(request)
        assert self.agent is not None
        if self.answer is not None:
            given = AgentInteraction(interaction_id=request.interaction_id, type=request.type, data=self.answer)
            await self.agent.interaction(given)

    async def say(self, text: str) -> Any:
        assert self.agent is not None
        return await self.agent.interaction(AgentInteraction(type="message", data=text))


@tool(approval="ask")
def pay(eur: int) -> str:
    return f"paid {eur}"


def test_an_agent_runs_in_a_host_of_another_kind_with_an_approval() -> None:
    async def main() -> None:
        agent = Agent(
            "cash-box", model=ScriptedBackend([call("pay", {"eur": 5}), say("done"), say("bye")]), tools=[pay]
        )
        assert agent.base.__name__ == "CashBox"
        host = OtherHost({"approved": True})
        await host.start(agent.base)
        assert await host.say("pay") == "done"
        assert (host.logs[0]["kind"], host.logs[-1]["kind"]) == ("input_accepted", "run_ended")
        [request] = host.asked
        assert request.type == "approval"
        assert request.data["request"]["input"] == {"eur": 5}
        assert await host.say("and?") == "bye"
        assert host.agent is not None
        await host.agent.stop()
        await host.agent.stop()
        with pytest.raises(InvalidRequestError, match="stopped"):
            await host.say("more")

    asyncio.run(main())


def test_each_instance_has_a_session_of_its_own() -> None:
    async def main() -> None:
        backend = ScriptedBackend(lambda r: say(str(len(r.messages))))
        base = Agent("a", model=backend).base
        one, two = OtherHost(), OtherHost()
        await one.start(base)
        await two.start(base)
        assert [await one.say("x"), await one.say("x"), await two.say("x")] == ["1", "3", "1"]
        for host in (one, two):
            assert host.agent is not None
            await host.agent.stop()

    asyncio.run(main())


def test_a_run_that_does_not_complete_is_an_error_for_the_caller() -> None:
    async def main() -> None:
        host = OtherHost()
        await host.start(Agent("a", model=ScriptedBackend([])).base)
        with pytest.raises(RuntimeError, match="failed: the script has 0 turns"):
            await host.say("x")
        assert host.agent is not None
        await host.agent.stop()

    asyncio.run(main())


def test_whoever_gives_up_on_the_call_cancels_the_run() -> None:
    async def main() -> None:
        backend = ScriptedBackend([say("Hel") + hang(), say("fine")])
        host = OtherHost()
        await host.start(Agent("a", model=backend).base)
        saying = asyncio.create_task(host.say("x"))
        while not backend.requests:
            await asyncio.sleep(0)
        saying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saying
        assert await host.say("y") == "fine"
        assert backend.closed == 1
        assert host.agent is not None
        await host.agent.stop()

    asyncio.run(main())


def test_a_config_that_does_not_fit_is_refused_at_create() -> None:
    async def main() -> None:
        with pytest.raises(InvalidRequestError, match="color"):
            await OtherHost().start(Agent("a", model=ScriptedBackend([])).base, {"color": 1})

    asyncio.run(main())


async def test_an_embedded_agent_is_a_foreign_agent_for_our_own_host() -> None:
    from ownloop.runtime.host import open_host
    from ownloop.service import Service
    from ownloop.store.memory import MemoryStore

    agent = Agent("inner", model=ScriptedBackend([call("pay", {"eur": 5}), say("done")]), tools=[pay])
    async with open_host(MemoryStore(), [ForeignAgent("outer", agent.base)]) as host:
        service = Service(host)
        session = await service.create_session()
        accepted = await service.send(session.session_id, "pay")
        while not (asked := await service.requests()):
            await asyncio.sleep(0.001)
        await service.answer(session.session_id, asked[0].request_id, {"value": {"approved": True}})
        assert (await service.wait(accepted)).result == "done"
