"""Every store keeps every promise of the port."""

from pathlib import Path

import pytest

from ownloop.core.events import FACTS
from ownloop.core.inbox import Cancel, InboxItem
from ownloop.runtime.system import SystemClock, SystemThreads
from ownloop.store.memory import MemoryStore
from ownloop.store.sqlite import SQLiteStore
from ownloop.testing.store_conformance import EVERY_KIND, Case, store_conformance
from ownloop.testing.virtual_time import VirtualLoop
from tests.store.scenes import start


@pytest.mark.parametrize("case", store_conformance(), ids=str)
async def test_memory(case: Case):
    await case(MemoryStore)


@pytest.mark.parametrize("case", store_conformance(), ids=str)
async def test_sqlite(case: Case, tmp_path: Path):
    threads = SystemThreads()
    await threads.open()
    try:
        await case(lambda: SQLiteStore(tmp_path / "store.db", clock=SystemClock(), threads=threads))
    finally:
        await threads.aclose()


async def test_many_posts_do_not_push_a_session_back_in_the_queue():
    store = MemoryStore()
    await store.open()
    await start(store, "s")
    for at_ms in (10, 5, 20):
        await store.post("s", InboxItem(Cancel(), at_ms))
    assert (await store.session("s")).runnable_at_ms == 5
    await store.aclose()


def test_the_cases_know_every_kind_of_fact():
    assert {body.kind for body in EVERY_KIND} == set(FACTS)


def test_the_memory_store_runs_on_virtual_time():
    loop = VirtualLoop()
    try:
        for case in store_conformance():
            loop.run_until_complete(case(MemoryStore))
    finally:
        loop.close()
