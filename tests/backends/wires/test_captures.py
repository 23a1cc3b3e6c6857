"""What real servers wrote, through the decoder of its wire, at every slicing."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.messages import ToolCallBlock, calls_of, text_of
from ownloop.core.turn import CUT
from tests.backends.wires.streams import CAPTURES, WIRES, captures, cut, decode, one_byte_each

STREAMS = [(wire, path) for wire in WIRES for path in captures(wire)]
# Streams repeat themselves; with a prime step every place in a frame is met all the same. `make soak` cuts everywhere.
STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 23
IDS = [f"{wire}: {path.stem}" for wire, path in STREAMS]


@pytest.mark.parametrize(("wire", "path"), STREAMS, ids=IDS)
def test_a_real_stream_is_the_same_wherever_it_is_cut(wire: str, path: Path) -> None:
    body = path.read_bytes()
    whole = decode(wire, [body])
    assert decode(wire, one_byte_each(body)) == whole
    for offset in range(1, len(body), STEP):
        assert decode(wire, cut(body, [offset])) == whole


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 9_000), max_size=20))
def test_a_real_stream_is_the_same_at_random_cuts(stream: tuple[str, Path], cuts: list[int]) -> None:
    wire, path = stream
    body = path.read_bytes()
    assert decode(wire, cut(body, cuts)) == decode(wire, [body])


@pytest.mark.parametrize(("wire", "path"), STREAMS, ids=IDS)
def test_a_real_stream_that_breaks_off_is_never_a_whole_answer(wire: str, path: Path) -> None:
    body = path.read_bytes()
    text = decode(wire, [body]).fact
    for offset in range(0, len(body), 97):
        broken = decode(wire, [body[:offset]])
        assert broken.error is not None or broken.fact.blocks == text.blocks


@pytest.mark.parametrize("wire", WIRES)
def test_what_servers_said_is_what_is_read(wire: str) -> None:
    seen = {path.stem: decode(wire, [path.read_bytes()]) for path in captures(wire)}
    assert seen
    for name, outcome in seen.items():
        fact = outcome.fact
        assert (outcome.error is not None) == name.endswith("error_midstream"), name
        match name.split("_", 2)[2]:
            case "text" | "after_tool":
                assert (fact.status, fact.stop_reason) == ("complete", "end_turn"), name
                assert "Paris" in text_of(fact.blocks), name
            case "tool":
                (call,) = calls_of(fact.blocks)
                assert (call.name, call.input["city"], fact.stop_reason) == ("get_weather", "Paris", "tool_use"), name
                assert call.provider_id, name
            case "max_tokens":
                assert (fact.status, fact.stop_reason, text_of(fact.blocks)) == (
                    "cut",
                    "max_tokens",
                    "The capital of",
                ), name
            case "tool_cut":
                assert [(call.name, call.problem) for call in calls_of(fact.blocks)] == [("get_weather", CUT)], name
            case "error_midstream":
                assert outcome.error is not None
                assert (outcome.error.code, outcome.error.status) == ("provider_error", 500), name
                assert "peg-native" in (outcome.error.detail or ""), name
            case _:
                assert name in ("vllm_chat_tool_named", "vllm_chat_tool_required_bad")
                assert any(isinstance(block, ToolCallBlock) for block in fact.blocks), name
        if outcome.error is None:
            assert fact.usage is not None, name
            assert fact.usage.output, name
            assert fact.usage.input, name


def test_every_captured_stream_is_read_by_some_wire() -> None:
    read = {path.name for _, path in STREAMS}
    unread = {path.name for path in CAPTURES.glob("*.sse")} - read
    assert unread == {"vllm_error_context.sse"}  # the body of an error
