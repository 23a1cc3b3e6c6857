"""Group commit: one transaction for those who wait together, and a result for each of them alone."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator

import pytest

from ownloop.errors import StaleError, StoreError, StoreFullError
from ownloop.store.driver import connect
from ownloop.store.group import GroupCommit
from tests.store.scenes import GatedThreads


class Scene:
    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.threads = GatedThreads()
        self.group = GroupCommit(db, self.threads, "the store")

    def put(self, x: int, error: Exception | None = None) -> asyncio.Task[int]:
        def write(db: sqlite3.Connection) -> int:
            db.execute("INSERT INTO t VALUES (?)", (x,))
            if error is not None:
                raise error
            return x

        return asyncio.create_task(self.group.run(write))

    def rows(self) -> list[int]:
        return [x for (x,) in self.db.execute("SELECT x FROM t ORDER BY rowid")]


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    db = connect(":memory:")
    db.execute("CREATE TABLE t (x UNIQUE)")
    scene = Scene(db)
    yield scene
    await scene.group.aclose()
    db.close()


async def test_writes_that_come_during_a_commit_share_the_next(scene: Scene):
    first = scene.put(1)
    gate = await scene.threads.gates.get()
    others = [scene.put(x) for x in (2, 3, 4)]
    await asyncio.sleep(0)
    gate.set()
    assert await first == 1
    await scene.threads.let_one_run()
    assert await asyncio.gather(*others) == [2, 3, 4]
    assert (scene.threads.runs, scene.rows()) == (2, [1, 2, 3, 4])


async def test_a_failing_write_undoes_only_its_own(scene: Scene):
    writes = [scene.put(1), scene.put(2, StaleError()), scene.put(1), scene.put(3)]
    await scene.threads.let_one_run()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["int", "StaleError", "StoreError", "int"]
    assert scene.rows() == [1, 3]


async def test_a_commit_that_fails_fails_all_and_writes_nothing(scene: Scene):
    def no_more_space(db: sqlite3.Connection) -> None:
        # What SQLite does by itself on a full disk: the whole transaction goes.
        db.execute("ROLLBACK")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    writes = [scene.put(1), asyncio.create_task(scene.group.run(no_more_space)), scene.put(2)]
    await scene.threads.let_one_run()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [StoreFullError] * 3
    assert scene.rows() == []
    again = scene.put(3)
    await scene.threads.let_one_run()
    assert (await again, scene.rows()) == (3, [3])


async def test_a_transaction_that_cannot_be_committed_is_rolled_back(scene: Scene):
    scene.db.execute("PRAGMA foreign_keys = ON")
    scene.db.execute("CREATE TABLE u (x REFERENCES t (x) DEFERRABLE INITIALLY DEFERRED)")

    def point_at_nothing(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO u VALUES (99)")  # found out at COMMIT, which leaves the transaction open

    writes = [scene.put(1), asyncio.create_task(scene.group.run(point_at_nothing))]
    await scene.threads.let_one_run()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [StoreError] * 2
    assert (scene.rows(), scene.db.in_transaction) == ([], False)


async def test_a_caller_cancelled_while_it_waits_writes_nothing(scene: Scene):
    first = scene.put(1)
    gate = await scene.threads.gates.get()
    second, third = scene.put(2), scene.put(3)
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await scene.threads.let_one_run()
    assert (await first, await third, scene.rows()) == (1, 3, [1, 3])


async def test_a_caller_cancelled_in_mid_commit_harms_nobody(scene: Scene):
    first, second = scene.put(1), scene.put(2)
    gate = await scene.threads.gates.get()
    first.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await second == 2
    assert first.cancelled()
    assert scene.rows() == [1, 2]


async def test_aclose_waits_for_every_write(scene: Scene):
    writes = [scene.put(1)]
    gate = await scene.threads.gates.get()
    writes.append(scene.put(2))
    await asyncio.sleep(0)
    closing = asyncio.create_task(scene.group.aclose())
    await asyncio.sleep(0)
    gate.set()
    await scene.threads.let_one_run()
    await closing
    assert [write.done() for write in writes] == [True, True]


async def test_the_end_of_the_flusher_ends_its_callers(scene: Scene):
    write = scene.put(1)
    await scene.threads.gates.get()
    assert scene.group._flusher is not None
    scene.group._flusher.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    again = scene.put(2)
    await scene.threads.let_one_run()
    assert await again == 2
