"""From a command's arguments to an agent that is hosted, and its sessions; or to the sessions alone."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ownloop.backends.local import LocalAdapter
from ownloop.cli.agent_files import remember
from ownloop.cli.load import load_agent
from ownloop.cli.lookup import find_session
from ownloop.cli.output import Output
from ownloop.cli.place import is_there, shown, store_at, store_place
from ownloop.cli.prompt import LinePrompt, Prompt, TerminalPrompt, has_person
from ownloop.core.ports import SessionInfo
from ownloop.errors import ConfigError
from ownloop.runtime.foreign import ForeignAgent
from ownloop.runtime.host import AnyDefinition, Host, open_host
from ownloop.service import Service


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

    @property
    def is_kept(self) -> bool:
        """Whether its sessions outlive this program."""
        return self.place != "memory"

    def go_on(self, session_id: str) -> str:
        """Return the command that goes on with a session."""
        return command("chat", self.where, "--session", session_id, store=self.store)

    @property
    def chat(self) -> str:
        """The command that starts a chat with the agent."""
        return command("chat", self.where, store=self.store)

    async def new_session(self) -> str:
        return (await self.service.create_session(self.name)).session_id

    async def session(self, given: str) -> SessionInfo:
        """Return the session of this id, or of the beginning of one.

        Raises ConfigError if it is not there, or another agent's.
        """
        info = await find_session(self.service, given, self.place, agent=self.name)
        if info.agent != self.name:
            whose = f"session {info.session_id!r} is one of agent {info.agent!r}"
            raise ConfigError(f"{whose}, and {self.where} holds agent {self.name!r}")
        return info

    async def warm_up(self, output: Output, model: str = "") -> None:
        """Fetch and load a local model now, and say so; other models have nothing to warm up.

        Without `model`, the agent's own. Raises ConfigError if the model cannot be had.
        """
        if isinstance(self.definition, ForeignAgent):
            return
        adapter = self.host.adapter(self.definition, model or self.definition.model)
        if isinstance(adapter, LocalAdapter):
            adapter.on_progress = output.progress
            try:
                await adapter.warm_up()
            finally:
                output.end_waiting()


def command(*words: str, store: str | None) -> str:
    """Return what a person types to call this program, as it was called here; `store` is as the user named it."""
    return shlex.join([*_program(), *words, *(["--store", store] if store else [])])


def _program() -> list[str]:
    if shutil.which("ownloop"):
        return ["ownloop"]
    called = sys.argv[0]
    return [sys.executable, "-m", "ownloop"] if Path(called).name == "__main__.py" else [called]


@asynccontextmanager
async def opened(where: str, store: str | None, *, adopt: bool = True) -> AsyncGenerator[Opened]:
    """Load the agent that `where` names and host it. Raises ConfigError, for its model too, and StoreError.

    `adopt`: take up what others left unfinished; see `open_host`.
    """
    definition = load_agent(where)
    place = store_place(store)
    async with open_host(store_at(place), [definition], adopt=adopt) as host:
        if not isinstance(definition, ForeignAgent):
            host.adapter(definition, definition.model)
        remember(place, definition.name, where)
        yield Opened(where, store, place, definition, host)


@asynccontextmanager
async def browsing(store: str | None) -> AsyncGenerator[tuple[Service, str]]:
    """Open the sessions without any agent; yield the service, and the place where they are kept. Drives none of them.

    Raises:
        ConfigError: nothing is kept there.
        StoreError: it cannot be opened.
    """
    place = store_place(store)
    if place == "memory":
        raise ConfigError("sessions in memory end with their program; name the file of others: --store, OWNLOOP_STORE")
    if not is_there(place):
        raise ConfigError(f"no sessions are kept in {shown(place)} yet; a chat begins one: ownloop chat FILE")
    async with open_host(store_at(place), [], adopt=False) as host:
        yield Service(host), place
