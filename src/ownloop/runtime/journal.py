"""One owned session: its lease, its state, and the one way to write to it. Used by whoever drives the session.

Invariant: `state` is the fold of what is committed. Nothing is fed before it is written, so a refused append leaves
nothing behind, and facts are published only after their commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ownloop.core.events import (
    CancelRequested,
    Draft,
    Fact,
    FactBody,
    InteractionResolved,
    Note,
    ResponseEnded,
    ToolEnded,
)
from ownloop.core.inbox import InboxRow
from ownloop.core.ports import Lease
from ownloop.core.session import SessionState, advance, fold
from ownloop.errors import IllegalFactError, StoreInUseError
from ownloop.runtime.environment import Environment

PAGE = 1000
Told: TypeAlias = Callable[[str, Sequence[Fact]], None]


async def read_state(env: Environment, session_id: str, upto: int | None = None) -> SessionState:
    """Fold a session's journal, to its head or up to and with a seq."""
    return (await _read_on(env, session_id, None, upto)).state


@dataclass(frozen=True, slots=True)
class Known:
    """A session as far as it was folded. Facts never change, so whoever claims it again has only to read on."""

    state: SessionState
    last: Fact


async def _read_on(env: Environment, session_id: str, known: Known | None, upto: int | None = None) -> Known:
    state: SessionState | None = None
    last: Fact | None = None
    if known is not None:
        # The last fact is read once more: an id may have been given to another session since.
        again = await env.store.read(session_id, known.last.seq - 1, 1)
        if list(again) == [known.last]:
            state, last = known.state, known.last
    while True:
        facts = await env.store.read(session_id, last.seq if last else 0, PAGE)
        wanted = [fact for fact in facts if upto is None or fact.seq <= upto]
        if wanted:
            state, last = fold(wanted, state), wanted[-1]
        if len(facts) < PAGE or len(wanted) < len(facts):
            if state is None or last is None:
                raise IllegalFactError(f"session {session_id!r} has an empty journal")
            return Known(state, last)


class Journal:
    """The journal of one session, open for writing under one lease."""

    def __init__(self, env: Environment, lease: Lease, known: Known, told: Told) -> None:
        self.env = env
        self.lease = lease
        self.known = known
        self._told = told

    @classmethod
    async def claim(cls, env: Environment, session_id: str, known: Known | None, told: Told) -> Journal | None:
        """Claim and fold a session; None if another process owns it. `told` gets all facts that are written."""
        try:
            lease = await env.store.claim(env.worker_id, session_id, now_ms=env.clock.now_ms())
        except StoreInUseError:
            return None
        if lease is None:
            return None
        return cls(env, lease, await _read_on(env, session_id, known), told)

    @property
    def session_id(self) -> str:
        return self.lease.session_id

    @property
    def state(self) -> SessionState:
        return self.known.state

    async def inbox(self) -> Sequence[InboxRow]:
        return await self.env.store.inbox(self.lease)

    async def append(
        self,
        drafts: Sequence[Draft],
        *,
        takes: Sequence[int] = (),
        after: SessionState | None = None,
        at_ms: int | None = None,
        release: bool = False,
        wake_at_ms: int | None = None,
    ) -> Sequence[Fact]:
        """Write facts, feed them and publish them.

        `after` is the state that follows, where the caller has worked it out with the same `at_ms`. Raises
        IllegalFactError before anything is written, else what `Store.append` raises.
        """
        at_ms = self.env.clock.now_ms() if at_ms is None else at_ms
        if after is None:
            after = advance(self.state, drafts, at_ms, self.lease.epoch)
        facts = await self.env.store.append(
            self.lease,
            self.state.head_seq,
            drafts,
            at_ms=at_ms,
            takes=takes,
            runnable_at_ms=wake_at_ms,
            release=release,
            progress=not all(_clears(draft.body) for draft in drafts),
        )
        self.known = Known(after, facts[-1] if facts else self.known.last)
        self.env.hub.facts(self.session_id, facts)
        self._told(self.session_id, facts)
        return facts


def _clears(body: FactBody) -> bool:
    """Whether a fact only clears up after a dead owner: no progress, so a session that kills its workers is noticed."""
    match body:
        case ResponseEnded(status="abandoned") | ToolEnded(status="unknown") | CancelRequested(principal="system"):
            return True
        case InteractionResolved(by="system") | Note():
            return True
        case _:
            return False
