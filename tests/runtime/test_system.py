import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator

import pytest

from ownloop.runtime.system import SystemClock, SystemIds, SystemThreads


@pytest.fixture
async def threads() -> AsyncIterator[SystemThreads]:
    pool = SystemThreads(max_workers=2)
    yield pool
    await pool.aclose()


async def test_a_sleep_ends_when_its_time_has_come():
    clock = SystemClock()
    at_ms = clock.now_ms() + 20
    await clock.sleep_until(at_ms)
    assert clock.now_ms() >= at_ms
    before_s = clock.monotonic_s()
    await clock.sleep_until(0)
    assert clock.monotonic_s() >= before_s


async def test_a_sleep_notices_that_the_systems_time_was_set(monkeypatch: pytest.MonkeyPatch):
    sleeps: list[float] = []
    now_ms = 0

    async def sleep(seconds: float) -> None:
        nonlocal now_ms
        sleeps.append(seconds)
        now_ms += 1_000_000  # the system was suspended

    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await SystemClock().sleep_until(900_000)
    assert sleeps == [30.0]


async def test_a_sleep_ends_in_its_time_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    sleeps: list[float] = []
    now_ms, uptime_s = 10_000_000, 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now_ms, uptime_s
        sleeps.append(seconds)
        uptime_s += seconds
        now_ms += int(seconds * 1000) - (3_600_000 if len(sleeps) == 1 else 0)

    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    monkeypatch.setattr(time, "monotonic", lambda: uptime_s)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await SystemClock().sleep_until(now_ms + 40_000)
    assert sleeps == [30.0, 10.0]


def test_ids_name_their_kind_and_sort_by_age():
    ids = SystemIds()
    made = [ids.new("sess") for _ in range(2000)]
    assert made == sorted(set(made))
    assert all(len(new) == 31 and new.startswith("sess_") and new[5:].isalnum() and new == new.lower() for new in made)


def test_ids_sort_even_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    ids = SystemIds()
    first = ids.new("run")
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert ids.new("run") > first


def test_ids_of_one_millisecond_are_far_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    ids = SystemIds()
    made = [ids.new("run")[-13:] for _ in range(50)]
    assert len({new[:6] for new in made}) > 40, "64 random bits lie between neighbours"


async def test_a_function_runs_in_another_thread_and_in_the_callers_context(threads: SystemThreads):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")

    def work(suffix: str) -> tuple[str, bool]:
        result = variable.get() + suffix
        variable.set("changed there")
        return result, threading.current_thread() is threading.main_thread()

    assert await threads.run(work, "!") == ("mine!", False)
    assert variable.get() == "mine"


@pytest.mark.parametrize(("raised", "caught"), [(ValueError, ValueError), (StopIteration, RuntimeError)])
async def test_what_a_function_raises_reaches_the_caller(
    threads: SystemThreads, raised: type[Exception], caught: type[Exception]
):
    def work() -> None:
        raise raised

    with pytest.raises(caught):
        await threads.run(work)
    assert await threads.run(lambda: "the thread lives on") == "the thread lives on"


async def test_there_are_as_many_threads_as_work_needs_and_no_more_than_allowed(threads: SystemThreads):
    for _ in range(5):
        first = await threads.run(threading.get_ident)
        assert await threads.run(threading.get_ident) == first, "one idle thread is enough"
    both_run = threading.Barrier(2)
    await asyncio.gather(*(threads.run(both_run.wait) for _ in range(2)))
    used = await asyncio.gather(*(threads.run(threading.get_ident) for _ in range(20)))
    assert len(set(used)) <= 2


async def test_cancelling_the_caller_gives_up_on_the_result_and_not_on_the_function(threads: SystemThreads):
    started, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait()
        done.set()

    caller = asyncio.create_task(threads.run(work))
    await threads.run(started.wait)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert not done.is_set()
    go_on.set()
    await threads.run(done.wait)


async def test_what_has_not_begun_when_its_caller_gives_up_never_begins():
    threads = SystemThreads(max_workers=1)
    go_on = threading.Event()
    entered: list[str] = []
    busy = asyncio.create_task(threads.run(go_on.wait))
    waiting = asyncio.create_task(threads.run(entered.append, "cancelled"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    go_on.set()
    await busy
    await threads.run(entered.append, "next")
    assert entered == ["next"]
    await threads.aclose()


async def test_closing_gives_up_what_has_not_begun_and_lets_the_threads_go():
    threads = SystemThreads(max_workers=1)
    go_on, inside = threading.Event(), threading.Event()

    def work() -> threading.Thread:
        inside.set()
        go_on.wait()
        return threading.current_thread()

    busy = asyncio.create_task(threads.run(work))
    waiting = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0)
    inside.wait()
    await threads.aclose()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    go_on.set()
    (await busy).join()
    with pytest.raises(RuntimeError, match="closed"):
        await threads.run(work)
    await threads.open()
    assert await threads.run(lambda: 1) == 1
    await threads.aclose()


async def test_a_thread_without_work_ends_by_itself_and_the_next_work_finds_one():
    threads = SystemThreads(idle_s=0.001)
    idle = await threads.run(threading.current_thread)
    await asyncio.get_running_loop().run_in_executor(None, idle.join)
    for _ in range(200):  # at the very moment when they give up, too
        first, second = await asyncio.gather(*(threads.run(threading.current_thread) for _ in range(2)))
        assert first is not idle
        assert second is not idle
    await threads.aclose()


def test_a_function_that_hangs_does_not_hold_up_the_end_of_the_program():
    script = """
import asyncio, threading
from ownloop.runtime.system import SystemThreads
async def main():
    hung = asyncio.create_task(SystemThreads().run(threading.Event().wait))
    await asyncio.sleep(0.05)
    hung.cancel()
asyncio.run(main())
print("ended")
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout == "ended\n"
