"""Tool calls, thoughts and errors as they stand on a terminal, wide and narrow, and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

import pyte
import pytest

from ownloop.cli.cards import LONGEST_ARGUMENTS, MOST_LINES
from ownloop.cli.output import Output
from ownloop.cli.screen import LONGEST_ERROR, Screen
from ownloop.core.events import (
    BlockEnded,
    BlockStarted,
    Delta,
    ErrorInfo,
    Event,
    InputAccepted,
    InputWithdrawn,
    Progress,
    ResponseEnded,
    RunEnded,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import TextBlock, ThinkingBlock, ToolCallBlock
from tests.cli.test_screen import (
    TURN,
    FakeTerminal,
    called,
    ended,
    fact,
    in_a_pipe,
    on_a_terminal,
    started,
    streamed,
    turn,
)


def lines_of(written: str, columns: int) -> list[str]:
    """Return what stands on a terminal after something was written to it."""
    screen = pyte.HistoryScreen(columns, 60, history=1000)
    pyte.Stream(screen).feed(written.replace("\n", "\r\n"))
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def drawn(
    events: Sequence[Event], monkeypatch: pytest.MonkeyPatch, columns: int = 80, *, in_chat: bool = True
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = FakeTerminal()
    screen = Screen(Output(terminal), in_chat=in_chat)
    for event in events:
        screen.show(event)
    return lines_of(terminal.getvalue(), columns)


def two_calls(one: str = "look", other: str = "refund") -> Event:
    calls = (ToolCallBlock("c1", one, {"order": "A1"}), ToolCallBlock("c2", other, {"order": "B2"}))
    return fact(ResponseEnded(1, "complete", calls))


def test_arguments_grow_while_the_model_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [turn(), *streamed('{"order"', ':\n   "A', '1"}', type="tool_call", name="refund")]
    assert drawn(events[:3], monkeypatch) == ['→ refund {"order"']
    assert drawn(events[:4], monkeypatch) == ['→ refund {"order": "A']
    assert drawn([*events, called(input={"order": "A1"})], monkeypatch) == ['→ refund {"order": "A1"}']


def test_long_arguments_are_cut_and_counted_while_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"text":"' + "x" * LONGEST_ARGUMENTS + '"}'
    events = [turn(), *streamed(text[:500], text[500:], type="tool_call", name="write")]
    growing = drawn(events[:-1], monkeypatch)
    assert growing[-1] == f"writing write …  {len(text)} characters"
    assert growing[-2].endswith("x …")
    assert drawn(events, monkeypatch)[-1] == "  (11 more characters)"
    assert in_a_pipe([turn(), called("write", {"text": "x" * LONGEST_ARGUMENTS})])[1].endswith(
        "x … (11 more characters)\n"
    )


def test_a_call_that_runs_says_what_it_does_in_one_line_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    running = fact(ToolStarted("c1", 1, "key", "policy", "digest", "ask"), seq=11)
    events = [turn(), called(), running, Progress(11, "asking the bank"), Progress(11, {"done": 3})]
    assert drawn(events[:3], monkeypatch)[1:] == ["running refund …"]
    assert drawn(events[:4], monkeypatch)[1:] == ["running refund …  asking the bank"]
    assert drawn(events, monkeypatch)[1:] == ['running refund …  {"done":3}']
    assert drawn([*events, ended("Done.")], monkeypatch) == ["→ refund {}", "← Done."]


def test_what_waits_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "40")
    terminal = FakeTerminal()
    output = Output(terminal)
    output.waiting("running refund …")
    now[0] += 1.9
    output.tick()
    assert lines_of(terminal.getvalue(), 40) == ["running refund …"]
    now[0] += 2
    output.tick()
    assert lines_of(terminal.getvalue(), 40) == ["running refund … 3 s"]
    output.waiting("running refund …", "half of it is done, and the other half is not")
    assert lines_of(terminal.getvalue(), 40) == ["running refund … 3 s  half of it is do…"]
    with output.aside():
        assert lines_of(terminal.getvalue(), 40) == []
    assert lines_of(terminal.getvalue(), 40) == ["running refund … 3 s  half of it is do…"]
    output.waiting("reading …")
    assert lines_of(terminal.getvalue(), 40) == ["reading …"]
    size = len(terminal.getvalue())
    output.tick()
    assert len(terminal.getvalue()) == size, "nothing is written anew that stands there"


def test_results_of_several_calls_name_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        turn(),
        two_calls(),
        fact(ToolStarted("c1", 1, "key", "policy", "digest", "ask"), seq=11),
        fact(ToolStarted("c2", 1, "key", "policy", "digest", "ask"), seq=12),
    ]
    assert drawn(events, monkeypatch)[-1] == "running look, refund …"
    events.append(fact(ToolEnded("c2", 1, "ok", (TextBlock("Refunded."),))))
    assert drawn(events, monkeypatch)[-2:] == ["← refund: Refunded.", "running look …"]
    events.append(fact(ToolEnded("c1", 1, "ok", (TextBlock("Seen."),))))
    assert drawn(events, monkeypatch)[-2:] == ["← refund: Refunded.", "← look: Seen."]


def test_calls_of_one_name_are_numbered_also_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written = [
        BlockStarted(TURN, 0, "tool_call", "look"),
        BlockEnded(TURN, 0),
        BlockStarted(TURN, 1, "tool_call", "look"),
        BlockEnded(TURN, 1),
    ]
    shown = drawn([turn(), *written, two_calls("look", "look"), ended("Seen.")], monkeypatch)
    assert shown == ["→ look", "→ look #2", "← look: Seen."]
    assert in_a_pipe([turn(), two_calls("look", "look")])[1] == '→ look {"order":"A1"}\n→ look #2 {"order":"B2"}\n'


def test_blocks_that_come_at_the_same_time_are_written_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        BlockStarted(TURN, 0, "tool_call", "one"),
        BlockStarted(TURN, 1, "tool_call", "two"),
        Delta(TURN, 1, '{"b":'),
        Delta(TURN, 0, '{"a":1}'),
        Delta(TURN, 1, "2}"),
        BlockEnded(TURN, 1),
        BlockEnded(TURN, 0),
    ]
    assert drawn([turn(), *both], monkeypatch) == ['→ one {"a":1}', '→ two {"b":2}']


def test_what_a_broken_response_held_back_is_shown_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        BlockStarted(TURN, 0, "text"),
        Delta(TURN, 0, "One"),
        BlockStarted(TURN, 1, "text"),
        Delta(TURN, 1, "Two"),
    ]
    broken = fact(ResponseEnded(1, "cancelled"))
    assert drawn([turn(), *both], monkeypatch) == ["One"]
    assert drawn([turn(), *both, broken, turn(2), *streamed("Three")], monkeypatch) == ["One", "Two", "Three"]


def test_responses_at_the_same_time_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        BlockStarted(TURN, 0, "text"),
        Delta(TURN, 0, "One, "),
        BlockStarted(20, 0, "text"),
        Delta(20, 0, "Other."),
        Delta(TURN, 0, "two."),
        BlockEnded(20, 0),
        BlockEnded(TURN, 0),
    ]
    assert drawn([turn(), fact(TurnStarted(1, 1, "s", "s", "scripted"), seq=20), *both], monkeypatch) == [
        "One, two.",
        "Other.",
    ]


def test_a_long_result_shows_its_first_lines_and_those_are_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "\n".join(f"line {number}" for number in range(1, 31))
    shown = drawn([turn(), called(), started(), ended(words)], monkeypatch)
    assert shown[1:3] == ["← line 1", "  line 2"]
    assert len(shown) == 1 + MOST_LINES
    assert shown[-1] == "  line 12 … (144 more characters)"


def test_a_result_is_broken_between_words_and_keeps_its_indents(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "one two three four five six seven eight nine\n    if x:\n        return a + b + c + d + e + f + g + h"
    assert drawn([turn(), called(), started(), ended(words)], monkeypatch, 40)[1:] == [
        "← one two three four five six seven",
        "  eight nine",
        "      if x:",
        "          return a + b + c + d + e + f",
        "          + g + h",
    ]
    shown = drawn([turn(), called(), ended("a reason that is longer than a line", "error")], monkeypatch, 40)
    assert shown[1:] == ["← refund failed: a reason that is", "  longer than a line"]


@pytest.mark.parametrize(
    ("elapsed_ms", "took"), [(999, ""), (1000, "  (1.0 s)"), (3210, "  (3.2 s)"), (125_000, "  (2 min 5 s)")]
)
def test_what_took_its_time_says_so(elapsed_ms: int, took: str) -> None:
    body = ToolEnded("c1", 1, "ok", (TextBlock("Done."),), elapsed_ms)
    assert in_a_pipe([turn(), called(), started(), fact(body)])[1] == f"→ refund {{}}\n← Done.{took}\n"


def test_a_short_thought_is_shown_and_a_long_one_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    short = [turn(), *streamed("They want\n", "their money.", type="thinking"), *streamed("Yes.")]
    assert drawn(short[:3], monkeypatch, 40) == ["thinking …  They want"]
    assert drawn(short, monkeypatch, 40) == ["thought: They want their money.", "Yes."]
    long = [turn(), *streamed("word " * 100, type="thinking")]
    assert drawn(long[:3], monkeypatch, 40) == ["thinking …  …ord word word word"]
    assert drawn(long, monkeypatch, 40) == ["thought: word word wo… (500 characters)"]


def test_thoughts_of_history_are_shown_and_redacted_ones_and_pipes_show_none(monkeypatch: pytest.MonkeyPatch) -> None:
    response = fact(ResponseEnded(1, "complete", (ThinkingBlock("Hm."), ThinkingBlock(""), TextBlock("Yes."))))
    assert drawn([turn(), response], monkeypatch) == ["thought: Hm.", "Yes."]
    assert in_a_pipe([turn(), response]) == ("Yes.\n", "")


def test_blocks_of_history_stand_in_their_order() -> None:
    blocks = (TextBlock("First."), ToolCallBlock("c1", "look", {}), TextBlock("Then."))
    assert in_a_pipe([turn(), fact(ResponseEnded(1, "complete", blocks))]) == ("First.\nThen.\n", "→ look {}\n")


def test_calls_of_a_response_that_failed_are_none() -> None:
    blocks = (ToolCallBlock("c1", "look", {}),)
    assert in_a_pipe([turn(), fact(ResponseEnded(1, "failed", blocks, error=ErrorInfo("x", "broke")))])[1] == ""


def test_another_model_is_named_and_the_same_one_is_not() -> None:
    other = fact(TurnStarted(1, 1, "openai", "openai", "gpt\x1b-9"))
    assert in_a_pipe([turn(), other, other])[1] == "(gpt␛-9 answers from here on)\n"


def test_what_was_said_in_several_lines_stands_below_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        fact(InputAccepted("in_1", "queue", (TextBlock("One\ntwo"),))),
        fact(InputAccepted("in_2", "steer", (TextBlock("three\nfour"),))),
        fact(InputWithdrawn("in_2")),
    ]
    assert drawn(events, monkeypatch) == [
        "you › One",
        "      two",
        "steer › three",
        "        four",
        "(a message that waited was taken back)",
    ]


def test_an_error_is_one_block_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ErrorInfo("auth", "'openai' does not accept the key (status 401)", request_id="req_1")
    failed = fact(RunEnded("failed", error=error))
    assert drawn([failed], monkeypatch, 40) == [
        "error: 'openai' does not accept the",
        "  key (status 401) (auth)",
        "  The provider's id of this request:",
        "  req_1",
        "  `ownloop models` says where the key",
        "  comes from. With another one, start",
        "  the chat again; or take another",
        "  model: /model.",
    ]
    assert drawn([failed], monkeypatch, in_chat=False)[-1] == "  `ownloop models` says where the key comes from."


def test_an_error_says_how_long_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ErrorInfo("rate_limited", "too many requests", retry_after_ms=20_400)
    shown = drawn([fact(RunEnded("failed", error=error))], monkeypatch, in_chat=False)
    assert shown[-1] == "  Try again in 20 s."


def test_a_long_error_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ErrorInfo("mine", "<html>" + "x" * 10_000)
    shown = on_a_terminal([fact(RunEnded("failed", error=error))])
    assert shown.count("x") < LONGEST_ERROR
    assert shown.endswith("… (mine)\n")


@pytest.mark.parametrize("columns", [12, 20, 40, 80])
def test_no_line_of_ours_is_broken_by_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = FakeTerminal()
    output = Output(terminal)
    for text in ("running 東京の天気を調べる道具 … 12 of 98", "a" * 200, "one two three four five six seven"):
        output.waiting(text, "東京の天気")
        assert len(lines_of(terminal.getvalue(), columns)) == 1
    output.end_waiting()
    assert lines_of(terminal.getvalue(), columns) == []
