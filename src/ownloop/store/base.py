"""The Store port over a SQLite connection: each method runs one function in one transaction. For the stores only.

Memory and file share every rule, for they share every statement; they differ in how a transaction is run, and in how it
is seen that a worker lives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Concatenate, ParamSpec, TypeVar

from ownloop.core.events import Draft, Fact, Rule
from ownloop.core.inbox import InboxItem, InboxRow
from ownloop.core.ports import (
    Filter,
    Lease,
    Page,
    PostResult,
    RequestInfo,
    RunInfo,
    SessionInfo,
    StoredReply,
    Tail,
)
from ownloop.store import inbox, journal, leases, lifetime, records

P = ParamSpec("P")
T = TypeVar("T")


class SqlStore(ABC):
    """Maps each method of `Store` to its function; the contract stands in `core/ports.py`."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def heartbeat(self, worker_id: str, *, pid: int, address: str = "") -> None: ...

    @abstractmethod
    async def retire(self, worker_id: str) -> None: ...

    @abstractmethod
    async def kill(self, worker_id: str) -> None:
        """Make a worker of this store look dead, as if its process had been killed. For tests."""

    @abstractmethod
    async def _write(
        self, operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `operation` in a transaction that may write; return once it is committed."""

    @abstractmethod
    async def _read(
        self, operation: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `operation` on one state of the store."""

    @abstractmethod
    def _holds(self, worker_id: str) -> bool:
        """Return whether the process of a worker that has a row is there. Asked inside a write only."""

    async def create(
        self, info: SessionInfo, facts: Sequence[Draft], at_ms: int, *, copied: Sequence[Fact] = ()
    ) -> None:
        await self._write(journal.create, info, facts, at_ms, copied)

    async def post(self, session_id: str, item: InboxItem) -> PostResult:
        return await self._write(inbox.post, session_id, item)

    async def claim(self, worker_id: str, session_id: str | None = None, *, now_ms: int) -> Lease | None:
        return await self._write(leases.claim, worker_id, session_id, now_ms, self._holds)

    async def inbox(self, lease: Lease) -> Sequence[InboxRow]:
        return await self._read(inbox.untaken, lease)

    async def append(
        self,
        lease: Lease,
        after_seq: int,
        facts: Sequence[Draft],
        *,
        at_ms: int,
        takes: Sequence[int] = (),
        runnable_at_ms: int | None = None,
        release: bool = False,
        progress: bool = True,
    ) -> Sequence[Fact]:
        return await self._write(
            journal.append,
            lease,
            after_seq,
            facts,
            at_ms=at_ms,
            takes=takes,
            runnable_at_ms=runnable_at_ms,
            release=release,
            progress=progress,
        )

    async def read(self, session_id: str, after: int = 0, limit: int = 1000) -> Sequence[Fact]:
        return await self._read(journal.read, session_id, after, limit)

    async def save_tail(self, lease: Lease, tails: Sequence[Tail]) -> None:
        await self._write(records.save_tail, lease, tails)

    async def tails(self, session_id: str) -> Sequence[Tail]:
        return await self._read(records.tails, session_id)

    async def put_blob(self, session_id: str, digest: str, media_type: str, body: bytes) -> None:
        """Raises ValueError if the digest is not the body's SHA-256 in hex, NotFoundError for an unknown session."""
        await self._write(records.put_blob, session_id, digest, media_type, body)

    async def get_blob(self, digest: str) -> tuple[str, bytes]:
        return await self._read(records.get_blob, digest)

    async def session(self, session_id: str) -> SessionInfo:
        return await self._read(records.session, session_id)

    async def sessions(self, which: Filter, page: Page) -> Sequence[SessionInfo]:
        return await self._read(records.sessions, which, page)

    async def set_title(self, session_id: str, title: str | None) -> None:
        await self._write(records.set_title, session_id, title)

    async def requests(self, which: Filter, page: Page) -> Sequence[RequestInfo]:
        return await self._read(records.requests, which, page)

    async def request(self, session_id: str, request_id: str) -> RequestInfo:
        return await self._read(records.request, session_id, request_id)

    async def run(self, run_id: str, session_id: str | None = None) -> RunInfo:
        return await self._read(records.run, run_id, session_id)

    async def rules(self, session_id: str) -> Sequence[Rule]:
        return await self._read(records.rules, session_id)

    async def runnable(self, now_ms: int, limit: int = 100) -> Sequence[str]:
        # It writes nothing, but whether workers live is asked only under the write lock.
        return await self._write(leases.runnable, now_ms, limit, self._holds)

    async def remember_reply(self, principal: str, key: str, reply: StoredReply, at_ms: int) -> StoredReply:
        return await self._write(records.remember_reply, principal, key, reply, at_ms)

    async def reply(self, principal: str, key: str) -> StoredReply | None:
        return await self._read(records.reply_to, principal, key)

    async def delete(self, session_id: str) -> None:
        await self._write(lifetime.delete, session_id)
