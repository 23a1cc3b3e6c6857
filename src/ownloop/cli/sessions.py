"""`ownloop sessions`: list what is kept, show one session, answer what waits in it, go on with it.

Only going on needs the agent; the rest reads the store, and works while another process drives the session.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from ownloop.cli.agent_files import remembered
from ownloop.cli.ask import what_waits
from ownloop.cli.harmless import harmless
from ownloop.cli.lines import Lines
from ownloop.cli.lookup import all_sessions, find_session, shortened
from ownloop.cli.opening import browsing, command
from ownloop.cli.output import Output
from ownloop.cli.pipes import own_stdout
from ownloop.cli.place import is_there, shown, store_place
from ownloop.cli.session_table import Listed, ago, show_table, state_of
from ownloop.cli.signals import Signals
from ownloop.cli.transcript import Transcript, models, moment, spent
from ownloop.core.codec import dumps, loads
from ownloop.core.cursor import Cursor
from ownloop.core.events import Fact, InputAccepted
from ownloop.core.messages import Json, text_of
from ownloop.core.operations import Asked
from ownloop.core.ports import Filter, SessionInfo
from ownloop.errors import ConfigError, InvalidRequestError
from ownloop.service import Service

FIRST_FACTS = 20
"""Facts among which the first message stands."""


# --- list ---


async def list_sessions(*, agent: str | None, limit: int, store: str | None, as_json: bool) -> int:
    """Show the newest sessions; return the exit code."""
    place = store_place(store)
    if place != "memory" and not is_there(place):
        print(f"No sessions are kept in {shown(place)} yet; a chat begins one: ownloop chat FILE", file=sys.stderr)
        return 0
    async with browsing(store) as (service, place):
        every = await all_sessions(service)
        wanted = [session for session in every if agent in (None, session.agent)]
        if every and not wanted:
            known = ", ".join(sorted({session.agent for session in every}))
            raise ConfigError(f"no session in {shown(place)} is one of agent {agent!r}; there are those of: {known}")
        unattended = set(await service.unattended())
        listed = [await _listed(service, session, unattended) for session in wanted[:limit]]
        if as_json:
            with own_stdout() as file:
                for one in listed:
                    Lines(file).object("session", **one.as_json())
        elif listed:
            short = shortened(session.session_id for session in every)
            show_table(Output(sys.stdout, sys.stdout), listed, short, len(wanted))
    return 0


async def _listed(service: Service, session: SessionInfo, unattended: set[str]) -> Listed:
    facts, _ = await service.read_events(session.session_id, limit=FIRST_FACTS)
    said = next((_said(fact.body) for fact in facts if isinstance(fact.body, InputAccepted)), "")
    return Listed(session, state_of(session, unattended), said)


def _said(body: InputAccepted) -> str:
    return text_of(body.blocks) or ("" if body.data is None else dumps(body.data))


# --- show ---


async def show_session(given: str, *, store: str | None, as_json: bool) -> int:
    """Show one session as a person reads it, or its facts."""
    async with browsing(store) as (service, place):
        session = await find_session(service, given, place)
        facts = await _all_facts(service, session.session_id)
        if as_json:
            with own_stdout() as file:
                for fact in facts:
                    Lines(file).event(str(Cursor(fact.seq)), fact)
            return 0
        output = Output(sys.stdout, sys.stdout)
        _show_head(output, session, facts)
        screen = Transcript(output)
        for fact in facts:
            screen.show(fact)
        output.end_waiting()
        await _show_end(output, service, session, store)
    return 0


async def _all_facts(service: Service, session_id: str) -> list[Fact]:
    facts: list[Fact] = []
    cursor = ""
    while True:
        page, cursor = await service.read_events(session_id, cursor)
        if not page:
            return facts
        facts.extend(page)


def _show_head(output: Output, session: SessionInfo, facts: list[Fact]) -> None:
    output.line(output.bold(harmless(session.session_id)))
    if session.title:
        output.line(harmless(session.title))
    who = f"{session.agent} on {models(facts)}" if models(facts) else session.agent
    output.prose(harmless(who))
    if session.parent_id is not None:
        output.prose(harmless(f"a fork of {session.parent_id}"))
    output.prose(f"begun {moment(facts[0].at_ms)}, last used {ago(session.updated_ms)}")
    if cost := spent(facts):
        output.prose(cost)


async def _show_end(output: Output, service: Service, session: SessionInfo, store: str | None) -> None:
    """Say how the session stands, if there is anything to do or to expect."""
    state = state_of(session, set(await service.unattended()))
    go_on = command("sessions", "resume", session.session_id, store=store)
    match state:
        case "waiting":
            asked = tuple(await service.requests(Filter(session_id=session.session_id, state="open")))
            output.line()
            output.line(output.style("33", "Waits for you: ") + what_waits(asked))
            output.command("Answer it:", go_on)
        case "unfinished":
            output.line()
            output.command("Its process is gone before it had finished. Go on with:", go_on)
        case "running":
            output.line()
            output.prose("Another process is at work in it.")
        case _:
            pass


# --- answer ---

_WORDS: dict[str, dict[str, Json]] = {
    "approval": {"approve": {"approved": True}, "deny": {"approved": False}},
    "unknown_outcome": {word: {"outcome": word} for word in ("ran", "not_run", "again")},
}
_OTHERS: dict[str, Json] = {"decline": {"declined": True}}
_ANSWER_FIELDS = {"value", "declined", "note"}


async def answer_request(
    given: str, words: str, *, request_id: str | None, note: str | None, store: str | None, as_json: bool
) -> int:
    """Answer what waits in a session. Nothing is driven on here: whoever serves the agent does that."""
    async with browsing(store) as (service, place):
        session = await find_session(service, given, place)
        asked = await service.requests(Filter(session_id=session.session_id, state="open"))
        request = _request(session, asked, request_id)
        body = _answer(request, words) | ({"note": note} if note else {})
        row = await service.answer(session.session_id, request.request_id, body)
        if as_json:
            with own_stdout() as file:
                Lines(file).object("answered", session_id=session.session_id, request_id=row.request_id, answer=body)
            return 0
        output = Output(sys.stdout, sys.stdout)
        output.line("Answered.")
        if session.session_id in await service.unattended():
            output.command("Go on with:", command("sessions", "resume", session.session_id, store=store))
    return 0


def _request(session: SessionInfo, asked: list[Asked], request_id: str | None) -> Asked:
    """Return the request that is meant: by its id, or the only one there is."""
    meant = [request for request in asked if request_id in (None, request.request_id)]
    if len(meant) == 1:
        return meant[0]
    if not asked:
        raise ConfigError(f"nothing waits for an answer in session {session.session_id!r}")
    listed = "\n".join(f"  --request {request.request_id}   {what_waits((request,))}" for request in asked)
    if request_id is None:
        raise ConfigError(f"{len(asked)} requests wait in session {session.session_id!r}; name one:\n{listed}")
    raise ConfigError(f"no request {request_id!r} waits in session {session.session_id!r}; there are:\n{listed}")


def _answer(request: Asked, words: str) -> Json:
    """Return an answer in the form of the contract."""
    known = _WORDS.get(request.purpose, _OTHERS)
    if words in known:
        return known[words]
    try:
        value: Any = loads(words)
    except ValueError:
        value = words
    answer = cast("Json", value) if isinstance(value, dict) else None
    if request.purpose in _WORDS:
        if answer is None:
            raise InvalidRequestError(f"{words!r} is no answer to this; answer {', '.join(known)}, or in full, as JSON")
        return answer
    if answer is not None and answer.keys() <= _ANSWER_FIELDS:
        return answer
    wants_text = request.schema.get("properties", {}).get("value", {}).get("type") == "string"
    return {"value": words if wants_text else value}


# --- resume ---


async def resume(given: str, where: str | None, *, store: str | None, signals: Signals) -> int:
    """Go on with a session in a chat; without `where` with the agent's file as it was loaded last."""
    async with browsing(store) as (service, place):
        session = await find_session(service, given, place)
    if session.closing:
        raise ConfigError(
            f"session {session.session_id!r} was closed for good; to read it: "
            + command("sessions", "show", session.session_id, store=store)
        )
    from ownloop.cli.chat import chat

    where = where or _remembered(session, place)
    return await chat(where, session_id=session.session_id, new=False, store=store, signals=signals)


def _remembered(session: SessionInfo, place: str) -> str:
    """Return where the session's agent was loaded from last. Raises ConfigError."""
    name_it = f"name the file: ownloop sessions resume {session.session_id} FILE"
    found = remembered(place, session.agent)
    if found is None:
        raise ConfigError(f"which file holds agent {session.agent!r} is not known here; {name_it}")
    if found.file is not None and not found.file.exists():
        raise ConfigError(f"agent {session.agent!r} was last loaded from {str(found.file)!r}, which is gone; {name_it}")
    if found.file is None and found.folder not in sys.path:
        sys.path.insert(0, found.folder)
    return found.from_here
