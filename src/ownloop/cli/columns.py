"""Text in columns of a terminal: how wide it is there, and how it is cut, wrapped and filled up. Pure.

Widths are those of the widest terminal: one that does not join an emoji shows its parts beside each other, and a line
that is a column short is better than one that is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from wcwidth import wcwidth

GAP = 2
"""Columns between the columns of a table."""
_EMOJI_STYLE = "\ufe0f"
"""Asks for the coloured form of a sign, which is two columns wide."""


def width(text: str) -> int:
    """Return how many columns a line takes."""
    return sum(_char_widths(text))


def _char_widths(text: str) -> Iterator[int]:
    before = 0
    for char in text:
        columns = 1 if char == _EMOJI_STYLE and before == 1 else _char_width(char)
        yield columns
        before = columns


@cache
def _char_width(char: str) -> int:
    return max(wcwidth(char), 0)


def cut(text: str, columns: int) -> str:
    """Return `text` as one line of at most `columns`; what is left out shows as `…`."""
    text = " ".join(text.split())
    if width(text) <= columns:
        return text
    return text[: _fitting(text, columns - 1)].rstrip() + "…" if columns > 0 else ""


def _fitting(text: str, columns: int) -> int:
    """Return how many characters of `text` fit, no letter without its accents."""
    taken = 0
    for end, more in enumerate(_char_widths(text)):
        taken += more
        if taken > columns:
            return end
    return len(text)


def wrapped(text: str, columns: int) -> list[str]:
    """Return `text` as lines of at most `columns`, broken between words; words that are too long are broken inside."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if width(longer) <= columns:
                line = longer
                continue
            if line:
                lines.append(line)
            line = word
            while width(line) > columns:
                end = max(_fitting(line, columns), 1)
                lines.append(line[:end])
                line = line[end:]
        lines.append(line)
    return lines


def filled(text: str, columns: int) -> str:
    """Return `text` with spaces behind it, `columns` wide."""
    return text + " " * (columns - width(text))


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column of a table."""
    return [max(map(width, column)) for column in zip(*rows, strict=True)]
