"""What the commands of the chat do (`slash` says which there are). Used by `chat`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ownloop.cli.columns import cut
from ownloop.cli.harmless import harmless
from ownloop.cli.opening import Opened
from ownloop.cli.output import Output
from ownloop.cli.place import shown
from ownloop.cli.session_table import ago, state_of
from ownloop.cli.slash import COMMANDS, Slash, nearest
from ownloop.cli.transcript import spent
from ownloop.core.events import ConfigChanged, Fact, InputAccepted, RunStarted, SessionStarted, TurnStarted
from ownloop.core.messages import text_of
from ownloop.core.ports import Filter, Page, SessionInfo
from ownloop.errors import ConfigError, OwnloopError
from ownloop.runtime.foreign import ForeignAgent

LISTED = 10
"""Sessions that are listed: those that one may still remember."""
FIRST_FACTS = 20
"""Facts among which the first message stands."""
HELP = """\
Enter sends a message. Alt-Enter makes a new line, and so does \\ before Enter; a pasted text keeps its lines.
While the agent works, just type: what you send is said into the run. Ctrl-C cancels the run.
A message that begins with / is sent with // before it."""


@dataclass(frozen=True, slots=True)
class Going:
    """To another session; None: to a new one."""

    session_id: str | None


class ChatCommands:
    """Does commands, and remembers what the next session is to begin with."""

    def __init__(self, stage: Opened, output: Output) -> None:
        self._stage = stage
        self._output = output
        self._listed: list[str] = []
        self.next_model: str | None = None
        """The model that the next session begins with, if not the agent's own."""

    async def do(self, slash: Slash, session_id: str | None) -> Going | None:
        """Do a command; `session_id` is the session that is open. Errors are said."""
        try:
            match slash.name:
                case "/new":
                    self.next_model = None
                    self._output.prose("The next message begins a new session.")
                    return Going(None)
                case "/sessions":
                    return await self._sessions(slash.rest, session_id)
                case "/session":
                    await self._session(session_id)
                case "/cost":
                    await self._cost(session_id)
                case "/model":
                    await self._model(slash.rest, session_id)
                case "/help":
                    self.help()
                case _:
                    self._unknown(slash.name)
        except OwnloopError as error:
            self._output.error(str(error))
        return None

    def help(self) -> None:
        self._output.prose(HELP)
        self._output.line()
        self._output.table([(f"{name} {rest}".strip(), words) for name, (rest, words) in COMMANDS.items()])

    def _unknown(self, name: str) -> None:
        meant = nearest(name)
        hint = f"Did you mean {meant}?" if meant else "/help lists those there are."
        self._output.prose(f"There is no {harmless(name)}. {hint} To say it to the agent, begin with //.")

    # --- sessions ---

    async def _session(self, session_id: str | None) -> None:
        if session_id is None:
            self._output.prose("There is none yet; it begins with your first message.")
        else:
            self._output.prose(f"{harmless(session_id)}, kept in {shown(self._stage.place)}")

    async def _sessions(self, which: str, session_id: str | None) -> Going | None:
        if which:
            return Going(await self._meant(which))
        newest = await self._newest()
        if not newest:
            self._output.prose("There are none yet; one begins with your first message.")
            return None
        unattended = set(await self._stage.service.unattended())
        rows: list[tuple[str, str]] = []
        for number, session in enumerate(newest, 1):
            mark = "›" if session.session_id == session_id else " "
            state = state_of(session, unattended)
            words = {"waiting": ", waits for you", "idle": ""}.get(state, f", {state}")
            rows.append((f"{mark}{number:3}", f"{await self._title(session)} ({ago(session.updated_ms)}{words})"))
        self._output.table(rows)
        self._output.prose("/sessions N goes to one of them.")
        return None

    async def _newest(self) -> Sequence[SessionInfo]:
        newest = await self._stage.service.sessions(Filter(agent=self._stage.name), Page(LISTED))
        self._listed = [session.session_id for session in newest]
        return newest

    async def _title(self, session: SessionInfo) -> str:
        if session.title:
            return cut(harmless(session.title), self._output.width)
        facts, _ = await self._stage.service.read_events(session.session_id, limit=FIRST_FACTS)
        said = next((text_of(fact.body.blocks) for fact in facts if isinstance(fact.body, InputAccepted)), "")
        return cut(harmless(said), self._output.width) or "nothing said yet"

    async def _meant(self, which: str) -> str:
        """Return the id of a session by its number in the list, or by the beginning of its id. Raises ConfigError."""
        if not which.isdecimal():
            return (await self._stage.session(which)).session_id
        if not self._listed:
            await self._newest()
        if not 1 <= int(which) <= len(self._listed):
            raise ConfigError(f"there is no session {which} in the list; /sessions shows it")
        return self._listed[int(which) - 1]

    # --- what it took, and who answers ---

    async def _cost(self, session_id: str | None) -> None:
        facts = await self.facts(session_id) if session_id is not None else []
        turns = [fact.body for fact in facts if isinstance(fact.body, TurnStarted)]
        if not turns:
            self._output.prose("No model has answered in this session yet.")
            return
        last = next(fact.run_id for fact in reversed(facts) if isinstance(fact.body, RunStarted))
        rows = [
            ("this session", _spent(facts)),
            ("last run", _spent([fact for fact in facts if fact.run_id == last])),
        ]
        if not any("USD" in words for _, words in rows):
            rows.append(("cost", f"unknown: nobody said what {turns[-1].model} costs"))
        self._output.table(rows)

    async def _model(self, wanted: str, session_id: str | None) -> None:
        definition = self._stage.definition
        if isinstance(definition, ForeignAgent):
            self._output.prose("This agent chooses its model itself.")
            return
        now = await self.model(session_id)
        if not wanted:
            whose = "the agent's own" if now == definition.model else f"the agent's own is {definition.model}"
            self._output.prose(f"{harmless(now)} ({harmless(whose)})")
            self._output.prose("/model MODEL takes another one for this session. `ownloop models` says what there is.")
            return
        try:
            await self._stage.warm_up(self._output, wanted)
        except ConfigError as error:
            self._output.error(str(error).split("\n")[0])
            self._output.prose("`ownloop models` says what a model may be.", "  ")
            return
        if session_id is None:
            self.next_model = wanted
        else:
            await self._stage.service.set_model(session_id, wanted)
        self._output.prose(f"From the next answer on: {harmless(wanted)}, in this session.")

    async def model(self, session_id: str | None) -> str:
        """Return the model that answers next in a session; "" if its agent has none."""
        own = getattr(self._stage.definition, "model", "")
        if session_id is None:
            return self.next_model or own
        return model_of(await self.facts(session_id)) or own

    async def facts(self, session_id: str) -> list[Fact]:
        """Return all that is certain in a session."""
        facts: list[Fact] = []
        cursor = ""
        while True:
            page, cursor = await self._stage.service.read_events(session_id, cursor)
            if not page:
                return facts
            facts.extend(page)


def model_of(facts: Sequence[Fact]) -> str:
    """Return the model that was chosen for a session last, "" for the agent's own."""
    model = ""
    for fact in facts:
        match fact.body:
            case SessionStarted(config=changed) | ConfigChanged(patch=changed):
                model = str(changed.get("model") or model)
            case _:
                pass
    return model


def _spent(facts: Sequence[Fact]) -> str:
    turns = sum(isinstance(fact.body, TurnStarted) for fact in facts)
    return f"{turns} turn{'' if turns == 1 else 's'}: {spent(facts) or 'tokens unknown, the model does not say'}"
