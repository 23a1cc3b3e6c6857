from __future__ import annotations

import io

import pytest

from ownloop.cli.output import Output
from tests.cli.test_screen import FakeTerminal


def test_notes_go_below_the_text_that_stands_there() -> None:
    terminal = FakeTerminal()
    output = Output(terminal)
    output.text("Half a")
    output.line("note")
    assert terminal.getvalue() == "Half a\nnote\n"


def test_in_a_pipe_text_and_notes_do_not_mix() -> None:
    text, notes = io.StringIO(), io.StringIO()
    output = Output(text, notes)
    output.text("Half a")
    output.line("note")
    output.text(" sentence.")
    output.end_text()
    assert (text.getvalue(), notes.getvalue()) == ("Half a sentence.\n", "note\n")


def test_notes_go_to_the_terminal_where_the_text_does(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = FakeTerminal()
    Output(terminal).line("note")
    assert terminal.getvalue() == "note\n"
    Output(io.StringIO()).line("note")
    assert capsys.readouterr().err == "note\n"


def test_prose_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    notes = io.StringIO()
    Output(io.StringIO(), notes).prose("One two three four five six seven eight.\n\nNine.", "  ")
    assert notes.getvalue() == "  One two three four five six\n  seven eight.\n\n  Nine.\n"


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_progress_stays_in_one_line_and_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = FakeTerminal()
    output = Output(terminal)
    output.progress("fetching SmolLM2-135M-Instruct: 12 of about 98 MB")
    output.progress("fetching SmolLM2-135M-Instruct: 13 of about 98 MB")
    output.end_waiting()
    shown = terminal.getvalue().split("\r\x1b[K")
    assert all(len(line) < columns for line in shown)
    assert shown[-1] == ""
    assert shown[0].endswith("about 98 MB"[-columns // 2 :])


def test_progress_in_a_pipe_is_said_once_for_each_thing() -> None:
    notes = io.StringIO()
    output = Output(io.StringIO(), notes)
    for text in ("fetching X: 1 of 98 MB", "fetching X: 2 of 98 MB", "loading model…", "loading model… 3 s"):
        output.progress(text)
    assert notes.getvalue() == "fetching X: 1 of 98 MB\nloading model…\n"


def test_a_waiting_mark_is_gone_before_anything_else_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = FakeTerminal()
    output = Output(terminal)
    output.waiting("reading …")
    output.waiting("reading …")
    output.error("it broke\x1b[1m")
    assert terminal.getvalue() == "reading …\r\x1b[Kerror: it broke␛[1m\n"
