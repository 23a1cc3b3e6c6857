"""Put a session's open requests to the person at the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from ownloop.cli.approval import Approval, Outcome
from ownloop.cli.editor import Editor
from ownloop.cli.harmless import harmless
from ownloop.cli.output import Output
from ownloop.cli.prompt import Prompt
from ownloop.cli.question import Question, details, question
from ownloop.cli.request_card import RequestCard, pretty
from ownloop.core.messages import Json
from ownloop.core.operations import Asked
from ownloop.errors import ConflictError, InvalidRequestError
from ownloop.service import Service

_ELSEWHERE = "this was settled elsewhere meanwhile"
_SETTLED = {"expired": "this has expired", "withdrawn": "this is not asked any more"}


class Leave(Exception):
    """The person leaves the request open and goes; or nobody is there."""


async def answer_all(
    service: Service,
    output: Output,
    prompt: Prompt,
    editor: Editor,
    requests: tuple[Asked, ...],
    settled: Callable[[str], Awaitable[str]],
) -> None:
    """Ask the person about each request, in order, until each has an answer that was taken.

    `settled` returns when the request of an id is open no more, with the decision: another process answered it, or it
    expired or was withdrawn.

    Raises:
        Leave: nobody will answer; what was not answered stays open.
        Interrupted: Ctrl-C.
    """
    if not prompt.has_person:
        raise Leave
    for number, request in enumerate(requests, 1):
        card = _card(output, prompt, editor, request)
        output.line()
        card.show(f" ({number} of {len(requests)})" if len(requests) > 1 else "")
        while True:
            try:
                answer = await _unless(card.answer(), settled(request.request_id))
                if isinstance(answer, str):
                    output.line(output.dim(f"  ({_SETTLED.get(answer, _ELSEWHERE)})"))
                    break
                await service.answer(request.session_id, request.request_id, answer)
            except EOFError:
                raise Leave from None
            except InvalidRequestError as error:
                output.error(card.refused(error), "  ")
            except ConflictError:
                output.line(output.dim(f"  ({_ELSEWHERE})"))
                break
            else:
                break


def _card(output: Output, prompt: Prompt, editor: Editor, request: Asked) -> RequestCard:
    match request.purpose:
        case "approval":
            return Approval(output, prompt, request, editor)
        case "unknown_outcome":
            return Outcome(output, prompt, request)
        case _:
            return Question(output, prompt, request)


async def _unless(answer: Awaitable[Json], settled: Awaitable[str]) -> Json | str:
    """Return the answer, or the decision if there is one before it."""
    asking, watching = asyncio.ensure_future(answer), asyncio.ensure_future(settled)
    try:
        await asyncio.wait((asking, watching), return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else watching.result()
    finally:
        asking.cancel()
        watching.cancel()
        await asyncio.gather(asking, watching, return_exceptions=True)


def outlives_its_process(request: Asked) -> bool:
    """Whether a request can be answered by another process: a question's answer goes to code that waits for it here."""
    return request.purpose in ("approval", "unknown_outcome")


def what_waits(requests: tuple[Asked, ...]) -> str:
    """Say in one line what a person is asked."""
    return harmless(", ".join(_one(request) for request in requests))


def _one(request: Asked) -> str:
    data = cast("Json", request.data) if isinstance(request.data, dict) else {}
    if outlives_its_process(request) and "tool" in data:
        return f"{data['tool']} {pretty(data.get('input', {}))}"
    beside = details(request)
    return question(request) + (f" {pretty(beside)}" if beside else "")
