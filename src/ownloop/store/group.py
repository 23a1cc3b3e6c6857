"""Group commit: writes of concurrent callers share one transaction, one thread hop and one fsync.

While one group commits, the next gathers, so nobody waits for company. Invariant: a caller has its result only after
the COMMIT that holds its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from sqlite3 import Connection
from typing import Any

from ownloop.core.ports import Threads
from ownloop.store.driver import Write, commit


@dataclass(frozen=True, slots=True)
class _Waiting:
    write: Write
    done: asyncio.Future[Any]


class GroupCommit:
    """Commits writes on one connection, in order of arrival.

    A caller that is cancelled while its write still waits has written nothing; once its group has begun, the write runs
    to its end without it, and may be committed. The others of its group notice nothing. A cancelled caller that needs
    to know reads the store, as after a crash.
    """

    def __init__(self, db: Connection, threads: Threads, place: str) -> None:
        self._db = db
        self._threads = threads
        self._place = place
        self._waiting: list[_Waiting] = []
        self._flusher: asyncio.Task[None] | None = None

    async def run(self, write: Callable[[Connection], Any]) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(write, done))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush(), name="ownloop-group-commit")
        return await done

    async def aclose(self) -> None:
        """Return when nothing waits and nothing runs."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher])

    async def _flush(self) -> None:
        try:
            while self._waiting:
                group = [waiting for waiting in self._waiting if not waiting.done.done()]
                self._waiting = []
                if group:
                    await self._settle(group)
        finally:
            self._flusher = None
            for waiting in self._waiting:  # only if this very task was cancelled: its loop is going down
                waiting.done.cancel()

    async def _settle(self, group: list[_Waiting]) -> None:
        writes = [waiting.write for waiting in group]
        try:
            outcomes = await self._threads.run(partial(commit, self._db, writes, self._place))
        except asyncio.CancelledError:
            for waiting in group:
                waiting.done.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the task's edge: the failure of the commit is that of all its callers
            outcomes = [(None, error)] * len(group)
        for waiting, (result, error) in zip(group, outcomes, strict=True):
            if waiting.done.done():
                continue
            if error is None:
                waiting.done.set_result(result)
            else:
                waiting.done.set_exception(error)
