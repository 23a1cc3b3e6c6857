"""What the tests of loop, host and service stand on: one agent on one store in a virtual world, seen by `Service`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ownloop.agent import Agent
from ownloop.backends.scripted import Reply, ScriptedBackend
from ownloop.core.events import Fact, FactBody, InteractionRequested
from ownloop.core.messages import Message, TextBlock, ToolResultBlock, text_of
from ownloop.core.operations import Accepted, Asked, RunResult
from ownloop.core.ports import Store
from ownloop.core.session import SessionState, fold
from ownloop.runtime.host import AnyDefinition, Host, open_host
from ownloop.service import Service
from ownloop.store.memory import MemoryStore
from ownloop.testing.virtual_time import World, run_virtual

T = TypeVar("T")
B = TypeVar("B", bound=FactBody)


def play(scene: Callable[[World], Awaitable[T]], *, seed: int = 0) -> T:
    """Run a scene in virtual time; whatever it opened must be gone at its end."""

    async def strict(world: World) -> T:
        result = await scene(world)
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []
        return result

    return run_virtual(strict, seed=seed)


@dataclass
class Stage:
    """An agent in a store that outlives its hosts: `async with stage.open() as talk` again is a restart."""

    world: World
    script: Sequence[Reply] | Callable[..., Any]
    tools: Sequence[Callable[..., Any]] = ()
    options: dict[str, Any] = field(default_factory=dict)
    store: Store = field(default_factory=MemoryStore)
    name: str = "helper"
    session_id: str | None = None

    def __post_init__(self) -> None:
        self.backend = ScriptedBackend(self.script, clock=self.world.clock)
        self.options = {"model": self.backend, **self.options}

    @property
    def agent(self) -> Agent:
        return Agent(self.name, tools=self.tools, **self.options)

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncGenerator[Talk]:
        world = self.world
        ports: dict[str, Any] = {"clock": world.clock, "ids": world.ids, "threads": world.threads}
        async with self.agent.open(store=self.store, **{**ports, **options}) as opened:
            if self.session_id is None:
                self.session_id = (await opened.service.create_session()).session_id
            yield Talk(opened.host, opened.service, self.session_id, world)


@asynccontextmanager
async def hosted(world: World, *definitions: AnyDefinition, store: Store | None = None) -> AsyncGenerator[Talk]:
    """Host definitions as they are, and open a session of the first one."""
    async with open_host(
        store or MemoryStore(), definitions, clock=world.clock, ids=world.ids, threads=world.threads
    ) as host:
        service = Service(host)
        session = await service.create_session(definitions[0].name)
        yield Talk(host, service, session.session_id, world)


@dataclass
class Talk:
    """One session, as a person and a developer see it."""

    host: Host
    service: Service
    session_id: str
    world: World

    async def send(self, content: Any, **options: Any) -> Accepted:
        return await self.service.send(self.session_id, content, **options)

    async def say(self, content: Any, **options: Any) -> RunResult:
        return await self.service.wait(await self.send(content, **options))

    async def answer(self, request: Asked | str, answer: Any) -> None:
        request_id = request if isinstance(request, str) else request.request_id
        await self.service.answer(self.session_id, request_id, answer)

    async def rested(self) -> None:
        await self.host.rested(self.session_id)

    async def asked(self) -> list[Asked]:
        return await self.service.requests()

    async def sleep(self, ms: int) -> None:
        await self.world.clock.sleep_until(self.world.clock.now_ms() + ms)

    async def until(
        self, happened: type[FactBody] | Callable[[Sequence[Fact]], Any], *, limit_ms: int = 120_000
    ) -> None:
        """Wait until a fact of this kind is there, or until the facts satisfy a condition."""
        for _ in range(limit_ms // 5):
            facts = await self.facts()
            if any(isinstance(f.body, happened) for f in facts) if isinstance(happened, type) else happened(facts):
                return
            await self.sleep(5)
        raise AssertionError(f"{happened!r} did not happen; there are {[f.body.kind for f in await self.facts()]}")

    async def until_asked(self, count: int = 1) -> list[Asked]:
        await self.until(lambda facts: len([f for f in facts if isinstance(f.body, InteractionRequested)]) >= count)
        return await self.asked()

    async def facts(self) -> Sequence[Fact]:
        return await self.host.env.store.read(self.session_id)

    async def of(self, kind: type[B]) -> list[B]:
        return [fact.body for fact in await self.facts() if isinstance(fact.body, kind)]

    async def kinds(self) -> list[str]:
        return [fact.body.kind for fact in await self.facts()]

    async def state(self) -> SessionState:
        return fold(await self.facts())


def results_of(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the tool results in a request, in order."""
    return [
        text_of(block.content) for message in messages for block in message.blocks if isinstance(block, ToolResultBlock)
    ]


def said(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return role and text of the messages in a request, without tool calls and results."""
    return [(m.role, text_of(m.blocks)) for m in messages if any(isinstance(b, TextBlock) for b in m.blocks)]
