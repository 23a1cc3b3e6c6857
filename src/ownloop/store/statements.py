"""The SQL of the stores, read from `sql/` by name. Imported by the modules of `store` only.

Invariant: no SQL text stands in Python, except for transaction control and pragmas.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from sqlite3 import Connection, Cursor, Row
from typing import Any

from ownloop.errors import InvalidRequestError

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)


@cache
def statements() -> Mapping[str, str]:
    """Return every named statement of `sql/queries.sql`."""
    _, *parts = _NAME.split(sql_file("queries.sql"))
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))


def sql_file(name: str) -> str:
    """Return the text of one file below `sql/`."""
    return files("ownloop.store").joinpath("sql", name).read_text(encoding="utf-8")


def execute(db: Connection, name: str, **values: Any) -> Cursor:
    """Run a named statement. Raises InvalidRequestError for a value that no database holds."""
    with _storable():
        return db.execute(statements()[name], values)


def execute_many(db: Connection, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a named statement once for each row. Raises as `execute` does."""
    with _storable():
        db.executemany(statements()[name], rows)


@contextmanager
def _storable() -> Generator[None]:
    try:
        yield
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequestError(
            f"an id, text or number of this call cannot be stored ({error}); "
            "expected text without lone surrogates, and numbers of at most 64 bits"
        ) from error


def one(db: Connection, name: str, **values: Any) -> Row | None:
    """Return the first row of a named statement."""
    return execute(db, name, **values).fetchone()
