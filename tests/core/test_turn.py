from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.backend import AgentTurn, Finish, Part, PartDelta, PartEnd, PartStart, PartType, ToolCall, UsageSeen
from ownloop.core.events import BlockEnded, BlockStarted, Delta, ErrorInfo, LiveEvent, ResponseEnded, Status, units
from ownloop.core.messages import ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.core.turn import (
    CUT,
    INTERRUPTED,
    WITHHELD,
    TurnBuilder,
    abandoned,
    agent_turn,
    is_empty,
    missing,
    missing_of_tail,
    parse_arguments,
)
from ownloop.core.usage import Usage

STREAM = 7
CALL: list[Part] = [PartStart(0, "tool_call", "find"), PartDelta(0, '{"q":'), PartDelta(0, '"x"}'), PartEnd(0)]
OPEN_CALL = CALL[:-1]


def builder() -> TurnBuilder:
    numbers = count(1)
    return TurnBuilder(STREAM, lambda: f"call_{next(numbers)}")


def respond(parts: Iterable[Part], status: Status | None = None) -> ResponseEnded:
    turn = builder()
    turn.feed(parts)
    return turn.end(1, status)[1]


def only_call(parts: Iterable[Part], status: Status | None = None) -> ToolCallBlock:
    (block,) = respond(parts, status).blocks
    assert isinstance(block, ToolCallBlock)
    return block


# --- a response -------------------------------------------------------------------------------------------------------


def test_a_response_with_all_kinds_of_blocks():
    turn = builder()
    events = turn.feed(
        [
            PartStart(0, "thinking"),
            PartDelta(0, "hm"),
            PartEnd(0, raw={"signature": "s"}),
            PartStart(3, "text"),
            PartDelta(3, "I "),
            PartDelta(3, "look."),
            PartEnd(3),
            PartStart(4, "tool_call", "find", "toolu_1"),
            PartDelta(4, '{"q": "x"}'),
            PartEnd(4),
            PartStart(5, "provider"),
            PartEnd(5, raw={"type": "search"}),
            UsageSeen(Usage(input=1)),
            UsageSeen(Usage(input=1, output=9)),
            Finish("tool_use", "tool_calls", "req_1"),
        ]
    )
    assert events == [
        BlockStarted(7, 0, "thinking"),
        Delta(7, 0, "hm"),
        BlockEnded(7, 0),
        BlockStarted(7, 1, "text"),
        Delta(7, 1, "I look."),
        BlockEnded(7, 1),
        BlockStarted(7, 2, "tool_call", "find", "call_1"),
        Delta(7, 2, '{"q": "x"}'),
        BlockEnded(7, 2),
        BlockStarted(7, 3, "provider"),
        BlockEnded(7, 3),
    ]
    closing, fact = turn.end(1, cost=0.5)
    assert closing == []
    assert fact == ResponseEnded(
        1,
        "complete",
        (
            ThinkingBlock("hm", {"signature": "s"}),
            TextBlock("I look."),
            ToolCallBlock("call_1", "find", {"q": "x"}, "toolu_1", '{"q": "x"}'),
            ProviderBlock({"type": "search"}),
        ),
        "tool_use",
        "tool_calls",
        None,
        Usage(input=1, output=9),
        0.5,
        "req_1",
    )
    assert turn.units == sum(map(units, events))
    assert agent_turn(fact) == AgentTurn(["I look."], [ToolCall("call_1", "find", {"q": "x"})], "tool_use")


def test_a_response_without_the_providers_last_word_needs_a_status():
    with pytest.raises(ValueError, match="no Finish"):
        builder().end(1)


def test_a_failed_response_keeps_its_text_and_the_errors_request_id():
    turn = builder()
    turn.feed([PartStart(0, "text"), PartDelta(0, "half an ans")])
    closing, fact = turn.end(1, "failed", ErrorInfo("overloaded", "later", request_id="req_9"))
    assert closing == [BlockEnded(7, 0)]
    assert (fact.status, fact.blocks, fact.request_id) == ("failed", (TextBlock("half an ans"),), "req_9")


@pytest.mark.parametrize(
    "parts",
    [
        [PartDelta(0, "x")],
        [PartEnd(0)],
        [PartStart(0, "text"), PartStart(0, "text")],
        [PartStart(0, "text"), PartEnd(0), PartDelta(0, "x")],
        [PartStart(0, "text"), PartEnd(0), PartEnd(0)],
    ],
)
def test_parts_that_break_the_adapters_contract_are_refused(parts: list[Part]):
    with pytest.raises(ValueError, match="block 0"):
        builder().feed(parts)


# --- which calls may run ----------------------------------------------------------------------------------------------

DONE, LENGTH, REFUSAL = Finish("end_turn"), Finish("max_tokens", "length"), Finish("other", "refusal")


@pytest.mark.parametrize(
    ("parts", "status", "problem"),
    [
        ([*CALL, DONE], None, None),
        ([*OPEN_CALL, DONE], None, None),
        ([*CALL, LENGTH], None, None),
        ([*OPEN_CALL[:-1], LENGTH], None, CUT),
        ([*OPEN_CALL[:-1], PartEnd(0), LENGTH], None, CUT),
        ([*CALL, REFUSAL], None, WITHHELD),
        ([*OPEN_CALL, REFUSAL], None, WITHHELD),
        (CALL, "failed", None),
        (OPEN_CALL, "failed", INTERRUPTED),
        (OPEN_CALL[:-1], "cancelled", INTERRUPTED),
        ([*OPEN_CALL, PartEnd(0, problem="the adapter says no"), DONE], None, "the adapter says no"),
    ],
)
def test_a_call_that_is_not_complete_never_runs(parts: list[Part], status: Status | None, problem: str | None):
    call = only_call(parts, status)
    assert call.problem == problem
    assert call.input == ({} if problem else {"q": "x"})


@pytest.mark.parametrize(
    ("text", "input"),
    [
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"a": "line\nline"}', {"a": "line\nline"}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ('{"s": "\\ud83d"}', {"s": "\ufffd"}),
    ],
)
def test_arguments_are_one_json_object(text: str, input: dict[str, object]):
    assert parse_arguments(text) == (input, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a":', "not valid JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1} and more', "not valid JSON"),
        ("[1]", "JSON array"),
        ("1.5", "JSON number"),
        ("true", "JSON boolean"),
        ('"words"', "not valid JSON"),
        ('"\\"words\\""', "JSON string"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a":' + "[" * 100 + "]" * 100 + "}", "nested too deeply"),
        ('{"a":' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
    ],
)
def test_other_arguments_are_a_problem_that_the_model_is_told(text: str, words: str):
    input, problem = parse_arguments(text)
    assert input == {}
    assert problem is not None
    assert words in problem


def test_the_streamed_text_of_a_call_is_kept_only_where_it_says_more_than_the_input():
    assert only_call([PartStart(0, "tool_call", "f"), PartDelta(0, '{"a":1}'), PartEnd(0), DONE]).arguments is None
    spaced = only_call([PartStart(0, "tool_call", "f"), PartDelta(0, '{"a": 1}'), PartEnd(0), DONE])
    assert spaced.arguments == '{"a": 1}'


@pytest.mark.parametrize(
    ("parts", "empty"),
    [
        ([DONE], True),
        ([PartStart(0, "text"), PartDelta(0, " \n"), DONE], True),
        ([PartStart(0, "thinking"), PartDelta(0, "hm"), DONE], True),
        ([PartStart(0, "text"), PartDelta(0, "a"), DONE], False),
        ([*CALL, DONE], False),
        ([PartStart(0, "provider"), PartEnd(0, raw={}), DONE], False),
        ([REFUSAL], False),
    ],
)
def test_an_empty_response_says_nothing_and_was_not_withheld(parts: list[Part], empty: bool):
    assert is_empty(respond(parts)) is empty


# --- slices, suffixes, tails ------------------------------------------------------------------------------------------

PIECES = st.text(alphabet='ab{}":1\\ é😀\0\ud83d\ude00', max_size=6)


@st.composite
def responses(draw: st.DrawFn) -> list[Part]:
    """Parts of a response whose blocks interleave; some never end."""
    parts: list[Part] = []
    open_blocks: list[int] = []
    started = 0
    for _ in range(draw(st.integers(0, 14))):
        what = draw(st.integers(0, 5))
        if what == 0 or not open_blocks:
            kind: PartType = draw(st.sampled_from(get_args(PartType)))
            parts.append(PartStart(started, kind, "find" if kind == "tool_call" else None))
            if kind == "provider":  # has no deltas
                parts.append(PartEnd(started, raw={"n": started}))
            else:
                open_blocks.append(started)
            started += 1
        elif what == 1:
            parts.append(PartEnd(open_blocks.pop(draw(st.integers(0, len(open_blocks) - 1)))))
        else:
            parts.append(PartDelta(draw(st.sampled_from(open_blocks)), draw(PIECES)))
    return parts


def tokens(events: Iterable[LiveEvent]) -> list[object]:
    """Flatten live events to units."""
    out: list[object] = []
    for event in events:
        out += [(event.block, char) for char in event.text] if isinstance(event, Delta) else [event]
    return out


def in_batches(parts: Sequence[Part], cuts: Iterable[int]) -> list[Sequence[Part]]:
    places = sorted({0, len(parts), *(cut % (len(parts) + 1) for cut in cuts)})
    return [parts[a:b] for a, b in pairwise(places)]


@given(responses(), st.lists(st.integers(0, 20), max_size=4))
def test_however_a_stream_is_sliced_the_response_is_the_same(parts: list[Part], cuts: list[int]):
    whole, sliced = builder(), builder()
    told = whole.feed(parts)
    told_in_slices = [event for batch in in_batches(parts, cuts) for event in sliced.feed(batch)]
    assert tokens(told) == tokens(told_in_slices)
    assert whole.end(1, "failed") == sliced.end(1, "failed")


@given(responses())
def test_no_delta_is_empty(parts: list[Part]):
    assert all(event.text for event in builder().feed(parts) if isinstance(event, Delta))


@given(responses())
def test_from_every_offset_the_closing_fact_gives_exactly_what_is_missing(parts: list[Part]):
    turn = builder()
    told = turn.feed(parts)
    closing, fact = turn.end(1, "failed")
    everything = tokens([*told, *closing])
    assert turn.units == len(everything)
    for seen in range(len(everything) + 3):
        assert tokens(missing(fact, STREAM, seen)) == everything[seen:]


@given(responses())
def test_from_every_offset_a_tail_gives_exactly_what_is_missing(parts: list[Part]):
    turn = builder()
    everything: list[object] = []
    for part in parts:
        everything += tokens(turn.feed([part]))
        tail = turn.tail()
        assert turn.units == len(everything)
        for seen in range(len(everything) + 3):
            assert tokens(missing_of_tail(tail, STREAM, seen)) == everything[seen:]


@given(responses())
def test_an_abandoned_response_holds_its_tail_and_the_ends_of_its_blocks(parts: list[Part]):
    turn = builder()
    told = tokens(turn.feed(parts))
    fact = abandoned(2, turn.tail())
    assert (fact.turn, fact.status) == (2, "abandoned")
    rest = tokens(missing(fact, STREAM, 0))
    assert rest[: len(told)] == told
    assert all(isinstance(token, BlockEnded) for token in rest[len(told) :])
    for seen in range(len(told)):
        assert tokens(missing(fact, STREAM, seen)) == rest[seen:]
    assert all(block.problem == INTERRUPTED for block in fact.blocks if isinstance(block, ToolCallBlock))


def test_an_abandoned_response_without_a_tail_is_empty():
    assert abandoned(1, None) == ResponseEnded(1, "abandoned")


def test_blocks_that_came_one_after_the_other_need_no_order():
    assert respond([PartStart(0, "text"), PartDelta(0, "a"), PartEnd(0), *CALL[:0], DONE]).order is None
    mixed = [PartStart(0, "text"), PartStart(1, "text"), PartDelta(0, "ab"), PartEnd(1), PartEnd(0), DONE]
    assert respond(mixed).order == ((0, 1), (1, 1), (0, 2), (1, 1), (0, 1))


def test_a_suffix_has_one_delta_per_block_where_blocks_did_not_interleave():
    turn = builder()
    for words in ("a", "b", "c"):
        turn.feed([PartStart(0, "text")] if words == "a" else [])
        turn.feed([PartDelta(0, words)])
    turn.feed([PartEnd(0), PartStart(1, "text"), PartDelta(1, "d"), DONE])
    fact = turn.end(1)[1]
    assert missing(fact, STREAM, 2) == [
        Delta(7, 0, "bc"),
        BlockEnded(7, 0),
        BlockStarted(7, 1, "text"),
        Delta(7, 1, "d"),
        BlockEnded(7, 1),
    ]
