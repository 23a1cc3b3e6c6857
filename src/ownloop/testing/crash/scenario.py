"""What a user of the crash kit writes: an agent, what its model says, what people do. And what is known outside of it.

Invariant: everything that people do may be done again by a later process that does not know what an earlier one did.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownloop.backends.scripted import Reply, Turn
from ownloop.core.backend import Adapter, ModelRequest
from ownloop.core.events import Fact, InteractionRequested, InteractionResolved, RunEnded, ToolStarted
from ownloop.core.inbox import AnswerRequest, InboxItem, Input
from ownloop.core.messages import Json
from ownloop.core.ports import Clock, Filter, ToolContext
from ownloop.errors import ConflictError
from ownloop.projections.native import encode
from ownloop.service import Accepted, Service
from ownloop.testing.crash.places import Places

if TYPE_CHECKING:
    from ownloop.agent import Agent

LOOK_EVERY_MS = 50
PATIENCE_MS = 3_600_000
"""Virtual: after an hour nothing will come any more."""
PERSON = "local"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is run, and how it must end whatever happens."""

    agent: Callable[[Adapter, Outside], Agent]
    """Makes the agent, with this model, and with this `Outside` as `deps` for its tools."""
    script: Sequence[Reply] | Callable[[ModelRequest], Turn]
    """What the model says; see `ScriptedBackend`."""
    people: Callable[[People], Awaitable[None]]
    """What people do, in order. Is begun anew by each process."""
    ends: Sequence[str]
    """The outcomes of the runs, in order; several that are possible for one: "cancelled|completed"."""
    if_not_run: Json | None = None
    """What people answer about a started call that they see took no effect; by default that it did not run."""


class Outside:
    """What is known outside the agent's process: effects of its tools, and what its store acknowledged.

    Lines of files, written at once: what a killed process wrote, the kernel keeps.
    """

    def __init__(self, folder: Path, places: Places, process: int = 0) -> None:
        self._effects = folder / "effects.jsonl"
        self._acknowledged = folder / "acknowledged.jsonl"
        self._places = places
        self._process = process

    def effect(self, tool: str, context: ToolContext, what: Any = None) -> None:
        """Do what a tool does to the world: once for each time it is called. `what` should be the tool's input."""
        self._places.passes(f"in {tool}, before its effect")
        line = {"tool": tool, "call": context.call_id, "attempt": context.attempt, "key": context.key, "what": what}
        _write(self._effects, line | {"process": self._process})
        self._places.passes(f"in {tool}, after its effect")

    def acknowledge(self, method: str, args: Sequence[Any], result: Any) -> None:
        """Remember what the store said was durable."""
        match method, args:
            case "append", _:
                for fact in result:
                    _write(self._acknowledged, {"fact": encode(fact)})
            case "post", (_, InboxItem(body=Input(input_id))) if result != "conflict":
                _write(self._acknowledged, {"input": input_id})
            case "post", (_, InboxItem(body=AnswerRequest(request_id, answer))) if result != "conflict":
                _write(self._acknowledged, {"answer": request_id, "decision": answer.decision})
            case _:
                pass

    @property
    def effects(self) -> list[Json]:
        return _read(self._effects)

    @property
    def acknowledged(self) -> list[Json]:
        return _read(self._acknowledged)


def _write(path: Path, line: Json) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def _read(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class People:
    """Those who talk to the agent, through its service. While they wait, they say of doubted calls whether they ran."""

    def __init__(
        self, service: Service, session_id: str, clock: Clock, outside: Outside, if_not_run: Json | None = None
    ) -> None:
        self._service = service
        self._session_id = session_id
        self._clock = clock
        self._outside = outside
        self._if_not_run = if_not_run or {"outcome": "not_run"}

    async def send(self, text: str, *, key: str, steer: bool = False, deny_open: bool = False) -> Accepted:
        """Send a message, once: a later process sends it again under the same key."""
        on_busy = "steer" if steer else "queue"
        return await self._service.send(self._session_id, text, on_busy=on_busy, deny_open=deny_open, idem_key=key)

    async def answer(self, tool: str, answer: Any) -> None:
        """Wait for the request about `tool` and answer it, unless it is closed already or everything has ended."""
        await self.until(f"the request about {tool}", lambda facts: bool(_asked(facts, tool)) or ended(facts))
        for request_id in _asked(await self._facts(), tool):
            try:
                await self._service.answer(self._session_id, request_id, answer)
            except ConflictError:
                pass  # it was answered by an earlier process, or withdrawn

    async def cancel(self, accepted: Accepted) -> None:
        """Cancel the run of a message; without effect if it has ended."""
        await self._service.cancel(run_id=accepted.run_id)

    async def started(self, tool: str) -> None:
        """Wait until a call of `tool` has been started, or everything has ended."""
        await self.until(f"the start of {tool}", lambda facts: _has_started(facts, tool) or ended(facts))

    async def until(self, what: str, seen: Callable[[Sequence[Fact]], bool]) -> None:
        """Wait until the journal is as `seen` says. Raises TimeoutError, naming `what`, after a virtual hour."""
        give_up_ms = self._clock.now_ms() + PATIENCE_MS
        while not seen(await self._facts()):
            await self._settle_doubts()
            if self._clock.now_ms() > give_up_ms:
                raise TimeoutError(f"waited in vain for {what}")
            await self._clock.sleep_until(self._clock.now_ms() + LOOK_EVERY_MS)

    async def rest(self, runs: int) -> None:
        """Wait until so many runs have ended."""
        await self.until(f"the end of {runs} runs", lambda facts: _ended_runs(facts) >= runs)

    async def _facts(self) -> Sequence[Fact]:
        return (await self._service.read_events(self._session_id, limit=1_000_000))[0]

    async def _settle_doubts(self) -> None:
        for request in await self._service.requests(Filter(session_id=self._session_id, state="open")):
            if request.purpose == "unknown_outcome":
                ran = any(effect["key"] == request.data["key"] for effect in self._outside.effects)
                answer: Mapping[str, Any] = {"outcome": "ran", "result": "It ran."} if ran else self._if_not_run
                await self._service.answer(self._session_id, request.request_id, answer)


def ended(facts: Sequence[Fact]) -> bool:
    """Whether no run is live, and one was."""
    started = sum(fact.body.kind == "run_started" for fact in facts)
    return 0 < started == _ended_runs(facts)


def _ended_runs(facts: Sequence[Fact]) -> int:
    return sum(isinstance(fact.body, RunEnded) for fact in facts)


def _asked(facts: Sequence[Fact], tool: str) -> list[str]:
    """Return the requests about `tool`, but for its doubted calls, that no fact closes."""
    closed = {fact.body.request_id for fact in facts if isinstance(fact.body, InteractionResolved)}
    return [
        body.request_id
        for fact in facts
        if isinstance(body := fact.body, InteractionRequested)
        and body.purpose != "unknown_outcome"
        and body.request_id not in closed
        and body.data["tool"] == tool
    ]


def _has_started(facts: Sequence[Fact], tool: str) -> bool:
    names = {
        block.call_id: block.name
        for fact in facts
        if fact.body.kind == "response_ended"
        for block in fact.body.blocks  # pyright: ignore[reportAttributeAccessIssue]
        if block.type == "tool_call"
    }
    return any(isinstance(fact.body, ToolStarted) and names[fact.body.call_id] == tool for fact in facts)
