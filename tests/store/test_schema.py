"""The SQL: its versions, and that every statement is sound, used and cheap."""

import re
import sqlite3
from pathlib import Path

import pytest

import ownloop.store
from ownloop.store.schema import VERSION, migration
from ownloop.store.statements import sql_file, statements

PACKAGE = Path(ownloop.store.__file__).parent
LISTS = {"list_sessions", "list_requests", "list_workers"}
"""Walk an index or a table in order until the page is full."""


def schema_of(db: sqlite3.Connection) -> list[tuple[str, str, str]]:
    rows = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return [(type, name, re.sub(r"\s+", " ", re.sub(r"--.*", "", sql or ""))) for type, name, sql in rows]


@pytest.fixture
def db():
    connection = sqlite3.connect(":memory:")
    connection.executescript(sql_file("schema.sql"))
    yield connection
    connection.close()


def test_migrations_from_zero_give_the_current_schema(db: sqlite3.Connection):
    migrated = sqlite3.connect(":memory:")
    for number in range(1, VERSION + 1):
        migrated.executescript(migration(number))
    assert schema_of(migrated) == schema_of(db)
    migrated.close()


def test_the_version_is_the_number_of_the_last_migration():
    numbers = sorted(int(path.stem) for path in (PACKAGE / "sql" / "migrations").glob("*.sql"))
    assert numbers == list(range(1, VERSION + 1))


def test_every_statement_is_used_and_every_used_one_exists():
    source = "\n".join(path.read_text() for path in PACKAGE.glob("*.py"))
    words = set(re.findall(r'"(\w+)"', source))
    assert set(statements()) - words == set()
    called = set(re.findall(r'(?:execute|one)\(\s*db,\s*"(\w+)"', source)) | set(
        re.findall(r'statements\(\)\["(\w+)"', source)
    )
    assert called - set(statements()) == set()


@pytest.mark.parametrize("name", sorted(statements()))
def test_a_statement_reads_no_table_from_end_to_end(db: sqlite3.Connection, name: str):
    sql = statements()[name]
    values = [None] * sql.count("?") if "?" in sql else dict.fromkeys(re.findall(r":(\w+)", sql))
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    # An index that holds only the rows in question is no scan of the table.
    scans = [step for step in plan if step.startswith("SCAN") and "INDEX sessions_by_owner" not in step]
    assert scans == [] or name in LISTS, plan
