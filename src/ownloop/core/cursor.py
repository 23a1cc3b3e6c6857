"""The cursor: a place in a session's event stream, opaque to clients.

```
cursor = seq [ "~" stream "." units *( "," stream "." units ) ]
```
All facts up to `seq` were seen, and of each named open stream the first `units` (a delta counts its code points, every
other live event 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ownloop.errors import CursorError

_MARK = r"[1-9][0-9]{0,17}\.(?:0|[1-9][0-9]{0,17})"
_FORM = re.compile(rf"(0|[1-9][0-9]{{0,17}})(?:~({_MARK}(?:,{_MARK})*))?", re.ASCII)
MAX_LENGTH = 4096
"""A cursor names the streams open at one moment; far longer ones are not ours."""


@dataclass(frozen=True, slots=True)
class Cursor:
    seq: int = 0
    marks: Mapping[int, int] = field(default_factory=dict[int, int])
    """Open stream (the seq of its opening fact) to units seen."""

    def __str__(self) -> str:
        if not self.marks:
            return str(self.seq)
        return f"{self.seq}~" + ",".join(f"{stream}.{units}" for stream, units in sorted(self.marks.items()))


def parse_cursor(text: str) -> Cursor:
    """Read a cursor.

    Raises:
        CursorError: the text is no cursor.
    """
    match = _FORM.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise CursorError(
            f"{text[:80]!r} is not a cursor; pass one that an event carried, or leave it out to read from the start"
        )
    seq = int(match[1])
    marks: dict[int, int] = {}
    for mark in (match[2] or "").split(",") if match[2] else ():
        stream, units = mark.split(".")
        if int(stream) in marks or int(stream) > seq:
            raise CursorError(f"{text[:80]!r} is not a cursor: stream {stream} cannot stand in it")
        marks[int(stream)] = int(units)
    return Cursor(seq, marks)
