from collections.abc import Iterable

import pytest

from ownloop.core.events import (
    Delta,
    ErrorInfo,
    Event,
    Fact,
    FactBody,
    InteractionRequested,
    Limits,
    ResponseEnded,
    RunEnded,
    RunStarted,
    ToolEnded,
    TurnStarted,
)
from ownloop.core.messages import Json, TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.projections.blocks import BlocksState, feed


def facts(*bodies: FactBody, run_id: str = "run_1", first: int = 1) -> list[Event]:
    return [Fact(seq, 0, 1, run_id, body) for seq, body in enumerate(bodies, first)]


def project(events: Iterable[Event], state: BlocksState | None = None) -> list[Json]:
    state = state or BlocksState()
    out: list[Json] = []
    for event in events:
        state, frames = feed(state, event)
        out += frames
    return out


CALL = ToolCallBlock("call_1", "find", {"q": "x"})
RUN = [
    RunStarted(Limits(), "m", ("input_1",)),
    TurnStarted(1, 1, "b", "p", "m"),
    ResponseEnded(1, "complete", (ThinkingBlock("hm"), TextBlock("I look."), TextBlock(""), CALL)),
    InteractionRequested("req_1", "approval", {"tool": "find"}, {"type": "object"}, call_id="call_1", expires_at_ms=9),
    ToolEnded("call_1", 1, "ok", (TextBlock("fo"), TextBlock("und")), 12),
    ResponseEnded(2, "complete", (TextBlock("Done."),)),
    RunEnded("completed", "end_turn", result="Done."),
]
FRAMES = [
    {"kind": "thought", "seq": 3, "run_id": "run_1", "text": "I look."},
    {"kind": "tool_call", "seq": 3, "run_id": "run_1", "call_id": "call_1", "name": "find", "input": {"q": "x"}},
    {
        "kind": "interaction_requested",
        "seq": 4,
        "run_id": "run_1",
        "request_id": "req_1",
        "purpose": "approval",
        "type": "",
        "data": {"tool": "find"},
        "schema": {"type": "object"},
        "call_id": "call_1",
        "expires_at_ms": 9,
    },
    {
        "kind": "tool_result",
        "seq": 5,
        "run_id": "run_1",
        "call_id": "call_1",
        "name": "find",
        "status": "ok",
        "is_error": False,
        "text": "found",
        "elapsed_ms": 12,
    },
    {"kind": "thought", "seq": 6, "run_id": "run_1", "text": "Done."},
    {"kind": "done", "seq": 7, "run_id": "run_1", "outcome": "completed", "result": "Done.", "stop_reason": "end_turn"},
]


def test_a_run_in_the_simple_vocabulary():
    assert project(facts(*RUN)) == FRAMES


def test_live_events_change_nothing():
    assert project([*facts(*RUN[:2]), Delta(2, 0, "I "), *facts(*RUN[2:], first=3)]) == FRAMES


def test_from_a_cursor_the_sessions_state_seeds_the_names():
    assert project(facts(*RUN[4:], first=5), BlocksState({"call_1": "find"})) == FRAMES[3:]


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        ("complete", ["thought", "tool_call"]),
        ("cut", ["thought", "tool_call"]),
        ("cancelled", ["thought"]),
        ("failed", []),
        ("abandoned", []),
    ],
)
def test_a_response_shows_what_counts_of_it(status: str, kinds: list[str]):
    body = ResponseEnded(1, status, (TextBlock("a"), CALL))  # pyright: ignore[reportArgumentType]
    assert [frame["kind"] for frame in project(facts(body))] == kinds


@pytest.mark.parametrize("status", ["error", "denied", "invalid", "cancelled", "timeout", "unknown", "not_run"])
def test_every_result_but_ok_is_an_error_to_simple_clients(status: str):
    (frame,) = project(facts(ToolEnded("call_1", 0, status)))  # pyright: ignore[reportArgumentType]
    assert frame["is_error"] is True


def test_a_failed_run_ends_in_an_error_and_nothing_after_it():
    (frame,) = project(facts(RunEnded("failed", error=ErrorInfo("auth", "the key is not accepted"))))
    assert frame == {"kind": "error", "seq": 1, "run_id": "run_1", "code": "auth", "message": "the key is not accepted"}
    assert project(facts(RunEnded("failed")))[0]["code"] == "failed"


def test_the_end_of_a_sub_agent_is_not_the_end():
    child = facts(RunStarted(Limits(), "m", depth=1), RunEnded("failed"), run_id="run_2")
    assert project(child) == []
    assert [frame["kind"] for frame in project([*child, *facts(RunEnded("completed"), first=3)])] == ["done"]
