"""One process of a position: it runs the agent and its people until everything is over, or until it dies.

Forked from a process that has imported everything and in which nothing runs: no thread, no event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ownloop.backends.scripted import ScriptedBackend
from ownloop.core.ports import Filter, Page, Store
from ownloop.store.sqlite import SQLiteStore
from ownloop.testing.crash.check import Evidence
from ownloop.testing.crash.places import Places, watch_model, watch_store
from ownloop.testing.crash.scenario import Outside, People, Scenario
from ownloop.testing.virtual_time import START_MS, InlineThreads, SeededIds, VirtualClock, VirtualLoop

T = TypeVar("T")
Fault: TypeAlias = Callable[[Store], Store]
"""Plants a fault in a process before its agent is opened: returns another store, or changes something on the way."""

SESSION_KEY = "crash-kit"
LIMIT_S = 60
"""Real seconds after which a process is taken to hang; it needs less than one."""
PROCESS_MS = 3_600_000
"""How much later, in virtual time, each further process begins."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Runs the processes of one position, one after the other, on the store in `folder`."""

    scenario: Scenario
    folder: Path
    fault: Fault | None = None

    @property
    def store(self) -> Path:
        return self.folder / "store.db"

    def run(self, number: int, kill_at: str | int | None = None) -> int:
        """Run process `number` to its end; return its exit code, negative for the signal that ended it."""
        return wait(fork(lambda: self._live(number, kill_at), self.folder / f"process-{number}.log"))

    def run_here(self) -> None:
        """Run process 0, without kill, as a part of this process."""
        self._live(0, None)

    def passed(self, number: int) -> list[str]:
        """Return the places that it passed."""
        log = self._places(number)
        return json.loads(log.read_text()) if log.exists() else []

    def last_words(self, number: int) -> str:
        lines = (self.folder / f"process-{number}.log").read_text().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _places(self, number: int) -> Path:
        return self.folder / f"process-{number}.places.json"

    def _live(self, number: int, kill_at: str | int | None) -> None:
        places = Places(self._places(number), kill_at)
        _in_virtual_time(lambda: self._serve(number, places))
        places.write_down()

    async def _serve(self, number: int, places: Places) -> None:
        scenario = self.scenario
        outside = Outside(self.folder, places, number)
        clock, threads = VirtualClock(START_MS + number * PROCESS_MS), InlineThreads(number)
        # Without a sync of each commit: only a power cut could lose what the kernel was given.
        store: Store = SQLiteStore(self.store, clock=clock, threads=threads, fast=True)
        if self.fault is not None:
            store = self.fault(store)
        agent = scenario.agent(watch_model(ScriptedBackend(scenario.script, clock=clock), places), outside)
        watched = watch_store(store, places, outside.acknowledge)
        async with agent.open(store=watched, clock=clock, ids=SeededIds(number), threads=threads) as opened:
            session = await opened.service.create_session(agent.name, idem_key=SESSION_KEY)
            people = People(opened.service, session.session_id, clock, outside, scenario.if_not_run)
            await scenario.people(people)
            await people.rest()
            # A repeated post wakes the session once more; closing amid that segment would leave it to the next process.
            await opened.host.rested(session.session_id)

    def evidence(self) -> Evidence:
        """Return what is left, read through the store's port alone. Raises if nothing can be read."""
        return _in_virtual_time(self._read)

    async def _read(self) -> Evidence:
        clock = VirtualClock(START_MS + 100 * PROCESS_MS)
        store = SQLiteStore(self.store, clock=clock, threads=InlineThreads(), fast=True)
        await store.open()
        try:
            [info] = await store.sessions(Filter(), Page())
            facts = await store.read(info.session_id, 0, 1_000_000)
            await store.heartbeat("auditor", pid=os.getpid())
            lease = await store.claim("auditor", info.session_id, now_ms=clock.now_ms())
            assert lease is not None
            untaken = await store.inbox(lease)
            await store.retire("auditor")
        finally:
            await store.aclose()
        outside = Outside(self.folder, Places(self.folder / "none"))
        return Evidence(facts, info, untaken, outside.effects, outside.acknowledged)


def _in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def fork(work: Callable[[], None], log: Path, limit_s: int = LIMIT_S) -> int:
    """Do `work` in a child process, its output in `log`; return its id.

    It ends with 0, with 1 if `work` raised, or by SIGALRM after `limit_s`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(limit_s)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the process's edge: nothing of the parent's may run in it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
