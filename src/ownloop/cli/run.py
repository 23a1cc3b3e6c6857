"""`ownloop run FILE "message"`: one message, one answer, an exit code."""

from __future__ import annotations

from ownloop.cli.ask import Leave, outlives_its_process, what_waits
from ownloop.cli.conversation import Conversation
from ownloop.cli.opening import Opened, opened
from ownloop.cli.output import Output
from ownloop.cli.prompt import quiet_keys
from ownloop.cli.screen import Screen
from ownloop.cli.signals import Signals
from ownloop.core.operations import RunResult
from ownloop.core.ports import Filter
from ownloop.errors import InvalidRequestError

DONE, FAILED, USAGE, WAITING, LIMIT, CANCELLED = 0, 1, 2, 3, 4, 130


async def run(where: str, message: str, *, session_id: str | None, store: str | None, signals: Signals) -> int:
    """Send one message and show its answer; return the exit code (DATA-MODEL §8)."""
    if not message.strip():
        raise InvalidRequestError('the message is empty; say something, as in: ownloop run FILE "What is new?"')
    output = Output()
    with quiet_keys():
        async with opened(where, store) as stage:
            if session_id is not None:
                await stage.session(session_id)
            await stage.warm_up(output)
            session_id = session_id or await stage.new_session()
            talk = Conversation(stage.service, Screen(output), stage.prompt(), signals, session_id)
            await talk.catch_up(show=False)
            accepted = await talk.send(message)
            try:
                return _code(await talk.settle(accepted))
            except Leave:
                await _say_what_waits(stage, output, session_id, accepted.run_id)
                return WAITING


def _code(result: RunResult | None) -> int:
    match result and result.outcome:
        case "completed":
            return DONE
        case "cancelled":
            return CANCELLED
        case "max_turns" | "budget_exceeded":
            return LIMIT
        case _:
            return FAILED


async def _say_what_waits(stage: Opened, output: Output, session_id: str, run_id: str) -> None:
    asked = tuple(await stage.service.requests(Filter(session_id=session_id, state="open")))
    output.line(f"Waiting for a person: {what_waits(asked)}")
    asked_in = {request.run_id for request in asked} - {None}
    if asked_in and run_id not in asked_in:
        output.line("Your message is kept, and is answered after that.")
    if any(outlives_its_process(request) for request in asked):
        output.command("Go on with:", stage.go_on(session_id))
    else:
        output.command("This question cannot outlive this process; use ownloop chat:", stage.chat)
