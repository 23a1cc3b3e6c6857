"""The run machine's commands: what is due for a run, by its state alone. Pure. The table is `run`'s docstring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ownloop.core import results
from ownloop.core.commands import (
    Ask,
    CallModel,
    CancelModel,
    CancelTool,
    CloseResponse,
    Command,
    InFlight,
    PrepareCall,
    Record,
    StartTool,
)
from ownloop.core.events import (
    CancelRequested,
    Draft,
    ErrorInfo,
    InputWithdrawn,
    InteractionResolved,
    Note,
    Outcome,
    RunEnded,
    ToolEnded,
)
from ownloop.core.messages import ResultContent, text_of
from ownloop.core.run import (
    REFUSED,
    CallState,
    RequestState,
    RunState,
    asked_nothing,
    authority_of,
    cancelled_as,
    goes_on,
    may_retry,
)


@dataclass(frozen=True, slots=True)
class View:
    """What one run's machine sees of its session."""

    epoch: int
    in_flight: InFlight
    requests: Sequence[RequestState]
    """Those open in this run."""
    children: Sequence[RunState]
    steers: tuple[str, ...] = ()
    """Inputs that may enter at the next turn; only a root run has any."""
    over_budget: bool = False
    """The budget of this run, or of one above it, is spent."""


def due_run(run: RunState, view: View) -> Iterator[Command]:
    """Yield what is due for a live run, in the order in which it is best done."""
    if run.cancel is not None:
        yield from _due_cancelling(run, view)
    elif run.stream is not None:
        if run.run_id not in view.in_flight.models:
            yield CloseResponse(run.run_id, run.turn, "abandoned", run.stream)
    elif run.calls and not run.settled:
        for call in run.calls.values():
            yield from _due_call(run, call, view)
    elif not view.requests and not any(child.live for child in view.children):
        yield from _due_model(run, view)


def _due_model(run: RunState, view: View) -> Iterator[Command]:
    last = run.last
    if last is None:
        yield _next_turn(run, view, run.input_ids + view.steers)
    elif last.status == "failed":
        error = last.error
        if error is None or not error.retryable or run.failures >= run.limits.failures:
            yield _end(run, "failed", error=error)
        else:
            yield _again(run, view, run.last_at_ms + (error.retry_after_ms or 0))
    elif last.status == "abandoned":
        if run.abandons >= run.limits.abandons:
            words = f"the response of turn {run.turn} was abandoned {run.abandons} times"
            yield _end(run, "failed", error=last.error or ErrorInfo("abandoned", words))
        else:
            yield _again(run, view, 0)
    elif run.calls:
        yield _next_turn(run, view, view.steers)
    elif asked_nothing(last) and run.empties == 1:
        yield _again(run, view, 0)
    elif view.steers:
        yield _next_turn(run, view, view.steers) if _limit(run, view) is None else _end(run, "completed")
    elif goes_on(run, last):
        yield _next_turn(run, view, ())
    elif asked_nothing(last):
        note = Draft(None, Note("warning", {"text": "the model answered with nothing, twice", "run_id": run.run_id}))
        yield Record((note, *_end(run, "completed").facts))
    else:
        yield _end(run, "completed")


def _limit(run: RunState, view: View, new_turn: bool = True) -> Outcome | None:
    if view.over_budget:
        return "budget_exceeded"
    if new_turn and run.limits.max_turns and run.turn >= run.limits.max_turns:
        return "max_turns"
    return None


def _next_turn(run: RunState, view: View, inputs: tuple[str, ...]) -> Command:
    hit = _limit(run, view)
    return _end(run, hit) if hit else CallModel(run.run_id, run.turn + 1, 1, inputs)


def _again(run: RunState, view: View, not_before_ms: int) -> Command:
    hit = _limit(run, view, new_turn=False)
    return _end(run, hit) if hit else CallModel(run.run_id, run.turn, run.attempt + 1, view.steers, not_before_ms)


def _end(run: RunState, outcome: Outcome, error: ErrorInfo | None = None) -> Record:
    last = run.last
    answered = last is not None and last.status in ("complete", "cut", "cancelled")
    result = text_of(last.blocks) if last is not None and answered else None
    body = RunEnded(outcome, last.stop_reason if last else None, run.usage, run.cost, error, result)
    return Record((Draft(run.run_id, body),))


def _due_call(run: RunState, call: CallState, view: View) -> Iterator[Command]:
    """Yield what is due for one call of a run that is not cancelled."""
    match call.phase:
        case "proposed":
            if call.block.problem is not None:
                yield _settle(run, call, "invalid", results.text(f"Not run: {call.block.problem}"))
            else:
                yield _prepare(run, call)
        case "prepared":
            yield from _due_prepared(run, call, view)
        case "approved":
            yield _prepare(run, call)
        case "refused":
            assert call.refusal is not None
            yield _settle(run, call, *call.refusal)
        case "answered":
            yield _settle(run, call, "ok", results.answered(call.answer))
        case "running":
            if (call.call_id, call.attempt) not in view.in_flight.tools:
                yield from _due_lost(run, call, view)
        case "delegated":
            yield from _due_delegated(run, call, view)
        case "decided":
            yield from _due_decided(run, call, view)
        case "unknown":
            yield _settle(run, call, "unknown", results.text(results.UNKNOWN))
        case "asked" | "doubted" | "settled":
            pass


def _due_prepared(run: RunState, call: CallState, view: View) -> Iterator[Command]:
    prepared = call.prepared
    assert prepared is not None
    authority = authority_of(call, view.epoch)
    if prepared.verdict in REFUSED and call.attempt == 0:
        status = {"deny": "denied", "invalid": "invalid"}.get(prepared.verdict, "error")
        yield _settle(run, call, status, results.text(prepared.problem or results.DENIED))
    elif prepared.verdict not in REFUSED and call.prepared_epoch != view.epoch:
        yield _prepare(run, call)
    elif authority is not None:
        yield StartTool(run.run_id, call.call_id, call.attempt + 1, authority)
    elif call.attempt > 0:
        # It may have taken effect: whatever forbids another start now, this one is not undone by it (H22).
        yield _settle(run, call, "unknown", results.text(results.UNKNOWN))
    else:
        yield Ask(run.run_id, call.call_id, prepared.purpose, prepared)


def _due_lost(run: RunState, call: CallState, view: View) -> Iterator[Command]:
    """A started call that nobody performs any more: its owner died, or was this worker in an older epoch."""
    started = call.started
    assert started is not None
    if call.questions:
        yield Record(tuple(Draft(run.run_id, InteractionResolved(q, "system", "withdrawn")) for q in call.questions))
    elif started.on_unknown == "ask":
        yield Ask(run.run_id, call.call_id, "unknown_outcome", call.prepared)
    elif may_retry(run, call, view.epoch):
        yield _prepare(run, call)
    else:
        yield _settle(run, call, "unknown", results.text(results.UNKNOWN))


def _due_delegated(run: RunState, call: CallState, view: View) -> Iterator[Command]:
    child_id = call.started.child_run_id if call.started else None
    child = next((child for child in view.children if child.run_id == child_id), None)
    if child is None:
        yield _settle(run, call, "unknown", results.text(results.UNKNOWN))
    elif child.ended is not None:
        ended = child.ended
        if ended.outcome == "completed":
            yield _settle(run, call, "ok", results.answered(ended.result if ended.result is not None else ""))
        else:
            words = f"The sub-agent ended {ended.outcome}" + (f": {ended.error.message}" if ended.error else ".")
            yield _settle(run, call, "error", results.text(words))


def _due_decided(run: RunState, call: CallState, view: View) -> Iterator[Command]:
    match call.answer["outcome"]:
        case "ran":
            yield _settle(run, call, "ok", results.text(call.answer.get("result") or results.RAN))
        case "not_run":
            yield _settle(run, call, "not_run", results.text(results.NOT_TAKEN_EFFECT))
        case _:
            if (call.call_id, call.attempt) in view.in_flight.tools:
                yield CancelTool(call.call_id, call.attempt)
            yield _prepare(run, call)


def _due_cancelling(run: RunState, view: View) -> Iterator[Command]:
    if run.stream is not None:
        if run.run_id in view.in_flight.models:
            yield CancelModel(run.run_id)
        else:
            yield CloseResponse(run.run_id, run.turn, "cancelled", run.stream)
    assert run.cancel is not None
    if view.steers and run.cancel.error is None:
        # What was meant for a run that a person ended is not started in its place.
        yield Record(tuple(Draft(None, InputWithdrawn(i, run.cancel.principal)) for i in view.steers))
    for child in view.children:
        if child.live and child.cancel is None:
            yield Record((Draft(child.run_id, CancelRequested(run.cancel.principal, run.cancel.error)),))
    if view.requests:
        yield Record(tuple(withdraw(request) for request in view.requests))
        return
    facts: list[Draft] = []
    for call in run.calls.values():
        if call.phase == "running" and (call.call_id, call.attempt) in view.in_flight.tools:
            yield CancelTool(call.call_id, call.attempt)
        elif call.phase == "delegated":
            if not any(c.live for c in view.children if call.started and c.run_id == call.started.child_run_id):
                facts.extend(
                    c
                    for command in _due_delegated(run, call, view)
                    if isinstance(command, Record)
                    for c in command.facts
                )
        elif call.phase != "settled":
            facts.extend(_cancelled_call(run, call).facts)
    if facts:
        yield Record(tuple(facts))
    elif run.stream is None and run.settled and not any(child.live for child in view.children):
        yield _end(run, cancelled_as(run), error=run.cancel.error)


def _cancelled_call(run: RunState, call: CallState) -> Record:
    if call.attempt == 0:
        return _settle(run, call, "not_run", results.text(results.NOT_RUN))
    outcome = call.answer["outcome"] if call.phase == "decided" else None
    if outcome == "ran":
        return _settle(run, call, "ok", results.text(call.answer.get("result") or results.RAN))
    if outcome == "not_run":
        return _settle(run, call, "not_run", results.text(results.NOT_TAKEN_EFFECT))
    return _settle(run, call, "unknown", results.text(results.UNKNOWN))


def _prepare(run: RunState, call: CallState) -> PrepareCall:
    return PrepareCall(run.run_id, run.turn, call.call_id, call.input)


def _settle(run: RunState, call: CallState, status: Any, blocks: tuple[ResultContent, ...]) -> Record:
    return Record((Draft(run.run_id, ToolEnded(call.call_id, call.attempt, status, blocks)),))


def withdraw(request: RequestState) -> Draft:
    """Return the fact by which the owner takes a question back."""
    return Draft(request.run_id, InteractionResolved(request.request_id, "system", "withdrawn"))
