"""The SQL of the stores, read from `sql/` by name. Imported by the modules of `store` only.

Invariant: no SQL text stands in Python, except for transaction control and pragmas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from sqlite3 import Connection, Cursor, Row
from typing import Any

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
    """Run a named statement."""
    return db.execute(statements()[name], values)


def one(db: Connection, name: str, **values: Any) -> Row | None:
    """Return the first row of a named statement."""
    return execute(db, name, **values).fetchone()
