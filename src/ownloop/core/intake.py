"""The owner's reading of the inbox: rows in, facts out. Pure.

All rows are read in order. A row that has become moot (a cancel of an ended run, a withdrawal that comes too late) is
taken with a note or with no fact at all. A `stop` is left untaken until the session is closed, so that it survives the
owner (docs/design.md, The machine).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from ownloop.core.codec import digest
from ownloop.core.events import (
    CancelRequested,
    ConfigChanged,
    Draft,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Note,
    Rule,
    RuleRevoked,
    ToolEnded,
)
from ownloop.core.inbox import (
    AnswerRequest,
    Cancel,
    Config,
    InboxItem,
    InboxRow,
    Input,
    LateResult,
    Log,
    Request,
    RevokeRule,
    Stop,
    Withdraw,
)
from ownloop.core.interactions import answer_schema
from ownloop.core.results import DENIED
from ownloop.core.session import SessionState, advance


@dataclass(frozen=True, slots=True)
class Intake:
    facts: tuple[Draft, ...]
    takes: tuple[int, ...]
    """Ids of the rows these facts take."""
    stop: int | None = None
    """The id of a `stop` row: to be taken by the append that closes the session."""


def intake(
    state: SessionState, rows: Sequence[InboxRow], at_ms: int, epoch: int, new_id: Callable[[str], str]
) -> Intake:
    """Turn all untaken rows into the facts that take them."""
    answered = {row.item.body.request_id for row in rows if isinstance(row.item.body, AnswerRequest)}
    facts: list[Draft] = []
    takes: list[int] = []
    stop: int | None = None
    for row in rows:
        if isinstance(row.item.body, Stop) and stop is None and not state.closed:
            stop = row.id
            continue
        drafts = _read(state, row.item, answered, new_id) if not state.closed else ()
        state = advance(state, drafts, at_ms, epoch)
        facts.extend(drafts)
        takes.append(row.id)
    return Intake(tuple(facts), tuple(takes), stop)


def _read(state: SessionState, item: InboxItem, answered: set[str], new_id: Callable[[str], str]) -> Sequence[Draft]:
    match item.body:
        case Input() as body:
            return _input(state, item, body, answered)
        case Withdraw(input_id):
            waiting = state.inputs.get(input_id)
            if waiting is None or waiting.bound:
                return (_moot("withdraw_too_late", input_id=input_id),)
            return (Draft(None, InputWithdrawn(input_id, item.principal)),)
        case AnswerRequest() as body:
            return _answer(state, item, body, new_id)
        case Cancel(run_id):
            return _cancel(state, run_id, item.principal)
        case Config(patch):
            return (Draft(None, ConfigChanged(patch, item.principal)),)
        case RevokeRule(rule_id):
            return (Draft(None, RuleRevoked(rule_id, item.principal)),) if rule_id in state.rules else ()
        case LateResult() as body:
            return late_result(state, body, answered)
        case Log(entries):
            return (Draft(None, Note("info", {"log": list(entries)})),)
        case Request(request_id, type, data):
            if request_id in state.requests or request_id in state.closed_requests:
                return (_moot("request_id_reused", request_id=request_id),)
            run_id = state.root.run_id if state.root and state.root.cancel is None else None
            schema = answer_schema("custom")
            return (Draft(run_id, InteractionRequested(request_id, "custom", data, schema, type)),)
        case Stop():
            return ()


def _moot(code: str, **data: Any) -> Draft:
    return Draft(None, Note("info", {"code": code, **data}))


def _input(state: SessionState, item: InboxItem, body: Input, answered: set[str]) -> Sequence[Draft]:
    root = state.root
    steers = body.mode == "steer" and root is not None and root.cancel is None
    mode = "steer" if steers else "queue"
    accepted = InputAccepted(body.input_id, mode, body.blocks, item.principal, item.idem_key, body.type, body.data)
    drafts = [Draft(body.run_id, accepted)]
    if body.deny_open:
        words = " ".join(block.text for block in body.blocks if block.type == "text") or DENIED
        drafts += [
            Draft(request.run_id, InteractionResolved(request.request_id, item.principal, "denied", note=words))
            for request in state.requests.values()
            # One that a person has answered is left to its answer, wherever that stands in the inbox (H13).
            if request.purpose == "approval" and request.request_id not in answered
        ]
    return drafts


def _answer(state: SessionState, item: InboxItem, body: AnswerRequest, new_id: Callable[[str], str]) -> Sequence[Draft]:
    request = state.requests.get(body.request_id)
    if request is None:
        return (_moot("answer_too_late", request_id=body.request_id),)
    answer = body.answer
    effective: str | None = None
    rule: Rule | None = None
    if answer.decision == "approved":
        effective = request.input_digest if answer.edited_input is None else digest(answer.edited_input)
        if answer.remember == "session":
            rule = Rule(new_id("rule"), str(request.data["tool"]), request.tool_digest, effective)
    resolved = InteractionResolved(
        body.request_id,
        item.principal,
        answer.decision,
        answer.value,
        answer.edited_input,
        effective,
        answer.note,
        rule,
    )
    return (Draft(request.run_id, resolved),)


def _cancel(state: SessionState, run_id: str | None, principal: str) -> Sequence[Draft]:
    target = run_id or (state.root.run_id if state.root else None)
    run = state.runs.get(target or "")
    if run is not None and run.live:
        return () if run.cancel is not None else (Draft(run.run_id, CancelRequested(principal)),)
    waiting = next((w for w in state.inputs.values() if w.run_id == target and not w.bound), None)
    return (Draft(None, InputWithdrawn(waiting.input_id, principal)),) if waiting else ()


def late_result(state: SessionState, late: LateResult, answered: Container[str] = ()) -> Sequence[Draft]:
    """Return the facts for a result that came after its attempt was given up.

    While the question about its outcome is open, the result answers it, in one append (H17); else it is only noted. A
    person was first if the request is among those `answered` in the inbox.
    """
    run = state.runs.get(late.run_id)
    call = run.calls.get(late.call_id) if run is not None and run.live else None
    doubted = call is not None and call.attempt == late.attempt and call.phase == "doubted"
    request_id = call.request_id if call is not None and doubted else None
    if request_id is not None and request_id not in answered:
        return (
            Draft(late.run_id, InteractionResolved(request_id, "system", "withdrawn")),
            Draft(
                late.run_id,
                ToolEnded(late.call_id, late.attempt, late.status, late.blocks, late.elapsed_ms, late=True),
            ),
        )
    told = " ".join(block.text for block in late.blocks if block.type == "text")
    data = {"late": {"run_id": late.run_id, "call_id": late.call_id, "attempt": late.attempt, "status": late.status}}
    return (Draft(None, Note("warning", {**data, "text": told[:10_000]})),)
