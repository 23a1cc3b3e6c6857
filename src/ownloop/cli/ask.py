"""Put a session's open requests to the person at the terminal."""

from __future__ import annotations

import json
from typing import Any, Protocol

from ownloop.cli.screen import Screen, harmless
from ownloop.core.codec import loads
from ownloop.core.messages import Json
from ownloop.errors import ConflictError, InvalidRequestError
from ownloop.service import Asked, Service


class Leave(Exception):
    """The person leaves the request open and goes."""


class Prompt(Protocol):
    async def ask(self, label: str, default: str = "") -> str:
        """Read one line. Raises EOFError when nobody will write any more, KeyboardInterrupt for Ctrl-C."""
        ...


async def answer_all(service: Service, screen: Screen, prompt: Prompt, requests: tuple[Asked, ...]) -> None:
    """Ask the person about each request, in order, until each has an answer that was taken.

    Raises:
        Leave: the person left; what was not answered stays open.
    """
    for number, request in enumerate(requests, 1):
        where = f" ({number} of {len(requests)})" if len(requests) > 1 else ""
        _card(screen, request, where)
        while True:
            try:
                answer = await _read(screen, prompt, request)
                await service.answer(request.session_id, request.request_id, answer)
            except EOFError:
                raise Leave from None
            except InvalidRequestError as error:
                screen.error(str(error))
            except ConflictError:
                screen.line(screen.dim("(answered elsewhere meanwhile)"))
                break
            else:
                break


def _card(screen: Screen, request: Asked, where: str) -> None:
    data: Json = request.data if isinstance(request.data, dict) else {}
    match request.purpose:
        case "approval":
            screen.line(screen.style("33", f"? may {harmless(str(data.get('tool')))} run?{where}"))
            if data.get("description"):
                screen.line(screen.dim("  " + harmless(str(data["description"]).splitlines()[0])))
            _values(screen, data.get("input"))
        case "unknown_outcome":
            tool = harmless(str(data.get("tool")))
            screen.line(screen.style("33", f"? {tool} was started, but nobody knows how it ended{where}"))
            screen.line(screen.dim("  Look whether it took effect, then say so. It is never run again without your word."))
            _values(screen, data.get("input"))
        case _:
            question = data.get("question") or json.dumps(request.data, ensure_ascii=False)
            screen.line(screen.style("33", f"? {harmless(str(question))}{where}"))


def _values(screen: Screen, input: Any) -> None:
    if not isinstance(input, dict) or not input:
        screen.line(screen.dim("  (no arguments)"))
        return
    values: Json = input
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        screen.line(f"    {harmless(name)} = {harmless(text)}")


async def _read(screen: Screen, prompt: Prompt, request: Asked) -> Json:
    match request.purpose:
        case "approval":
            return await _approval(screen, prompt, request)
        case "unknown_outcome":
            return await _outcome(screen, prompt)
        case _:
            return await _question(prompt, request)


async def _approval(screen: Screen, prompt: Prompt, request: Asked) -> Json:
    keys = "  [a]pprove  [s]ame from now on  [e]dit  [d]eny  [l]eave › "
    while True:
        word = (await prompt.ask(keys)).strip().lower()
        match word:
            case "a" | "approve" | "y" | "yes":
                return {"approved": True}
            case "s" | "same":
                screen.line(screen.dim("  From now on, in this session, this tool with exactly these arguments runs unasked."))
                return {"approved": True, "remember": "session"}
            case "e" | "edit":
                edited = await _edited(screen, prompt, request.data["input"])
                if edited is not None:
                    return {"approved": True, "edited_input": edited}
            case "d" | "deny" | "n" | "no":
                reason = (await prompt.ask("  reason (may be empty) › ")).strip()
                return {"approved": False, **({"note": reason} if reason else {})}
            case "l" | "leave" | "q":
                raise EOFError
            case _:
                screen.line(screen.dim("  Type a, s, e, d or l."))


async def _edited(screen: Screen, prompt: Prompt, input: Json) -> Json | None:
    text = json.dumps(input, ensure_ascii=False)
    while True:
        text = (await prompt.ask("  arguments › ", text)).strip()
        if not text:
            return None
        try:
            edited = loads(text)
        except ValueError as error:
            screen.error(f"this is not JSON: {error}; mend it, or empty the line to go back")
            continue
        if isinstance(edited, dict):
            return edited  # pyright: ignore[reportUnknownVariableType]
        screen.error("the arguments are a JSON object, {…}")


async def _outcome(screen: Screen, prompt: Prompt) -> Json:
    words = {"r": "ran", "ran": "ran", "n": "not_run", "not": "not_run", "again": "again", "g": "again"}
    while True:
        word = (await prompt.ask("  it [r]an  it did [n]ot run  run it a[g]ain  [l]eave › ")).strip().lower()
        if word in ("l", "leave", "q"):
            raise EOFError
        if word in words:
            answer: Json = {"outcome": words[word]}
            if words[word] == "ran":
                result = (await prompt.ask("  what did it return? (may be empty) › ")).strip()
                return {**answer, "result": result} if result else answer
            return answer
        screen.line(screen.dim("  Type r, n, g or l."))


async def _question(prompt: Prompt, request: Asked) -> Json:
    wanted = request.schema.get("properties", {}).get("value", {})
    text = await prompt.ask("  answer (empty declines) › ")
    if not text.strip():
        return {"declined": True}
    if wanted.get("type") == "string":
        return {"value": text}
    try:
        return {"value": loads(text)}
    except ValueError:
        return {"value": text}
