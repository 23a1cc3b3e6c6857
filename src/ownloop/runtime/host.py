"""The host: claims sessions, drives their segments, keeps what outlives a segment. One per process and store.

A segment is: claim, fold, drive until nothing is left to do, release. Between segments a session is rows and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from ownloop.core.backend import Adapter
from ownloop.core.events import CancelRequested, Draft, ErrorInfo
from ownloop.core.commands import InFlight, Record
from ownloop.core.intake import intake
from ownloop.core.ports import Bus, Clock, Definition, Ids, Secrets, Store, Threads
from ownloop.core.session import due
from ownloop.errors import ConfigError, FencedError, OwnloopError, StoreError
from ownloop.runtime.calls import ToolDone
from ownloop.runtime.engine_local import LocalEngine
from ownloop.runtime.environment import Environment
from ownloop.runtime.foreign import ForeignAgent, ForeignSession
from ownloop.runtime.hub import Hub
from ownloop.runtime.instances import InstanceAdapter
from ownloop.runtime.journal import Journal
from ownloop.runtime.loop import Loop, post_late
from ownloop.runtime.secrets import EnvSecrets
from ownloop.runtime.system import SystemClock, SystemIds, SystemThreads

logger = logging.getLogger(__name__)

HEARTBEAT_MS = 5000

AnyDefinition: TypeAlias = Definition | ForeignAgent
"""What a host serves."""


@dataclass(slots=True)
class _Busy:
    """A session that was woken or is driven here, until it rests."""

    rested: asyncio.Future[None]
    driver: Loop | ForeignSession | None = None


class Host:
    """Runs the sessions of some agents on one store. Open it with `open_host`."""

    def __init__(self, env: Environment, definitions: Iterable[AnyDefinition], engine: LocalEngine) -> None:
        self.env = env
        self.definitions: dict[str, AnyDefinition] = {}
        for definition in definitions:
            if definition.name in self.definitions:
                raise ConfigError(f"two agents are named {definition.name!r}; names must differ")
            self.definitions[definition.name] = definition
        self._engine = engine
        self._busy: dict[str, _Busy] = {}
        self._adapters: dict[tuple[str, str], Adapter] = {}
        self._left_over: set[asyncio.Task[None]] = set()

    def wake(self, session_id: str) -> None:
        """Say that the session's inbox holds something."""
        busy = self._busy.get(session_id)
        if busy is None:
            busy = self._busy[session_id] = _Busy(asyncio.get_running_loop().create_future())
        if busy.driver is not None:
            busy.driver.wake()
        else:
            self._engine.wake(session_id)

    async def rested(self, session_id: str) -> None:
        """Return when nothing is being done for the session here; at once if nothing is.

        Raises:
            OwnloopError: the segment failed (the store is full, the journal damaged).
        """
        busy = self._busy.get(session_id)
        if busy is not None:
            await asyncio.shield(busy.rested)

    async def run_segment(self, session_id: str) -> None:
        """Drive one segment; returns at once if another process owns the session."""
        busy = self._busy.get(session_id)
        if busy is None:
            busy = self._busy[session_id] = _Busy(asyncio.get_running_loop().create_future())
        try:
            await self._segment(session_id, busy)
        except FencedError:
            logger.warning("another owner took session %s", session_id)
            self._rest(session_id, busy)
        except Exception as error:
            logger.exception("segment failed, session=%s", session_id)
            self._rest(session_id, busy, error)
            raise
        except BaseException:
            self._rest(session_id, busy, ConfigError("the host was closed"))
            raise
        else:
            if busy.driver is not None and busy.driver.woken:
                busy.driver = None
                self._engine.wake(session_id)
            else:
                self._rest(session_id, busy)

    def _rest(self, session_id: str, busy: _Busy, error: Exception | None = None) -> None:
        if self._busy.get(session_id) is busy:
            del self._busy[session_id]
        if busy.rested.done():
            return
        if error is None:
            busy.rested.set_result(None)
        else:
            self.env.hub.fail(session_id, error)
            busy.rested.set_exception(error)
            busy.rested.exception()  # whoever waits is told; nobody need wait

    async def _segment(self, session_id: str, busy: _Busy) -> None:
        journal = await Journal.claim(self.env, session_id)
        if journal is None:
            return
        with self.env.hub.writing(session_id, journal.state.head_seq):
            definition = self.definitions.get(journal.state.agent)
            if definition is None:
                await self._only_close(journal)
            elif isinstance(definition, ForeignAgent):
                busy.driver = ForeignSession(self.env, journal, definition)
                await busy.driver.drive()
            else:
                await self._drive(journal, definition, busy)

    async def _drive(self, journal: Journal, definition: Definition, busy: _Busy) -> None:
        loop = Loop(self.env, journal, definition, lambda model: self.adapter(definition, model), self._late)
        busy.driver = loop
        for task in await loop.drive():
            self._keep(task)

    async def _only_close(self, journal: Journal) -> None:
        """End what lives in a session whose agent is not here; nothing else may be done without its definition."""
        name = journal.state.agent
        rows = await journal.inbox()
        taken = intake(journal.state, rows, self.env.clock.now_ms(), journal.lease.epoch, self.env.ids.new)
        await journal.append(taken.facts, takes=taken.takes)
        root = journal.state.root
        if root is not None and root.cancel is None:
            error = ErrorInfo("agent_missing", f"no agent named {name!r} is served here; serve it again to go on")
            await journal.append([Draft(root.run_id, CancelRequested("system", error))])
        while True:
            stopping = taken.stop is not None
            facts = [
                draft
                for command in due(journal.state, journal.lease.epoch, InFlight(), stopping)
                if isinstance(command, Record)
                for draft in command.facts
            ]
            if not facts:
                break
            await journal.append(facts)
        takes = [taken.stop] if taken.stop is not None else []
        await journal.append([], takes=takes, release=True)

    # --- what outlives a segment ---

    def adapter(self, definition: Definition, model: str) -> Adapter:
        """Return the adapter of an agent's model, opened once. Raises ConfigError."""
        key = (definition.name, model)
        if key not in self._adapters:
            backend = definition.open_backend(model)
            self._adapters[key] = InstanceAdapter(backend) if callable(backend) else backend
        return self._adapters[key]

    def _late(self, session_id: str, done: ToolDone) -> None:
        self._keep(asyncio.create_task(self._post_late(session_id, done)))

    async def _post_late(self, session_id: str, done: ToolDone) -> None:
        try:
            await post_late(self.env, session_id, done)
        except OwnloopError as error:
            logger.warning("a late result was lost, session=%s call=%s: %s", session_id, done.call_id, error)
            return
        self.wake(session_id)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._left_over.add(task)
        task.add_done_callback(self._left_over.discard)

    async def heartbeats(self) -> None:
        """Say again and again that this worker lives."""
        while True:
            await self.env.clock.sleep_until(self.env.clock.now_ms() + HEARTBEAT_MS)
            try:
                await self.env.store.heartbeat(self.env.worker_id, pid=os.getpid())
            except StoreError as error:
                logger.warning("heartbeat failed: %s", error)

    async def free(self) -> None:
        """Give up what is left over and close the adapters."""
        tasks = list(self._left_over)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        adapters, self._adapters = self._adapters, {}
        for adapter in adapters.values():
            try:
                await adapter.aclose()
            except Exception:
                logger.exception("backend %s did not close cleanly", adapter.name)


@asynccontextmanager
async def open_host(
    store: Store,
    definitions: Sequence[AnyDefinition],
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    threads: Threads | None = None,
    secrets: Secrets | None = None,
    bus: Bus | None = None,
    limit: int = 64,
    wrap_hub: Callable[[Hub], Hub] = lambda hub: hub,
) -> AsyncGenerator[Host]:
    """Open `store` and run the sessions of `definitions` on it while the context is open.

    Sessions that a dead process left runnable go on at once. Leaving cancels what is in flight; nothing of it is lost, and
    the next host goes on. `limit` is the number of segments at a time. The store is opened and closed here.

    Raises:
        ConfigError: two agents of one name.
        StoreError: the store cannot be opened.
    """
    clock = clock or SystemClock()
    ids = ids or SystemIds()
    own_threads = SystemThreads() if threads is None else None
    worker_id = ids.new("worker")
    await store.open()
    try:
        await store.heartbeat(worker_id, pid=os.getpid())
        env = Environment(
            store,
            wrap_hub(Hub(store, clock, bus)),
            clock,
            ids,
            threads or own_threads,  # pyright: ignore[reportArgumentType]
            secrets or EnvSecrets(),
            worker_id,
        )
        engine = LocalEngine(clock, limit=limit, runnable=lambda: store.runnable(clock.now_ms()))
        host = Host(env, definitions, engine)
        async with engine.serve(host.run_segment):
            beats = asyncio.create_task(host.heartbeats(), name="ownloop-heartbeats")
            try:
                yield host
            finally:
                beats.cancel()
                await asyncio.gather(beats, return_exceptions=True)
        await host.free()
        await store.retire(worker_id)
    finally:
        await store.aclose()
        if own_threads is not None:
            await own_threads.aclose()
