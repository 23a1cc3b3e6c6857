import asyncio
import contextvars

import pytest

from ownloop.testing.virtual_time import START_MS, DeadlockError, SeededIds, World, run_virtual


def test_days_pass_without_waiting():  # else the suite's own time limit ends it
    async def scene(world: World) -> int:
        await world.clock.sleep_until(START_MS + 30 * 24 * 3600 * 1000)
        await asyncio.sleep(3600)
        return world.clock.now_ms()

    assert run_virtual(scene) == START_MS + (30 * 24 + 1) * 3600 * 1000


def test_time_stands_still_while_anything_is_ready():
    async def scene(world: World) -> tuple[int, float]:
        for _ in range(1000):
            await asyncio.sleep(0)
        return world.clock.now_ms(), world.clock.monotonic_s()

    assert run_virtual(scene) == (START_MS, 0.0)


def test_timers_fire_in_the_order_of_their_times():
    async def scene(world: World) -> list[tuple[int, int]]:
        fired: list[tuple[int, int]] = []

        async def wait(ms: int) -> None:
            await world.clock.sleep_until(START_MS + ms)
            fired.append((ms, world.clock.now_ms() - START_MS))

        async with asyncio.TaskGroup() as group:
            for ms in (1001, 3, 999, 1, 333, 86_400_001):
                group.create_task(wait(ms))
        return fired

    assert run_virtual(scene) == [(ms, ms) for ms in (1, 3, 333, 999, 1001, 86_400_001)]


def test_time_limits_work():
    async def scene(world: World) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        assert world.clock.monotonic_s() == pytest.approx(5)

    run_virtual(scene)


def test_a_deadlock_is_an_error_that_lists_who_waits():
    async def stuck_for_ever() -> None:
        await asyncio.Event().wait()

    async def scene(world: World) -> None:
        waiting = asyncio.create_task(stuck_for_ever(), name="the one that waits")
        await asyncio.sleep(1)
        await waiting

    with pytest.raises(DeadlockError) as caught:
        run_virtual(scene)
    assert "the one that waits" in str(caught.value)
    assert "stuck_for_ever" in str(caught.value)
    assert "test_virtual_time.py" in str(caught.value)


def test_a_deadlock_still_lets_tasks_clean_up():
    cleaned: list[str] = []

    async def scene(world: World) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append("up")

    with pytest.raises(DeadlockError):
        run_virtual(scene)
    assert cleaned == ["up"]


def test_what_the_scene_raises_comes_out():
    async def scene(world: World) -> None:
        raise LookupError("of the scene")

    with pytest.raises(LookupError, match="of the scene"):
        run_virtual(scene)


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    async def scene(world: World) -> list[object]:
        order: list[object] = [world.ids.new("sess"), world.random.random()]
        await asyncio.gather(*(world.threads.run(order.append, number) for number in range(20)))
        return order

    assert run_virtual(scene, seed=1) == run_virtual(scene, seed=1)
    assert run_virtual(scene, seed=1) != run_virtual(scene, seed=2)


def test_seeded_ids_sort_by_age():
    ids = SeededIds(seed=3)
    made = [ids.new("run") for _ in range(1000)]
    assert made == sorted(set(made))
    assert made[0].startswith("run_")


def test_inline_threads_keep_the_contract_of_threads():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    async def scene(world: World) -> None:
        done: list[str] = []
        variable.set("mine")
        assert await world.threads.run(variable.get) == "mine"
        with pytest.raises(ZeroDivisionError):
            await world.threads.run(lambda: 1 // 0)
        caller = asyncio.create_task(world.threads.run(done.append, "ran on"))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(1)
        assert caller.cancelled()
        assert done == ["ran on"]

    run_virtual(scene)
