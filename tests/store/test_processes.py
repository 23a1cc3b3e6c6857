"""Several real processes on one file: killed in the middle, in each other's way, dead with a lease."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from pathlib import Path

import pytest

from ownloop.errors import FencedError, StoreInUseError
from tests.store.scenes import note, opened, own, start

ROOT = Path(__file__).parents[2]


async def process(scene: str, path: Path, name: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.store.writer", scene, str(path), name, cwd=ROOT, stdout=PIPE, stderr=PIPE
    )


async def killed(child: Process) -> list[str]:
    """Kill it, and return the lines that it had still said."""
    child.send_signal(signal.SIGKILL)
    out, _ = await child.communicate()
    # A line that the kill cut off was never said.
    return out.decode().rpartition("\n")[0].splitlines()


@pytest.mark.slow
async def test_kill_9_in_the_middle_of_writes_loses_nothing_acknowledged(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await start(store, "shared")
    heads: dict[str, int] = defaultdict(int)
    keys: set[str] = set()
    for name in ("p1", "p2", "p3"):
        child = await process("append_for_ever", path, name)
        assert child.stdout is not None
        said = [(await child.stdout.readline()).decode() for _ in range(150)]
        for line in said + await killed(child):
            match line.split():
                case ["append", session_id, head]:
                    heads[session_id] = max(heads[session_id], int(head))
                case ["post", key]:
                    keys.add(key)
                case words:
                    raise AssertionError(words)
    assert len(heads) == 12
    async with opened(path) as store:
        for session_id, head in heads.items():
            facts = await store.read(session_id, limit=100_000)
            assert [fact.seq for fact in facts] == list(range(1, len(facts) + 1))
            # At most the one append that was in flight may stand beyond what was acknowledged.
            assert head <= len(facts) <= head + 1
            assert len(facts) == (await store.session(session_id)).head_seq
        lease = await own(store, "shared")
        rows = [row.item.idem_key for row in await store.inbox(lease)]
        assert len(rows) == len(set(rows))
        assert keys <= set(rows)
        # The dead processes' sessions are there to be taken over, at once.
        assert sorted(await store.runnable(now_ms=0, limit=1000)) == sorted(heads)


@pytest.mark.slow
async def test_processes_on_one_file_never_meet_a_lock(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await start(store, "shared")
    children = [await process("hammer", path, f"p{n}") for n in range(3)]
    results = await asyncio.gather(*(child.communicate() for child in children))
    assert [(out.decode(), err.decode()) for out, err in results] == [(f"done p{n}\n", "") for n in range(3)]
    async with opened(path) as store:
        rows = await store.inbox(await own(store, "shared"))
        assert len(rows) == 3 * 8 * 10


async def test_processes_that_open_a_new_store_at_once_all_get_it(tmp_path: Path):
    async def open_and_start(n: int) -> None:
        async with opened(tmp_path / "store.db") as store:
            await start(store, f"s{n}")

    await asyncio.gather(*map(open_and_start, range(8)))
    async with opened(tmp_path / "store.db") as store:
        for n in range(8):
            assert (await store.session(f"s{n}")).head_seq == 1


async def test_an_owner_is_safe_while_its_process_lives_and_taken_over_at_once_when_killed(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await start(store, "shared")
        child = await process("hold", path, "other")
        assert child.stdout is not None
        try:
            assert (await child.stdout.readline()).decode() == f"owned {child.pid}\n"
            with pytest.raises(StoreInUseError, match=str(child.pid)) as caught:
                await own(store, "shared")
            assert caught.value.pid == child.pid
            assert await store.claim("w", now_ms=10**15) is None
        finally:
            await killed(child)
        lease = await own(store, "shared")
        assert (lease.epoch, lease.takeovers) == (2, 1)
        # The dead worker owns nothing any more; the next one to register clears it away.
        await store.heartbeat("w2", pid=1)
        left = sorted(file.name for file in path.with_name("store.db.workers").iterdir())
        assert left == ["opening", "w.lock", "w2.lock"]


async def test_two_stores_see_each_others_owners_and_writes(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(path) as one, opened(path) as two:
        await start(one, "s")
        lease = await own(one, "s", "w1")
        with pytest.raises(StoreInUseError):
            await own(two, "s", "w2")
        with pytest.raises(StoreInUseError, match="must be unique|ids"):
            await two.heartbeat("w1", pid=2)
        await one.retire("w1")
        newer = await own(two, "s", "w2")
        with pytest.raises(FencedError):
            await note(one, lease, 1)
        assert await note(two, newer, 1) == 2
        assert len(await one.read("s")) == 2
