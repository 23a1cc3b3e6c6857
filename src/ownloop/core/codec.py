"""JSON in and out: canonical text and digests for values, the closed and versioned schema for facts.

Integers keep all their digits; NaN and infinities are refused, for no JSON reader elsewhere takes them.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from ownloop.errors import IllegalFactError, StoreNewerError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from ownloop.core.events import FactBody


def dumps(value: Any) -> str:
    """Return compact JSON; raises `ValueError` for NaN, infinities and anything that is not JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """Read JSON; raises `ValueError` also for NaN and infinities."""
    return json.loads(text, parse_constant=refuse, parse_float=finite)


def refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def finite(digits: str) -> float:
    """Read a float as JSON writes it; Python would make an infinity of 1e400."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


def canonical(value: Any) -> str:
    """Return the one text of a JSON value: keys sorted, no white space. Equal values give equal text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical text, in hex."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _adapter(kind: str) -> TypeAdapter[FactBody]:
    # pydantic costs a tenth of a second to import: whoever only defines an agent does not pay for it here.
    from pydantic import TypeAdapter

    from ownloop.core import events

    return TypeAdapter(events.FACTS[kind])


def dump_body(body: FactBody) -> str:
    """Return the JSON of a fact's body; its own fields that hold their default are left out.

    Raises:
        IllegalFactError: it could not be read back; a journal with such a line would be lost from there on.
    """
    text, _ = _dumped(body)
    return text


def as_read(body: FactBody) -> FactBody:
    """Return the body as its journal will give it back. Raises as `dump_body` does."""
    _, read = _dumped(body)
    return read


def _dumped(body: FactBody) -> tuple[str, FactBody]:
    told = {f.name for f in fields(body) if f.default is MISSING or getattr(body, f.name) != f.default}
    try:
        text = dumps(_adapter(body.kind).dump_python(body, mode="json", include=told, warnings="none"))
    except (TypeError, ValueError, RecursionError) as error:
        raise IllegalFactError(f"a fact of kind {body.kind!r} cannot be kept: {misfit(error)}") from error
    return text, load_body(body.kind, body.v, text)


def load_body(kind: str, v: int, text: str | bytes) -> FactBody:
    """Read a fact's body.

    Raises:
        StoreNewerError: the kind, or its version, is not known to this release.
        IllegalFactError: the text does not fit the kind's schema.
    """
    from ownloop.core import events

    cls = events.FACTS.get(kind)
    if cls is None or v > cls.v:
        raise StoreNewerError(
            f"fact kind {kind!r} version {v} was written by a newer ownloop; upgrade ownloop to read it"
        )
    try:
        return _adapter(kind).validate_json(text, strict=True, extra="forbid")
    except ValueError as error:
        raise IllegalFactError(f"a fact of kind {kind!r} does not fit its schema: {misfit(error)}") from None


def misfit(error: Exception) -> str:
    """Say where a value does not fit without repeating it: it may be a prompt or a secret."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return f"not JSON ({type(error).__name__})"
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc'])) or 'it'}: {problem['msg']}" for problem in found[:3])
