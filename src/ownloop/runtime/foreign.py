"""Drives a session whose agent is any class that implements `AgentBase`: one live instance, pinned to this process.

The instance's life is one task. What it says through its callbacks is a fact before the callback returns; a run is one
`interaction()` without an id, and answers are further `interaction()`s beside it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ownloop.core.agent_base import AgentBase, AgentInteraction, AgentInteractionRequest, EnvVar
from ownloop.core.codec import digest, dump_body, dumps, loads
from ownloop.core.commands import EndSegment, InFlight, Record, StartRun
from ownloop.core.due import withdraw
from ownloop.core.events import (
    CancelRequested,
    Draft,
    ErrorInfo,
    InteractionRequested,
    InteractionResolved,
    Limits,
    Note,
    RunEnded,
    RunStarted,
)
from ownloop.core.intake import intake
from ownloop.core.interactions import answer_schema
from ownloop.core.messages import Json, TextBlock
from ownloop.core.session import SessionState, WaitingInput, advance, due, expired
from ownloop.core.text import clean_json, clean_text
from ownloop.errors import ConflictError, SessionClosedError, StaleError
from ownloop.runtime.calls import error_info
from ownloop.runtime.environment import Environment
from ownloop.runtime.journal import Journal
from ownloop.runtime.tasks import end_tasks

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 1000
STOP_MS = 10_000
"""How long an instance may take to stop; then it is cancelled."""
AGENT_LOST = ErrorInfo(
    "agent_lost", "the process that held the agent is gone, and its run with it; send the message again"
)


@dataclass(frozen=True, slots=True)
class ForeignAgent:
    """A class that implements `AgentBase`, as a definition the host can serve."""

    name: str
    agent_class: type[AgentBase]
    env_names: Sequence[str] = ()
    config_schema: Json = field(default_factory=lambda: {"type": "object"})

    @property
    def digest(self) -> str:
        return digest({"name": self.name, "class": self.agent_class.__qualname__})


@dataclass(slots=True, eq=False)
class _Said:
    """What the instance said, and its await."""

    body: Note | InteractionRequested
    done: asyncio.Future[None]
    refusal: Exception | None = None


@dataclass(slots=True)
class _Plan:
    state: SessionState
    at_ms: int
    facts: list[Draft] = field(default_factory=list[Draft])
    takes: list[int] = field(default_factory=list[int])
    starts: list[WaitingInput] = field(default_factory=list[WaitingInput])
    said: list[_Said] = field(default_factory=list[_Said])
    returned: int = 0
    stopping: bool = False
    idle: bool = False


class ForeignSession:
    """One session of a foreign agent, from its claim to its eviction, its end, or that of the host."""

    def __init__(self, env: Environment, journal: Journal, definition: ForeignAgent) -> None:
        self._env = env
        self._journal = journal
        self._definition = definition
        self._agent: AgentBase | None = None
        self._creating = asyncio.Lock()
        self._gone = False
        self._said: list[_Said] = []
        self._asked_in: dict[str, str | None] = {}  # a question, and the run during which it was asked
        self._returned: list[Draft] = []
        self._event = asyncio.Event()
        self._dirty = True
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._beside: set[asyncio.Task[None]] = set()
        """Answers being delivered, cancelled runs that have not ended yet, the instance's stop."""
        self._types: dict[str, str] = {}
        """Of the requests that are open: what the instance called them."""

    def wake(self) -> None:
        """Say that the inbox holds something."""
        self._dirty = True
        self._event.set()

    @property
    def woken(self) -> bool:
        return self._dirty

    async def drive(self) -> None:
        """Work until the session is closed, or idle with an instance that can be restored."""
        try:
            await self._clear_lost()
            while True:
                plan = await self._plan()
                leaves = plan.idle and self._is_quiet()
                if leaves and self._agent is not None and self._restorable():
                    self._let_go()  # what it says while it stops is still written
                leaves = leaves and self._agent is None and not self._beside
                if not await self._commit(plan, release=leaves):
                    continue
                if leaves:
                    return
                await self._wait()
        finally:
            await self._free()

    def _is_quiet(self) -> bool:
        return not (self._runs or self._beside or self._said or self._returned)

    # --- planning: as the loop does it, without model and tools ---

    async def _plan(self) -> _Plan:
        self._dirty = False
        rows = await self._journal.inbox()
        plan = _Plan(self._journal.state, self._env.clock.now_ms())
        taken = intake(plan.state, rows, plan.at_ms, self._journal.lease.epoch, self._env.ids.new)
        self._add(plan, *taken.facts)
        plan.takes.extend(taken.takes)
        plan.said = list(self._said)
        for said in plan.said:
            self._take_said(plan, said)
        plan.returned = len(self._returned)
        for draft in self._returned[: plan.returned]:
            run = plan.state.runs.get(draft.run_id or "")
            if run is not None and run.cancel is None:
                self._add(plan, draft)
        self._add(plan, *expired(plan.state, plan.at_ms))
        plan.stopping = taken.stop is not None
        self._take_due(plan)
        self._take_back(plan)
        if plan.state.closed and taken.stop is not None:
            plan.takes.append(taken.stop)
        return plan

    def _add(self, plan: _Plan, *drafts: Draft) -> None:
        plan.state = advance(plan.state, drafts, plan.at_ms, self._journal.lease.epoch)
        plan.facts.extend(drafts)

    def _take_back(self, plan: _Plan) -> None:
        """Withdraw what was asked for a run that was cancelled; other questions outlive the run they were asked in."""
        cancelled = {
            draft.run_id
            for draft in plan.facts
            if isinstance(draft.body, RunEnded) and draft.body.outcome == "cancelled"
        }
        moot = [r for r in plan.state.requests.values() if self._asked_in.get(r.request_id) in cancelled]
        self._add(plan, *map(withdraw, moot))

    def _take_said(self, plan: _Plan, said: _Said) -> None:
        """Record what was said as of the run that is live now; a question may come too late, or twice."""
        state, body = plan.state, said.body
        root = state.root
        said.refusal = None
        if isinstance(body, InteractionRequested):
            if body.request_id in state.requests or body.request_id in state.closed_requests:
                said.refusal = ConflictError(
                    f"interaction_id {body.request_id!r} was used in this session before; use a new one"
                )
            elif state.closed or (root is not None and root.cancel is not None):
                said.refusal = SessionClosedError("the run is cancelled: nobody is asked any more")
            if said.refusal is not None:
                return
            # Of the session, not of its run: it may be answered after the interaction that asked it has returned.
            self._asked_in[body.request_id] = root.run_id if root is not None else None
            self._add(plan, Draft(None, body))
            return
        self._add(plan, Draft(root.run_id if root is not None and root.cancel is None else None, body))

    def _take_due(self, plan: _Plan) -> None:
        while True:
            before = len(plan.facts)
            # It is closed when its instance has stopped, so that the last words of that are written.
            closing = plan.stopping and self._agent is None and self._is_quiet()
            for command in due(plan.state, self._journal.lease.epoch, InFlight(), closing or self._must_cancel(plan)):
                match command:
                    case Record(facts):
                        self._add(plan, *facts)
                    case StartRun(input_id, run_id) if not plan.stopping:
                        waiting = plan.state.inputs[input_id]
                        started = RunStarted(Limits(), "", (input_id,), agent=self._definition.name)
                        self._add(plan, Draft(run_id, started))
                        plan.starts.append(waiting)
                    case EndSegment():
                        plan.idle = plan.state.closed or not (plan.state.requests or plan.stopping)
                    case _:
                        pass  # a foreign agent calls its own model and tools
            if len(plan.facts) == before:
                return

    def _must_cancel(self, plan: _Plan) -> bool:
        return plan.stopping and plan.state.root is not None

    async def _commit(self, plan: _Plan, *, release: bool) -> bool:
        if plan.facts or plan.takes or release:
            try:
                await self._journal.append(
                    plan.facts, takes=plan.takes, after=plan.state, at_ms=plan.at_ms, release=release
                )
            except StaleError:
                self._dirty = True
                return False
        del self._returned[: plan.returned]
        del self._said[: len(plan.said)]
        for said in plan.said:
            if said.done.done():
                continue  # nobody awaits it any more
            if said.refusal is not None:
                said.done.set_exception(said.refusal)
            else:
                said.done.set_result(None)
        for draft in plan.facts:
            self._after_commit(draft)
        for waiting in plan.starts:
            if waiting.run_id in plan.state.runs:
                self._start(waiting)
        if plan.stopping and plan.state.root is None and self._agent is not None:
            self._let_go()
        return True

    def _after_commit(self, draft: Draft) -> None:
        match draft.body:
            case InteractionRequested(request_id, type=type):
                self._types[request_id] = type
            case InteractionResolved() as body:
                type = self._types.pop(body.request_id, "")
                if self._agent is not None and body.decision in ("answered", "denied"):
                    self._beside_it(self._answer(self._agent, body, type))
            case RunEnded():
                task = self._runs.pop(draft.run_id or "", None)
                if task is not None and not task.done():
                    self._beside_it(end_tasks([task], self._env.clock))
            case _:
                pass

    def _beside_it(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"foreign {self._journal.session_id}")
        self._beside.add(task)
        task.add_done_callback(self._no_longer_beside)

    def _no_longer_beside(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        self._event.set()

    # --- the instance ---

    def _restorable(self) -> bool:
        return callable(getattr(self._definition.agent_class, "restore", None))

    async def _instance(self) -> AgentBase:
        async with self._creating:
            if self._agent is None:
                self._agent = await self._made()
            return self._agent

    async def _made(self) -> AgentBase:
        cls = self._definition.agent_class
        config = self._journal.state.config
        if self._restorable():
            notes, has_worked = await self._past()
            if has_worked:
                restore: Any = cls.restore  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
                return cast(AgentBase, await restore(config, self._on_logs, self._on_request, notes))
        if "get_envs" in inspect.signature(cls.create).parameters:
            create: Any = cls.create
            return await create(config, self._on_logs, self._on_request, get_envs=self._get_envs)
        return await cls.create(config, self._on_logs, self._on_request)

    async def _past(self) -> tuple[list[Any], bool]:
        """Return what earlier instances logged, and whether there was one that did anything."""
        notes: list[Any] = []
        has_worked = False
        after = 0
        while facts := await self._env.store.read(self._journal.session_id, after):
            after = facts[-1].seq
            for fact in facts:
                if isinstance(fact.body, Note) and isinstance(fact.body.data, dict):
                    data: Json = fact.body.data  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                    notes.extend(data.get("log", ()))
                has_worked = has_worked or (isinstance(fact.body, RunEnded) and fact.body.outcome != "failed")
        return notes, has_worked or bool(notes)

    async def _get_envs(self) -> list[EnvVar]:
        return [EnvVar(name=name, value=self._env.secrets.get(name)) for name in self._definition.env_names]

    async def _on_logs(self, entries: list[Any]) -> None:
        await self._say(Note("info", {"log": _json(list(entries))}))

    async def _on_request(self, request: AgentInteractionRequest) -> None:
        schema = answer_schema("custom")
        await self._say(
            InteractionRequested(
                request.interaction_id, "custom", _json(request.data), schema, clean_text(request.type)
            )
        )

    async def _say(self, body: Note | InteractionRequested) -> None:
        if self._gone:
            raise _silenced()
        dump_body(body)  # what cannot be kept is the instance's error, not the session's
        said = _Said(body, asyncio.get_running_loop().create_future())
        self._said.append(said)
        self._event.set()
        await said.done

    def _start(self, waiting: WaitingInput) -> None:
        text = "\n".join(block.text for block in waiting.blocks if isinstance(block, TextBlock))
        data = waiting.data if waiting.type != "message" or waiting.data is not None else text
        interaction = AgentInteraction(type=waiting.type, data=data)
        self._runs[waiting.run_id] = asyncio.create_task(
            self._run(waiting.run_id, interaction), name=f"foreign {waiting.run_id}"
        )

    async def _run(self, run_id: str, interaction: AgentInteraction) -> None:
        try:
            agent = await self._instance()
            ended = RunEnded("completed", result=_json(await agent.interaction(interaction)))
            dump_body(ended)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            ended = RunEnded("failed", error=ErrorInfo("internal", "the agent cancelled its own interaction"))
        except BaseException as error:
            logger.exception("foreign agent failed, session=%s run=%s", self._journal.session_id, run_id)
            ended = RunEnded("failed", error=error_info(error, self._env.secrets))
        self._returned.append(Draft(run_id, ended))
        self._event.set()

    async def _answer(self, agent: AgentBase, body: InteractionResolved, type: str) -> None:
        data = body.value if body.decision == "answered" else None
        try:
            await agent.interaction(AgentInteraction(interaction_id=body.request_id, type=type, data=data))
        except Exception:
            logger.exception(
                "an answer was not taken, session=%s request=%s", self._journal.session_id, body.request_id
            )

    def _let_go(self) -> None:
        """Stop the instance, once; what it says meanwhile is still written."""
        agent, self._agent = self._agent, None
        if agent is not None:
            self._beside_it(self._stop(agent))

    async def _stop(self, agent: AgentBase) -> None:
        clock = self._env.clock
        stop = asyncio.create_task(agent.stop(), name=f"foreign stop {self._journal.session_id}")
        limit = asyncio.create_task(clock.sleep_until(clock.now_ms() + STOP_MS))
        try:
            await asyncio.wait({stop, limit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks([limit, stop], clock)
        if stop.done() and (stop.cancelled() or stop.exception() is not None):
            error = None if stop.cancelled() else stop.exception()
            logger.error("foreign agent did not stop cleanly, session=%s", self._journal.session_id, exc_info=error)

    # --- beginning, waiting, end ---

    async def _clear_lost(self) -> None:
        """End the run that a lost process left behind, and take back what it asked."""
        while True:
            state = self._journal.state
            facts: list[Draft] = []
            if state.root is not None and state.root.cancel is None:
                facts.append(Draft(state.root.run_id, CancelRequested("system", AGENT_LOST)))
            facts += map(withdraw, state.requests.values())
            if not facts:
                return
            try:
                await self._journal.append(facts)
            except StaleError:  # one was answered meanwhile: the answer is taken first
                rows, at_ms = await self._journal.inbox(), self._env.clock.now_ms()
                taken = intake(state, rows, at_ms, self._journal.lease.epoch, self._env.ids.new)
                await self._journal.append(taken.facts, takes=taken.takes)

    async def _wait(self) -> None:
        if self._said or self._returned or self._dirty:
            return
        self._event.clear()
        now_ms = self._env.clock.now_ms()
        expiries = [r.expires_at_ms for r in self._journal.state.requests.values() if r.expires_at_ms is not None]
        until = min([now_ms + LOOK_EVERY_MS, *(max(now_ms + 1, at) for at in expiries)])
        timer = asyncio.create_task(self._env.clock.sleep_until(until))
        woken = asyncio.create_task(self._event.wait())
        try:
            await asyncio.wait((timer, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            woken.cancel()
            await asyncio.gather(timer, woken, return_exceptions=True)

    async def _free(self) -> None:
        self._gone = True
        await end_tasks([*self._runs.values(), *self._beside], self._env.clock)
        for said in self._said:
            if not said.done.done():
                said.done.set_exception(_silenced())
        agent, self._agent = self._agent, None
        if agent is not None:
            await self._stop(agent)


def _silenced() -> SessionClosedError:
    return SessionClosedError("this agent was stopped; it can say nothing more")


def _json(value: Any) -> Any:
    """Return `value` as JSON, cleaned, a copy; pydantic models and dataclasses as their JSON. Raises TypeError else."""
    try:
        text = dumps(value)
    except (TypeError, ValueError):
        from pydantic import ConfigDict, TypeAdapter
        from pydantic_core import PydanticSerializationError

        try:
            # NaN is left as it is, and refused by `dumps`; pydantic's default makes it a null in silence.
            adapter = TypeAdapter[Any](Any, config=ConfigDict(ser_json_inf_nan="constants"))
            text = dumps(adapter.dump_python(value, mode="json"))
        except (PydanticSerializationError, TypeError, ValueError):
            raise TypeError(
                f"what an agent returns, logs or asks must be JSON; it was {type(value).__name__!r}"
            ) from None
    return clean_json(loads(text))
