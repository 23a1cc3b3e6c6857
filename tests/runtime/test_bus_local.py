from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from ownloop.core.ports import Bus
from ownloop.runtime.bus_local import LocalBus
from ownloop.testing.bus_conformance import Check, bus_conformance


@asynccontextmanager
async def buses() -> AsyncGenerator[tuple[Bus, Bus]]:
    bus = LocalBus()
    yield bus, bus
    assert bus._subscribers == {}, "a topic without subscribers costs nothing"


@pytest.mark.parametrize("check", bus_conformance())
async def test_the_local_bus_keeps_the_contract(check: Check):
    await check(buses)


async def test_what_does_not_fit_into_a_subscribers_queue_is_dropped():
    bus = LocalBus(limit=2)
    async with bus.subscribe("a") as frames:
        for number in range(4):
            bus.publish("a", number)
        assert [await anext(frames), await anext(frames)] == [0, 1]
        bus.publish("a", 4)
        assert await anext(frames) == 4
