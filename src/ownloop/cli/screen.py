"""What the terminal shows of a session: a fold of its events into lines. Knows no prompt and no service.

Text of models and tools is data: control characters in it are shown, never obeyed.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, TextIO

from ownloop.core.codec import dumps
from ownloop.core.events import (
    BlockEnded,
    BlockStarted,
    CancelRequested,
    Delta,
    Event,
    Fact,
    InputAccepted,
    Note,
    Progress,
    ResponseEnded,
    RunEnded,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import TextBlock, ToolCallBlock, text_of

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 controls but tab and line feed, and the marks that turn text around."""
LONGEST_LINE = 2000
"""Of a tool's result; the journal keeps it whole."""


def harmless(text: str) -> str:
    """Return `text` with every character that a terminal would obey made visible."""
    return _CONTROL.sub(lambda match: _visible(match[0]), text)


def _visible(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<{code:04x}>"


class Screen:
    """Shows events on a terminal or in a pipe. Colours and the waiting mark only on a terminal without NO_COLOR."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self.is_terminal = self._out.isatty()
        self._colours = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._at_line_start = True
        self._waiting = False
        self._blocks: dict[tuple[int, int], BlockStarted] = {}
        self._shown: set[int] = set()
        self._calls: dict[str, ToolCallBlock] = {}

    # --- writing ---

    def style(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text

    def dim(self, text: str) -> str:
        return self.style("2", text)

    def bold(self, text: str) -> str:
        return self.style("1", text)

    def line(self, text: str = "") -> None:
        """Write one line of our own, below whatever stands there."""
        self._erase_waiting()
        if not self._at_line_start:
            self._write("\n")
        self._write(text + "\n")

    def error(self, text: str) -> None:
        self.line(self.style("31", "error: ") + harmless(text))

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._at_line_start = text.endswith("\n")

    def waiting(self, text: str = "reading …") -> None:
        """Say on a terminal that an answer is on its way, until something else is shown."""
        if self.is_terminal and not self._waiting:
            if not self._at_line_start:
                self._write("\n")
            self._out.write(self.dim(text))
            self._out.flush()
            self._waiting = True

    def progress(self, text: str) -> None:
        """Say on a terminal what takes its time, each text in place of the last; '' ends it."""
        if self.is_terminal:
            self._erase_waiting()
            if text:
                self.waiting(text)

    def _erase_waiting(self) -> None:
        if self._waiting:
            self._out.write("\r\x1b[K")
            self._waiting = False

    def _stream(self, text: str) -> None:
        self._erase_waiting()
        self._write(harmless(text))

    # --- events ---

    def show(self, event: Event) -> None:
        """Show one event; unknown ones are nothing to look at."""
        match event:
            case BlockStarted(stream, block):
                self._blocks[(stream, block)] = event
                self._shown.add(stream)
            case Delta(stream, block, text):
                self._delta(self._blocks.get((stream, block)), text)
            case BlockEnded(stream, block):
                started = self._blocks.pop((stream, block), None)
                if started is not None and started.type == "text" and not self._at_line_start:
                    self._write("\n")
            case Progress(data=data):
                self.line(self.dim(f"  … {harmless(data if isinstance(data, str) else dumps(data))}"))
            case Fact():
                self._fact(event)

    def _delta(self, started: BlockStarted | None, text: str) -> None:
        if started is not None and started.type == "text":
            self._stream(text)
        elif started is not None and started.type == "tool_call":
            self.waiting(f"calling {harmless(started.name or '')} …")

    def _fact(self, fact: Fact) -> None:
        match fact.body:
            case TurnStarted():
                self.waiting()
            case ResponseEnded() as body:
                self._response(body)
            case ToolStarted(call_id):
                call = self._calls.get(call_id)
                if call is not None:
                    self.waiting(f"running {harmless(call.name)} …")
            case ToolEnded() as body:
                self._tool_ended(body)
            case RunEnded() as body:
                self._run_ended(body)
            case CancelRequested(error=None):
                self.line(self.dim("cancelling …"))
            case Note(level="warning" | "error", data=data):
                self.line(self.dim(harmless(str(_note_text(data)))))
            case _:
                pass

    def _response(self, body: ResponseEnded) -> None:
        self._erase_waiting()
        if not self._at_line_start:
            self._write("\n")
        for block in body.blocks:
            if isinstance(block, ToolCallBlock) and body.status in ("complete", "cut"):
                self._calls[block.call_id] = block
                self.line(self.style("36", "→ ") + self.bold(harmless(block.name)) + " " + harmless(dumps(block.input)))
        if body.status == "failed" and body.error is not None:
            self.error(f"{body.error.message} ({body.error.code})")
        elif body.status == "abandoned":
            self.line(self.dim("(the answer above broke off; asking again)"))

    def _tool_ended(self, body: ToolEnded) -> None:
        words = text_of(body.blocks) or ", ".join(b.media_type for b in body.blocks if not isinstance(b, TextBlock))
        if len(words) > LONGEST_LINE:
            words = words[:LONGEST_LINE] + f" … ({len(words) - LONGEST_LINE:,} more characters)"
        mark = self.style("32", "← ") if body.status == "ok" else self.style("33", f"← {body.status}: ")
        self.line(mark + harmless(words))

    def _run_ended(self, body: RunEnded) -> None:
        if body.outcome == "failed" and body.error is not None:
            self.error(body.error.message)
        elif body.outcome != "completed":
            self.line(self.dim(f"({body.outcome.replace('_', ' ')})"))
        else:
            self._erase_waiting()

    def history(self, facts: list[Fact]) -> None:
        """Show what was said in a session so far."""
        for fact in facts:
            match fact.body:
                case InputAccepted(blocks=blocks):
                    self.line(self.bold("you › ") + harmless(text_of(blocks)))
                case ResponseEnded(status="complete" | "cut") as body:
                    text = text_of(body.blocks)
                    if text:
                        self.line(harmless(text))
                    self._response(body)
                case ToolEnded() as body:
                    self._tool_ended(body)
                case _:
                    pass


def _note_text(data: Any) -> Any:
    return data.get("text") or data.get("code") or dumps(data) if isinstance(data, dict) else data  # pyright: ignore
