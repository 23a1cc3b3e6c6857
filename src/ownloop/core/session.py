"""The fold of a journal: `apply(state, fact)` is the one way a session's state comes about, live and after a restart.

`due(state, epoch, in_flight)` says what is to be done; both are pure. Facts that the journal does not allow raise
`IllegalFactError` and leave the state as it was (states are values).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ownloop.core.commands import Command, EndSegment, InFlight, Record, StartRun
from ownloop.core.due import View, due_run, withdraw
from ownloop.core.events import (
    CancelRequested,
    Compacted,
    ConfigChanged,
    Draft,
    Fact,
    InputAccepted,
    InputMode,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Note,
    ParentRef,
    ResponseEnded,
    Rule,
    RuleRevoked,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import BlobBlock, Json, Message, TextBlock, ToolResultBlock
from ownloop.core.run import RequestState, RunState, start, step, without_grants
from ownloop.core.usage import Usage
from ownloop.errors import IllegalFactError


@dataclass(frozen=True, slots=True)
class WaitingInput:
    """An input that no turn has consumed yet."""

    input_id: str
    run_id: str
    mode: InputMode
    blocks: tuple[TextBlock | BlobBlock, ...]
    principal: str
    bound: bool = False
    """Its run has started; it can no longer be withdrawn, only the run be cancelled."""
    type: str = "message"
    data: Any = None


@dataclass(frozen=True, slots=True)
class SessionState:
    agent: str
    agent_digest: str
    config: Json
    principal: str
    parent: ParentRef | None
    head_seq: int
    epoch: int
    messages: tuple[Message, ...] = ()
    """The conversation up to the last ended run; a live run holds its own part."""
    compacted_upto: int = 0
    inputs: Mapping[str, WaitingInput] = field(default_factory=dict[str, WaitingInput])
    runs: Mapping[str, RunState] = field(default_factory=dict[str, RunState])
    """Live runs, and ended sub-agents whose caller has not taken the result yet."""
    requests: Mapping[str, RequestState] = field(default_factory=dict[str, RequestState])
    """Those that are open."""
    closed_requests: frozenset[str] = frozenset()
    rules: Mapping[str, Rule] = field(default_factory=dict[str, Rule])
    usage: Usage | None = None
    cost: float | None = None
    blobs: frozenset[str] = frozenset()
    closed: bool = False

    @property
    def root(self) -> RunState | None:
        """The live root run."""
        return next((run for run in self.runs.values() if run.is_root and run.live), None)


def fold(facts: Iterable[Fact], state: SessionState | None = None) -> SessionState:
    """Return the state after `facts`. Raises `IllegalFactError`, also if there is none."""
    for fact in facts:
        state = apply(state, fact)
    if state is None:
        raise IllegalFactError("an empty journal is no session")
    return state


def advance(state: SessionState, drafts: Sequence[Draft], at_ms: int, epoch: int) -> SessionState:
    """Return the state after facts that are about to be appended."""
    for draft in drafts:
        state = apply(state, Fact(state.head_seq + 1, at_ms, epoch, draft.run_id, draft.body))
    return state


def apply(state: SessionState | None, fact: Fact) -> SessionState:
    """Return the state after one more fact.

    Raises:
        IllegalFactError: the fact cannot stand here; nothing is changed.
    """
    body = fact.body
    if state is None:
        if not isinstance(body, SessionStarted) or fact.seq != 1:
            raise IllegalFactError(f"a journal begins with session_started at seq 1, not {body.kind} at {fact.seq}")
        return SessionState(
            body.agent, body.agent_digest, body.config, body.principal, body.parent, fact.seq, fact.epoch
        )
    if fact.seq != state.head_seq + 1:
        raise IllegalFactError(f"fact {fact.seq} does not follow {state.head_seq}: the journal has a gap or a double")
    if fact.epoch < state.epoch:
        raise IllegalFactError(f"fact {fact.seq} is of epoch {fact.epoch}, after one of epoch {state.epoch}")
    if state.closed and not isinstance(body, SessionStarted):
        raise IllegalFactError(f"{body.kind} after session_closed")
    return replace(_applied(state, fact), head_seq=fact.seq, epoch=fact.epoch)


def _applied(state: SessionState, fact: Fact) -> SessionState:
    match fact.body:
        case InputAccepted() as body:
            return _input_accepted(state, fact, body)
        case InputWithdrawn(input_id):
            waiting = state.inputs.get(input_id)
            if waiting is None or waiting.bound:
                raise IllegalFactError(f"input {input_id!r} does not wait; it cannot be withdrawn")
            return replace(state, inputs=_without(state.inputs, input_id))
        case RunStarted() as body:
            return _run_started(state, fact, body)
        case TurnStarted() as body:
            return _turn_started(state, fact, body)
        case InteractionRequested() as body:
            return _requested(state, fact, body)
        case InteractionResolved() as body:
            return _resolved(state, fact, body)
        case ResponseEnded() as body:
            state = _stepped(state, fact)
            return _spent(state, _run(state, fact), body)
        case ToolStarted() | CancelRequested():
            return _stepped(state, fact)
        case ToolEnded() as body:
            child = next((r for r in state.runs.values() if r.parent_call_id == body.call_id), None)
            if child is not None and child.live:
                raise IllegalFactError(f"call {body.call_id!r} cannot end before its sub-agent {child.run_id!r}")
            state = _stepped(state, fact)
            blobs = frozenset(block.digest for block in body.blocks if isinstance(block, BlobBlock))
            return replace(
                state,
                runs=_without(state.runs, child.run_id) if child else state.runs,
                blobs=state.blobs | blobs if blobs else state.blobs,
            )
        case RunEnded():
            return _run_ended(_stepped(state, fact), _run(state, fact))
        case ConfigChanged(patch):
            return replace(state, config={**state.config, **patch})
        case RuleRevoked(rule_id):
            if rule_id not in state.rules:
                raise IllegalFactError(f"there is no rule {rule_id!r}")
            return replace(state, rules=_without(state.rules, rule_id))
        case Compacted() as body:
            return _compacted(state, fact, body)
        case Note():
            return state
        case SessionClosed():
            if state.inputs or state.requests or any(run.live for run in state.runs.values()):
                raise IllegalFactError("a session with a live run, a waiting input or an open request cannot be closed")
            return replace(state, closed=True)
        case SessionStarted() as body:
            # A fork's own first fact: it goes on from its parent's prefix.
            if body.parent is None or body.parent.seq != state.head_seq:
                raise IllegalFactError("session_started in the middle of a journal")
            return replace(
                state,
                agent=body.agent,
                agent_digest=body.agent_digest,
                config={**state.config, **body.config},
                principal=body.principal,
                parent=body.parent,
                runs={run_id: without_grants(run) for run_id, run in state.runs.items()},
                rules={},
                closed=False,
            )
        case _:
            return _stepped(state, fact)


def _run(state: SessionState, fact: Fact) -> RunState:
    run = state.runs.get(fact.run_id or "")
    if run is None:
        raise IllegalFactError(f"{fact.body.kind} of run {fact.run_id!r}, which is not live")
    return run


def _stepped(state: SessionState, fact: Fact, request: RequestState | None = None) -> SessionState:
    run = _run(state, fact)
    return replace(state, runs={**state.runs, run.run_id: step(run, fact, request, _quiet(state, run))})


def _quiet(state: SessionState, run: RunState) -> bool:
    asks = any(request.run_id == run.run_id for request in state.requests.values())
    return not asks and not any(r.live and r.parent_run_id == run.run_id for r in state.runs.values())


def _input_accepted(state: SessionState, fact: Fact, body: InputAccepted) -> SessionState:
    run_ids = {*state.runs, *(waiting.run_id for waiting in state.inputs.values())}
    if fact.run_id is None or body.input_id in state.inputs or fact.run_id in run_ids:
        raise IllegalFactError(f"input {body.input_id!r} was accepted before, or names no run of its own")
    root = state.root
    if body.mode == "steer" and (root is None or root.cancel is not None):
        raise IllegalFactError("a steer needs a live root run that is not cancelled")
    blobs = frozenset(block.digest for block in body.blocks if isinstance(block, BlobBlock))
    waiting = WaitingInput(
        body.input_id, fact.run_id, body.mode, body.blocks, body.principal, type=body.type, data=body.data
    )
    return replace(
        state,
        inputs={**state.inputs, body.input_id: waiting},
        blobs=state.blobs | blobs if blobs else state.blobs,
    )


def _run_started(state: SessionState, fact: Fact, body: RunStarted) -> SessionState:
    run = start(fact, body)
    if run.run_id in state.runs:
        raise IllegalFactError(f"run {run.run_id!r} was started before")
    if body.parent_run_id is None:
        waiting = state.inputs.get(body.input_ids[0]) if len(body.input_ids) == 1 else None
        if waiting is None or waiting.run_id != run.run_id:
            raise IllegalFactError(f"run {run.run_id!r} starts from one waiting input that carries its id")
        if state.root is not None:
            raise IllegalFactError(f"run {run.run_id!r} cannot start while run {state.root.run_id!r} is live")
        inputs = {**state.inputs, waiting.input_id: replace(waiting, bound=True)}
        return replace(state, inputs=inputs, runs={**state.runs, run.run_id: run})
    parent = state.runs.get(body.parent_run_id)
    call = parent.calls.get(body.parent_call_id or "") if parent and parent.cancel is None else None
    if body.input_ids:
        raise IllegalFactError(f"run {run.run_id!r} of a sub-agent has a task, not inputs")
    if call is None or call.phase != "delegated" or call.started is None or call.started.child_run_id != run.run_id:
        raise IllegalFactError(f"run {run.run_id!r} is not what a call of run {body.parent_run_id!r} started")
    return replace(state, runs={**state.runs, run.run_id: run})


def _turn_started(state: SessionState, fact: Fact, body: TurnStarted) -> SessionState:
    before = _run(state, fact)
    if any(run.over_budget for run in _lineage(state, before)):
        raise IllegalFactError(f"turn {body.turn} of run {before.run_id!r} cannot start: its budget is spent")
    messages: list[Message] = []
    inputs = dict(state.inputs)
    for input_id in body.input_ids:
        waiting = inputs.pop(input_id, None)
        steer = waiting is not None and waiting.mode == "steer" and before.is_root
        if waiting is None or not (steer or input_id in before.input_ids):
            raise IllegalFactError(f"input {input_id!r} is not there for turn {body.turn} of run {before.run_id!r}")
        messages.append(Message("user", waiting.blocks, fact.seq, ids=(input_id,)))
    if before.turn == 0 and not set(before.input_ids) <= set(body.input_ids):
        raise IllegalFactError(f"the first turn of run {before.run_id!r} consumes the input that started it")
    state = _stepped(state, fact)
    run = state.runs[before.run_id]
    run = replace(run, messages=(*run.messages, *messages)) if messages else run
    return replace(state, inputs=inputs, runs={**state.runs, run.run_id: run})


def _requested(state: SessionState, fact: Fact, body: InteractionRequested) -> SessionState:
    if body.request_id in state.requests or body.request_id in state.closed_requests:
        raise IllegalFactError(f"request {body.request_id!r} was made before")
    if fact.run_id is not None:
        state = _stepped(state, fact)
    elif body.call_id is not None:
        raise IllegalFactError(f"request {body.request_id!r} is about a call, but names no run")
    request = RequestState(
        body.request_id,
        fact.seq,
        fact.run_id,
        body.call_id,
        body.purpose,
        body.data,
        body.schema,
        body.type,
        body.tool_digest or "",
        body.input_digest or "",
        body.assignee,
        body.expires_at_ms,
    )
    return replace(state, requests={**state.requests, body.request_id: request})


def _resolved(state: SessionState, fact: Fact, body: InteractionResolved) -> SessionState:
    request = state.requests.get(body.request_id)
    if request is None or request.run_id != fact.run_id:
        raise IllegalFactError(f"request {body.request_id!r} is not open in run {fact.run_id!r}")
    if request.run_id is not None:
        state = _stepped(state, fact, request)
    return replace(
        state,
        requests=_without(state.requests, body.request_id),
        closed_requests=state.closed_requests | {body.request_id},
        rules={**state.rules, body.rule.rule_id: body.rule} if body.rule else state.rules,
    )


def _spent(state: SessionState, run: RunState, body: ResponseEnded) -> SessionState:
    """Count a response in its session, and in the budgets of the runs above its own."""
    if body.usage is None and body.cost is None:
        return state
    runs = dict(state.runs)
    tokens, cost = body.usage.total if body.usage else 0, body.cost or 0.0
    _, *above = _lineage(state, run)
    for parent in above:
        more = replace(parent, tree_tokens=parent.tree_tokens + tokens, tree_cost=parent.tree_cost + cost)
        runs[parent.run_id] = more
    usage = state.usage if body.usage is None else replace(body.usage, raw={}) + (state.usage or Usage())
    return replace(
        state, runs=runs, usage=usage, cost=state.cost if body.cost is None else body.cost + (state.cost or 0.0)
    )


def _run_ended(state: SessionState, run: RunState) -> SessionState:
    if not run.is_root:
        return state  # kept until its caller has recorded the result
    inputs = {i: w for i, w in state.inputs.items() if i not in run.input_ids}
    gone = {run.run_id, *_below(state, run.run_id)}
    runs = {run_id: other for run_id, other in state.runs.items() if run_id not in gone}
    return replace(state, inputs=inputs, runs=runs, messages=state.messages + run.messages)


def _lineage(state: SessionState, run: RunState) -> Iterator[RunState]:
    """Yield a run, its caller, and so on up to the root."""
    above: RunState | None = run
    while above is not None:
        yield above
        above = state.runs.get(above.parent_run_id or "")


def _below(state: SessionState, run_id: str) -> Iterable[str]:
    for child in state.runs.values():
        if child.parent_run_id == run_id:
            yield child.run_id
            yield from _below(state, child.run_id)


def _compacted(state: SessionState, fact: Fact, body: Compacted) -> SessionState:
    rest = tuple(message for message in state.messages if message.seq > body.upto_seq)
    kept_whole = not rest or rest[0].role == "user"
    if not kept_whole or len(rest) == len(state.messages) or body.upto_seq < state.compacted_upto:
        raise IllegalFactError(f"seq {body.upto_seq} is no border between exchanges that could be compacted")
    summary = Message("user", body.blocks, fact.seq)
    return replace(state, messages=(summary, *rest), compacted_upto=body.upto_seq)


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in mapping.items() if k != key}


def history(state: SessionState, run_id: str) -> tuple[Message, ...]:
    """Return the conversation as the model of this live run is to see it."""
    run = state.runs[run_id]
    return state.messages + run.messages if run.is_root else run.messages


def last_results(state: SessionState, run_id: str) -> tuple[ToolResultBlock, ...]:
    """Return the results of the run's last turn with calls, in call order."""
    messages = state.runs[run_id].messages
    tool = next((message for message in reversed(messages) if message.role == "tool"), None)
    return tuple(b for b in tool.blocks if isinstance(b, ToolResultBlock)) if tool else ()


# --- commands --------------------------------------------------------------------------------------------------------


def due(state: SessionState, epoch: int, in_flight: InFlight, stopping: bool = False) -> list[Command]:
    """Return the commands that are due, in a good order; never empty while something is owed to anybody.

    All of one answer can be recorded one after the other. `stopping` says that a `stop` waits in the inbox. EndSegment
    comes alone.
    """
    if state.closed:
        return [EndSegment()]
    commands: list[Command] = []
    for run in state.runs.values():
        if run.live and not _awaits_cancel(state, run):
            commands.extend(due_run(run, _view(state, run, epoch, in_flight)))
    root = state.root
    if root is None and not commands:
        if stopping:
            withdrawn = [Draft(None, InputWithdrawn(i, "system")) for i in state.inputs]
            asked = [withdraw(request) for request in state.requests.values()]
            return [Record((*withdrawn, *asked, Draft(None, SessionClosed("system"))))]
        waiting = next(iter(state.inputs.values()), None)
        if waiting is not None:
            return [StartRun(waiting.input_id, waiting.run_id)]
    elif root is not None and stopping and root.cancel is None:
        return [Record((Draft(root.run_id, CancelRequested("system")),))]
    if not commands and not in_flight:
        expiries = [r.expires_at_ms for r in state.requests.values() if r.expires_at_ms is not None]
        return [EndSegment(min(expiries, default=None))]
    return commands


def _awaits_cancel(state: SessionState, run: RunState) -> bool:
    """Whether the cancel of a run above has yet to reach this one: until then nothing is begun for it."""
    return run.cancel is None and any(above.cancel is not None for above in _lineage(state, run))


def _view(state: SessionState, run: RunState, epoch: int, in_flight: InFlight) -> View:
    steers = (
        tuple(w.input_id for w in state.inputs.values() if w.mode == "steer" and not w.bound) if run.is_root else ()
    )
    return View(
        epoch,
        in_flight,
        [request for request in state.requests.values() if request.run_id == run.run_id],
        [child for child in state.runs.values() if child.parent_run_id == run.run_id],
        steers,
        any(above.over_budget for above in _lineage(state, run)),
    )


def expired(state: SessionState, now_ms: int) -> list[Draft]:
    """Return the facts that close the requests whose time is over."""
    return [
        Draft(request.run_id, InteractionResolved(request.request_id, "clock", "expired"))
        for request in state.requests.values()
        if request.expires_at_ms is not None and request.expires_at_ms <= now_ms
    ]
