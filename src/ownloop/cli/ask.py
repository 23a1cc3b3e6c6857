"""Put a session's open requests to the person at the terminal."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from ownloop.cli.harmless import harmless, revealed
from ownloop.cli.output import Output
from ownloop.cli.prompt import Prompt
from ownloop.core.codec import loads
from ownloop.core.messages import Json
from ownloop.core.operations import Asked
from ownloop.errors import ConflictError, InvalidRequestError
from ownloop.service import Service

APPROVAL = ("[a]pprove", "[s]ame from now on", "[e]dit", "[d]eny", "[l]eave it open")
YES_AND_NO = {"y": "a", "yes": "a", "n": "d", "no": "d"}
OUTCOME = ("it [r]an", "it did [n]ot run", "run it a[g]ain", "[l]eave it open")

_ELSEWHERE = "this was settled elsewhere meanwhile"
_SETTLED = {"expired": "this has expired", "withdrawn": "this is not asked any more"}
_EDITED = re.compile(r"(^|; )edited_input(?:\.|: )")


class Leave(Exception):
    """The person leaves the request open and goes; or nobody is there."""


async def answer_all(
    service: Service,
    output: Output,
    prompt: Prompt,
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
        where = f" ({number} of {len(requests)})" if len(requests) > 1 else ""
        card = _Card(output, prompt, request)
        card.show(where)
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
                output.error(card.refused(error))
            except ConflictError:
                output.line(output.dim(f"  ({_ELSEWHERE})"))
                break
            else:
                break


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


class _Card:
    """One request on the terminal."""

    def __init__(self, output: Output, prompt: Prompt, request: Asked) -> None:
        self._out = output
        self._prompt = prompt
        self._request = request
        self._data = _data(request)
        self._edited_text = ""
        """The arguments as they were edited last, if that was not taken."""

    def show(self, where: str) -> None:
        """Show what is asked. Whatever came from a model is indented, so that it cannot look like words of ours."""
        tool = harmless(str(self._data.get("tool")))
        self._out.line()
        match self._request.purpose:
            case "approval":
                self._question(f"May {tool} run?{where}")
                if self._data.get("description"):
                    self._out.prose(harmless(str(self._data["description"]).splitlines()[0]), "  ")
                self._values()
            case "unknown_outcome":
                self._question(f"{tool} was started, and nobody knows how it ended.{where}")
                self._out.prose("Look whether it took effect. It is never run again without your word.", "  ")
                self._values()
            case _:
                self._question(_indented(revealed(_question(self._request)), "  ") + where)
                if self._request.type and _question(self._request) != self._request.type:
                    self._out.line(self._out.dim(f"    ({_indented(revealed(self._request.type), '    ')})"))
                for line in _readable(_details(self._request)):
                    self._out.line("    " + _indented(revealed(line), "      "))

    async def answer(self) -> Json:
        """Read an answer. Raises EOFError when the person leaves."""
        match self._request.purpose:
            case "approval":
                return await self._approval()
            case "unknown_outcome":
                return await self._outcome()
            case _:
                return await self._value()

    def refused(self, error: InvalidRequestError) -> str:
        """Return why the answer was not taken, in the words of what was typed."""
        return _EDITED.sub(r"\1", str(error).partition(" does not fit: ")[2] or str(error))

    def _question(self, text: str) -> None:
        self._out.line(self._out.style("33;1", "? ") + self._out.bold(text))

    def _values(self) -> None:
        input = self._data.get("input")
        if not isinstance(input, dict) or not input:
            self._out.line(self._out.dim("    (no arguments)"))
            return
        for name, value in cast("Json", input).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            self._out.line(f"    {revealed(name)} = {_indented(revealed(text), '      ')}")

    async def _choice(self, options: tuple[str, ...], **others: str) -> str:
        """Offer options and return the letter in brackets of the one that was chosen; `others` are words for them."""
        self._out.prose("   ".join(option.replace(" ", "\u00a0") for option in options), "  ")
        self._out.prose("(Ctrl-C cancels the run)", "  ")
        words = {option[option.index("[") + 1]: option for option in options}
        spelled = {option.replace("[", "").replace("]", "").split()[0]: key for key, option in words.items()}
        spelled |= others
        while True:
            word = (await self._prompt.decide("  your answer › ")).strip().lower()
            key = word if word in words else spelled.get(word, "")
            if key == "l":
                raise EOFError
            if key:
                return key
            self._out.prose(f"Type one of {', '.join(words)}.", "  ")

    async def _approval(self) -> Json:
        while True:
            match "e" if self._edited_text else await self._choice(APPROVAL, **YES_AND_NO):
                case "a":
                    return {"approved": True}
                case "s":
                    self._out.prose("From now on, in this session, it runs unasked with exactly these arguments.", "  ")
                    return {"approved": True, "remember": "session"}
                case "d":
                    reason = (await self._prompt.decide("  why? (the model reads it; may be empty) › ")).strip()
                    return {"approved": False, **({"note": reason} if reason else {})}
                case _:
                    edited = await self._edited()
                    if edited is not None:
                        return {"approved": True, "edited_input": edited}

    async def _edited(self) -> Json | None:
        text = self._edited_text or json.dumps(self._data["input"], ensure_ascii=False)
        while True:
            self._edited_text = text = (await self._prompt.decide("  arguments › ", text)).strip()
            if not text:
                return None
            try:
                edited = loads(text)
            except ValueError as error:
                self._out.error(f"this is not JSON: {error}. Mend it, or empty the line to go back.")
                continue
            if isinstance(edited, dict):
                return cast("Json", edited)
            self._out.error("the arguments are a JSON object, {…}")

    async def _outcome(self) -> Json:
        match await self._choice(OUTCOME):
            case "r":
                result = (await self._prompt.decide("  what did it return? (may be empty) › ")).strip()
                return {"outcome": "ran", **({"result": result} if result else {})}
            case "n":
                return {"outcome": "not_run"}
            case _:
                return {"outcome": "again"}

    async def _value(self) -> Json:
        wanted = self._request.schema.get("properties", {}).get("value", {})
        text = await self._prompt.decide("  your answer (empty: none) › ")
        if not text.strip():
            return {"declined": True}
        if wanted.get("type") == "string":
            return {"value": text}
        try:
            return {"value": loads(text)}
        except ValueError:
            return {"value": text}


def _indented(text: str, indent: str) -> str:
    return text.replace("\n", "\n" + indent)


def _data(request: Asked) -> Json:
    return cast("Json", request.data) if isinstance(request.data, dict) else {}


def _question(request: Asked) -> str:
    """Return the question itself, as far as it is one sentence."""
    data = _data(request)
    if isinstance(request.data, str) and request.data:
        return request.data
    return str(data.get("question") or request.type or request.purpose)


def _details(request: Asked) -> Any:
    """Return what is asked beside the question itself."""
    if isinstance(request.data, dict):
        return {name: value for name, value in _data(request).items() if name != "question"}
    return None if isinstance(request.data, str) else request.data


def _readable(value: Any) -> list[str]:
    """Return lines that show a value as a person writes lists."""
    if value is None or value == {} or value == []:
        return []
    if isinstance(value, dict):
        return [line for name, inner in cast("Json", value).items() for line in _item(f"{name} =", f"{name}:", inner)]
    if isinstance(value, list):
        return [line for inner in cast("list[Any]", value) for line in _item("-", "-", inner)]
    return [_plain(value)]


def _item(before: str, above: str, value: Any) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [above, *("  " + line for line in _readable(value))]
    return [f"{before} {_plain(value)}"]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def outlives_its_process(request: Asked) -> bool:
    """Whether a request can be answered by another process: a question's answer goes to code that waits for it here."""
    return request.purpose in ("approval", "unknown_outcome")


def what_waits(requests: tuple[Asked, ...]) -> str:
    """Say in one line what a person is asked."""
    return harmless(", ".join(_one(request) for request in requests))


def _one(request: Asked) -> str:
    data = _data(request)
    if outlives_its_process(request) and "tool" in data:
        return f"{data['tool']} {json.dumps(data.get('input', {}), ensure_ascii=False)}"
    details = _details(request)
    return _question(request) + (f" {json.dumps(details, ensure_ascii=False)}" if details else "")
