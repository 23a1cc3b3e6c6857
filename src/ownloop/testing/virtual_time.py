"""Virtual time: an event loop whose clock jumps to the next timer when nothing is ready, with seeded ids and threads.

For tests and the simulator. A run depends on its coroutine and its seed alone; it waits for nothing real, and has no
sockets, subprocesses or threads.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import base_events
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ownloop.core.ports import Clock, Ids, Threads

T = TypeVar("T")

START_MS = 1_700_000_000_000
"""When every virtual run begins: 2023-11-14 22:13:20 UTC."""


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set, and yet the run is not over."""


class VirtualLoop(base_events.BaseEventLoop):
    """An event loop in virtual time, with nothing but callbacks, futures, tasks and timers."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        # What BaseEventLoop asks of a loop that would watch sockets.
        self._clock_resolution = 1e-9
        self._selector = self

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[Any]:
        """Stand in for the selector: where another loop waits, time jumps."""
        if timeout is None:
            raise DeadlockError(_describe(self))
        self._now_s += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody else could have to wake this loop."""


def _describe(loop: asyncio.AbstractEventLoop) -> str:
    lines = ["nothing is ready and no timer is set; these tasks wait for ever:"]
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        stack = task.get_stack(limit=1)
        place = f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else "its start"
        lines.append(f"  {task.get_name()}: {getattr(task.get_coro(), '__qualname__', '?')} at {place}")
    return "\n".join(lines)


class VirtualClock:
    """The running loop's time as a `Clock`; any loop will do, but only a `VirtualLoop` jumps."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._loop = asyncio.get_running_loop()
        self._start_ms = start_ms

    def now_ms(self) -> int:
        # By way of whole microseconds: a timer for 1.001 s fires at 1.0009999999 s, and that is not yet 1 ms early.
        return self._start_ms + round(self._loop.time() * 1_000_000) // 1000

    def monotonic_s(self) -> float:
        return self._loop.time()

    async def sleep_until(self, at_ms: int) -> None:
        while (left_ms := at_ms - self.now_ms()) > 0:
            await asyncio.sleep(left_ms / 1000)


class SeededIds:
    """Ids that ascend, and are the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count:06d}{self._random.randrange(16**6):06x}"


class InlineThreads:
    """Run "blocking" functions in the loop itself, each after a seeded delay of up to `longest_s`."""

    def __init__(self, seed: int = 0, longest_s: float = 0.01) -> None:
        self._random = random.Random(seed)
        self._longest_s = longest_s

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = copy_context()

        def work() -> None:
            try:
                result = context.run(fn, *args)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        # A callback of its own: as with a thread, cancelling the caller does not stop the function.
        loop.call_later(self._random.random() * self._longest_s, work)
        return await future


@dataclass(frozen=True, slots=True)
class World:
    """The ports of one virtual run, and its source of randomness."""

    clock: VirtualClock
    ids: SeededIds
    threads: InlineThreads
    random: random.Random


def run_virtual(scene: Callable[[World], Awaitable[T]], *, seed: int = 0) -> T:
    """Run `scene` to its end in virtual time and return its result.

    Raises:
        DeadlockError: everything waits for something that nobody will do; the text lists who.
    """

    async def main() -> T:
        source = random.Random(seed)
        ids, threads = SeededIds(source.randrange(2**32)), InlineThreads(source.randrange(2**32))
        return await scene(World(VirtualClock(), ids, threads, source))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


if TYPE_CHECKING:
    _clock: type[Clock] = VirtualClock
    _ids: type[Ids] = SeededIds
    _threads: type[Threads] = InlineThreads
