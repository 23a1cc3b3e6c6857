from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.core.codec import digest
from ownloop.core.events import PreparedCall, Rule
from ownloop.core.messages import BlobBlock, Json
from ownloop.core.policy import Policy
from ownloop.core.ports import PrepareContext, ToolContext
from ownloop.tools.decorator import ToolRetry, tool
from ownloop.tools.executor import DENIED
from ownloop.tools.image import Image
from tests.tools.parts import ASKING, Context, PlantedSecrets, call_of, executor_of, text_of

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


@tool(approval="ask")
async def refund(order_id: str, amount: float, items: list[str] | None = None) -> str:
    return f"refunded {order_id} {amount} {items}"


@tool(read_only=True)
async def look(order_id: str) -> str:
    return f"order {order_id}"


INPUT: Json = {"order_id": "1", "amount": 3}


# --- prepare ---------------------------------------------------------------------------------------------------------


async def test_a_call_is_prepared_with_what_an_approval_is_bound_to():
    prepared = await executor_of(refund).prepare(call_of("refund", INPUT), INPUT, ASKING)

    assert prepared == PreparedCall(
        "call_1", "ask", "approval=ask", input_digest=digest(INPUT), tool_digest=refund.spec.digest
    )


async def test_a_mended_input_is_told_and_its_digest_is_that_of_what_will_run():
    written: Json = {**INPUT, "items": '["a"]'}
    prepared = await executor_of(refund).prepare(call_of("refund", written), written, ASKING)

    assert prepared.input == {**INPUT, "items": ["a"]}
    assert prepared.input_digest == digest({**INPUT, "items": ["a"]})


async def test_an_unknown_tool_is_answered_with_those_there_are():
    prepared = await executor_of(refund, look).prepare(call_of("lok", {}), {}, ASKING)

    assert prepared.verdict == "unknown_tool"
    assert prepared.problem == "tool 'lok' is not registered; did you mean 'look'? known tools: 'refund', 'look'"
    assert (await executor_of().prepare(call_of("x", {}), {}, ASKING)).problem == (
        "tool 'x' is not registered; there are no tools"
    )


async def test_an_input_that_does_not_fit_is_answered_with_what_the_tool_takes():
    prepared = await executor_of(refund).prepare(call_of("refund", {"id": 1}), {"id": 1}, ASKING)

    assert prepared.verdict == "invalid"
    assert prepared.problem == (
        "Invalid input for tool 'refund': order_id is missing; amount is missing; id is unknown. "
        "It takes order_id: string, amount: number, items?: array of string | null."
    )


async def test_a_call_that_was_cut_never_runs():
    prepared = await executor_of(look).prepare(call_of("look", {}, problem="cut by the output limit"), {}, ASKING)

    assert (prepared.verdict, prepared.problem) == ("invalid", "cut by the output limit")


async def test_the_input_decides_and_not_the_block_it_came_in():
    edited: Json = {"order_id": "2", "amount": 4}
    prepared = await executor_of(refund).prepare(call_of("refund", INPUT), edited, ASKING)

    assert prepared.input_digest == digest(edited)


def over_a_hundred(input: Json, context: PrepareContext) -> bool:
    return input["amount"] > 100


async def over_a_hundred_later(input: Json, context: PrepareContext) -> str:
    return "deny" if input["amount"] > 100 else "allow"


def fails(input: Json, context: PrepareContext) -> bool:
    raise KeyError("sk-secret")


def forgets(input: Json, context: PrepareContext) -> None: ...


def by_deps(input: Json, context: PrepareContext) -> bool:
    return context.deps["careful"]


@pytest.mark.parametrize(
    ("predicate", "amount", "verdict", "rule"),
    [
        (over_a_hundred, 101, "ask", "approval predicate=True"),
        (over_a_hundred, 1, "run", "approval predicate=False"),
        (over_a_hundred_later, 101, "deny", "approval predicate=deny"),
        (over_a_hundred_later, 1, "run", "approval predicate=allow"),
        (fails, 1, "ask", "approval predicate raised KeyError, so a person decides"),
        (by_deps, 1, "ask", "approval predicate=True"),
        (forgets, 1, "ask", "approval predicate returned NoneType, which is no approval, so a person decides"),
    ],
)
async def test_a_predicate_decides_by_the_input(predicate: Any, amount: float, verdict: str, rule: str):
    @tool(approval=predicate)
    async def pay(amount: float): ...

    context = replace(ASKING, deps={"careful": True})
    prepared = await executor_of(pay).prepare(call_of("pay", {}), {"amount": amount}, context)

    assert (prepared.verdict, prepared.rule) == (verdict, rule)
    assert pay.spec.approval == "predicate"


async def test_a_predicate_cannot_change_what_it_decides_about():
    def meddle(input: Json, context: PrepareContext) -> bool:
        input["amount"] = 0
        return False

    @tool(approval=meddle)
    async def pay(amount: float): ...

    given_input: Json = {"amount": 5}
    prepared = await executor_of(pay).prepare(call_of("pay", given_input), given_input, ASKING)

    assert given_input == {"amount": 5}
    assert (prepared.input, prepared.input_digest) == (None, digest({"amount": 5}))


def no_opinion(name: str, input: Json, context: PrepareContext) -> None:
    return None


async def denies(name: str, input: Json, context: PrepareContext) -> str:
    return "deny" if input["amount"] > 1 else "ask"


def breaks(name: str, input: Json, context: PrepareContext) -> str:
    raise RuntimeError


@pytest.mark.parametrize(
    ("approval", "policy", "verdict", "rule"),
    [
        ("allow", None, "run", "approval=allow"),
        ("deny", None, "deny", "approval=deny"),
        ("allow", Policy(), "run", "approval=allow"),
        ("allow", Policy(default="ask"), "ask", "policy default=ask"),
        ("allow", Policy(rules={"p*": "deny"}), "deny", "policy p*=deny"),
        ("ask", Policy(rules={"pay": "allow"}), "ask", "approval=ask"),
        ("deny", Policy(rules={"pay": "allow"}), "deny", "approval=deny"),
        ("allow", no_opinion, "run", "approval=allow"),
        ("allow", denies, "deny", "policy=deny"),
        ("deny", breaks, "deny", "approval=deny"),
        ("allow", breaks, "ask", "policy raised RuntimeError, so a person decides"),
    ],
)
async def test_the_policy_can_only_make_a_verdict_stricter(approval: Any, policy: Any, verdict: str, rule: str):
    @tool(approval=approval)
    async def pay(amount: float): ...

    prepared = await executor_of(pay, policy=policy).prepare(call_of("pay", {}), {"amount": 5}, ASKING)

    assert (prepared.verdict, prepared.rule) == (verdict, rule)
    assert prepared.problem == (DENIED if verdict == "deny" else None)


async def test_a_remembered_rule_lets_exactly_this_call_run():
    rule = Rule("rule_1", "refund", refund.spec.digest, digest(INPUT))
    context = replace(ASKING, rules={"rule_1": rule})
    executor = executor_of(refund)
    other: Json = {**INPUT, "amount": 4}

    same = await executor.prepare(call_of("refund", INPUT), INPUT, context)
    different = await executor.prepare(call_of("refund", other), other, context)
    denied = await executor_of(refund, policy=Policy(default="deny")).prepare(call_of("refund", INPUT), INPUT, context)

    assert (same.verdict, same.rule) == ("run", "rule_1")
    assert (different.verdict, denied.verdict) == ("ask", "deny")


# --- execute: results ------------------------------------------------------------------------------------------------


async def run(fn: Any, input: Json | None = None, **settings: Any):
    made = fn if hasattr(fn, "spec") else tool(fn, name="f")
    return await executor_of(made, **settings).execute(made.spec.name, input or {}, Context())


async def test_a_tool_runs_and_its_result_is_rendered():
    assert text_of(await run(refund, INPUT)) == "refunded 1 3.0 None"


async def test_an_image_travels_as_a_blob():
    async def f():
        return ["before", Image(PNG)]

    result = await run(f)
    blob = result.blocks[1]

    assert isinstance(blob, BlobBlock)
    assert result.blobs[blob.digest] == ("image/png", PNG)


async def test_execute_checks_the_input_again():
    result = await run(look, {"order_id": 5})

    assert result.status == "invalid"
    assert "order_id: input should be a valid string" in text_of(result)


async def test_execute_of_an_unknown_tool_is_an_error_result():
    result = await executor_of(look).execute("lok", {}, Context())

    assert result.status == "error"
    assert "did you mean 'look'?" in text_of(result)


@dataclass
class Deps:
    rate: float


async def test_the_context_is_handed_to_the_parameter_that_asks_for_it():
    @tool
    async def convert(amount: float, ctx: ToolContext[Deps]) -> str:
        await ctx.progress({"done": 1})
        return f"{amount * ctx.deps.rate} {ctx.key} {await ctx.ask('sure?')}"

    context = Context(deps=Deps(2.0))
    result = await executor_of(convert).execute("convert", {"amount": 3}, context)

    assert text_of(result) == "6.0 key_1 answer to sure?"
    assert context.reported == [{"done": 1}]


async def test_a_plain_function_runs_in_a_thread_with_the_callers_context():
    variable: ContextVar[str] = ContextVar("variable", default="none")
    variable.set("mine")

    @tool
    def where(ctx: ToolContext) -> list[Any]:
        return [variable.get(), threading.current_thread() is threading.main_thread(), ctx.call_id]

    assert text_of(await run(where)) == '["mine",false,"call_1"]'


async def test_a_long_result_is_cut_and_kept():
    async def f():
        return "x" * 200

    result = await run(f, output_cap=100)

    assert text_of(result) == "x" * 100 + "\n[100 more characters were left out]"
    assert [len(body) for _, body in result.blobs.values()] == [200]
    assert len(result.notes) == 1


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def raise_in_place(error: BaseException) -> None:
    raise error


def raise_in_a_thread(error: BaseException) -> None:
    raise error


ERRORS = [
    (ValueError("no such order"), "Error executing f: no such order"),
    (ValueError(), "Error executing f: ValueError"),
    (ValueError(" "), "Error executing f: ValueError"),
    (KeyError("id"), "Error executing f: KeyError: 'id'"),
    (Mute(), "Error executing f: Mute"),
    (RecursionError("too deep"), "Error executing f: too deep"),
    (SystemExit(3), "Error executing f: SystemExit: 3"),
    (KeyboardInterrupt(), "Error executing f: KeyboardInterrupt"),
    (GeneratorExit(), "Error executing f: GeneratorExit"),
    (asyncio.CancelledError(), "Error executing f: CancelledError"),
    (
        ExceptionGroup("2", [ValueError("a"), ExceptionGroup("1", [KeyError("b")])]),
        "Error executing f: a; KeyError: 'b'",
    ),
    (ToolRetry("use the long id"), "use the long id"),
    (ToolRetry(), "Error executing f: ToolRetry"),
    (ValueError("key sk-1234 refused"), "Error executing f: key [API_KEY] refused"),
    (ToolRetry("not sk-1234"), "not [API_KEY]"),
    (ValueError("lone \ud800"), "Error executing f: lone \N{REPLACEMENT CHARACTER}"),
]


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize(("error", "text"), [*ERRORS, (StopIteration(1), None), (StopAsyncIteration(1), None)])
async def test_whatever_a_tool_raises_is_a_result(error: BaseException, text: str | None, in_thread: bool):
    async def later() -> None:
        await raise_in_place(error)

    def at_once() -> None:
        raise_in_a_thread(error)

    result = await run(at_once if in_thread else later, secrets=PlantedSecrets({"API_KEY": "sk-1234"}))

    assert result.status == "error"
    if text is not None:  # Python itself turns a StopIteration in a coroutine into a RuntimeError
        assert text_of(result) == text
    assert "Traceback" not in text_of(result)


async def test_endless_recursion_is_a_result():
    def f() -> Any:
        return f()

    assert text_of(await run(f)).startswith("Error executing f: maximum recursion depth exceeded")


async def test_secrets_are_redacted_in_results_too():
    async def f():
        return {"key": "sk-1234"}

    assert text_of(await run(f, secrets=PlantedSecrets({"API_KEY": "sk-1234"}))) == '{"key":"[API_KEY]"}'


async def generate() -> AsyncIterator[int]:
    yield 1


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "kind"),
    [(numbers, "a generator"), (generate, "an async_generator"), (lambda: raise_in_place(ValueError()), "a coroutine")],
)
async def test_a_result_that_cannot_be_shown_says_that_the_tool_ran(make: Any, kind: str):
    def f():
        return make()

    assert text_of(await run(f)) == (
        f"Error executing f: the tool ran, but it returned {kind}, which cannot be shown to a model; "
        "return text, JSON values, a dataclass, a pydantic model or an Image"
    )


# --- execute: cancellation -------------------------------------------------------------------------------------------


class Gate:
    """A tool's body that says when it was entered, and waits."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()

    async def wait(self) -> None:
        self.entered.set()
        await asyncio.Event().wait()


async def cancelled_in(gate: Gate, fn: Any):
    task = asyncio.create_task(run(fn))
    await gate.entered.wait()
    task.cancel()
    return await task


async def test_a_cancel_reaches_an_async_tool_and_is_confirmed():
    gate = Gate()
    cleaned_up: list[bool] = []

    async def f():
        try:
            await gate.wait()
        finally:
            cleaned_up.append(True)

    result = await cancelled_in(gate, f)

    assert (result.status, result.confirmed_cancel, cleaned_up) == ("cancelled", True, [True])


async def test_the_result_of_a_tool_that_finished_all_the_same_stands():
    gate = Gate()

    async def f():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            return "done anyway"

    result = await cancelled_in(gate, f)

    assert (result.status, result.confirmed_cancel, text_of(result)) == ("ok", False, "done anyway")


async def test_a_tool_that_fails_at_its_cancel_has_failed():
    gate = Gate()

    async def f():
        try:
            await gate.wait()
        finally:
            raise OSError("half written")

    result = await cancelled_in(gate, f)

    assert (result.status, text_of(result)) == ("error", "Error executing f: half written")


async def test_a_plain_function_runs_on_when_it_is_given_up():
    loop = asyncio.get_running_loop()
    entered, ended, go_on = asyncio.Event(), asyncio.Event(), threading.Event()

    def f():
        loop.call_soon_threadsafe(entered.set)
        go_on.wait()
        loop.call_soon_threadsafe(ended.set)

    task = asyncio.create_task(run(f))
    await entered.wait()
    task.cancel()
    result = await task
    assert not ended.is_set()
    go_on.set()
    await ended.wait()

    assert (result.status, result.confirmed_cancel) == ("unknown", False)
    assert "may or may not have taken effect" in text_of(result)


async def test_parallel_calls_do_not_touch_each_other():
    gate = Gate()

    @tool
    async def slow():
        await gate.wait()

    @tool
    async def quick(n: int) -> int:
        if n == 3:
            raise SystemExit
        return n

    executor = executor_of(slow, quick)
    waiting = asyncio.create_task(executor.execute("slow", {}, Context()))
    await gate.entered.wait()
    results = await asyncio.gather(*(executor.execute("quick", {"n": n}, Context()) for n in range(5)))

    assert [result.status for result in results] == ["ok", "ok", "ok", "error", "ok"]
    assert not waiting.done()
    waiting.cancel()
    assert (await waiting).status == "cancelled"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["refund", "look", "", "x"]), st.dictionaries(st.text(max_size=8), ANYTHING, max_size=4))
def test_neither_phase_raises_whatever_a_model_writes(name: str, input: Json):
    async def both() -> None:
        executor = executor_of(refund, look, policy=Policy(default="ask"))
        prepared = await executor.prepare(call_of(name, input), input, ASKING)
        result = await executor.execute(name, input, Context())
        assert prepared.verdict in ("ask", "invalid", "unknown_tool")
        assert (result.status == "ok") == (prepared.verdict == "ask")

    asyncio.run(both())
