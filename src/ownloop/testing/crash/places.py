"""The places a process passes, and its death at one of them. For the children of the crash kit only.

Invariant: which places are passed, and how they are named, follows from the scenario alone.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from ownloop.core.backend import Adapter, ModelRequest, Part
from ownloop.core.ports import Store

Witness: TypeAlias = Callable[[str, Sequence[Any], Any], None]
"""Is told of each write of the store that was acknowledged: method, arguments, result."""

WRITES = frozenset(
    {"append", "claim", "create", "delete", "heartbeat", "post", "put_blob", "remember_reply", "retire", "save_tail"}
)
"""What is durable changes in these only: a death before a read is one after the write before it."""


class Places:
    """Counts places, and kills this very process at one: by name, or at the n-th."""

    def __init__(self, log: Path, kill_at: str | int | None = None) -> None:
        self.passed: list[str] = []
        self._log = log
        self._kill_at = kill_at
        self._counts = Counter[str]()

    def passes(self, place: str) -> None:
        """Say that the process is at `place`; returns unless it is to die there."""
        self._counts[place] += 1
        name = place if self._counts[place] == 1 else f"{place} ({self._counts[place]})"
        self.passed.append(name)
        if self._kill_at in (name, len(self.passed)):
            self.write_down()
            os.kill(os.getpid(), signal.SIGKILL)

    def write_down(self) -> None:
        """Leave to others which places were passed; the last one is where this process died, if it did."""
        self._log.write_text(json.dumps(self.passed))


class _WatchedStore:
    """A store whose writes are places. Everything else is the store's own."""

    def __init__(self, store: Store, places: Places, witness: Witness) -> None:
        self._store = store
        self._places = places
        self._witness = witness

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in WRITES:
            return method

        async def write(*args: Any, **kwargs: Any) -> Any:
            place = _write_place(name, args, kwargs)
            self._places.passes(f"before {place}")
            result = await cast("Awaitable[Any]", method(*args, **kwargs))
            self._witness(name, args, result)
            self._places.passes(f"after {place}")
            return result

        return write


def _write_place(method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    match method, args:
        case "append", (_, _, drafts):
            kinds = Counter(draft.body.kind for draft in drafts)
            words = [kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items()]
            return f"append {'+'.join(words) or 'nothing'}{' and release' if kwargs.get('release') else ''}"
        case "post", (_, item):
            return f"post {item.body.kind}"
        case _:
            return method


class _WatchedModel:
    """An adapter each part of whose responses is a place."""

    def __init__(self, adapter: Adapter, places: Places) -> None:
        self.name, self.provider, self.model = adapter.name, adapter.provider, adapter.model
        self._adapter = adapter
        self._places = places

    async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
        number = 0
        async for parts in self._adapter.start(request):
            yield parts
            number += 1
            self._places.passes(f"in a response, after part {number}")

    async def aclose(self) -> None:
        await self._adapter.aclose()


def watch_store(store: Store, places: Places, witness: Witness) -> Store:
    """Return `store` with a place before and after each write."""
    return cast("Store", _WatchedStore(store, places, witness))


def watch_model(adapter: Adapter, places: Places) -> Adapter:
    """Return `adapter` with a place behind each part of a response."""
    return _WatchedModel(adapter, places)
