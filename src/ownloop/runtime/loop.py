"""The loop: performs what the machine says is due, and journals what happened. One `Loop` drives one segment.

Each round is *planned* on a trial state (`planning`), appended in one transaction, and only then its effects begin:
tools are entered, models called. So the state is never ahead of the journal, a refused append leaves nothing behind
(`StaleError`: somebody answered first, look again), and a turn costs two commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ownloop.core.backend import ModelRequest, ModelSettings
from ownloop.core.commands import (
    CallModel,
    CancelModel,
    CancelTool,
    StartTool,
)
from ownloop.core.events import (
    CancelRequested,
    Draft,
    ErrorInfo,
    Fact,
    InteractionRequested,
    InteractionResolved,
    LiveEvent,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.inbox import InboxRow, LateResult
from ownloop.core.messages import BlobBlock, Json, ToolResultBlock
from ownloop.core.ports import Definition, ModelCall, Tail
from ownloop.core.run import RunState
from ownloop.core.session import SessionState, history
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import abandoned
from ownloop.errors import StaleError, StoreError
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
from ownloop.runtime.planning import Flight, OpenAdapter, Plan, Planner, late_of
from ownloop.runtime.tasks import end_tasks

logger = logging.getLogger(__name__)

TAIL_EVERY_MS = 1000
INBOX_EVERY_MS = 1000
"""How soon a row posted by another process is seen when nobody wakes us."""
CRASH_LOOP = 5
"""Takeovers in a row without progress, after which a run is ended (docs/design.md, The machine)."""


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
        self._flight = Flight()
        self._planner = Planner(env, journal, definition, open_adapter, self._flight)
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
                await self._read_inbox()
                plan = await self._planner.plan(self._rows, self._signals)
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
        return [tool.task for tool in self._flight.tools.values() if tool.task is not None and not tool.task.done()]

    async def _read_inbox(self) -> None:
        now_ms = self._env.clock.now_ms()
        if self._inbox_dirty or now_ms - self._inbox_read_ms >= INBOX_EVERY_MS:
            self._inbox_dirty = False
            self._inbox_read_ms = now_ms
            self._rows = await self._journal.inbox()

    # --- committing and performing ---

    async def _commit(self, plan: Plan) -> bool:
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

    def _after_commit(self, plan: Plan, facts: Sequence[Fact]) -> None:
        taken = set(plan.takes)
        self._rows = [row for row in self._rows if row.id not in taken]
        self._waits_until_ms = plan.not_before_ms
        for id in plan.given_up:
            if (tool := self._flight.tools.get(id)) is not None:
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
        self._flight.readers[run.run_id] = reader, task
        task.add_done_callback(lambda task: self._response_task_done(reader, run.turn, task))

    def _response_task_done(self, reader: ResponseReader, turn: int, task: asyncio.Task[None]) -> None:
        del self._flight.readers[reader.run_id]
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
        self._flight.tools[run.id] = run
        run.task.add_done_callback(lambda task: self._tool_task_done(run, task))

    def _tool_task_done(self, run: ToolRun, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("tool task failed, session=%s call=%s", self._journal.session_id, run.id, exc_info=error)
        elif not task.cancelled():
            return
        self._tell(ToolDone(run.run_id, *run.id, run.broken_off(task.cancelled()), run.elapsed_ms(self._env.clock)))

    def _cancel(self, command: CancelTool | CancelModel) -> None:
        if isinstance(command, CancelModel):
            entry = self._flight.readers.get(command.run_id)
            if entry is not None and not entry[0].cancelled:
                entry[0].cancelled = True
                entry[1].cancel()
            return
        tool = self._flight.tools.get((command.call_id, command.attempt))
        if tool is not None and tool.task is not None and not tool.cancel_sent:
            tool.cancel_sent = True
            # What runs in a thread cannot be stopped: it is awaited, until its grace or its timeout is over.
            if self._specs[tool.name].cancellable:
                tool.task.cancel()

    def _hold_clock(self, ask: ToolAsks, request_id: str) -> None:
        tool = self._flight.tools.get((ask.call_id, ask.attempt))
        if tool is None:
            return
        tool.asks[request_id] = ask.answer
        if tool.deadline_s is not None:
            tool.left_s = tool.deadline_s - self._env.clock.monotonic_s()
            tool.deadline_s = None

    def _deliver(self, body: InteractionResolved) -> None:
        for tool in self._flight.tools.values():
            future = tool.asks.pop(body.request_id, None)
            if future is None:
                continue
            if not future.done():
                future.set_result(body.value if body.decision == "answered" else None)
            if not tool.asks and tool.timeout_s is not None:
                tool.deadline_s = self._env.clock.monotonic_s() + tool.left_s

    def _tell(self, signal: Signal) -> None:
        if self._ended:
            if isinstance(signal, ToolDone) and (late := late_of(signal)) is not None:
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
        for id, tool in list(self._flight.tools.items()):
            if tool.given_up and (tool.task is None or tool.task.done()):
                del self._flight.tools[id]

    def _next_look_ms(self) -> int:
        now_ms, now_s = self._env.clock.now_ms(), self._env.clock.monotonic_s()
        times = [now_ms + INBOX_EVERY_MS]
        if self._waits_until_ms is not None:
            times.append(self._waits_until_ms)
        for tool in self._flight.tools.values():
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
        if not self._flight.readers or now_ms < self._tail_at_ms + TAIL_EVERY_MS:
            return
        self._tail_at_ms = now_ms
        await self._write_tails()

    async def _write_tails(self) -> None:
        tails: list[Tail] = []
        for reader, _ in self._flight.readers.values():
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
        tasks = [task for _, task in self._flight.readers.values()]
        tasks += [tool.task for tool in self._flight.tools.values() if tool.task is not None]
        await end_tasks(tasks, self._env.clock)


def _settings(base: ModelSettings, config: Json) -> ModelSettings:
    patch: Json = config.get("settings") or {}
    known = {key: value for key, value in patch.items() if key in ModelSettings.__slots__}
    return replace(base, **known)
