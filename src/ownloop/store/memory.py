"""A store in memory, for `agent.run` in code and for tests: the statements of the SQLite store, run inline."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from sqlite3 import Connection
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ownloop.core.ports import Store
from ownloop.errors import StoreError
from ownloop.store import leases
from ownloop.store.base import SqlStore
from ownloop.store.driver import commit, connect, snapshot
from ownloop.store.schema import bring_up_to_date

P = ParamSpec("P")
T = TypeVar("T")

_PLACE = "the store in memory"


class MemoryStore(SqlStore):
    """Keeps sessions as long as the object lives; `aclose` and `open` again change nothing.

    For one event loop at a time. Uses no thread and no clock, so a virtual clock drives it as well as a real one.
    """

    def __init__(self) -> None:
        self._db: Connection | None = None
        self._open = False

    async def open(self) -> None:
        if self._db is None:
            self._db = connect(":memory:")
            weakref.finalize(self, self._db.close)
            bring_up_to_date(self._db, _PLACE)
        self._open = True

    async def aclose(self) -> None:
        self._open = False

    async def heartbeat(self, worker_id: str, *, pid: int, address: str = "") -> None:
        await self._write(leases.heartbeat, worker_id, "", pid, address, 0)

    async def retire(self, worker_id: str) -> None:
        await self._write(leases.retire, worker_id)

    async def kill(self, worker_id: str) -> None:
        await self._write(leases.forget, worker_id)

    async def _write(
        self, operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        [(result, error)] = commit(self._opened(), [lambda db: operation(db, *args, **kwargs)], _PLACE)
        if error is not None:
            raise error
        return result

    async def _read(
        self, operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return snapshot(self._opened(), lambda db: operation(db, *args, **kwargs), _PLACE)

    def _holds(self, worker_id: str) -> bool:  # noqa: ARG002 - one process: whoever has a row lives
        return True

    def _opened(self) -> Connection:
        if self._db is None or not self._open:
            raise StoreError("the store is not open; use it between `open` and `aclose`")
        return self._db


if TYPE_CHECKING:
    _fits: Store = MemoryStore()
