"""Our own vocabulary: every event as one flat JSON object. Imported by the hub and by whoever shows events.

Nothing is lost: facts and live events keep all their fields under their own names. A field that is None is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, cast

import orjson

from ownloop.core.codec import dumps
from ownloop.core.events import Delta, Event, Fact
from ownloop.core.messages import Json


def encode(event: Event) -> Json:
    """Return `{"kind", "seq", "at_ms", "run_id"?, …body}` for a fact, `{"kind", "stream", …}` for a live event."""
    if type(event) is Delta:  # the hot path
        return {"kind": "delta", "stream": event.stream, "block": event.block, "text": event.text}
    if isinstance(event, Fact):
        head: Json = {"kind": event.body.kind, "seq": event.seq, "at_ms": event.at_ms}
        if event.run_id is not None:
            head["run_id"] = event.run_id
        return head | _object(event.body)
    return {"kind": event.kind, **_object(event)}


def encode_bytes(event: Event) -> bytes:
    """Return the JSON text of `encode(event)`, in UTF-8."""
    value = encode(event)
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer of more than 64 bits, which orjson does not write
        return dumps(value).encode()


@cache
def _fields(cls: type[object]) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple((f.name, attrgetter(f.name)) for f in fields(cast("type[Any]", cls)))


def _object(value: object) -> Json:
    return {name: _plain(item) for name, get in _fields(type(value)) if (item := get(value)) is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | dict):  # a dict is JSON already, and its nulls may mean something
        return cast("Any", value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return _object(value) if is_dataclass(value) else value
