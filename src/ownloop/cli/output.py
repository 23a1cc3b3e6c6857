"""Where words go: what the model says to stdout, and what is said about it beside that. Knows no events.

Invariant: the model's text is never coloured and never mixed with notes in a pipe, so that `ownloop run f "…" | cat` is
the answer and nothing else. On a terminal both stand below each other in one place. What is written stays as it is, but
for the waiting mark, one line that never wraps, and for a word that turns out too long for its line.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from ownloop.cli.columns import GAP, cut, filled, width, widths, wrapped
from ownloop.cli.harmless import harmless
from ownloop.cli.word_wrap import WordWrap

WIDEST = 100
"""Longer lines of prose are hard to read, however wide the window is."""
SHOWN_FROM_S = 2
"""Shorter waits are none."""


class _Stream:
    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.at_line_start = True

    def write(self, text: str) -> None:
        if not text:
            return
        self.file.write(text)
        self.file.flush()
        self.at_line_start = text.endswith("\n")


@dataclass(slots=True)
class _Waiting:
    """What is being waited for."""

    what: str
    detail: str = ""
    since_s: float | None = None
    """None: how long it takes is not said."""
    drawn: str = ""


class Output:
    """Text and notes. On a terminal notes go to stdout too, else to stderr.

    Colours and the waiting mark only where notes go to a terminal that is not `dumb`; colours not with NO_COLOR.
    """

    def __init__(self, text: TextIO | None = None, notes: TextIO | None = None) -> None:
        said: TextIO = text or sys.stdout or _nowhere()
        self._text = _Stream(said)
        self._notes = self._text if said.isatty() or notes is said else _Stream(notes or sys.stderr or _nowhere())
        self.is_watched = self._notes.file.isatty()
        """Whether a person sees the notes as they come."""
        self.is_terminal = self.is_watched and os.environ.get("TERM") != "dumb"
        """Whether what stands there can be written anew."""
        self._colours = self.is_terminal and not os.environ.get("NO_COLOR")
        self._wrap = WordWrap() if self._text is self._notes and self.is_terminal else None
        self._waiting: _Waiting | None = None
        self._blank = True
        self._told: set[str] = set()

    # --- what the model says ---

    def text(self, text: str) -> None:
        """Write a piece of the model's text."""
        self._erase_waiting()
        if not self._notes.at_line_start and self._notes is not self._text:
            self._notes.write("\n")
        text = harmless(text)
        if self._wrap is not None:
            if self._text.at_line_start:
                self._wrap.begin_line()
            text = self._wrap.feed(text, self.width)
        self._text.write(text)
        self._blank = False

    def end_text(self) -> None:
        """End the line that the model's text stands in, if it stands in one."""
        self._erase_waiting()
        if not self._text.at_line_start:
            self._text.write("\n")

    # --- what is said about it ---

    def line(self, text: str = "") -> None:
        """Write lines of our own, below whatever stands there."""
        self.end_line()
        self._notes.write(text + "\n")
        self._blank = not text

    def grow(self, text: str) -> None:
        """Write more of a line of our own, until something else is written."""
        self._erase_waiting()
        self._notes.write(text)
        self._blank = False

    def end_line(self) -> None:
        """End the line that something of ours stands in, if it stands in one."""
        self._erase_waiting()
        if not self._notes.at_line_start:
            self._notes.write("\n")

    def was_typed(self) -> None:
        """Take note that the line above is a person's."""
        self._blank = False

    def end_paragraph(self) -> None:
        """Leave a line free on a terminal, below whatever stands there."""
        if self.is_terminal and not self._blank:
            self.line()

    def prose(self, text: str, indent: str = "") -> None:
        """Write dim lines of our own, broken between words; not at no-break spaces, which are shown as plain ones."""
        for part in wrapped(text, self.width - len(indent)):
            words = part.replace("\u00a0", " ").rstrip()
            self.line(self.dim(indent + words) if words else "")

    def table(self, rows: Sequence[Sequence[str]], indent: str = "") -> None:
        """Write dim rows of two columns; what is too long for the second is broken in it."""
        first = widths(rows)[0]
        room = self.width - len(indent) - first - GAP
        for left, right in rows:
            for number, part in enumerate(wrapped(right, max(room, 10))):
                self.line(self.dim(indent + filled("" if number else left, first + GAP) + part))

    def error(self, text: str, indent: str = "") -> None:
        """Say what went wrong: in one line of a pipe, which can be searched; in a block on a terminal."""
        text = harmless(text)
        if not self.is_watched:
            self.line("error: " + text)
            return
        first, *rest = wrapped("error: " + text, self.width - len(indent) - 2)
        self.line(indent + self.style("31", "error:") + first.removeprefix("error:"))
        for part in rest:
            self.line(f"{indent}  {part}".rstrip())

    def command(self, words: str, command: str) -> None:
        """Write what a person may type next. It is never broken, so that it can be copied."""
        self.line(self.dim(words))
        self.line("  " + harmless(command))

    @property
    def width(self) -> int:
        return max(10, min(shutil.get_terminal_size().columns - 1, WIDEST))

    def style(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours and text else text

    def dim(self, text: str) -> str:
        return self.style("2", text)

    def bold(self, text: str) -> str:
        return self.style("1", text)

    # --- what takes its time ---

    def waiting(self, what: str, detail: str = "") -> None:
        """Say on a terminal what is being waited for, until something else is shown; `tick` says how long."""
        same = self._waiting is not None and self._waiting.what == what
        self._wait(what, detail, self._waiting.since_s if self._waiting is not None and same else time.monotonic())

    def progress(self, text: str) -> None:
        """Say how far something is, each text in place of the last.

        Where lines cannot be replaced, texts that differ only in their numbers are said once.
        """
        kind = re.sub(r"\d+( s)?", "", text).rstrip()
        if self.is_terminal:
            self._wait(text, "", None)
        elif kind not in self._told:
            self._told.add(kind)
            self.line(harmless(text))

    def tick(self) -> None:
        """Say how long it has been waited."""
        if self._waiting is not None:
            self._draw(self._waiting)

    def end_waiting(self) -> None:
        self._erase_waiting()

    @contextmanager
    def aside(self) -> Generator[None]:
        """Take the waiting mark away and end the line, for a person to type; and put the mark back."""
        waiting = self._waiting
        self.end_line()
        try:
            yield
        finally:
            if waiting is not None and self._waiting is None:
                self._wait(waiting.what, waiting.detail, waiting.since_s)

    def _wait(self, what: str, detail: str, since_s: float | None) -> None:
        if not self.is_terminal:
            return
        if self._waiting is None:
            self.end_line()
            self._waiting = _Waiting(what)
        self._waiting.what, self._waiting.detail, self._waiting.since_s = what, detail, since_s
        self._draw(self._waiting)

    def _draw(self, waiting: _Waiting) -> None:
        took_s = 0 if waiting.since_s is None else int(time.monotonic() - waiting.since_s)
        words = f"{waiting.what} {took_s} s" if took_s >= SHOWN_FROM_S else waiting.what
        line = _without_middle(harmless(words), self.width)
        room = self.width - width(line) - 2
        if waiting.detail and room > 0:
            line += "  " + cut(harmless(waiting.detail), room)
        if line != waiting.drawn:
            self._notes.file.write(("\r\x1b[K" if waiting.drawn else "") + self.dim(line))
            self._notes.file.flush()
            waiting.drawn = line

    def _erase_waiting(self) -> None:
        if self._waiting is not None:
            self._notes.file.write("\r\x1b[K")
            self._notes.file.flush()
            self._waiting = None


def _nowhere() -> TextIO:
    """Return what stands for a stream that our caller closed."""
    return io.StringIO()


def last_words(text: str, columns: int) -> str:
    """Return the end of a text as one line of at most `columns`."""
    text = " ".join(text[-columns * 2 :].split())
    if width(text) <= columns:
        return text
    while width(text) > columns - 1:
        text = text[1:]
    return "…" + text


def _without_middle(text: str, columns: int) -> str:
    """Return `text` without its middle, so that it fits one line: its end holds the numbers."""
    text = " ".join(text.split())
    if width(text) <= columns:
        return text
    end = last_words(text, min(columns // 2 + 4, columns))
    return cut(text, columns - width(end) + 1).removesuffix("…") + end
