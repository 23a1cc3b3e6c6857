import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.codec import canonical, digest, dump_body, dumps, load_body, loads
from ownloop.core.events import (
    FACTS,
    CallsPrepared,
    CancelRequested,
    Compacted,
    ConfigChanged,
    ErrorInfo,
    FactBody,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Limits,
    Note,
    ParentRef,
    PreparedCall,
    ResponseEnded,
    Rule,
    RuleRevoked,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import BlobBlock, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.core.usage import Usage
from ownloop.errors import IllegalFactError, StoreNewerError

BIG = 2**80
EXAMPLES: list[FactBody] = [
    SessionStarted("agent", "digest", {"key": None, "n": BIG}, "ann", ParentRef("sess_0", 4)),
    InputAccepted("input_1", "steer", (TextBlock("hi", {"x": 1}), BlobBlock("d", "image/png", 3)), "ann", "k"),
    InputWithdrawn("input_1"),
    RunStarted(
        Limits(max_turns=None, budget_cost=1.5), "m", ("input_1",), "run_0", "call_0", 1, "sub", (TextBlock("t"),)
    ),
    TurnStarted(1, 2, "claude", "anthropic", "m", ("input_1",)),
    ResponseEnded(
        1,
        "cut",
        (
            TextBlock(""),
            ThinkingBlock("hm", {"signature": "s"}),
            ToolCallBlock("call_1", "find", {"n": BIG, "f": 0.1}, "toolu_1", '{"n": 1}', "cut", {"r": []}),
            ProviderBlock({"type": "server_tool_use"}),
        ),
        "max_tokens",
        "length",
        ((0, 2), (1, 3), (0, 1)),
        Usage(1, None, 0, 5, 2, {"input_tokens": 1}),
        0.25,
        "req_1",
        ErrorInfo("overloaded", "later", True, 2000, 529, "req_1", "detail"),
    ),
    CallsPrepared(1, (PreparedCall("call_1", "ask", "policy", "i", "t", {"a": 1}, "why", "question"),)),
    InteractionRequested("req_1", "approval", {"tool": "rm"}, {"type": "object"}, "kind", "call_1", "i", "t", "ann", 5),
    InteractionResolved("req_1", "ann", "approved", [1], {"a": 2}, "e", "note", Rule("rule_1", "rm", "t", "i")),
    ToolStarted("call_1", 1, "key", "policy", "e", "ask", "run_2"),
    ToolEnded("call_1", 1, "ok", (TextBlock("done"),), 12, True),
    CancelRequested("system", ErrorInfo("crash_loop", "five times")),
    RunEnded("failed", "other", Usage(), 0.0, ErrorInfo("x", "y"), {"any": ["thing", None]}),
    ConfigChanged({"model": "m2"}),
    RuleRevoked("rule_1", "ann"),
    Compacted(9, (TextBlock("so far"),), Usage(3)),
    Note("warning", {"late": "result"}),
    SessionClosed("ann"),
]


def test_there_is_an_example_of_every_kind():
    assert {body.kind for body in EXAMPLES} == set(FACTS)


@pytest.mark.parametrize("body", EXAMPLES, ids=lambda body: body.kind)
def test_a_fact_survives_its_text(body: FactBody):
    text = dump_body(body)
    assert load_body(body.kind, body.v, text) == body
    assert load_body(body.kind, body.v, text.encode()) == body


@pytest.mark.parametrize("body", EXAMPLES, ids=lambda body: body.kind)
def test_what_a_fact_does_not_say_is_not_written(body: FactBody):
    required = {f.name: getattr(body, f.name) for f in fields(body) if f.name in loads(dump_body(body))}
    least: Any = type(body)
    defaults = {f.name for f in fields(body)} - set(required)
    again = least(**required)
    assert again == body, f"{defaults} were left out, though not at their defaults"


def test_a_fact_written_before_a_field_was_added_can_be_read():
    assert load_body("tool_ended", 1, '{"call_id":"c","attempt":1,"status":"ok"}') == ToolEnded("c", 1, "ok")


@pytest.mark.parametrize(("kind", "v"), [("tool_ended", 2), ("from_the_future", 1)])
def test_a_fact_of_a_newer_release_is_refused_as_such(kind: str, v: int):
    with pytest.raises(StoreNewerError, match="upgrade ownloop"):
        load_body(kind, v, "{}")


@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        ("tool_ended", "{", "not fit its schema"),
        ("tool_ended", "[]", "not fit its schema"),
        ("tool_ended", '{"call_id":"c","attempt":1}', "status"),
        ("tool_ended", '{"call_id":"c","attempt":"1","status":"ok"}', "attempt"),
        ("tool_ended", '{"call_id":"c","attempt":1,"status":"SECRET"}', "status"),
        ("tool_ended", '{"call_id":"c","attempt":1,"status":"ok","SECRET":1}', "Extra|extra|unexpected|Unexpected"),
        ("input_withdrawn", '{"input_id":{"SECRET":1}}', "input_id"),
    ],
)
def test_a_fact_that_does_not_fit_says_where_and_not_what(kind: str, text: str, where: str):
    with pytest.raises(IllegalFactError, match=where) as caught:
        load_body(kind, 1, text)
    assert '"SECRET"' not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_json_is_not_written(value: float):
    for write in (dumps, canonical, digest):
        with pytest.raises(ValueError):
            write({"x": [value]})


@pytest.mark.parametrize("text", ["NaN", '{"x":Infinity}', "[-Infinity]"])
def test_what_is_not_json_is_not_read(text: str):
    with pytest.raises(ValueError, match="is not JSON"):
        loads(text)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_every_json_value_survives_its_text(value: Any):
    assert loads(dumps(value)) == value
    assert loads(canonical(value)) == value


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_equal_values_have_equal_digests_whatever_the_order_of_their_keys(value: dict[str, Any]):
    turned = dict(reversed(value.items()))
    assert canonical(turned) == canonical(value)
    assert digest(turned) == digest(value)
    assert digest({**value, "one more": 1}) != digest({**value, "one more": 2})


def test_a_digest_takes_any_text():
    assert len(digest("\ud83d")) == 64
