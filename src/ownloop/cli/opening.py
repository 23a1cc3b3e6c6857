"""From a command's arguments to an agent that is hosted, and its sessions. Shared by `run` and `chat`."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ownloop.backends.local import LocalAdapter
from ownloop.cli.load import load_agent
from ownloop.cli.output import Output
from ownloop.cli.place import shown, store_at, store_place
from ownloop.cli.prompt import LinePrompt, Prompt, TerminalPrompt, has_person
from ownloop.core.ports import Filter, Page, SessionInfo
from ownloop.errors import ConfigError, NotFoundError
from ownloop.runtime.foreign import ForeignAgent
from ownloop.runtime.host import AnyDefinition, Host, open_host
from ownloop.service import Service

LISTED = 5
"""Sessions that an error names: enough to find the one that was meant."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An agent in its host."""

    where: str
    """As the user named the file."""
    store: str | None
    """As the user named it, if so."""
    place: str
    """Where sessions are kept."""
    definition: AnyDefinition
    host: Host

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def service(self) -> Service:
        return Service(self.host)

    def prompt(self) -> Prompt:
        return TerminalPrompt() if has_person() else LinePrompt(self.host.env.threads)

    def go_on(self, session_id: str) -> str:
        """Return the command that goes on with a session."""
        store = ["--store", self.store] if self.store else []
        return shlex.join([*_program(), "chat", self.where, "--session", session_id, *store])

    @property
    def chat(self) -> str:
        """The command that starts a chat with the agent."""
        store = ["--store", self.store] if self.store else []
        return shlex.join([*_program(), "chat", self.where, *store])

    async def new_session(self) -> str:
        return (await self.service.create_session(self.name)).session_id

    async def session(self, session_id: str) -> SessionInfo:
        """Return the session of this id. Raises ConfigError if it is not there, or another agent's."""
        try:
            info = await self.service.session(session_id)
        except NotFoundError:
            known = await self.service.sessions(Filter(agent=self.name), Page(LISTED))
            listed = "\n".join(f"  {s.session_id}{'  (waits for you)' if s.open_requests else ''}" for s in known)
            there = f"the newest of agent {self.name!r} there:\n{listed}" if listed else "it holds none of this agent"
            raise ConfigError(f"there is no session {session_id!r} in {shown(self.place)}; {there}") from None
        if info.agent != self.name:
            raise ConfigError(
                f"session {session_id!r} is one of agent {info.agent!r}, and {self.where} holds agent {self.name!r}"
            )
        return info

    async def warm_up(self, output: Output) -> None:
        """Fetch and load a local model now, and say so; other models have nothing to warm up."""
        if isinstance(self.definition, ForeignAgent):
            return
        adapter = self.host.adapter(self.definition, self.definition.model)
        if isinstance(adapter, LocalAdapter):
            adapter.on_progress = output.progress
            try:
                await adapter.warm_up()
            finally:
                output.end_waiting()


def _program() -> list[str]:
    """Return how this program is called where it was called."""
    if shutil.which("ownloop"):
        return ["ownloop"]
    called = sys.argv[0]
    return [sys.executable, "-m", "ownloop"] if Path(called).name == "__main__.py" else [called]


@asynccontextmanager
async def opened(where: str, store: str | None) -> AsyncGenerator[Opened]:
    """Load the agent that `where` names and host it. Raises ConfigError, for its model too, and StoreError."""
    definition = load_agent(where)
    place = store_place(store)
    async with open_host(store_at(place), [definition]) as host:
        if not isinstance(definition, ForeignAgent):
            host.adapter(definition, definition.model)
        yield Opened(where, store, place, definition, host)
