"""Faults that the crash kit must find: each breaks one promise of the runtime, in every process of a position."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

from ownloop.core import due, run
from ownloop.core.commands import Command, PrepareCall
from ownloop.core.events import Draft, Fact
from ownloop.core.ports import Lease, Store
from ownloop.core.run import CallState, RunState


class _Hasty:
    """A store that says "appended" first, and writes before the next call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._promised: list[Callable[[], Awaitable[Any]]] = []

    async def append(self, lease: Lease, after_seq: int, facts: Sequence[Draft], **options: Any) -> Sequence[Fact]:
        await self._keep_promise()
        self._promised.append(partial(self._store.append, lease, after_seq, facts, **options))
        seqs = range(after_seq + 1, after_seq + 1 + len(facts))
        return [
            Fact(seq, options["at_ms"], lease.epoch, draft.run_id, draft.body)
            for seq, draft in zip(seqs, facts, strict=True)
        ]

    async def _keep_promise(self) -> None:
        while self._promised:
            await self._promised.pop()()

    def __getattr__(self, name: str) -> Any:
        async def late(*args: Any, **options: Any) -> Any:
            await self._keep_promise()
            return await getattr(self._store, name)(*args, **options)

        return late


def starts_tools_before_the_commit(store: Store) -> Store:
    return cast("Store", _Hasty(store))


def runs_again_without_asking(store: Store) -> Store:
    """A machine to which every started call is one that may be retried."""

    def lost(state: RunState, call: CallState, view: object) -> Iterator[Command]:
        yield PrepareCall(state.run_id, state.turn, call.call_id, call.input)

    def may_retry(state: RunState, call: CallState, epoch: int) -> bool:
        return call.attempt < state.limits.attempts

    assert due._due_lost
    assert run.may_retry  # a renamed rule must not leave this fault unplanted
    due._due_lost = lost
    run.may_retry = may_retry
    return store
