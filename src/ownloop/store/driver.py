"""SQLite's errors as ours, and one transaction around many writes. Imported by the modules of `store` only.

Invariant: no `sqlite3.Error` leaves the stores.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Any, TypeAlias

from ownloop.errors import StoreCorruptError, StoreError, StoreFullError, StoreInUseError

Write: TypeAlias = Callable[[Connection], Any]
Outcome: TypeAlias = tuple[Any, Exception | None]
"""A write's result, or why nothing of it was written."""

BUSY_TIMEOUT_S = 60.0
"""How long a writer waits for another process's transaction. They last milliseconds; after a minute it is frozen."""

_PRIMARY = 0xFF
"""The lower byte of an extended result code is the primary one (sqlite.org/rescode.html)."""


def translated(error: Exception, place: str) -> Exception:
    """Return the error that a store raises for this one; what is no error of the driver stays as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    # The index of the log is a file too, and the first thing that finds no room when a store on a full disk is opened.
    match sqlite3.SQLITE_FULL if code == sqlite3.SQLITE_IOERR_SHMSIZE else code & _PRIMARY:
        case sqlite3.SQLITE_FULL:
            ours: StoreError = StoreFullError(
                f"{place} is full: nothing of this call was written; free some space, then try again"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            ours = StoreCorruptError(
                f"{place} is damaged, or no SQLite database ({name}): nothing of this call was written; stop its "
                "processes, keep a copy, and restore a backup, or save what can be read with `sqlite3 FILE .recover`"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            ours = StoreInUseError(
                f"{place} was locked by another process for {BUSY_TIMEOUT_S:.0f} s ({name}); find it, it may be frozen"
            )
        case _:
            ours = StoreError(f"{place} failed ({name}: {error}); nothing of this call was written")
    ours.__cause__ = error
    return ours


def commit(db: Connection, writes: Sequence[Write], place: str) -> Sequence[Outcome]:
    """Run all writes in one transaction, each within its own savepoint: one that fails undoes only its own work.

    Raises a StoreError if the transaction as a whole failed; then nothing of any write is left.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [_within_savepoint(db, write, place) for write in writes]
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise translated(error, place) from error
    return outcomes


def _within_savepoint(db: Connection, write: Write, place: str) -> Outcome:
    db.execute("SAVEPOINT write")
    try:
        result = write(db)
    except Exception as error:
        if not db.in_transaction:
            # Some failures (a full disk, an I/O error) make SQLite undo the whole transaction by itself.
            raise
        # The edge of one caller's work: its failure is its own outcome.
        db.execute("ROLLBACK TO write")
        db.execute("RELEASE write")
        return None, translated(error, place)
    db.execute("RELEASE write")
    return result, None


def snapshot(db: Connection, read: Callable[[Connection], Any], place: str) -> Any:
    """Run a read that may take several statements on one state of the database."""
    try:
        db.execute("BEGIN")
        try:
            return read(db)
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise translated(error, place) from error


def connect(database: str) -> Connection:
    """Open a connection that any thread may use, one at a time; transactions are opened by name only."""
    db = sqlite3.connect(database, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    return db
