"""The invariants of docs/design.md over random walks with an adversary. `HYPOTHESIS_PROFILE=soak` walks for long.

What is checked at each append stands in `audit.Audit`, what at rest in `machine.World`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.events import (
    FACTS,
    CallsPrepared,
    CancelRequested,
    Compacted,
    ConfigChanged,
    ErrorInfo,
    Fact,
    FactBody,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Limits,
    Note,
    Outcome,
    ParentRef,
    PreparedCall,
    ResponseEnded,
    RuleRevoked,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionStarted,
    Status,
    ToolEnded,
    ToolStarted,
    ToolStatus,
    TurnStarted,
    Verdict,
)
from ownloop.core.forks import fork_facts
from ownloop.core.inbox import AnswerRequest
from ownloop.core.interactions import Decision, Purpose
from ownloop.core.messages import TextBlock, ToolCallBlock
from ownloop.core.session import SessionState, apply, fold
from ownloop.errors import IllegalFactError
from tests.core.audit import Audit
from tests.core.machine import World
from tests.core.walk import Walk, examples, walks


@examples(150)
@given(walks())
def test_a_walk_keeps_every_promise_and_comes_to_an_end(data: bytes) -> None:
    world = Walk(data).go()
    if world.owner is not None:
        assert world.owner.state == fold(world.book.facts), "the live state is the fold of the journal"
    world.wind_up()


@examples(40)
@given(walks(120))
def test_every_prefix_of_a_journal_goes_on_to_a_legal_rest(data: bytes) -> None:
    facts = Walk(data).go().book.facts
    for seq in range(1, len(facts) + 1):
        World(facts[:seq]).wind_up()


@examples(30)
@given(walks(120), st.booleans())
def test_a_fork_at_any_seq_starts_nothing_that_was_not_answered_in_it(data: bytes, go_on: bool) -> None:
    facts = tuple(Walk(data).go().book.facts)
    for seq in range(1, len(facts) + 1):
        shared = facts[:seq]
        child = _fork(shared, go_on=go_on)
        inherited = set(child.entered)
        child.rest()
        assert set(child.entered) == inherited
        asked_before = {fact.body.request_id for fact in shared if isinstance(fact.body, InteractionRequested)}
        for request in list(child.state.requests.values()):
            assert request.request_id not in asked_before, "questions are asked anew, under new ids"
            child.post(AnswerRequest(request.request_id, child.checked(request)))
        child.wind_up()
        asked = {body.request_id for body in child.bodies(InteractionRequested)} - asked_before
        for run_id, call_id, attempt in set(child.entered) - inherited:
            assert attempt == 1
            [start] = [b for b in child.bodies(ToolStarted) if b.call_id == call_id]
            assert start.authority in asked, f"call {call_id!r} of run {run_id!r} was started without an answer"


def _fork(shared: tuple[Fact, ...], *, go_on: bool = False) -> World:
    state = fold(shared)
    number = count(1)
    started = SessionStarted("agent", "v1", parent=ParentRef("parent", state.head_seq))
    drafts = fork_facts(state, started, lambda kind: f"{kind}{next(number)}fork", 0, go_on=go_on)
    own = [Fact(state.head_seq + n, 0, state.epoch, d.run_id, d.body) for n, d in enumerate(drafts, 1)]
    return World([*shared, *own])


# --- illegal facts ---------------------------------------------------------------------------------------------------


@examples(60)
@given(walks(120), st.floats(0, 1))
def test_any_fact_is_legal_and_keeps_every_promise_or_raises_and_changes_nothing(data: bytes, where: float) -> None:
    journal = Walk(data).go().book.facts
    facts = journal[: max(1, round(len(journal) * where))]
    state = fold(facts)
    legal: list[Fact] = []
    seen: set[str] = set()
    for run_id, body in _thinkable(state):
        seen.add(body.kind)
        for epoch in (state.epoch, state.epoch + 1):
            fact = Fact(state.head_seq + 1, 0, epoch, run_id, body)
            try:
                apply(state, fact)
            except IllegalFactError:
                continue
            legal.append(fact)
    assert seen == set(FACTS)
    assert state == fold(facts), "states are values"
    assert legal
    for fact in legal:
        audit = Audit()
        for each in (*facts, fact):
            audit.feed(each)
    for fact in legal[:: max(1, len(legal) // 10)]:
        World([*facts, fact]).wind_up()


def _thinkable(state: SessionState) -> Iterator[tuple[str | None, FactBody]]:
    """Yield facts of every kind, made of what the state knows and of what it does not."""
    calls = [call for run in state.runs.values() for call in run.calls.values()]
    requests = [*state.requests, *state.closed_requests, "nothing"]
    words = (TextBlock("words"),)
    for run_id in (None, "nothing", *state.runs):
        run = state.runs.get(run_id or "")
        turn, attempt = (run.turn, run.attempt) if run else (1, 1)
        for wanted in ((turn, attempt), (turn, attempt + 1), (turn + 1, 1), (turn + 2, 1)):
            for inputs in ((), ("nothing",), tuple(state.inputs), tuple(state.inputs)[:1]):
                yield run_id, TurnStarted(*wanted, "b", "p", "m", inputs)
        for status in get_args(Status):
            for blocks in ((), words, (ToolCallBlock("new", "pay", {}),), (ToolCallBlock("new", "pay", {}),) * 2):
                yield run_id, ResponseEnded(turn, status, blocks)
                yield run_id, ResponseEnded(turn + 1, status, blocks)
        for call_id in ("nothing", *(call.call_id for call in calls)):
            call = next((call for call in calls if call.call_id == call_id), None)
            current = call.attempt if call else 0
            digests = {"x", call.prepared.input_digest if call and call.prepared else "y"}
            for verdict in get_args(Verdict):
                yield run_id, CallsPrepared(turn, (PreparedCall(call_id, verdict, "policy", "x", "y"),))
            for purpose in get_args(Purpose):
                yield run_id, InteractionRequested("new", purpose, {}, {}, call_id=call_id)
                yield run_id, InteractionRequested(requests[0], purpose, {}, {}, call_id=call_id)
            for number in {0, current, current + 1}:
                for status in get_args(ToolStatus):
                    yield run_id, ToolEnded(call_id, number, status)
                for authority in ("policy", *requests):
                    for digest in digests:
                        yield run_id, ToolStarted(call_id, number, "key", authority, digest, "retry")
        for request_id in requests:
            for decision in get_args(Decision):
                for value in (None, {"outcome": "again"}, {"outcome": "not_run"}, "again"):
                    yield run_id, InteractionResolved(request_id, "system", decision, value)
        for error in (None, ErrorInfo("x", "y")):
            yield run_id, CancelRequested("ann", error)
        for outcome in get_args(Outcome):
            yield run_id, RunEnded(outcome)
        for parent in (None, "nothing", *state.runs):
            for call_id in (None, *(call.call_id for call in calls)):
                yield run_id, RunStarted(Limits(), "m", (), parent, call_id)
                yield "new", RunStarted(Limits(), "m", (), parent, call_id)
    for input_id in ("new", *state.inputs):
        run_ids = ("new-run", *state.runs, *(waiting.run_id for waiting in state.inputs.values()))
        for run_id in run_ids:
            yield run_id, InputAccepted(input_id, "queue", words)
            yield run_id, InputAccepted(input_id, "steer", words)
            yield run_id, RunStarted(Limits(), "m", (input_id,))
        yield None, InputWithdrawn(input_id)
    for seq in {0, state.head_seq // 2, state.head_seq}:
        yield None, Compacted(seq, words)
        yield None, SessionStarted("agent", "v2", parent=ParentRef("parent", seq))
    yield None, SessionStarted("agent", "v2")
    yield None, InteractionRequested("new", "custom", {}, {})
    for rule_id in ("nothing", *state.rules):
        yield None, RuleRevoked(rule_id)
    yield None, ConfigChanged({"model": "other"})
    yield None, Note("info", {})
    yield None, SessionClosed("ann")
