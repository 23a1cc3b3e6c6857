"""`ownloop run FILE "message"`: one message, one answer, an exit code."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ownloop.cli.ask import Leave, outlives_its_process, what_waits
from ownloop.cli.conversation import Conversation
from ownloop.cli.lines import Lines, LineScreen, plain
from ownloop.cli.opening import Opened, opened
from ownloop.cli.output import Output
from ownloop.cli.pipes import own_stdout
from ownloop.cli.prompt import LinePrompt, quiet_keys
from ownloop.cli.screen import Screen
from ownloop.cli.signals import Signals
from ownloop.core.operations import Accepted, Asked, RunResult
from ownloop.core.ports import Filter
from ownloop.errors import InvalidRequestError, OwnloopError

DONE, FAILED, WAITING, LIMIT, CANCELLED = 0, 1, 3, 4, 130


async def run(
    where: str, message: str | None, *, session_id: str | None, store: str | None, as_json: bool, signals: Signals
) -> int:
    """Send one message and show its answer; without a message, go on with what is unfinished in the session.

    Returns the exit code (DATA-MODEL §8).
    """
    if message is not None and not message.strip():
        raise InvalidRequestError('the message is empty; say something, as in: ownloop run FILE "What is new?"')
    if message is None and session_id is None:
        raise InvalidRequestError('say something, as in: ownloop run FILE "What is new?"; or name a --session to go on')
    with _stdout(as_json) as (output, lines), quiet_keys():
        async with opened(where, store, adopt=False) as stage:
            if session_id is not None:
                session_id = (await stage.session(session_id)).session_id
            await stage.warm_up(output)
            one = _Run(stage, output, lines, signals, session_id or await stage.new_session())
            return await one.say(message) if message is not None else await one.go_on()


@contextmanager
def _stdout(as_json: bool) -> Generator[tuple[Output, Lines | None]]:
    """Keep stdout for the answer, or for lines, unless it is a terminal: what else is printed goes to stderr."""
    if not as_json and sys.stdout is not None and sys.stdout.isatty():
        yield Output(), None
        return
    with own_stdout() as file:
        if as_json:
            yield Output(sys.stderr, sys.stderr), Lines(file)
        else:
            yield Output(file), None


class _Run:
    """One run at the terminal, or for a program."""

    def __init__(self, stage: Opened, output: Output, lines: Lines | None, signals: Signals, session_id: str) -> None:
        self._stage = stage
        self._output = output
        self._lines = lines
        screen = Screen(output) if lines is None else LineScreen(output, lines, lambda: self._talk.cursor)
        prompt = stage.prompt() if lines is None else LinePrompt(stage.host.env.threads)
        self._talk = Conversation(stage.service, screen, prompt, signals, session_id)

    async def say(self, message: str) -> int:
        await self._talk.catch_up(show=False)
        return await self._finish(await self._talk.send(message))

    async def go_on(self) -> int:
        await self._talk.catch_up(show=False)
        unfinished = await self._talk.unfinished()
        if unfinished is None and not await self._asked():
            raise InvalidRequestError(
                f"nothing is unfinished in session {self._talk.session_id!r}; say something in it: "
                "ownloop run FILE MESSAGE --session ID"
            )
        self._stage.host.wake(self._talk.session_id)
        return await self._finish(unfinished)

    async def _finish(self, accepted: Accepted | None) -> int:
        """See a run through, and say how it ended."""
        if accepted is not None and self._lines is not None:
            self._lines.object("accepted", **plain(accepted))
        try:
            result = await self._talk.settle(accepted)
        except Leave:
            await self._leave(accepted)
            return WAITING
        except OwnloopError as error:
            self._end(FAILED, error={"code": error.code, "message": str(error)})
            raise
        code = _code(result)
        self._end(code, result)
        return code

    async def _asked(self) -> tuple[Asked, ...]:
        return tuple(await self._stage.service.requests(Filter(session_id=self._talk.session_id, state="open")))

    async def _leave(self, accepted: Accepted | None) -> None:
        """Say what waits, and how to go on."""
        asked = await self._asked()
        self._output.line(f"Waiting for a person: {what_waits(asked)}")
        asked_in = {request.run_id for request in asked} - {None}
        if asked_in and accepted is not None and accepted.run_id not in asked_in:
            self._output.line("Your message is kept, and is answered after that.")
        go_on = None
        if not self._stage.is_kept:
            self._output.line("Nothing is kept: the store was in memory.")
        elif all(map(outlives_its_process, asked)):
            go_on = self._stage.go_on(self._talk.session_id)
            self._output.command("Go on with:", go_on)
        else:
            self._output.command("This question cannot outlive this process; use ownloop chat:", self._stage.chat)
        result = await self._stage.service.run(accepted.run_id) if accepted is not None else None
        self._end(WAITING, result, requests=asked, go_on=go_on)

    def _end(self, exit_code: int, result: RunResult | None = None, **more: Any) -> None:
        """Write the last line."""
        if self._lines is not None:
            known = {"session_id": self._talk.session_id} if result is None else plain(result)
            self._lines.object("run_result", **{**known, **more, "exit_code": exit_code})


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
