"""The run machine: one run's state, the facts it allows, and the table of what is due in each state. Pure.

`step(run, fact, request)` returns the next state, or raises `IllegalFactError` and changes nothing. `due.due_run(run,
view)` reads the table's right side. Commands follow from the state alone, so that live and resumed runs are one path.

```
phase       what happened last                           what is due
----------  -------------------------------------------  ------------------------------------------------------------
model       run_started                                  CallModel(1, 1)
model       turn_started, reader lives                   -
model       turn_started, reader lost                    CloseResponse(abandoned; cancelled when cancelling)
model       response complete or cut, with calls         (calls)
model       complete, empty, first of this turn          CallModel(turn, attempt+1)
model       complete or cut, no calls, a steer waits     CallModel(turn+1), or RunEnded(completed) at a limit
model       complete "other", three-method Backend       CallModel(turn+1), or RunEnded(limit)
model       cut, no calls                                CallModel(turn+1) up to `continue_on_cut` times, else RunEnded
model       complete, no calls                           RunEnded(completed); empty again: a note before it
model       failed, retryable, fewer than 3              CallModel(turn, attempt+1, not_before)
model       failed otherwise                             RunEnded(failed)
model       abandoned, fewer than 3                      CallModel(turn, attempt+1); else RunEnded(failed)
calls       see the call's phases below                  ...
calls       all settled                                  CallModel(turn+1), or RunEnded(budget_exceeded | max_turns)
cancelling  cancel_requested                             CancelModel, CancelTool, cancel children, withdraw requests;
                                                         ToolEnded(not_run) for what never started; then RunEnded
ended       run_ended                                    nothing; every fact is illegal

call phase  what happened last                           what is due
----------  -------------------------------------------  ------------------------------------------------------------
proposed    in the response                              PrepareCall; a cut or broken one: ToolEnded(invalid)
prepared    verdict of this epoch                        StartTool | Ask | ToolEnded(denied, invalid, error)
prepared    verdict of an older epoch                    PrepareCall again: authority lives only in its own epoch
asked       interaction_requested                        -
approved    interaction_resolved approved                PrepareCall(effective input)
refused     denied, expired | withdrawn                  ToolEnded(denied | not_run)
answered    a question that stands for the call          ToolEnded(ok)
running     tool_started, in flight                      -
running     tool_started, lost                           retry (newer epoch): PrepareCall · error: ToolEnded(unknown)
                                                         · ask: Ask(unknown_outcome)
delegated   tool_started with a child run                when the child has ended: ToolEnded
doubted     interaction_requested(unknown_outcome)       -
decided     ran | not_run | again                        ToolEnded(ok | not_run) | CancelTool, PrepareCall
unknown     unknown_outcome expired or withdrawn         ToolEnded(unknown)
settled     tool_ended                                   -
```
Before *every* CallModel: cancel, then the budget, then (new turn only) max_turns. A verdict only ever becomes stricter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast, get_args

from ownloop.core import results
from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Fact,
    InteractionRequested,
    InteractionResolved,
    Limits,
    Outcome,
    PreparedCall,
    ResponseEnded,
    RunEnded,
    RunStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.interactions import Purpose, UnknownOutcome
from ownloop.core.messages import (
    Json,
    Message,
    ResultContent,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    calls_of,
    text_of,
)
from ownloop.core.turn import is_empty
from ownloop.core.usage import Usage
from ownloop.errors import IllegalFactError

CallPhase: TypeAlias = Literal[
    "proposed",
    "prepared",
    "asked",
    "approved",
    "refused",
    "answered",
    "running",
    "delegated",
    "doubted",
    "decided",
    "unknown",
    "settled",
]
REFUSED = frozenset({"deny", "invalid", "unknown_tool"})
"""Verdicts that are final: no later one may be weaker."""


@dataclass(frozen=True, slots=True)
class RequestState:
    """A request that is open."""

    request_id: str
    seq: int
    run_id: str | None
    call_id: str | None
    purpose: Purpose
    data: Any
    schema: Json
    type: str = ""
    tool_digest: str = ""
    input_digest: str = ""
    assignee: str | None = None
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a person allowed: this tool, as it was shown, with exactly this input. Used up by one start."""

    request_id: str
    tool_digest: str
    input_digest: str

    def covers(self, prepared: PreparedCall) -> bool:
        """Whether this is the tool and the input that were allowed."""
        return (self.tool_digest, self.input_digest) == (prepared.tool_digest, prepared.input_digest)


@dataclass(frozen=True, slots=True)
class CallState:
    block: ToolCallBlock
    phase: CallPhase = "proposed"
    input: Json = field(default_factory=dict[str, Any])
    """The effective input: as proposed, then as edited by a person or decoded by prepare."""
    edited: bool = False
    prepared: PreparedCall | None = None
    prepared_epoch: int = -1
    request_id: str | None = None
    """Its open approval, durable question or unknown_outcome."""
    questions: tuple[str, ...] = ()
    """Open requests that the running tool itself makes."""
    grant: Grant | None = None
    refusal: tuple[Literal["denied", "not_run"], tuple[ResultContent, ...]] | None = None
    answer: Any = None
    """The value of a durable question, or {outcome, result?} of an unknown_outcome."""
    attempt: int = 0
    """The latest start; 0 = never started."""
    started: ToolStarted | None = None
    started_epoch: int = -1
    result: ToolEnded | None = None

    @property
    def call_id(self) -> str:
        return self.block.call_id

    @property
    def name(self) -> str:
        return self.block.name


@dataclass(frozen=True, slots=True)
class RunState:
    run_id: str
    limits: Limits
    model: str
    started_seq: int
    input_ids: tuple[str, ...] = ()
    parent_run_id: str | None = None
    parent_call_id: str | None = None
    depth: int = 0
    agent: str | None = None
    messages: tuple[Message, ...] = ()
    """What this run added to the conversation."""
    turn: int = 0
    attempt: int = 0
    stream: int | None = None
    """The open turn_started."""
    provider: str = ""
    provider_model: str = ""
    last: ResponseEnded | None = None
    last_at_ms: int = 0
    failures: int = 0
    abandons: int = 0
    empties: int = 0
    cuts: int = 0
    calls: Mapping[str, CallState] = field(default_factory=dict[str, CallState])
    """Those of the current turn, in call order."""
    cancel: CancelRequested | None = None
    cancel_at_ms: int = 0
    usage: Usage | None = None
    cost: float | None = None
    tree_tokens: int = 0
    """Tokens of this run and its sub-agents: what the budget counts."""
    tree_cost: float = 0.0
    ended: RunEnded | None = None

    @property
    def live(self) -> bool:
        return self.ended is None

    @property
    def is_root(self) -> bool:
        return self.parent_run_id is None

    @property
    def settled(self) -> bool:
        return all(call.phase == "settled" for call in self.calls.values())

    @property
    def over_budget(self) -> bool:
        """The tokens, or the money, of this run and its sub-agents are spent."""
        tokens, cost = self.limits.budget_tokens, self.limits.budget_cost
        return (tokens is not None and self.tree_tokens >= tokens) or (cost is not None and self.tree_cost >= cost)


def start(fact: Fact, body: RunStarted) -> RunState:
    """Return the state of a run that has just started."""
    run_id = _need(fact.run_id, "run_started without a run_id")
    task = (Message("user", body.task, fact.seq),) if body.task else ()
    return RunState(
        run_id,
        body.limits,
        body.model,
        fact.seq,
        body.input_ids,
        body.parent_run_id,
        body.parent_call_id,
        body.depth,
        body.agent,
        messages=task,
    )


def step(run: RunState, fact: Fact, request: RequestState | None = None, quiet: bool = True) -> RunState:
    """Return the run after `fact`; `request` is the open request that it resolves.

    `quiet` says that no request of the run is open and no child of it lives.

    Raises:
        IllegalFactError: the fact is not allowed here.
    """
    if run.ended is not None:
        raise IllegalFactError(f"{fact.body.kind} after the end of run {run.run_id!r}")
    match fact.body:
        case TurnStarted() as body:
            return _turn_started(run, fact, body, quiet)
        case ResponseEnded() as body:
            return _response_ended(run, fact, body)
        case CallsPrepared() as body:
            return _calls_prepared(run, fact, body)
        case InteractionRequested() as body:
            return _requested(run, body)
        case InteractionResolved() as body:
            return _resolved(run, body, _need(request, f"request {body.request_id!r} is not open"))
        case ToolStarted() as body:
            return _tool_started(run, fact, body)
        case ToolEnded() as body:
            return _tool_ended(run, fact, body)
        case CancelRequested() as body:
            if run.cancel is not None:
                raise IllegalFactError(f"run {run.run_id!r} is cancelled already")
            return replace(run, cancel=body, cancel_at_ms=fact.at_ms)
        case RunEnded() as body:
            return _run_ended(run, body, quiet)
        case _:
            raise IllegalFactError(f"{fact.body.kind} is no fact of a run")


def without_grants(run: RunState) -> RunState:
    """Return the run as a fork has it: what was answered in the original allows nothing there."""
    return replace(run, calls={id: replace(call, grant=None) for id, call in run.calls.items()})


def _need(value: Any, problem: str) -> Any:
    if value is None:
        raise IllegalFactError(problem)
    return value


def _turn_started(run: RunState, fact: Fact, body: TurnStarted, quiet: bool) -> RunState:
    if run.cancel is not None:
        raise IllegalFactError("a turn cannot start in a cancelled run")
    if run.stream is not None:
        raise IllegalFactError("a turn cannot start while a response is open")
    if not run.settled or not quiet:
        raise IllegalFactError("a turn cannot start before every call is settled and every request closed")
    allowed = _next_turns(run, has_input=bool(body.input_ids))
    if (body.turn, body.attempt) not in allowed:
        due = " or ".join(f"{turn}.{attempt}" for turn, attempt in allowed) or "none"
        raise IllegalFactError(f"turn {body.turn}.{body.attempt} started where {due} was due")
    if body.attempt == 1 and run.limits.max_turns and body.turn > run.limits.max_turns:
        raise IllegalFactError(f"turn {body.turn} is beyond the limit of {run.limits.max_turns}")
    first = body.attempt == 1
    return replace(
        run,
        turn=body.turn,
        attempt=body.attempt,
        stream=fact.seq,
        provider=body.provider,
        provider_model=body.model,
        failures=0 if first else run.failures,
        abandons=0 if first else run.abandons,
        empties=0 if first else run.empties,
        calls={} if first else run.calls,
    )


def _next_turns(run: RunState, has_input: bool) -> tuple[tuple[int, int], ...]:
    """Return which (turn, attempt) may start now; `has_input` says that it would bring something new."""
    last, once_more, new = run.last, (run.turn, run.attempt + 1), (run.turn + 1, 1)
    if last is None or run.calls:
        return (new,)
    if last.status in ("failed", "abandoned"):
        return (once_more,)
    again = (once_more,) if asked_nothing(last) else ()
    return (*again, new) if has_input or goes_on(run, last) else again


def goes_on(run: RunState, last: ResponseEnded) -> bool:
    """Whether an answer without calls is not yet the end."""
    if last.status == "cut":
        return run.cuts <= run.limits.continue_on_cut
    return last.stop_reason == "other" and run.limits.continue_on_other


def _response_ended(run: RunState, fact: Fact, body: ResponseEnded) -> RunState:
    if run.stream is None or body.turn != run.turn:
        raise IllegalFactError(f"no response of turn {body.turn} is open")
    if body.status == "cancelled" and run.cancel is None:
        raise IllegalFactError("a response can only be cancelled in a cancelled run")
    messages = run.messages
    calls: dict[str, CallState] = {}
    if body.status in ("complete", "cut"):
        calls = {block.call_id: CallState(block, input=block.input) for block in calls_of(body.blocks)}
        if len(calls) != len(calls_of(body.blocks)):
            raise IllegalFactError("two calls of a response share one id")
        if calls or not is_empty(body):
            messages = (*messages, _assistant(run, fact.seq, body.blocks))
    elif body.status == "cancelled" and text_of(body.blocks).strip():
        # Only the text of a response that was cut off by its run's end is history; its calls never were.
        messages = (*messages, _assistant(run, fact.seq, [b for b in body.blocks if isinstance(b, TextBlock)]))
    tokens = body.usage.total if body.usage else 0
    return replace(
        run,
        stream=None,
        last=body,
        last_at_ms=fact.at_ms,
        messages=messages,
        calls=calls,
        failures=run.failures + (body.status == "failed"),
        abandons=run.abandons + (body.status == "abandoned"),
        empties=run.empties + asked_nothing(body),
        cuts=run.cuts + (body.status == "cut" and not calls),
        usage=run.usage if body.usage is None else replace(body.usage, raw={}) + (run.usage or Usage()),
        cost=run.cost if body.cost is None else body.cost + (run.cost or 0.0),
        tree_tokens=run.tree_tokens + tokens,
        tree_cost=run.tree_cost + (body.cost or 0.0),
    )


def _assistant(run: RunState, seq: int, blocks: Iterable[Any]) -> Message:
    return Message("assistant", tuple(blocks), seq, run.provider or None, run.provider_model or None)


def asked_nothing(body: ResponseEnded) -> bool:
    return body.status == "complete" and is_empty(body)


def _calls_prepared(run: RunState, fact: Fact, body: CallsPrepared) -> RunState:
    if run.cancel is not None:
        raise IllegalFactError("calls of a cancelled run are not prepared")
    calls = dict(run.calls)
    for prepared in body.calls:
        call = _need(calls.get(prepared.call_id), f"call {prepared.call_id!r} is not of this turn")
        if body.turn != run.turn or not _may_prepare(run, call, fact.epoch):
            raise IllegalFactError(f"call {call.call_id!r} is {call.phase}; it cannot be prepared now")
        calls[call.call_id] = replace(
            call,
            phase="prepared",
            prepared=_stricter(call, prepared),
            prepared_epoch=fact.epoch,
            input=call.input if prepared.input is None else prepared.input,
            refusal=None,
        )
    return replace(run, calls=calls)


def _may_prepare(run: RunState, call: CallState, epoch: int) -> bool:
    match call.phase:
        case "proposed":
            return call.block.problem is None
        case "prepared":
            return call.prepared is not None and call.prepared.verdict not in REFUSED
        case "approved":
            return True
        case "refused":
            # A fork asks anew, in the append that withdraws the question.
            return call.refusal is not None and call.refusal[0] == "not_run"
        case "running":
            return not call.questions and may_retry(run, call, epoch)
        case "decided":
            return call.answer["outcome"] == "again"
        case _:
            return False


def may_retry(run: RunState, call: CallState, epoch: int) -> bool:
    """Whether a lost attempt may be followed by another without asking: only by a new owner, and not for ever (H23)."""
    started = call.started
    lost = started is not None and started.on_unknown == "retry" and call.started_epoch < epoch
    return lost and call.attempt < run.limits.attempts


def _stricter(call: CallState, new: PreparedCall) -> PreparedCall:
    """A stored verdict may become stricter by a new deployment, never weaker.

    What had to be asked needs its answer for every start, also where policy would allow it by now.
    """
    old = call.prepared
    asked = old is not None and old.verdict == "ask" and new.verdict == "run"
    return replace(new, verdict="ask", purpose=old.purpose) if asked and old else new


def _requested(run: RunState, body: InteractionRequested) -> RunState:
    if run.cancel is not None:
        raise IllegalFactError("nothing is asked in a cancelled run")
    if body.call_id is None:
        return run
    call = _need(run.calls.get(body.call_id), f"call {body.call_id!r} is not of this turn")
    if body.purpose == "unknown_outcome":
        if call.phase != "running" or call.questions:
            raise IllegalFactError(f"call {call.call_id!r} is {call.phase}; its outcome is not in doubt")
        return _with(run, replace(call, phase="doubted", request_id=body.request_id))
    if call.phase == "running" and body.purpose != "approval":
        return _with(run, replace(call, questions=(*call.questions, body.request_id)))
    prepared = call.prepared
    asks = call.phase == "prepared" and call.attempt == 0 and prepared is not None and prepared.verdict == "ask"
    if not asks or prepared is None or prepared.purpose != body.purpose:
        raise IllegalFactError(f"call {call.call_id!r} is {call.phase}; no {body.purpose} is due for it")
    return _with(run, replace(call, phase="asked", request_id=body.request_id))


def _resolved(run: RunState, body: InteractionResolved, request: RequestState) -> RunState:
    allowed = {"expired", "withdrawn", "denied", "approved" if request.purpose == "approval" else "answered"}
    if body.decision not in allowed:
        raise IllegalFactError(f"an {request.purpose} request cannot be {body.decision}")
    if request.call_id is None:
        return run
    call = _need(run.calls.get(request.call_id), f"call {request.call_id!r} is not of this turn")
    if body.request_id in call.questions:
        return _with(run, replace(call, questions=tuple(q for q in call.questions if q != body.request_id)))
    call = replace(call, request_id=None)
    if request.purpose == "unknown_outcome":
        if body.decision != "answered":
            return _with(run, replace(call, phase="unknown"))
        answer = cast("Json", body.value) if isinstance(body.value, dict) else {}
        outcome = answer.get("outcome")
        if outcome not in get_args(UnknownOutcome):
            raise IllegalFactError("the outcome of a call is answered with ran, not_run or again")
        again = outcome == "again"
        grant = Grant(body.request_id, request.tool_digest, request.input_digest) if again else None
        return _with(run, replace(call, phase="decided", answer=answer, grant=grant))
    match body.decision:
        case "approved":
            digest = body.effective_digest or request.input_digest
            edited = body.edited_input is not None
            effective = body.edited_input if body.edited_input is not None else call.input
            grant = Grant(body.request_id, request.tool_digest, digest)
            call = replace(call, phase="approved", grant=grant, input=effective, edited=call.edited or edited)
        case "answered":
            call = replace(call, phase="answered", answer=body.value)
        case "denied":
            words = results.text(results.DECLINED) if request.purpose == "question" else results.denied(body.note)
            call = replace(call, phase="refused", refusal=("denied", words))
        case "expired":
            call = replace(call, phase="refused", refusal=("denied", results.text(results.EXPIRED)))
        case "withdrawn":
            call = replace(call, phase="refused", refusal=("not_run", results.text(results.WITHDRAWN)))
    return _with(run, call)


def _tool_started(run: RunState, fact: Fact, body: ToolStarted) -> RunState:
    if run.cancel is not None:
        raise IllegalFactError("no tool is started in a cancelled run")
    call = _need(run.calls.get(body.call_id), f"call {body.call_id!r} is not of this turn")
    authority = authority_of(call, fact.epoch)
    if authority is None or call.prepared is None:
        raise IllegalFactError(
            f"call {call.call_id!r} is {call.phase}; nothing allows it to start in epoch {fact.epoch}"
        )
    if body.authority != authority or body.effective_digest != call.prepared.input_digest:
        raise IllegalFactError(
            f"call {call.call_id!r} was allowed by {authority!r}, for another input or by another authority"
        )
    if body.attempt != call.attempt + 1:
        raise IllegalFactError(f"attempt {body.attempt} of call {call.call_id!r} follows attempt {call.attempt}")
    phase: CallPhase = "delegated" if body.child_run_id else "running"
    return _with(
        run,
        replace(
            call, phase=phase, attempt=body.attempt, started=body, started_epoch=fact.epoch, grant=None, answer=None
        ),
    )


def authority_of(call: CallState, epoch: int) -> str | None:
    """Return what allows this call to start now: its grant, or the rule that said `run`; None if nothing does."""
    prepared, grant = call.prepared, call.grant
    if call.phase != "prepared" or prepared is None or prepared.verdict in REFUSED or call.prepared_epoch != epoch:
        return None
    if grant is not None and grant.covers(prepared):
        return grant.request_id
    return prepared.rule if prepared.verdict == "run" else None


def _tool_ended(run: RunState, fact: Fact, body: ToolEnded) -> RunState:
    call = _need(run.calls.get(body.call_id), f"call {body.call_id!r} is not of this turn")
    if call.phase == "settled":
        raise IllegalFactError(f"call {call.call_id!r} has its result already")
    if body.attempt != call.attempt:
        raise IllegalFactError(
            f"attempt {body.attempt} of call {call.call_id!r} is not its current one, {call.attempt}"
        )
    if call.request_id is not None or call.questions:
        raise IllegalFactError(f"call {call.call_id!r} has an open request; it must be resolved first")
    if call.attempt == 0 and body.status not in _unstarted_endings(run, call):
        raise IllegalFactError(f"call {call.call_id!r} was never started; it cannot end {body.status}")
    if call.attempt > 0 and body.status not in _started_endings(call, body.late):
        raise IllegalFactError(f"call {call.call_id!r} was started; it cannot end {body.status} here")
    run = _with(run, replace(call, phase="settled", result=body))
    if not run.settled:
        return run
    blocks = tuple(_result_block(call) for call in run.calls.values())
    return replace(run, messages=(*run.messages, Message("tool", blocks, fact.seq)))


def _unstarted_endings(run: RunState, call: CallState) -> set[str]:
    if run.cancel is not None:
        return {"not_run"}
    if call.block.problem is not None:
        return {"invalid"}
    match call.phase:
        case "prepared":
            verdict = call.prepared.verdict if call.prepared else ""
            return {"deny": {"denied"}, "invalid": {"invalid"}, "unknown_tool": {"error"}}.get(verdict, set())
        case "refused":
            return {call.refusal[0]} if call.refusal else set()
        case "answered":
            return {"ok"}
        case _:
            return set()


def _started_endings(call: CallState, late: bool) -> set[str]:
    match call.phase:
        case "running" | "delegated":
            return {"ok", "error", "timeout", "cancelled", "unknown"}
        case "decided":
            return {"ran": {"ok"}, "not_run": {"not_run"}}.get(call.answer["outcome"], set()) | {"unknown"}
        case "unknown" if late:
            # In the append that withdrew the question.
            return {"ok", "error", "timeout", "cancelled"}
        case _:
            return {"unknown"}


def _result_block(call: CallState) -> ToolResultBlock:
    assert call.result is not None
    blocks = call.result.blocks
    if call.edited and call.attempt > 0:
        blocks = (*blocks, results.edited(call.input))
    return ToolResultBlock(call.call_id, call.name, blocks, is_error=call.result.status != "ok")


def _run_ended(run: RunState, body: RunEnded, quiet: bool) -> RunState:
    if run.stream is not None or not run.settled or not quiet:
        raise IllegalFactError(
            f"run {run.run_id!r} cannot end while a response, call, request or sub-agent of it is open"
        )
    if run.cancel is not None and body.outcome != cancelled_as(run):
        raise IllegalFactError(f"a run cancelled so ends {cancelled_as(run)}, not {body.outcome}")
    if run.cancel is None and body.outcome == "cancelled":
        raise IllegalFactError("a run that nobody cancelled cannot end cancelled")
    return replace(run, ended=body)


def cancelled_as(run: RunState) -> Outcome:
    return "failed" if run.cancel is not None and run.cancel.error is not None else "cancelled"


def _with(run: RunState, call: CallState) -> RunState:
    return replace(run, calls={**run.calls, call.call_id: call})
