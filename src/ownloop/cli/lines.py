"""`--json`: one JSON object per line, for programs. The lines are described in docs/terminal.md.

An event is a line of its own: the object of `projections.native`, with its cursor in front.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TextIO, cast

from ownloop.cli.harmless import harmless_json
from ownloop.cli.output import Output
from ownloop.cli.screen import Screen
from ownloop.core.codec import dumps
from ownloop.core.events import Event
from ownloop.core.messages import Json
from ownloop.projections.native import encode_bytes


class Lines:
    """Writes lines, each at once."""

    def __init__(self, file: TextIO) -> None:
        self._file = file.buffer

    def event(self, cursor: str, event: Event) -> None:
        """Write an event; `cursor` is the place after it."""
        self._line(b'{"cursor":"' + cursor.encode() + b'",' + encode_bytes(event)[1:])

    def object(self, kind: str, **values: Any) -> None:
        """Write an object of ours; values that are None are left out."""
        kept = {name: plain(value) for name, value in values.items() if value is not None}
        self._line(dumps({"kind": kind, **kept}).encode())

    def _line(self, line: bytes) -> None:
        if self._file.isatty():
            line = harmless_json(line.decode()).encode()
        self._file.write(line + b"\n")
        self._file.flush()


class LineScreen(Screen):
    """Shows the events of a session to a program; what is said beside them goes to `output`."""

    def __init__(self, output: Output, lines: Lines, cursor: Callable[[], str]) -> None:
        super().__init__(output)
        self._lines = lines
        self._cursor = cursor

    def show(self, event: Event) -> None:
        self._lines.event(self._cursor(), event)


def plain(value: Any) -> Any:
    """Return a value of the operations as JSON, without what is None."""
    if is_dataclass(value):
        found: Json = {f.name: plain(getattr(value, f.name)) for f in fields(value)}
        return {name: inner for name, inner in found.items() if inner is not None}
    return [plain(inner) for inner in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value
