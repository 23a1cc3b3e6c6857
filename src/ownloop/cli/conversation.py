"""One session at the terminal: send, follow, ask, cancel. Shared by `run` and `chat`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ownloop.cli.screen import Screen
from ownloop.core.cursor import Cursor
from ownloop.core.events import Fact
from ownloop.core.ports import Filter, Page
from ownloop.errors import OwnloopError
from ownloop.service import Accepted, RunResult, Service


class Conversation:
    """Shows one session's runs on a screen."""

    def __init__(self, service: Service, screen: Screen, session_id: str) -> None:
        self.service = service
        self.screen = screen
        self.session_id = session_id
        self._cursor = "0"
        self._cancels = 0

    async def catch_up(self, *, show: bool) -> None:
        """Read what the session holds already, and show it if asked to."""
        facts: list[Fact] = []
        while True:
            page, self._cursor = await self.service.read_events(self.session_id, self._cursor)
            facts.extend(page)
            if not page:
                break
        if show:
            self.screen.history(facts)

    async def say(self, text: str) -> RunResult:
        """Send a message and show its run until it has ended or waits for a person."""
        return await self.follow(await self.service.send(self.session_id, text))

    async def follow(self, accepted: Accepted) -> RunResult:
        """Show a run; Ctrl-C cancels it, a second one ends the program."""
        async with self._cancelling():
            async for frame in self.service.follow(accepted, self._cursor):
                self._cursor = frame.cursor
                self.screen.show(frame.event)
        return await self.service.wait(accepted)

    async def unfinished(self) -> Accepted | None:
        """Return the live run of the session, if it has one."""
        run_id = (await self.service.session(self.session_id)).live_run_id
        return Accepted(self.session_id, "", run_id) if run_id is not None else None

    async def start(self) -> None:
        """Begin with nothing seen but what is there."""
        info = await self.service.session(self.session_id)
        self._cursor = str(Cursor(info.head_seq))

    @asynccontextmanager
    async def _cancelling(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        self._cancels = 0
        cancels: set[asyncio.Task[None]] = set()
        me = asyncio.current_task()

        def interrupted() -> None:
            self._cancels += 1
            if self._cancels > 1 and me is not None:
                me.cancel()
                return
            cancels.add(asyncio.create_task(self._cancel()))

        loop.add_signal_handler(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            await asyncio.gather(*cancels, return_exceptions=True)

    async def _cancel(self) -> None:
        try:
            await self.service.cancel(session_id=self.session_id)
        except OwnloopError as error:
            self.screen.error(str(error))


async def newest_session(service: Service, agent: str) -> str | None:
    """Return the agent's session that changed last."""
    rows = await service.sessions(Filter(agent=agent), Page(1))
    return rows[0].session_id if rows else None
