"""The loop: performs what the machine says is due, and journals what happened. One `Loop` drives one segment.

Each round *plans* on a trial state: the facts that inbox rows, signals and expiries amount to, then all facts that are
due after them, until nothing more can be recorded. The inbox comes first, so that what a person said is never overruled
by what the owner wants in the same round. The batch is appended in one transaction, and only then its effects begin:
tools are entered, models called. So the state is never ahead of the journal, a refused append leaves nothing behind
(`StaleError`: somebody answered first, look again), and a turn costs two commits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ownloop.core import results
from ownloop.core.backend import Adapter, ModelRequest, ModelSettings
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
    Fact,
    InteractionRequested,
    InteractionResolved,
    LiveEvent,
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
from ownloop.core.messages import BlobBlock, Json, ToolResultBlock
from ownloop.core.ports import Definition, ModelCall, PrepareContext, Tail, ToolResult
from ownloop.core.repetition import with_hint
from ownloop.core.run import CallState, RunState
from ownloop.core.session import SessionState, advance, due, expired, history
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import abandoned
from ownloop.errors import OwnloopError, StaleError, StoreError
from ownloop.runtime.calls import (
    CallContext,
    ResponseDone,
    ResponseReader,
    Signal,
    ToolAsks,
    ToolDone,
    ToolRun,
    decline,
    error_info,
    run_tool,
)
from ownloop.runtime.environment import Environment
from ownloop.runtime.journal import Journal
from ownloop.runtime.tasks import end_tasks

logger = logging.getLogger(__name__)

TAIL_EVERY_MS = 1000
INBOX_EVERY_MS = 1000
"""How soon a row posted by another process is seen when nobody wakes us."""
CRASH_LOOP = 5
"""Takeovers in a row without progress, after which a run is ended (RUN-MACHINE §5)."""

OpenAdapter = Callable[[str], Adapter]


@dataclass(slots=True)
class _Plan:
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


class Loop:
    """Drives one claimed session of a declarative agent to the end of its segment."""

    def __init__(
        self,
        env: Environment,
        journal: Journal,
        definition: Definition,
        open_adapter: OpenAdapter,
        late: Callable[[str, LateResult], None],
    ) -> None:
        """`late` is told what tools come to that were given up and outlive the segment."""
        self._env = env
        self._journal = journal
        self._definition = definition
        self._open_adapter = open_adapter
        self._late = late
        self._ended = False
        self._tools_offered = tuple(definition.executor.specs)
        self._specs: dict[str, ToolSpec] = {spec.name: spec for spec in self._tools_offered}
        self._signals: list[Signal] = []
        self._event = asyncio.Event()
        self._inbox_dirty = True
        self._inbox_read_ms = 0
        self._rows: Sequence[InboxRow] = ()
        self._readers: dict[str, tuple[ResponseReader, asyncio.Task[None]]] = {}
        self._tools: dict[tuple[str, int], ToolRun] = {}
        self._blobs: dict[str, bytes] = {}
        self._tail_at_ms = 0
        self._waits_until_ms: int | None = None

    # --- what others may call ---

    def wake(self) -> None:
        """Say that the inbox holds something."""
        self._inbox_dirty = True
        self._event.set()

    @property
    def woken(self) -> bool:
        """Whether somebody woke it after its last look at the inbox."""
        return self._inbox_dirty

    async def drive(self) -> list[asyncio.Task[None]]:
        """Work until nothing is left to do here; return the tasks of tools that were given up but still run.

        Raises:
            FencedError: another owner has the session.
            StoreError: the store failed; everything in flight was cancelled, and the session may be claimed again.
        """
        try:
            if self._journal.lease.takeovers >= CRASH_LOOP:
                await self._stop_crash_loop()
            while True:
                plan = await self._plan()
                if not await self._commit(plan):
                    continue
                if plan.end is not None:
                    return self._end()
                await self._wait()
        except BaseException:
            await self._abort()
            raise

    def _end(self) -> list[asyncio.Task[None]]:
        self._ended = True
        signals, self._signals = self._signals, []
        for signal in signals:  # they came while the last facts were written
            self._tell(signal)
        return [tool.task for tool in self._tools.values() if tool.task is not None and not tool.task.done()]

    # --- planning ---

    async def _plan(self) -> _Plan:
        if self._inbox_dirty or self._env.clock.now_ms() - self._inbox_read_ms >= INBOX_EVERY_MS:
            self._inbox_dirty = False
            self._rows = await self._journal.inbox()
            self._inbox_read_ms = self._env.clock.now_ms()
        plan = _Plan(self._journal.state, self._env.clock.now_ms())
        taken = intake(plan.state, self._rows, plan.at_ms, self._epoch, self._env.ids.new)
        self._add(plan, *taken.facts)
        plan.takes.extend(taken.takes)
        plan.signals = len(self._signals)
        for signal in self._signals[: plan.signals]:
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

    def _add(self, plan: _Plan, *drafts: Draft) -> None:
        plan.state = advance(plan.state, drafts, plan.at_ms, self._epoch)
        plan.facts.extend(drafts)

    async def _take_due(self, plan: _Plan, *, stopping: bool) -> None:
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

    def _in_flight(self, plan: _Plan) -> InFlight:
        tools = {run.id for run in self._tools.values() if not run.given_up and run.id not in plan.given_up}
        models = set(self._readers) | {call.run_id for call in plan.calls}
        return InFlight(frozenset(models), frozenset(tools | {(s.call_id, s.attempt) for s in plan.starts}))

    async def _prepare(self, plan: _Plan, run_id: str, commands: Sequence[PrepareCall]) -> None:
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

    def _ask(self, plan: _Plan, command: Ask) -> Draft:
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

    def _start_tool(self, plan: _Plan, command: StartTool) -> Draft:
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

    def _start_run(self, plan: _Plan, command: StartRun) -> Draft:
        model = str(plan.state.config.get("model") or self._definition.model)
        limits = self._definition.limits
        return Draft(command.run_id, RunStarted(limits, model, (command.input_id,), agent=self._definition.name))

    def _call_model(self, plan: _Plan, command: CallModel) -> None:
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

    def _take_signal(self, plan: _Plan, signal: Signal) -> None:
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

    def _fault(self, plan: _Plan, run_id: str, error: ErrorInfo) -> None:
        run = plan.state.runs.get(run_id)
        if run is not None and run.live and run.cancel is None:
            self._add(plan, Draft(run_id, CancelRequested("system", error)))

    def _tool_done(self, plan: _Plan, done: ToolDone) -> None:
        call = _running(plan.state.runs.get(done.run_id), done.call_id, done.attempt)
        if call is None:
            if (late := _late(done)) is not None:
                self._add(plan, *late_result(plan.state, late))
        else:
            ended = ToolEnded(done.call_id, done.attempt, _ending(done.result), done.result.blocks, done.elapsed_ms)
            withdrawn = [Draft(done.run_id, InteractionResolved(q, "system", "withdrawn")) for q in call.questions]
            self._add(plan, *withdrawn, self._hinted(plan.state, Draft(done.run_id, ended)))
        plan.given_up.append((done.call_id, done.attempt))
        if done.fault is not None:
            self._fault(plan, done.run_id, done.fault)

    def _take_deadlines(self, plan: _Plan) -> None:
        """Record what a tool's timeout, or the end of a cancelled tool's grace, comes to."""
        now_s = self._env.clock.monotonic_s()
        for tool in self._tools.values():
            run = plan.state.runs.get(tool.run_id)
            call = _running(run, *tool.id)
            if run is None or call is None or tool.given_up or tool.id in plan.given_up:
                continue
            withdrawn = [Draft(run.run_id, InteractionResolved(q, "system", "withdrawn")) for q in call.questions]
            if run.cancel is not None:
                if plan.at_ms - run.cancel_at_ms >= run.limits.grace_ms:
                    unknown = ToolEnded(*tool.id, "unknown", results.text(results.UNKNOWN), self._elapsed_ms(tool))
                    self._add(plan, *withdrawn, Draft(run.run_id, unknown))
                    plan.given_up.append(tool.id)
                    plan.cancels.append(CancelTool(*tool.id))
            elif tool.deadline_s is not None and now_s >= tool.deadline_s:
                self._add(plan, *withdrawn, self._timed_out(plan, tool))
                plan.given_up.append(tool.id)
                plan.cancels.append(CancelTool(*tool.id))

    def _timed_out(self, plan: _Plan, tool: ToolRun) -> Draft:
        if tool.started.on_unknown == "ask":
            call = plan.state.runs[tool.run_id].calls[tool.started.call_id]
            return self._ask(plan, Ask(tool.run_id, call.call_id, "unknown_outcome", call.prepared))
        words = results.timed_out(tool.timeout_s or 0.0, tool.read_only)
        return Draft(tool.run_id, ToolEnded(*tool.id, "timeout", words, self._elapsed_ms(tool)))

    def _elapsed_ms(self, tool: ToolRun) -> int:
        return int((self._env.clock.monotonic_s() - tool.began_s) * 1000)

    # --- committing and performing ---

    async def _commit(self, plan: _Plan) -> bool:
        """Append the batch and begin its effects; False when somebody else was first and the round starts over."""
        facts: Sequence[Fact] = ()
        if plan.facts or plan.takes or plan.end is not None:
            wake_at_ms = plan.end.wake_at_ms if plan.end is not None else None
            try:
                facts = await self._journal.append(
                    plan.facts,
                    takes=plan.takes,
                    after=plan.state,
                    at_ms=plan.at_ms,
                    release=plan.end is not None,
                    wake_at_ms=wake_at_ms,
                )
            except StaleError:
                self._inbox_dirty = True
                return False
        del self._signals[: plan.signals]
        self._after_commit(plan, facts)
        return True

    def _after_commit(self, plan: _Plan, facts: Sequence[Fact]) -> None:
        taken = set(plan.takes)
        self._rows = [row for row in self._rows if row.id not in taken]
        self._waits_until_ms = plan.not_before_ms
        for id in plan.given_up:
            if (tool := self._tools.get(id)) is not None:
                tool.given_up = True
        streams: dict[Any, int] = {}
        for fact in facts:
            match fact.body:
                case TurnStarted():
                    streams[fact.run_id] = fact.seq
                case ToolStarted(call_id, attempt):
                    streams[(call_id, attempt)] = fact.seq
                case InteractionResolved() as body:
                    self._deliver(body)
                case InteractionRequested(request_id):
                    if (ask := plan.asks.get(request_id)) is not None:
                        self._hold_clock(ask, request_id)
                case _:
                    pass
        for cancel in plan.cancels:
            self._cancel(cancel)
        for start in plan.starts:
            self._enter_tool(start, streams[(start.call_id, start.attempt)])
        for call in plan.calls:
            self._read_response(call, streams[call.run_id])

    def _read_response(self, command: CallModel, stream: int) -> None:
        state = self._journal.state
        run = state.runs[command.run_id]
        reader = ResponseReader(
            self._env,
            self._journal.session_id,
            run.run_id,
            run.turn,
            run.failures,
            stream,
            self._definition.secrets,
            retry_interrupted=run.limits.retry_interrupted,
        )
        task = asyncio.create_task(self._respond(reader, run, state), name=f"response {run.run_id} {run.turn}")
        self._readers[run.run_id] = reader, task
        task.add_done_callback(lambda task: self._response_task_done(reader, run.turn, task))

    def _response_task_done(self, reader: ResponseReader, turn: int, task: asyncio.Task[None]) -> None:
        del self._readers[reader.run_id]
        self._event.set()
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("response task failed, session=%s run=%s", self._journal.session_id, reader.run_id, exc_info=error)
        body = abandoned(turn, reader.builder.tail(), "failed")
        info = error_info(error, self._definition.secrets)
        self._tell(ResponseDone(reader.run_id, reader.builder.stream, replace(body, error=info)))

    async def _respond(self, reader: ResponseReader, run: RunState, state: SessionState) -> None:
        """Gather what the model is to see, and read its answer."""
        definition = self._definition
        session_id = self._journal.session_id
        messages = history(state, run.run_id)
        try:
            adapter = self._open_adapter(str(state.config.get("model") or run.model))
            system = await definition.instructions(session_id, state.config)
            blobs = await self._load_blobs(messages) if state.blobs else {}
        except Exception as error:
            logger.exception("could not prepare the model call, session=%s run=%s", session_id, run.run_id)
            info = error_info(error, definition.secrets)
            self._tell(ResponseDone(run.run_id, reader.builder.stream, reader.builder.end(run.turn, "failed", info)[1]))
            return
        settings = _settings(definition.settings, state.config)
        call = ModelCall(session_id, run.run_id, run.turn, system, messages, settings)
        request = ModelRequest(system, messages, self._tools_offered, settings, session_id, blobs)
        await reader.read(adapter, call, request, definition.hooks, self._tell)

    async def _load_blobs(self, messages: Sequence[Any]) -> dict[str, bytes]:
        for message in messages:
            for block in message.blocks:
                inner = block.content if isinstance(block, ToolResultBlock) else (block,)
                for item in inner:
                    if isinstance(item, BlobBlock) and item.digest not in self._blobs:
                        self._blobs[item.digest] = (await self._env.store.get_blob(item.digest))[1]
        return self._blobs

    def _enter_tool(self, command: StartTool, stream: int) -> None:
        call = self._journal.state.runs[command.run_id].calls[command.call_id]
        spec = self._specs[call.name]
        assert call.started is not None
        now_s = self._env.clock.monotonic_s()
        run = ToolRun(command.run_id, call.name, call.input, call.started, spec.read_only, spec.timeout_s, now_s)
        if spec.timeout_s is not None:
            run.deadline_s = now_s + spec.timeout_s
        context = CallContext(
            self._journal.session_id,
            command.run_id,
            command.call_id,
            command.attempt,
            call.started.key,
            self._definition.deps,
            self._definition.secrets,
            stream,
            self._tell,
            self._show,
        )
        work = run_tool(self._env, run, context, self._definition.executor, self._definition.hooks, self._tell)
        run.task = asyncio.create_task(work, name=f"tool {call.name} {command.call_id}.{command.attempt}")
        self._tools[run.id] = run
        run.task.add_done_callback(lambda task: self._tool_task_done(run, task))

    def _tool_task_done(self, run: ToolRun, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("tool task failed, session=%s call=%s", self._journal.session_id, run.id, exc_info=error)
        elif not task.cancelled():
            return
        self._tell(ToolDone(run.run_id, *run.id, run.broken_off(task.cancelled()), self._elapsed_ms(run)))

    def _cancel(self, command: CancelTool | CancelModel) -> None:
        if isinstance(command, CancelModel):
            entry = self._readers.get(command.run_id)
            if entry is not None and not entry[0].cancelled:
                entry[0].cancelled = True
                entry[1].cancel()
            return
        tool = self._tools.get((command.call_id, command.attempt))
        if tool is not None and tool.task is not None and not tool.cancel_sent:
            tool.cancel_sent = True
            # What runs in a thread cannot be stopped: it is awaited, until its grace or its timeout is over.
            if self._specs[tool.name].cancellable:
                tool.task.cancel()

    def _hold_clock(self, ask: ToolAsks, request_id: str) -> None:
        tool = self._tools.get((ask.call_id, ask.attempt))
        if tool is None:
            return
        tool.asks[request_id] = ask.answer
        if tool.deadline_s is not None:
            tool.left_s = tool.deadline_s - self._env.clock.monotonic_s()
            tool.deadline_s = None

    def _deliver(self, body: InteractionResolved) -> None:
        for tool in self._tools.values():
            future = tool.asks.pop(body.request_id, None)
            if future is None:
                continue
            if not future.done():
                future.set_result(body.value if body.decision == "answered" else None)
            if not tool.asks and tool.timeout_s is not None:
                tool.deadline_s = self._env.clock.monotonic_s() + tool.left_s

    def _tell(self, signal: Signal) -> None:
        if self._ended:
            if isinstance(signal, ToolDone) and (late := _late(signal)) is not None:
                self._late(self._journal.session_id, late)
            elif isinstance(signal, ToolAsks):
                decline(signal)
            return
        self._signals.append(signal)
        self._event.set()

    def _show(self, events: Sequence[LiveEvent]) -> None:
        if not self._ended:
            self._env.hub.live(self._journal.session_id, events)

    # --- waiting ---

    async def _wait(self) -> None:
        """Return when there is a signal, a row may have come, or a deadline is near; saves tails meanwhile."""
        self._drop_finished()
        if self._signals or self._inbox_dirty:
            self._event.clear()
            return
        await self._save_tails()
        self._event.clear()
        if self._signals or self._inbox_dirty:
            return
        timer = asyncio.create_task(self._env.clock.sleep_until(self._next_look_ms()))
        woken = asyncio.create_task(self._event.wait())
        try:
            await asyncio.wait((timer, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (timer, woken):
                task.cancel()
            await asyncio.gather(timer, woken, return_exceptions=True)

    def _drop_finished(self) -> None:
        for id, tool in list(self._tools.items()):
            if tool.given_up and (tool.task is None or tool.task.done()):
                del self._tools[id]

    def _next_look_ms(self) -> int:
        now_ms, now_s = self._env.clock.now_ms(), self._env.clock.monotonic_s()
        times = [now_ms + INBOX_EVERY_MS]
        if self._waits_until_ms is not None:
            times.append(self._waits_until_ms)
        for tool in self._tools.values():
            if tool.deadline_s is not None and not tool.given_up:
                times.append(now_ms + max(1, int((tool.deadline_s - now_s) * 1000) + 1))
        for run in self._journal.state.runs.values():
            if run.cancel is not None and run.live:
                times.append(max(now_ms + 1, run.cancel_at_ms + run.limits.grace_ms))
        for request in self._journal.state.requests.values():
            if request.expires_at_ms is not None:
                times.append(max(now_ms + 1, request.expires_at_ms))
        return min(times)

    async def _save_tails(self) -> None:
        now_ms = self._env.clock.now_ms()
        if not self._readers or now_ms < self._tail_at_ms + TAIL_EVERY_MS:
            return
        self._tail_at_ms = now_ms
        await self._write_tails()

    async def _write_tails(self) -> None:
        tails: list[Tail] = []
        for reader, _ in self._readers.values():
            builder = reader.builder
            if builder.units and builder.units != reader.saved_units:
                tails.append(Tail(builder.stream, builder.units, builder.tail()))
                reader.saved_units = builder.units
        if not tails:
            return
        try:
            await self._env.store.save_tail(self._journal.lease, tails)
        except StoreError as error:  # a tail may be lost; what must not be lost will say so itself
            logger.warning("tails were not saved, session=%s: %s", self._journal.session_id, error)

    async def _stop_crash_loop(self) -> None:
        root = self._journal.state.root
        if root is not None and root.cancel is None:
            takeovers = self._journal.lease.takeovers
            words = f"the run was taken over {takeovers} times without progress: it seems to end its process"
            await self._journal.append([Draft(root.run_id, CancelRequested("system", ErrorInfo("crash_loop", words)))])

    async def _abort(self) -> None:
        """Stop everything in flight; the journal stays as it is, and the next owner goes on from it."""
        self._ended = True
        await self._write_tails()
        tasks = [task for _, task in self._readers.values()]
        tasks += [tool.task for tool in self._tools.values() if tool.task is not None]
        await end_tasks(tasks, self._env.clock)


def call_key(session_id: str, run_id: str, call_id: str) -> str:
    """Return the idempotency key of a call: the same for each attempt, another in a fork (DATA-MODEL §2)."""
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


def _late(done: ToolDone) -> LateResult | None:
    """Return a given-up attempt's result, if it says more than that it was given up."""
    status = _ending(done.result)
    if status in ("cancelled", "unknown"):
        return None
    return LateResult(done.run_id, done.call_id, done.attempt, status, done.result.blocks, done.elapsed_ms)


def _settings(base: ModelSettings, config: Json) -> ModelSettings:
    patch: Json = config.get("settings") or {}
    known = {key: value for key, value in patch.items() if key in ModelSettings.__slots__}
    return replace(base, **known)


async def close_response(env: Environment, session_id: str, command: CloseResponse) -> Draft:
    """Return the fact that closes a response whose reader is gone, with the text of its tail."""
    tails = await env.store.tails(session_id)
    tail = next((tail.body for tail in tails if tail.stream == command.stream), None)
    return Draft(command.run_id, abandoned(command.turn, tail, command.status))
