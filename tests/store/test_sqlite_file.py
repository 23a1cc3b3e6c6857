"""The file: who may read it, what else may stand at its path, and what happens when it is full or damaged."""

import asyncio
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ownloop.core.ports import Filter, Page
from ownloop.errors import ConfigError, StoreCorruptError, StoreError, StoreFullError, StoreNewerError
from ownloop.runtime.system import SystemClock
from ownloop.store.schema import APPLICATION_ID, VERSION
from ownloop.store.sqlite import SQLiteStore
from ownloop.testing.virtual_time import InlineThreads, World, run_virtual
from tests.store.scenes import GatedThreads, message, note, opened, own, start


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_file_log_and_folder_belong_to_their_user_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        async with opened(tmp_path / "data" / "own loop?" / "store.db") as store:
            await start(store, "s")
            await own(store, "s")
            files = {path.name: mode(path) for path in store.path.parent.iterdir() if path.is_file()}
            assert files == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
            assert mode(store.path.parent) == mode(store.path.with_name("store.db.workers")) == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize(("fast", "level"), [(False, 2), (True, 1)])
async def test_each_commit_is_synced_unless_fast(tmp_path: Path, fast: bool, level: int):
    async with opened(tmp_path / "store.db", fast=fast) as store:
        assert store._db is not None
        assert store._db.execute("PRAGMA synchronous").fetchone()[0] == level
        assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


async def test_a_folder_is_no_store(tmp_path: Path):
    with pytest.raises(ConfigError, match="is a folder"):
        async with opened(tmp_path):
            pass


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/sub/store\.db.*Not a directory"):
        async with opened(tmp_path / "file" / "sub" / "store.db"):
            pass


@pytest.fixture
def as_somebody() -> Iterator[None]:
    """Root may write everywhere, so it becomes somebody who may not."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


async def test_a_file_that_may_not_be_written_is_named(as_somebody: None):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        path.touch(mode=0o400)
        with pytest.raises(ConfigError, match="Permission denied"):
            async with opened(path):
                pass


async def test_an_empty_file_becomes_a_store(tmp_path: Path):
    (tmp_path / "store.db").touch()
    async with opened(tmp_path / "store.db") as store:
        await start(store, "s")


async def test_what_is_no_database_is_left_alone(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 1000)
    with pytest.raises(StoreCorruptError, match=r"notes\.txt.*no SQLite database"):
        async with opened(path):
            pass
    assert path.read_text() == "my notes\n" * 1000


async def test_another_programs_database_is_left_alone(tmp_path: Path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program's"):
        async with opened(path):
            pass
    assert path.read_bytes() == before


async def with_schema(path: Path, schema: int, min_reader: int) -> None:
    async with opened(path) as store:
        await start(store, "s")
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {schema}")
    db.execute("UPDATE meta SET schema = ?, min_reader = ?", (schema, min_reader))
    db.commit()
    db.close()


async def test_a_newer_store_is_left_alone(tmp_path: Path):
    path = tmp_path / "store.db"
    await with_schema(path, VERSION + 2, VERSION + 1)
    before = path.read_bytes()
    with pytest.raises(StoreNewerError, match="upgrade ownloop"):
        async with opened(path):
            pass
    assert path.read_bytes() == before


async def test_a_newer_store_that_allows_old_readers_is_used(tmp_path: Path):
    path = tmp_path / "store.db"
    await with_schema(path, VERSION + 2, VERSION)
    async with opened(path) as store:
        assert len(await store.read("s")) == 1
        assert store._db is not None
        assert store._db.execute("PRAGMA user_version").fetchone()[0] == VERSION + 2


async def test_the_header_says_whose_file_it_is(tmp_path: Path):
    async with opened(tmp_path / "store.db"):
        pass
    assert int.from_bytes((tmp_path / "store.db").read_bytes()[68:72]) == APPLICATION_ID


async def test_a_damaged_page_is_reported_with_the_file(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await start(store, "s")
        lease = await own(store, "s")
        head = 1
        for _ in range(40):
            head = await note(store, lease, head, "x" * 2000)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(24, size // 4096):  # behind the schema
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    async with opened(path) as store:
        with pytest.raises(StoreCorruptError, match=r"store\.db.*is damaged.*backup"):
            await store.read("s")


async def test_a_full_disk_loses_nothing_and_the_store_works_on(tmp_path: Path):
    async with opened(tmp_path / "store.db") as store:
        await start(store, "s")
        lease = await own(store, "s")
        await store.post("s", message("kept"))
        [row] = await store.inbox(lease)
        assert store._db is not None
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
        head = 1
        full: StoreFullError | None = None
        while full is None:
            try:
                head = await note(store, lease, head, "x" * 3000)
            except StoreFullError as error:
                full = error
        assert "free some space" in full.message
        assert [fact.seq for fact in await store.read("s")] == list(range(1, head + 1))
        assert [row.item for row in await store.inbox(lease)] == [row.item]
        store._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
        assert await note(store, lease, head, "x" * 3000) == head + 1


async def test_a_store_that_is_not_open_says_so(tmp_path: Path):
    async with opened(tmp_path / "store.db") as store:
        pass
    with pytest.raises(StoreError, match="is not open"):
        await store.session("s")


@pytest.mark.parametrize("last", ["read", "write"])
async def test_aclose_waits_for_reads_and_writes_that_nobody_awaits_any_more(tmp_path: Path, last: str):
    threads = GatedThreads()
    store = SQLiteStore(tmp_path / "store.db", clock=SystemClock(), threads=threads)
    opening = asyncio.create_task(store.open())
    await threads.let_one_run()
    await opening
    callers = [asyncio.create_task(store.sessions(Filter(), Page())), asyncio.create_task(start(store, "s"))]
    read, write = [await threads.gates.get() for _ in callers]
    for caller in callers:
        caller.cancel()
    given_up = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    given_up.cancel()  # the next aclose goes on with it
    closing = asyncio.create_task(store.aclose())
    for gate in (write, read) if last == "read" else (read, write):
        for _ in range(10):  # enough for whatever is ready to go on
            await asyncio.sleep(0)
        assert threads.gates.empty()  # nothing asks for the connection to be closed yet
        gate.set()
    await threads.let_one_run()
    await closing
    assert threads.runs == 4


def test_threads_may_be_simulated(tmp_path: Path):
    async def scene(world: World) -> int:
        assert isinstance(world.threads, InlineThreads)
        store = SQLiteStore(tmp_path / "store.db", clock=world.clock, threads=world.threads)
        await store.open()
        await start(store, "s")
        head = await note(store, await own(store, "s"), 1)
        await store.aclose()
        return head

    assert run_virtual(scene) == 2
