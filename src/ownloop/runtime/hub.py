"""The hub: one session, many readers, and a cursor with every event. Used by loop, host and service.

From whatever cursor a reader ever got, what follows has no gap and no duplicate. `place` gives that for one reader;
here a reader follows the store until it stands where its session's channel stands, and joins it in that same step.
Facts reach a channel only once they are committed, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeAlias

from ownloop.core.cursor import Cursor
from ownloop.core.events import Delta, Fact, LiveEvent, Progress
from ownloop.core.ports import Bus, Clock, Store
from ownloop.core.turn import TurnBuilder, missing_of_tail
from ownloop.errors import CursorAheadError, NotFoundError, SlowReaderError
from ownloop.runtime.place import Frame, OpenStreams, Place, Scope, Shown, opens

logger = logging.getLogger(__name__)

PAGE = 256
"""Facts per read of the store: enough to be quick, few enough to hold for every reader that catches up."""
RECENT = 64
"""Facts a channel keeps, so that who was away for a moment comes back without reading the store."""
FIRST_POLL_MS, LONGEST_POLL_MS = 250, 2000
"""How often the store is asked for a session that nobody writes here; more rarely while nothing comes."""
MAX_EVENTS, MAX_BYTES = 8192, 8 * 1024 * 1024
"""What may wait for one reader: more than a minute of the fastest models, and the largest results of a few tools."""
EVENT_BYTES = 64
"""Counted for a live event beside its text."""

_Batch: TypeAlias = tuple[int, int, Sequence[Shown]]
"""Live events with their stream and the offset of the first; facts with 0 and 0."""


class _Stream:
    """An open stream as its writer sees it: a response has a builder, a tool the last that it told."""

    __slots__ = ("builder", "latest", "run_id", "units")

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.units = 0
        self.builder: TurnBuilder | None = None
        self.latest: Shown | None = None


class _Channel:
    """What the readers of one session share."""

    def __init__(self) -> None:
        self.written = False
        self.seq = 0
        self.recent: deque[Shown] = deque(maxlen=RECENT)
        self.keys = OpenStreams()
        self.streams: dict[int, _Stream] = {}
        self.readers: set[Subscription] = set()
        self.joined: set[Subscription] = set()

    def start(self, seq: int) -> None:
        self.written = True
        self.seq = seq

    def stop(self) -> None:
        self.written = False
        self.recent.clear()
        self.keys.clear()
        self.streams.clear()
        self.joined.clear()
        self.wake()

    def wake(self) -> None:
        for reader in self.readers:
            reader.wake()

    def push(self, batch: _Batch, size: int) -> None:
        self.joined.difference_update([reader for reader in self.joined if not reader.push(batch, size)])


class Hub:
    """Carries events from a session's one writer, where it is in this process, to the session's readers here.

    A session that has neither costs nothing. Where another process writes, readers follow the store, helped by the bus.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        bus: Bus | None = None,
        *,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.store = store
        self.clock = clock
        self.bus = bus
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._channels: dict[str, _Channel] = {}

    # --- the writer's side: the session's owner, in this process ---

    @contextmanager
    def writing(self, session_id: str, head_seq: int) -> Generator[None]:
        """Say that this process owns the session, whose last fact is `head_seq`. Wraps a segment."""
        channel = self._channels.setdefault(session_id, _Channel())
        if channel.written:
            raise ValueError(f"session {session_id!r} is written here already")
        channel.start(head_seq)
        try:
            yield
        finally:
            channel.stop()
            self._drop_if_idle(session_id, channel)

    def facts(self, session_id: str, facts: Sequence[Fact]) -> None:
        """Show facts that were committed: all of them, in order."""
        channel = self._written(session_id)
        if not facts:
            return
        for fact in facts:
            if fact.seq != channel.seq + 1:
                raise ValueError(f"fact {fact.seq} of session {session_id!r} cannot follow fact {channel.seq}")
            channel.seq = fact.seq
            closed = channel.keys.observe(fact)
            if closed is not None:
                del channel.streams[closed]
            if opens(fact) is not None:
                channel.streams[fact.seq] = _Stream(fact.run_id)
        shown = [Shown(fact) for fact in facts]
        channel.recent.extend(shown)
        if channel.joined:
            channel.push((0, 0, shown), sum([len(fact.encoded) for fact in shown]))
        if len(channel.joined) < len(channel.readers):
            channel.wake()
        if self.bus is not None:
            self.bus.publish(session_id, channel.seq)

    def open_stream(self, session_id: str, builder: TurnBuilder) -> None:
        """Show a response from now on, beginning with what it holds; its turn_started was passed to `facts`."""
        channel = self._written(session_id)
        stream = channel.streams.get(builder.stream)
        if stream is None:
            raise ValueError(
                f"stream {builder.stream} of session {session_id!r} is not open: pass its turn_started first"
            )
        stream.builder = builder
        self.live(session_id, missing_of_tail(builder.tail(), builder.stream, 0))

    def live(self, session_id: str, events: Sequence[LiveEvent]) -> None:
        """Show live events of one stream, in the same step of the event loop that fed its builder.

        Events of a stream that is closed are left out: a tool may tell its progress too late.
        """
        channel = self._written(session_id)
        number = events[0].stream if events else 0
        stream = channel.streams.get(number)
        if stream is None:
            return
        offset = stream.units
        for event in events:
            stream.units += len(event.text) if type(event) is Delta else 1
        progress = isinstance(events[-1], Progress)
        if not channel.joined and not progress:
            return
        shown = [Shown(event) for event in events]
        if progress:
            stream.latest = shown[-1]
        if channel.joined:
            size = EVENT_BYTES * len(shown) + stream.units - offset
            if progress:
                size += sum([len(event.encoded) for event in shown])
            channel.push((number, offset, shown), size)

    def fail(self, session_id: str, error: Exception) -> None:
        """Raise `error` in the session's readers here: what they wait for will not come, for its segment failed."""
        channel = self._channels.get(session_id)
        if channel is not None:
            for reader in channel.readers:
                reader.fail(error)

    def _written(self, session_id: str) -> _Channel:
        channel = self._channels.get(session_id)
        if channel is None or not channel.written:
            raise ValueError(f"session {session_id!r} is not written here: do it inside `with hub.writing(…)`")
        return channel

    # --- the readers' side ---

    def subscribe(
        self, session_id: str, after: Cursor, *, run_id: str | None = None, replay: bool = False
    ) -> Subscription:
        """Follow a session from a cursor on: `async with hub.subscribe(…) as frames: async for frame in frames: …`.

        With `run_id`: the facts of that run and of the runs that descend from it, and the live events of their streams;
        ends after its run_ended. Its cursors belong to subscriptions to that run. Without: ends after session_closed.
        `replay` shows the marked streams from their start, for a projection that must know what was in them.

        Entering raises NotFoundError, CursorError and CursorAheadError; reading raises SlowReaderError.
        """
        return Subscription(self, session_id, after, run_id, replay)

    def attach(self, session_id: str, reader: Subscription) -> _Channel:
        channel = self._channels.setdefault(session_id, _Channel())
        channel.readers.add(reader)
        return channel

    def detach(self, session_id: str, reader: Subscription, channel: _Channel) -> None:
        channel.readers.discard(reader)
        channel.joined.discard(reader)
        self._drop_if_idle(session_id, channel)

    def _drop_if_idle(self, session_id: str, channel: _Channel) -> None:
        if not channel.written and not channel.readers and self._channels.get(session_id) is channel:
            del self._channels[session_id]


class Subscription:
    """One reader of one session: an async context manager, and in it an async iterator of frames.

    `batch` returns all frames that are at hand together, for who writes them to a socket.
    """

    def __init__(self, hub: Hub, session_id: str, after: Cursor, run_id: str | None, replay: bool) -> None:
        self._hub = hub
        self._session_id = session_id
        self._after = after
        self._run_id = run_id
        self._replay = replay
        self._place = Place(after, Scope(run_id))
        self._channel: _Channel | None = None
        self._frames: deque[Frame] = deque()  # at hand
        self._queue: list[_Batch] = []
        self._queued_events = 0
        self._queued_bytes = 0
        self._error: Exception | None = None
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self._pollers: set[asyncio.Task[None]] = set()
        self._listens = False
        self._tick: asyncio.Task[None] | None = None
        self._poll_ms = FIRST_POLL_MS

    async def __aenter__(self) -> Self:
        self._channel = self._hub.attach(self._session_id, self)
        try:
            await self._recall()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave. Who waits for frames in another task must have been cancelled before."""
        if self._channel is not None:
            self._hub.detach(self._session_id, self, self._channel)
            self._channel = None
        self._stop_polling()
        if self._pollers:
            await asyncio.wait(self._pollers)

    def __aiter__(self) -> AsyncIterator[Frame]:
        return self

    async def __anext__(self) -> Frame:
        if not self._frames:
            self._frames.extend(await self.batch())
            if not self._frames:
                raise StopAsyncIteration
        return self._frames.popleft()

    async def batch(self, unless: asyncio.Future[Any] | None = None) -> Sequence[Frame]:
        """Wait for frames and return all that are at hand; none means that nothing will follow.

        None also if `unless` is done and no frame is at hand; have it call `wake` when it is.
        A call that is cancelled loses nothing: the next one returns what it had.

        Raises:
            SlowReaderError: too much waited to be read; subscribe again from the last cursor.
        """
        while not self._frames:
            self._news = False
            if self._queue:
                self._take()
            elif self._error is not None:
                raise self._error
            elif self._place.ended:
                return []
            elif self._channel is None:
                raise RuntimeError("read a subscription inside its `async with`")
            elif self not in self._channel.joined:
                await self._catch_up(self._channel)
            if not self._frames and not self._news:
                if unless is not None and unless.done():
                    return []
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        frames = list(self._frames)
        self._frames.clear()
        return frames

    # --- called by the channel ---

    def push(self, batch: _Batch, size: int) -> bool:
        """Queue a batch; return False if this reader is too far behind to go on."""
        self._queued_events += len(batch[2])
        self._queued_bytes += size
        over = self._queued_events > self._hub.max_events or self._queued_bytes > self._hub.max_bytes
        if over and self._queue:  # a single batch always fits: it is in memory anyway
            self._queue.clear()
            session_id = self._session_id
            self.fail(
                SlowReaderError(f"a reader of session {session_id!r} fell too far behind; resume from its last cursor")
            )
            return False
        self._queue.append(batch)
        self.wake()
        return True

    def fail(self, error: Exception) -> None:
        self._error = error
        self.wake()

    def wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- reading ---

    async def _recall(self) -> None:
        """Check the cursor, and read again those facts before it that matter for what comes after it."""
        store, session_id, seq = self._hub.store, self._session_id, self._after.seq
        head_seq = (await store.session(session_id)).head_seq
        if seq > head_seq:
            raise CursorAheadError(f"the cursor is at fact {seq}, but session {session_id!r} ends with fact {head_seq}")
        first = [*self._after.marks, *(tail.stream for tail in await store.tails(session_id))]
        if seq == head_seq:
            first.append(seq)  # it may be session_closed
        if self._run_id is not None:
            try:
                run = await store.run(self._run_id, session_id)
            except NotFoundError:
                pass  # it was a steer's, or is one of another session
            else:
                if run.phase != "queued":
                    first.append(run.first_seq)
        read = min(first, default=seq + 1) - 1
        while read < seq:
            page = await store.read(session_id, read, min(PAGE, seq - read))
            for fact in page:
                self._place.recall(fact)
            read = page[-1].seq if page else seq
        self._place.start(self._replay)

    async def _catch_up(self, channel: _Channel) -> None:
        """Come nearer to the channel, or to the head of the store."""
        place = self._place
        if channel.written and channel.seq - len(channel.recent) <= place.seq <= channel.seq:
            self._join(channel)
        elif not channel.written or place.seq < channel.seq:
            await self._read(channel)
        # else the store was ahead of the channel, which wakes us when it has followed

    def _take(self) -> None:
        queue, self._queue = self._queue, []
        self._queued_events = self._queued_bytes = 0
        for stream, offset, events in queue:
            if stream:
                self._place.live(stream, offset, events, self._frames)
            else:
                self._place.facts(events, self._frames)
        self._news = True  # there may be nothing to show of it, and yet more to do

    def _join(self, channel: _Channel) -> None:
        """Go on with the channel. Nothing else runs in between, so nothing is missed or shown twice."""
        self._stop_polling()
        place = self._place
        place.facts(channel.recent, self._frames)
        self._news = True
        if place.ended:
            return
        place.reach_head((key, number, channel.streams[number].run_id) for key, number in channel.keys.items())
        for number, stream in channel.streams.items():
            if stream.builder is not None:
                place.tail(number, stream.builder.tail(), self._frames)
            elif stream.latest is not None:
                place.latest(number, stream.units, stream.latest, self._frames)
        channel.joined.add(self)

    async def _read(self, channel: _Channel) -> None:
        """Read on in the store; at its head, if nobody writes here, show what tails hold."""
        place, store = self._place, self._hub.store
        page = await store.read(self._session_id, place.seq, PAGE)
        if page:
            self._news = True
            self._poll_ms = FIRST_POLL_MS
            if self._tick is not None:
                self._tick.cancel()
        place.facts(map(Shown, page), self._frames)
        if channel.written or place.ended or len(page) == PAGE:
            return
        place.reach_head()
        if place.marks:
            for tail in await store.tails(self._session_id):
                place.tail(tail.stream, tail.body, self._frames)
        if not channel.written:
            self._start_polling()

    # --- where another process may write ---

    def _start_polling(self) -> None:
        if self._hub.bus is not None and not self._listens:
            self._listens = True
            self._poll(self._listen(self._hub.bus))
        if self._tick is None or self._tick.done() or self._tick.cancelling():
            self._tick = self._poll(self._wake_later())

    def _poll(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"ownloop-reader {self._session_id}")
        self._pollers.add(task)
        task.add_done_callback(self._pollers.discard)
        return task

    def _stop_polling(self) -> None:
        self._listens = False
        for task in self._pollers:
            task.cancel()

    async def _wake_later(self) -> None:
        clock = self._hub.clock
        await clock.sleep_until(clock.now_ms() + self._poll_ms)
        self._poll_ms = min(self._poll_ms * 2, LONGEST_POLL_MS)
        self.wake()

    async def _listen(self, bus: Bus) -> None:
        try:
            async with bus.subscribe(self._session_id) as frames:
                async for _ in frames:
                    self.wake()
        except Exception:
            logger.exception("the bus failed: session=%s; its reader goes on by asking the store", self._session_id)
