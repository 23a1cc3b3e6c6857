"""`ownloop chat FILE`: talk to an agent in the terminal."""

from __future__ import annotations

from ownloop.backends.local import TINY_MODEL_NOTE
from ownloop.cli.ask import Leave, outlives_its_process, what_waits
from ownloop.cli.chat_commands import ChatCommands
from ownloop.cli.conversation import Conversation
from ownloop.cli.harmless import harmless
from ownloop.cli.opening import Opened, opened
from ownloop.cli.output import Output
from ownloop.cli.place import shown
from ownloop.cli.prompt import Interrupted, TerminalPrompt, has_person, quiet_keys
from ownloop.cli.screen import SAID, Screen
from ownloop.cli.signals import Signals
from ownloop.cli.slash import COMMANDS, Slash, is_command, message_of, parse
from ownloop.core.operations import Accepted
from ownloop.core.ports import Filter, Page, SessionInfo
from ownloop.errors import OwnloopError


async def chat(where: str, *, session_id: str | None, new: bool, store: str | None, signals: Signals) -> int:
    """Talk until the person leaves; return the exit code."""
    output = Output()
    with quiet_keys():
        async with opened(where, store) as stage:
            unfinished = await _unfinished(stage)
            if session_id is not None:
                session_id = (await stage.session(session_id)).session_id
            elif unfinished is not None and not new and has_person() and _is_of(stage, unfinished):
                session_id = unfinished.session_id
            talking = _Chat(stage, output, signals)
            await talking.welcome(session_id, unfinished)
            return await talking.run(session_id)


async def _unfinished(stage: Opened) -> SessionInfo | None:
    """Return the newest session, if something in it is unfinished."""
    newest = await stage.service.sessions(Filter(agent=stage.name), Page(1))
    return newest[0] if newest and (newest[0].live_run_id is not None or newest[0].open_requests > 0) else None


def _is_of(stage: Opened, session: SessionInfo) -> bool:
    """Whether a session was begun with this very agent: two programs may each have one of the same name."""
    return session.agent_digest == stage.definition.digest


class _Chat:
    def __init__(self, stage: Opened, output: Output, signals: Signals) -> None:
        self._stage = stage
        self._output = output
        self._signals = signals
        self._prompt = TerminalPrompt(COMMANDS) if has_person() else stage.prompt()
        self._commands = ChatCommands(stage, output)
        self._talk: Conversation | None = None

    # --- beginning and end ---

    async def welcome(self, session_id: str | None, unfinished: SessionInfo | None) -> None:
        """Say who is there, what waits, and what to try."""
        stage, output = self._stage, self._output
        model = await self._commands.model(session_id)
        output.line(output.bold(harmless(stage.name)) + (f" on {harmless(model)}" if model else ""))
        if model == "local":
            output.prose(TINY_MODEL_NOTE)
        steer = " While the agent works, type to steer it." if self._prompt.has_person else ""
        output.prose(f"Sessions are kept in {shown(stage.place)}. Type /help for help, /quit to leave.{steer}")
        waiting = await stage.service.requests(Filter(agent=stage.name, state="open"))
        known = {session_id}
        if unfinished is not None and unfinished.session_id != session_id and not _is_of(stage, unfinished):
            known.add(unfinished.session_id)
            output.command("A session of another version of this agent waits:", stage.go_on(unfinished.session_id))
        others = list(dict.fromkeys(request.session_id for request in waiting if request.session_id not in known))
        if others:
            more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
            output.command(f"Another session{more} waits for you:", stage.go_on(others[-1]))
        suggestions: list[str] = list(getattr(stage.definition, "suggestions", ()))
        if suggestions and session_id is None:
            output.line()
            output.prose("Try:")
            for sentence in suggestions:
                output.prose(harmless(sentence), "  ")
        if session_id is not None:
            output.line()
            output.prose("Going on where this session stopped. (/new begins another one.)")
        output.line()

    async def run(self, session_id: str | None) -> int:
        try:
            if session_id is not None:
                await self._go_to(session_id)
            else:
                await self._stage.warm_up(self._output)
            await self._listen()
        except Leave:
            stays = await self._say_what_waits()
            self._say_how_to_go_on("Left open" if stays else "Left")
            return 3
        finally:
            if self._signals.exit_code == 130:
                self._say_how_to_go_on("Left")
        self._say_how_to_go_on("Kept")
        return 0

    def _say_how_to_go_on(self, how: str) -> None:
        if self._talk is None:
            return
        if not self._stage.is_kept:
            self._output.line("Nothing is kept: the store was in memory.")
        else:
            self._output.command(f"{how}. Go on with:", self._stage.go_on(self._talk.session_id))

    async def _say_what_waits(self) -> bool:
        """Say what nobody answered, and return whether it can still be answered after this program."""
        assert self._talk is not None
        asked = tuple(await self._stage.service.requests(Filter(session_id=self._talk.session_id, state="open")))
        if not self._prompt.has_person:
            self._output.line(f"Waiting for a person: {what_waits(asked)}")
        if not all(outlives_its_process(request) for request in asked):
            self._output.line("A question cannot outlive this process: it is withdrawn.")
        return any(outlives_its_process(request) for request in asked)

    # --- talking ---

    async def _listen(self) -> None:
        """Take messages and commands until the person leaves."""
        text = ""
        while True:
            await self._catch_up()
            try:
                self._output.end_paragraph()
                text = await self._prompt.ask(SAID, text)
                self._output.was_typed()
            except (EOFError, Interrupted):
                return
            if is_command(text):
                slash = parse(text)
                if slash.name == "/quit":
                    return
                await self._do(slash)
            elif text.strip() and not await self._say(message_of(text)):
                continue  # it was not taken; it stands in the line again
            text = ""

    async def _do(self, slash: Slash) -> None:
        going = await self._commands.do(slash, self._talk.session_id if self._talk is not None else None)
        if going is None:
            return
        self._talk = None
        if going.session_id is not None:
            self._output.line()
            await self._go_to(going.session_id)

    async def _go_to(self, session_id: str) -> None:
        """Show a session and go on with what is unfinished in it."""
        self._talk = talk = self._conversation(session_id)
        try:
            await self._stage.warm_up(self._output, await self._commands.model(session_id))
        except OwnloopError as error:  # what waits can be answered, and another model be taken
            self._output.error(str(error))
        try:
            await talk.catch_up(show=True)
            accepted = await talk.unfinished()
        except OwnloopError as error:
            self._output.error(str(error))
            return
        await self._settle(talk, accepted)

    def _conversation(self, session_id: str) -> Conversation:
        screen = Screen(self._output, in_chat=self._prompt.has_person)
        return Conversation(self._stage.service, screen, self._prompt, self._signals, session_id, steers=True)

    async def _say(self, text: str) -> bool:
        """Say something and see it through; return whether it was taken."""
        try:
            if self._talk is None:
                self._talk = self._conversation(await self._begin())
            # Others may have said something here meanwhile, in another terminal.
            await self._talk.catch_up(show=True)
            accepted = await self._talk.send(text)
        except OwnloopError as error:
            self._output.error(str(error))
            return False
        await self._settle(self._talk, accepted)
        return True

    async def _begin(self) -> str:
        """Begin a session; return its id."""
        session_id = await self._stage.new_session()
        if self._commands.next_model is not None:
            await self._stage.service.set_model(session_id, self._commands.next_model)
        return session_id

    async def _catch_up(self) -> None:
        """Show what came since, as the notes of an agent that works on without a run."""
        if self._talk is not None:
            try:
                await self._talk.catch_up(show=True)
            except OwnloopError as error:
                self._output.error(str(error))

    async def _settle(self, talk: Conversation, accepted: Accepted | None) -> None:
        try:
            await talk.settle(accepted)
        except OwnloopError as error:
            # A full disk, for one: what was said is kept, and goes on with the next message or start.
            self._output.error(str(error))
