from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ownloop.errors import ToolDefinitionError
from ownloop.tools.decorator import Tool, tool
from tests.tools.parts import Context, executor_of, text_of


def test_a_tool_is_still_the_function_it_was():
    @tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert add(1) == 2
    assert add(a=1, b=3) == 4
    assert add.spec.name == "add"
    assert repr(add) == "Tool('add')"


async def test_an_async_tool_is_still_a_coroutine_function():
    @tool(approval="ask")
    async def add(a: int, b: int) -> int:
        return a + b

    assert await add(1, 2) == 3
    assert add.spec.approval == "ask"


def test_settings_reach_the_spec():
    @tool(name="x-1", description="d", approval="deny", on_unknown="error", timeout_s=2, version="3")
    async def f(): ...

    spec = f.spec
    assert (spec.name, spec.description, spec.approval, spec.on_unknown) == ("x-1", "d", "deny", "error")
    assert (spec.timeout_s, spec.version, spec.read_only, spec.cancellable) == (2, "3", False, True)


@pytest.mark.parametrize(
    ("settings", "on_unknown"),
    [({}, "ask"), ({"read_only": True}, "retry"), ({"read_only": True, "on_unknown": "error"}, "error")],
)
def test_what_an_unknown_outcome_means_follows_from_read_only(settings: dict[str, Any], on_unknown: str):
    def f(): ...

    assert tool(f, **settings).spec.on_unknown == on_unknown


def test_a_plain_function_cannot_be_cancelled():
    def f(): ...

    assert not tool(f).spec.cancellable


def test_the_digest_follows_what_was_shown_and_not_the_source():
    def first(n: int):
        return n

    def second(n: int):
        return -n

    same = tool(first, name="f").spec.digest
    assert tool(second, name="f").spec.digest == same
    assert tool(second, name="f", version="2").spec.digest != same
    assert tool(second, name="f", approval="ask").spec.digest != same


class Desk:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    def greet(self, who: str) -> str:
        return f"{self.name} greets {who}"

    @tool(approval="ask")
    async def later(self, n: int) -> str:
        return f"{self.name} {n}"

    @staticmethod
    @tool
    def alone(n: int) -> int:
        return n

    def plain(self, n: int) -> str:
        return f"{self.name} {n}"

    def __call__(self, n: int) -> str:
        return f"called {n}"


async def test_methods_are_tools_of_their_instance():
    desk = Desk("Ann")
    executor = executor_of(desk.greet, desk.later, desk.alone, desk.plain, tool(desk, name="desk"))

    assert [list(spec.input_schema["properties"]) for spec in executor.specs] == [["who"], ["n"], ["n"], ["n"], ["n"]]
    assert text_of(await executor.execute("greet", {"who": "Bo"}, Context())) == "Ann greets Bo"
    assert text_of(await executor.execute("later", {"n": 1}, Context())) == "Ann 1"
    assert text_of(await executor.execute("alone", {"n": 1}, Context())) == "1"
    assert text_of(await executor.execute("plain", {"n": 1}, Context())) == "Ann 1"
    assert text_of(await executor.execute("desk", {"n": 1}, Context())) == "called 1"


def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def around(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    return around


class Traced:
    @tool
    @traced
    async def twice(self, n: int) -> int:
        return 2 * n


async def test_a_wrapped_method_is_bound_too():
    assert text_of(await executor_of(Traced().twice).execute("twice", {"n": 2}, Context())) == "4"


def test_a_method_without_its_instance_is_refused():
    with pytest.raises(ToolDefinitionError, match="pass it from an instance, as instance.greet"):
        executor_of(Desk.greet)


async def test_wrapped_and_partial_functions_are_tools():
    @tool
    @traced
    async def double(n: int) -> int:
        return 2 * n

    async def scale(n: int, factor: int) -> int:
        return n * factor

    executor = executor_of(double, tool(functools.partial(scale, factor=3), name="triple"))

    assert [list(spec.input_schema["properties"]) for spec in executor.specs] == [["n"], ["n"]]
    assert text_of(await executor.execute("double", {"n": 2}, Context())) == "4"
    assert text_of(await executor.execute("triple", {"n": 2}, Context())) == "6"


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


def fine(): ...


@pytest.mark.parametrize(
    ("fn", "settings", "what"),
    [
        (fine, {"name": ""}, "1 to 64"),
        (fine, {"name": "has space"}, "1 to 64"),
        (fine, {"name": "größe"}, "1 to 64"),
        (fine, {"name": "x" * 65}, "1 to 64"),
        (fine, {"name": "x\n"}, "1 to 64"),
        (lambda: 1, {}, "pass name="),
        (functools.partial(fine), {}, "pass name="),
        (yields, {}, "yields"),
        (yields_later, {}, "yields"),
        (Desk, {}, "is no function"),
        (3, {"name": "three"}, "is no function"),
        (tool(fine), {"name": "again"}, "is a tool already"),
        (fine, {"approval": "maybe"}, "approval is 'maybe'"),
        (fine, {"approval": True}, "approval is True"),
        (fine, {"on_unknown": "run"}, "on_unknown is 'run'"),
        (fine, {"timeout_s": 0}, "timeout_s is 0"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_its_definition(fn: Any, settings: dict[str, Any], what: str):
    with pytest.raises(ToolDefinitionError, match=what):
        tool(fn, **settings)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ToolDefinitionError, match="tool 'fine' is there twice"):
        executor_of(fine, tool(fine, read_only=True))


def test_pydantic_is_not_paid_for_before_the_first_tool():
    code = "import sys, ownloop; ownloop.tool; import ownloop.tools.executor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert "ownloop.tools.decorator" in loaded
    assert not {"pydantic", "jsonschema", "docstring_parser"} & set(loaded)


def test_types_follow_the_function():
    @tool
    async def add(a: int) -> str:
        return str(a)

    def only_for_the_type_checker() -> None:
        typed: Tool[[int], Any] = add
        answer: str = asyncio.run(add(1))
        del typed, answer

    assert callable(only_for_the_type_checker)
