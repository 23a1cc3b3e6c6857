"""Check a request's JSON body against the `expect_request` assertions of a wire case (tests/cases/README.md).

For tests. The invariant: an assertion whose path matches nothing fails, unless it says otherwise itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

Assertion: TypeAlias = Mapping[str, Any]

_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")
_TYPES: Final = {
    "string": str,
    "object": dict,
    "array": list,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_META: Final = frozenset({"path", "any", "optional", "when", "when_last_role", "skip_blocks"})


def problems_of_request(body: Any, assertions: Sequence[Assertion]) -> list[str]:
    """Return what `body` does not fulfil, one sentence each; empty if it is as expected."""
    found: list[str] = []
    for assertion in assertions:
        if "when" in assertion and not matches(body, assertion["when"]):
            continue
        if "when_last_role" in assertion and body["messages"][-1]["role"] != assertion["when_last_role"]:
            continue
        path = assertion["path"]
        values = matches(body, path)
        skipped = assertion.get("skip_blocks")
        if skipped:
            values = [value for value in values if not _only_blocks(value, skipped)]
        for operator, wanted in assertion.items():
            if operator in _META:
                continue
            if not _holds(body, operator, wanted, values, assertion):
                found.append(f"{path}: {operator} {wanted!r} does not hold for {values!r}"[:500])
    return found


def _holds(body: Any, operator: str, wanted: Any, values: list[Any], assertion: Assertion) -> bool:
    if operator == "exists":
        return bool(values) == wanted
    if operator in _OVER_ALL:
        return _OVER_ALL[operator](body, values, wanted)
    if not values:
        return bool(assertion.get("optional"))
    results = [_PER_MATCH[operator](value, wanted) for value in values]
    return any(results) if assertion.get("any") else all(results)


def matches(body: Any, path: str) -> list[Any]:
    """Return all that `path` names: `a.b`, `[n]`, `[*]`, `[k=v]`, `[k=v,n]`; negative n count from the end."""
    values = [body]
    for name, index in _STEP.findall(path):
        values = [found for value in values for found in (_field(value, name) if name else _items(value, index))]
    return values


def _field(value: Any, name: str) -> list[Any]:
    fields = _object(value)
    return [fields[name]] if name in fields else []


def _items(value: Any, index: str) -> list[Any]:
    items = _list(value)
    if index == "*":
        return items
    if "=" not in index:
        return _nth(items, index)
    key, _, rest = index.partition("=")
    wanted, comma, number = rest.partition(",")
    hits = [item for item in items if str(_object(item).get(key)) == wanted]
    return _nth(hits, number) if comma else hits


def _nth(items: list[Any], number: str) -> list[Any]:
    position = int(number)
    return [items[position]] if -len(items) <= position < len(items) else []


def _text(value: Any) -> str:
    """Join the text blocks of a content; a string is its own text."""
    if isinstance(value, str):
        return value
    blocks = [_object(item) for item in _list(value)]
    return "".join(block.get("text") or "" for block in blocks if block.get("type") == "text")


def _only_blocks(value: Any, types: Sequence[str]) -> bool:
    return isinstance(value, list) and all(_object(item).get("type") in types for item in _list(value))


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list) else []


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


_PER_MATCH: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "equals": lambda value, wanted: value == wanted,
    "not_equals": lambda value, wanted: value != wanted,
    "one_of": lambda value, wanted: value in wanted,
    "type": lambda value, wanted: isinstance(value, _TYPES[wanted]),
    "matches": lambda value, wanted: isinstance(value, str) and re.fullmatch(wanted, value) is not None,
    "contains": lambda value, wanted: wanted in value,
    "length": lambda value, wanted: len(value) == wanted,
    "min_length": lambda value, wanted: len(value) >= wanted,
    "json_equals": lambda value, wanted: _json(value) == wanted,
    "json_type": lambda value, wanted: isinstance(_json(value), _TYPES[wanted]),
    "text_equals": lambda value, wanted: _text(value) == wanted,
    "text_contains": lambda value, wanted: wanted in _text(value),
    "text_min_length": lambda value, wanted: len(_text(value)) >= wanted,
    "text_matches": lambda value, wanted: re.fullmatch(wanted, _text(value)) is not None,
}
_OVER_ALL: Final[Mapping[str, Callable[[Any, list[Any], Any], bool]]] = {
    "sequence": lambda _, values, wanted: values == wanted,
    "unique": lambda _, values, wanted: (len({json.dumps(value) for value in values}) == len(values)) == wanted,
    "same_as": lambda body, values, wanted: bool(values) and values == matches(body, wanted),
    "length_of_matches": lambda _, values, wanted: len(values) == wanted,
}
