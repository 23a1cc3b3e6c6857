"""Fork and import: how a session begins that has another one's facts. Pure.

Nothing that the copied facts promised may happen by itself: what had started ends unknown. In a fork every other
unsettled call needs a new answer (whoever creates it wakes it: its first owner asks what was not asked); an import
closes all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ownloop.core import results
from ownloop.core.codec import digest
from ownloop.core.due import withdraw
from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Draft,
    Fact,
    FactBody,
    InputWithdrawn,
    InteractionRequested,
    PreparedCall,
    ResponseEnded,
    RuleRevoked,
    RunEnded,
    SessionStarted,
    ToolEnded,
)
from ownloop.core.run import REFUSED, CallState, RequestState, RunState
from ownloop.core.session import SessionState, advance, fold


def fork_facts(
    state: SessionState, started: SessionStarted, new_id: Callable[[str], str], at_ms: int, *, go_on: bool = False
) -> tuple[Draft, ...]:
    """Return the first facts of a session that goes on from `state` (the fold of the shared prefix).

    `go_on` keeps a live run without open requests alive (regenerate); else it ends cancelled.
    """
    facts: list[Draft] = []
    trial = state

    def record(*drafts: Draft) -> None:
        nonlocal trial
        trial = advance(trial, drafts, at_ms, trial.epoch)
        facts.extend(drafts)

    record(Draft(None, started))
    record(*(Draft(None, InputWithdrawn(w.input_id, started.principal)) for w in state.inputs.values() if not w.bound))
    live = sorted((run for run in state.runs.values() if run.live), key=lambda run: -run.depth)
    for run in live:
        record(*_close_run(trial, trial.runs[run.run_id], new_id, go_on))
    record(*(withdraw(request) for request in trial.requests.values() if request.run_id is None))
    return tuple(facts)


def import_facts(
    facts: Sequence[Fact], started: SessionStarted, at_ms: int
) -> tuple[Sequence[Fact], SessionState, tuple[Draft, ...]]:
    """Return the copied facts, their last state, and the facts that close what they left open.

    `started` takes the place of the first fact: whoever imports names the agent. No request, rule or live run is left.

    Raises:
        IllegalFactError: these facts are no journal.
    """
    copied = [replace(fact, body=_renamed(fact, started)) for fact in facts]
    state = fold(copied)
    closing: list[Draft] = []
    trial = state

    def record(*drafts: Draft) -> None:
        nonlocal trial
        trial = advance(trial, drafts, at_ms, trial.epoch)
        closing.extend(drafts)

    if not state.closed:
        waiting = [w for w in state.inputs.values() if not w.bound]
        record(*(Draft(None, InputWithdrawn(w.input_id, started.principal)) for w in waiting))
        for run in sorted((run for run in state.runs.values() if run.live), key=lambda run: -run.depth):
            record(*_close_run(trial, trial.runs[run.run_id], None, go_on=False))
        record(*(withdraw(request) for request in trial.requests.values()))
        record(*(Draft(None, RuleRevoked(rule_id, started.principal)) for rule_id in trial.rules))
    return copied, state, tuple(closing)


def _renamed(fact: Fact, started: SessionStarted) -> FactBody:
    if not isinstance(fact.body, SessionStarted):
        return fact.body
    if fact.seq == 1:
        return started
    return replace(fact.body, agent=started.agent, agent_digest=started.agent_digest)  # where it was forked once


def _close_run(state: SessionState, run: RunState, new_id: Callable[[str], str] | None, go_on: bool) -> list[Draft]:
    """End a live run, unless a call of it can be asked about anew (with a `new_id`), or it shall go on."""
    facts: list[Draft] = []
    if run.stream is not None:
        facts.append(Draft(run.run_id, ResponseEnded(run.turn, "abandoned")))
    facts += [withdraw(request) for request in state.requests.values() if request.run_id == run.run_id]
    unsettled = [call for call in run.calls.values() if call.phase != "settled"]
    never_started = [call for call in unsettled if call.attempt == 0]
    facts += [
        Draft(run.run_id, ToolEnded(call.call_id, call.attempt, "unknown", results.text(results.UNKNOWN)))
        for call in unsettled
        if call.attempt > 0
    ]
    goes_on = go_on
    if run.is_root and run.cancel is None:
        for call in filter(_undecided, never_started):
            if new_id is None:
                break
            facts += _ask_again(run, call, state.requests.get(call.request_id or ""), new_id)
            goes_on = True
        if goes_on:
            return facts
    if run.cancel is None:
        facts.append(Draft(run.run_id, CancelRequested("forked")))
    facts += [
        Draft(run.run_id, ToolEnded(call.call_id, 0, "not_run", results.text(results.NOT_RUN)))
        for call in never_started
    ]
    outcome = "failed" if run.cancel is not None and run.cancel.error else "cancelled"
    facts.append(Draft(run.run_id, RunEnded(outcome, usage=run.usage, cost=run.cost)))
    return facts


def _undecided(call: CallState) -> bool:
    """Whether it could still be started, or its question answered; what was refused is only to be told to the model."""
    if call.phase == "prepared":
        return call.prepared is not None and call.prepared.verdict not in REFUSED
    return call.phase in ("asked", "approved") or (call.phase == "proposed" and call.block.problem is None)


def _ask_again(run: RunState, call: CallState, asked: RequestState | None, new_id: Callable[[str], str]) -> list[Draft]:
    """Bind the call to a new answer. What was asked is asked in the same words, the rest by the child's first owner."""
    known = call.prepared
    prepared = PreparedCall(
        call.call_id,
        "ask",
        "forked",
        digest(call.input),
        known.tool_digest if known else "",
        call.input if call.input != call.block.input else None,
        purpose=known.purpose if known else "approval",
    )
    facts = [Draft(run.run_id, CallsPrepared(run.turn, (prepared,)))]
    if asked is not None:
        request = InteractionRequested(
            new_id("req"),
            asked.purpose,
            asked.data,
            asked.schema,
            asked.type,
            call.call_id,
            asked.input_digest,
            asked.tool_digest,
            asked.assignee,
        )
        facts.append(Draft(run.run_id, request))
    return facts
