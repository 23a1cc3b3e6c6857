"""Clean the text that no provider and no JSON reader takes: lone surrogates and NUL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean_text(text: str) -> str:
    """Return `text` without NUL and lone surrogates; two halves of a pair are joined, the rest becomes U+FFFD."""
    if text.isascii():
        return text.replace("\0", REPLACEMENT) if "\0" in text else text
    try:
        text.encode()
    except UnicodeEncodeError:
        # A UTF-16 round trip joins surrogate halves that belong together, and marks the lone ones.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def clean_json(value: Any, clean: Callable[[str], str] = clean_text) -> Any:
    """Return a JSON value with every string in it cleaned; the same object if nothing had to change."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        source = cast("dict[str, Any]", value)
        cleaned = {clean(key): clean_json(item, clean) for key, item in source.items()}
        same = (
            all(a is b for a, b in zip(source.values(), cleaned.values(), strict=False))
            and cleaned.keys() == source.keys()
        )
        return source if same else cleaned
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        cleaned_items = [clean_json(item, clean) for item in items]
        return items if all(a is b for a, b in zip(items, cleaned_items, strict=True)) else cleaned_items
    return value


class TextCleaner:
    """Clean one text that arrives in pieces: half a surrogate pair is held back until its other half comes."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        if not self._held and piece.isascii():
            return piece.replace("\0", REPLACEMENT) if "\0" in piece else piece
        piece = self._held + piece
        self._held = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._held = piece[:-1], piece[-1]
        return clean_text(piece)

    def close(self) -> str:
        held, self._held = self._held, ""
        return clean_text(held)
