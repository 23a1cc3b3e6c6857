"""The bus of one process: frames from publishers to subscribers of a topic, best effort. Used by who assembles a host.

A subscriber's queue is bounded; what does not fit is dropped, for readers find everything in the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ownloop.core.ports import Bus


class _Subscriber:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def push(self, frame: Any) -> None:
        if len(self._frames) < self._limit:
            self._frames.append(frame)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self._frames:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._frames.popleft()


class LocalBus:
    """Deliver within this process. `limit` frames wait for a subscriber at most."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._subscribers: dict[str, list[_Subscriber]] = {}

    def publish(self, topic: str, frame: Any) -> None:
        for subscriber in self._subscribers.get(topic, ()):
            subscriber.push(frame)

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[AsyncIterator[Any]]:
        subscriber = _Subscriber(self._limit)
        of_topic = self._subscribers.setdefault(topic, [])
        of_topic.append(subscriber)
        try:
            yield subscriber
        finally:
            of_topic.remove(subscriber)
            if not of_topic and self._subscribers.get(topic) is of_topic:
                del self._subscribers[topic]


if TYPE_CHECKING:
    _fits: type[Bus] = LocalBus
