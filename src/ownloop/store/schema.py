"""The schema's version: what a store's file must be before it is used. Imported by the modules of `store` only.

Invariant: a file that is newer, or not ours, is not changed.
"""

from __future__ import annotations

from sqlite3 import Connection

from ownloop.errors import ConfigError, StoreNewerError
from ownloop.store.statements import execute, sql_file

APPLICATION_ID = 0x6F776C70
"""Says in the file's header whose it is (sqlite.org/fileformat.html, offset 68): "owlp"."""
VERSION = 1
"""The number of the last file in sql/migrations."""
MIN_READER = 1
"""The oldest VERSION whose code may use what this one writes. Raised only by a change that old code would break."""


def bring_up_to_date(db: Connection, place: str) -> None:
    """Create the schema, or migrate it, in one transaction. The caller keeps other processes from doing it too.

    Raises:
        StoreNewerError: a newer ownloop wrote it, in a way that this one must not touch.
        ConfigError: it is another program's database.
    """
    found = _pragma(db, "user_version")
    ours = _pragma(db, "application_id") == APPLICATION_ID
    if not ours:
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if found or tables:
            raise ConfigError(f"{place} is another program's SQLite database; give the path of a new file")
        _apply(db, sql_file("schema.sql"))
    elif found > VERSION:
        (min_reader,) = db.execute("SELECT min_reader FROM meta").fetchone()
        if min_reader > VERSION:
            raise StoreNewerError(
                f"{place} has schema {found}, and this ownloop knows {VERSION}: upgrade ownloop, or use another file"
            )
    elif found < VERSION:
        steps = "\n".join(migration(number) for number in range(found + 1, VERSION + 1))
        _apply(db, steps)


def migration(number: int) -> str:
    """Return the SQL that leads from schema `number` - 1 to `number`."""
    return sql_file(f"migrations/{number:04}.sql")


def _apply(db: Connection, script: str) -> None:
    version = f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {VERSION};"
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{script}\n{version}")
        execute(db, "mark_schema", schema=VERSION, min_reader=MIN_READER)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _pragma(db: Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return value
