"""Where words go: what the model says to stdout, and what is said about it beside that. Knows no events.

Invariant: the model's text is never coloured and never mixed with notes in a pipe, so that `ownloop run f "…" | cat` is
the answer and nothing else. On a terminal both stand below each other in one place.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from typing import TextIO

from ownloop.cli.harmless import harmless

WIDEST = 100
"""Longer lines of prose are hard to read, however wide the window is."""


class _Stream:
    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.at_line_start = True

    def write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()
        self.at_line_start = text.endswith("\n")


class Output:
    """Text and notes. On a terminal notes go to stdout too, else to stderr.

    Colours and the waiting mark only where notes go to a terminal that is not `dumb`; colours not with NO_COLOR.
    """

    def __init__(self, text: TextIO | None = None, notes: TextIO | None = None) -> None:
        said: TextIO = text or sys.stdout or _nowhere()
        self._text = _Stream(said)
        self._notes = self._text if said.isatty() or notes is said else _Stream(notes or sys.stderr or _nowhere())
        self.is_terminal = self._notes.file.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self.is_terminal and not os.environ.get("NO_COLOR")
        self._waiting = ""
        self._blank = True
        self._told: set[str] = set()

    # --- what the model says ---

    def text(self, text: str) -> None:
        """Write a piece of the model's text."""
        self._erase_waiting()
        if not self._notes.at_line_start and self._notes is not self._text:
            self._notes.write("\n")
        self._text.write(harmless(text))
        self._blank = False

    def end_text(self) -> None:
        """End the line that the model's text stands in, if it stands in one."""
        self._erase_waiting()
        if not self._text.at_line_start:
            self._text.write("\n")

    # --- what is said about it ---

    def line(self, text: str = "") -> None:
        """Write lines of our own, below whatever stands there."""
        self._erase_waiting()
        if not self._notes.at_line_start:
            self._notes.write("\n")
        self._notes.write(text + "\n")
        self._blank = not text

    def was_typed(self) -> None:
        """Take note that the line above is a person's."""
        self._blank = False

    def end_paragraph(self) -> None:
        """Leave a line free on a terminal, below whatever stands there."""
        if self.is_terminal and not self._blank:
            self.line()

    def prose(self, text: str, indent: str = "") -> None:
        """Write dim lines of our own, broken between words; not at no-break spaces, which are shown as plain ones."""
        for line in text.split("\n"):
            wrapped = textwrap.wrap(
                line, self.width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
            for part in wrapped or [""]:
                self.line(self.dim(part.replace("\u00a0", " ")))

    def error(self, text: str) -> None:
        self.line(self.style("31", "error: ") + harmless(text))

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

    def waiting(self, text: str) -> None:
        """Say on a terminal what is being waited for, until something else is shown."""
        if not self.is_terminal:
            return
        text = _shortened(harmless(text), self.width)
        if text == self._waiting:
            return
        self._erase_waiting()
        if not self._notes.at_line_start:
            self._notes.write("\n")
        self._notes.file.write(self.dim(text))
        self._notes.file.flush()
        self._waiting = text

    def progress(self, text: str) -> None:
        """Say how far something is, each text in place of the last.

        Where lines cannot be replaced, texts that differ only in their numbers are said once.
        """
        kind = re.sub(r"\d+( s)?", "", text).rstrip()
        if self.is_terminal:
            self.waiting(text)
        elif kind not in self._told:
            self._told.add(kind)
            self.line(harmless(text))

    def end_waiting(self) -> None:
        self._erase_waiting()

    def _erase_waiting(self) -> None:
        if self._waiting:
            self._notes.file.write("\r\x1b[K")
            self._notes.file.flush()
            self._waiting = ""


def _nowhere() -> TextIO:
    """Return what stands for a stream that our caller closed."""
    return io.StringIO()


def _shortened(text: str, width: int) -> str:
    """Return `text` without its middle, so that it fits one line: its end holds the numbers."""
    text = text.replace("\n", " ")
    if len(text) <= width:
        return text
    kept = width - 1
    end = min(kept // 2 + 4, kept)
    return text[: kept - end] + "…" + text[len(text) - end :]
