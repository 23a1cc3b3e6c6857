"""Drives a session whose agent is any class that implements `AgentBase`: one live instance, pinned to this process.

The instance's life is one task. What it says through its callbacks is a fact before the callback returns; a run is one
`interaction()` without an id, and answers are further `interaction()`s beside it (DATA-MODEL §7).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ownloop.core.agent_base import AgentBase, AgentInteraction, AgentInteractionRequest, EnvVar
from ownloop.core.codec import digest, dumps
from ownloop.core.commands import EndSegment, InFlight, Record, StartRun
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
from ownloop.core.inbox import AnswerRequest
from ownloop.core.intake import intake
from ownloop.core.interactions import answer_schema
from ownloop.core.messages import Json, TextBlock
from ownloop.core.run import RequestState
from ownloop.core.session import SessionState, WaitingInput, advance, due, expired
from ownloop.core.text import clean_json
from ownloop.errors import ConflictError, StaleError
from ownloop.runtime.calls import error_info
from ownloop.runtime.environment import Environment
from ownloop.runtime.journal import Journal

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 1000
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


@dataclass(slots=True)
class _Said:
    """What the instance said, and its await."""

    drafts: tuple[Draft, ...]
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Plan:
    state: SessionState
    at_ms: int
    facts: list[Draft] = field(default_factory=list[Draft])
    takes: list[int] = field(default_factory=list[int])
    starts: list[WaitingInput] = field(default_factory=list[WaitingInput])
    said: list[_Said] = field(default_factory=list[_Said])
    returned: int = 0
    idle: bool = False


class ForeignSession:
    """One session of a foreign agent, from its claim to its eviction, its end, or that of the host."""

    def __init__(self, env: Environment, journal: Journal, definition: ForeignAgent) -> None:
        self._env = env
        self._journal = journal
        self._definition = definition
        self._agent: AgentBase | None = None
        self._said: list[_Said] = []
        self._returned: list[Draft] = []
        self._event = asyncio.Event()
        self._dirty = True
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._asked: dict[str, RequestState] = {}

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
                may_leave = plan.idle and (plan.state.closed or self._agent is None or self._restorable())
                if not await self._commit(plan, release=may_leave):
                    continue
                if may_leave:
                    return
                await self._wait()
        finally:
            await self._free()

    # --- planning: as the loop does it, without model and tools ---

    async def _plan(self) -> _Plan:
        self._dirty = False
        rows = await self._journal.inbox()
        plan = _Plan(self._journal.state, self._env.clock.now_ms())
        for said in self._said:
            fresh = [d for d in said.drafts if not self._reused(plan.state, d)]
            if len(fresh) < len(said.drafts):
                continue
            self._add(plan, *said.drafts)
            plan.said.append(said)
        plan.returned = len(self._returned)
        for draft in self._returned[: plan.returned]:
            run = plan.state.runs.get(draft.run_id or "")
            if run is not None and run.cancel is None:
                withdrawn = [
                    Draft(r.run_id, InteractionResolved(r.request_id, "system", "withdrawn"))
                    for r in plan.state.requests.values()
                    if r.run_id == draft.run_id
                ]
                self._add(plan, *withdrawn, draft)
        taken = intake(plan.state, rows, plan.at_ms, self._journal.lease.epoch, self._env.ids.new)
        self._add(plan, *taken.facts)
        plan.takes.extend(taken.takes)
        answered = {row.item.body.request_id for row in rows if isinstance(row.item.body, AnswerRequest)}
        for draft in expired(plan.state, plan.at_ms):
            if isinstance(draft.body, InteractionResolved) and draft.body.request_id not in answered:
                self._add(plan, draft)
        self._take_due(plan, stopping=taken.stop is not None)
        if plan.state.closed and taken.stop is not None:
            plan.takes.append(taken.stop)
        return plan

    def _add(self, plan: _Plan, *drafts: Draft) -> None:
        plan.state = advance(plan.state, drafts, plan.at_ms, self._journal.lease.epoch)
        plan.facts.extend(drafts)

    def _take_due(self, plan: _Plan, *, stopping: bool) -> None:
        while True:
            before = len(plan.facts)
            for command in due(plan.state, self._journal.lease.epoch, InFlight(), stopping):
                match command:
                    case Record(facts):
                        self._add(plan, *facts)
                    case StartRun(input_id, run_id):
                        waiting = plan.state.inputs[input_id]
                        started = RunStarted(Limits(), "", (input_id,), agent=self._definition.name)
                        self._add(plan, Draft(run_id, started))
                        plan.starts.append(waiting)
                    case EndSegment():
                        plan.idle = not plan.state.requests
                    case _:
                        pass  # a foreign agent calls its own model and tools
            if len(plan.facts) == before:
                return

    def _reused(self, state: SessionState, draft: Draft) -> bool:
        body = draft.body
        return isinstance(body, InteractionRequested) and (
            body.request_id in state.requests or body.request_id in state.closed_requests
        )

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
        said, self._said = self._said, []
        for one in said:
            if one in plan.said:
                one.done.set_result(None)
            else:
                one.done.set_exception(ConflictError("an interaction_id may be used once in a session; use a new one"))
        for draft in plan.facts:
            await self._after_commit(draft)
        for waiting in plan.starts:
            if waiting.run_id in plan.state.runs:
                self._start(waiting)
        return True

    async def _after_commit(self, draft: Draft) -> None:
        match draft.body:
            case InteractionRequested(request_id):
                self._asked[request_id] = self._journal.state.requests.get(request_id) or self._asked[request_id]
            case InteractionResolved() as body:
                request = self._asked.pop(body.request_id, None)
                if request is not None and self._agent is not None and body.decision in ("answered", "denied"):
                    self._deliver(request, body)
            case RunEnded():
                task = self._runs.pop(draft.run_id or "", None)
                if task is not None:
                    task.cancel()
            case _:
                pass

    # --- the instance ---

    def _restorable(self) -> bool:
        return callable(getattr(self._definition.agent_class, "restore", None))

    async def _instance(self) -> AgentBase:
        if self._agent is not None:
            return self._agent
        cls = self._definition.agent_class
        config = self._journal.state.config
        if self._restorable() and self._journal.state.head_seq > 2:
            notes = await self._notes()
            restore: Any = cls.restore  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
            self._agent = await restore(config, self._on_logs, self._on_request, notes)
        elif "get_envs" in inspect.signature(cls.create).parameters:
            create: Any = cls.create
            self._agent = await create(config, self._on_logs, self._on_request, get_envs=self._get_envs)
        else:
            self._agent = await cls.create(config, self._on_logs, self._on_request)
        return self._agent

    async def _notes(self) -> list[Any]:
        notes: list[Any] = []
        after = 0
        while facts := await self._env.store.read(self._journal.session_id, after):
            after = facts[-1].seq
            for fact in facts:
                if isinstance(fact.body, Note) and isinstance(fact.body.data, dict) and "log" in fact.body.data:
                    notes.extend(fact.body.data["log"])  # pyright: ignore[reportUnknownArgumentType]
        return notes

    async def _get_envs(self) -> list[EnvVar]:
        return [EnvVar(name=name, value=self._env.secrets.get(name)) for name in self._definition.env_names]

    async def _on_logs(self, entries: list[Any]) -> None:
        await self._say(Draft(self._live_run(), Note("info", {"log": _json(list(entries))})))

    async def _on_request(self, request: AgentInteractionRequest) -> None:
        body = InteractionRequested(
            request.interaction_id, "custom", _json(request.data), answer_schema("custom"), request.type
        )
        await self._say(Draft(self._live_run(), body))

    def _live_run(self) -> str | None:
        root = self._journal.state.root
        return root.run_id if root is not None and root.cancel is None else None

    async def _say(self, *drafts: Draft) -> None:
        said = _Said(drafts, asyncio.get_running_loop().create_future())
        self._said.append(said)
        self._event.set()
        await said.done

    def _start(self, waiting: WaitingInput) -> None:
        text = "\n".join(block.text for block in waiting.blocks if isinstance(block, TextBlock))
        data = waiting.data if waiting.type != "message" or waiting.data is not None else text
        interaction = AgentInteraction(type=waiting.type, data=data)
        self._runs[waiting.run_id] = asyncio.create_task(self._run(waiting.run_id, interaction))

    async def _run(self, run_id: str, interaction: AgentInteraction) -> None:
        try:
            agent = await self._instance()
            ended = RunEnded("completed", result=_json(await agent.interaction(interaction)))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("foreign agent failed, session=%s run=%s", self._journal.session_id, run_id)
            ended = RunEnded("failed", error=error_info(error, self._env.secrets))
        self._returned.append(Draft(run_id, ended))
        self._event.set()

    def _deliver(self, request: RequestState, body: InteractionResolved) -> None:
        task = asyncio.create_task(self._answer(request, body))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, request: RequestState, body: InteractionResolved) -> None:
        agent = await self._instance()
        data = body.value if body.decision == "answered" else None
        try:
            await agent.interaction(AgentInteraction(interaction_id=request.request_id, type=request.type, data=data))
        except Exception:
            logger.exception(
                "an answer was not taken, session=%s request=%s", self._journal.session_id, request.request_id
            )

    # --- beginning, waiting, end ---

    async def _clear_lost(self) -> None:
        """End the run that a lost process left behind, and take back what it asked."""
        state = self._journal.state
        facts: list[Draft] = []
        if state.root is not None and state.root.cancel is None:
            facts.append(Draft(state.root.run_id, CancelRequested("system", AGENT_LOST)))
        facts += [
            Draft(request.run_id, InteractionResolved(request.request_id, "system", "withdrawn"))
            for request in state.requests.values()
        ]
        while facts:
            try:
                await self._journal.append(facts)
            except StaleError:  # one was answered meanwhile: let the answer be taken first
                rows = await self._journal.inbox()
                taken = intake(
                    self._journal.state, rows, self._env.clock.now_ms(), self._journal.lease.epoch, self._env.ids.new
                )
                await self._journal.append(taken.facts, takes=taken.takes)
                return await self._clear_lost()
            return

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
        tasks: Sequence[asyncio.Task[None]] = [*self._runs.values(), *self._answers]
        for task in tasks:
            task.cancel()
        for said in self._said:
            said.done.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        agent, self._agent = self._agent, None
        if agent is not None:
            try:
                await agent.stop()
            except Exception:
                logger.exception("foreign agent did not stop cleanly, session=%s", self._journal.session_id)


def _json(value: Any) -> Any:
    """Return `value` if it is JSON, cleaned; pydantic models and dataclasses as their JSON. Raises TypeError else."""
    try:
        dumps(value)
    except (TypeError, ValueError):
        from pydantic import TypeAdapter
        from pydantic_core import PydanticSerializationError

        try:
            value = TypeAdapter(Any).dump_python(value, mode="json")
            dumps(value)
        except (PydanticSerializationError, TypeError, ValueError):
            raise TypeError(
                f"what an agent returns, logs or asks must be JSON; it was {type(value).__name__!r}"
            ) from None
    return clean_json(value)
