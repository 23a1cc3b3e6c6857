from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ownloop import Agent, MemoryStore, ScriptedBackend, Service, open_host
from ownloop.cli.lookup import all_sessions, find_session, shortened
from ownloop.errors import ConfigError

IDS = ("sess_01aaaaaaaaaaaa", "sess_01aaaaaaaaabbb", "sess_01bbbbbbbbbbbb", "客户")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    agents = [Agent(name, model=ScriptedBackend([])) for name in ("support", "sales")]
    async with open_host(MemoryStore(), agents) as host:
        service = Service(host)
        for session_id in IDS:
            await service.create_session("support", session_id=session_id)
        await service.create_session("sales", session_id="sess_01cccccccccccc")
        yield service


async def found(service: Service, given: str, agent: str | None = None) -> str:
    return (await find_session(service, given, "there", agent=agent)).session_id


async def refused(service: Service, given: str, agent: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        await find_session(service, given, "there", agent=agent)
    return str(caught.value)


async def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so(service: Service) -> None:
    assert await found(service, IDS[0]) == IDS[0]
    assert await found(service, "sess_01b") == IDS[2]
    assert await found(service, "客") == "客户"
    assert await found(service, "sess_01c", "sales") == "sess_01cccccccccccc"


async def test_a_whole_id_wins_over_a_longer_one_that_begins_so(service: Service) -> None:
    await service.create_session("support", session_id="客")
    assert await found(service, "客") == "客"


async def test_beginnings_of_several_ids_are_answered_with_those(service: Service) -> None:
    assert await refused(service, "sess_01a") == (
        f"2 sessions in there begin with 'sess_01a'; give more of the id:\n  {IDS[1]}  support\n  {IDS[0]}  support"
    )


async def test_ids_that_are_not_there_are_answered_with_the_near_ones_or_the_newest(service: Service) -> None:
    near = await refused(service, "sess_01bbbbbbbbbb8b")
    assert near == f"there is no session 'sess_01bbbbbbbbbb8b' in there; near it there:\n  {IDS[2]}  support"
    none = await refused(service, "x", "sales")
    assert none == ("there is no session 'x' in there; the newest of agent 'sales' there:\n  sess_01cccccccccccc")
    assert (await refused(service, "x", "other")).endswith("it holds none of agent 'other'")
    assert "begin with" not in await refused(service, "")


async def test_sessions_are_read_page_by_page(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ownloop.cli.lookup._PAGE", 2)
    assert len({session.session_id for session in await all_sessions(service)}) == 5
    assert [session.agent for session in await all_sessions(service, "sales")] == ["sales"]


def test_ids_are_shortened_as_far_as_they_stay_different() -> None:
    assert shortened(IDS) == {
        "sess_01aaaaaaaaaaaa": "sess_01aaaaaaaaaa",
        "sess_01aaaaaaaaabbb": "sess_01aaaaaaaaab",
        "sess_01bbbbbbbbbbbb": "sess_01bbbbbb",
        "客户": "客户",
    }
    assert shortened(["a", "ab"]) == {"a": "a", "ab": "ab"}
    assert shortened([]) == {}
