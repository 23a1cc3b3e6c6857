"""`ownloop chat FILE`: talk to an agent in the terminal."""

from __future__ import annotations

from ownloop.backends.local import LocalAdapter, TINY_MODEL_NOTE
from ownloop.cli.ask import Leave, Prompt, answer_all
from ownloop.cli.conversation import Conversation, newest_session
from ownloop.cli.load import load_agent
from ownloop.cli.place import store_at, store_place
from ownloop.cli.prompt import LinePrompt, TerminalPrompt, has_person
from ownloop.cli.screen import Screen, harmless
from ownloop.runtime.foreign import ForeignAgent
from ownloop.runtime.host import AnyDefinition, Host, open_host
from ownloop.service import RunResult, Service

HELP = """\
  Type a message and press Enter. While an answer comes, Ctrl-C cancels it.
  /new       start a new session        /session   say which session this is
  /help      this text                  /quit      leave (Ctrl-D too); the session is kept"""


async def chat(where: str, *, session_id: str | None, new: bool, store: str | None) -> int:
    """Talk until the person leaves; return the exit code."""
    screen = Screen()
    definition = load_agent(where)
    place = store_place(store)
    async with open_host(store_at(place), [definition]) as host:
        service = Service(host)
        prompt: Prompt = TerminalPrompt() if has_person() else LinePrompt(host.env.threads)
        talk, resumed = await _begin(service, screen, definition.name, session_id, new)
        _welcome(screen, definition, place, talk.session_id, resumed)
        await warm_up(host, definition, screen)
        await talk.catch_up(show=resumed)
        return await _Chat(service, screen, prompt, definition.name, where).run(talk)


async def _begin(
    service: Service, screen: Screen, agent: str, session_id: str | None, new: bool
) -> tuple[Conversation, bool]:
    """Choose the session: the one named, the newest if something in it waits, else a new one."""
    if session_id is not None:
        await service.session(session_id)
        return Conversation(service, screen, session_id), True
    if not new:
        newest = await newest_session(service, agent)
        if newest is not None:
            talk = Conversation(service, screen, newest)
            if await talk.unfinished() is not None:
                return talk, True
    return Conversation(service, screen, (await service.create_session(agent)).session_id), False


def _welcome(screen: Screen, definition: AnyDefinition, place: str, session_id: str, resumed: bool) -> None:
    model = getattr(definition, "model", "")
    screen.line(screen.bold(harmless(definition.name)) + (f" on {harmless(model)}" if model else ""))
    if model == "local":
        screen.line(screen.dim(TINY_MODEL_NOTE))
    screen.line(screen.dim(f"Session {session_id}, kept in {place}. /help shows what you can type."))
    for sentence in getattr(definition, "suggestions", ()):
        screen.line(screen.dim(f"  Try: {harmless(sentence)}"))
    if resumed:
        screen.line(screen.dim("Going on where this session stopped:"))
    screen.line()


async def warm_up(host: Host, definition: AnyDefinition, screen: Screen) -> None:
    """Fetch and load a local model before the first message, and say so; other models have nothing to warm up."""
    if isinstance(definition, ForeignAgent):
        return
    adapter = host.adapter(definition, definition.model)
    if isinstance(adapter, LocalAdapter):
        adapter.on_progress = screen.progress
        await adapter.warm_up()
        screen.progress("")


class _Chat:
    def __init__(self, service: Service, screen: Screen, prompt: Prompt, agent: str, where: str) -> None:
        self._service = service
        self._screen = screen
        self._prompt = prompt
        self._agent = agent
        self._where = where

    async def run(self, talk: Conversation) -> int:
        live = await talk.unfinished()
        try:
            if live is not None:
                await self._settle(talk, await talk.follow(live))
            while True:
                try:
                    text = (await self._prompt.ask("you › ")).strip()
                except (EOFError, KeyboardInterrupt):
                    break
                if text.startswith("/"):
                    talk = await self._command(talk, text)
                    if talk.session_id == "":
                        break
                elif text:
                    await self._settle(talk, await talk.say(text))
        except Leave:
            self._screen.line(f"Left open. Go on with: ownloop chat {self._where} --session {talk.session_id}")
            return 3
        return 0

    async def _settle(self, talk: Conversation, result: RunResult) -> None:
        """Ask what is to be asked, and follow the run, until it has ended."""
        while result.state == "interrupted":
            try:
                await answer_all(self._service, self._screen, self._prompt, result.requests)
            except KeyboardInterrupt:
                await self._service.cancel(session_id=talk.session_id)
            live = await talk.unfinished()
            if live is None:
                break
            result = await talk.follow(live)

    async def _command(self, talk: Conversation, text: str) -> Conversation:
        match text.split()[0]:
            case "/quit" | "/exit" | "/q":
                return Conversation(self._service, self._screen, "")
            case "/new":
                talk = Conversation(
                    self._service, self._screen, (await self._service.create_session(self._agent)).session_id
                )
                await talk.catch_up(show=False)
                self._screen.line(self._screen.dim(f"Session {talk.session_id}"))
            case "/session":
                self._screen.line(self._screen.dim(talk.session_id))
            case "/help":
                self._screen.line(HELP)
            case other:
                self._screen.line(f"There is no {harmless(other)}. {HELP.strip()}")
        return talk
