"""A process that writes into a store until it is done or killed; it prints each write once it was acknowledged."""

import asyncio
import os
import sys
from pathlib import Path

from tests.store.scenes import message, note, opened, own, start


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def append_for_ever(path: Path, name: str) -> None:
    """Append to sessions of its own and post to the shared one, several at a time, until killed."""
    async with opened(path) as store:

        async def write(session_id: str) -> None:
            await start(store, session_id)
            lease = await own(store, session_id, name)
            head = 1
            while True:
                head = await note(store, lease, head, f"{head + 1}")
                say("append", session_id, head)
                await store.post("shared", message("hi", f"{session_id}-{head}"))
                say("post", f"{session_id}-{head}")

        await asyncio.gather(*(write(f"{name}-{n}") for n in range(4)))


async def hammer(path: Path, name: str) -> None:
    """Open, write a little and close, again and again, beside others who do the same."""
    for n in range(8):
        async with opened(path, fast=True) as store:
            session_id = f"{name}-{n}"
            await start(store, session_id)
            lease = await own(store, session_id, session_id)
            head = 1
            for _ in range(10):
                head = await note(store, lease, head)
                await store.post("shared", message("hi", f"{session_id}-{head}"))
                await store.read(session_id)
            await store.retire(session_id)
    say("done", name)


async def hold(path: Path, name: str) -> None:
    """Own the shared session until killed."""
    async with opened(path) as store:
        await store.heartbeat(name, pid=os.getpid())
        await store.claim(name, "shared", now_ms=1)
        say("owned", os.getpid())
        await asyncio.Event().wait()


if __name__ == "__main__":
    scenes = {"append_for_ever": append_for_ever, "hammer": hammer, "hold": hold}
    asyncio.run(scenes[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]))
