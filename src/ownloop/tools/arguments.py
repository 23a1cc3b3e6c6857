"""A call's arguments: the JSON a model wrote, checked, mended where that loses nothing, and turned into Python values.

Used by `signature` and `executor`. Its one invariant: an input that is accepted fits the schema the model was shown;
where it had to be mended for that, the mended input is handed back, for it is what is journaled, shown and run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

from pydantic_core import ErrorDetails, SchemaValidator, ValidationError

from ownloop.core.codec import dumps, loads
from ownloop.core.messages import Json
from ownloop.core.schema import MAX_PROBLEMS, problems
from ownloop.core.text import clean_json


@dataclass(frozen=True, slots=True)
class Fitted:
    """An input against a tool's parameters."""

    input: Json
    """The effective input; the very object that was given where nothing had to be mended."""
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fresh keyword arguments, made for this one call."""
    problems: tuple[str, ...] = ()
    """Why it does not fit, in words for the model; then `values` is empty."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a tool takes."""

    schema: Json
    validator: SchemaValidator | None
    """Makes the function's own types; None where the author gave the schema, and the function takes plain JSON."""

    def fit(self, input: Json) -> Fitted:
        """Check `input`, and make keyword arguments of it. Never raises."""
        try:
            effective: Json = clean_json(input)
            values, found = self._read(effective)
            if found:
                # A slow look, but only at a call that is about to be refused.
                effective = _with_whole_numbers(decode_strings(self.schema, effective))
                values, found = self._read(effective)
        except (TypeError, ValueError, RecursionError) as error:
            return Fitted(input, problems=(f"it is not JSON: {error}",))
        return Fitted(input, problems=tuple(found[:MAX_PROBLEMS])) if found else Fitted(effective, values)

    def describe(self) -> str:
        """Write the parameters in one line: `order_id: string, note?: string | null`."""
        required = self.schema.get("required", ())
        forms: Json = self.schema.get("properties", {})
        return ", ".join(
            f"{name}{'' if name in required else '?'}: {_form(form, self.schema)}" for name, form in forms.items()
        )

    def _read(self, input: Json) -> tuple[dict[str, Any], list[str]]:
        """Return arguments, or problems. Strict: "5" is no number, as the schema says."""
        text = dumps(input)
        if self.validator is None:
            found = problems(self.schema, input)
            return ({} if found else loads(text)), found
        try:
            return self.validator.validate_json(text, strict=True), []
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            return {}, list(dict.fromkeys(_words(detail, input, self.schema) for detail in details))
        except Exception as error:  # noqa: BLE001 - a validator of the author's own raised what pydantic does not expect
            return {}, [f"it could not be checked: {type(error).__name__}"]


def decode_strings(schema: Json, value: Json) -> Json:
    """Return `value` with each string decoded, once, that stands where the schema wants another type and holds it.

    Models send objects and arrays as JSON text inside good JSON, at any depth, and numbers as text. A string that the
    schema allows, or that holds another type than it wants, stays. The same object if nothing was decoded.
    """
    # Imported when the first call does not fit: most agents never need it.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    validator = validator_for(schema, default=Draft202012Validator)(schema)
    while places := _places(validator, validator.iter_errors(value)):
        value = loads(dumps(value))
        for path, decoded in places.items():
            owner: Any = value
            for part in path[:-1]:
                owner = owner[part]
            owner[path[-1]] = decoded
    return value


def _places(validator: Any, errors: Iterable[Any]) -> dict[tuple[str | int, ...], Any]:
    found: dict[tuple[str | int, ...], Any] = {}
    for error in errors:
        if error.context:
            found = {**_places(validator, error.context), **found}
        elif error.validator == "type" and isinstance(error.instance, str) and error.absolute_path:
            wanted = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
            try:
                decoded = loads(error.instance)
            except (ValueError, RecursionError):
                continue
            if any(validator.is_type(decoded, name) for name in wanted):
                found.setdefault(tuple(error.absolute_path), clean_json(decoded))
    return found


def _with_whole_numbers(value: Any) -> Any:
    """Return `value` with 5.0 written as 5: one number to JSON schema, but not to pydantic."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in cast("Json", value).items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:  # beyond, floats are not exact
        return int(value)
    return value


def _words(detail: ErrorDetails, input: Json, schema: Json) -> str:
    """Say in one sentence what is wrong with an argument."""
    path, value = _place(detail, input)
    match detail["type"]:
        case "missing":
            return f"{path} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            known: list[str] = list(schema["properties"]) if len(detail["loc"]) == 1 else []
            close = get_close_matches(path, known, n=1)
            return f"{path} is unknown" + (f" (did you mean {close[0]}?)" if close else "")
        case _:
            message = detail["msg"].removeprefix("Value error, ")
            shown = "" if isinstance(value, dict | list) else f", not {_short(value)}"
            return f"{path}: {message[:1].lower()}{message[1:]}{shown}"


def _place(detail: ErrorDetails, input: Json) -> tuple[str, object]:
    """Return the path as a person writes it, and the value there.

    pydantic's path also names the branch of a union it was in; that is no place in the input, and left out.
    """
    path = ""
    value: object = input
    for index, part in enumerate(detail["loc"]):
        is_missing = detail["type"] == "missing" and index == len(detail["loc"]) - 1
        if isinstance(value, dict) and (part in value or is_missing):
            path += f".{part}" if path else str(part)
            value = cast("Json", value).get(str(part))  # a JSON object's keys are text
        elif isinstance(value, list) and isinstance(part, int):
            items = cast("list[object]", value)
            path += f"[{part}]"
            value = items[part] if part < len(items) else None
    return path or "it", cast("object", value)


def _short(value: object) -> str:
    text = dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _form(schema: Json | bool, root: Json) -> str:
    if isinstance(schema, bool):
        return "any"
    match schema:
        case {"enum": [*words]}:
            return " | ".join(dumps(word) for word in words)
        case {"const": word}:
            return dumps(word)
        case {"anyOf": [*forms]} | {"oneOf": [*forms]}:
            return " | ".join(dict.fromkeys(_form(form, root) for form in forms))
        case {"$ref": str(ref)}:
            target = root.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {})
            return _form(target, root) if "enum" in target or "const" in target else "object"
        case {"type": "array", "items": items}:
            return f"array of {_form(items, root)}"
        case {"type": [*names]}:
            return " | ".join(map(str, names))
        case {"type": str(name)}:
            return name
        case _:
            return "any"
