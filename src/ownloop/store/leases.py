"""Who may write: workers, and which session each of them owns. Each function runs inside the caller's transaction.

Invariant: every claim raises the epoch, and no claim takes a session from a worker that lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from sqlite3 import Connection, Row
from typing import TypeAlias

from ownloop.core.ports import Lease
from ownloop.errors import StoreError, StoreInUseError
from ownloop.store.journal import live_session
from ownloop.store.statements import execute, one

Holds: TypeAlias = Callable[[str], bool]
"""Whether a worker's process is there; asked only about workers that have a row."""


def heartbeat(db: Connection, worker_id: str, boot_id: str, pid: int, address: str, heartbeat_ms: int) -> None:
    """Register a worker, or renew its row."""
    if execute(db, "beat", worker_id=worker_id, address=address, heartbeat_ms=heartbeat_ms).rowcount == 1:
        return
    # A worker of this name that had no row died without retiring.
    execute(db, "free_sessions_of", worker_id=worker_id, takeover=1)
    execute(
        db,
        "put_worker",
        worker_id=worker_id,
        boot_id=boot_id,
        pid=pid,
        address=address,
        heartbeat_ms=heartbeat_ms,
    )


def retire(db: Connection, worker_id: str) -> None:
    """Forget a worker that leaves in order: its sessions go to the next worker, and no takeover is counted."""
    execute(db, "free_sessions_of", worker_id=worker_id, takeover=0)
    execute(db, "drop_worker", worker_id=worker_id)


def forget(db: Connection, worker_id: str) -> None:
    """Drop the row of a worker that died; its sessions stay its own until they are claimed."""
    execute(db, "drop_worker", worker_id=worker_id)


def bury_the_dead(db: Connection, holds: Holds) -> Sequence[str]:
    """Forget the dead workers that own nothing any more; return their ids."""
    workers = [row["id"] for row in execute(db, "list_workers")]
    dead = [id_ for id_ in workers if not holds(id_) and one(db, "owns_a_session", worker_id=id_) is None]
    for worker_id in dead:
        forget(db, worker_id)
    return dead


def claim(db: Connection, worker_id: str, session_id: str | None, now_ms: int, holds: Holds) -> Lease | None:
    """Take a session to own.

    Without a name, a session that this very worker owns is not taken: its own segment is most likely at work. A worker
    that has lost a segment claims by name.
    """
    if one(db, "get_worker", worker_id=worker_id) is None:
        raise StoreError(
            f"worker {worker_id!r} is not registered: nobody could see that it lives; call heartbeat first"
        )
    if session_id is None:
        found = runnable(db, now_ms, 1, holds)
        if not found:
            return None
        session_id = found[0]
    row = live_session(db, session_id)
    owner: str | None = row["owner"]
    takeover = owner not in (None, worker_id)
    if owner is not None and takeover and _lives(db, owner, holds):
        pid = _pid(db, owner)
        raise StoreInUseError(f"session {session_id!r} is owned by worker {owner!r} (pid {pid}), which lives", pid=pid)
    execute(db, "own_session", session_id=session_id, worker_id=worker_id, takeover=takeover)
    return Lease(
        session_id,
        worker_id,
        row["epoch"] + 1,
        row["head_seq"],
        takeovers=row["takeovers"] + takeover,
        closing=bool(row["closing"]),
    )


def runnable(db: Connection, now_ms: int, limit: int, holds: Holds) -> Sequence[str]:
    """Return the sessions that are due and free, and those whose owner is dead, the longest waiting first."""
    rows: list[Row] = execute(db, "list_due", now_ms=now_ms, limit=limit).fetchall()
    for owner in _dead_owners(db, holds):
        rows += execute(db, "list_owned", worker_id=owner, limit=limit).fetchall()
    rows.sort(key=lambda row: row["runnable_at_ms"] or 0)
    return [row["id"] for row in rows[:limit]]


def _dead_owners(db: Connection, holds: Holds) -> Iterable[str]:
    owners = [row["owner"] for row in execute(db, "list_owners")]
    return [owner for owner in owners if not _lives(db, owner, holds)]


def _lives(db: Connection, worker_id: str, holds: Holds) -> bool:
    return one(db, "get_worker", worker_id=worker_id) is not None and holds(worker_id)


def _pid(db: Connection, worker_id: str) -> int | None:
    row = one(db, "get_worker", worker_id=worker_id)
    return None if row is None else row["pid"]
