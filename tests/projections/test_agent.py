from collections.abc import Iterable
from itertools import count

import pytest

from ownloop.core.backend import Part, PartDelta, PartEnd, PartStart
from ownloop.core.events import Event, Fact, FactBody, ResponseEnded, ToolEnded, TurnStarted
from ownloop.core.messages import BlobBlock, TextBlock, ToolCallBlock
from ownloop.core.turn import TurnBuilder
from ownloop.projections.agent import AgentFrame, AgentState, feed

PARTS: list[Part] = [
    PartStart(0, "thinking"),
    PartDelta(0, "hm"),
    PartEnd(0),
    PartStart(1, "text"),
    PartDelta(1, "I look"),
    PartDelta(1, " here."),
    PartEnd(1),
    PartStart(2, "tool_call", "find"),
    PartDelta(2, '{"q":"x"}'),
    PartEnd(2),
    PartStart(3, "text"),
    PartDelta(3, "And there."),
    PartEnd(3),
]


def fact(seq: int, body: FactBody) -> Fact:
    return Fact(seq, 0, 1, "run_1", body)


def response(status: str | None = None) -> list[Event]:
    """A turn that fact 5 starts and fact 6 ends, with all its live events."""
    numbers = count(1)
    builder = TurnBuilder(5, lambda: f"call_{next(numbers)}")
    live = [event for part in PARTS for event in builder.feed([part])]
    closing, body = builder.end(1, status or "complete")  # pyright: ignore[reportArgumentType]
    return [fact(5, TurnStarted(1, 1, "b", "p", "m")), *live, *closing, fact(6, body)]


def project(events: Iterable[Event], state: AgentState | None = None) -> list[AgentFrame]:
    state = state or AgentState("sess_1")
    out: list[AgentFrame] = []
    for event in events:
        state, frames = feed(state, event)
        out += frames
    return out


def message(message_id: str, role: str, content: object) -> AgentFrame:
    return "agent:message", {"message": {"id": message_id, "role": role, "content": content}}


TEXT, TOOL = "sess_1.5", "sess_1.5.2"
STREAM: list[AgentFrame] = [
    ("agent:stream_start", {"message_id": TEXT, "role": "assistant"}),
    ("agent:stream_delta", {"message_id": TEXT, "delta": "I look"}),
    ("agent:stream_delta", {"message_id": TEXT, "delta": " here."}),
    ("agent:stream_start", {"message_id": TOOL, "role": "tool_call", "tool_name": "find"}),
    ("agent:stream_delta", {"message_id": TOOL, "delta": '{"q":"x"}'}),
    ("agent:stream_end", {"message_id": TOOL}),
    ("agent:stream_delta", {"message_id": TEXT, "delta": "And there."}),
    ("agent:stream_end", {"message_id": TEXT}),
]
MESSAGES: list[AgentFrame] = [
    message(TEXT, "assistant", "I look here.\nAnd there."),
    message(TOOL, "tool_call", {"id": "call_1", "tool": "find", "input": {"q": "x"}}),
]


def test_a_response_streams_and_then_comes_as_messages():
    assert project(response()) == STREAM + MESSAGES


def test_who_was_away_for_the_whole_response_gets_its_messages_with_the_same_ids():
    assert project(event for event in response() if isinstance(event, Fact)) == MESSAGES


def test_from_a_cursor_the_sessions_state_seeds_the_open_turn():
    assert project(response()[1:], AgentState("sess_1", turns={"run_1": 5})) == STREAM + MESSAGES


@pytest.mark.parametrize(
    ("status", "messages"),
    [("complete", MESSAGES), ("cut", MESSAGES), ("cancelled", MESSAGES[:1]), ("failed", []), ("abandoned", [])],
)
def test_every_stream_ends_and_only_what_counts_becomes_a_message(status: str, messages: list[AgentFrame]):
    assert project(response(status)) == STREAM + messages


def test_a_response_of_calls_alone_has_no_text_message():
    body = ResponseEnded(1, "complete", (ToolCallBlock("call_1", "find", {}),))
    frames = project([fact(5, TurnStarted(1, 1, "b", "p", "m")), fact(6, body)])
    assert frames == [message("sess_1.5.0", "tool_call", {"id": "call_1", "tool": "find", "input": {}})]


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ((), "Done."),
        ((TextBlock(""),), "Done."),
        ((BlobBlock("d", "image/png", 1), TextBlock("first"), TextBlock("second")), "first"),
        ((TextBlock("x" * 15_001),), "x" * 15_000),
        ((TextBlock("Tool use was denied by the user."),), "Tool use was denied by the user."),
    ],
)
def test_a_tool_result_shows_its_first_text(blocks: tuple[TextBlock | BlobBlock, ...], text: str):
    frames = project([*response(), fact(8, ToolEnded("call_1", 1, "ok", blocks, 12))])
    assert frames[-1] == message("sess_1.8", "tool_result", {"text": text, "tool_name": "find", "elapsed_ms": 12})


def test_a_second_response_does_not_share_the_ids_of_the_first():
    numbers = count(1)
    builder = TurnBuilder(9, lambda: f"call_{next(numbers)}")
    again = [fact(9, TurnStarted(2, 1, "b", "p", "m")), *builder.feed([PartStart(0, "text"), PartDelta(0, "More")])]
    assert project([*response(), *again])[-2:] == [
        ("agent:stream_start", {"message_id": "sess_1.9", "role": "assistant"}),
        ("agent:stream_delta", {"message_id": "sess_1.9", "delta": "More"}),
    ]


def test_nothing_is_kept_of_what_is_over():
    state = AgentState("sess_1")
    for event in [*response(), fact(8, ToolEnded("call_1", 1, "ok"))]:
        state, _ = feed(state, event)
    assert state == AgentState("sess_1")
