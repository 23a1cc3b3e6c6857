from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.cli.cards import LONGEST_RESULT
from ownloop.cli.harmless import harmless, revealed
from ownloop.cli.output import Output
from ownloop.cli.screen import Screen
from ownloop.core.backend import PartType
from ownloop.core.events import (
    BlockEnded,
    BlockStarted,
    CancelRequested,
    Delta,
    ErrorInfo,
    Event,
    Fact,
    FactBody,
    InputAccepted,
    InteractionRequested,
    InteractionResolved,
    Note,
    Progress,
    ResponseEnded,
    RunEnded,
    ToolEnded,
    ToolStarted,
    ToolStatus,
    TurnStarted,
)
from ownloop.core.messages import Json, ResultContent, TextBlock, ToolCallBlock
from ownloop.core.results import NOT_RUN, WITHDRAWN, denied, text

TURN = 10
"""The seq of the turn that all responses here belong to; also the number of its stream."""


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fact(body: FactBody, seq: int = TURN) -> Fact:
    return Fact(seq, 0, 1, "run", body)


def turn(attempt: int = 1) -> Fact:
    return fact(TurnStarted(1, attempt, "scripted", "scripted", "scripted"))


def streamed(*pieces: str, type: PartType = "text", name: str | None = None) -> list[Event]:
    deltas = [Delta(TURN, 0, piece) for piece in pieces]
    return [
        BlockStarted(TURN, 0, type, name),
        *deltas,
        BlockEnded(TURN, 0),
    ]


def called(name: str = "refund", input: Json | None = None, text: str = "") -> Fact:
    texts = (TextBlock(text),) if text else ()
    return fact(ResponseEnded(1, "complete", (*texts, ToolCallBlock("c1", name, input or {}))))


def started(attempt: int = 1) -> Fact:
    return fact(ToolStarted("c1", attempt, "key", "policy", "digest", "ask"))


def ended(words: str, status: ToolStatus = "ok") -> Fact:
    return fact(ToolEnded("c1", 1, status, (TextBlock(words),)))


def asked() -> Fact:
    return fact(InteractionRequested("r1", "approval", {}, {}, call_id="c1"))


def in_a_pipe(events: Sequence[Event]) -> tuple[str, str]:
    text, notes = io.StringIO(), io.StringIO()
    screen = Screen(Output(text, notes))
    for event in events:
        screen.show(event)
    return text.getvalue(), notes.getvalue()


def on_a_terminal(events: Sequence[Event]) -> str:
    terminal = FakeTerminal()
    screen = Screen(Output(terminal))
    for event in events:
        screen.show(event)
    return terminal.getvalue()


def test_streamed_text_is_shown_once_and_ends_its_line() -> None:
    response = fact(ResponseEnded(1, "complete", (TextBlock("Hello there"),)))
    events = [turn(), *streamed("Hel", "lo ", "there"), response, fact(RunEnded("completed", "end_turn"))]
    assert in_a_pipe(events) == ("Hello there\n", "")


def test_text_that_was_not_streamed_here_is_shown_from_its_fact() -> None:
    assert in_a_pipe([turn(), fact(ResponseEnded(1, "complete", (TextBlock("Hello"),)))]) == ("Hello\n", "")


def test_a_call_is_shown_and_its_result_below() -> None:
    events = [turn(), called(input={"order": "A1"}), started(), ended("Refunded.")]
    assert in_a_pipe(events)[1] == '→ refund {"order":"A1"}\n← Refunded.\n'


def test_an_edited_call_is_shown_as_it_was_run() -> None:
    resolved = fact(InteractionResolved("r1", "local", "approved", edited_input={"eur": 5}))
    events = [turn(), called(input={"eur": 50}), asked(), resolved, started(), ended("Refunded.")]
    assert in_a_pipe(events)[1] == '→ refund {"eur":50}\n→ refund {"eur":5}  (as edited)\n← Refunded.\n'


def test_a_denied_call_is_shown_with_what_became_of_it() -> None:
    events = [turn(), called(), asked(), fact(InteractionResolved("r1", "local", "denied")), ended("No.", "denied")]
    assert in_a_pipe(events)[1] == "→ refund {}\n← refund was denied: No.\n"


@pytest.mark.parametrize(
    ("status", "words", "shown"),
    [
        ("denied", denied("too cold"), "was denied: too cold"),
        ("denied", denied(None), "was denied"),
        ("not_run", text(NOT_RUN), "was not run"),
        ("not_run", text(WITHDRAWN), "was not run: the request for approval was withdrawn."),
    ],
)
def test_what_the_status_says_is_not_said_again(
    status: ToolStatus, words: tuple[ResultContent, ...], shown: str
) -> None:
    events = [turn(), called(), asked(), fact(ToolEnded("c1", 1, status, words))]
    assert in_a_pipe(events)[1] == f"→ refund {{}}\n← refund {shown}\n"


def test_what_an_agent_logs_is_a_note() -> None:
    assert in_a_pipe([fact(Note("info", {"log": ["booked", {"text": "paid"}, {"eur": 5}]}))]) == (
        "",
        'booked\npaid\n{"eur":5}\n',
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("error", "refund failed"),
        ("invalid", "refund was not called"),
        ("timeout", "refund took too long"),
        ("unknown", "refund has an unknown outcome"),
        ("cancelled", "refund was cancelled"),
        ("not_run", "refund was not run"),
    ],
)
def test_a_result_that_is_none_says_so(status: ToolStatus, words: str) -> None:
    assert in_a_pipe([turn(), called(), ended("Why.", status)])[1] == f"→ refund {{}}\n← {words}: Why.\n"


def test_a_further_attempt_is_named() -> None:
    assert in_a_pipe([turn(), called(), started(), started(2)])[1] == "→ refund {}\n→ refund {}  (attempt 2)\n"


def test_a_long_result_is_cut_with_a_mark() -> None:
    notes = in_a_pipe([turn(), called(), started(), ended("x" * (LONGEST_RESULT + 1234))])[1]
    assert notes.endswith("x … (1,234 more characters)\n")


def test_the_ways_a_run_ends_are_named() -> None:
    def said(body: RunEnded) -> str:
        return in_a_pipe([fact(body)])[1]

    assert said(RunEnded("completed", "end_turn")) == ""
    assert said(RunEnded("completed", "max_tokens")) == "(cut: max_tokens reached)\n"
    assert said(RunEnded("cancelled")) == "(cancelled)\n"
    assert said(RunEnded("max_turns")) == "(stopped: max_turns reached)\n"
    assert said(RunEnded("failed", error=ErrorInfo("mine", "it broke"))) == "error: it broke (mine)\n"


def test_a_failure_that_is_tried_again_is_a_note_and_the_last_one_an_error() -> None:
    failed = fact(ResponseEnded(1, "failed", error=ErrorInfo("overloaded", "overloaded", True)))
    events = [turn(), failed, turn(2), failed, fact(RunEnded("failed", error=ErrorInfo("overloaded", "overloaded")))]
    assert in_a_pipe(events)[1] == (
        "(overloaded; asking again)\nerror: overloaded (overloaded)\n  Try again in a moment.\n"
    )


def test_partial_text_of_a_cancelled_answer_stays() -> None:
    response = fact(ResponseEnded(1, "cancelled", (TextBlock("Half an"),)))
    events = [turn(), *streamed("Half an")[:-1], fact(CancelRequested()), response, fact(RunEnded("cancelled"))]
    assert in_a_pipe(events) == ("Half an\n", "(cancelled)\n")


def test_what_was_said_elsewhere_is_shown_and_what_was_typed_here_is_not() -> None:
    terminal = FakeTerminal()
    screen = Screen(Output(terminal))
    screen.said_here.add("mine")
    for input_id in ("mine", "theirs"):
        screen.show(fact(InputAccepted(input_id, "queue", (TextBlock(f"From {input_id}"),))))
    assert "From theirs" in terminal.getvalue()
    assert "From mine" not in terminal.getvalue()


def test_warnings_and_progress_are_notes_and_debug_notes_are_none() -> None:
    events = [
        Progress(11, "calling the bank"),
        Progress(11, {"done": 3}),
        fact(Note("warning", {"code": "late_result"})),
        fact(Note("debug", "quiet")),
    ]
    assert in_a_pipe(events)[1] == '  … calling the bank\n  … {"done":3}\nlate_result\n'


def test_a_terminal_shows_that_it_waits_until_something_comes() -> None:
    shown = on_a_terminal([turn(), *streamed("Hi")])
    assert shown == "\x1b[2mreading …\x1b[0m\r\x1b[KHi\n"
    assert "thinking …" in on_a_terminal([turn(), *streamed("Hm", type="thinking")])


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    shown = on_a_terminal([called(), started(), ended("Done."), fact(RunEnded("cancelled"))])
    assert "\x1b[3" not in shown
    assert "\x1b[2m" not in shown


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in on_a_terminal([turn(), *streamed("Hi"), called(), started(), ended("Done.")])


NASTY = "\x1b[2J\x1b]0;title\x07\x9b31m\x90q\x00\x7f\rover\u202egnol\u2066\u200e"
ALLOWED = {"\n", "\t"}


def obeyed(text: str) -> set[str]:
    return {char for char in text if (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0) and char not in ALLOWED}


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(NASTY)])
def test_no_control_of_a_model_reaches_the_terminal_however_it_is_cut(size: int) -> None:
    pieces = [NASTY[at : at + size] for at in range(0, len(NASTY), size)]
    text, _ = in_a_pipe([turn(), *streamed(*pieces)])
    assert obeyed(text) == set()
    assert text.startswith("␛[2J␛]0;title␇<009b>31m")
    assert "\u202e" not in text


def test_no_control_of_a_tool_an_error_or_a_note_reaches_the_terminal() -> None:
    events = [
        called(name=NASTY, input={NASTY: NASTY}),
        started(),
        ended(NASTY),
        Progress(11, NASTY),
        fact(Note("error", NASTY)),
        fact(RunEnded("failed", error=ErrorInfo("x", NASTY))),
    ]
    assert obeyed(in_a_pipe(events)[1]) == set()


@given(st.text())
def test_harmless_text_holds_nothing_that_is_obeyed_and_plain_text_is_itself(text: str) -> None:
    assert obeyed(harmless(text)) == set()
    assert revealed(revealed(text)) == revealed(text)
    assert harmless("Grüße, 世界 👩‍👩‍👧!\n\tok") == "Grüße, 世界 👩‍👩‍👧!\n\tok"


def test_what_a_person_approves_hides_nothing() -> None:
    hidden = "pay\u200b \U000e0041\u2060me"
    assert harmless(hidden) == hidden
    assert revealed(hidden) == "pay<200b> <e0041><2060>me"


def test_a_line_end_of_windows_is_one() -> None:
    assert harmless("a\r\nb") == "a\nb"
    assert harmless("a\rb") == "a␍b"
