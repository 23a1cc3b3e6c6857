"""What a user of the crash kit writes: an agent, what its model says, what people do. And what is known outside of it.

Invariant: people who were told "accepted" do not ask again; the others do, and it makes no difference.
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
from ownloop.core.events import Fact, InteractionRequested, ResponseEnded, ToolStarted
from ownloop.core.inbox import AnswerRequest, InboxItem, Input
from ownloop.core.messages import Json, ToolCallBlock, calls_of
from ownloop.core.operations import Accepted
from ownloop.core.ports import Clock, Filter, ToolContext
from ownloop.errors import ConflictError
from ownloop.projections.native import encode
from ownloop.service import Service
from ownloop.testing.crash.places import Places

if TYPE_CHECKING:
    from ownloop.agent import Agent

LOOK_EVERY_MS = 100
PATIENCE_MS = 300_000
"""Virtual, as all time here: far beyond every limit of the runtime, after which nothing will come any more."""


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
    """What is known outside the agent's process: effects of its tools, what its store acknowledged, what people did.

    Lines of files, written at once: what a killed process wrote, the kernel keeps.
    """

    def __init__(self, folder: Path, places: Places, process: int = 0) -> None:
        self._effects = folder / "effects.jsonl"
        self._acknowledged = folder / "acknowledged.jsonl"
        self._deeds = folder / "deeds.jsonl"
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

    def remember(self, deed: str, result: Any) -> None:
        """Remember what people did, and were told."""
        _write(self._deeds, {"what": deed, "result": result})

    @property
    def deeds(self) -> list[Json]:
        return _read(self._deeds)

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
        """Send a message; again, under the same key, where an earlier process died before it was told "accepted"."""

        async def send() -> Sequence[str]:
            on_busy = "steer" if steer else "queue"
            sent = await self._service.send(self._session_id, text, on_busy=on_busy, deny_open=deny_open, idem_key=key)
            return sent.session_id, sent.input_id, sent.run_id

        return Accepted(*await self._once(f"send {key}", send))

    async def answer(self, tool: str, answer: Any) -> None:
        """Wait for a request about `tool` and answer it."""
        await self.until(f"the request about {tool}", lambda facts: bool(_asked(facts, tool)))
        for request_id in _asked(await self._facts(), tool):
            await self._answer(request_id, answer)

    async def _answer(self, request_id: str, answer: Any) -> None:
        async def answer_it() -> None:
            try:
                await self._service.answer(self._session_id, request_id, answer)
            except ConflictError:
                pass  # it is closed: answered by an earlier process that was not told so, or withdrawn

        await self._once(f"answer {request_id}", answer_it)

    async def _once(self, what: str, do: Callable[[], Awaitable[Any]]) -> Any:
        """Do something and return its result, unless an earlier process did and came to know it."""
        for deed in self._outside.deeds:
            if deed["what"] == what:
                return deed["result"]
        result = await do()
        self._outside.remember(what, result)
        return result

    async def cancel(self, accepted: Accepted) -> None:
        """Cancel the run of a message; without effect if it has ended."""

        async def cancel() -> None:
            await self._service.cancel(session_id=self._session_id, run_id=accepted.run_id)

        await self._once(f"cancel {accepted.run_id}", cancel)

    async def started(self, tool: str) -> None:
        """Wait until a call of `tool` has been started."""
        await self.until(f"the start of {tool}", lambda facts: _has_started(facts, tool))

    async def rest(self) -> None:
        """Wait until everything is over."""
        await self.until("the end", lambda _: False)

    async def until(self, what: str, seen: Callable[[Sequence[Fact]], bool]) -> None:
        """Wait until the journal is as `seen` says, or everything is over: a crash may have changed the course.

        Raises TimeoutError, naming `what`, after five virtual minutes.
        """
        give_up_ms = self._clock.now_ms() + PATIENCE_MS
        while not seen(await self._facts()) and not await self._is_over():
            await self._settle_doubts()
            if self._clock.now_ms() > give_up_ms:
                raise TimeoutError(f"waited in vain for {what}")
            await self._clock.sleep_until(self._clock.now_ms() + LOOK_EVERY_MS)

    async def _is_over(self) -> bool:
        """Whether nothing is owed to anybody: a post makes a session runnable in its own transaction."""
        info = await self._service.session(self._session_id)
        return info.owner is None and info.runnable_at_ms is None and info.live_run_id is None

    async def _facts(self) -> Sequence[Fact]:
        return (await self._service.read_events(self._session_id, limit=1_000_000))[0]

    async def _settle_doubts(self) -> None:
        for request in await self._service.requests(Filter(session_id=self._session_id, state="open")):
            if request.purpose == "unknown_outcome":
                ran = any(effect["key"] == request.data["key"] for effect in self._outside.effects)
                answer: Mapping[str, Any] = {"outcome": "ran", "result": "It ran."} if ran else self._if_not_run
                await self._answer(request.request_id, answer)


def _asked(facts: Sequence[Fact], tool: str) -> list[str]:
    """Return the requests about `tool`, but for those about the outcome of its calls."""
    return [
        body.request_id
        for fact in facts
        if isinstance(body := fact.body, InteractionRequested)
        and body.purpose != "unknown_outcome"
        and body.data["tool"] == tool
    ]


def _has_started(facts: Sequence[Fact], tool: str) -> bool:
    names = {block.call_id: block.name for fact in facts for block in proposed_calls(fact)}
    return any(isinstance(fact.body, ToolStarted) and names[fact.body.call_id] == tool for fact in facts)


def proposed_calls(fact: Fact) -> Sequence[ToolCallBlock]:
    """Return the calls of a response that count: those of failed, abandoned and cancelled ones are none."""
    body = fact.body
    return calls_of(body.blocks) if isinstance(body, ResponseEnded) and body.status in ("complete", "cut") else ()
