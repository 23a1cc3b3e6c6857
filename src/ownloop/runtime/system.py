"""The real clock, ids and threads: the one module of the runtime that touches them. Imported by who assembles a host.

Everything else gets these as ports, so that a simulator can replace them.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from ownloop.core.ports import Clock, Ids, Threads

T = TypeVar("T")

_LONGEST_SLEEP_S = 30.0
"""A sleep is cut into pieces, so that a change of the system's time (NTP, suspend) is noticed within one."""
_SET_BACK_MS = 500
"""More than this is left when the time is over only if the clock was set back; less is the drift between two clocks."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep_until(self, at_ms: int) -> None:
        ends_s = self.monotonic_s() + (at_ms - self.now_ms()) / 1000
        while (left_ms := at_ms - self.now_ms()) > 0:
            waited_out = self.monotonic_s() >= ends_s
            if waited_out and left_ms > _SET_BACK_MS:
                return
            left_s = left_ms / 1000 if waited_out else min(left_ms / 1000, ends_s - self.monotonic_s())
            await asyncio.sleep(min(left_s, _LONGEST_SLEEP_S))


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80


class SystemIds:
    """Ids like ULIDs in lower case: 48 bits of Unix milliseconds, then 80 of randomness, in Crockford's base 32.

    Ids of one millisecond ascend by random steps of 64 bits: who knows one id cannot guess its neighbours.
    """

    def __init__(self) -> None:
        self._last = 0

    def new(self, kind: str) -> str:
        value = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
        if value <= self._last:  # the same millisecond, or a clock that was set back
            value = self._last + 1 + secrets.randbits(64)
        self._last = value
        return f"{kind}_{''.join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))}"


_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Context, Callable[..., Any], tuple[Any, ...]]


class SystemThreads:
    """A pool of daemon threads: a tool that hangs never holds up the end of the program.

    Threads are started when work waits for them, at most `max_workers`, and end after `idle_s` without any: nobody has
    to close what nobody uses. `aclose` gives up what has not begun, and lets the threads go; a function that runs, runs
    on to its end.
    """

    def __init__(self, max_workers: int = 32, *, idle_s: float = 5.0) -> None:
        self._max_workers = max_workers
        self._idle_s = idle_s
        self._pool: _Pool | None = _Pool(max_workers, idle_s)

    async def open(self) -> None:
        self._pool = self._pool or _Pool(self._max_workers, self._idle_s)

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        if self._pool is None:
            raise RuntimeError("these threads are closed; open them before use")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._pool.submit((loop, future, copy_context(), fn, args))
        return await future


class _Pool:
    def __init__(self, max_workers: int, idle_s: float) -> None:
        self._max_workers = max_workers
        self._idle_s = idle_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unfinished = 0

    def submit(self, job: _Job) -> None:
        with self._lock:
            self._unfinished += 1
            start = self._threads < min(self._unfinished, self._max_workers)
            if start:
                self._threads += 1
        self._jobs.put(job)
        if start:
            threading.Thread(target=self._work, name="ownloop-worker", daemon=True).start()

    def close(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job[1].cancel()
        for _ in range(self._threads):
            self._jobs.put(None)

    def _next(self) -> _Job | None:
        """Wait for work; None when this thread is to end."""
        while True:
            try:
                return self._jobs.get(timeout=self._idle_s)
            except queue.Empty:
                with self._lock:
                    if self._unfinished < self._threads:  # else a job is on its way, and counts on this thread
                        self._threads -= 1
                        return None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            loop, future, context, fn, args = job
            result: Any = None
            error: BaseException | None = None
            if not future.cancelled():  # else it has not begun, and nobody waits for it any more
                try:
                    result = context.run(fn, *args)
                except StopIteration as stop:  # a future cannot carry it
                    error = RuntimeError(f"{fn!r} raised StopIteration")
                    error.__cause__ = stop
                except BaseException as raised:  # noqa: BLE001 - the thread's edge: the caller gets it
                    error = raised
            with self._lock:
                self._unfinished -= 1
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                pass  # the loop is closed, and with it whoever waited
            del job, future, context, fn, args, result, error  # an idle thread keeps nothing alive


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


if TYPE_CHECKING:
    _clock: type[Clock] = SystemClock
    _ids: type[Ids] = SystemIds
    _threads: type[Threads] = SystemThreads
