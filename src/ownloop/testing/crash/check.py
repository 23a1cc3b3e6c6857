"""The invariants of a session that has come to rest after crashes, read from its journal and from the world outside.

The journal is read independently of the run machine, but for one check, that every prefix of it folds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Fact,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    RunEnded,
    RunStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.inbox import InboxRow
from ownloop.core.messages import Json, Message, ToolCallBlock, ToolResultBlock
from ownloop.core.ports import SessionInfo
from ownloop.core.session import SessionState, apply, history
from ownloop.errors import IllegalFactError
from ownloop.projections.native import encode
from ownloop.testing.crash.scenario import proposed_calls


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left when all processes are gone."""

    facts: Sequence[Fact]
    info: SessionInfo
    untaken: Sequence[InboxRow]
    effects: Sequence[Json]
    acknowledged: Sequence[Json]


def violations(evidence: Evidence, ends: Sequence[str]) -> list[str]:
    """Return what is wrong, in sentences; nothing if all promises were kept."""
    facts = evidence.facts
    book = _Book.of(facts)
    return [
        *_journal(facts),
        *_acknowledged(evidence, book),
        *_inputs(book),
        *_runs(book, ends),
        *_requests(book),
        *_calls(book),
        *_lost(book),
        *_effects(book, evidence.effects),
        *_rest(evidence),
    ]


@dataclass(slots=True)
class _Call:
    call_id: str
    name: str
    run_id: str
    asked: bool = False
    starts: list[ToolStarted] = field(default_factory=list[ToolStarted])
    ends: list[ToolEnded] = field(default_factory=list[ToolEnded])
    epochs: tuple[int, int] = (0, 0)
    """Of its last start and of its end: if they differ, whoever ran it was gone."""

    def __str__(self) -> str:
        return f"call {self.call_id} of {self.name}"


@dataclass(slots=True)
class _Book:
    """The facts of a journal, by what they are about."""

    accepted: list[InputAccepted] = field(default_factory=list[InputAccepted])
    consumed: Counter[str] = field(default_factory=Counter[str])
    withdrawn: Counter[str] = field(default_factory=Counter[str])
    bound: dict[str, str] = field(default_factory=dict[str, str])
    """Input → the run it started."""
    started: list[str] = field(default_factory=list[str])
    ended: list[tuple[str, RunEnded]] = field(default_factory=list[tuple[str, RunEnded]])
    requested: list[InteractionRequested] = field(default_factory=list[InteractionRequested])
    resolved: list[InteractionResolved] = field(default_factory=list[InteractionResolved])
    cancelled: set[str] = field(default_factory=set[str])
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> _Book:
        book = cls()
        for fact in facts:
            for block in proposed_calls(fact):
                book.calls[block.call_id] = _Call(block.call_id, block.name, fact.run_id or "")
            book._enter(fact)
        return book

    def _enter(self, fact: Fact) -> None:
        match fact.body:
            case InputAccepted() as body:
                self.accepted.append(body)
            case InputWithdrawn(input_id):
                self.withdrawn[input_id] += 1
            case RunStarted(input_ids=input_ids):
                self.started.append(fact.run_id or "")
                self.bound |= dict.fromkeys(input_ids, fact.run_id or "")
            case TurnStarted(input_ids=input_ids):
                self.consumed.update(input_ids)
            case CallsPrepared(calls=calls):
                for prepared in calls:
                    self.calls[prepared.call_id].asked |= prepared.verdict == "ask"
            case InteractionRequested() as body:
                self.requested.append(body)
            case InteractionResolved() as body:
                self.resolved.append(body)
            case ToolStarted() as body:
                call = self.calls[body.call_id]
                call.starts.append(body)
                call.epochs = fact.epoch, 0
            case ToolEnded() as body:
                call = self.calls[body.call_id]
                call.ends.append(body)
                call.epochs = call.epochs[0], fact.epoch
            case CancelRequested():
                self.cancelled.add(fact.run_id or "")
            case RunEnded() as body:
                self.ended.append((fact.run_id or "", body))
            case _:
                pass


def _journal(facts: Sequence[Fact]) -> Iterator[str]:
    seqs = [fact.seq for fact in facts]
    if seqs != list(range(1, len(facts) + 1)):
        yield f"seq is not gapless: {seqs}"
    if any(later.epoch < earlier.epoch for earlier, later in pairwise(facts)):
        yield f"epochs decrease along seq: {[fact.epoch for fact in facts]}"
    state: SessionState | None = None
    for fact in facts:
        try:
            state = apply(state, fact)
        except IllegalFactError as error:
            yield f"the journal does not fold beyond fact {fact.seq}: {error}"
            return
        if isinstance(fact.body, TurnStarted) and fact.run_id is not None:
            for problem in _unanswered(history(state, fact.run_id)):
                yield f"at turn_started {fact.seq}, {problem}"


def _unanswered(messages: Sequence[Message]) -> Iterator[str]:
    """Say which calls a provider would miss results of: they stand in the message right after the calls, in order."""
    for place, message in enumerate(messages):
        calls = [block.call_id for block in message.blocks if isinstance(block, ToolCallBlock)]
        following = messages[place + 1].blocks if place + 1 < len(messages) else ()
        answered = [block.call_id for block in following if isinstance(block, ToolResultBlock)]
        if calls != answered and (calls or message.role == "assistant"):
            yield f"the history has calls {calls} and after them results of {answered}"


def _acknowledged(evidence: Evidence, book: _Book) -> Iterator[str]:
    held = {fact.seq: encode(fact) for fact in evidence.facts}
    accepted = {body.input_id for body in book.accepted}
    resolved = {body.request_id: body.decision for body in book.resolved}
    for line in evidence.acknowledged:
        match line:
            case {"fact": fact} if held.get(fact["seq"]) != fact:
                yield f"fact {fact['seq']} ({fact['kind']}) was acknowledged, and is not in the journal"
            case {"input": input_id} if input_id not in accepted:
                yield f"input {input_id} was acknowledged, and no fact accepts it"
            case {"answer": request_id, "decision": decision} if resolved.get(request_id) != decision:
                yield f"{decision!r} to {request_id} was acknowledged; its fact says {resolved.get(request_id)!r}"
            case _:
                pass


def _inputs(book: _Book) -> Iterator[str]:
    outcomes = {run_id: body.outcome for run_id, body in book.ended}
    for body in book.accepted:
        input_id = body.input_id
        uses = book.consumed[input_id] + book.withdrawn[input_id]
        dropped = uses == 0 and outcomes.get(book.bound.get(input_id, "")) in ("cancelled", "failed")
        if uses != 1 and not dropped:
            yield f"input {input_id} was used {uses} times"
    for input_id, count in Counter(body.input_id for body in book.accepted).items():
        if count > 1:
            yield f"input {input_id} was accepted {count} times"


def _runs(book: _Book, ends: Sequence[str]) -> Iterator[str]:
    for run_id, count in (Counter(book.started) | Counter(run_id for run_id, _ in book.ended)).items():
        ended = sum(run_id == other for other, _ in book.ended)
        if count != 1 or ended != 1:
            yield f"run {run_id} was started {book.started.count(run_id)} times and has ended {ended} times"
    outcomes = [body.outcome for _, body in book.ended]
    allowed = [end.split("|") for end in ends]
    if len(outcomes) != len(allowed) or any(o not in a for o, a in zip(outcomes, allowed, strict=True)):
        yield f"the runs ended {outcomes}, and should have ended {list(ends)}"


def _requests(book: _Book) -> Iterator[str]:
    asked = Counter(body.request_id for body in book.requested)
    closed = Counter(body.request_id for body in book.resolved)
    for request_id in asked | closed:
        if asked[request_id] != 1 or closed[request_id] != 1:
            yield f"request {request_id} was asked {asked[request_id]} times and resolved {closed[request_id]} times"


def _calls(book: _Book) -> Iterator[str]:
    about = {body.request_id: body for body in book.requested}
    resolved = {body.request_id: body for body in book.resolved}
    honoured = Counter(start.authority for call in book.calls.values() for start in call.starts)
    for request_id, count in honoured.items():
        if request_id in about and count > 1:
            yield f"request {request_id} allowed {count} starts"
    for call in book.calls.values():
        if len(call.ends) != 1:
            yield f"{call} has {len(call.ends)} results"
        if [start.attempt for start in call.starts] != list(range(1, len(call.starts) + 1)):
            yield f"{call} has the attempts {[start.attempt for start in call.starts]}"
        if len({start.key for start in call.starts}) > 1:
            yield f"{call} was started under different keys"
        for start in call.starts:
            request, answer = about.get(start.authority), resolved.get(start.authority)
            again = start.attempt > 1 and answer is not None and answer.decision == "answered"
            approved = answer is not None and answer.decision == "approved"
            if request is not None and (request.call_id != call.call_id or not (approved or again)):
                yield f"{call} was started on request {start.authority}, which does not allow it"
            if start.attempt > 1 and not again and start.on_unknown != "retry":
                yield f"{call} with on_unknown={start.on_unknown!r} was started again, and nobody said so"
            if call.asked and request is None and start.on_unknown != "retry":
                yield f"{call} needs a person, and was started on {start.authority!r}"


def _lost(book: _Book) -> Iterator[str]:
    """A call whose process died: a person says what became of it, or the model is told that nobody knows."""
    asked = {body.request_id: body.call_id for body in book.requested if body.purpose == "unknown_outcome"}
    told = {asked.get(body.request_id) for body in book.resolved if body.decision == "answered"}
    for call in book.calls.values():
        started, ended = call.epochs
        if not call.starts or not call.ends or call.ends[-1].late or started == ended or call.call_id in told:
            continue
        status, on_unknown = call.ends[-1].status, call.starts[-1].on_unknown
        if status != "unknown" or (on_unknown == "ask" and call.run_id not in book.cancelled):
            yield f"{call} with on_unknown={on_unknown!r} ended {status} after its process died; nobody was asked"


def _effects(book: _Book, effects: Sequence[Json]) -> Iterator[str]:
    starts = {(s.key, s.attempt) for call in book.calls.values() for s in call.starts}
    per_start = Counter((effect["key"], effect["attempt"]) for effect in effects)
    per_call = Counter(effect["call"] for effect in effects)
    for effect in effects:
        if (effect["key"], effect["attempt"]) not in starts:
            yield f"{effect['tool']} took effect in attempt {effect['attempt']}, and the journal has no such start"
    for (_, attempt), count in per_start.items():
        if count > 1:
            yield f"attempt {attempt} of a call took effect {count} times"
    for call in book.calls.values():
        count = per_call[call.call_id]
        repeatable = bool(call.starts) and call.starts[0].on_unknown == "retry"
        status = call.ends[-1].status if call.ends else "nothing"
        if count > 1 and not repeatable:
            yield f"{call} took effect {count} times"
        if status == "ok" and call.starts and count == 0:
            yield f"{call} ended ok, and took no effect"
        if status in ("denied", "invalid", "not_run") and count > 0:
            yield f"{call} ended {status}, and took effect"


def _rest(evidence: Evidence) -> Iterator[str]:
    info = evidence.info
    if evidence.untaken:
        yield f"{len(evidence.untaken)} inbox rows were never taken: {[row.item.body.kind for row in evidence.untaken]}"
    if (info.owner, info.runnable_at_ms, info.live_run_id, info.open_requests) != (None, None, None, 0):
        yield (
            f"the session is not at rest: owner {info.owner!r}, runnable at {info.runnable_at_ms!r}, "
            f"live run {info.live_run_id!r}, {info.open_requests} open requests"
        )


def tail_of(facts: Sequence[Fact], count: int = 12) -> list[str]:
    """Return the last facts, a line each."""
    return [f"{fact.seq:4} e{fact.epoch} {_line(fact)}" for fact in facts[-count:]]


def _line(fact: Fact) -> str:
    fields = encode(fact)
    told = ("input_id", "turn", "attempt", "status", "call_id", "request_id", "decision", "authority", "outcome")
    words = " ".join(f"{name}={fields[name]}" for name in told if name in fields)
    return f"{fact.body.kind} {words}".rstrip()
