import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import pytest

from ownloop.runtime.engine_local import FIRST_BACK_OFF_MS, LONGEST_BACK_OFF_MS, LocalEngine
from ownloop.testing.engine_conformance import Check, engine_conformance
from ownloop.testing.virtual_time import World, run_virtual


async def nothing() -> Sequence[str]:
    return ()


def play(scene: Callable[[World], Awaitable[None]]) -> None:
    run_virtual(scene)


@pytest.mark.parametrize("check", engine_conformance())
def test_the_local_engine_keeps_the_contract(check: Check):
    play(lambda world: check(lambda runnable: LocalEngine(world.clock, runnable=runnable), world.clock))


def test_no_more_than_the_limit_run_at_once_and_the_others_follow_in_order():
    async def scene(world: World) -> None:
        order: list[str] = []
        running = most = 0

        async def run_segment(session_id: str) -> None:
            nonlocal running, most
            order.append(session_id)
            running += 1
            most = max(most, running)
            await world.clock.sleep_until(world.clock.now_ms() + 100)
            running -= 1

        engine = LocalEngine(world.clock, limit=2, runnable=nothing)
        sessions = [f"sess_{number}" for number in range(5)]
        for session_id in sessions:
            engine.wake(session_id)  # before it serves: kept until then
        async with engine.serve(run_segment):
            await world.clock.sleep_until(world.clock.now_ms() + 400)
        assert (order, most) == (sessions, 2)

    play(scene)


def test_a_session_woken_many_times_before_it_runs_runs_once():
    async def scene(world: World) -> None:
        ran: list[str] = []

        async def run_segment(session_id: str) -> None:
            ran.append(session_id)

        engine = LocalEngine(world.clock, runnable=nothing)
        async with engine.serve(run_segment):
            at_ms = world.clock.now_ms() + 50
            for _ in range(10):
                engine.wake("a")
                engine.wake("b", at_ms)
            await world.clock.sleep_until(at_ms + 100)
        assert ran == ["a", "a", "b"], "the second a: it was woken again while its segment was under way"

    play(scene)


def test_an_earlier_timer_takes_the_place_of_a_later_one():
    async def scene(world: World) -> None:
        ran_at_ms: list[int] = []
        start_ms = world.clock.now_ms()

        async def run_segment(session_id: str) -> None:
            ran_at_ms.append(world.clock.now_ms() - start_ms)

        engine = LocalEngine(world.clock, runnable=nothing)
        async with engine.serve(run_segment):
            engine.wake("a", start_ms + 3000)
            engine.wake("a", start_ms + 500)
            await world.clock.sleep_until(start_ms + 5000)
        assert ran_at_ms == [500]

    play(scene)


def test_a_session_that_always_fails_is_tried_ever_more_rarely_and_each_time_logged(caplog: pytest.LogCaptureFixture):
    async def scene(world: World) -> None:
        tried_at_ms: list[int] = []

        async def run_segment(session_id: str) -> None:
            tried_at_ms.append(world.clock.now_ms())
            raise ValueError("the segment's own words")

        async def runnable() -> Sequence[str]:
            return ("bad",)

        engine = LocalEngine(world.clock, runnable=runnable)
        async with engine.serve(run_segment):
            await world.clock.sleep_until(world.clock.now_ms() + 300_000)
        waits = [later - earlier for earlier, later in pairwise(tried_at_ms)]
        assert waits[:4] == [FIRST_BACK_OFF_MS << n for n in range(4)]
        assert waits[-1] == LONGEST_BACK_OFF_MS
        assert len(caplog.records) == len(tried_at_ms)

    with caplog.at_level(logging.ERROR):
        play(scene)
    assert "session=bad" in caplog.text
    assert "the segment's own words" in caplog.text, "with its traceback"


def test_one_success_ends_the_back_off():
    async def scene(world: World) -> None:
        outcomes = iter([True, True, False, True, False])
        tried_at_ms: list[int] = []

        async def run_segment(session_id: str) -> None:
            tried_at_ms.append(world.clock.now_ms())
            if next(outcomes):
                raise ValueError

        engine = LocalEngine(world.clock, runnable=nothing)
        async with engine.serve(run_segment):
            engine.wake("a")
            await world.clock.sleep_until(world.clock.now_ms() + 5000)
            engine.wake("a")
            await world.clock.sleep_until(world.clock.now_ms() + 5000)
        waits = [later - earlier for earlier, later in pairwise(tried_at_ms)]
        assert waits == [FIRST_BACK_OFF_MS, 2 * FIRST_BACK_OFF_MS, 5000 - 3 * FIRST_BACK_OFF_MS, FIRST_BACK_OFF_MS]

    play(scene)


def test_an_engine_can_serve_again_and_only_once_at_a_time():
    async def scene(world: World) -> None:
        ran: list[str] = []

        async def run_segment(session_id: str) -> None:
            ran.append(session_id)
            await asyncio.Event().wait()

        engine = LocalEngine(world.clock, runnable=nothing)
        for _ in range(2):
            async with engine.serve(run_segment):
                with pytest.raises(RuntimeError, match="serves already"):
                    async with engine.serve(run_segment):
                        pass
                engine.wake("a")
                engine.wake("b")
                if not ran:
                    await asyncio.sleep(0)
                await world.clock.sleep_until(world.clock.now_ms() + 1)
        assert ran == ["a", "b"] * 2
        async with engine.serve(run_segment):
            engine.wake("a")  # cancelled before its first step
        async with engine.serve(run_segment):
            engine.wake("a")
            await world.clock.sleep_until(world.clock.now_ms() + 1)
        assert ran == ["a", "b"] * 2 + ["a"]

    play(scene)
