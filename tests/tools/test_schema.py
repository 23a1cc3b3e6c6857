from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import pytest
from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import TypedDict

from ownloop.core.ports import ToolContext
from ownloop.core.schema import check_schema
from ownloop.errors import ToolDefinitionError
from ownloop.tools.decorator import Tool, tool

if TYPE_CHECKING:
    from fractions import Fraction


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Address(BaseModel):
    """Where somebody lives."""

    city: str = Field(description="the town")
    title: str | None = None


class Row(TypedDict):
    sku: str


class Tree(BaseModel):
    left: Tree | None = None


def text(value: str): ...
def number(value: float): ...
def whole(value: int): ...
def yes_or_no(value: bool): ...
def anything(value: Any): ...
def literal(value: Literal["a", "b"]): ...
def choice(value: Color): ...
def choice_with_default(value: Color = Color.RED): ...
def day(value: date): ...
def money(value: Decimal): ...
def names(value: list[str]): ...
def table(value: dict[str, int]): ...
def pair(value: tuple[int, str]): ...
def one_of_each(value: set[int]): ...
def maybe(value: Optional[int] = None): ...  # noqa: UP045 - the older spelling is what is tested
def either(value: Union[int, str]): ...  # noqa: UP007
def newer_union(value: int | None): ...
def point(value: Point): ...
def point_with_default(value: Point = Point(1)): ...  # noqa: B008 - a default that is no plain JSON is what is tested
def model(value: Address): ...
def typed_dict(value: Row): ...
def described(value: Annotated[int, "how many"]): ...
def field(value: Annotated[int, Field(description="how many", ge=1)] = 3): ...
def field_as_default(value: int = Field(3, ge=1, description="how many")): ...
def own_check(value: Annotated[str, AfterValidator(str.strip)]): ...
def hidden_default(value: int | None = object()): ...  # pyright: ignore[reportArgumentType]


ADDRESS = {
    "description": "Where somebody lives.",
    "properties": {
        "city": {"description": "the town", "type": "string"},
        "title": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["city"],
    "type": "object",
}
POINT = {
    "additionalProperties": False,
    "properties": {"x": {"type": "integer"}, "y": {"default": 0, "type": "integer"}},
    "required": ["x"],
    "type": "object",
}
ROW = {"additionalProperties": False, "properties": {"sku": {"type": "string"}}, "required": ["sku"], "type": "object"}


@pytest.mark.parametrize(
    ("fn", "schema", "defs", "required"),
    [
        (text, {"type": "string"}, {}, True),
        (number, {"type": "number"}, {}, True),
        (whole, {"type": "integer"}, {}, True),
        (yes_or_no, {"type": "boolean"}, {}, True),
        (anything, {}, {}, True),
        (literal, {"enum": ["a", "b"], "type": "string"}, {}, True),
        (choice, {"$ref": "#/$defs/Color"}, {"Color": {"enum": ["red", "blue"], "type": "string"}}, True),
        (
            choice_with_default,
            {"$ref": "#/$defs/Color", "default": "red"},
            {"Color": {"enum": ["red", "blue"], "type": "string"}},
            False,
        ),
        (day, {"format": "date", "type": "string"}, {}, True),
        (names, {"items": {"type": "string"}, "type": "array"}, {}, True),
        (table, {"additionalProperties": {"type": "integer"}, "type": "object"}, {}, True),
        (
            pair,
            {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}], "type": "array"},
            {},
            True,
        ),
        (one_of_each, {"items": {"type": "integer"}, "type": "array", "uniqueItems": True}, {}, True),
        (maybe, {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, {}, False),
        (either, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}, True),
        (newer_union, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, {}, True),
        (point, {"$ref": "#/$defs/Point"}, {"Point": POINT}, True),
        (point_with_default, {"$ref": "#/$defs/Point", "default": {"x": 1, "y": 0}}, {"Point": POINT}, False),
        (model, {"$ref": "#/$defs/Address"}, {"Address": ADDRESS}, True),
        (typed_dict, {"$ref": "#/$defs/Row"}, {"Row": ROW}, True),
        (described, {"description": "how many", "type": "integer"}, {}, True),
        (field, {"description": "how many", "minimum": 1, "type": "integer", "default": 3}, {}, False),
        (field_as_default, {"description": "how many", "minimum": 1, "type": "integer", "default": 3}, {}, False),
        (own_check, {"type": "string"}, {}, True),
        (hidden_default, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, {}, False),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_an_annotation_gives_a_schema(
    fn: Callable[..., Any], schema: dict[str, Any], defs: dict[str, Any], required: bool
):
    expected: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {"value": schema}}
    if defs:
        expected["$defs"] = defs
    if required:
        expected["required"] = ["value"]

    assert tool(fn).spec.input_schema == expected


def test_a_decimal_may_be_a_number_or_text():
    forms = tool(money).spec.input_schema["properties"]["value"]["anyOf"]

    assert [form["type"] for form in forms] == ["number", "string"]


def test_a_function_without_parameters_takes_an_empty_object():
    @tool
    def now(): ...

    assert now.spec.input_schema == {"type": "object", "additionalProperties": False, "properties": {}}


def test_a_type_that_holds_itself_keeps_its_reference():
    @tool
    def prune(tree: Tree): ...

    assert prune.spec.input_schema["$defs"]["Tree"]["properties"]["left"]["anyOf"][0] == {"$ref": "#/$defs/Tree"}


def test_names_that_mean_something_to_pydantic_are_plain_parameters():
    @tool
    def odd(json: int, model_config: int, schema: int, title: str, _private: int, cls: int): ...

    assert list(odd.spec.input_schema["properties"]) == ["json", "model_config", "schema", "title", "_private", "cls"]
    assert odd.parameters.fit(
        {**dict.fromkeys(["json", "model_config", "schema", "_private", "cls"], 1), "title": ""}
    ).values


def test_postponed_annotations_may_name_types_of_the_function_around():
    class Local(BaseModel):
        n: int

    @dataclass
    class Outer:
        local: Local
        again: Outer | None = None

    @tool
    def f(local: Local, outer: list[Outer]): ...

    assert sorted(f.spec.input_schema["$defs"]) == ["Local", "Outer"]
    assert f.parameters.fit({"local": {"n": 1}, "outer": [{"local": {"n": 2}}]}).values == {
        "local": Local(n=1),
        "outer": [Outer(Local(n=2))],
    }


def context_plain(n: int, context: ToolContext): ...
def context_optional(n: int, c: ToolContext | None = None): ...
def context_older(n: int, *, c: Optional[ToolContext] = None): ...  # noqa: UP045
def context_typed(n: int, c: ToolContext[Point]): ...
def context_first(c: Annotated[ToolContext, "mine"], n: int): ...


@pytest.mark.parametrize("fn", [context_plain, context_optional, context_older, context_typed, context_first])
def test_a_context_parameter_is_hidden_under_any_name(fn: Callable[..., Any]):
    made = tool(fn)

    assert list(made.spec.input_schema["properties"]) == ["n"]
    assert made.contexts in [("c",), ("context",)]


def test_a_context_imported_for_type_checkers_only_is_known():
    names: dict[str, Any] = {}
    exec("def f(n: 'int', c: 'ToolContext | None' = None): ...", names)

    assert tool(names["f"]).contexts == ("c",)


GOOGLE = """Find people.

    Looks in the directory.

    Args:
        name (str): The family name.
        limit: At most
            so many.

    Returns:
        Their ids.
    """
NUMPY = """Find people.

    Looks in the directory.

    Parameters
    ----------
    name : str
        The family name.
    limit
        At most
        so many.

    Returns
    -------
    list
        Their ids.
    """
SPHINX = """Find people.

    Looks in the directory.

    :param str name: The family name.
    :param limit: At most
        so many.
    :returns: Their ids.
    """
EPYDOC = """Find people.

    Looks in the directory.

    @param name: The family name.
    @param limit: At most
        so many.
    @return: Their ids.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX, EPYDOC], ids=["google", "numpy", "sphinx", "epydoc"])
def test_every_docstring_form_describes_the_tool_and_each_parameter(docstring: str):
    def find(name: str, limit: int = 3): ...

    find.__doc__ = docstring
    spec = tool(find).spec

    assert spec.description.startswith("Find people.\n\nLooks in the directory.\n\nReturn")
    assert spec.description.endswith("Their ids.")
    assert spec.input_schema["properties"]["name"]["description"] == "The family name."
    assert spec.input_schema["properties"]["limit"]["description"].split() == ["At", "most", "so", "many."]


def test_words_at_the_annotation_win_over_the_docstring():
    @tool(description="Mine.")
    def f(n: Annotated[int, "near"]):
        """Do it.

        Args:
            n: far
            gone: a parameter that is no more
        """

    assert f.spec.description == "Mine."
    assert f.spec.input_schema["properties"]["n"]["description"] == "near"


def test_a_docstring_is_not_needed():
    @tool
    def f(n: int): ...

    assert f.spec.description == ""


class Opaque: ...


def no_annotation(order_id): ...  # pyright: ignore[reportMissingParameterType]
def positional_only(order_id: str, /): ...
def stars(*order_id: str): ...
def double_stars(**order_id: str): ...
def opaque(order_id: Opaque): ...
def opaque_inside(order_id: list[Opaque | None]): ...
def function_type(order_id: Callable[[], int]): ...
def iterator(order_id: list[Iterator[int]]): ...
def type_checking_only(order_id: Fraction): ...
def misspelt(order_id: "Missing"): ...  # noqa: F821, UP037 # pyright: ignore[reportUndefinedVariable]


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (no_annotation, "has no annotation"),
        (positional_only, "positional-only"),
        (stars, "no fixed form"),
        (double_stars, "no fixed form"),
        (opaque, "no JSON form"),
        (opaque_inside, "no JSON form"),
        (function_type, "no JSON form"),
        (iterator, "is an iterator"),
        (type_checking_only, "cannot be resolved (name 'Fraction' is not defined)"),
        (misspelt, "cannot be resolved (name 'Missing' is not defined)"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_signature_is_refused_with_the_names_of_tool_and_parameter(fn: Callable[..., Any], what: str):
    with pytest.raises(ToolDefinitionError) as refusal:
        tool(fn)

    assert f"tool {fn.__name__!r}" in str(refusal.value)
    assert "order_id" in str(refusal.value)
    assert what in str(refusal.value)


def test_a_model_that_was_never_completed_is_refused():
    class Half(BaseModel):
        other: NeverDefined  # noqa: F821 # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(ToolDefinitionError, match="tool 'f': parameter 'half'"):

        @tool
        def f(n: int, half: Half): ...


def test_an_authors_schema_takes_the_place_of_annotations():
    schema: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}

    @tool(schema=schema)
    def search(q, context: ToolContext): ...  # pyright: ignore[reportMissingParameterType]

    @tool(schema=schema)
    def forward(**arguments: Any): ...

    assert search.spec.input_schema == schema
    assert search.contexts == ("context",)
    assert forward.parameters.fit({"q": "x"}).values == {"q": "x"}


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "array"}, "its type must be object"),
        ({"type": "object", "properties": 3}, "is no JSON schema"),
        ({"type": "object", "properties": {"z": {}}}, "the property 'z'"),
        ({"type": "object", "properties": {"q": {}}}, "list it under required"),
    ],
)
def test_an_authors_schema_must_fit_the_function(schema: dict[str, Any], what: str):
    def search(q: str): ...

    with pytest.raises(ToolDefinitionError, match=what):
        tool(search, schema=schema)


def test_every_schema_made_here_is_a_json_schema():
    fns: list[Callable[..., Any]] = [point, model, choice, maybe, pair, money, table, own_check]
    made: list[Tool[..., Any]] = [tool(fn) for fn in fns]

    assert [check_schema(each.spec.input_schema) for each in made] == [None] * len(made)
