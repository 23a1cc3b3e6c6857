from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.testing.wire_cases import WIRES, WireCase, check_case, decode_case, load_cases
from ownloop.testing.wire_requests import matches, problems_of_request

CASES = load_cases(Path(__file__).parents[1] / "cases")
REPLIES = [case for case in CASES if case.kind != "request"]
# Byte by byte, the one case of 200,000 bytes takes seconds; its cuts are drawn like everybody's.
SMALL = [case for case in REPLIES if len(b"".join(case.chunks)) < 4_000]


def ids(cases: list[WireCase]) -> list[str]:
    return [case.name for case in cases]


def test_the_cases_are_there() -> None:
    assert sum(case.wire == "openai-chat" for case in CASES) >= 40
    assert sum(case.wire == "anthropic-messages" for case in CASES) >= 20
    assert sum(case.wire == "openai-responses" for case in CASES) >= 30
    assert {case.wire for case in CASES} <= WIRES.keys()
    assert {case.kind for case in CASES} == {"response", "request", "roundtrip"}
    assert len(REPLIES) - len(SMALL) == 1


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_a_case_holds_as_it_was_written(case: WireCase) -> None:
    assert check_case(case) == []


@pytest.mark.parametrize("case", SMALL, ids=ids(SMALL))
def test_a_case_holds_byte_by_byte(case: WireCase) -> None:
    body = b"".join(case.chunks)
    assert check_case(case, [body[i : i + 1] for i in range(len(body))]) == []


@pytest.mark.parametrize("case", REPLIES, ids=ids(REPLIES))
def test_a_case_holds_in_one_piece(case: WireCase) -> None:
    assert check_case(case, [b"".join(case.chunks)]) == []


@pytest.mark.parametrize("case", SMALL, ids=ids(SMALL))
def test_a_response_is_the_same_wherever_it_is_cut_in_two(case: WireCase) -> None:
    body = b"".join(case.chunks)
    whole = decode_case(case, [body])
    for cut in range(1, len(body), 1 + len(body) // 1_000):  # the time grows with the square of the size
        assert decode_case(case, [body[:cut], body[cut:]]) == whole


@given(st.data())
def test_a_response_is_the_same_however_it_is_cut(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(REPLIES))
    body = b"".join(case.chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    slices = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert decode_case(case, slices) == decode_case(case)


def test_the_runner_notices_each_kind_of_difference() -> None:
    case = next(case for case in CASES if case.name == "oai-empty-id-and-name-on-continuations")

    def expecting(**changes: object) -> list[str]:
        return check_case(WireCase(case.name, case.raw | {"expect": case.raw["expect"] | changes}))

    call = case.raw["expect"]["tool_calls"][0]
    assert expecting() == []
    assert expecting(text="something") != []
    assert expecting(stop_reason="end_turn") != []
    assert expecting(error="provider_error") != []
    assert expecting(usage={"input_tokens": 3}) != []
    assert expecting(tool_calls=[]) != []
    assert expecting(tool_calls=[call | {"id": "other"}]) != []
    assert expecting(tool_calls=[call | {"input": {}}]) != []
    assert expecting(any_of=[{"text": "a"}, {"text": "b"}]) != []


BODY = {
    "messages": [
        {"role": "system", "content": "terse"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
        {"role": "tool", "content": '{"k": 1}', "id": None},
    ]
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("messages[0].role", ["system"]),
        ("messages[-1].content", ['{"k": 1}']),
        ("messages[*].role", ["system", "user", "tool"]),
        ("messages[role=user].content[0].text", ["a"]),
        ("messages[1].content[type=text,-1].text", ["b"]),
        ("messages[2].id", [None]),
        ("messages[9].role", []),
        ("messages[0].content[type=text]", []),
    ],
)
def test_a_path_names_its_values(path: str, found: list[object]) -> None:
    assert matches(BODY, path) == found


@pytest.mark.parametrize(
    ("assertion", "holds"),
    [
        ({"path": "messages[0].role", "equals": "system"}, True),
        ({"path": "messages[0].role", "equals": "user"}, False),
        ({"path": "messages[*].role", "sequence": ["system", "user", "tool"]}, True),
        ({"path": "messages[*].role", "unique": True}, True),
        ({"path": "messages[1].content", "text_equals": "ab"}, True),
        ({"path": "messages[*].content", "text_contains": "terse"}, False),
        ({"path": "messages[*].content", "text_contains": "terse", "any": True}, True),
        ({"path": "messages[2].content", "json_equals": {"k": 1}}, True),
        ({"path": "messages[2].content", "json_type": "array"}, False),
        ({"path": "messages[0].role", "same_as": "messages[2].role"}, False),
        ({"path": "tools", "exists": False}, True),
        ({"path": "tools", "length": 1}, False),
        ({"path": "tools", "length": 1, "optional": True}, True),
        ({"path": "tools", "equals": 1, "when": "tools"}, True),
        ({"path": "messages[0].role", "equals": "x", "when_last_role": "user"}, True),
        ({"path": "messages[1].content", "text_min_length": 9, "skip_blocks": ["text", "image"]}, False),
        ({"path": "messages[0].content", "matches": "ter"}, False),
        ({"path": "messages[role=tool]", "length_of_matches": 1}, True),
    ],
)
def test_an_assertion_holds_or_not(assertion: dict[str, object], holds: bool) -> None:
    assert (problems_of_request(BODY, [assertion]) == []) is holds
