"""Hold a JSON value against the TypedDicts of a vendor's SDK, strictly: what is not declared there is a problem."""

from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict


def problems(value: Any, kind: Any, at: str = "") -> list[str]:
    """Return where `value` is not of `kind`; of a union, what is wrong with the alternative that fits best."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Required, NotRequired):
        return problems(value, args[0], at)
    if origin in (Union, UnionType):
        return min((problems(value, choice, at) for choice in args), key=len)
    if kind in (Any, object):
        return []
    if origin is Literal:
        return [] if value in args else [f"{at}: {value!r:.40} is none of {args!r:.80}"]
    if is_typeddict(kind):
        return _problems_of_object(value, kind, at)
    if origin is not None and issubclass(origin, Mapping):
        wrong = _is_no(value, dict, at)
        return wrong or [p for key, item in value.items() for p in problems(item, args[1], f"{at}.{key}")]
    if origin is not None and issubclass(origin, Iterable):
        wrong = _is_no(value, list, at)
        return wrong or [p for n, item in enumerate(value) for p in problems(item, args[0], f"{at}[{n}]")]
    return _is_no(value, (int, float) if kind is float else NoneType if kind is None else kind, at)


def _problems_of_object(value: Any, kind: Any, at: str) -> list[str]:
    wrong = _is_no(value, dict, at)
    if wrong:
        return wrong
    hints = _hints(kind)
    missing = [
        f"{at}.{key} is missing" for key, hint in hints.items() if get_origin(hint) is Required and key not in value
    ]
    unknown = [f"{at}.{key} is not declared" for key in value if key not in hints]
    return [
        *missing,
        *unknown,
        *(problem for key in value if key in hints for problem in problems(value[key], hints[key], f"{at}.{key}")),
    ]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _is_no(value: Any, kind: Any, at: str) -> list[str]:
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return [] if fits else [f"{at}: {value!r:.40} is no {kind}"]
