"""`make soak`: many sessions for many minutes; memory, files and tasks must come back to where they were.

`python -m bench.soak [minutes]`. The other half of `make soak` are the machine's random walks, a hundred times as many.
"""

import asyncio
import gc
import random
import sys
import tempfile
import time
from pathlib import Path

from bench.worker import resident_mb
from ownloop.agent import Agent
from ownloop.backends.scripted import ScriptedBackend, Turn, call, say
from ownloop.core.backend import ModelRequest
from ownloop.core.ports import Filter
from ownloop.runtime.host import open_host
from ownloop.runtime.system import SystemClock, SystemThreads
from ownloop.service import Service
from ownloop.store.sqlite import SQLiteStore
from ownloop.tools.decorator import tool

AT_ONCE = 32
WARM_UP = 320
"""Sessions after which caches, threads and connections are there."""


@tool(approval="ask")
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
def look(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


def answer(request: ModelRequest) -> Turn:
    said = sum(message.role == "assistant" for message in request.messages)
    return [call("look", {"order": said}), call("refund", {"order": said}), say("done " * 50)][said % 3]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


async def one_session(service: Service, dice: random.Random) -> None:
    session_id = (await service.create_session()).session_id
    for _ in range(3):
        accepted = await service.send(session_id, "go on")
        if dice.random() < 0.1:
            await service.cancel(session_id=session_id)
        result = await service.wait(accepted)
        while result.state == "interrupted":
            for asked in await service.requests(Filter(session_id=session_id, state="open")):
                await service.answer(session_id, asked.request_id, {"approved": dice.random() < 0.8})
            result = await service.wait(accepted)
    await service.delete(session_id)


async def soak(minutes: float) -> int:
    dice = random.Random(1)
    model = ScriptedBackend(answer)
    agent = Agent("soak", model=model, tools=[look, refund])
    with tempfile.TemporaryDirectory() as folder:
        # A connection is kept for each thread that ever read at the same time: so few are all there after the warm-up.
        threads = SystemThreads(max_workers=4)
        store = SQLiteStore(Path(folder) / "soak.db", clock=SystemClock(), threads=threads, fast=True)
        async with open_host(store, [agent]) as host:
            service = Service(host)
            until = time.monotonic() + minutes * 60
            sessions, now, first = 0, (0.0, 0, 0), (0.0, 0, 0)
            while time.monotonic() < until:
                await asyncio.gather(*(one_session(service, dice) for _ in range(AT_ONCE)))
                sessions += AT_ONCE
                model.requests.clear()  # it remembers every request it was ever asked
                gc.collect()
                now = (resident_mb(), open_files(), len(asyncio.all_tasks()))
                if sessions <= WARM_UP:
                    first = now
                print(f"{sessions:>7} sessions   {now[0]:7.1f} MB   {now[1]:4} files   {now[2]:4} tasks", flush=True)
        grown = now[0] - first[0]
        print(f"grown by {grown:.1f} MB, {now[1] - first[1]} files, {now[2] - first[2]} tasks")
        return 1 if grown > 50 or now[1] > first[1] + 5 or now[2] > first[2] + 5 else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(soak(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)))
