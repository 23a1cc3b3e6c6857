"""The hub: whatever a reader does, and wherever the session is written, it sees every event once and in order."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.backend import Part, PartDelta, PartEnd, PartStart
from ownloop.core.codec import loads
from ownloop.core.cursor import Cursor, parse_cursor
from ownloop.core.events import (
    BlockEnded,
    BlockStarted,
    Delta,
    Draft,
    Event,
    Fact,
    FactBody,
    InputAccepted,
    InputWithdrawn,
    Limits,
    LiveEvent,
    Note,
    Progress,
    ResponseEnded,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
    units,
)
from ownloop.core.messages import TextBlock
from ownloop.core.ports import Lease, SessionInfo, Store, Tail
from ownloop.core.turn import TurnBuilder, abandoned, missing
from ownloop.errors import CursorAheadError, CursorError, NotFoundError, SlowReaderError, StoreFullError
from ownloop.projections import agent
from ownloop.runtime import hub as hub_module
from ownloop.runtime.bus_local import LocalBus
from ownloop.runtime.hub import MAX_BYTES, MAX_EVENTS, Hub
from ownloop.runtime.place import Frame
from ownloop.store.memory import MemoryStore
from ownloop.testing.virtual_time import VirtualClock, World, run_virtual

SESSION = "sess_1"


class SlowStore(MemoryStore):
    """Takes its time before and after it does something, so that everything else happens in between."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def _pause(self) -> None:
        for _ in range(self._world.random.randrange(3)):
            await settle(self._world, self._world.random.randrange(3))

    async def append(self, *args: Any, **kwargs: Any) -> Sequence[Fact]:
        await self._pause()
        facts = await super().append(*args, **kwargs)
        await self._pause()
        return facts

    async def read(self, session_id: str, after: int = 0, limit: int = 1000) -> Sequence[Fact]:
        await self._pause()
        facts = await super().read(session_id, after, limit)
        await self._pause()
        return facts

    async def tails(self, session_id: str) -> Sequence[Tail]:
        await self._pause()
        tails = await super().tails(session_id)
        await self._pause()
        return tails


class Owner:
    """Writes one session as the loop does: commits, then shows."""

    def __init__(self, world: World, store: MemoryStore, hub: Hub) -> None:
        self.clock = world.clock
        self.ids = world.ids
        self.store = store
        self.hub = hub
        self.builders: dict[str, TurnBuilder] = {}
        self.tools: dict[str, int] = {}
        self.told: dict[int, list[LiveEvent]] = {}
        self.lease: Lease | None = None
        self._attempts = 0

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator["Owner"]:
        self.lease = await self.store.claim("worker_1", SESSION, now_ms=self.clock.now_ms())
        assert self.lease is not None
        self.head = self.lease.head_seq
        with self.hub.writing(SESSION, self.head):
            yield self

    async def fact(self, run_id: str | None, *bodies: FactBody) -> Fact:
        assert self.lease is not None
        drafts = [Draft(run_id, body) for body in bodies]
        facts = await self.store.append(self.lease, self.head, drafts, at_ms=self.clock.now_ms())
        self.head = facts[-1].seq
        self.hub.facts(SESSION, facts)
        return facts[-1]

    async def run(self, run_id: str, parent: str | None = None) -> None:
        await self.fact(run_id, RunStarted(Limits(), "m", parent_run_id=parent, depth=0 if parent is None else 1))

    async def turn(self, run_id: str, early: Sequence[Part] = ()) -> TurnBuilder:
        self._attempts += 1
        fact = await self.fact(run_id, TurnStarted(1, self._attempts, "b", "p", "m"))
        builder = self.builders[run_id] = TurnBuilder(fact.seq, lambda: self.ids.new("call"))
        self.told[fact.seq] = builder.feed(early)
        self.hub.open_stream(SESSION, builder)
        return builder

    def say(self, run_id: str, *parts: Part) -> None:
        builder = self.builders[run_id]
        self._show(builder.feed(parts))

    def _show(self, events: Sequence[LiveEvent]) -> None:
        if events:
            self.told.setdefault(events[0].stream, []).extend(events)
        self.hub.live(SESSION, events)

    async def end_turn(self, run_id: str) -> Fact:
        events, body = self.builders.pop(run_id).end(1, "failed")
        self._show(events)
        return await self.fact(run_id, body)

    async def tool(self, run_id: str, call_id: str, attempt: int = 1) -> int:
        fact = await self.fact(run_id, ToolStarted(call_id, attempt, "key", "policy", "", "error"))
        self.tools[call_id] = fact.seq
        return fact.seq

    def progress(self, call_id: str, data: object) -> None:
        self._show([Progress(self.tools[call_id], data)])

    async def end_tool(self, run_id: str, call_id: str) -> None:
        del self.tools[call_id]
        await self.fact(run_id, ToolEnded(call_id, 1, "ok"))

    async def save_tails(self) -> None:
        assert self.lease is not None
        await self.store.save_tail(self.lease, [Tail(b.stream, b.units, b.tail()) for b in self.builders.values()])

    async def take_over(self) -> None:
        """Close what the crashed owner left open, with the text of its tails."""
        tails = {tail.stream: tail for tail in await self.store.tails(SESSION)}
        for run_id, builder in list(self.builders.items()):
            del self.builders[run_id]
            tail = tails.get(builder.stream)
            await self.fact(run_id, abandoned(1, tail.body if tail else None))
        for call_id in list(self.tools):
            await self.fact("run_0", ToolEnded(call_id, 1, "unknown"))
            del self.tools[call_id]


class Reader:
    """A client: it keeps what it got, and comes back with the last cursor it has."""

    def __init__(self, hub: Hub, cursor: str = "0", run_id: str | None = None, replay: bool = False) -> None:
        self.cursor = cursor
        self.frames: list[Frame] = []
        self.error: Exception | None = None
        self.ended = False
        self._run_id = run_id
        self._replay = replay
        self._got: list[Frame] = []
        self._connect(hub)

    def _connect(self, hub: Hub) -> None:
        self._got = []
        self._task = asyncio.create_task(self._read(hub), name="reader")

    async def _read(self, hub: Hub) -> None:
        cursor = parse_cursor(self.cursor)
        try:
            async with hub.subscribe(SESSION, cursor, run_id=self._run_id, replay=self._replay) as frames:
                async for frame in frames:
                    self._got.append(frame)
            self.ended = True
        except Exception as error:  # noqa: BLE001 - a test looks at it
            self.error = error

    async def disconnect(self, lost: int = 0) -> None:
        """Break the connection; the last `lost` frames never arrive."""
        self._task.cancel()
        await asyncio.wait([self._task])
        arrived = self._got[: len(self._got) - lost] if lost else self._got
        self.frames += arrived
        self._got = []
        if arrived:
            self.cursor = arrived[-1].cursor

    async def reconnect(self, hub: Hub, lost: int = 0) -> None:
        await self.disconnect(lost)
        self._connect(hub)

    @property
    def events(self) -> list[Event]:
        return [frame.event for frame in self.frames + self._got]


async def settle(world: World, ms: int = 1) -> None:
    """Let everything that is ready happen; virtual time goes on only after that."""
    await world.clock.sleep_until(world.clock.now_ms() + ms)


async def new_session(store: MemoryStore, clock: VirtualClock) -> None:
    await store.open()
    await store.heartbeat("worker_1", pid=1)
    info = SessionInfo(SESSION, "agent", "digest", "local")
    await store.create(info, [Draft(None, SessionStarted("agent", "digest"))], clock.now_ms())


Scene = Callable[[World, MemoryStore, Hub, Owner], Awaitable[None]]


def play(scene: Scene, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
    async def body(world: World) -> None:
        store = MemoryStore()
        await new_session(store, world.clock)
        hub = Hub(store, world.clock, max_events=max_events, max_bytes=max_bytes)
        await scene(world, store, hub, Owner(world, store, hub))
        await store.aclose()

    run_virtual(body)


def text(number: int, words: str) -> list[Part]:
    return [PartStart(number, "text"), PartDelta(number, words)]


def kinds(events: Iterable[Event]) -> list[str]:
    return [event.body.kind if isinstance(event, Fact) else event.kind for event in events]


def tokens(events: Iterable[Event], stream: int) -> list[object]:
    """Flatten the live events of a stream to its units."""
    out: list[object] = []
    for event in events:
        if isinstance(event, Delta) and event.stream == stream:
            out += [(event.block, char) for char in event.text]
        elif isinstance(event, BlockStarted | BlockEnded) and event.stream == stream:
            out.append(event)
    return out


# --- live -------------------------------------------------------------------------------------------------------------


def test_a_reader_gets_facts_and_live_events_in_order_and_each_with_a_cursor():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        reader = Reader(hub)
        async with owner.writing():
            await settle(world)
            await owner.run("run_0")
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            owner.say("run_0", PartDelta(0, " you"))
            await settle(world)
            await owner.end_turn("run_0")
            await settle(world)
        await reader.disconnect()
        assert [(kind, frame.cursor) for kind, frame in zip(kinds(reader.events), reader.frames, strict=True)] == [
            ("session_started", "1"),
            ("run_started", "2"),
            ("turn_started", "3~3.0"),
            ("block_started", "3~3.1"),
            ("delta", "3~3.6"),
            ("delta", "3~3.10"),
            ("block_ended", "3~3.11"),
            ("response_ended", "4"),
        ]

    play(scene)


def test_what_the_builder_held_before_its_stream_was_opened_is_shown_first():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            reader = Reader(hub, "1")
            await settle(world)
            await owner.turn("run_0", early=text(0, "Hel"))
            owner.say("run_0", PartDelta(0, "lo"))
            await settle(world)
            late = Reader(hub, "1")
            await settle(world)
            await reader.disconnect()
            await late.disconnect()
        assert kinds(reader.events) == ["turn_started", "block_started", "delta", "delta"]
        assert late.events[1:] == [BlockStarted(2, 0, "text"), Delta(2, 0, "Hello")]

    play(scene)


def test_a_reader_that_joins_between_the_feeding_of_a_builder_and_its_showing_sees_nothing_twice():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            builder = await owner.turn("run_0")
            events = builder.feed([*text(0, "Hello"), PartEnd(0)])
            reader = Reader(hub, "2")
            await settle(world)  # a hook takes its time
            hub.live(SESSION, events)
            await settle(world)
            await reader.disconnect()
        assert reader.events == events

    play(scene)


def test_a_stream_that_cannot_be_caught_up_with_is_shown_when_it_closes():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            fact = await owner.fact("run_0", TurnStarted(1, 1, "b", "p", "m"))
            builder = TurnBuilder(fact.seq, lambda: "call")  # never opened here
            hub.live(SESSION, builder.feed(text(0, "Hello")))
            reader = Reader(hub, "2~2.0")
            await settle(world)
            hub.live(SESSION, builder.feed([PartDelta(0, " you")]))
            await settle(world)
            assert reader.events == []
            await owner.fact("run_0", builder.end(1, "failed")[1])
            await settle(world)
            await reader.disconnect()
        assert reader.events[:-1] == [BlockStarted(2, 0, "text"), Delta(2, 0, "Hello you"), BlockEnded(2, 0)]

    play(scene)


def test_an_event_is_encoded_once_for_all_readers():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            readers = [Reader(hub, "1"), Reader(hub, "1")]
            await settle(world)
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            await settle(world)
            for reader in readers:
                await reader.disconnect()
        first, second = (reader.frames for reader in readers)
        assert loads(first[-1].encoded) == {"kind": "delta", "stream": 2, "block": 0, "text": "Hello"}
        assert all(a.encoded is b.encoded for a, b in zip(first, second, strict=True))

    play(scene)


def test_one_batch_of_live_events_wakes_a_reader_once():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.turn("run_0")
            async with hub.subscribe(SESSION, Cursor(2)) as frames:
                waiting = asyncio.create_task(frames.batch())
                await settle(world)
                owner.say("run_0", *text(0, "a"), PartStart(1, "text"), PartDelta(1, "b"), PartDelta(0, "c"))
                assert kinds(frame.event for frame in await waiting) == ["block_started", "delta"] * 2 + ["delta"]

    play(scene)


def test_a_session_that_nobody_writes_or_reads_costs_nothing():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            reader = Reader(hub)
            await settle(world)
        await reader.disconnect()
        assert hub._channels == {}

    play(scene)


def test_a_subscription_ends_after_session_closed():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        reader = Reader(hub)
        async with owner.writing():
            await settle(world)
            await owner.fact(None, SessionClosed("local"))
        late = Reader(hub, "2")
        await settle(world)
        assert reader.ended
        assert late.ended
        assert kinds(reader.events) == ["session_started", "session_closed"]
        assert late.events == []

    play(scene)


@pytest.mark.parametrize("written", [True, False])
def test_the_failure_of_a_segment_is_told_to_the_readers_here(written: bool):
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            reader = Reader(hub)
            await settle(world)
            await owner.run("run_0")
            if written:
                hub.fail(SESSION, StoreFullError())
        if not written:
            await settle(world)
            hub.fail(SESSION, StoreFullError())
        await settle(world)
        assert isinstance(reader.error, StoreFullError)
        assert kinds(reader.events) == ["session_started", "run_started"]

    play(scene)


# --- the writer's mistakes --------------------------------------------------------------------------------------------


def test_facts_with_a_hole_between_them_are_refused():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            with pytest.raises(ValueError, match="fact 3 of session 'sess_1' cannot follow fact 1"):
                hub.facts(SESSION, [Fact(3, 0, 1, None, Note("info", {}))])

    play(scene)


def test_a_session_has_one_writer_and_only_it_may_show_events():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        with pytest.raises(ValueError, match="not written here"):
            hub.live(SESSION, [Delta(1, 0, "x")])
        async with owner.writing():
            with pytest.raises(ValueError, match="written here already"), hub.writing(SESSION, 1):
                pass
            with pytest.raises(ValueError, match="stream 7 of session 'sess_1' is not open"):
                hub.open_stream(SESSION, TurnBuilder(7, lambda: "call"))

    play(scene)


# --- coming back ------------------------------------------------------------------------------------------------------

INTERLEAVED: list[Part] = [
    PartStart(0, "text"),
    PartDelta(0, "I look. "),
    PartStart(1, "tool_call", "find"),
    PartStart(2, "tool_call", "read"),
    PartDelta(1, '{"a":'),
    PartDelta(2, '{"b'),
    PartDelta(1, "1}"),
    PartDelta(2, '":2}'),
    PartEnd(1),
    PartEnd(2),
    PartStart(3, "thinking"),
    PartDelta(3, "hm"),
]


@pytest.mark.parametrize("when", ["while it streams", "after its end", "in another process, while it streams"])
def test_from_every_cursor_the_rest_of_an_interleaved_response_follows(when: str):
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        other = Hub(store, world.clock)
        async with owner.writing():
            whole = Reader(hub, "1")
            await settle(world)
            builder = await owner.turn("run_0")
            for part in INTERLEAVED:
                owner.say("run_0", part)
                await settle(world)
            cursors = [frame.cursor for frame in whole._got]
            await owner.save_tails()
            if when == "after its end":
                await owner.end_turn("run_0")
            away = [Reader(other if "another" in when else hub, cursor) for cursor in cursors]
            await settle(world, 300)
            if when != "after its end":
                await owner.end_turn("run_0")
            await settle(world, 3000)
        await whole.disconnect()
        for number, reader in enumerate(away):
            await reader.disconnect()
            seen = whole.events[: number + 1]
            assert tokens(seen + reader.events, builder.stream) == tokens(whole.events, builder.stream)
            assert kinds(reader.events)[-1] == "response_ended"

    play(scene)


def test_coming_back_inside_a_suffix_goes_on_inside_it():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            builder = await owner.turn("run_0")
            owner.say("run_0", *INTERLEAVED)
            await owner.end_turn("run_0")
            reader = Reader(hub, f"2~{builder.stream}.3")
            await settle(world)
            whole = list(reader._got)
            for kept in range(len(whole)):
                again = Reader(hub, whole[kept].cursor)
                await settle(world)
                await again.disconnect()
                expected = [frame.event for frame in whole]
                assert tokens(expected[: kept + 1] + again.events, 2) == tokens(expected, 2)
            await reader.disconnect()

    play(scene)


def test_history_that_the_cursor_does_not_mark_comes_as_facts_alone():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            await owner.end_turn("run_0")
            reader = Reader(hub)
            await settle(world)
            await reader.disconnect()
        assert kinds(reader.events) == ["session_started", "turn_started", "response_ended"]

    play(scene)


def test_a_cursor_without_marks_still_gets_the_text_of_open_streams():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            builder = await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            await owner.save_tails()
            readers = [Reader(hub, "2"), Reader(Hub(store, world.clock), "2")]
            await settle(world)
            for reader in readers:
                await reader.disconnect()
                assert reader.events == [BlockStarted(builder.stream, 0, "text"), Delta(builder.stream, 0, "Hello")]

    play(scene)


def test_a_stream_that_was_closed_before_the_cursor_is_not_marked_any_more():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            await owner.end_turn("run_0")
            await owner.turn("run_0")
            await owner.fact(None, Note("info", {}))
            await owner.end_turn("run_0")
            reader = Reader(hub, "5~2.3")
            await settle(world)
            await reader.disconnect()
        assert [(kind, f.cursor) for kind, f in zip(kinds(reader.events), reader.frames, strict=True)] == [
            ("response_ended", "6")
        ]

    play(scene)


def test_units_beyond_the_closing_fact_give_an_empty_suffix():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            await owner.end_turn("run_0")
            reader = Reader(hub, "2~2.99")
            await settle(world)
            await reader.disconnect()
        assert kinds(reader.events) == ["response_ended"]

    play(scene)


@pytest.mark.parametrize(
    ("cursor", "error", "words"),
    [
        ("9", CursorAheadError, "the cursor is at fact 9, but session 'sess_1' ends with fact 1"),
        ("1~1.4", CursorError, "the cursor marks stream 1, but that fact opens none"),
    ],
)
def test_a_cursor_that_nobody_here_wrote_is_refused(cursor: str, error: type[Exception], words: str):
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        with pytest.raises(error, match=words):
            async with hub.subscribe(SESSION, parse_cursor(cursor)):
                pass
        assert hub._channels == {}

    play(scene)


def test_an_unknown_session_is_refused():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        with pytest.raises(NotFoundError):
            async with hub.subscribe("sess_2", Cursor()):
                pass

    play(scene)


def test_the_latest_progress_of_a_running_tool_is_shown_again_and_none_of_an_ended_one():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            stream = await owner.tool("run_0", "call_1")
            for percent in (10, 20, 30):
                owner.progress("call_1", percent)
            seen = Reader(hub, f"2~{stream}.3")
            behind = Reader(hub, f"2~{stream}.1")
            await settle(world)
            owner.progress("call_1", 40)
            await settle(world)
            for reader in (seen, behind):
                await reader.disconnect()
            assert seen.events == [Progress(stream, 40)]
            assert behind.events == [Progress(stream, 30), Progress(stream, 40)]
            await owner.end_tool("run_0", "call_1")
            hub.live(SESSION, [Progress(stream, 50)])
            late = Reader(hub, f"2~{stream}.1")
            await settle(world)
            await late.disconnect()
            assert kinds(late.events) == ["tool_ended"]

    play(scene)


def test_a_new_attempt_of_a_call_takes_the_place_of_the_old_one():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            reader = Reader(hub, "1")
            await settle(world)
            await owner.tool("run_0", "call_1")
            await owner.tool("run_0", "call_1", attempt=2)
            owner.progress("call_1", 1)
            await settle(world)
            await reader.disconnect()
        assert [frame.cursor for frame in reader.frames] == ["2~2.0", "3~3.0", "3~3.1"]

    play(scene)


def test_replay_shows_marked_streams_from_their_start_and_says_what_the_client_has_seen():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            live = Reader(hub, "2~2.4", replay=True)
            await settle(world)
            owner.say("run_0", PartDelta(0, "!"))
            await settle(world)
            await live.disconnect()
            await owner.end_turn("run_0")
            later = Reader(hub, "2~2.4", replay=True)
            await settle(world)
            await later.disconnect()
        assert [(f.event, f.seen) for f in live.frames] == [
            (BlockStarted(2, 0, "text"), True),
            (Delta(2, 0, "Hel"), True),
            (Delta(2, 0, "lo"), False),
            (Delta(2, 0, "!"), False),
        ]
        assert [(kind, f.seen) for kind, f in zip(kinds(later.events), later.frames, strict=True)] == [
            ("block_started", True),
            ("delta", True),
            ("delta", False),
            ("block_ended", False),
            ("response_ended", False),
        ]

    play(scene)


def test_a_projection_that_comes_back_with_replay_makes_the_frames_that_it_would_have_made():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            live = Reader(hub, "1")
            await settle(world)
            await owner.turn("run_0")
            for part in INTERLEAVED:
                owner.say("run_0", part)
                await settle(world)
            cursors = [frame.cursor for frame in live._got]
            midway = [Reader(hub, cursor, replay=True) for cursor in cursors]
            await settle(world)
            await owner.end_turn("run_0")
            later = [Reader(hub, cursor, replay=True) for cursor in cursors]
            await settle(world)
        for reader in (live, *midway, *later):
            await reader.disconnect()
        start = agent.AgentState(SESSION)
        whole = spoken(start, live.frames)
        for kept, (one, two) in enumerate(zip(midway, later, strict=True), start=1):
            known = agent.feed(start, live.events[0])[
                0
            ]  # the turn is open: what the session's state says at the cursor
            for again in (one, two):
                assert joined(spoken(start, live.frames[:kept]) + spoken(known, again.frames)) == joined(whole)

    play(scene)


def spoken(state: agent.AgentState, frames: Iterable[Frame]) -> list[agent.AgentFrame]:
    out: list[agent.AgentFrame] = []
    for frame in frames:
        state, spoken = agent.feed(state, frame.event)
        out += [] if frame.seen else spoken
    return out


def joined(frames: Iterable[agent.AgentFrame]) -> list[tuple[str, str, object]]:
    """Cut deltas into characters, so that their slices do not matter."""
    out: list[tuple[str, str, object]] = []
    for name, data in frames:
        message_id = data.get("message_id", "")
        out += [(name, message_id, part) for part in data["delta"]] if "delta" in data else [(name, message_id, data)]
    return out


# --- crash, and other processes ---------------------------------------------------------------------------------------


def test_after_a_crash_the_abandoned_response_closes_the_stream_with_what_its_tail_held():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        stayed = Reader(hub, "1")
        async with owner.writing():
            await settle(world)
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            await owner.save_tails()
            owner.say("run_0", PartDelta(0, " you"))
            await settle(world)
        async with owner.writing():
            await owner.take_over()
            behind = Reader(hub, "2~2.3")
            beyond = Reader(hub, "2~2.10")
            await settle(world)
        for reader in (stayed, behind, beyond):
            await reader.disconnect()
            last = reader.events[-1]
            assert isinstance(last, Fact)
            assert isinstance(last.body, ResponseEnded)
            assert (last.body.status, last.body.blocks) == ("abandoned", (TextBlock("Hello"),))
        assert behind.events[:-1] == [Delta(2, 0, "llo"), BlockEnded(2, 0)]
        assert kinds(beyond.events) == ["response_ended"]
        assert kinds(stayed.events) == ["turn_started", "block_started", "delta", "delta", "response_ended"]

    play(scene)


@pytest.mark.parametrize("with_bus", [True, False])
def test_a_reader_in_another_process_follows_facts_and_tails(with_bus: bool):
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        bus = LocalBus() if with_bus else None
        owner.hub = Hub(store, world.clock, bus)
        reader = Reader(Hub(store, world.clock, bus), "1")
        await settle(world, 1000)
        async with owner.writing():
            await owner.turn("run_0")
            await settle(world, 5 if with_bus else 2001)
            assert kinds(reader.events) == ["turn_started"]
            owner.say("run_0", *text(0, "Hello"))
            await owner.save_tails()
            await settle(world, 2001)
            owner.say("run_0", PartDelta(0, " you"))
            await owner.save_tails()
            await settle(world, 2001)
            await owner.end_turn("run_0")
            await settle(world, 2001)
        await reader.disconnect()
        assert reader.events[1:-1] == [
            BlockStarted(2, 0, "text"),
            Delta(2, 0, "Hello"),
            Delta(2, 0, " you"),
            BlockEnded(2, 0),
        ]
        assert kinds(reader.events)[-1] == "response_ended"

    play(scene)


def test_a_reader_stays_when_the_session_moves_between_processes():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        reader = Reader(hub, "1")
        await settle(world)
        here, there = owner.hub, Hub(store, world.clock)
        for turn in range(4):
            owner.hub = there if turn % 2 else here
            async with owner.writing():
                await owner.turn("run_0")
                owner.say("run_0", *text(0, "Hello"))
                await settle(world, turn * 100)
                await owner.end_turn("run_0")
                await settle(world)
            await settle(world, 3000)
            of_one_turn = ["turn_started", "block_started", "delta", "block_ended", "response_ended"]
            assert kinds(reader.events) == of_one_turn * (turn + 1)
        await reader.disconnect()

    play(scene)


def test_a_reader_that_is_ahead_of_the_channel_waits_for_it():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            assert owner.lease is not None
            facts = await store.append(owner.lease, 1, [Draft(None, Note("info", 1))], at_ms=0)
            ahead = Reader(hub, "2")  # another process has shown fact 2 already
            await settle(world)
            hub.facts(SESSION, facts)
            owner.head = 2
            await settle(world)
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "Hello"))
            await settle(world)
            await ahead.disconnect()
        assert kinds(ahead.events) == ["turn_started", "block_started", "delta"]

    play(scene)


def test_where_something_happens_the_store_is_asked_often_again():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        reader = Reader(Hub(store, world.clock), "1")
        await settle(world, 20_000)
        async with owner.writing():
            await owner.fact(None, Note("info", 1))
            while not reader.events:
                await settle(world, 5)
            for number in range(5):
                await owner.fact(None, Note("info", number))
                await settle(world, 260)
                assert len(reader.events) == number + 2
        await reader.disconnect()

    play(scene)


def test_a_reader_asks_nobody_while_the_session_is_written_here():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        reader = Reader(hub)
        await settle(world, 5000)
        async with owner.writing():
            await owner.run("run_0")
            await settle(world)
            assert [task.get_name() for task in asyncio.all_tasks() if "ownloop" in task.get_name()] == []
        await reader.disconnect()

    play(scene)


def test_an_idle_session_is_asked_for_ever_more_rarely():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        reads = 0
        read = store.read

        async def counted(session_id: str, after: int = 0, limit: int = 1000) -> Sequence[Fact]:
            nonlocal reads
            reads += 1
            return await read(session_id, after, limit)

        store.read = counted
        reader = Reader(hub)
        await settle(world, 60_000)
        await reader.disconnect()
        assert 30 <= reads <= 36

    play(scene)


# --- slow readers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"max_events": 10}, {"max_bytes": 1000}])
def test_a_slow_reader_is_cut_off_and_resumes_by_its_cursor(limits: dict[str, int]):
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.turn("run_0")
            owner.say("run_0", *text(0, "a"))
            async with hub.subscribe(SESSION, Cursor(1)) as frames:
                got = [await anext(frames), await anext(frames)]
                await anext(frames)
                for _ in range(20):
                    owner.say("run_0", PartDelta(0, "x" * 60))
                with pytest.raises(SlowReaderError, match="resume from its last cursor"):
                    await frames.batch()
            again = Reader(hub, got[-1].cursor)
            await settle(world)
            await again.disconnect()
        assert again.events == [Delta(2, 0, "a" + "x" * 1200)]

    play(scene, **limits)


def test_a_reader_that_keeps_up_may_read_any_amount_and_one_event_of_any_size():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            reader = Reader(hub, "1")
            await settle(world)
            await owner.turn("run_0")
            await settle(world)
            owner.say("run_0", *text(0, "x" * 5000))
            await settle(world)
            for _ in range(50):
                owner.say("run_0", PartDelta(0, "y" * 150))
                owner.say("run_0", PartDelta(0, "z" * 150))
                await settle(world)
            await reader.disconnect()
        assert reader.error is None
        assert len(tokens(reader.events, 2)) == 1 + 5000 + 50 * 300

    play(scene, max_events=10, max_bytes=1000)


def test_a_reader_may_take_as_long_as_it_likes_over_history():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.fact(None, *[Note("info", number) for number in range(600)])
            async with hub.subscribe(SESSION, Cursor()) as frames:
                facts = [(await anext(frames)).event for _ in range(3)]
                for number in range(600, 1000):
                    await owner.fact(None, Note("info", number))
                while len(facts) < 1001:
                    facts.append((await anext(frames)).event)
        assert [fact.seq for fact in facts if isinstance(fact, Fact)] == list(range(1, 1002))

    play(scene, max_events=10)


class Slowly:
    """A store each of whose calls takes a while before it and after it."""

    def __init__(self, store: MemoryStore, world: World) -> None:
        self._store = store
        self._world = world

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            await settle(self._world, 2)
            result = await getattr(self._store, name)(*args)
            await settle(self._world, 2)
            return result

        return call


def test_a_read_beside_something_else_ends_when_that_is_done_and_shows_first_what_is_at_hand():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with hub.subscribe(SESSION, Cursor()) as frames, owner.writing():
            await owner.run("run_1")
            done = asyncio.get_running_loop().create_future()
            done.add_done_callback(lambda _: frames.wake())
            assert [frame.event.seq for frame in await frames.batch(done) if isinstance(frame.event, Fact)] == [1, 2]
            batch = asyncio.ensure_future(frames.batch(done))
            await settle(world, 5)
            assert not batch.done()
            done.set_result(None)
            assert await batch == []
            await owner.turn("run_1")
            assert len(await frames.batch(done)) == 1
            assert await frames.batch(done) == []

    play(scene)


@pytest.mark.parametrize("steps", range(12))
def test_a_read_that_is_given_up_loses_nothing(steps: int):
    """Whoever waits for frames beside something else cancels the one and reads again."""

    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.run("run_1")
            await owner.turn("run_1")
            owner.say("run_1", *text(0, "Hello"))
            await owner.save_tails()
        slow = Hub(cast("Store", Slowly(store, world)), world.clock)
        async with slow.subscribe(SESSION, Cursor()) as frames:
            seen: list[Frame] = []
            for _ in range(20):
                batch = asyncio.ensure_future(frames.batch())
                for _ in range(steps):
                    await settle(world, 1)
                batch.cancel()
                await asyncio.wait([batch])
                if not batch.cancelled():
                    seen.extend(batch.result())
            batch = asyncio.ensure_future(frames.batch())
            for _ in range(200):
                await settle(world, 1)
            if batch.done():
                seen.extend(batch.result())
            batch.cancel()
            await asyncio.wait([batch])
        assert [f.event.seq for f in seen if isinstance(f.event, Fact)] == [1, 2, 3]
        assert "".join(f.event.text for f in seen if isinstance(f.event, Delta)) == "Hello"

    play(scene)


# --- one run ----------------------------------------------------------------------------------------------------------


async def two_runs(owner: Owner) -> None:
    await owner.run("run_0")
    await owner.run("run_0a", parent="run_0")
    await owner.turn("run_0a")
    await owner.run("run_1")
    await owner.turn("run_1")
    owner.say("run_0a", *text(0, "inner"))
    owner.say("run_1", *text(0, "other"))
    await owner.end_turn("run_0a")
    await owner.fact("run_0a", RunEnded("completed"))
    await owner.end_turn("run_1")
    await owner.fact("run_0", RunEnded("completed"))
    await owner.fact("run_1", RunEnded("completed"))


OF_RUN_0 = ["run_started", "run_started", "turn_started", "response_ended", "run_ended", "run_ended"]


def test_a_reader_of_one_run_sees_it_with_its_children_and_ends_with_it():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        live = Reader(hub, run_id="run_0")
        elsewhere = Reader(Hub(store, world.clock), run_id="run_0")
        await settle(world)
        async with owner.writing():
            await settle(world)
            await two_runs(owner)
            late = Reader(hub, run_id="run_0")
            await settle(world, 3000)
        assert live.ended
        assert kinds(live.events) == [*OF_RUN_0[:3], "block_started", "delta", "block_ended", *OF_RUN_0[3:]]
        assert elsewhere.ended
        assert kinds(elsewhere.events) == kinds(live.events)
        assert late.ended
        assert kinds(late.events) == OF_RUN_0

    play(scene)


def test_a_reader_of_one_run_comes_back_at_every_cursor():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            live = Reader(hub, run_id="run_0")
            await settle(world)
            await two_runs(owner)
            await settle(world)
            whole = live.events
            for kept, frame in enumerate(live._got, start=1):
                again = Reader(hub, frame.cursor, run_id="run_0")
                await settle(world)
                assert again.ended
                both = whole[:kept] + again.events
                assert [e for e in both if isinstance(e, Fact)] == [e for e in whole if isinstance(e, Fact)]
                assert tokens(both, 4) == (tokens(whole, 4) if kept > 2 else [])

    play(scene)


def test_marks_of_streams_that_are_not_the_runs_own_are_dropped():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            await owner.run("run_0")
            await owner.run("run_1")
            other = await owner.turn("run_1")
            reader = Reader(hub, f"{other.stream}~{other.stream}.0", run_id="run_0")
            await settle(world)
            owner.say("run_1", *text(0, "other"))
            await owner.turn("run_0")
            await settle(world)
            await reader.disconnect()
        assert [frame.cursor for frame in reader.frames] == ["5~5.0"]

    play(scene)


def test_a_reader_of_a_run_that_never_starts_ends_when_its_input_is_withdrawn():
    async def scene(world: World, store: MemoryStore, hub: Hub, owner: Owner) -> None:
        async with owner.writing():
            reader = Reader(hub, run_id="run_0")
            await settle(world)
            await owner.fact("run_0", InputAccepted("input_1", "queue", (TextBlock("hi"),)))
            await owner.fact(None, InputWithdrawn("input_1"))
            await settle(world)
        assert reader.ended
        assert kinds(reader.events) == ["input_accepted", "input_withdrawn"]

    play(scene)


# --- everything at once -----------------------------------------------------------------------------------------------

STEPS = ["turn", "say", "say", "say", "end_turn", "tool", "progress", "end_tool", "note", "tails", "crash", "wait"]
READS = ["drop here", "drop there", "drop here"]
Step = tuple[str, int, int]


def steps() -> st.SearchStrategy[list[Step]]:
    step = st.tuples(st.sampled_from(STEPS + READS), st.integers(0, 2), st.integers(0, 5))
    return st.lists(step, min_size=5, max_size=60)


async def perform(world: World, owner: Owner, step: Step) -> None:
    what, which, size = step
    run_id, call_id = f"run_{which}", f"call_{which}"
    if what == "turn" and run_id not in owner.builders:
        await owner.turn(run_id, early=text(0, "ab"[: size % 3]) if size % 2 else [])
    elif what == "say" and run_id in owner.builders:
        builder = owner.builders[run_id]
        number = size % 3
        if number not in builder._numbers:
            owner.say(run_id, PartStart(number, "text") if number else PartStart(number, "tool_call", "find"))
        elif size == 5 and not builder._blocks[builder._numbers[number]].ended:
            owner.say(run_id, PartEnd(number))
        elif not builder._blocks[builder._numbers[number]].ended:
            owner.say(run_id, PartDelta(number, "abcdef"[: size + 1]))
    elif what == "end_turn" and run_id in owner.builders:
        await owner.end_turn(run_id)
    elif what == "tool" and call_id not in owner.tools:
        await owner.tool(run_id, call_id)
    elif what == "progress" and call_id in owner.tools:
        owner.progress(call_id, size)
    elif what == "end_tool" and call_id in owner.tools:
        await owner.end_tool(run_id, call_id)
    elif what == "note":
        await owner.fact(None, *[Note("info", size)] * (size + 1))
    elif what == "tails":
        await owner.save_tails()
    elif what == "wait":
        await settle(world, size * 100)


async def drop(reader: Reader, hub: Hub, lost: int) -> None:
    await reader.reconnect(hub, min(lost, len(reader._got)))


def check(reader: Reader, journal: Sequence[Fact], told: dict[int, list[LiveEvent]]) -> None:
    """No gap, no duplicate: facts one by one, and the units of each stream one by one, while it is open."""
    facts = [event for event in reader.events if isinstance(event, Fact)]
    assert facts == list(journal)
    at: dict[int, int] = {}
    open_of: dict[str, int] = {}
    shown: dict[int, list[Event]] = {}
    for frame in reader.frames:
        event = frame.event
        cursor = parse_cursor(frame.cursor)
        if isinstance(event, Fact):
            key = getattr(event.body, "call_id", event.run_id) or ""
            if isinstance(event.body, TurnStarted | ToolStarted):
                open_of[key] = event.seq
                at[event.seq] = 0
            elif isinstance(event.body, ResponseEnded | ToolEnded):
                stream = open_of.pop(key)
                if isinstance(event.body, ResponseEnded):
                    check_stream(shown.get(stream, []), told.get(stream, []), event.body, stream)
            assert cursor.seq == event.seq
        else:
            assert event.stream in open_of.values()
            shown.setdefault(event.stream, []).append(event)
            at[event.stream] += units(event)
            if isinstance(event, Progress):
                assert cursor.marks[event.stream] >= at[event.stream]
                at[event.stream] = cursor.marks[event.stream]
            assert cursor.marks[event.stream] == at[event.stream]
        assert cursor.marks.keys() <= set(open_of.values())


def check_stream(shown: list[Event], told: list[LiveEvent], body: ResponseEnded, stream: int) -> None:
    got, truth = tokens(shown, stream), tokens(told, stream)
    if body.status == "abandoned":
        # The tail may be older than what was shown; only the ends of blocks that broke off may come after it.
        same = next((n for n, (a, b) in enumerate(zip(got, truth, strict=False)) if a != b), min(len(got), len(truth)))
        assert all(isinstance(token, BlockEnded) for token in got[same:])
        assert not got or len(got) >= len(tokens(missing(body, stream, 0), stream))
    else:
        assert got in ([], truth)


@given(
    steps(), st.integers(0, 3), st.booleans(), st.sampled_from([1, 2, 256]), st.sampled_from([0, 1, 64]), st.integers()
)
def test_no_reader_ever_sees_a_gap_or_a_duplicate(
    plan: list[Step], readers: int, slow: bool, page: int, recent: int, seed: int
):
    async def body(world: World) -> None:
        store = SlowStore(world) if slow else MemoryStore()
        await new_session(store, world.clock)
        bus = LocalBus(limit=1)
        here, there = Hub(store, world.clock, bus), Hub(store, world.clock, bus)
        owner = Owner(world, store, here)
        everyone = [Reader(here), Reader(there)] + [Reader(here) for _ in range(readers)]
        left = list(plan)
        while True:
            async with owner.writing():
                await owner.take_over()
                while left and left[0][0] != "crash":
                    step = left.pop(0)
                    if step[0].startswith("drop"):
                        await drop(everyone[step[1] % len(everyone)], here if "here" in step[0] else there, step[2])
                        if step[2] % 2:
                            await settle(world)
                    else:
                        await perform(world, owner, step)
            if not left:
                break
            left.pop(0)
        async with owner.writing():
            await owner.take_over()
        await settle(world, 10_000)
        journal = await store.read(SESSION)
        for reader in everyone:
            assert reader.error is None
            await reader.disconnect()
            check(reader, journal, owner.told)
        assert here._channels == there._channels == {}
        await store.aclose()

    with patch.multiple(hub_module, PAGE=page, RECENT=recent):
        run_virtual(body, seed=seed)


@given(steps())
def test_who_is_there_from_the_start_sees_all_that_was_told_live(plan: list[Step]):
    async def body(world: World) -> None:
        store = MemoryStore()
        await new_session(store, world.clock)
        hub = Hub(store, world.clock)
        owner = Owner(world, store, hub)
        reader = Reader(hub)
        async with owner.writing():
            await settle(world)
            for step in plan:
                await perform(world, owner, step)
            await settle(world)
            for stream, events in owner.told.items():
                assert tokens(reader.events, stream) == tokens(events, stream)
        await reader.disconnect()
        await store.aclose()

    run_virtual(body)
