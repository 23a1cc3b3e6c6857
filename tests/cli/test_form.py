from __future__ import annotations

from typing import Any

import pytest

from ownloop.cli.form import NOTHING, Choice, Field, Misfit, field_of, fields_of, read, with_default
from ownloop.core.messages import Json

ROOMS: Json = {"enum": ["sea", "garden"]}


def one(schema: Json, *, is_required: bool = True, defs: Json | None = None) -> Field:
    return field_of("x", schema, {"$defs": defs} if defs else {}, is_required=is_required)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, " two words ", "two words"),
        ({"type": "string"}, "17", "17"),
        ({"type": "integer"}, "17", 17),
        ({"type": "integer"}, "-3", -3),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "2", 2),
        ({"type": "boolean"}, "Y", True),
        ({"type": "boolean"}, "no", False),
        (ROOMS, "2", "garden"),
        (ROOMS, "SEA", "sea"),
        ({"enum": [30, 10, 2]}, "2", 2),
        ({"enum": ["a", None]}, "2", None),
        ({"const": "only"}, "1", "only"),
        ({"oneOf": [{"const": "s", "title": "By the sea"}, {"const": "g"}]}, "by the sea", "s"),
        ({"oneOf": [{"const": "s", "title": "By the sea"}, {"const": "g"}]}, "2", "g"),
        ({"type": "array", "items": {"type": "string"}}, '["a", "b"]', ["a", "b"]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({}, "sea", "sea"),
        ({}, '{"a": 1}', {"a": 1}),
        ({"type": ["integer", "null"]}, "4", 4),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "4", 4),
        ({"type": ["integer", "string"]}, "4", 4),
    ],
)
def test_what_is_typed_becomes_the_value_that_its_schema_means(schema: Json, text: str, value: Any) -> None:
    found = read(one(schema), text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        ({"type": "integer", "maximum": 14}, "99", "99 is greater than the maximum of 14"),
        ({"type": "integer"}, "two", "this is not a whole number"),
        ({"type": "integer"}, "1.5", "1.5 is not of type 'integer'"),
        ({"type": "number"}, "true", "this is not a number"),
        ({"type": "number"}, "NaN", "this is not a number"),
        ({"type": "boolean"}, "perhaps", "answer y or n"),
        (ROOMS, "3", "choose a number from 1 to 2"),
        (ROOMS, "0", "choose a number from 1 to 2"),
        ({"enum": [30, 10]}, "1", "choose one of 30, 10"),
        ({"type": "array"}, "[1,", "this is not JSON"),
        ({"type": "array", "items": {"type": "integer"}}, '["a"]', "[0]: 'a' is not of type 'integer'"),
        ({"type": "string", "minLength": 2}, "a", "'a' is too short"),
        ({"type": "string", "minLength": 2}, "", "this one is needed"),
        ({"type": "integer"}, "  ", "this one is needed"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(schema: Json, text: str, why: str) -> None:
    with pytest.raises(Misfit) as misfit:
        read(one(schema), text)
    assert why in str(misfit.value)


def test_an_empty_line_takes_the_default_or_leaves_out_what_may_be_left_out() -> None:
    assert read(one({"type": "integer", "default": 2}), "") == 2
    assert read(one({"type": "integer", "default": None}), "") is None
    assert read(one({"type": "integer"}, is_required=False), "") is NOTHING
    assert read(one({"type": ["string", "null"]}), "") is None
    assert read(one({"type": "string"}), "") == ""
    assert read(with_default(one({"type": "string"}), "before"), "") == "before"


def test_fields_say_what_may_be_typed() -> None:
    def words(schema: Json, **settings: Any) -> str:
        return one(schema, **settings).words

    assert words({"type": "integer", "minimum": 1, "maximum": 14, "default": 2}) == "a whole number, 1 to 14, Enter: 2"
    assert words({"type": "number", "minimum": 0.5}) == "a number, at least 0.5"
    assert words({"type": "boolean", "default": False}) == "yes or no, Enter: no"
    assert words({"type": "string", "maxLength": 9}, is_required=False) == "text, at most 9 characters, may be left out"
    assert words({"type": "string", "format": "date"}) == "text, date"
    assert words(ROOMS) == "one of these"
    assert words({"type": "array"}) == "a list, as JSON: […]"
    assert words({}) == "text, or JSON"


def test_an_objects_fields_come_in_its_order_with_their_definitions() -> None:
    schema: Json = {
        "type": "object",
        "properties": {
            "room": {"$ref": "#/$defs/Room", "description": "Where it looks to."},
            "nights": {"type": "integer", "title": "How many nights?"},
            "guest": {"anyOf": [{"$ref": "#/$defs/Guest"}, {"type": "null"}], "default": None},
        },
        "required": ["room"],
        "$defs": {"Room": ROOMS, "Guest": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    fields = fields_of(schema)
    assert fields is not None
    room, nights, guest = fields
    assert (room.name, room.kind, room.description, room.is_required) == ("room", "choice", "Where it looks to.", True)
    assert room.choices == (Choice("sea", "sea"), Choice("garden", "garden"))
    assert read(room, "1") == "sea"
    assert (nights.title, nights.is_required) == ("How many nights?", False)
    assert (guest.kind, guest.default) == ("object", None)
    assert read(guest, '{"name": "Ann"}') == {"name": "Ann"}
    with pytest.raises(Misfit):
        read(guest, '{"name": 1}')


@pytest.mark.parametrize("schema", [{"type": "string"}, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_what_has_no_fields_is_asked_for_as_a_whole(schema: Json) -> None:
    assert fields_of(schema) is None


def test_a_schema_that_refers_to_itself_or_to_nothing_ends() -> None:
    assert one({"$ref": "#/$defs/A"}, defs={"A": {"$ref": "#/$defs/A"}}).kind == "any"
    assert one({"$ref": "#/$defs/B"}, defs={"A": {}}).kind == "any"
    assert one({"$ref": "https://example.com/x"}).kind == "any"
