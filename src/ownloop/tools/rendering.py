"""How what a tool returned becomes content blocks. Pure; used by `executor`.

Its one invariant: a value is rendered by the table, or `render` raises. Nothing else ever enters a history.

| returned                                             | the model gets                                                |
|------------------------------------------------------|---------------------------------------------------------------|
| None                                                 | "Done."                                                       |
| str                                                  | the text as it is                                             |
| bool, int, float, dict, list, tuple                  | compact JSON                                                  |
| dataclass, pydantic model, named tuple               | JSON of its fields (a named tuple's is a list)                |
| enum                                                 | JSON of its value                                             |
| set, frozenset, deque, dict views, other mappings    | JSON; sets are sorted where they can be                       |
| date, time, datetime                                 | ISO 8601                                                      |
| Decimal, Fraction, UUID, path, IP address, timedelta | its `str()`                                                   |
| other numbers (numpy's scalars)                      | int or float                                                  |
| `Image`, bytes that are a PNG, JPEG, GIF or WebP     | an image block, the bytes in `ToolResult.blobs`               |
| other bytes; any bytes inside JSON                   | "<1,234 bytes>"                                               |
| list or tuple with an `Image` in it                  | one block per item, each by this table                        |
| generator, coroutine, function, class, NaN, a cycle, | an error result that says that the tool ran, and names the    |
| any other object                                     | tool and the type: it may be a driver's object, or endless    |

Dict keys that JSON does not know are written as text by the same table. In every text, what no provider takes (NUL,
lone surrogates) is replaced, registered secrets are redacted, and what is beyond the cap is cut off with a marker.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, MappingView, Set
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, time
from enum import Enum
from numbers import Integral, Real
from typing import Any, cast

from ownloop.core.codec import dumps
from ownloop.core.messages import BlobBlock, ResultContent, TextBlock
from ownloop.core.text import clean_text
from ownloop.tools.image import Image, image_type

Blobs = dict[str, tuple[str, bytes]]

_WRITTEN_AS_TEXT = frozenset(
    {
        "datetime.timedelta",
        "decimal.Decimal",
        "fractions.Fraction",
        "ipaddress._IPAddressBase",
        "pathlib.PurePath",
        "uuid.UUID",
    }
)
"""Types whose `str()` is their one written form. By name, so that nothing is imported for them."""

FULL_COPY_BYTES = 10_000_000
"""A longer text is not kept in full: a store is no place for a dump that nobody asked for."""


class RenderError(TypeError):
    """This value has no rendering; the message goes on after "it returned …"."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A result's content, and the bytes of its blob blocks by digest."""

    blocks: tuple[ResultContent, ...]
    blobs: Blobs = field(default_factory=dict[str, tuple[str, bytes]])
    notes: tuple[str, ...] = ()


def render(value: object) -> Rendered:
    """Turn what a tool returned into blocks, by the table of this module.

    Raises:
        RenderError: the table has no row for it.
    """
    blobs: Blobs = {}
    items: list[object] = [value]
    if isinstance(value, list | tuple):
        parts = cast("list[object] | tuple[object, ...]", value)
        if any(isinstance(part, Image) for part in parts):
            items = list(parts)
    return Rendered(tuple(_block(item, blobs) for item in items), blobs)


def _block(value: object, blobs: Blobs) -> ResultContent:
    if isinstance(value, Image):
        return _blob(value.data, value.media_type, blobs)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(cast("bytes", value))
        media_type = image_type(data)
        return TextBlock(_size(data)) if media_type is None else _blob(data, media_type, blobs)
    return TextBlock(_text(value))


def _blob(data: bytes, media_type: str, blobs: Blobs) -> BlobBlock:
    digest = hashlib.sha256(data).hexdigest()
    blobs[digest] = (media_type, data)
    return BlobBlock(digest, media_type, len(data))


def _size(data: bytes) -> str:
    return f"<{memoryview(data).nbytes:,} bytes>"


def _text(value: object) -> str:
    if value is None:
        return "Done."
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may write itself otherwise, or not at all
    try:
        return dumps(value)  # plain JSON, by far the most usual
    except TypeError:
        pass
    except (ValueError, RecursionError) as error:
        raise RenderError(f"{_kind(value)} that is not JSON: {error}") from error
    try:
        plain = _plain(value)
        return plain if isinstance(plain, str) else dumps(plain)
    except (ValueError, RecursionError) as error:
        raise RenderError(f"{_kind(value)} that is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Return `value` as JSON values. Raises RenderError for what the table does not know."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | deque | MappingView) and not isinstance(value, Set):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, Set):
        return [_plain(item) for item in _in_order(cast("Set[Any]", value))]
    if isinstance(value, bytes | bytearray | memoryview):
        return _size(cast("bytes", value))
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, type):
        raise RenderError(f"the class {value.__qualname__}, and only values can be shown to a model")
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    cls: type = type(value)  # pyright: ignore[reportUnknownVariableType]
    if hasattr(cls, "__pydantic_serializer__") and hasattr(cls, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    if any(f"{base.__module__}.{base.__qualname__}" in _WRITTEN_AS_TEXT for base in cls.__mro__):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise RenderError(
        f"{_kind(value)}, which cannot be shown to a model; "
        "return text, JSON values, a dataclass, a pydantic model or an Image"
    )


def _key(key: Any) -> Any:
    if isinstance(key, str | int | float | bool) or key is None:
        return key
    plain = _plain(key)
    return plain if isinstance(plain, str | int | float) else dumps(plain)


def _in_order(items: Set[Any]) -> list[Any]:
    """Sort a set, whose own order changes from process to process; as it comes where that cannot be."""
    try:
        return sorted(items)
    except TypeError:
        return list(items)


def _kind(value: object) -> str:
    name = type(value).__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def finish(rendered: Rendered, redact: Callable[[str], str], cap: int) -> Rendered:
    """Clean and redact every text, and cut what is beyond `cap` characters in all.

    The whole of a text that was cut stays fetchable: it is put among the blobs, and a note names it.
    """
    texts = [block.text for block in rendered.blocks if isinstance(block, TextBlock)]
    cleaned = [clean_text(text) for text in texts]
    notes = rendered.notes
    if cleaned != texts:
        notes += ("the output held characters that no provider takes; they were replaced",)
    redacted = [redact(text) for text in cleaned]
    blobs = rendered.blobs
    length = sum(map(len, redacted))
    if length <= cap:
        if redacted == texts:
            return Rendered(rendered.blocks, blobs, notes)
        left = iter(redacted)
        blocks = (TextBlock(next(left)) if isinstance(b, TextBlock) else b for b in rendered.blocks)
        return Rendered(tuple(blocks), blobs, notes)
    note = f"the output was cut at {cap:,} of {length:,} characters"
    whole = "\n".join(redacted).encode()
    if len(whole) <= FULL_COPY_BYTES:
        digest = hashlib.sha256(whole).hexdigest()
        blobs = {**blobs, digest: ("text/plain; charset=utf-8", whole)}
        note += f"; all of it is blob {digest}"
    return Rendered(_cut(rendered.blocks, redacted, length, cap), blobs, (*notes, note))


def _cut(blocks: tuple[ResultContent, ...], texts: list[str], length: int, cap: int) -> tuple[ResultContent, ...]:
    marker = f"\n[{length - cap:,} more characters were left out]"
    kept: list[ResultContent] = []
    left: int | None = cap
    remaining = iter(texts)
    for block in blocks:
        if not isinstance(block, TextBlock):
            kept.append(block)
            continue
        text = next(remaining)
        if left is None:
            continue
        if len(text) <= left:
            kept.append(TextBlock(text))
            left -= len(text)
        else:
            kept.append(TextBlock(text[:left] + marker))
            left = None
    return tuple(kept)
