from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from ownloop.cli.columns import width
from ownloop.cli.output import Output
from ownloop.cli.session_table import DAY_MS, HOUR_MS, MINUTE_MS, Listed, ago, show_table, state_of
from ownloop.core.ports import SessionInfo

NOW_MS = 1_795_000_000_000
PLAIN = SessionInfo("sess_01m8mbr98q1h2m4n6p8r0t2v4x", "support", "", "local", updated_ms=NOW_MS)
LONG = "Where is my order, please? It was sent three weeks ago."


class Tty(StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, *listed: Listed, columns: int | None, there: int | None = None) -> list[str]:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("time.time", lambda: NOW_MS / 1000)
    out = StringIO() if columns is None else Tty()
    short = {one.session.session_id: one.session.session_id[:14] for one in listed}
    show_table(Output(out, out), listed, short, there or len(listed))
    return out.getvalue().splitlines()


def test_on_a_terminal_titles_take_the_room_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Listed(replace(PLAIN, open_requests=2, updated_ms=NOW_MS - HOUR_MS), "waiting", LONG)
    titled = Listed(
        replace(PLAIN, session_id="客户 42", title="日本語のタイトルがとても長い場合はどうなりますか"), "idle", LONG
    )
    assert shown(monkeypatch, waiting, titled, columns=80) == [
        "session         agent    state             used     about",
        "sess_01m8mbr98  support  waits for you: 2  1 h ago  Where is my order, please?…",
        "客户 42         support  idle              now      日本語のタイトルがとても長…",
        "",
        "The beginning of an id is enough: ownloop sessions show ID,",
        "ownloop sessions resume ID",
    ]


def test_on_a_narrow_terminal_each_session_has_lines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Listed(replace(PLAIN, live_run_id="run_1"), "running", LONG)
    long_name = Listed(replace(PLAIN, agent="the-agent-with-the-long-name", open_requests=1), "waiting", "")
    lines = shown(monkeypatch, running, long_name, columns=40, there=7)
    assert lines == [
        "sess_01m8mbr98",
        "  support · running · now",
        "  Where is my order, please? It was se…",
        "sess_01m8mbr98",
        "  the-agent-with-the-long-name",
        "  waits for you · now",
        "",
        "The newest 2 of 7; --limit 7 shows all.",
        "The beginning of an id is enough:",
        "ownloop sessions show ID,",
        "ownloop sessions resume ID",
    ]
    assert all(width(line) < 40 for line in lines)


def test_in_a_pipe_ids_are_whole_and_titles_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    head, row = shown(monkeypatch, Listed(PLAIN, "idle", "word " * 1_000_000), columns=None)
    assert head == "session                          agent    state  used  about"
    assert row == f"{PLAIN.session_id}  support  idle   now   " + "word " * 39 + "word…"


def test_what_is_in_a_title_is_shown_and_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = Listed(replace(PLAIN, title="\x1b[2J\nx\x07\u202e"), "idle", "")
    for columns in (None, 40, 100):
        text = "\n".join(shown(monkeypatch, evil, columns=columns))
        assert "␛[2J x␇<202e>" in text


@pytest.mark.parametrize(
    ("info", "unattended", "state"),
    [
        (PLAIN, False, "idle"),
        (replace(PLAIN, live_run_id="run_1"), False, "running"),
        (replace(PLAIN, live_run_id="run_1"), True, "unfinished"),
        (PLAIN, True, "unfinished"),  # something waits in its inbox
        (replace(PLAIN, live_run_id="run_1", open_requests=1), True, "waiting"),
        (replace(PLAIN, closing=True, open_requests=1), True, "closed"),
    ],
)
def test_a_session_stands_in_one_of_five_ways(info: SessionInfo, unattended: bool, state: str) -> None:
    assert state_of(info, {info.session_id} if unattended else set()) == state


def test_times_are_said_as_people_say_them() -> None:
    said = {
        -5: "now",
        MINUTE_MS - 1: "now",
        MINUTE_MS: "1 min ago",
        HOUR_MS: "1 h ago",
        DAY_MS: "1 day ago",
        3 * DAY_MS: "3 days ago",
    }
    assert {age: ago(NOW_MS - age, NOW_MS) for age in said} == said
    assert ago(NOW_MS - 30 * DAY_MS, NOW_MS).startswith("2026-10-1")
