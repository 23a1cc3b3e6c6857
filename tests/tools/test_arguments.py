from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from ownloop.core.codec import dumps
from ownloop.core.schema import problems
from ownloop.core.text import clean_json
from ownloop.tools.arguments import Parameters, decode_strings
from ownloop.tools.decorator import tool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    sku: str
    count: int = 1
    tags: list[str] = field(default_factory=list[str])


class Address(BaseModel):
    city: str
    floor: int | None = None


def even(n: int) -> int:
    if n % 2:
        raise ValueError("must be even")
    return n


def broken(n: int) -> int:
    return [][n]


@tool
def order(
    order_id: str,
    amount: float = 0,
    count: int = 1,
    urgent: bool = False,
    color: Color = Color.RED,
    when: date | None = None,
    items: list[Item] | None = None,
    to: Address | None = None,
    labels: dict[str, list[int]] | None = None,
    size: int | list[int] = 0,
    mode: Literal["a", "b"] = "a",
    pair: Annotated[int, AfterValidator(even)] = 0,
    bad: Annotated[int, AfterValidator(broken)] = 0,
): ...


PARAMETERS = order.parameters
ID = {"order_id": "1"}


def test_the_function_gets_its_own_types():
    fitted = PARAMETERS.fit(
        {
            **ID,
            "amount": 3,
            "color": "blue",
            "when": "2026-01-02",
            "items": [{"sku": "a"}],
            "to": {"city": "Ulm"},
        }
    )

    assert fitted.problems == ()
    assert fitted.values == {
        "order_id": "1",
        "amount": 3.0,
        "color": Color.BLUE,
        "when": date(2026, 1, 2),
        "items": [Item("a")],
        "to": Address(city="Ulm"),
    }


def test_what_fits_is_handed_back_as_the_very_object():
    given_input = {**ID, "items": [{"sku": "a"}]}

    assert PARAMETERS.fit(given_input).input is given_input


@pytest.mark.parametrize(
    ("input", "effective"),
    [
        ({"items": '[{"sku": "a"}]'}, {"items": [{"sku": "a"}]}),
        ({"items": [{"sku": "a", "tags": '["x"]'}]}, {"items": [{"sku": "a", "tags": ["x"]}]}),
        ({"items": '[{"sku": "a", "tags": "[\\"x\\"]"}]'}, {"items": [{"sku": "a", "tags": ["x"]}]}),
        ({"to": '{"city": "Ulm", "floor": "3"}'}, {"to": {"city": "Ulm", "floor": 3}}),
        ({"labels": '{"x": "[1, 2]"}'}, {"labels": {"x": [1, 2]}}),
        ({"size": "[1, 2]"}, {"size": [1, 2]}),
        ({"when": "null"}, {"when": "null"}),
        ({"to": "null"}, {"to": None}),
        ({"amount": "3.5"}, {"amount": 3.5}),
        ({"count": "3"}, {"count": 3}),
        ({"urgent": "true"}, {"urgent": True}),
        ({"order_id": '{"a": 1}'}, {"order_id": '{"a": 1}'}),
        ({"order_id": "12"}, {"order_id": "12"}),
    ],
)
def test_text_is_decoded_once_where_the_schema_wants_what_it_holds(input: dict[str, Any], effective: dict[str, Any]):
    fitted = PARAMETERS.fit({**ID, **input})

    if input == effective:  # a string where one is allowed stays a string, whatever it holds
        assert fitted.input == {**ID, **input}
    else:
        assert fitted.problems == ()
        assert fitted.input == {**ID, **effective}


def test_a_whole_number_written_with_a_point_is_an_integer_as_the_schema_says():
    fitted = PARAMETERS.fit({**ID, "count": 5.0})

    assert fitted.values["count"] == 5
    assert type(fitted.values["count"]) is int
    assert dumps(fitted.input) == '{"order_id":"1","count":5}'


@pytest.mark.parametrize(
    ("input", "problem"),
    [
        ({}, "order_id is missing"),
        ({"orderid": "1"}, "orderid is unknown (did you mean order_id?)"),
        ({**ID, "zzz": 1}, "zzz is unknown"),
        ({"order_id": 5}, "order_id: input should be a valid string, not 5"),
        ({**ID, "count": "many"}, 'count: input should be a valid integer, not "many"'),
        ({**ID, "count": 1.5}, "count: input should be a valid integer, not 1.5"),
        ({**ID, "count": True}, "count: input should be a valid integer, not true"),
        ({**ID, "urgent": 1}, "urgent: input should be a valid boolean, not 1"),
        ({**ID, "color": "green"}, "color: input should be 'red' or 'blue', not \"green\""),
        ({**ID, "mode": "c"}, "mode: input should be 'a' or 'b', not \"c\""),
        ({**ID, "items": '{"sku": "a"}'}, 'items: input should be a valid array, not "{\\"sku\\": \\"a\\"}"'),
        ({**ID, "items": {"sku": "a"}}, "items: input should be a valid array"),
        ({**ID, "items": [{"sku": "a"}, {"count": 1}]}, "items[1].sku is missing"),
        ({**ID, "items": [{"sku": "a", "x": 1}]}, "items[0].x is unknown"),
        ({**ID, "to": {"floor": "up"}}, "to.city is missing"),
        ({**ID, "to": {"city": 3}}, "to.city: input should be a valid string, not 3"),
        ({**ID, "size": "big"}, 'size: input should be a valid integer, not "big"'),
        ({**ID, "labels": {"x": [1, "y"]}}, 'labels.x[1]: input should be a valid integer, not "y"'),
        ({**ID, "pair": 3}, "pair: must be even, not 3"),
        ({**ID, "bad": 3}, "it could not be checked: IndexError"),
        ({**ID, "amount": float("nan")}, "it is not JSON: Out of range float values are not JSON compliant"),
        ({**ID, "amount": object()}, "it is not JSON: Object of type object is not JSON serializable"),
    ],
)
def test_a_problem_names_what_was_unknown_missing_or_wrong(input: dict[str, Any], problem: str):
    fitted = PARAMETERS.fit(input)

    assert any(found.startswith(problem) for found in fitted.problems), fitted.problems
    assert fitted.values == {}


def test_every_problem_is_told_at_once_up_to_a_limit():
    assert len(PARAMETERS.fit({"count": "x", "urgent": 3}).problems) == 3
    assert len(PARAMETERS.fit({f"x{n}": 1 for n in range(100)}).problems) == 10


def test_a_long_value_is_told_in_short():
    [problem] = PARAMETERS.fit({**ID, "count": "x" * 10_000}).problems

    assert len(problem) < 200


def test_text_that_no_provider_takes_is_cleaned_in_the_effective_input():
    fitted = PARAMETERS.fit({"order_id": "a\0b\ud800"})

    assert fitted.input == {"order_id": "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"}
    assert fitted.values == fitted.input


def test_values_are_fresh_for_each_call():
    given_input = {**ID, "labels": {"x": [1]}}
    PARAMETERS.fit(given_input).values["labels"]["x"].append(2)

    assert given_input["labels"] == {"x": [1]}


def test_the_order_of_a_dict_reaches_the_function():
    fitted = PARAMETERS.fit({**ID, "labels": {"z": [], "a": []}})

    assert list(fitted.values["labels"]) == ["z", "a"]


def test_a_field_as_default_fills_in_and_other_defaults_are_the_functions_own():
    @tool
    def f(n: int = Field(3, ge=1), m: int = 4): ...

    assert f.parameters.fit({}).values == {"n": 3}
    assert f.parameters.fit({"n": 0}).problems == ("n: input should be greater than or equal to 1, not 0",)


OWN = Parameters(
    {"type": "object", "properties": {"q": {"type": "array"}}, "required": ["q"], "additionalProperties": False}, None
)


def test_an_authors_schema_is_checked_too():
    assert OWN.fit({"q": "[1]"}).values == {"q": [1]}
    assert OWN.fit({"r": 1}).problems == (
        "Additional properties are not allowed ('r' was unexpected)",
        "'q' is a required property",
    )


def test_parameters_are_described_in_one_line():
    assert PARAMETERS.describe() == (
        "order_id: string, amount?: number, count?: integer, urgent?: boolean, "
        'color?: "red" | "blue", when?: string | null, items?: array of object | null, to?: object | null, '
        'labels?: object | null, size?: integer | array of integer, mode?: "a" | "b", pair?: integer, bad?: integer'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(list(order.spec.input_schema["properties"])) | st.text(max_size=3)


@given(st.dictionaries(NAMES, JSON, max_size=5))
def test_any_json_either_fits_the_schema_or_has_a_problem(input: dict[str, Any]):
    fitted = PARAMETERS.fit(input)

    if fitted.problems:
        assert fitted.values == {}
    else:
        assert problems(order.spec.input_schema, fitted.input) == []
        assert PARAMETERS.fit(fitted.input) == fitted


@given(JSON)
def test_what_was_encoded_too_often_is_decoded_to_what_it_was(value: Any):
    schema: dict[str, Any] = {"type": "object", "properties": {"v": {"type": ["object", "array"]}}}
    decoded = decode_strings(schema, {"v": dumps(value)})

    assert decoded == {"v": clean_json(value) if isinstance(value, dict | list) else dumps(value)}
