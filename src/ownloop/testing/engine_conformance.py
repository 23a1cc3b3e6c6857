"""What every `Engine` promises, as checks to run on yours.

```python
@pytest.mark.parametrize("check", engine_conformance())
async def test_my_engine_keeps_the_contract(check):
    clock = SystemClock()
    await check(lambda runnable: MyEngine(clock, runnable=runnable), clock)
```
`open_engine` makes an engine whose sweeper asks `runnable`; `clock` is the one the engine uses. A wake may be lost,
doubled or late, so the checks wait up to `PATIENCE_MS` and never ask for exactly one segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ownloop.core.ports import Clock, Engine

Runnable: TypeAlias = Callable[[], Awaitable[Sequence[str]]]
OpenEngine: TypeAlias = Callable[[Runnable], Engine]
Check: TypeAlias = Callable[[OpenEngine, Clock], Awaitable[None]]

PATIENCE_MS = 30_000


class Nothing(Exception):
    """What the failing segments of these checks raise."""


async def eventually(clock: Clock, holds: Callable[[], bool]) -> None:
    until_ms = clock.now_ms() + PATIENCE_MS
    while not holds():
        assert clock.now_ms() < until_ms, f"not within {PATIENCE_MS} ms"
        await clock.sleep_until(clock.now_ms() + 10)


async def idle() -> Sequence[str]:
    return ()


async def a_woken_session_gets_a_segment(open_engine: OpenEngine, clock: Clock) -> None:
    ran: list[str] = []

    async def run_segment(session_id: str) -> None:
        ran.append(session_id)

    engine = open_engine(idle)
    async with engine.serve(run_segment):
        engine.wake("a")
        engine.wake("b")
        await eventually(clock, lambda: {"a", "b"} <= set(ran))


async def a_session_woken_for_later_does_not_run_before(open_engine: OpenEngine, clock: Clock) -> None:
    ran_at_ms: dict[str, int] = {}

    async def run_segment(session_id: str) -> None:
        ran_at_ms.setdefault(session_id, clock.now_ms())

    engine = open_engine(idle)
    async with engine.serve(run_segment):
        now_ms = clock.now_ms()
        for session_id, wait_ms in (("late", 900), ("soon", 300), ("past", -5)):
            engine.wake(session_id, now_ms + wait_ms)
        await eventually(clock, lambda: len(ran_at_ms) == 3)
        assert ran_at_ms["soon"] >= now_ms + 300
        assert ran_at_ms["late"] >= now_ms + 900
        assert ran_at_ms["past"] < now_ms + 300 or ran_at_ms["past"] <= ran_at_ms["soon"]


async def a_session_woken_during_its_segment_runs_again_and_never_twice_at_once(
    open_engine: OpenEngine, clock: Clock
) -> None:
    running = most = total = 0
    gate = asyncio.Event()

    async def run_segment(_session_id: str) -> None:
        nonlocal running, most, total
        running += 1
        total += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    engine = open_engine(idle)
    async with engine.serve(run_segment):
        engine.wake("a")
        await eventually(clock, lambda: running == 1)
        engine.wake("a")
        engine.wake("a")
        await clock.sleep_until(clock.now_ms() + 50)
        gate.set()
        await eventually(clock, lambda: total >= 2)
    assert most == 1


async def what_was_never_woken_is_found_by_the_sweeper(open_engine: OpenEngine, clock: Clock) -> None:
    ran: list[str] = []

    async def runnable() -> Sequence[str]:
        return () if "orphan" in ran else ("orphan",)

    async def run_segment(session_id: str) -> None:
        ran.append(session_id)

    async with open_engine(runnable).serve(run_segment):
        await eventually(clock, lambda: "orphan" in ran)


async def a_segment_that_fails_hurts_no_other_and_is_tried_again(open_engine: OpenEngine, clock: Clock) -> None:
    tries = 0
    ran: list[str] = []

    async def run_segment(session_id: str) -> None:
        nonlocal tries
        if session_id == "bad":
            tries += 1
            if tries < 3:
                raise Nothing
        ran.append(session_id)

    engine = open_engine(idle)
    async with engine.serve(run_segment):
        engine.wake("bad")
        await eventually(clock, lambda: tries >= 1)
        engine.wake("good")
        await eventually(clock, lambda: "good" in ran)
        engine.wake("bad")
        await eventually(clock, lambda: "bad" in ran)


async def a_sweeper_that_fails_is_asked_again(open_engine: OpenEngine, clock: Clock) -> None:
    asked = 0
    ran: list[str] = []

    async def runnable() -> Sequence[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Nothing
        return () if ran else ("a",)

    async def run_segment(session_id: str) -> None:
        ran.append(session_id)

    async with open_engine(runnable).serve(run_segment):
        await eventually(clock, lambda: ran == ["a"])


async def leaving_cancels_what_runs_and_waits_for_its_end(open_engine: OpenEngine, clock: Clock) -> None:
    started: set[str] = set()
    ended: set[str] = set()

    async def run_segment(session_id: str) -> None:
        started.add(session_id)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.add(session_id)

    engine = open_engine(idle)
    async with engine.serve(run_segment):
        engine.wake("a")
        engine.wake("b")
        await eventually(clock, lambda: len(started) == 2)
        engine.wake("later", clock.now_ms() + 200)
    assert ended == {"a", "b"}
    await clock.sleep_until(clock.now_ms() + 400)
    assert "later" not in started


def engine_conformance() -> tuple[Check, ...]:
    """Return the checks."""
    return (
        a_woken_session_gets_a_segment,
        a_session_woken_for_later_does_not_run_before,
        a_session_woken_during_its_segment_runs_again_and_never_twice_at_once,
        what_was_never_woken_is_found_by_the_sweeper,
        a_segment_that_fails_hurts_no_other_and_is_tried_again,
        a_sweeper_that_fails_is_asked_again,
        leaving_cancels_what_runs_and_waits_for_its_end,
    )
