"""What pieces of ownloop cost without a network: bytes to events, and events to readers.

Finer than the cases with a provider, so a change of the decoder, the builder or the hub shows here first.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence

import orjson

from ownloop.backends.wires.chat_decoder import ChatDecoder
from ownloop.core.cursor import Cursor
from ownloop.core.events import Delta, Draft, Fact, Limits, RunStarted, SessionStarted, TurnStarted
from ownloop.core.ports import SessionInfo
from ownloop.core.turn import TurnBuilder
from ownloop.runtime.hub import Hub
from ownloop.runtime.system import SystemClock
from ownloop.store.memory import MemoryStore

ROUNDS = 5
DELTAS = 1000


def best_cpu_s(work: Callable[[], object]) -> float:
    """Return the least CPU time of some rounds: what the work costs when nothing disturbs it."""
    costs: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        costs.append(time.process_time() - began)
    return min(costs)


def row(name: str, cost_s: float, base_s: float, base: str) -> None:
    print(f"  {name:<48} {cost_s / DELTAS * 1e6:6.1f} µs/delta   {cost_s / base_s:5.1f} × {base}")


def reads() -> list[bytes]:
    """Return one network read for each of many text deltas, in the shape that servers send."""
    frames: list[bytes] = []
    for n in range(DELTAS):
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": f" word{n}"}, "finish_reason": None}],
        }
        frames.append(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [*frames, b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n"]


def bare_decode(reads: Sequence[bytes]) -> str:
    """The least that reads this stream: split, parse, append."""
    pieces: list[str] = []
    for read in reads:
        for line in read.split(b"\n\n"):
            if line.startswith(b"data: {"):
                delta = orjson.loads(line[6:])["choices"][0]["delta"]
                if content := delta.get("content"):
                    pieces.append(content)
    return "".join(pieces)


def our_decode(reads: Sequence[bytes]) -> None:
    decoder = ChatDecoder({}, provider="bench")
    builder = TurnBuilder(1, lambda: "call_1")
    for read in reads:
        builder.feed(decoder.feed(read))
    builder.feed(decoder.close())
    builder.end(1)


async def fan_out(stream: Sequence[bytes], readers: int) -> None:
    """Decode a stream and show it to readers, each of which encodes what it gets, as a server would."""
    store = MemoryStore()
    await store.open()
    opening = TurnStarted(1, 1, "b", "b", "b")
    facts = [Draft(None, SessionStarted("bench", "")), Draft("r", RunStarted(Limits(), "b")), Draft("r", opening)]
    await store.create(SessionInfo("s", "bench", "", "local"), facts, at_ms=0)
    hub = Hub(store, SystemClock())
    decoder = ChatDecoder({}, provider="bench")
    builder = TurnBuilder(3, lambda: "call_1")
    with hub.writing("s", 2):
        hub.facts("s", [Fact(3, 0, 1, "r", opening)])
        hub.open_stream("s", builder)
        tasks = [asyncio.create_task(_read(hub)) for _ in range(readers)]
        await asyncio.sleep(0.01)
        for read in stream:
            events = builder.feed(decoder.feed(read))
            if events:
                hub.live("s", events)
                await asyncio.sleep(0)
        for seen in await asyncio.gather(*tasks):
            assert seen == DELTAS, seen
    await store.aclose()


async def _read(hub: Hub) -> int:
    seen = 0
    async with hub.subscribe("s", Cursor(3)) as frames:
        while seen < DELTAS:
            for frame in await frames.batch():
                seen += isinstance(frame.event, Delta)
                _ = frame.encoded
    return seen


def main() -> None:
    stream = reads()
    decode_s = 0.0
    for name, given in (("all in one read", [b"".join(stream)]), ("one read per delta", stream)):
        base_s = best_cpu_s(lambda given=given: bare_decode(given))
        decode_s = best_cpu_s(lambda given=given: our_decode(given))
        row(f"bytes to blocks and live events, {name}", decode_s, base_s, "split + orjson")
    for readers in (0, 1, 10):
        cost_s = best_cpu_s(lambda readers=readers: asyncio.run(fan_out(stream, readers)))
        row(f"the same, and shown to {readers} readers", cost_s, decode_s, "decoding alone")
