"""Which workers of a store live: each holds an flock on a file of its own, and the kernel lets it go when it dies.

Imported by `sqlite` only. Invariant: files are tested and taken only while the caller holds the store's write lock, so
no test is ever in the way of a worker that registers.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote
from weakref import WeakSet

from ownloop.errors import StoreInUseError


class LockFiles:
    """The lock files in one folder, and those of them that this store holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        self._opening: int | None = None
        _of_this_process().add(self)

    @contextmanager
    def opening(self) -> Generator[None]:
        """Keep other processes from opening or upgrading the same store at the same moment."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        handle = self._opening = _open(self._folder / "opening")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            self._opening = None
            os.close(handle)

    def mine(self, worker_id: str) -> bool:
        return worker_id in self._held

    def take(self, worker_id: str) -> None:
        """Hold this worker's file from now on. Raises StoreInUseError if a living process does."""
        path = self._path(worker_id)
        while worker_id not in self._held:
            handle = _open(path)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise StoreInUseError(f"worker {worker_id!r} lives in another process; ids must be unique") from None
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                self._held[worker_id] = handle
            else:
                os.close(handle)  # removed between our open and our lock: nobody would see that we hold it

    def let_go(self, worker_id: str, *, remove: bool) -> None:
        """Stop holding a worker's file; a dead worker's stays, as a crash would leave it."""
        handle = self._held.pop(worker_id, None)
        if handle is not None:
            if remove:
                self._path(worker_id).unlink(missing_ok=True)
            os.close(handle)

    def let_all_go(self) -> None:
        for worker_id in list(self._held):
            self.let_go(worker_id, remove=False)

    def forget(self) -> None:
        """Close what a fork brought along, in the child: a lock lasts until its last copy is closed."""
        handles = [*self._held.values(), *([] if self._opening is None else [self._opening])]
        self._held.clear()
        self._opening = None
        for handle in handles:
            os.close(handle)

    def is_held(self, worker_id: str) -> bool:
        """Return whether any process holds this worker's file."""
        if worker_id in self._held:
            return True
        try:
            handle = os.open(self._path(worker_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def remove(self, worker_id: str) -> None:
        """Remove the file that a dead worker left."""
        self._path(worker_id).unlink(missing_ok=True)

    def _path(self, worker_id: str) -> Path:
        return self._folder / f"{quote(worker_id, safe='')}.lock"


@cache
def _of_this_process() -> WeakSet[LockFiles]:
    """Return all lock files of this process, which a child by fork (multiprocessing, in a tool) does not keep."""
    found: WeakSet[LockFiles] = WeakSet()

    def let_go() -> None:
        for files in found:
            files.forget()

    os.register_at_fork(after_in_child=let_go)
    return found


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
