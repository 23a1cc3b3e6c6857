import asyncio
from typing import Any, cast

import pytest

from ownloop.backends.scripted import (
    ScriptedBackend,
    call,
    calls,
    fail,
    finish,
    gate,
    hang,
    say,
    think,
    using,
    wait,
)
from ownloop.core.backend import Finish, ModelRequest, ModelSettings, Part, PartDelta, PartEnd, PartStart, UsageSeen
from ownloop.core.messages import Message, TextBlock, text_of
from ownloop.core.usage import Usage
from ownloop.errors import BadRequestError, OverloadedError, StreamInterruptedError
from ownloop.testing.virtual_time import World, run_virtual


def ask(responses: int = 0, text: str = "Hi", session_id: str = "s") -> ModelRequest:
    history = [Message("user", (TextBlock(text),))]
    for n in range(responses):
        history += [Message("assistant", (TextBlock(f"r{n}"),)), Message("user", (TextBlock("next"),))]
    return ModelRequest("", history, (), ModelSettings(), session_id=session_id)


async def play(backend: ScriptedBackend, request: ModelRequest | None = None) -> list[Part]:
    return [part for batch in [b async for b in backend.start(request or ask())] for part in batch]


async def text(backend: ScriptedBackend, request: ModelRequest | None = None) -> str:
    return "".join(part.text for part in await play(backend, request) if isinstance(part, PartDelta))


async def test_a_turn_streams_as_a_provider_would() -> None:
    turn = think("hm") + say("Hello", chunk=3) + call("ping", {"n": 1}, id="p1", chunk=99) + using(5, 2, cache_read=1)
    assert await play(ScriptedBackend([turn])) == [
        PartStart(0, "thinking"),
        PartDelta(0, "hm"),
        PartEnd(0),
        PartStart(1, "text"),
        PartDelta(1, "Hel"),
        PartDelta(1, "lo"),
        PartEnd(1),
        PartStart(2, "tool_call", "ping", "p1"),
        PartDelta(2, '{"n":1}'),
        PartEnd(2),
        UsageSeen(Usage(input=5, output=2, cache_read=1)),
        Finish("tool_use"),
    ]


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (say("a"), Finish("end_turn")),
        (calls(call("a"), call("b")), Finish("tool_use")),
        (say("a") + finish("max_tokens"), Finish("max_tokens")),
        (call("a") + finish("other", raw="content_filter"), Finish("other", "content_filter")),
    ],
)
async def test_the_stop_reason_follows_from_the_turn_unless_it_is_said(turn: Any, expected: Finish) -> None:
    assert (await play(ScriptedBackend([turn])))[-1] == expected


async def test_the_place_in_the_script_follows_from_the_conversation_alone() -> None:
    script = [say("one"), say("two"), say("three")]
    backend = ScriptedBackend(script)
    for place, expected in ((2, "three"), (0, "one"), (1, "two"), (1, "two")):
        assert await text(backend, ask(place)) == expected
        assert await text(ScriptedBackend(script), ask(place)) == expected, "a new process goes on at the same place"


async def test_an_entry_may_answer_the_request_and_so_may_the_whole_script() -> None:
    def echo(request: ModelRequest) -> Any:
        return say(text_of(request.messages[-1].blocks).upper())

    assert await text(ScriptedBackend([echo]), ask(text="hello")) == "HELLO"
    assert await text(ScriptedBackend(echo), ask(text="hello")) == "HELLO"


async def test_an_entry_may_hold_one_turn_for_each_attempt() -> None:
    backend = ScriptedBackend([[fail(OverloadedError("busy")), say("yes")]])
    for session in ("a", "b"):
        with pytest.raises(OverloadedError):
            await play(backend, ask(session_id=session))
    assert [await text(backend, ask(session_id="a")) for _ in range(2)] == ["yes", "yes"]


async def test_a_fault_after_some_deltas_leaves_its_block_open() -> None:
    backend = ScriptedBackend([say("Hello", chunk=2) + fail()])
    seen: list[Part] = []

    async def read() -> None:
        async for batch in backend.start(ask()):
            seen.extend(batch)

    with pytest.raises(StreamInterruptedError):
        await read()
    assert [part.text for part in seen if isinstance(part, PartDelta)] == ["He", "ll", "o"]
    assert not any(isinstance(part, PartEnd) for part in seen)


async def test_a_script_that_is_over_says_so() -> None:
    with pytest.raises(BadRequestError, match="has 1 turns, and the conversation asks for turn 2"):
        await play(ScriptedBackend([say("a")]), ask(1))


async def test_a_gate_holds_the_response_until_the_test_opens_it() -> None:
    opened = asyncio.Event()
    stream = cast("Any", ScriptedBackend([say("a") + gate(opened) + say("b")]).start(ask()))
    assert await anext(stream) == [PartStart(0, "text")]
    assert await anext(stream) == [PartDelta(0, "a")]
    more = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not more.done()
    opened.set()
    assert await more == [PartEnd(0), PartStart(2, "text")]
    await stream.aclose()


def test_waits_pass_on_the_clock_that_was_handed_in() -> None:
    async def scene(world: World) -> int:
        began = world.clock.now_ms()
        await play(ScriptedBackend([say("a") + wait(86_400_000) + say("b")], clock=world.clock))
        return world.clock.now_ms() - began

    assert run_virtual(scene) == 86_400_000


async def test_a_hanging_response_ends_with_its_cancellation_and_is_counted() -> None:
    backend = ScriptedBackend([say("a") + hang()])
    task = asyncio.create_task(play(backend))
    while not backend.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.closed == 1


async def test_a_reader_that_stops_at_the_finish_has_left_nothing() -> None:
    backend = ScriptedBackend([say("a")])
    stream = cast("Any", backend.start(ask()))
    async for batch in stream:
        if isinstance(batch[-1], Finish):
            break
    await stream.aclose()
    assert backend.closed == 0


async def test_requests_are_kept_for_asserts() -> None:
    backend = ScriptedBackend([say("a"), say("b")])
    await play(backend, ask(0))
    await play(backend, ask(1))
    assert [len(request.messages) for request in backend.requests] == [1, 3]


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk is 0"):
        ScriptedBackend([], chunk=0)
