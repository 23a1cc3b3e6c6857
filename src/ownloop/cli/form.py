"""From a JSON schema to the fields of a form, and from what is typed to their values. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, cast

from ownloop.core.codec import loads
from ownloop.core.messages import Json
from ownloop.core.schema import problems

Kind: TypeAlias = Literal["text", "integer", "number", "boolean", "choice", "list", "object", "any"]

DEEPEST = 20
"""References that are followed; more is a circle."""
_KINDS: Final[dict[str, Kind]] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "array": "list",
    "object": "object",
}
_WORDS: Final[dict[Kind, str]] = {
    "text": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "yes or no",
    "choice": "one of these",
    "list": "a list, as JSON: […]",
    "object": "an object, as JSON: {…}",
    "any": "text, or JSON",
}
_BOOLEANS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class _Nothing(Enum):
    NOTHING = "nothing"


NOTHING: Final = _Nothing.NOTHING
"""The value of a field that was left out."""


class Misfit(ValueError):
    """What was typed does not fit the field; the text says why."""


@dataclass(frozen=True, slots=True)
class Choice:
    value: Any
    title: str


@dataclass(frozen=True, slots=True)
class Field:
    """One value that is asked for."""

    name: str
    kind: Kind
    schema: Json
    """With the definitions it refers to."""
    title: str = ""
    description: str = ""
    is_required: bool = True
    is_nullable: bool = False
    default: Any = NOTHING
    choices: tuple[Choice, ...] = ()
    limits: str = ""

    @property
    def is_numbered(self) -> bool:
        """Whether a choice may be named by its number; numbers are chosen by themselves."""
        return not any(isinstance(choice.value, int | float) for choice in self.choices)

    @property
    def words(self) -> str:
        """What may be typed, in a few words."""
        words = [_WORDS[self.kind]]
        if self.limits:
            words.append(self.limits)
        if self.default is not NOTHING:
            words.append(f"Enter: {shown(self.default)}")
        elif not self.is_required:
            words.append("may be left out")
        return ", ".join(words)


def fields_of(schema: Json) -> list[Field] | None:
    """Return the fields of an object's schema; None if it is no object, or one whose fields nobody knows."""
    whole = _resolved(schema, schema)
    properties = whole.get("properties")
    if _type(whole) != "object" or not isinstance(properties, dict) or not properties:
        return None
    wanted = whole.get("required")
    required: list[Any] = cast("list[Any]", wanted) if isinstance(wanted, list) else []
    named = cast("dict[str, Any]", properties).items()
    return [field_of(name, inner, schema, is_required=name in required) for name, inner in named]


def field_of(name: str, schema: Any, root: Json, *, is_required: bool = True) -> Field:
    """Return one field. `root` holds the definitions that `schema` refers to."""
    whole: Json = cast("Json", schema) if isinstance(schema, dict) else {}
    inner, is_nullable = _without_null(_resolved(whole, root), root)
    choices = _choices(inner, root)
    kind = "choice" if choices else _KINDS.get(_type(inner), "any")
    return Field(
        name,
        kind,
        {**whole, "$defs": root["$defs"]} if "$defs" in root else whole,
        str(inner.get("title") or ""),
        str(inner.get("description") or ""),
        is_required,
        is_nullable,
        inner.get("default", NOTHING),
        choices,
        _limits(inner),
    )


def with_default(field: Field, value: Any) -> Field:
    """Return a field whose default is what was answered before."""
    return replace(field, default=value)


def read(field: Field, text: str) -> Any:
    """Return the value that was typed, or NOTHING if it is left out. Raises Misfit."""
    text = text.strip()
    if not text:
        return _empty(field)
    value = _value(field, text)
    found = problems(field.schema, value)
    if found:
        raise Misfit("; ".join(found))
    return value


def shown(value: Any) -> str:
    """Return a value as it would be typed."""
    match value:
        case True:
            return "yes"
        case False:
            return "no"
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)


def _empty(field: Field) -> Any:
    if field.default is not NOTHING:
        return field.default
    if not field.is_required:
        return NOTHING
    if field.is_nullable:
        return None
    if field.kind == "text" and not problems(field.schema, ""):
        return ""
    raise Misfit("this one is needed")


def _value(field: Field, text: str) -> Any:
    match field.kind:
        case "text":
            return text
        case "boolean":
            if text.lower() not in _BOOLEANS:
                raise Misfit("answer y or n")
            return _BOOLEANS[text.lower()]
        case "choice":
            return _chosen(field, text)
        case "integer" | "number":
            return _number(field, text)
        case "list" | "object":
            return _json(text)
        case "any":
            try:
                return loads(text)
            except ValueError:
                return text


def _chosen(field: Field, text: str) -> Any:
    if field.is_numbered and text.isdecimal() and 1 <= int(text) <= len(field.choices):
        return field.choices[int(text) - 1].value
    for choice in field.choices:
        if text.lower() in (shown(choice.value).lower(), choice.title.lower()):
            return choice.value
    names = ", ".join(shown(choice.value) for choice in field.choices)
    raise Misfit(f"choose a number from 1 to {len(field.choices)}" if field.is_numbered else f"choose one of {names}")


def _number(field: Field, text: str) -> int | float:
    try:
        number = loads(text)
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise Misfit(f"this is not {_WORDS[field.kind]}")
    return number


def _json(text: str) -> Any:
    try:
        return loads(text)
    except ValueError as error:
        raise Misfit(f"this is not JSON: {error}") from error


# --- reading schemas -------------------------------------------------------------------------------------------------


def _resolved(schema: Json, root: Json) -> Json:
    """Return a schema with its own reference followed; what stands beside the reference counts too."""
    for _ in range(DEEPEST):
        name = schema.get("$ref")
        if not isinstance(name, str) or not name.startswith("#/"):
            return schema
        target: Any = root
        for part in name.removeprefix("#/").split("/"):
            target = cast("Json", target).get(part) if isinstance(target, dict) else None
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**cast("Json", target), **beside} if isinstance(target, dict) else beside
    return schema


def _without_null(schema: Json, root: Json) -> tuple[Json, bool]:
    """Return a schema without its null, and whether it had one."""
    found = schema.get("type")
    types: list[Any] = cast("list[Any]", found) if isinstance(found, list) else []
    others = [type for type in types if type != "null"]
    if types:
        return ({**schema, "type": others[0]} if len(others) == 1 else schema), "null" in types
    for key in ("anyOf", "oneOf"):
        parts = _parts(schema, key, root)
        rest = [part for part in parts if part.get("type") != "null"]
        if len(rest) == 1 < len(parts):
            beside = {name: value for name, value in schema.items() if name != key}
            return {**rest[0], **beside}, True
    return schema, False


def _parts(schema: Json, key: str, root: Json) -> list[Json]:
    found = schema.get(key)
    parts: list[Any] = cast("list[Any]", found) if isinstance(found, list) else []
    return [_resolved(cast("Json", part), root) for part in parts if isinstance(part, dict)]


def _choices(schema: Json, root: Json) -> tuple[Choice, ...]:
    values = schema.get("enum")
    if isinstance(values, list):
        return tuple(Choice(value, shown(value)) for value in cast("list[Any]", values))
    if "const" in schema:
        return (Choice(schema["const"], shown(schema["const"])),)
    for key in ("oneOf", "anyOf"):
        parts = _parts(schema, key, root)
        if parts and all("const" in part for part in parts):
            return tuple(Choice(part["const"], str(part.get("title") or shown(part["const"]))) for part in parts)
    return ()


def _type(schema: Json) -> str:
    type = schema.get("type")
    if isinstance(type, str):
        return type
    return "object" if isinstance(schema.get("properties"), dict) else ""


def _limits(schema: Json) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    words: list[str] = []
    if least is not None and most is not None:
        words.append(f"{least} to {most}")
    elif least is not None:
        words.append(f"at least {least}")
    elif most is not None:
        words.append(f"at most {most}")
    if shortest is not None and longest is not None:
        words.append(f"{shortest} to {longest} characters")
    elif longest is not None:
        words.append(f"at most {longest} characters")
    elif isinstance(shortest, int) and shortest > 1:
        words.append(f"at least {shortest} characters")
    if isinstance(schema.get("format"), str):
        words.append(str(schema["format"]))
    return ", ".join(words)
