import pytest

from ownloop.core.codec import loads
from ownloop.core.events import (
    BlockStarted,
    Delta,
    Event,
    Fact,
    Limits,
    Note,
    Progress,
    ResponseEnded,
    RunStarted,
    ToolEnded,
)
from ownloop.core.messages import Json, TextBlock, ToolCallBlock
from ownloop.core.usage import Usage
from ownloop.projections.native import encode, encode_bytes


@pytest.mark.parametrize(
    ("event", "flat"),
    [
        (
            Fact(4, 99, 1, "run_1", ToolEnded("call_1", 1, "ok", (TextBlock("hi"),), 5)),
            {
                "kind": "tool_ended",
                "seq": 4,
                "at_ms": 99,
                "run_id": "run_1",
                "call_id": "call_1",
                "attempt": 1,
                "status": "ok",
                "blocks": [{"text": "hi", "type": "text"}],
                "elapsed_ms": 5,
                "late": False,
            },
        ),
        (
            Fact(5, 99, 1, None, Note("info", {"a": None, "b": [1]})),
            {"kind": "note", "seq": 5, "at_ms": 99, "level": "info", "data": {"a": None, "b": [1]}},
        ),
        (Delta(4, 0, "hé"), {"kind": "delta", "stream": 4, "block": 0, "text": "hé"}),
        (BlockStarted(4, 1, "text"), {"kind": "block_started", "stream": 4, "block": 1, "type": "text"}),
        (Progress(4, {"done": 0.5}), {"kind": "progress", "stream": 4, "data": {"done": 0.5}}),
    ],
)
def test_an_event_is_one_flat_object_of_what_it_says(event: Event, flat: Json):
    assert encode(event) == flat
    assert loads(encode_bytes(event)) == flat


def test_values_inside_a_fact_are_objects_and_lists():
    body = ResponseEnded(
        1, "complete", (ToolCallBlock("c", "f", {"x": None}),), order=((0, 1), (1, 2)), usage=Usage(input=3)
    )
    flat = encode(Fact(1, 0, 1, "run_1", body))
    assert flat["blocks"] == [{"call_id": "c", "name": "f", "input": {"x": None}, "type": "tool_call"}]
    assert flat["order"] == [[0, 1], [1, 2]]
    assert flat["usage"] == {"input": 3, "raw": {}}
    assert encode(Fact(1, 0, 1, "run_1", RunStarted(Limits(max_turns=None), "m")))["limits"]["failures"] == 3


def test_integers_keep_all_their_digits():
    assert loads(encode_bytes(Progress(1, 2**70)))["data"] == 2**70
