"""From a Python function to a tool's parameters: annotations and docstring in, JSON schema and validator out.

Used by `decorator`, which imports it when the first tool is defined: pydantic is not paid for before. Its one
invariant: a function that cannot be offered is refused at its definition, with the tool's and the parameter's name.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, SimpleNamespace, UnionType
from typing import Annotated, Any, NoReturn, NotRequired, Union, cast, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError, SchemaValidator, to_jsonable_python
from typing_extensions import TypedDict

from ownloop.core.codec import dumps
from ownloop.core.messages import Json
from ownloop.core.ports import ToolContext
from ownloop.core.schema import check_schema
from ownloop.errors import ToolDefinitionError
from ownloop.tools.arguments import Parameters

_ENDLESS = (Iterable, Iterator, Generator, AsyncIterable, AsyncIterator)
"""pydantic reads these lazily, when the tool is already running; a call is checked before."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function's definition says to a model."""

    description: str
    parameters: Parameters
    contexts: tuple[str, ...]
    """The parameters that are given the ToolContext, and are hidden from the model."""


def read_signature(
    name: str, fn: Callable[..., Any], names: Mapping[str, Any], *, is_method: bool, schema: Json | None
) -> Signature:
    """Read a function's parameters and docstring.

    `names` are those the annotations may use beside the function's own globals; `is_method` leaves out the first
    parameter; `schema` takes the place of what the annotations say.

    Raises:
        ToolDefinitionError: the function cannot be offered to a model.
    """
    reader = _Reader(name, fn, names)
    description, told = _read_docstring(inspect.getdoc(fn) or "")
    shown: dict[str, inspect.Parameter] = {}
    types: dict[str, Any] = {}
    contexts: list[str] = []
    for parameter in reader.parameters(is_method):
        if schema is not None and parameter.kind is parameter.VAR_KEYWORD:
            continue
        annotation = reader.annotation(parameter, needed=schema is None)
        if _is_context(annotation):
            contexts.append(parameter.name)
        else:
            reader.check(parameter)
            shown[parameter.name] = parameter
            types[parameter.name] = annotation
    if schema is not None:
        parameters = reader.given(schema, shown, open_ended=reader.takes_any_keyword)
    else:
        parameters = reader.derived(shown, types, told)
    return Signature(description, parameters, tuple(contexts))


class _Reader:
    """One function's definition, and the words to refuse it with."""

    def __init__(self, name: str, fn: Callable[..., Any], names: Mapping[str, Any]) -> None:
        self._name = name
        self._fn = fn
        function = _function_of(fn)
        self._globals: dict[str, Any] = getattr(function, "__globals__", {})
        cells: Mapping[str, Any] = {}
        if inspect.isfunction(function):
            cells = _cells(function)
        # Linters move an import that only annotations use under TYPE_CHECKING; the context's we can supply.
        ours = {} if "ToolContext" in self._globals else {"ToolContext": ToolContext}
        self._names = {**ours, **cells, **names}
        self.takes_any_keyword = False

    def refuse(self, what: str, cause: BaseException | None = None) -> NoReturn:
        raise ToolDefinitionError(f"tool {self._name!r}: {what}") from cause

    def parameters(self, is_method: bool) -> list[inspect.Parameter]:
        try:
            parameters = list(inspect.signature(self._fn).parameters.values())
        except (TypeError, ValueError, NameError) as error:
            self.refuse(f"its parameters cannot be read ({error}); write a function with annotated parameters", error)
        if isinstance(self._fn, partial):
            given = cast("partial[Any]", self._fn).keywords
            parameters = [parameter for parameter in parameters if parameter.name not in given]
        self.takes_any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return parameters[1:] if is_method else parameters

    def check(self, parameter: inspect.Parameter) -> None:
        match parameter.kind:
            case parameter.POSITIONAL_ONLY:
                self.refuse(
                    f"parameter {parameter.name!r} is positional-only; arguments come by name, so remove the '/'"
                )
            case parameter.VAR_POSITIONAL | parameter.VAR_KEYWORD:
                stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
                self.refuse(
                    f"parameter '{stars}{parameter.name}' has no fixed form; "
                    "name each parameter, or take one list or dict, or pass schema= and take **keywords"
                )
            case _:
                pass

    def annotation(self, parameter: inspect.Parameter, *, needed: bool) -> Any:
        """Return what a parameter is annotated with, resolved; `Any` if it is not, and need not be."""
        name, written = parameter.name, parameter.annotation
        if written is parameter.empty:
            if not needed:
                return Any
            self.check(parameter)
            self.refuse(f"parameter {name!r} has no annotation; say what it takes, for example '{name}: str'")
        try:
            holder = SimpleNamespace(__annotations__={name: written})
            return get_type_hints(holder, self._globals, self._names, include_extras=True)[name]
        except Exception as error:  # noqa: BLE001 - an annotation is code of the author's: it may raise anything
            if not needed:
                return Any
            self.refuse(
                f"the annotation {_written(written)} of parameter {name!r} cannot be resolved ({error}); "
                "define or import what it names where the function is defined, not only under TYPE_CHECKING",
                error,
            )

    def derived(self, shown: dict[str, inspect.Parameter], types: dict[str, Any], told: dict[str, str]) -> Parameters:
        fields: dict[str, Any] = {}
        for name, parameter in shown.items():
            annotation = _described(types[name], told.get(name))
            if isinstance(parameter.default, FieldInfo):
                annotation = Annotated[annotation, parameter.default]
            elif parameter.default is not parameter.empty:
                annotation = NotRequired[annotation]
            if _mentions(types[name], _ENDLESS):
                self.refuse(f"parameter {name!r} is an iterator, which has no checkable form; use list[…]")
            fields[name] = annotation
        adapter = self._adapter(fields)
        schema = _untitled(adapter.json_schema())
        schema.setdefault("properties", {})
        for name, parameter in shown.items():
            if parameter.default is parameter.empty or isinstance(parameter.default, FieldInfo):
                continue
            try:
                schema["properties"][name]["default"] = default = to_jsonable_python(parameter.default)
                dumps(default)
            except (KeyError, TypeError, ValueError):
                # A default that is not JSON, or of an aliased parameter, is the function's own business.
                schema["properties"].get(name, {}).pop("default", None)
        return Parameters(schema, cast("SchemaValidator", adapter.validator))

    def _adapter(self, fields: dict[str, Any]) -> TypeAdapter[Any]:
        try:
            return _adapter(fields, self._names)
        except Exception as error:
            for name, field in fields.items():
                self._try(name, field)
            raise error

    def _try(self, name: str, field: Any) -> None:
        """Refuse this parameter if it alone is what has no schema."""
        try:
            _adapter({name: field}, self._names)
        except (PydanticUserError, SchemaError, NameError, TypeError, ValueError, RecursionError) as error:
            first = str(error).splitlines()[0]
            self.refuse(
                f"parameter {name!r} has a type that has no JSON form ({first}); use str, numbers, bool, list, dict, "
                "Literal, enums, dataclasses, TypedDicts or pydantic models",
                error,
            )

    def given(self, schema: Json, shown: dict[str, inspect.Parameter], *, open_ended: bool) -> Parameters:
        """Take the author's own schema, if the function can be called with what it allows."""
        wrong = check_schema(schema)
        if wrong or schema.get("type") != "object":
            self.refuse(f"schema= is no JSON schema of an object ({wrong or 'its type must be object'})")
        dumps(schema)
        properties: Json = schema.get("properties", {})
        for name in properties:
            if name not in shown and not open_ended:
                self.refuse(f"schema= has the property {name!r}, and the function no such parameter")
        for name, parameter in shown.items():
            if parameter.default is parameter.empty and name not in schema.get("required", ()):
                self.refuse(f"parameter {name!r} has no default, so schema= must list it under required")
        return Parameters(schema, None)


def _adapter(fields: dict[str, Any], names: Mapping[str, Any]) -> TypeAdapter[Any]:
    """Build the validator of keyword arguments.

    A TypedDict, for it takes any name as a parameter's, and leaves out what was not given.
    """
    arguments = cast("Any", TypedDict)("Arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", defer_build=True)
    adapter: TypeAdapter[Any] = TypeAdapter(arguments)
    adapter.rebuild(_types_namespace=names)
    adapter.json_schema()
    return adapter


def _function_of(fn: Any) -> Any:
    """Return the plain function whose globals an annotation is resolved in."""
    while not inspect.isfunction(fn):
        inner = getattr(fn, "func", None) or getattr(fn, "__func__", None) or getattr(fn, "__wrapped__", None)
        if inner is None:
            return inspect.unwrap(type(fn).__call__)
        fn = inner
    return inspect.unwrap(fn)


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated or origin is Union or origin is UnionType:
        return any(_is_context(part) for part in get_args(annotation))
    return annotation is ToolContext or origin is ToolContext


def _mentions(annotation: Any, types: tuple[Any, ...]) -> bool:
    return (
        annotation in types
        or get_origin(annotation) in types
        or any(_mentions(part, types) for part in get_args(annotation) if not isinstance(part, str))
    )


def _described(annotation: Any, told: str | None) -> Any:
    """Add the docstring's words for a parameter, and turn `Annotated[T, "words"]` into what pydantic reads.

    What stands at the annotation wins over the docstring.
    """
    inner, *extras = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    words = [Field(description=told)] if told else []
    extras = [Field(description=extra) if isinstance(extra, str) else extra for extra in extras]
    return Annotated[(inner, *words, *extras)] if words or extras else annotation


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of the whole, and of each parameter. Google, NumPy, Sphinx and Epydoc forms."""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return text.strip(), {}
    told = {param.arg_name: param.description.strip() for param in parsed.params if param.description}
    parts = [parsed.short_description, parsed.long_description]
    for section in parsed.meta:
        if not isinstance(section, docstring_parser.DocstringParam) and section.description:
            parts.append(f"{' '.join(section.args).capitalize()}: {section.description}")
    return "\n\n".join(part.strip() for part in parts if part), told


_NAMED = frozenset({"properties", "$defs"})
_VALUES = frozenset({"default", "const", "enum", "examples"})


def _untitled(schema: Any) -> Any:
    """Leave out the titles, which only repeat the names."""
    if isinstance(schema, list):
        return [_untitled(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: Json = {}
    for key, value in cast("Json", schema).items():
        if key in _NAMED:
            kept[key] = {name: _untitled(item) for name, item in value.items()}
        elif key in _VALUES:
            kept[key] = value
        elif key != "title":
            kept[key] = _untitled(value)
    return kept


def _written(annotation: object) -> str:
    return repr(annotation) if isinstance(annotation, str) else repr(str(annotation))


def _cells(function: FunctionType) -> Mapping[str, Any]:
    """Return what the scopes around a function hold for it by now; a name that is defined later is not there yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found
