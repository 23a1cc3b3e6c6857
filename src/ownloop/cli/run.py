"""`ownloop run FILE "message"`: one message, one answer, an exit code."""

from __future__ import annotations

from ownloop.cli.chat import warm_up
from ownloop.cli.ask import Leave, Prompt, answer_all
from ownloop.cli.conversation import Conversation
from ownloop.cli.load import load_agent
from ownloop.cli.place import store_at, store_place
from ownloop.cli.prompt import TerminalPrompt, has_person
from ownloop.cli.screen import Screen
from ownloop.runtime.host import open_host
from ownloop.service import RunResult, Service

DONE, FAILED, USAGE, WAITING, LIMIT, CANCELLED = 0, 1, 2, 3, 4, 130


async def run(where: str, message: str, *, session_id: str | None, store: str | None) -> int:
    """Send one message and show its answer; return the exit code (DATA-MODEL §8)."""
    screen = Screen()
    definition = load_agent(where)
    place = store_place(store)
    async with open_host(store_at(place), [definition]) as host:
        service = Service(host)
        if session_id is None:
            session_id = (await service.create_session(definition.name)).session_id
        await warm_up(host, definition, screen)
        talk = Conversation(service, screen, session_id)
        await talk.catch_up(show=False)
        result = await talk.say(message)
        if has_person():
            prompt: Prompt = TerminalPrompt()
            try:
                while result.state == "interrupted":
                    await answer_all(service, screen, prompt, result.requests)
                    live = await talk.unfinished()
                    if live is None:
                        break
                    result = await talk.follow(live)
            except (Leave, KeyboardInterrupt):
                pass
        return _code(screen, result, where, session_id)


def _code(screen: Screen, result: RunResult, where: str, session_id: str) -> int:
    if result.state != "ended":
        names = ", ".join(str(r.data.get("tool")) if isinstance(r.data, dict) else r.purpose for r in result.requests)  # pyright: ignore
        screen.line(f"Waiting for a person ({names}). Go on with: ownloop chat {where} --session {session_id}")
        return WAITING
    match result.outcome:
        case "completed":
            return DONE
        case "cancelled":
            return CANCELLED
        case "max_turns" | "budget_exceeded":
            return LIMIT
        case _:
            return FAILED
