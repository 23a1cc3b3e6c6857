"""A list of sessions as it is shown: a table, lines for a narrow terminal, objects for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ownloop.cli.columns import GAP, cut, filled, width, widths
from ownloop.cli.harmless import harmless
from ownloop.cli.output import Output
from ownloop.cli.transcript import moment
from ownloop.core.messages import Json
from ownloop.core.ports import SessionInfo

SHORTEST_TITLE = 20
"""Columns that a title needs to say anything; with fewer, each session takes lines of its own."""
LONGEST_TITLE = 200
"""Columns of a title in a pipe, where there is no end of room: a message may be a book."""
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
_HEAD = ("session", "agent", "state", "used")
_SHOW, _RESUME = "ownloop sessions show ID", "ownloop sessions resume ID"
_COLOURS = {"waiting": "33", "unfinished": "33", "running": "32", "idle": "2", "closed": "2"}


@dataclass(frozen=True, slots=True)
class Listed:
    """A session of a list."""

    session: SessionInfo
    state: str
    """`running`, `waiting` (for a person), `unfinished` (its process is gone), `idle` or `closed`."""
    said: str
    """The first message."""

    @property
    def title(self) -> str:
        return harmless(self.session.title or self.said)

    def cells(self, session_id: str) -> tuple[str, str, str, str]:
        return (harmless(session_id), self.session.agent, self.state_in_words, ago(self.session.updated_ms))

    @property
    def state_in_words(self) -> str:
        if self.state != "waiting":
            return self.state
        return "waits for you" + (f": {self.session.open_requests}" if self.session.open_requests > 1 else "")

    def as_json(self) -> Json:
        session = self.session
        return {
            "session_id": session.session_id,
            "agent": session.agent,
            "state": self.state,
            "open_requests": session.open_requests,
            "title": session.title,
            "first_message": self.said,
            "updated_ms": session.updated_ms,
            "head_seq": session.head_seq,
            "live_run_id": session.live_run_id,
            "parent_id": session.parent_id,
        }


def state_of(session: SessionInfo, unattended: set[str]) -> str:
    """Return how a session stands, in one word; `unattended` are those that nobody drives on."""
    if session.closing:
        return "closed"
    if session.open_requests:
        return "waiting"
    if session.session_id in unattended:
        return "unfinished"
    return "running" if session.live_run_id is not None else "idle"


def show_table(output: Output, listed: Sequence[Listed], short: Mapping[str, str], there: int) -> None:
    """Write sessions as a table that fits the terminal; in a pipe with whole ids.

    `short` are ids as a terminal shows them, `there` says how many sessions there are.
    """
    if not output.is_watched:
        _show_whole(output, listed)
        return
    rows = [one.cells(short[one.session.session_id]) for one in listed]
    sizes = widths([_HEAD, *rows])
    room = output.width - sum(sizes) - GAP * len(sizes)
    if room >= SHORTEST_TITLE:
        output.line(output.dim(_joined(_HEAD, sizes) + "about"))
        for one, row in zip(listed, rows, strict=True):
            output.line(_row(output, one, row, sizes) + cut(one.title[: room * 4], room))
    else:
        for one, row in zip(listed, rows, strict=True):
            _show_stacked(output, one, row)
    output.line()
    if len(listed) < there:
        output.prose(f"The newest {len(listed)} of {there:,}; --limit {there} shows all.")
    show, resume = _SHOW.replace(" ", "\u00a0"), _RESUME.replace(" ", "\u00a0")  # never broken
    output.prose(f"The beginning of an id is enough: {show}, {resume}")


def _show_whole(output: Output, listed: Sequence[Listed]) -> None:
    rows = [one.cells(one.session.session_id) for one in listed]
    sizes = widths([_HEAD, *rows])
    output.line(_joined(_HEAD, sizes) + "about")
    for one, row in zip(listed, rows, strict=True):
        output.line((_joined(row, sizes) + cut(one.title[: LONGEST_TITLE * 4], LONGEST_TITLE)).rstrip())


def _row(output: Output, one: Listed, row: Sequence[str], sizes: Sequence[int]) -> str:
    session, agent, state, used = (filled(cell, size + GAP) for cell, size in zip(row, sizes, strict=True))
    return session + agent + output.style(_COLOURS[one.state], state) + output.dim(used)


def _joined(cells: Sequence[str], sizes: Sequence[int]) -> str:
    return "".join(filled(cell, size + GAP) for cell, size in zip(cells, sizes, strict=True))


def _show_stacked(output: Output, one: Listed, row: tuple[str, str, str, str]) -> None:
    """Write a session in lines of its own. Its id is never broken, so that it can be copied."""
    session, agent, state, used = row
    room = output.width - 2
    output.line(session)
    about = [f"{agent} · {state} · {used}"]
    if width(about[0]) > room:
        about = [agent, f"{state} · {used}"]
    for line in about:
        output.line("  " + output.style(_COLOURS[one.state], cut(line, room)))
    if one.title:
        output.line("  " + cut(one.title[: room * 4], room))


def ago(at_ms: int, now_ms: int | None = None) -> str:
    """Say how long ago something was."""
    age_ms = (int(time.time() * 1000) if now_ms is None else now_ms) - at_ms
    if age_ms < MINUTE_MS:
        return "now"
    if age_ms < HOUR_MS:
        return f"{age_ms // MINUTE_MS} min ago"
    if age_ms < DAY_MS:
        return f"{age_ms // HOUR_MS} h ago"
    if age_ms < 7 * DAY_MS:
        days = age_ms // DAY_MS
        return f"{days} day{'s' if days > 1 else ''} ago"
    return moment(at_ms)[:10]
