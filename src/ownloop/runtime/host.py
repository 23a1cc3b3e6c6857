"""The host: claims sessions, drives their segments, keeps what outlives a segment. One per process and store.

A segment is: claim, fold, drive until nothing is left to do, release. Between segments a session is rows, and a fold of
them that is remembered to save time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from ownloop.core.agent_base import AgentBase
from ownloop.core.backend import Adapter
from ownloop.core.commands import CloseResponse, InFlight, Record
from ownloop.core.events import Draft, Fact, InputWithdrawn, RunEnded, SessionClosed
from ownloop.core.inbox import InboxItem, LateResult
from ownloop.core.intake import intake
from ownloop.core.ports import Bus, Clock, Definition, Ids, Secrets, Store, Threads
from ownloop.core.session import due
from ownloop.errors import ConfigError, FencedError, NotFoundError, OwnloopError, StoreError
from ownloop.runtime.engine_local import LocalEngine
from ownloop.runtime.environment import Environment
from ownloop.runtime.foreign import ForeignAgent, ForeignSession
from ownloop.runtime.hub import Hub
from ownloop.runtime.instances import InstanceAdapter
from ownloop.runtime.journal import Journal, Known
from ownloop.runtime.loop import Loop
from ownloop.runtime.planning import close_response
from ownloop.runtime.secrets import EnvSecrets
from ownloop.runtime.system import SystemClock, SystemIds, SystemThreads
from ownloop.runtime.tasks import end_tasks

logger = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_MS = 5000
PINNED_AGAIN_MS = 1000
KNOWN = 100
"""Sessions that are remembered as they were left, so that the next message does not fold all their facts again."""

AnyDefinition: TypeAlias = Definition | ForeignAgent
"""What a host serves."""


@dataclass(slots=True)
class _Busy:
    """A session that was woken or is driven here, until it rests."""

    rested: asyncio.Future[None]
    driver: Loop | ForeignSession | None = None
    watchers: list[asyncio.Future[Sequence[Fact]]] = field(default_factory=list["asyncio.Future[Sequence[Fact]]"])


class Host:
    """Runs the sessions of some agents on one store. Open it with `open_host`."""

    def __init__(
        self,
        env: Environment,
        definitions: Iterable[AnyDefinition | type[AgentBase]],
        *,
        limit: int = 64,
        adopts: bool = True,
    ) -> None:
        self.env = env
        self._adopts = adopts
        self.definitions: dict[str, AnyDefinition] = {}
        for given in definitions:
            definition = ForeignAgent(given.__name__, given) if isinstance(given, type) else given
            if definition.name in self.definitions:
                raise ConfigError(f"two agents are named {definition.name!r}; names must differ")
            self.definitions[definition.name] = definition
        self._engine = LocalEngine(env.clock, limit=limit, runnable=self._runnable)
        self._busy: dict[str, _Busy] = {}
        self._adapters: dict[tuple[str, str], Adapter] = {}
        self._left_over: set[asyncio.Task[None]] = set()
        self._known: dict[str, Known] = {}
        self._pinned: set[asyncio.Task[None]] = set()
        self._woken: set[str] = set()
        self._not_served: set[str] = set()

    def wake(self, session_id: str) -> None:
        """Say that the session's inbox holds something."""
        if not self._adopts:
            self._woken.add(session_id)
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

    def watch(self, session_id: str) -> asyncio.Future[Sequence[Fact]]:
        """Return what is done when a run of the session ends, an input is withdrawn, or nothing is done here any more.

        Its result are the facts of that moment, if there are any. Fails as `rested` does.
        """
        watcher: asyncio.Future[Sequence[Fact]] = asyncio.get_running_loop().create_future()
        busy = self._busy.get(session_id)
        if busy is None:
            watcher.set_result(())
        else:
            busy.watchers.append(watcher)
        return watcher

    def _told(self, session_id: str, facts: Sequence[Fact]) -> None:
        busy = self._busy.get(session_id)
        if busy is None or not busy.watchers:
            return
        if any(isinstance(fact.body, RunEnded | InputWithdrawn | SessionClosed) for fact in facts):
            watchers, busy.watchers = busy.watchers, []
            for watcher in watchers:
                if not watcher.done():
                    watcher.set_result(facts)

    async def run_segment(self, session_id: str) -> None:
        """Drive one segment; returns at once if another process owns the session, or if it is driven here already.

        A session of a foreign agent is handed to a task of its own, for as long as its instance lives: it takes none of
        the places for segments.
        """
        busy = self._busy.get(session_id)
        if busy is None:
            busy = self._busy[session_id] = _Busy(asyncio.get_running_loop().create_future())
        if busy.driver is not None:
            busy.driver.wake()
            return
        async with self._resting(session_id, busy):
            journal = await self._claim(session_id)
            if journal is None:
                return
            definition = self.definitions.get(journal.state.agent)
            if isinstance(definition, ForeignAgent):
                busy.driver = ForeignSession(self.env, journal, definition)
                self._pinned.add(
                    asyncio.create_task(self._pin(journal, busy, busy.driver), name=f"pinned {session_id}")
                )
                return
            with self.env.hub.writing(session_id, journal.state.head_seq):
                if definition is None:
                    await self._close(journal)
                else:
                    await self._drive(journal, definition, busy)
            self._remember(journal)

    async def _pin(self, journal: Journal, busy: _Busy, driver: ForeignSession) -> None:
        session_id = journal.session_id
        task = asyncio.current_task()
        try:
            async with self._resting(session_id, busy, pinned=True):
                with self.env.hub.writing(session_id, journal.state.head_seq):
                    await driver.drive()
        except Exception:  # noqa: BLE001 - a task's edge, and it was logged where it rests
            # The lease is ours, so nobody else will go on with it.
            self._engine.wake(session_id, self.env.clock.now_ms() + PINNED_AGAIN_MS)
        finally:
            if task is not None:
                self._pinned.discard(task)

    @asynccontextmanager
    async def _resting(self, session_id: str, busy: _Busy, *, pinned: bool = False) -> AsyncGenerator[None]:
        """Around the work of a segment: tell those who wait how it ended, and look again if it was woken meanwhile."""
        try:
            yield
        except FencedError:
            logger.warning("another owner took session %s", session_id)
            self._rest(session_id, busy)
        except Exception as error:
            logger.exception("segment failed, session=%s", session_id)
            self._rest(session_id, busy, error)
            raise
        except BaseException:
            self._rest(session_id, busy, _closed())
            raise
        else:
            if isinstance(busy.driver, ForeignSession) and not pinned:
                return  # its own task goes on
            if busy.driver is not None and busy.driver.woken:
                busy.driver = None
                self._engine.wake(session_id)
            else:
                self._rest(session_id, busy)

    def _rest(self, session_id: str, busy: _Busy, error: Exception | None = None) -> None:
        if self._busy.get(session_id) is busy:
            del self._busy[session_id]
        if error is not None:
            self.env.hub.fail(session_id, error)
        watchers, busy.watchers = busy.watchers, []
        for watcher in watchers:
            _settle(watcher, (), error)
        _settle(busy.rested, None, error)

    async def _claim(self, session_id: str) -> Journal | None:
        try:
            info = await self.env.store.session(session_id)
            if info.agent not in self.definitions and not info.closing:
                # Whoever serves its agent goes on with it; without the definition one may only close.
                self._not_served.add(session_id)
                return None
            return await Journal.claim(self.env, session_id, self._known.pop(session_id, None), self._told)
        except NotFoundError:
            return None  # deleted since it was woken, maybe between these very lines

    def _remember(self, journal: Journal) -> None:
        if journal.state.closed:
            for adapter in self._adapters.values():
                if isinstance(adapter, InstanceAdapter):
                    adapter.forget(journal.session_id)
            return
        self._known[journal.session_id] = journal.known
        if len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]

    async def _drive(self, journal: Journal, definition: Definition, busy: _Busy) -> None:
        loop = Loop(self.env, journal, definition, lambda model: self.adapter(definition, model), self._late)
        busy.driver = loop
        for task in await loop.drive():
            self._keep(task)

    async def _close(self, journal: Journal) -> None:
        """Close a stopped session whose agent is not here: end what lives in it, begin nothing."""
        rows = await journal.inbox()
        taken = intake(journal.state, rows, self.env.clock.now_ms(), journal.lease.epoch, self.env.ids.new)
        await journal.append(taken.facts, takes=taken.takes)
        while not journal.state.closed:
            facts: list[Draft] = []
            for command in due(journal.state, journal.lease.epoch, InFlight(), stopping=True):
                if isinstance(command, Record):
                    facts.extend(command.facts)
                elif isinstance(command, CloseResponse):
                    facts.append(await close_response(self.env, journal.session_id, command))
            await journal.append(facts)
        await journal.append([], takes=[] if taken.stop is None else [taken.stop], release=True)

    # --- what outlives a segment ---

    def adapter(self, definition: Definition, model: str) -> Adapter:
        """Return the adapter of an agent's model, opened once. Raises ConfigError."""
        key = (definition.name, model)
        if key not in self._adapters:
            backend = definition.open_backend(model)
            adapter = InstanceAdapter(backend) if callable(backend) else backend
            for label in ("name", "provider", "model"):
                value = getattr(adapter, label, None)
                if not isinstance(value, str):
                    raise ConfigError(
                        f"{type(adapter).__name__} of agent {definition.name!r} has {label} {value!r}; it must be a str"
                    )
            self._adapters[key] = adapter
        return self._adapters[key]

    def _late(self, session_id: str, late: LateResult) -> None:
        self._keep(asyncio.create_task(self._post_late(session_id, late)))

    async def _post_late(self, session_id: str, late: LateResult) -> None:
        """Post what a given-up tool came to after its segment had ended (H37)."""
        try:
            await self.env.store.post(session_id, InboxItem(late, self.env.clock.now_ms(), "system", origin="system"))
        except OwnloopError as error:
            logger.warning("a late result was lost, session=%s call=%s: %s", session_id, late.call_id, error)
            return
        self.wake(session_id)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._left_over.add(task)
        task.add_done_callback(self._left_over.discard)

    async def _runnable(self) -> Sequence[str]:
        """Return the sessions whose time has come, of those that are ours to drive."""
        found = await self.env.store.runnable(self.env.clock.now_ms(), 100 + len(self._not_served))
        return [s for s in found if s not in self._not_served and (self._adopts or s in self._woken)]

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Drive sessions while the context is open."""
        beats = asyncio.create_task(self.heartbeats(), name="ownloop-heartbeats")
        try:
            async with self._engine.serve(self.run_segment):
                yield
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            for task in self._pinned:
                task.cancel()
            await asyncio.gather(*self._pinned, return_exceptions=True)
            for session_id, busy in list(self._busy.items()):
                self._rest(session_id, busy, _closed())
            await self.free()

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
        await end_tasks(self._left_over, self.env.clock)
        adapters, self._adapters = self._adapters, {}
        for adapter in adapters.values():
            try:
                await adapter.aclose()
            except Exception:
                logger.exception("backend %s did not close cleanly", adapter.name)


def _settle(future: asyncio.Future[T], result: T, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # whoever waits is told; nobody need wait


def _closed() -> OwnloopError:
    return OwnloopError("the host was closed before this was done; the next one goes on with it")


@asynccontextmanager
async def open_host(
    store: Store,
    definitions: Sequence[AnyDefinition | type[AgentBase]],
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    threads: Threads | None = None,
    secrets: Secrets | None = None,
    bus: Bus | None = None,
    limit: int = 64,
    adopt: bool = True,
) -> AsyncGenerator[Host]:
    """Open `store` and run the sessions of `definitions` on it while the context is open.

    Leaving cancels what is in flight; nothing of it is lost, and the next host goes on. The store is opened and closed
    here.

    Args:
        secrets: For the `get_envs` of foreign agents; by default those variables that they name.
        limit: How many segments may run at a time.
        adopt: Whether sessions that others left runnable are taken up, at once and later on. Without it, only sessions
            that are spoken to through this host are driven: for hosts that soon close again.

    Raises:
        ConfigError: two agents of one name.
        StoreError: the store cannot be opened.
    """
    clock = clock or SystemClock()
    ids = ids or SystemIds()
    own_threads = SystemThreads() if threads is None else None
    worker_id = ids.new("worker")
    env_names = {name for d in definitions if isinstance(d, ForeignAgent) for name in d.env_names}
    await store.open()
    try:
        await store.heartbeat(worker_id, pid=os.getpid())
        env = Environment(
            store,
            Hub(store, clock, bus),
            clock,
            ids,
            threads or own_threads,  # pyright: ignore[reportArgumentType]
            secrets or EnvSecrets(env_names),
            worker_id,
        )
        host = Host(env, definitions, limit=limit, adopts=adopt)
        try:
            async with host.serving():
                yield host
        finally:
            await store.retire(worker_id)
    finally:
        await store.aclose()
        if own_threads is not None:
            await own_threads.aclose()
