"""The engine of one process: runs segments as tasks. Used by who assembles a host.

At most one segment of a session runs here at a time. That only spares work: the lease alone decides who writes.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from ownloop.core.ports import Clock, Engine, RunSegment

logger = logging.getLogger(__name__)

Runnable: TypeAlias = Callable[[], Awaitable[Sequence[str]]]
"""Lists the sessions whose time has come: the sweeper's question to the store."""

SWEEP_MS = 1000
FIRST_BACK_OFF_MS = 250
LONGEST_BACK_OFF_MS = 60_000
"""How rarely a session whose every segment fails is still tried."""


class LocalEngine:
    """Run segments of woken sessions, `limit` at a time.

    A session that is woken while its segment runs is run once more afterwards. A segment that raises is logged, and its
    session waits longer after each failure in a row.
    """

    def __init__(self, clock: Clock, *, limit: int = 64, runnable: Runnable) -> None:
        self._clock = clock
        self._limit = limit
        self._runnable = runnable
        self._ready: dict[str, None] = {}  # in order of their wake
        self._running: set[str] = set()
        self._again: set[str] = set()
        self._timers: list[tuple[int, str]] = []
        self._due_at_ms: dict[str, int] = {}  # a session's earliest timer; others of it are void
        self._failures: dict[str, int] = {}
        self._not_before_ms: dict[str, int] = {}
        self._run_segment: RunSegment | None = None  # while serving
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.Task[None] | None = None

    def wake(self, session_id: str, at_ms: int | None = None) -> None:
        now_ms = self._clock.now_ms()
        at_ms = max(now_ms if at_ms is None else at_ms, self._not_before_ms.get(session_id, 0))
        if at_ms > now_ms:
            self._set_timer(session_id, at_ms)
        elif session_id in self._running:
            self._again.add(session_id)
        else:
            self._ready[session_id] = None
            self._start_ready()

    @asynccontextmanager
    async def serve(self, run_segment: RunSegment) -> AsyncGenerator[None]:
        if self._run_segment is not None:
            raise RuntimeError("this engine serves already")
        self._run_segment = run_segment
        self._spawn(self._sweep(), "ownloop-sweeper")
        self._start_ready()
        self._set_alarm()
        try:
            yield
        finally:
            self._run_segment = None
            self._alarm = None
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks)
            self._running.clear()  # one that was cancelled before its first step could not say so itself

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- segments ---

    def _start_ready(self) -> None:
        while self._run_segment is not None and self._ready and len(self._running) < self._limit:
            session_id = next(iter(self._ready))
            del self._ready[session_id]
            self._running.add(session_id)
            self._spawn(self._segment(self._run_segment, session_id), f"ownloop-segment {session_id}")

    async def _segment(self, run_segment: RunSegment, session_id: str) -> None:
        try:
            await run_segment(session_id)
        except Exception:
            wait_ms = self._back_off(session_id)
            logger.exception("segment failed: session=%s next_try_in_ms=%d", session_id, wait_ms)
        else:
            self._failures.pop(session_id, None)
            self._not_before_ms.pop(session_id, None)
        finally:
            self._running.discard(session_id)
            if session_id in self._again:
                self._again.discard(session_id)
                self.wake(session_id)
            self._start_ready()

    def _back_off(self, session_id: str) -> int:
        failures = self._failures.get(session_id, 0)
        wait_ms = min(FIRST_BACK_OFF_MS << min(failures, 16), LONGEST_BACK_OFF_MS)
        self._failures[session_id] = failures + 1
        self._not_before_ms[session_id] = self._clock.now_ms() + wait_ms
        self._again.add(session_id)  # what the segment was for is probably not done
        return wait_ms

    # --- time ---

    def _set_timer(self, session_id: str, at_ms: int) -> None:
        if self._due_at_ms.get(session_id, at_ms + 1) <= at_ms:
            return  # it wakes earlier anyway, and then says itself when again
        self._due_at_ms[session_id] = at_ms
        heapq.heappush(self._timers, (at_ms, session_id))
        if self._timers[0] == (at_ms, session_id):
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._run_segment is not None and self._timers:
            self._alarm = self._spawn(self._ring(self._timers[0][0]), "ownloop-alarm")

    async def _ring(self, at_ms: int) -> None:
        await self._clock.sleep_until(at_ms)
        self._alarm = None
        while self._timers and self._timers[0][0] <= self._clock.now_ms():
            due_at_ms, session_id = heapq.heappop(self._timers)
            if self._due_at_ms.get(session_id) == due_at_ms:
                del self._due_at_ms[session_id]
                self.wake(session_id)
        self._set_alarm()

    async def _sweep(self) -> None:
        """Find what was never woken here: sessions of dead workers, posts by other processes, lost wakes."""
        while True:
            try:
                for session_id in await self._runnable():
                    if session_id not in self._running:
                        self.wake(session_id)
            except Exception:
                logger.exception("the sweeper could not ask for runnable sessions; it asks again in %d ms", SWEEP_MS)
            await self._clock.sleep_until(self._clock.now_ms() + SWEEP_MS)


if TYPE_CHECKING:
    _fits: type[Engine] = LocalEngine
