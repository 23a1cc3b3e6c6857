"""`make bench`: what a delta, a turn and an import cost, in CPU time, beside a bare baseline in the same run.

Machines are noisy: only the ratios are worth comparing. Never run in CI.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from ownloop.agent import Agent
from ownloop.backends.scripted import ScriptedBackend, call, say
from ownloop.backends.wires.chat_decoder import ChatDecoder
from ownloop.core.cursor import Cursor
from ownloop.core.events import Delta, Draft, Fact, Limits, RunStarted, SessionStarted, TurnStarted
from ownloop.core.ports import SessionInfo
from ownloop.core.turn import TurnBuilder
from ownloop.runtime.hub import Hub
from ownloop.runtime.system import SystemClock, SystemThreads
from ownloop.store.memory import MemoryStore
from ownloop.store.sqlite import SQLiteStore
from ownloop.tools.decorator import tool

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


def row(name: str, cost: str, ratio: float, baseline: str) -> None:
    print(f"  {name:<52} {cost:>12}   {ratio:6.1f} x {baseline}")


def stream() -> list[bytes]:
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


def bare_decode(reads: list[bytes]) -> str:
    """The least that reads this stream: split, parse, append."""
    pieces: list[str] = []
    for read in reads:
        for line in read.split(b"\n\n"):
            if line.startswith(b"data: {"):
                delta = orjson.loads(line[6:])["choices"][0]["delta"]
                if content := delta.get("content"):
                    pieces.append(content)
    return "".join(pieces)


def our_decode(reads: list[bytes]) -> None:
    decoder = ChatDecoder({}, provider="bench")
    builder = TurnBuilder(1, lambda: "call_1")
    for read in reads:
        builder.feed(decoder.feed(read))
    builder.feed(decoder.close())
    builder.end(1)


def decoding() -> None:
    print(f"decoding, {DELTAS} deltas of the OpenAI wire")
    for name, reads in (("one read per delta", stream()), ("all in one read", [b"".join(stream())])):
        bare = best_cpu_s(lambda reads=reads: bare_decode(reads))
        ours = best_cpu_s(lambda reads=reads: our_decode(reads))
        row(f"bytes to blocks and live events, {name}", f"{ours / DELTAS * 1e6:.1f} µs", ours / bare, "split + orjson")


def fan_out() -> None:
    print(f"fan-out, {DELTAS} deltas, each an event of its own")
    bare = best_cpu_s(lambda: our_decode(stream()))
    for readers in (0, 1, 10):
        cost = best_cpu_s(lambda readers=readers: asyncio.run(_fan_out(readers)))
        row(f"decode and show, {readers} readers", f"{cost / DELTAS * 1e6:.1f} µs", cost / bare, "decode alone")


async def _fan_out(readers: int) -> None:
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
        for read in stream():
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


@tool
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def bare_turns(turns: int) -> None:
    """The least loop: a list, a scripted answer, a function."""

    async def loop() -> None:
        messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
        for n in range(turns):
            messages.append({"role": "assistant", "tool_calls": [{"id": str(n), "arguments": json.dumps({"n": n})}]})
            messages.append({"role": "tool", "content": await look.fn(n)})

    asyncio.run(loop())


def turns() -> None:
    print("turns, one tool call each, scripted model (the baseline keeps a list and nothing else)")
    base = best_cpu_s(lambda: bare_turns(200)) / 200
    with tempfile.TemporaryDirectory() as folder:
        for name, store in (("memory", None), ("SQLite, synchronous=FULL", Path(folder))):
            per_turn: dict[int, float] = {}
            for count in (20, 200):
                cost = best_cpu_s(lambda count=count, store=store: asyncio.run(_turns(count, store)))
                per_turn[count] = cost / count
                row(f"{name}, {count} turns", f"{cost / count * 1e3:.2f} ms", cost / count / base, "a bare loop")
            row(f"{name}, a turn at 200 against one at 20", "", per_turn[200] / per_turn[20], "(1.0 = linear)")


async def _turns(count: int, folder: Path | None) -> None:
    script = [call("look", {"n": n}) for n in range(count)]
    agent = Agent("bench", model=ScriptedBackend([*script, say("done")]), tools=[look], max_turns=count + 1)
    store = None
    if folder is not None:
        store = SQLiteStore(folder / f"{time.monotonic_ns()}.db", clock=SystemClock(), threads=SystemThreads())
    result = await agent.run("go", store=store)
    assert result.outcome == "completed", result


def imports() -> None:
    print("imports, a cold process")
    bare = _import_cpu_s("pass")
    for code in ("import ownloop", "from ownloop import Agent, tool"):
        cost = _import_cpu_s(code)
        row(code, f"{cost:.2f} s", cost / bare, "python itself")


def _import_cpu_s(code: str) -> float:
    program = f"import os\n{code}\nt = os.times()\nprint(t.user + t.system)"
    costs = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(ROUNDS)]
    return max(min(costs), 0.001)


def main() -> None:
    for part in (decoding, fan_out, turns, imports):
        part()
        print()


main()
