"""What every `Bus` promises, as checks to run on yours.

```python
@asynccontextmanager
async def buses():
    bus = MyBus()
    yield bus, bus                      # publisher and subscriber: one object, or two processes' ends

@pytest.mark.parametrize("check", bus_conformance())
async def test_my_bus_keeps_the_contract(check):
    await check(buses)
```
A bus may lose frames under load or when a connection breaks; the checks ask only for what holds on a quiet one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from ownloop.core.ports import Bus

OpenBuses: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[Bus, Bus]]]
Check: TypeAlias = Callable[[OpenBuses], Awaitable[None]]

FRAME: dict[str, Any] = {"seq": 7, "text": "ü\n\0", "list": [1, None, True, 1.5]}
FLOOD = 100_000
"""More than any bus should keep for one subscriber that does not read."""


async def take(frames: AsyncIterator[Any], count: int) -> list[Any]:
    return [await anext(frames) for _ in range(count)]


async def frames_arrive_as_they_were_sent_and_in_order(buses: OpenBuses) -> None:
    async with buses() as (publisher, subscriber), subscriber.subscribe("a") as frames:
        publisher.publish("a", FRAME)
        publisher.publish("a", 2)
        assert await take(frames, 2) == [FRAME, 2]


async def every_subscriber_of_a_topic_gets_its_frames_and_no_others(buses: OpenBuses) -> None:
    async with (
        buses() as (publisher, subscriber),
        subscriber.subscribe("a") as one,
        subscriber.subscribe("a") as two,
        subscriber.subscribe("b") as other,
    ):
        for topic in ("a", "b", "a"):
            publisher.publish(topic, topic)
        publisher.publish("b", "last")
        assert [await take(frames, 2) for frames in (one, two, other)] == [["a", "a"], ["a", "a"], ["b", "last"]]


async def a_frame_that_nobody_waits_for_is_lost_in_silence(buses: OpenBuses) -> None:
    async with buses() as (publisher, subscriber):
        publisher.publish("a", 1)
        async with subscriber.subscribe("a"):
            pass
        publisher.publish("a", 2)
        async with subscriber.subscribe("a") as frames:
            publisher.publish("a", 3)
            assert (await take(frames, 1))[0] == 3


async def who_waits_can_be_cancelled_and_may_wait_again(buses: OpenBuses) -> None:
    async with buses() as (publisher, subscriber), subscriber.subscribe("a") as frames:
        waiting = asyncio.create_task(take(frames, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        publisher.publish("a", 1)
        assert await take(frames, 1) == [1]


async def a_subscriber_that_does_not_read_holds_nobody_up(buses: OpenBuses) -> None:
    async with buses() as (publisher, subscriber), subscriber.subscribe("a") as idle:
        for number in range(FLOOD):
            publisher.publish("a", number)
        async with subscriber.subscribe("b") as frames:
            publisher.publish("b", "still alive")
            assert await take(frames, 1) == ["still alive"]
        kept = 0
        reading = asyncio.create_task(take(idle, FLOOD))
        while kept < FLOOD and not reading.done():
            await asyncio.sleep(0)
            kept += 1
        assert not reading.done(), f"all of {FLOOD} frames were kept for a subscriber that did not read"
        reading.cancel()
        await asyncio.wait([reading])


def bus_conformance() -> tuple[Check, ...]:
    """Return the checks."""
    return (
        frames_arrive_as_they_were_sent_and_in_order,
        every_subscriber_of_a_topic_gets_its_frames_and_no_others,
        a_frame_that_nobody_waits_for_is_lost_in_silence,
        who_waits_can_be_cancelled_and_may_wait_again,
        a_subscriber_that_does_not_read_holds_nobody_up,
    )
