"""The default store: one SQLite file in WAL, written in groups, shared by the processes of one machine.

Every call of SQLite runs in a worker thread, with one hop: writes together on one connection (`group`), each read on a
connection that is free. Which workers live is seen by `lockfiles`. Invariant: what a method returned is committed, and
unless `fast` also synced to the disk.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection, Error
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ownloop.core.ports import Clock, Store, Threads
from ownloop.errors import ConfigError, StoreError, StoreFullError
from ownloop.store import leases
from ownloop.store.base import SqlStore
from ownloop.store.driver import connect, snapshot, translated
from ownloop.store.group import GroupCommit
from ownloop.store.lockfiles import LockFiles
from ownloop.store.schema import bring_up_to_date

P = ParamSpec("P")
T = TypeVar("T")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_WAL_LIMIT_BYTES = 64 * 2**20
"""A checkpoint cuts the log back to this; one long transaction, or a slow reader, may have let it grow."""


class SQLiteStore(SqlStore):
    """Keeps sessions in the file `path` (mode 0600, its folder 0700 where it was missing), locks in `path.workers`.

    `fast` leaves the sync of each commit to the operating system: killing the process still loses nothing, but a power
    cut may lose the last transactions (never parts of one).

    `open` checks the file's header and schema, not every page, which would take a minute for a large file; a damaged
    page met later raises StoreCorruptError. It also raises ConfigError for a path that cannot be a store's, and
    StoreNewerError.

    A caller cancelled during a write does not know whether it was committed, see `group`.
    """

    def __init__(self, path: str | Path, *, clock: Clock, threads: Threads, fast: bool = False) -> None:
        self.path = Path(path).absolute()  # connections are opened later on too, and a program may change its folder
        self._clock = clock
        self._threads = threads
        self._fast = fast
        self._place = f"the store {str(path)!r}"
        self._locks = LockFiles(self.path.with_name(self.path.name + ".workers"))
        self._open_for_calls = False
        self._file: os.stat_result | None = None
        self._db: Connection | None = None
        self._group: GroupCommit | None = None
        self._readers: list[Connection] = []
        """Connections that no read uses; taken and given back in worker threads."""
        self._reads: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        if self._db is None:
            self._db = await self._threads.run(self._open)
            self._group = GroupCommit(self._db, self._threads, self._place)
        self._open_for_calls = True

    async def aclose(self) -> None:
        self._open_for_calls = False
        if self._group is not None:
            await self._group.aclose()
        if self._reads:
            await asyncio.wait(self._reads)
        if self._db is not None:
            await self._threads.run(self._close, self._db)
        self._db = self._group = None

    async def heartbeat(self, worker_id: str, *, pid: int, address: str = "") -> None:
        """Say that this worker lives. Raises StoreInUseError if another living process has its id."""
        heartbeat_ms = int(self._clock.monotonic_s() * 1000)
        await self._write(self._beat, worker_id, pid, address, heartbeat_ms)

    async def retire(self, worker_id: str) -> None:
        await self._write(leases.retire, worker_id)
        self._locks.let_go(worker_id, remove=True)

    async def kill(self, worker_id: str) -> None:
        self._locks.let_go(worker_id, remove=False)

    async def _write(
        self, operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._group is None or not self._open_for_calls:
            raise self._not_open()
        return await self._group.run(_bound(self._in_its_place, operation, *args, **kwargs))

    async def _read(
        self, operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if not self._open_for_calls:
            raise self._not_open()
        # A task of the store's own, so that `aclose` can wait for a read whose caller has gone.
        read = asyncio.create_task(self._threads.run(self._snapshot, _bound(operation, *args, **kwargs)))
        self._reads.add(read)
        read.add_done_callback(self._reads.discard)
        return await asyncio.shield(read)

    def _holds(self, worker_id: str) -> bool:
        return self._locks.is_held(worker_id)

    def _not_open(self) -> StoreError:
        return StoreError(f"{self._place} is not open; use it between `open` and `aclose`")

    # In worker threads:

    def _in_its_place(
        self, db: Connection, operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Write, unless nobody would ever read it: SQLite itself goes on in a file that was removed."""
        try:
            is_there = self._file is not None and os.path.samestat(self.path.stat(), self._file)
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise StoreError(
                f"{self._place} was removed or replaced while it was open: nothing of this call was written; "
                "stop this process, put the file back if it is needed, and start again"
            )
        return operation(db, *args, **kwargs)

    def _beat(self, db: Connection, worker_id: str, pid: int, address: str, heartbeat_ms: int) -> None:
        if not self._locks.mine(worker_id):
            self._locks.take(worker_id)
            leases.forget(db, worker_id)  # a row of this name is of a process that died
            for dead in leases.bury_the_dead(db, self._holds):
                self._locks.remove(dead)
        leases.heartbeat(db, worker_id, _boot_id(), pid, address, heartbeat_ms)

    def _snapshot(self, operation: Callable[[Connection], Any]) -> Any:
        try:
            db = self._readers.pop()
        except IndexError:
            db = self._connect()
            db.execute("PRAGMA query_only = ON")
        try:
            return snapshot(db, operation, self._place)
        finally:
            self._readers.append(db)

    def _open(self) -> Connection:
        self._make_files()
        with self._locks.opening():
            db = self._connect()
            try:
                bring_up_to_date(db, self._place)
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
                db.execute(f"PRAGMA synchronous = {'NORMAL' if self._fast else 'FULL'}")
                # On macOS a sync reaches the disk only so; elsewhere it has no effect.
                db.execute(f"PRAGMA fullfsync = {'OFF' if self._fast else 'ON'}")
                self._file = self.path.stat()
            except Error as error:
                db.close()
                raise translated(error, self._place) from error
            except BaseException:
                db.close()
                raise
        return db

    def _make_files(self) -> None:
        """Create the file before SQLite does, so that it and the log beside it are never readable to others."""
        try:
            if self.path.is_dir():
                raise ConfigError(f"{self._place} is a folder; give the path of a file in it")
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(f"{self._place} cannot be created: the disk is full") from error
            raise ConfigError(
                f"{self._place} cannot be opened for writing ({error.strerror}); check its rights, or use another"
            ) from error

    def _connect(self) -> Connection:
        try:
            return connect(str(self.path))
        except Error as error:
            raise translated(error, self._place) from error

    def _close(self, db: Connection) -> None:
        self._locks.let_all_go()
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        db.close()


def _bound(
    operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
) -> Callable[[Connection], T]:
    def run(db: Connection) -> T:
        return operation(db, *args, **kwargs)

    return run


def _boot_id() -> str:
    """Return what tells one boot of this machine from the next; "" where the system does not say."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


if TYPE_CHECKING:

    def _fits(store: SQLiteStore) -> Store:  # pyright: ignore[reportUnusedFunction]
        return store
