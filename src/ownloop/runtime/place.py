"""Where one reader stands in a session's events: facts, live events and tails in, frames out. Pure; used by the hub.

A live event is shown only if it begins exactly where the reader stands in its stream. What is not shown so, the reader
has seen, or gets later from the stream's tail or from the fact that closes the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import TypeAlias

from ownloop.core.cursor import Cursor
from ownloop.core.events import (
    Delta,
    Event,
    Fact,
    InputAccepted,
    InputWithdrawn,
    LiveEvent,
    ResponseEnded,
    RunEnded,
    RunStarted,
    SessionClosed,
    ToolEnded,
    ToolStarted,
    TurnStarted,
    units,
)
from ownloop.core.messages import Json
from ownloop.core.turn import missing, missing_of_tail
from ownloop.errors import CursorError
from ownloop.projections.native import encode_bytes


class Shown:
    """An event and its JSON, which is made once for all readers, when the first one asks."""

    __slots__ = ("_encoded", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            self._encoded = encode_bytes(self.event)
        return self._encoded


class Frame:
    """One event as one reader gets it."""

    __slots__ = ("_marks", "_seq", "_shown", "_stream", "_units", "seen")

    def __init__(
        self, shown: Shown, seq: int, marks: Mapping[int, int], stream: int = 0, units: int = 0, seen: bool = False
    ) -> None:
        self._shown = shown
        self._seq = seq
        self._marks = marks
        self._stream = stream
        self._units = units
        self.seen = seen
        """The client had this before it came back; only subscriptions with `replay` show such events."""

    @property
    def event(self) -> Event:
        return self._shown.event

    @property
    def cursor(self) -> str:
        """The place right after this event."""
        if self._stream and len(self._marks) == 1:  # one open stream: the usual case, and the one that must be quick
            return f"{self._seq}~{self._stream}.{self._units}"
        marks = {**self._marks, self._stream: self._units} if self._stream else self._marks
        return str(Cursor(self._seq, marks))

    @property
    def encoded(self) -> bytes:
        """The event's JSON, as `projections.native` writes it."""
        return self._shown.encoded

    def __repr__(self) -> str:
        return f"Frame({self.cursor!r}, {self.event!r})"


Key: TypeAlias = tuple[str, str | None]
"""What a stream's closing fact has in common with its opening one: a run, of which one response is open, or a call."""


def opens(fact: Fact) -> Key | None:
    body = fact.body
    if isinstance(body, TurnStarted):
        return ("run", fact.run_id)
    return ("call", body.call_id) if isinstance(body, ToolStarted) else None


def closes(fact: Fact) -> Key | None:
    body = fact.body
    if isinstance(body, ResponseEnded):
        return ("run", fact.run_id)
    return ("call", body.call_id) if isinstance(body, ToolEnded) else None


class OpenStreams(dict[Key, int]):
    """The streams that are open after a journal's prefix, by what closes them."""

    def observe(self, fact: Fact) -> int | None:
        """Take the next fact; return the stream that it closes, or supersedes by a new attempt of the same call."""
        opened = opens(fact)
        if opened is not None:
            before = self.get(opened)
            self[opened] = fact.seq
            return before
        closed = closes(fact)
        return None if closed is None else self.pop(closed, None)


class Scope:
    """What a reader wants to see: everything, or one run with the runs that descend from it."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self._runs = {run_id}
        self._input_id: str | None = None

    def observe(self, fact: Fact) -> tuple[bool, bool]:
        """Take the next fact; return whether it is in scope, and whether nothing in scope can follow it."""
        body = fact.body
        if self.run_id is None:
            return True, isinstance(body, SessionClosed)
        if isinstance(body, RunStarted) and body.parent_run_id in self._runs:
            self._runs.add(fact.run_id)
        elif isinstance(body, InputAccepted) and fact.run_id == self.run_id:
            self._input_id = body.input_id
        elif isinstance(body, InputWithdrawn) and body.input_id == self._input_id:
            return True, True  # the one input of this run, which thus never starts
        ends = isinstance(body, SessionClosed) or (isinstance(body, RunEnded) and fact.run_id == self.run_id)
        return fact.run_id in self._runs, ends

    def holds(self, run_id: str | None) -> bool:
        return self.run_id is None or run_id in self._runs


class Place:
    """One reader's place. `marks` is replaced, never changed, for frames keep it."""

    def __init__(self, cursor: Cursor, scope: Scope) -> None:
        self.seq = cursor.seq
        self.marks: dict[int, int] = dict(cursor.marks)
        """Open streams whose text is shown, and the units shown of each."""
        self.ended = False
        self._scope = scope
        self._open = OpenStreams()
        self._at_head = False
        self._seen: dict[int, int] = {}

    def recall(self, fact: Fact) -> None:
        """Take a fact from before the cursor: one that opened or closed a stream, or started a run in scope.

        Raises:
            CursorError: the cursor marks it as a stream, and it opens none.
        """
        if fact.seq in self.marks and opens(fact) is None:
            raise CursorError(
                f"the cursor marks stream {fact.seq}, but that fact opens none; pass a cursor that an event carried"
            )
        in_scope, ends = self._scope.observe(fact)
        self.ended = self.ended or ends
        if in_scope:
            self._unmark(self._open.observe(fact))

    def start(self, replay: bool) -> None:
        """Begin, after all `recall`s. `replay` shows marked streams from their start, as `seen` up to the mark."""
        still_open = set(self._open.values())
        self.marks = {stream: mark for stream, mark in self.marks.items() if stream in still_open}
        if replay:
            self._seen, self.marks = self.marks, dict.fromkeys(self.marks, 0)

    def facts(self, facts: Iterable[Shown], out: MutableSequence[Frame]) -> None:
        """Show facts; those that the reader has are left out."""
        for shown in facts:
            fact = shown.event
            if not isinstance(fact, Fact) or fact.seq <= self.seq or self.ended:
                continue
            in_scope, self.ended = self._scope.observe(fact)
            if not in_scope:
                self.seq = fact.seq
                continue
            closed = self._open.observe(fact)
            if isinstance(fact.body, ResponseEnded) and closed is not None and closed in self.marks:
                self._suffix(closed, missing(fact.body, closed, self.marks[closed]), out)
            self._unmark(closed)
            self.seq = fact.seq
            if self._at_head and opens(fact) is not None:
                self.marks = {**self.marks, fact.seq: 0}
            out.append(Frame(shown, fact.seq, self.marks))

    def reach_head(self, streams: Iterable[tuple[Key, int, str | None]] = ()) -> None:
        """Say that no fact is left to read; `streams` are known to be open: key, number and run.

        From here on all open streams show their text. Before, in history, only those do that the cursor marks: of the
        others the closing fact says it all.
        """
        self._at_head = True
        self._open.update({key: stream for key, stream, run_id in streams if self._scope.holds(run_id)})
        self.marks = dict.fromkeys(self._open.values(), 0) | self.marks

    def tail(self, stream: int, tail: Json, out: MutableSequence[Frame]) -> None:
        """Show what an open stream's tail holds beyond the mark."""
        mark = self.marks.get(stream)
        if mark is not None:
            self._suffix(stream, missing_of_tail(tail, stream, mark), out)

    def latest(self, stream: int, offset: int, shown: Shown, out: MutableSequence[Frame]) -> None:
        """Show the last event of a tool's stream, which ends at `offset`; earlier ones are not replayed."""
        if self.marks.get(stream, offset) < offset:
            out.append(Frame(shown, self.seq, self.marks, stream, offset, offset <= self._seen.get(stream, 0)))
            self.marks = {**self.marks, stream: offset}

    def live(self, stream: int, offset: int, events: Iterable[Shown], out: MutableSequence[Frame]) -> None:
        """Show events of one stream, the first of which begins at `offset`, as far as they go on from the mark."""
        marks = self.marks
        mark = marks.get(stream)
        if mark is None:
            return
        known = self._seen.get(stream, 0)
        seq = self.seq
        for shown in events:
            event = shown.event
            count = len(event.text) if type(event) is Delta else 1
            if offset == mark:
                mark += count
                out.append(Frame(shown, seq, marks, stream, mark, mark <= known))
            offset += count
        if mark != marks[stream]:
            self.marks = {**marks, stream: mark}

    def _suffix(self, stream: int, events: Sequence[LiveEvent], out: MutableSequence[Frame]) -> None:
        mark = self.marks[stream]
        known = self._seen.get(stream, 0) - mark
        self.live(stream, mark, map(Shown, _cut(events, known) if known > 0 else events), out)

    def _unmark(self, stream: int | None) -> None:
        if stream in self.marks:
            self.marks = {other: mark for other, mark in self.marks.items() if other != stream}


def _cut(events: Iterable[LiveEvent], at: int) -> Iterator[LiveEvent]:
    """Cut the delta that the offset `at` lies in, so that each event is before or behind it."""
    for event in events:
        if isinstance(event, Delta) and 0 < at < len(event.text):
            yield Delta(event.stream, event.block, event.text[:at])
            yield Delta(event.stream, event.block, event.text[at:])
        else:
            yield event
        at -= units(event)
