"""Agent: the definition of an agent, and the ways to run it from code. Assembles; holds no logic.

An `Agent` is immutable and may be shared by any number of sessions and tasks. It runs inside a host: the CLI's and the
server's, or one that `open` (or each `run`) opens for it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ownloop.backends.models import check_model
from ownloop.core.backend import Adapter, Backend, ModelSettings
from ownloop.core.codec import digest, dump_body
from ownloop.core.cursor import Cursor
from ownloop.core.events import Event, Limits, RunStarted
from ownloop.core.messages import Json, ResultContent
from ownloop.core.operations import Accepted, OnBusy, RunResult
from ownloop.core.policy import Policy
from ownloop.core.ports import Clock, Hooks, Ids, Secrets, Store, Threads, ToolExecutor
from ownloop.core.schema import check_schema
from ownloop.errors import ConfigError, IllegalFactError, InvalidRequestError, NotFoundError
from ownloop.runtime.agent_loop import AgentLoop
from ownloop.runtime.host import Host, open_host
from ownloop.runtime.secrets import EnvSecrets
from ownloop.runtime.system import SystemClock, SystemThreads
from ownloop.service import Service
from ownloop.tools.executor import FunctionExecutor

if TYPE_CHECKING:
    from ownloop.core.agent_base import AgentBase

__all__ = ["Agent", "AgentLoop", "OpenAgent", "open_store"]

Instructions: TypeAlias = str | Callable[..., str | Awaitable[str]]
Model: TypeAlias = str | Adapter | type[Backend] | Callable[[], Backend]

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
CONFIG_SCHEMA: Json = {"type": "object", "properties": {}, "additionalProperties": False}


def _is_number(value: object, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | Mapping)


def _is_object_schema(value: Json) -> bool:
    return value.get("type") == "object" and check_schema(value) is None


def _are_limits(value: object) -> bool:
    if not isinstance(value, Limits):
        return False
    try:
        dump_body(RunStarted(value, "", ()))  # they stand in the first fact of each run
    except IllegalFactError:
        return False
    return True


_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "model": (
        lambda value: isinstance(value, str) or callable(value) or hasattr(value, "start"),
        "a model string, an adapter, or a Backend class or factory",
    ),
    "instructions": (lambda value: isinstance(value, str) or callable(value), "text or a function"),
    "tools": (_is_list, "a list of functions"),
    "policy": (lambda value: isinstance(value, Policy) or callable(value), "a Policy or a function"),
    "settings": (lambda value: isinstance(value, ModelSettings | Mapping), "a dict or ModelSettings"),
    "max_turns": (lambda value: isinstance(value, int) and _is_number(value, 0), "a number of turns (0: no limit)"),
    "limits": (_are_limits, "Limits, of whole numbers (budget_cost: of any)"),
    "hooks": (lambda value: isinstance(value, Hooks), "Hooks"),
    "secrets": (_is_list, "a list of names of environment variables"),
    "config": (
        lambda value: isinstance(value, dict) and _is_object_schema(cast("Json", value)),
        "the JSON schema of an object",
    ),
    "approval_expires_s": (lambda value: _is_number(value, 0), "a number of seconds, or None for never"),
    "suggestions": (_is_list, "a list of sentences"),
}
"""What an argument must be, and that in words; None stands for the default."""


class Agent:
    """An agent: instructions, a model, tools and the rules it works by.

    ```python
    agent = Agent("support", model="local", instructions="Help the customer.", tools=[refund])
    result = agent.run_sync("Where is order 7?")
    ```

    Args:
        name: Letters, digits, `_` and `-`; sessions are stored under it.
        model: `"local"`, `"local:/path/model.gguf"`, `"openai:…"`, `"http://host:8000/v1#model"`; an adapter such as
            `ScriptedBackend`; or a `Backend` subclass or factory of one's own (never an instance).
        instructions: The system prompt, or a function `(session_id, config) -> str`, sync or async.
        tools: Functions, `@tool`s, or both.
        policy: `(tool_name, input, context) -> "allow" | "ask" | "deny" | None`, beside the tools' own `approval`; the
            strictest voice wins.
        settings: `max_tokens`, `temperature` …
        max_turns: How many responses a run may take (default 50); `MAX_STEPS` is the same.
        limits: All limits at once, instead of `max_turns`.
        hooks: Coroutines around model and tool calls.
        deps: What tools find as `ToolContext.deps`.
        secrets: Names of environment variables that tools may ask for with `ToolContext.secrets`.
        config: JSON schema of what a session may be created with; `deps` and tools see it in the session.
        approval_expires_s: After how long an unanswered approval counts as denied; None = never.
        suggestions: Sentences that the terminal and the page offer to try.

    Raises:
        ConfigError, ToolDefinitionError: something here cannot work; the text says what and what to do.
    """

    def __init__(
        self,
        name: str,
        *,
        model: Model,
        instructions: Instructions = "",
        tools: Sequence[Callable[..., Any]] = (),
        policy: Callable[..., Any] | None = None,
        settings: ModelSettings | Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        limits: Limits | None = None,
        hooks: Hooks | None = None,
        deps: Any = None,
        secrets: Sequence[str] = (),
        config: Json | None = None,
        approval_expires_s: float | None = None,
        suggestions: Sequence[str] = (),
        MAX_STEPS: int | None = None,  # noqa: N803 - a promised name
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"agent name {name!r}: use letters, digits, '_' and '-'")
        if isinstance(model, Backend):
            raise ConfigError(
                f"agent {name!r} was given an instance of {type(model).__name__}; "
                "pass the class or a factory, for each session needs an instance of its own"
            )
        if (max_turns is not None or MAX_STEPS is not None) and limits is not None:
            raise ConfigError("give max_turns or limits, not both")
        turns = max_turns if max_turns is not None else MAX_STEPS
        given = {
            "model": model,
            "instructions": instructions,
            "tools": tools,
            "policy": policy,
            "settings": settings,
            "max_turns": turns,
            "limits": limits,
            "hooks": hooks,
            "secrets": secrets,
            "config": config,
            "approval_expires_s": approval_expires_s,
            "suggestions": suggestions,
        }
        for what, value in given.items():
            fits, words = _EXPECTED[what]
            if (value is not None or what == "model") and not fits(value):
                shown = repr(value) if isinstance(value, str | int | float) else f"of type {type(value).__name__!r}"
                raise ConfigError(f"agent {name!r}: {what} is {shown}; expected {words}")
        if isinstance(model, str):
            check_model(model)
        self.name = name
        self.instructions_source = instructions
        self.hooks = hooks or Hooks()
        self.deps = deps
        self.suggestions = tuple(suggestions)
        self.config_schema = config or CONFIG_SCHEMA
        self.settings = settings if isinstance(settings, ModelSettings) else _settings(name, settings or {})
        self._model = model
        self.limits = limits or Limits(
            max_turns=50 if turns is None else turns or None, continue_on_other=_is_three_method(model)
        )
        self.approval_expires_ms = None if approval_expires_s is None else int(approval_expires_s * 1000)
        self.secrets: Secrets = EnvSecrets(secrets)
        self._tools = tuple(tools)
        self._policy = policy
        self.executor: ToolExecutor = self._executor(SystemThreads())
        self._in_memory = _InMemory()

    @property
    def model(self) -> str:
        """The model string, or the label of the backend that was passed."""
        if isinstance(self._model, str):
            return self._model
        return str(getattr(self._model, "name", None) or getattr(self._model, "__name__", "custom"))

    @property
    def digest(self) -> str:
        """Says whether a session was last driven by this definition; never made of source code."""
        return digest({"name": self.name, "tools": [spec.digest for spec in self.executor.specs]})

    def open_backend(self, model: str) -> Adapter | Callable[[], Backend]:
        """Return what answers for `model`: the backend that was passed, or one made from the string."""
        from ownloop.backends.models import open_model

        if isinstance(self._model, str) or model != self.model:
            return open_model(model)
        return self._model

    async def instructions(self, session_id: str, config: Json) -> str:
        """Return the system prompt for a session."""
        source = self.instructions_source
        if isinstance(source, str):
            return source
        text = source(session_id, config)
        return await text if inspect.isawaitable(text) else text

    @property
    def base(self) -> type[AgentBase]:
        """A generated AgentBase subclass, for embedding this agent in other people's hosts."""
        from ownloop.embedding import base_of

        return base_of(self)

    # --- running it from code ---

    @asynccontextmanager
    async def open(
        self,
        *,
        store: Store | str | Path | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        threads: Threads | None = None,
        adopt: bool = True,
    ) -> AsyncGenerator[OpenAgent]:
        """Host the agent while the context is open: its model stays loaded, its sessions go on from where they were.

        `store` is a path or a Store; by default `OWNLOOP_STORE`, else memory that lives as long as this Agent object.
        What others left unfinished in a store is gone on with, unless `adopt` is False.
        """
        if store is None and clock is ids is threads is None and not os.environ.get("OWNLOOP_STORE"):
            async with self._in_memory.host(self) as host:
                yield OpenAgent(self, host)
            return
        agent = self if threads is None else self._on(threads)
        opened = open_store(store, clock)
        async with open_host(opened, [agent], clock=clock, ids=ids, threads=threads, adopt=adopt) as host:
            yield OpenAgent(agent, host)

    def _on(self, threads: Threads) -> Agent:
        """Return this agent with its tools on other threads."""
        agent = copy(self)
        agent.executor = self._executor(threads)
        return agent

    def _executor(self, threads: Threads) -> ToolExecutor:
        return FunctionExecutor(self._tools, policy=self._policy, threads=threads, secrets=self.secrets)

    async def run(
        self,
        content: str | Sequence[ResultContent],
        *,
        session_id: str | None = None,
        store: Store | str | Path | None = None,
    ) -> RunResult:
        """Send one message and return how its run stands: ended, or interrupted with what a person has to answer.

        A failed run is returned too; `RunResult.error` says why. While a tool waits in `ToolContext.ask`, the run goes
        on, and so does this call. `store` is a path or a Store, as for `open`.
        """
        async with self.open(store=store, adopt=False) as agent:
            return await agent.run(content, session_id=session_id)

    def run_sync(
        self,
        content: str | Sequence[ResultContent],
        *,
        session_id: str | None = None,
        store: Store | str | Path | None = None,
    ) -> RunResult:
        """`run`, for code without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("run_sync was called inside an event loop, which it would hold up: await agent.run(…)")
        return asyncio.run(self.run(content, session_id=session_id, store=store))

    async def stream(
        self,
        content: str | Sequence[ResultContent],
        *,
        session_id: str | None = None,
        store: Store | str | Path | None = None,
    ) -> AsyncIterator[Event]:
        """Send one message and yield the facts and live events of its run, until it has ended or waits for a person."""
        async with self.open(store=store, adopt=False) as agent:
            async for event in agent.stream(content, session_id=session_id):
                yield event

    async def resume(
        self,
        run: RunResult | str,
        answers: Mapping[str, Any],
        *,
        store: Store | str | Path | None = None,
    ) -> RunResult:
        """Answer the requests of an interrupted run, by request id, and return how it stands then.

        `run` is what `run` returned, or the run's id, from another process with the same `store`. An answer is
        `{"approved": True}`, with `edited_input`, `note` or `remember`; `{"value": …}` for a question. True and False
        stand for plain approval and refusal.
        """
        async with self.open(store=store, adopt=False) as agent:
            return await agent.resume(run, answers)


class _InMemory:
    """The store of an agent's sessions in memory, and the one host on it, opened by the first who needs it.

    One host, so that calls which run at the same time do not take each other's sessions; closed by the last.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._threads = threading.Lock()
        """Held while one of several threads makes the memory its own; never across an await."""
        self._users = 0
        self._host: Host | None = None
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def host(self, agent: Agent) -> AsyncGenerator[Host]:
        loop = asyncio.get_running_loop()
        with self._threads:
            if self._loop is not loop:
                if self._users:
                    raise ConfigError(
                        f"the sessions that agent {agent.name!r} keeps in memory are in use in another event loop; "
                        "pass store= to share them between threads"
                    )
                self._loop, self._lock = loop, asyncio.Lock()
            self._users += 1
        try:
            async with self._lock:
                if self._host is None:
                    self._host = await self._stack.enter_async_context(open_host(self._memory(), [agent]))
                host = self._host
            yield host
        finally:
            async with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._host = None
                    await self._stack.aclose()

    def _memory(self) -> Store:
        from ownloop.store.memory import MemoryStore

        if self._store is None:
            self._store = MemoryStore()
        return self._store


@dataclass(frozen=True, slots=True)
class OpenAgent:
    """An agent with a host of its own; see `Agent.open`."""

    agent: Agent
    host: Host

    @property
    def service(self) -> Service:
        """All operations on the agent's sessions."""
        return Service(self.host)

    async def _session(self, session_id: str | None) -> str:
        if session_id is not None:
            return session_id
        return (await self.service.create_session(self.agent.name)).session_id

    async def run(
        self, content: str | Sequence[ResultContent], *, session_id: str | None = None, on_busy: OnBusy = "queue"
    ) -> RunResult:
        """Send one message and wait until its run has ended or waits for a person."""
        accepted = await self.service.send(await self._session(session_id), content, on_busy=on_busy)
        return await self.service.wait(accepted)

    async def stream(
        self, content: str | Sequence[ResultContent], *, session_id: str | None = None
    ) -> AsyncIterator[Event]:
        """Send one message and yield the events of its run, until it has ended or waits for a person."""
        session_id = await self._session(session_id)
        service = self.service
        head = (await service.session(session_id)).head_seq
        accepted = await service.send(session_id, content)
        async for frame in service.follow(accepted, str(Cursor(head))):
            yield frame.event

    async def resume(self, run: RunResult | str, answers: Mapping[str, Any]) -> RunResult:
        """Answer requests of an interrupted run, or of the run with this id; wait until it has ended or waits again.

        Raises InvalidRequestError for answers of another shape, ConflictError for a request answered otherwise.
        """
        if not isinstance(answers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"answers are a dict, request id to answer; this is {type(answers).__name__!r}")
        if not isinstance(run, RunResult | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"resume takes a RunResult or a run's id, not {type(run).__name__!r}")
        result = await self.service.run(run) if isinstance(run, str) else run
        session = await self.service.session(result.session_id)
        if session.agent != self.agent.name:  # nobody here would go on with it, and this would wait for ever
            raise NotFoundError(
                f"session {session.session_id!r} is one of agent {session.agent!r}, not of {self.agent.name!r}; "
                "resume it with that agent"
            )
        self.host.wake(result.session_id)  # also without an answer: what waited may have expired
        for request_id, answer in answers.items():
            given = {"approved": answer} if isinstance(answer, bool) else answer
            await self.service.answer(result.session_id, request_id, given)
        return await self.service.wait(Accepted(result.session_id, "", result.run_id))


def _settings(agent: str, given: Mapping[str, Any]) -> ModelSettings:
    try:
        return ModelSettings(**given)
    except TypeError as error:
        known = ", ".join(field.name for field in fields(ModelSettings))
        raise ConfigError(f"agent {agent!r}: settings are {known}, not {', '.join(map(repr, given))}") from error


def _is_three_method(model: Model) -> bool:
    return not isinstance(model, str) and not hasattr(model, "start")


def open_store(where: Store | str | Path | None = None, clock: Clock | None = None) -> Store:
    """Return a store: the one passed, a SQLite file at a path, or by default what `OWNLOOP_STORE` says."""
    if where is not None and not isinstance(where, str | Path):
        return where
    place = str(where or os.environ.get("OWNLOOP_STORE") or "memory")
    if place == "memory":
        from ownloop.store.memory import MemoryStore

        return MemoryStore()
    from ownloop.store.sqlite import SQLiteStore

    return SQLiteStore(Path(place).expanduser(), clock=clock or SystemClock(), threads=SystemThreads())


if TYPE_CHECKING:
    from ownloop.core.ports import Definition

    _: type[Definition] = Agent
