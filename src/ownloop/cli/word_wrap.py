"""Break the model's text between words while it streams. Pure; for terminals that can move their cursor.

A word is shown as it grows. One that turns out too long for its line is taken back and written below, in the same step
that brought the letter too much. Code and tables keep their lines, and so does a word that no line holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ownloop.cli.columns import width

TAB = 8
_MARKER = re.compile(r"[-*+•]|\d{1,3}[.)]")
"""Begins an item of a list; its further lines stand below its text."""
_FENCE = ("```", "~~~")
_JOINS = "\u200d"
_TONES = range(0x1F3FB, 0x1F400)
"""Skin tones: they belong to the sign before them."""


class WordWrap:
    """Text that arrives in pieces; any slicing shows the same."""

    def __init__(self) -> None:
        self._code = False
        self._begin_line()

    def _begin_line(self) -> None:
        self._column = 0
        self._lead = 0
        self._first = ""
        """The first word of the line: it says what the line is."""
        self._word = ""
        self._word_column = 0
        self._shown = 0
        """Columns of the word that are on the screen already."""
        self._is_first = True

    def begin_line(self) -> None:
        """Take note that others have ended the line."""
        self._begin_line()

    def feed(self, text: str, columns: int) -> str:
        """Return what is to be written for a piece of text, in lines of at most `columns`."""
        written = "".join(self._fed(text, columns))
        self._shown = self._column - self._word_column
        return written

    def _fed(self, text: str, columns: int) -> Iterator[str]:
        new = ""
        """The end of the word, which is not on the screen yet."""
        for sign in text:
            if sign == "\n":
                yield new + sign
                new = ""
                self._end_line()
                continue
            if sign in " \t":
                yield new + (sign if self._column < columns or self._is_kept else "")
                new = ""
                self._end_word(sign)
                continue
            size = width(sign)
            if self._is_apart(sign, size):
                yield new
                new = ""
                self._begin_word()
            if self._column + size > columns and self._may_break():
                yield self._taken_back() + "\n" + " " * self._indent + self._word
                new = ""
                self._word_column, self._is_first = self._indent, False
                self._column = self._indent + width(self._word)
            self._word += sign
            new += sign
            self._column += size
            if self._is_first:
                self._first += sign
        yield new

    def _end_line(self) -> None:
        if self._first.startswith(_FENCE):
            self._code = not self._code
        self._begin_line()

    def _end_word(self, space: str) -> None:
        if not self._first:
            self._lead += 1
        else:
            self._is_first = False
        self._column += 1 if space == " " else TAB - self._column % TAB
        self._begin_word()

    def _begin_word(self) -> None:
        self._word, self._word_column, self._shown = "", self._column, 0

    def _is_apart(self, sign: str, size: int) -> bool:
        """Whether a sign begins a word of its own: scripts without spaces may be broken before each wide sign."""
        if not self._word or self._word.endswith(_JOINS) or ord(sign) in _TONES or size == 0:
            return False
        return size == 2 or width(self._word[-1]) == 2

    @property
    def _is_kept(self) -> bool:
        return self._code or self._first.startswith(("|", *_FENCE))

    def _may_break(self) -> bool:
        return not self._is_kept and self._word_column > self._indent

    @property
    def _indent(self) -> int:
        """Columns before the further lines of what this line began."""
        marker = not self._is_first and _MARKER.fullmatch(self._first)
        return self._lead + (len(self._first) + 1 if marker else 0)

    def _taken_back(self) -> str:
        return f"\x1b[{self._shown}D\x1b[K" if self._shown else ""
