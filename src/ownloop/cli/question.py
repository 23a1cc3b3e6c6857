"""A question to a person, as a form: one field after the other. Used by `ask`."""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

from ownloop.cli.form import NOTHING, Field, Misfit, field_of, fields_of, read, with_default
from ownloop.cli.harmless import revealed
from ownloop.cli.output import Output
from ownloop.cli.prompt import Prompt
from ownloop.cli.request_card import RequestCard, indented
from ownloop.core.messages import Json
from ownloop.core.operations import Asked
from ownloop.core.schema import problems


class Instead(Enum):
    """What may be said instead of an answer."""

    DECLINE = "/decline"
    BACK = "/back"
    LEAVE = "/leave"
    QUIT = "/quit"
    HELP = "/help"


HELP = (
    "/decline  give no answer; the agent goes on without one",
    "/back     to the field before",
    "/leave    leave the chat (/quit, Ctrl-D too)",
    "//        begins an answer that begins with /",
)


LONGEST_NAME = 30
"""Characters of a field's name before what is typed into it."""


class Question(RequestCard):
    """What a tool or an agent asks."""

    def __init__(self, output: Output, prompt: Prompt, request: Asked) -> None:
        super().__init__(output, prompt, request)
        self._schema = _value_schema(request)
        self._answered: dict[str, Any] = {}
        """What the fields were answered with, if the whole was not taken."""

    def show(self, where: str) -> None:
        text = question(self.request)
        self.head(revealed(text), where)
        if self.request.type and text != self.request.type:
            self.out.line(self.out.dim(f"    ({indented(revealed(self.request.type), '    ')})"))
        self.values(details(self.request))

    async def answer(self) -> Json:
        fields = fields_of(self._schema)
        if fields is None:
            return await self._one(field_of("your answer", self._schema, self._schema))
        self.say("Instead of an answer: /decline, /back to the field before, or /leave it open.")
        while True:
            if not await self._all(fields):
                return {"declined": True}
            found = problems(self._schema, self._answered)
            if not found:
                return {"value": self._answered}
            self.out.error("; ".join(found), "  ")

    async def _one(self, field: Field) -> Json:
        """Ask for a single value; an empty line is none, unless there is a default."""
        may_be_none = field.default is NOTHING
        self._describe(field, "")
        while True:
            text = await self.prompt.decide(f"  {field.name} {'(empty: none) ' if may_be_none else ''}› ")
            if may_be_none and not text.strip():
                return {"declined": True}
            try:
                value = _read(field, text)
            except Misfit as misfit:
                self.out.error(str(misfit), "  ")
                continue
            if value is Instead.DECLINE:
                return {"declined": True}
            if value is Instead.HELP:
                self._help()
            elif value is not Instead.BACK:
                return {"value": value}

    async def _all(self, fields: list[Field]) -> bool:
        """Ask for each field; return False if the whole is declined."""
        place = 0
        while place < len(fields):
            value = await self._field(fields[place])
            if value is Instead.DECLINE:
                return False
            if value is Instead.BACK:
                place = max(place - 1, 0)
                continue
            self._answered.pop(fields[place].name, None)
            if value is not NOTHING:
                self._answered[fields[place].name] = value
            place += 1
        return True

    async def _field(self, field: Field) -> Any:
        """Return the value of a field, NOTHING, or what was said instead of it."""
        if field.name in self._answered:
            field = with_default(field, self._answered[field.name])
        name = " ".join(revealed(field.title or field.name).split())[:LONGEST_NAME]
        self.out.line()
        self._describe(field, name)
        text = ""
        while True:
            text = await self.prompt.decide(f"  {name} › ", text)
            try:
                value = _read(field, text)
            except Misfit as misfit:
                self.out.error(str(misfit), "  ")
                continue
            if value is not Instead.HELP:
                return value
            self._help()
            text = ""

    def _help(self) -> None:
        for line in HELP:
            self.out.line("  " + line)

    def _describe(self, field: Field, name: str) -> None:
        """Show what may be typed."""
        if name or field.kind not in ("text", "any"):
            self.out.prose(f"{name}: {revealed(field.words)}" if name else revealed(field.words), "  ")
        if field.description:
            self.out.line("    " + indented(revealed(field.description), "    "))
        for number, choice in enumerate(field.choices, 1):
            mark = f"{number}  " if field.is_numbered else ""
            self.out.line("    " + mark + indented(revealed(choice.title), "       "))


def _read(field: Field, text: str) -> Any:
    """Return what was typed, or what was said instead. Raises Misfit, and EOFError for who leaves it open."""
    said = text.strip()
    for instead in Instead:
        if said.lower() == instead.value:
            if instead in (Instead.LEAVE, Instead.QUIT):
                raise EOFError
            return instead
    return read(field, said[1:] if said.startswith("//") else said)


def _value_schema(request: Asked) -> Json:
    """Return the schema of the value that is asked for, with the definitions it refers to."""
    found: Any = request.schema.get("properties", {}).get("value")
    schema = cast("Json", found) if isinstance(found, dict) else {}
    return {**schema, "$defs": request.schema["$defs"]} if "$defs" in request.schema else schema


def question(request: Asked) -> str:
    """Return the question itself, as far as it is one sentence."""
    if isinstance(request.data, str) and request.data:
        return request.data
    data = cast("Json", request.data) if isinstance(request.data, dict) else {}
    return str(data.get("question") or request.type or request.purpose)


def details(request: Asked) -> Any:
    """Return what is asked beside the question itself."""
    if isinstance(request.data, dict):
        known = {"question", "tool", "call_id"} if request.call_id is not None else {"question"}
        return {name: value for name, value in cast("Json", request.data).items() if name not in known}
    return None if isinstance(request.data, str) else request.data
