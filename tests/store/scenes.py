"""What the tests of the SQLite store share, in this process and in those they start."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ownloop.core.events import Draft, Note, SessionStarted
from ownloop.core.inbox import InboxItem, Input
from ownloop.core.messages import TextBlock
from ownloop.core.ports import Lease, SessionInfo, Store
from ownloop.runtime.system import SystemClock, SystemThreads
from ownloop.store.sqlite import SQLiteStore


class GatedThreads:
    """Runs functions inline, but each only when the test lets it."""

    def __init__(self) -> None:
        self.gates: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.runs = 0

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        gate = asyncio.Event()
        self.gates.put_nowait(gate)
        await gate.wait()
        self.runs += 1
        return fn(*args)

    async def let_one_run(self) -> None:
        (await self.gates.get()).set()


@asynccontextmanager
async def opened(path: Path, *, fast: bool = False) -> AsyncGenerator[SQLiteStore]:
    threads = SystemThreads()
    await threads.open()
    store = SQLiteStore(path, clock=SystemClock(), threads=threads, fast=fast)
    try:
        await store.open()
        yield store
    finally:
        await store.aclose()
        await threads.aclose()


async def start(store: Store, session_id: str) -> None:
    info = SessionInfo(session_id, "a", "d", "ann")
    await store.create(info, [Draft(None, SessionStarted("a", "d"))], at_ms=1)


async def own(store: Store, session_id: str, worker_id: str = "w") -> Lease:
    await store.heartbeat(worker_id, pid=1)
    lease = await store.claim(worker_id, session_id, now_ms=1)
    assert lease is not None
    return lease


async def note(store: Store, lease: Lease, after_seq: int, data: object = "x") -> int:
    return (await store.append(lease, after_seq, [Draft(None, Note("info", data))], at_ms=2))[-1].seq


def message(text: str, key: str | None = None) -> InboxItem:
    return InboxItem(Input("i", "r", "queue", (TextBlock(text),)), 5, "ann", key)
