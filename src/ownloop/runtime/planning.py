"""Planning a round of the loop: what is to be recorded, and what may begin once it is. Used by `loop` alone.

Everything is worked out on a trial state. The inbox comes first, so that what a person said is never overruled by what
the owner wants in the same round; then what the effects came to; then all that is due, until nothing more can be
recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ownloop.core import results
from ownloop.core.backend import Adapter
from ownloop.core.codec import digest
from ownloop.core.commands import (
    Ask,
    CallModel,
    CancelModel,
    CancelTool,
    CloseResponse,
    EndSegment,
    InFlight,
    PrepareCall,
    Record,
    StartRun,
    StartTool,
)
from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Draft,
    ErrorInfo,
    InteractionRequested,
    InteractionResolved,
    PreparedCall,
    RunStarted,
    ToolEnded,
    ToolStarted,
    ToolStatus,
    TurnStarted,
)
from ownloop.core.inbox import InboxRow, LateResult
from ownloop.core.intake import intake, late_result
from ownloop.core.interactions import answer_schema
from ownloop.core.messages import Json
from ownloop.core.ports import Definition, PrepareContext, ToolResult
from ownloop.core.repetition import with_hint
from ownloop.core.run import CallState, RunState
from ownloop.core.session import SessionState, advance, due, expired
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import abandoned
from ownloop.errors import OwnloopError
from ownloop.runtime.calls import (
    ResponseDone,
    ResponseReader,
    Signal,
    ToolAsks,
    ToolDone,
    ToolRun,
    decline,
    error_info,
)
from ownloop.runtime.environment import Environment
from ownloop.runtime.journal import Journal

logger = logging.getLogger(__name__)

OpenAdapter: TypeAlias = Callable[[str], Adapter]


@dataclass(slots=True)
class Flight:
    """What this segment is performing."""

    readers: dict[str, tuple[ResponseReader, asyncio.Task[None]]] = field(
        default_factory=dict[str, tuple[ResponseReader, "asyncio.Task[None]"]]
    )
    """By run."""
    tools: dict[tuple[str, int], ToolRun] = field(default_factory=dict[tuple[str, int], ToolRun])
    """By call and attempt."""


@dataclass(slots=True)
class Plan:
    """One round: facts to append together, the rows they take, and what may begin after their commit."""

    state: SessionState
    at_ms: int
    facts: list[Draft] = field(default_factory=list[Draft])
    takes: list[int] = field(default_factory=list[int])
    starts: list[StartTool] = field(default_factory=list[StartTool])
    calls: list[CallModel] = field(default_factory=list[CallModel])
    cancels: list[CancelTool | CancelModel] = field(default_factory=list[CancelTool | CancelModel])
    given_up: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    asks: dict[str, ToolAsks] = field(default_factory=dict[str, ToolAsks])
    not_before_ms: int | None = None
    end: EndSegment | None = None
    signals: int = 0
    """How many of the signals at hand the facts are made of."""


class Planner:
    """Plans the rounds of one segment."""

    def __init__(
        self, env: Environment, journal: Journal, definition: Definition, open_adapter: OpenAdapter, flight: Flight
    ) -> None:
        self._env = env
        self._journal = journal
        self._definition = definition
        self._open_adapter = open_adapter
        self._flight = flight
        self._specs: dict[str, ToolSpec] = {spec.name: spec for spec in definition.executor.specs}

    async def plan(self, rows: Sequence[InboxRow], signals: Sequence[Signal]) -> Plan:
        """Work out the next round from the state, the inbox and what the effects said."""
        plan = Plan(self._journal.state, self._env.clock.now_ms(), signals=len(signals))
        taken = intake(plan.state, rows, plan.at_ms, self._epoch, self._env.ids.new)
        self._add(plan, *taken.facts)
        plan.takes.extend(taken.takes)
        for signal in signals:
            self._take_signal(plan, signal)
        self._take_deadlines(plan)
        self._add(plan, *expired(plan.state, plan.at_ms))
        await self._take_due(plan, stopping=taken.stop is not None)
        if plan.state.closed and taken.stop is not None:
            plan.takes.append(taken.stop)
        return plan

    @property
    def _epoch(self) -> int:
        return self._journal.lease.epoch

    def _add(self, plan: Plan, *drafts: Draft) -> None:
        plan.state = advance(plan.state, drafts, plan.at_ms, self._epoch)
        plan.facts.extend(drafts)

    async def _take_due(self, plan: Plan, *, stopping: bool) -> None:
        """Add every fact that is due, and those that become due by it, until none is left."""
        while True:
            before = len(plan.facts)
            commands = due(plan.state, self._epoch, self._in_flight(plan), stopping)
            plan.not_before_ms, plan.end = None, None
            prepares: dict[str, list[PrepareCall]] = {}
            for command in commands:
                match command:
                    case PrepareCall():
                        prepares.setdefault(command.run_id, []).append(command)
                    case Record(facts):
                        self._add(plan, *(self._hinted(plan.state, draft) for draft in facts))
                    case Ask():
                        self._add(plan, self._ask(plan, command))
                    case StartTool():
                        self._add(plan, self._start_tool(plan, command))
                        plan.starts.append(command)
                    case CallModel():
                        self._call_model(plan, command)
                    case StartRun():
                        self._add(plan, self._start_run(plan, command))
                    case CloseResponse():
                        self._add(plan, await self._close_response(command))
                    case CancelTool() | CancelModel():
                        plan.cancels.append(command)
                    case EndSegment():
                        plan.end = command
            for run_id, calls in prepares.items():
                await self._prepare(plan, run_id, calls)
            if len(plan.facts) == before:
                return

    def _in_flight(self, plan: Plan) -> InFlight:
        tools = {run.id for run in self._flight.tools.values() if not run.given_up and run.id not in plan.given_up}
        models = set(self._flight.readers) | {call.run_id for call in plan.calls}
        return InFlight(frozenset(models), frozenset(tools | {(s.call_id, s.attempt) for s in plan.starts}))

    async def _prepare(self, plan: Plan, run_id: str, commands: Sequence[PrepareCall]) -> None:
        context = PrepareContext(self._journal.session_id, run_id, plan.state.rules, self._definition.deps)
        calls = plan.state.runs[run_id].calls
        prepared: list[PreparedCall] = []
        try:
            for command in commands:
                block = calls[command.call_id].block
                prepared.append(await self._definition.executor.prepare(block, command.input, context))
        except Exception as error:
            logger.exception("a call could not be prepared, session=%s run=%s", self._journal.session_id, run_id)
            self._fault(plan, run_id, error_info(error, self._definition.secrets))
            return
        self._add(plan, Draft(run_id, CallsPrepared(commands[0].turn, tuple(prepared))))

    def _ask(self, plan: Plan, command: Ask) -> Draft:
        call = plan.state.runs[command.run_id].calls[command.call_id]
        spec = self._specs.get(call.name)
        data: Json = {"tool": call.name, "input": call.input, "call_id": call.call_id}
        if spec is not None and spec.description:
            data["description"] = spec.description
        if command.purpose == "unknown_outcome":
            data |= {"attempt": call.attempt, "key": call.started.key if call.started else ""}
        prepared = command.prepared
        expires = self._definition.approval_expires_ms
        return Draft(
            command.run_id,
            InteractionRequested(
                self._env.ids.new("req"),
                command.purpose,
                data,
                answer_schema(command.purpose, spec.input_schema if spec and command.purpose == "approval" else None),
                call_id=call.call_id,
                input_digest=prepared.input_digest if prepared else digest(call.input),
                tool_digest=prepared.tool_digest if prepared else "",
                expires_at_ms=plan.at_ms + expires if expires is not None else None,
            ),
        )

    def _start_tool(self, plan: Plan, command: StartTool) -> Draft:
        call = plan.state.runs[command.run_id].calls[command.call_id]
        assert call.prepared is not None
        return Draft(
            command.run_id,
            ToolStarted(
                command.call_id,
                command.attempt,
                call_key(self._journal.session_id, command.run_id, command.call_id),
                command.authority,
                call.prepared.input_digest,
                self._specs[call.name].on_unknown,
            ),
        )

    def _start_run(self, plan: Plan, command: StartRun) -> Draft:
        model = str(plan.state.config.get("model") or self._definition.model)
        limits = self._definition.limits
        return Draft(command.run_id, RunStarted(limits, model, (command.input_id,), agent=self._definition.name))

    def _call_model(self, plan: Plan, command: CallModel) -> None:
        if command.not_before_ms > plan.at_ms:
            plan.not_before_ms = command.not_before_ms
            return
        run = plan.state.runs[command.run_id]
        try:
            adapter = self._open_adapter(str(plan.state.config.get("model") or run.model))
        except Exception as error:
            # A model that cannot be opened (no key, no such extra) fails the run, with words that say what to do.
            if not isinstance(error, OwnloopError):
                logger.exception("the model could not be opened, session=%s", self._journal.session_id)
            self._fault(plan, command.run_id, error_info(error, self._definition.secrets))
            return
        self._add(
            plan,
            Draft(
                command.run_id,
                TurnStarted(
                    command.turn, command.attempt, adapter.name, adapter.provider, adapter.model, command.input_ids
                ),
            ),
        )
        plan.calls.append(command)

    async def _close_response(self, command: CloseResponse) -> Draft:
        return await close_response(self._env, self._journal.session_id, command)

    def _hinted(self, state: SessionState, draft: Draft) -> Draft:
        if not isinstance(draft.body, ToolEnded) or draft.run_id is None:
            return draft
        return replace(draft, body=with_hint(state.runs[draft.run_id], draft.body))

    # --- signals: they are no facts; they choose which fact is recorded ---

    def _take_signal(self, plan: Plan, signal: Signal) -> None:
        run = plan.state.runs.get(signal.run_id)
        match signal:
            case ResponseDone(run_id, stream, body):
                if run is not None and run.stream == stream:
                    self._add(plan, Draft(run_id, body))
            case ToolDone():
                self._tool_done(plan, signal)
            case ToolAsks(run_id, call_id, attempt, question, schema):
                call = _running(run, call_id, attempt)
                if call is None or (run is not None and run.cancel is not None):
                    decline(signal)  # its attempt is over, or ends: nobody is asked any more
                    return
                request_id = self._env.ids.new("req")
                data = {"question": question, "tool": call.name, "call_id": call_id}
                asked = InteractionRequested(
                    request_id, "question", data, answer_schema("question", schema), call_id=call_id
                )
                self._add(plan, Draft(run_id, asked))
                plan.asks[request_id] = signal

    def _fault(self, plan: Plan, run_id: str, error: ErrorInfo) -> None:
        run = plan.state.runs.get(run_id)
        if run is not None and run.live and run.cancel is None:
            self._add(plan, Draft(run_id, CancelRequested("system", error)))

    def _tool_done(self, plan: Plan, done: ToolDone) -> None:
        call = _running(plan.state.runs.get(done.run_id), done.call_id, done.attempt)
        if call is None:
            if (late := late_of(done)) is not None:
                self._add(plan, *late_result(plan.state, late))
        else:
            ended = ToolEnded(done.call_id, done.attempt, _ending(done.result), done.result.blocks, done.elapsed_ms)
            withdrawn = [Draft(done.run_id, InteractionResolved(q, "system", "withdrawn")) for q in call.questions]
            self._add(plan, *withdrawn, self._hinted(plan.state, Draft(done.run_id, ended)))
        plan.given_up.append((done.call_id, done.attempt))
        if done.fault is not None:
            self._fault(plan, done.run_id, done.fault)

    def _take_deadlines(self, plan: Plan) -> None:
        """Record what a tool's timeout, or the end of a cancelled tool's grace, comes to."""
        now_s = self._env.clock.monotonic_s()
        for tool in self._flight.tools.values():
            run = plan.state.runs.get(tool.run_id)
            call = _running(run, *tool.id)
            if run is None or call is None or tool.given_up or tool.id in plan.given_up:
                continue
            withdrawn = [Draft(run.run_id, InteractionResolved(q, "system", "withdrawn")) for q in call.questions]
            if run.cancel is not None:
                if plan.at_ms - run.cancel_at_ms >= run.limits.grace_ms:
                    unknown = ToolEnded(
                        *tool.id, "unknown", results.text(results.UNKNOWN), tool.elapsed_ms(self._env.clock)
                    )
                    self._add(plan, *withdrawn, Draft(run.run_id, unknown))
                    plan.given_up.append(tool.id)
                    plan.cancels.append(CancelTool(*tool.id))
            elif tool.deadline_s is not None and now_s >= tool.deadline_s:
                self._add(plan, *withdrawn, self._timed_out(plan, tool))
                plan.given_up.append(tool.id)
                plan.cancels.append(CancelTool(*tool.id))

    def _timed_out(self, plan: Plan, tool: ToolRun) -> Draft:
        if tool.started.on_unknown == "ask":
            call = plan.state.runs[tool.run_id].calls[tool.started.call_id]
            return self._ask(plan, Ask(tool.run_id, call.call_id, "unknown_outcome", call.prepared))
        words = results.timed_out(tool.timeout_s or 0.0, tool.read_only)
        return Draft(tool.run_id, ToolEnded(*tool.id, "timeout", words, tool.elapsed_ms(self._env.clock)))


def call_key(session_id: str, run_id: str, call_id: str) -> str:
    """Return the idempotency key of a call: the same for each attempt, another in a fork."""
    return hashlib.sha256(f"{session_id}\n{run_id}\n{call_id}".encode()).hexdigest()


def _running(run: RunState | None, call_id: str, attempt: int) -> CallState | None:
    """Return the call if this attempt of it is the one that runs."""
    call = run.calls.get(call_id) if run is not None else None
    return call if call is not None and call.phase == "running" and call.attempt == attempt else None


def _ending(result: ToolResult) -> ToolStatus:
    """Return how a call that was started ends with this result."""
    if result.status == "cancelled" and not result.confirmed_cancel:
        return "unknown"
    return result.status if result.status in ("ok", "error", "timeout", "cancelled", "unknown") else "error"


def late_of(done: ToolDone) -> LateResult | None:
    """Return a given-up attempt's result, if it says more than that it was given up."""
    status = _ending(done.result)
    if status in ("cancelled", "unknown"):
        return None
    return LateResult(done.run_id, done.call_id, done.attempt, status, done.result.blocks, done.elapsed_ms)


async def close_response(env: Environment, session_id: str, command: CloseResponse) -> Draft:
    """Return the fact that closes a response whose reader is gone, with the text of its tail."""
    tails = await env.store.tails(session_id)
    tail = next((tail.body for tail in tails if tail.stream == command.stream), None)
    return Draft(command.run_id, abandoned(command.turn, tail, command.status))
