"""Check JSON values against JSON schemas, with problems worded for the person or model who sent the value."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ownloop.core.codec import canonical, loads
from ownloop.core.messages import Json

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_PROBLEMS = 10
"""More do not help anybody to mend a value."""


@lru_cache(maxsize=512)
def _validator(text: str) -> Validator:
    # Imported when the first value is checked: defining an agent does not need it.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    schema = loads(text)
    # With a registry of its own: the default one would fetch whatever address a schema refers to.
    return validator_for(schema, default=Draft202012Validator)(schema, registry=REGISTRY)


def check_schema(schema: Json) -> str | None:
    """Return what is wrong with `schema` itself, or None."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        return error.message
    return None


def problems(schema: Json, value: Any) -> list[str]:
    """Return what is wrong with `value`, one sentence each, the place first; empty if it fits.

    Nothing fits a schema that refers to what is not in it, or to itself without end. Nothing is fetched.
    """
    from referencing.exceptions import Unresolvable

    found: list[str] = []
    try:
        for error in _validator(canonical(schema)).iter_errors(value):
            path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path).lstrip(".")
            found.append(f"{path}: {_word(error)}" if path else _word(error))
            if len(found) == MAX_PROBLEMS:
                break
    except Unresolvable as error:
        found.append(f"the schema refers to {error.ref!r}, which is not in it")
    except RecursionError:
        found.append("the schema refers to itself without end")
    return found


def _word(error: Any) -> str:
    message = str(error.message)
    return message if len(message) <= 300 else message[:300] + "…"
