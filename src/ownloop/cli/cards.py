"""Tool calls on the screen: one look for a call through its whole life. Used by `screen`.

```
→ refund {"order": "A1"}              it grows while the model writes it; without a terminal it comes as a whole
running refund … 3 s  asking the bank   one line, written anew, only on a terminal
← Refunded 50 EUR.                    or `← refund was denied: too much`
```

Nothing that stands there is drawn anew, so that it survives a narrow window and one that changes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ownloop.cli.columns import width, wrapped
from ownloop.cli.harmless import harmless
from ownloop.cli.output import Output
from ownloop.core.codec import dumps
from ownloop.core.events import ToolEnded
from ownloop.core.messages import Json, TextBlock, ToolCallBlock, text_of
from ownloop.core.results import DENIED, NOT_RUN

LONGEST_ARGUMENTS = 600
"""Characters shown of a call's arguments; who is asked to approve them sees them all."""
LONGEST_RESULT, MOST_LINES = 2000, 12
"""Characters and lines shown of a tool's result; the journal keeps it whole."""
LONG_MS = 1000
"""A tool that took less took no time."""
_STATUS = {
    "error": "failed",
    "denied": "was denied",
    "invalid": "was not called",
    "cancelled": "was cancelled",
    "timeout": "took too long",
    "unknown": "has an unknown outcome",
    "not_run": "was not run",
}
_BETWEEN_VALUES = re.compile(r"\s*\n\s*")
"""JSON has line breaks only between its values."""


@dataclass(slots=True)
class _Call:
    label: str
    input: Json
    has_siblings: bool = False
    """Whether its response holds other calls: then its result names it."""


class Cards:
    """Shows the calls of one session."""

    def __init__(self, output: Output) -> None:
        self._out = output
        self._calls: dict[str, _Call] = {}
        self._asked: dict[str, str] = {}
        self._running: dict[str, str] = {}
        self._streams: dict[int, str] = {}
        self._names: dict[int, Counter[str]] = {}
        self._written = 0
        self._label = ""

    # --- as the model writes it ---

    def begin(self, stream: int, name: str) -> None:
        """Show that the model begins to write a call."""
        self._label = self._labelled(stream, name)
        self._written = 0
        if self._out.is_terminal:
            self._out.end_line()
            self._out.grow(self._head(self._label))

    def write(self, text: str) -> None:
        """Show more of the arguments."""
        if not self._out.is_terminal:
            return
        room = LONGEST_ARGUMENTS - self._written
        self._written += len(text)
        if room > 0:
            self._out.grow(self._out.dim(harmless(_BETWEEN_VALUES.sub(" ", text[:room]))))
        if self._written > LONGEST_ARGUMENTS:
            if room > 0:
                self._out.grow(self._out.dim(" …"))
            self._out.waiting(f"writing {self._label} …", f"{self._written:,} characters")

    def end(self) -> None:
        """Show that the arguments are complete."""
        if not self._out.is_terminal:
            return
        if self._written > LONGEST_ARGUMENTS:
            self._out.line(self._out.dim(f"  ({self._written - LONGEST_ARGUMENTS:,} more characters)"))
        self._out.end_line()

    def proposed(self, stream: int, calls: list[ToolCallBlock], *, are_shown: bool) -> None:
        """Take the calls of a response that is complete, and show those that were not as they were written."""
        names: Counter[str] = Counter()
        for call in calls:
            names[call.name] += 1
            label = _numbered(call.name, names[call.name])
            self._calls[call.call_id] = _Call(label, call.input, len(calls) > 1)
            if not (are_shown and self._out.is_terminal):
                self._show(call.call_id)
        self._names.pop(stream, None)

    # --- what becomes of it ---

    def asked(self, request_id: str, call_id: str) -> None:
        """Take note that a person is asked about a call."""
        self._asked[request_id] = call_id

    def resolved(self, request_id: str, edited: Json | None) -> None:
        """Show what a person made of a call."""
        call = self._calls.get(self._asked.pop(request_id, ""))
        if call is not None and edited is not None:
            call.input = edited
            self._line(call, "  (as edited)")

    def started(self, stream: int, call_id: str, attempt: int) -> None:
        """Show that a call runs."""
        if attempt > 1:
            self._show(call_id, f"  (attempt {attempt})")
        self._running[call_id] = self._streams[stream] = self._of(call_id).label
        self._show_running()

    def progress(self, stream: int, data: Any) -> None:
        """Show what a running tool says of itself."""
        words = data if isinstance(data, str) else dumps(data)
        if self._out.is_terminal:
            self._out.waiting(f"running {self._streams.get(stream, 'it')} …", words)
        else:
            self._out.line(f"  … {harmless(words)}")

    def ended(self, body: ToolEnded) -> None:
        """Show what a call came to."""
        self._running.pop(body.call_id, None)
        out, call = self._out, self._of(body.call_id)
        words = text_of(body.blocks) or ", ".join(b.media_type for b in body.blocks if not isinstance(b, TextBlock))
        took = out.dim(f"  ({_duration(body.elapsed_ms)})") if body.elapsed_ms >= LONG_MS else ""
        if body.status == "ok":
            name = f"{harmless(call.label)}: " if call.has_siblings else ""
            out.line(self._laid_out("← ", "32", name + _folded(words)) + took)
        else:
            how, why = f"← {harmless(call.label)} {_STATUS[body.status]}", _why(words)
            out.line((self._laid_out(f"{how}: ", "33", _folded(why)) if why else out.style("33", how)) + took)
        self._show_running()

    def _show_running(self) -> None:
        if self._running:
            self._out.waiting(f"running {', '.join(self._running.values())} …")

    # --- its look ---

    def _of(self, call_id: str) -> _Call:
        return self._calls.get(call_id) or _Call("?", {})

    def _show(self, call_id: str, more: str = "") -> None:
        self._line(self._of(call_id), more)

    def _laid_out(self, mark: str, colour: str, words: str) -> str:
        """Return a result behind its mark. Its further lines are indented, so that they cannot look like ours."""
        first, *rest = (mark + words).split("\n")
        if self._out.is_terminal:
            columns = self._out.width
            if width(first) > columns:
                first, *more = _wrapped(first, columns - 2)
                rest = [*more, *rest]
            rest = [part for line in rest for part in _wrapped(line, columns - 2)]
        if first.startswith(mark):
            first = self._out.style(colour, mark) + first.removeprefix(mark)
        return "\n  ".join([first, *rest])

    def _line(self, call: _Call, more: str = "") -> None:
        text = dumps(call.input)
        if len(text) > LONGEST_ARGUMENTS:
            text, more = text[:LONGEST_ARGUMENTS], f" … ({len(text) - LONGEST_ARGUMENTS:,} more characters){more}"
        self._out.line(self._head(call.label) + self._out.dim(harmless(text) + more))

    def _head(self, label: str) -> str:
        return self._out.style("36", "→ ") + self._out.bold(harmless(label)) + " "

    def _labelled(self, stream: int, name: str) -> str:
        names = self._names.setdefault(stream, Counter())
        names[name] += 1
        return _numbered(name, names[name])


def _numbered(name: str, number: int) -> str:
    """Return what a call is called: the second of a response with the same name is `name #2`."""
    return name if number == 1 else f"{name} #{number}"


def _why(words: str) -> str:
    """Return what a result that is none says beyond its status, which the card names itself."""
    if words in (DENIED, NOT_RUN):
        return ""
    for status in (f"{DENIED} Reason: ", "Not run: ", "The outcome of this call is unknown: "):
        words = words.removeprefix(status)
    return words


def _folded(words: str) -> str:
    """Return the first lines of a tool's words."""
    kept = "\n".join(words[:LONGEST_RESULT].split("\n")[:MOST_LINES])
    more = len(words) - len(kept)
    return harmless(kept) + (f" … ({more:,} more characters)" if more else "")


def _wrapped(line: str, columns: int) -> list[str]:
    """Return a line as lines of at most `columns`, as far in as it is itself."""
    lead = " " * (len(line) - len(line.lstrip(" ")))
    return [lead + part for part in wrapped(line.lstrip(" "), max(columns - len(lead), 10))]


def beginning(words: str) -> str:
    """Return the beginning of a text that may be long."""
    if len(words) <= LONGEST_RESULT:
        return words
    return words[:LONGEST_RESULT] + f" … ({len(words) - LONGEST_RESULT:,} more characters)"


def _duration(elapsed_ms: int) -> str:
    seconds = elapsed_ms / 1000
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
