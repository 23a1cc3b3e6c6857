"""The loop: what it performs and what it writes, told through `Service`, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ownloop.backends.scripted import call, fail, finish, gate, hang, say, think, using, wait
from ownloop.core import results
from ownloop.core.backend import Finish, ModelRequest, PartDelta, PartEnd, PartStart
from ownloop.core.events import (
    InteractionRequested,
    InteractionResolved,
    Limits,
    Note,
    ResponseEnded,
    RunEnded,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import text_of
from ownloop.core.ports import Hooks, ToolContext
from ownloop.errors import (
    AuthError,
    BadRequestError,
    ConfigError,
    OverloadedError,
    RateLimitedError,
    StreamInterruptedError,
)
from ownloop.store.memory import MemoryStore
from ownloop.testing.virtual_time import World
from ownloop.tools.decorator import tool
from tests.runtime.stage import Stage, play, results_of, said


def ended(status: str, text: str = "") -> dict[str, Any]:
    return {"status": status, "text": text}


async def ends(talk: Any) -> list[dict[str, Any]]:
    return [ended(body.status, text_of(body.blocks)) for body in await talk.of(ToolEnded)]


# --- a turn ----------------------------------------------------------------------------------------------------------


def test_a_message_goes_through_a_tool_to_an_answer() -> None:
    @tool
    def add(a: int, b: int) -> int:
        return a + b

    async def scene(world: World) -> None:
        stage = Stage(world, [think("2 and 3") + call("add", {"a": 2, "b": 3}), say("It is 5.")], [add])
        async with stage.open() as talk:
            result = await talk.say("2+3?")
            assert (result.state, result.outcome, result.text) == ("ended", "completed", "It is 5.")
            assert await talk.kinds() == [
                "session_started",
                "input_accepted",
                "run_started",
                "turn_started",
                "response_ended",
                "calls_prepared",
                "tool_started",
                "tool_ended",
                "turn_started",
                "response_ended",
                "run_ended",
            ]
            assert results_of(stage.backend.requests[1].messages) == ["5"]

    play(scene)


def test_a_tool_starts_only_after_its_fact_is_committed() -> None:
    seen: list[str] = []
    store = MemoryStore()

    async def scene(world: World) -> None:
        @tool
        async def look(context: ToolContext) -> str:
            seen.extend(fact.body.kind for fact in await store.read(context.session_id))
            return "seen"

        stage = Stage(world, [call("look"), say("ok")], [look], store=store)
        async with stage.open() as talk:
            await talk.say("look")
            assert seen[-1] == "tool_started"

    play(scene)


def test_calls_of_one_turn_run_at_the_same_time_and_their_results_stand_in_call_order() -> None:
    running: list[str] = []
    together = 0

    async def scene(world: World) -> None:
        @tool
        async def nap(name: str, ms: int) -> str:
            nonlocal together
            running.append(name)
            together = max(together, len(running))
            await world.clock.sleep_until(world.clock.now_ms() + ms)
            running.remove(name)
            return name

        script = [call("nap", {"name": "slow", "ms": 300}) + call("nap", {"name": "fast", "ms": 10}), say("done")]
        stage = Stage(world, script, [nap])
        async with stage.open() as talk:
            began = world.clock.now_ms()
            await talk.say("nap")
            assert together == 2
            assert [text_of(body.blocks) for body in await talk.of(ToolEnded)] == ["fast", "slow"]
            assert results_of(stage.backend.requests[1].messages) == ["slow", "fast"]
            assert world.clock.now_ms() - began < 600

    play(scene)


def test_a_plain_function_runs_in_a_thread_of_the_port_and_does_not_hold_up_another_session() -> None:
    async def scene(world: World) -> None:
        @tool
        def work() -> str:
            return "worked"

        stage = Stage(world, [call("work"), say("done")], [work])
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"

    play(scene)


def test_the_text_before_a_call_and_the_thinking_are_kept_in_the_history() -> None:
    @tool
    def noop() -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, [think("hm") + say("Wait. ") + call("noop"), say("Done")], [noop])
        async with stage.open() as talk:
            await talk.say("hi")
            assistant = stage.backend.requests[1].messages[1]
            assert [block.type for block in assistant.blocks] == ["thinking", "text", "tool_call"]
            assert results_of(stage.backend.requests[1].messages) == ["Done."]

    play(scene)


def test_an_unknown_tool_gets_an_error_result_that_lists_the_known_names() -> None:
    @tool
    def delete() -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, [call("delte"), say("sorry")], [delete])
        async with stage.open() as talk:
            await talk.say("go")
            [one] = await ends(talk)
            assert one["status"] == "error"
            assert "'delte'" in one["text"]
            assert "'delete'" in one["text"]
            assert await talk.of(ToolStarted) == []

    play(scene)


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "NaN"])
def test_broken_arguments_are_answered_with_an_error_and_never_run(arguments: str) -> None:
    ran: list[Any] = []

    @tool
    def f(a: int = 0) -> None:
        ran.append(a)

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f", arguments), say("sorry")], [f])
        async with stage.open() as talk:
            assert (await talk.say("go")).outcome == "completed"
            [one] = await ends(talk)
            assert one["status"] == "invalid"
            assert "JSON" in one["text"]
            assert ran == []

    play(scene)


def test_a_wrong_argument_is_named_to_the_model() -> None:
    @tool
    def f(a: int) -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f", {"a": "x", "b": 1}), say("sorry")], [f])
        async with stage.open() as talk:
            await talk.say("go")
            [one] = await ends(talk)
            assert one["status"] == "invalid"
            assert "'b'" in one["text"] or "b" in one["text"]

    play(scene)


def test_a_tool_that_raises_gives_the_model_its_words() -> None:
    @tool
    def f() -> None:
        raise ValueError("no such order")

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f"), say("sorry")], [f])
        async with stage.open() as talk:
            assert (await talk.say("go")).outcome == "completed"
            assert await ends(talk) == [ended("error", "Error executing f: no such order")]

    play(scene)


def test_the_same_call_with_the_same_result_gets_a_hint_the_fourth_time() -> None:
    @tool
    def look() -> str:
        return "nothing"

    async def scene(world: World) -> None:
        stage = Stage(world, [*[call("look")] * 5, say("I stop")], [look])
        async with stage.open() as talk:
            await talk.say("go")
            texts = results_of(stage.backend.requests[5].messages)
            assert texts[:3] == ["nothing"] * 3
            assert texts[3].startswith("nothing(This call was made 4 times")

    play(scene)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_max_turns_ends_the_run_after_its_last_calls_ran() -> None:
    @tool
    def f() -> str:
        return "x"

    async def scene(world: World) -> None:
        stage = Stage(world, lambda _: call("f"), [f], {"max_turns": 3})
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.outcome == "max_turns"
            assert len(await talk.of(TurnStarted)) == 3
            assert len(await talk.of(ToolEnded)) == 3
            assert (await talk.say("again")).outcome == "max_turns"

    play(scene)


def test_a_spent_budget_ends_the_run_after_its_calls_ran() -> None:
    @tool
    def f() -> str:
        return "x"

    async def scene(world: World) -> None:
        options = {"limits": Limits(budget_tokens=100)}
        stage = Stage(world, lambda _: call("f") + using(50, 10), [f], options)
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.outcome == "budget_exceeded"
            assert len(await talk.of(TurnStarted)) == 2
            assert result.usage is not None
            assert result.usage.total == 120

    play(scene)


def test_a_cut_answer_ends_the_run_with_its_stop_reason() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("half a sen") + finish("max_tokens", raw="length")])
        async with stage.open() as talk:
            result = await talk.say("go")
            assert (result.outcome, result.stop_reason, result.text) == ("completed", "max_tokens", "half a sen")

    play(scene)


def test_of_a_cut_response_only_complete_calls_run() -> None:
    ran: list[int] = []

    @tool
    def f(a: int) -> str:
        ran.append(a)
        return "ok"

    async def scene(world: World) -> None:
        script = [call("f", {"a": 1}) + call("f", '{"a": 2') + finish("max_tokens"), say("done")]
        stage = Stage(world, script, [f])
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"
            assert ran == [1]
            assert [one["status"] for one in await ends(talk)] == ["invalid", "ok"]
            assert "output limit" in results_of(stage.backend.requests[1].messages)[1]

    play(scene)


def test_a_refused_response_runs_no_call() -> None:
    ran: list[int] = []

    @tool
    def f() -> None:
        ran.append(1)

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f") + finish("other", raw="content_filter"), say("done")], [f])
        async with stage.open() as talk:
            await talk.say("go")
            assert ran == []

    play(scene)


def test_an_empty_response_is_asked_for_once_more() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[finish("end_turn"), say("Hello")]])
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "Hello"
            assert [body.attempt for body in await talk.of(TurnStarted)] == [1, 2]

    play(scene)


def test_two_empty_responses_end_the_run_completed_with_a_warning() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[finish("end_turn"), finish("end_turn")]])
        async with stage.open() as talk:
            result = await talk.say("go")
            assert (result.outcome, result.text) == ("completed", "")
            [note] = await talk.of(Note)
            assert note.level == "warning"

    play(scene)


# --- a provider that fails -------------------------------------------------------------------------------------------


def test_a_failure_before_the_first_byte_is_tried_again_after_the_back_off() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[fail(OverloadedError("busy")), fail(OverloadedError("busy")), say("Hello")]])
        async with stage.open() as talk:
            began = world.clock.now_ms()
            assert (await talk.say("go")).text == "Hello"
            assert 1500 <= world.clock.now_ms() - began < 1700
            assert [(body.turn, body.attempt) for body in await talk.of(TurnStarted)] == [(1, 1), (1, 2), (1, 3)]

    play(scene)


def test_the_providers_own_advice_is_followed_up_to_a_minute() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[fail(RateLimitedError("slow down", retry_after_s=42)), say("Hello")]])
        async with stage.open() as talk:
            began = world.clock.now_ms()
            assert (await talk.say("go")).text == "Hello"
            assert 42_000 <= world.clock.now_ms() - began < 42_200

    play(scene)


def test_a_longer_advice_fails_the_run_and_says_how_long() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [fail(RateLimitedError("slow down", retry_after_s=61, status=429))])
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.outcome == "failed"
            assert result.error is not None
            assert (result.error.code, result.error.retry_after_ms, result.error.status) == (
                "rate_limited",
                61_000,
                429,
            )
            assert len(await talk.of(TurnStarted)) == 1

    play(scene)


def test_three_failures_of_one_turn_fail_the_run_and_the_session_goes_on() -> None:
    async def scene(world: World) -> None:
        down = [fail(OverloadedError("busy"))] * 3
        stage = Stage(world, [[*down, say("Hello")]])
        async with stage.open() as talk:
            result = await talk.say("one")
            assert (result.outcome, result.error and result.error.code) == ("failed", "overloaded")
            assert len(await talk.of(TurnStarted)) == 3
            assert (await talk.say("two")).text == "Hello"
            assert said(stage.backend.requests[-1].messages) == [("user", "one"), ("user", "two")]

    play(scene)


@pytest.mark.parametrize("error", [BadRequestError("bad", status=400), AuthError("no key")])
def test_what_cannot_succeed_later_is_not_tried_again(error: Exception) -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [fail(error)])  # pyright: ignore[reportArgumentType]
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.outcome == "failed"
            assert result.error is not None
            assert result.error.retry_after_ms is None
            assert len(await talk.of(TurnStarted)) == 1

    play(scene)


def test_an_answer_that_breaks_off_fails_the_run_and_keeps_what_was_shown() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("Hel") + fail(StreamInterruptedError("gone"))])
        async with stage.open() as talk:
            result = await talk.say("go")
            assert (result.outcome, result.error and result.error.code) == ("failed", "stream_interrupted")
            [response] = await talk.of(ResponseEnded)
            assert (response.status, text_of(response.blocks)) == ("failed", "Hel")

    play(scene)


def test_with_retry_interrupted_it_is_asked_again_behind_an_abandoned_response() -> None:
    async def scene(world: World) -> None:
        options = {"limits": Limits(retry_interrupted=True)}
        stage = Stage(world, [[say("Hel") + fail(), say("Hello")]], options=options)
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "Hello"
            assert [(b.status, text_of(b.blocks)) for b in await talk.of(ResponseEnded)] == [
                ("abandoned", "Hel"),
                ("complete", "Hello"),
            ]
            assert said((await talk.state()).messages) == [("user", "go"), ("assistant", "Hello")]

    play(scene)


class Odd:
    """An adapter that does what no adapter may do."""

    name = provider = model = "odd"

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    async def start(self, request: ModelRequest) -> Any:
        for batch in self.batches:
            if isinstance(batch, BaseException):
                raise batch
            yield batch

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([RuntimeError("boom")], "RuntimeError: boom"),
        ([[PartDelta(0, "x")]], "not open"),
        ([[PartStart(0, "text"), PartDelta(0, "x")]], "Finish"),
        ([[PartStart(0, "text"), PartStart(0, "text")]], "twice"),
        ([[PartStart(0, "text"), PartDelta(0, "x"), PartEnd(0)], asyncio.CancelledError()], "cancelled its own"),
    ],
)
def test_a_backend_that_breaks_its_contract_fails_the_run_and_not_the_host(batches: Any, words: str) -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [], options={"model": Odd(*batches)})
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.outcome == "failed"
            assert result.error is not None
            assert words in result.error.message
            stage.options["model"].batches = (
                [PartStart(0, "text"), PartDelta(0, "fine"), PartEnd(0), Finish("end_turn")],
            )
            assert (await talk.say("again")).text == "fine"

    play(scene)


def test_a_key_that_is_missing_fails_the_run_with_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    async def scene(world: World) -> None:
        stage = Stage(world, [], options={"model": "openai:gpt-5"})
        async with stage.open() as talk:
            result = await talk.say("go")
            assert (result.outcome, result.error and result.error.code) == ("failed", "config")
            assert "OPENAI_API_KEY" in (result.error.message if result.error else "")
            assert (await talk.say("again")).outcome == "failed"

    play(scene)


def test_a_factory_that_raises_fails_the_run() -> None:
    def broken(model: str) -> Any:
        raise ImportError("no module named 'x'")

    async def scene(world: World) -> None:
        stage = Stage(world, [])
        async with stage.open() as talk:
            talk.host.definitions["helper"].open_backend = broken  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
            result = await talk.say("go")
            assert result.outcome == "failed"
            assert "no module named 'x'" in (result.error.message if result.error else "")

    play(scene)


def test_instructions_are_given_to_the_model_and_a_function_that_raises_fails_the_run() -> None:
    async def scene(world: World) -> None:
        async def instructions(session_id: str, config: Any) -> str:
            if len(stage.backend.requests) == 1:
                raise LookupError("no prompt")
            return f"You are in {session_id}."

        stage = Stage(world, [say("Hello"), say("Hello")], options={"instructions": instructions})
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "Hello"
            assert stage.backend.requests[0].system == f"You are in {talk.session_id}."
            result = await talk.say("go")
            assert (result.outcome, result.error and result.error.message) == ("failed", "LookupError: no prompt")

    play(scene)


@pytest.mark.parametrize("place", ["before_model", "after_model", "before_tool", "after_tool"])
def test_a_hook_that_raises_fails_the_run_and_the_session_goes_on(place: str) -> None:
    ran: list[int] = []
    broken = True

    @tool
    async def f() -> str:
        ran.append(1)
        return "ok"

    async def hook(*_: Any) -> None:
        if broken:
            raise RuntimeError(f"{place} broke")

    async def scene(world: World) -> None:
        nonlocal broken
        stage = Stage(world, lambda r: say("done") if results_of(r.messages) else call("f"), [f])
        stage.options["hooks"] = Hooks(**{place: hook})
        async with stage.open() as talk:
            result = await talk.say("go")
            assert (result.outcome, result.error and result.error.message) == ("failed", f"RuntimeError: {place} broke")
            assert ran == ([1] if place == "after_tool" else [])
            if place == "after_tool":
                assert await ends(talk) == [ended("ok", "ok")]
            broken = False
            assert (await talk.say("again")).outcome == "completed"

    play(scene)


def test_hooks_may_change_a_request_and_a_result_for_the_model_only() -> None:
    from dataclasses import replace

    from ownloop.core.messages import TextBlock

    @tool
    def f() -> str:
        return "secret"

    async def before_model(given: Any) -> Any:
        return replace(given, system="changed")

    async def after_tool(name: str, input: Any, result: Any, context: Any) -> Any:
        return replace(result, blocks=(TextBlock("public"),))

    async def scene(world: World) -> None:
        hooks = Hooks(before_model=before_model, after_tool=after_tool)
        stage = Stage(world, [call("f"), say("done")], [f], {"hooks": hooks, "instructions": "original"})
        async with stage.open() as talk:
            await talk.say("go")
            assert stage.backend.requests[1].system == "changed"
            assert await ends(talk) == [ended("ok", "public")]

    play(scene)


# --- cancel ----------------------------------------------------------------------------------------------------------


def test_a_cancel_in_mid_stream_closes_the_adapters_iterator_and_keeps_the_text() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("Hel") + hang(), say("Hello again")])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(TurnStarted)
            await talk.sleep(50)
            await talk.service.cancel(session_id=talk.session_id)
            result = await talk.service.wait(accepted)
            assert (result.outcome, result.text) == ("cancelled", "Hel")
            assert stage.backend.closed == 1
            [response] = await talk.of(ResponseEnded)
            assert (response.status, text_of(response.blocks)) == ("cancelled", "Hel")
            assert (await talk.say("go on")).text == "Hello again"
            assert said(stage.backend.requests[1].messages) == [
                ("user", "go"),
                ("assistant", "Hel"),
                ("user", "go on"),
            ]

    play(scene)


def test_a_cancelled_tool_that_confirms_ends_cancelled() -> None:
    async def scene(world: World) -> None:
        @tool
        async def wait_for_ever() -> None:
            await asyncio.Event().wait()

        stage = Stage(world, lambda r: call("wait_for_ever") if len(r.messages) == 1 else say("fine"), [wait_for_ever])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
            began = world.clock.now_ms()
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert [one["status"] for one in await ends(talk)] == ["cancelled"]
            assert world.clock.now_ms() - began < 1100
            assert (await talk.say("again")).text == "fine"

    play(scene)


def test_a_tool_that_ignores_its_cancel_ends_unknown_after_its_grace_and_cannot_hold_up_the_host() -> None:
    stopped: list[str] = []

    async def scene(world: World) -> None:
        @tool
        async def stubborn() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append("by the host")
                raise
            return "never"

        stage = Stage(world, lambda r: call("stubborn") if len(r.messages) == 1 else say("fine"), [stubborn])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
            began = world.clock.now_ms()
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert [one["status"] for one in await ends(talk)] == ["unknown"]
            assert 10_000 <= world.clock.now_ms() - began < 11_100
            assert (await talk.say("again")).text == "fine"
            assert stopped == []
        assert stopped == ["by the host"]

    play(scene)


def test_a_tool_that_finishes_after_the_cancel_keeps_its_own_result() -> None:
    async def scene(world: World) -> None:
        @tool
        async def book() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await world.clock.sleep_until(world.clock.now_ms() + 3000)
            return "booked"

        stage = Stage(world, [call("book"), say("fine")], [book])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert await ends(talk) == [ended("ok", "booked")]

    play(scene)


def test_a_plain_function_is_not_given_up_by_a_cancel_before_its_grace() -> None:
    async def scene(world: World) -> None:
        @tool
        def work() -> str:
            return "worked"

        world.threads._longest_s = 8.0
        stage = Stage(world, [call("work"), say("fine")], [work])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert await ends(talk) == [ended("ok", "worked")]

    play(scene)


def test_a_tool_cancelled_before_its_first_step_was_never_entered() -> None:
    entered: list[int] = []

    async def scene(world: World) -> None:
        @tool
        async def f() -> None:
            entered.append(1)

        async def before_tool(*_: Any) -> None:
            await asyncio.Event().wait()

        stage = Stage(world, [call("f"), say("fine")], [f], {"hooks": Hooks(before_tool=before_tool)})
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
            began = world.clock.now_ms()
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert [one["status"] for one in await ends(talk)] == ["cancelled"]
            assert world.clock.now_ms() - began < 1100
            assert entered == []

    play(scene)


def test_a_cancel_during_the_hook_after_a_tool_does_not_undo_the_tool() -> None:
    async def scene(world: World) -> None:
        @tool
        async def f() -> str:
            return "done"

        async def after_tool(*_: Any) -> None:
            await asyncio.Event().wait()

        stage = Stage(world, [call("f"), say("fine")], [f], {"hooks": Hooks(after_tool=after_tool)})
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
            await talk.sleep(10)
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert await ends(talk) == [ended("ok", "done")]

    play(scene)


def test_a_cancel_while_a_person_is_asked_withdraws_the_question() -> None:
    @tool(approval="ask")
    def pay() -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, [call("pay"), say("fine")], [pay])
        async with stage.open() as talk:
            waiting = await talk.say("go")
            assert waiting.state == "interrupted"
            await talk.service.cancel(run_id=waiting.run_id)
            await talk.rested()
            assert (await talk.service.run(waiting.run_id)).outcome == "cancelled"
            assert [one["status"] for one in await ends(talk)] == ["not_run"]
            assert await talk.asked() == []
            assert (await talk.say("again")).text == "fine"
            assert results_of(stage.backend.requests[1].messages) == [results.NOT_RUN]

    play(scene)


def test_a_cancel_during_the_back_off_ends_the_run_at_once() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[fail(RateLimitedError("later", retry_after_s=50)), say("Hello")]])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ResponseEnded)
            began = world.clock.now_ms()
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert world.clock.now_ms() - began < 1100

    play(scene)


# --- timeouts and late results ---------------------------------------------------------------------------------------


def slow(world: World, ms: int, **options: Any) -> Any:
    @tool(timeout_s=2, **options)
    async def work() -> str:
        await world.clock.sleep_until(world.clock.now_ms() + ms)
        return "worked"

    return work


@pytest.mark.parametrize("on_unknown", ["retry", "error"])
def test_a_tool_that_takes_too_long_is_answered_at_once_and_never_started_again(on_unknown: str) -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("work"), say("sorry")], [slow(world, 60_000, on_unknown=on_unknown)])
        async with stage.open() as talk:
            began = world.clock.now_ms()
            assert (await talk.say("go")).text == "sorry"
            assert 2000 <= world.clock.now_ms() - began < 2200
            [one] = await ends(talk)
            assert one["status"] == "timeout"
            assert "2 s" in one["text"]
            assert "unknown" in one["text"]
            assert len(await talk.of(ToolStarted)) == 1

    play(scene)


def test_a_read_only_tool_that_takes_too_long_is_not_in_doubt() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("work"), say("sorry")], [slow(world, 60_000, read_only=True)])
        async with stage.open() as talk:
            await talk.say("go")
            assert await ends(talk) == [ended("timeout", "The tool did not finish within 2 s.")]

    play(scene)


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ({"outcome": "ran", "result": "paid 3 EUR"}, "ok", "paid 3 EUR"),
        ({"outcome": "ran"}, "ok", results.RAN),
        ({"outcome": "not_run"}, "not_run", results.NOT_TAKEN_EFFECT),
    ],
)
def test_a_person_decides_about_a_tool_with_effects_that_took_too_long(answer: Any, status: str, words: str) -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("work"), say("thanks")], [slow(world, 60_000)])
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.state == "interrupted"
            [request] = result.requests
            assert request.purpose == "unknown_outcome"
            assert request.data["tool"] == "work"
            await talk.answer(request, answer)
            await talk.rested()
            assert await ends(talk) == [ended(status, words)]
            assert (await talk.service.run(result.run_id)).text == "thanks"

    play(scene)


def test_run_again_starts_the_next_attempt_with_the_same_key() -> None:
    keys: list[str] = []

    async def scene(world: World) -> None:
        @tool(timeout_s=2)
        async def work(context: ToolContext) -> str:
            keys.append(context.key)
            if context.attempt == 1:
                await asyncio.Event().wait()
            return f"worked at {context.attempt}"

        stage = Stage(world, [call("work"), say("thanks")], [work])
        async with stage.open() as talk:
            [request] = (await talk.say("go")).requests
            await talk.answer(request, {"outcome": "again"})
            await talk.rested()
            assert await ends(talk) == [ended("ok", "worked at 2")]
            assert len(keys) == 2
            assert len(set(keys)) == 1

    play(scene)


def test_a_late_result_answers_the_open_question_in_one_append() -> None:
    async def scene(world: World) -> None:
        @tool(timeout_s=2)
        def work() -> str:
            return "worked after all"

        world.threads._longest_s = 30.0
        world.threads._random.seed(3)
        stage = Stage(world, [call("work") + call("hold"), say("thanks")], [work])

        @tool
        async def hold() -> str:
            await world.clock.sleep_until(world.clock.now_ms() + 60_000)
            return "held"

        stage.tools = [work, hold]
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "thanks"
            late = [body for body in await talk.of(ToolEnded) if body.late]
            assert [(body.status, text_of(body.blocks)) for body in late] == [("ok", "worked after all")]
            [resolved] = await talk.of(InteractionResolved)
            assert (resolved.by, resolved.decision) == ("system", "withdrawn")
            facts = await talk.facts()
            at = next(i for i, fact in enumerate(facts) if isinstance(fact.body, InteractionResolved))
            assert isinstance(facts[at + 1].body, ToolEnded)
            assert facts[at].at_ms == facts[at + 1].at_ms

    play(scene)


def test_a_late_result_after_the_segment_comes_by_the_inbox_and_answers_the_question() -> None:
    async def scene(world: World) -> None:
        @tool(timeout_s=2)
        def work() -> str:
            return "worked after all"

        world.threads._longest_s = 30.0
        world.threads._random.seed(3)
        stage = Stage(world, [call("work"), say("thanks")], [work])
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.state == "interrupted"
            assert (await talk.service.session(talk.session_id)).owner is None
            await talk.until(RunEnded)
            assert (await talk.service.run(result.run_id)).text == "thanks"
            assert [(b.late, b.status) for b in await talk.of(ToolEnded)] == [(True, "ok")]

    play(scene)


def test_a_late_result_that_nobody_asks_for_is_noted() -> None:
    async def scene(world: World) -> None:
        @tool(timeout_s=2, on_unknown="error")
        def work() -> str:
            return "worked after all"

        world.threads._longest_s = 30.0
        world.threads._random.seed(3)
        stage = Stage(world, [call("work"), say("sorry")], [work])
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "sorry"
            await talk.until(Note)
            [note] = await talk.of(Note)
            assert note.data["late"]["status"] == "ok"
            assert note.data["text"] == "worked after all"
            assert [one["status"] for one in await ends(talk)] == ["timeout"]

    play(scene)


def test_a_tool_that_only_stopped_because_it_took_too_long_does_not_answer_the_question_about_it() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("work"), say("thanks")], [slow(world, 60_000)])
        async with stage.open() as talk:
            result = await talk.say("go")
            await talk.sleep(5000)
            assert (await talk.service.run(result.run_id)).state == "interrupted"
            assert await ends(talk) == []

    play(scene)


def test_a_person_who_answers_before_the_late_result_is_not_overruled() -> None:
    async def scene(world: World) -> None:
        @tool(timeout_s=2)
        def work() -> str:
            return "worked after all"

        world.threads._longest_s = 30.0
        world.threads._random.seed(3)
        stage = Stage(world, [call("work"), say("thanks")], [work])
        async with stage.open() as talk:
            [request] = (await talk.say("go")).requests
            await talk.answer(request, {"outcome": "not_run"})
            await talk.rested()
            await talk.until(Note)
            assert [one["status"] for one in await ends(talk)] == ["not_run"]
            [note] = await talk.of(Note)
            assert note.data["late"]["status"] == "ok"

    play(scene)


# --- a tool that asks in mid-call ------------------------------------------------------------------------------------


def asker(ask: str = "Which one?", **options: Any) -> Any:
    @tool(**options)
    async def choose(context: ToolContext) -> str:
        return f"chose {await context.ask(ask, {'type': 'string'})!r}"

    return choose


def test_a_tool_may_ask_a_person_and_its_clock_stands_still_meanwhile() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("choose"), say("done")], [asker(timeout_s=2)])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            [request] = await talk.until_asked()
            assert (request.purpose, request.data["question"]) == ("question", "Which one?")
            await talk.sleep(60_000)
            assert (await talk.service.run(accepted.run_id)).state == "running"
            await talk.answer(request, {"value": "the red one"})
            assert (await talk.service.wait(accepted)).text == "done"
            assert await ends(talk) == [ended("ok", "chose 'the red one'")]

    play(scene)


def test_a_declined_question_gives_the_tool_none() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("choose"), say("done")], [asker()])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            [request] = await talk.until_asked()
            await talk.answer(request, {"declined": True})
            await talk.service.wait(accepted)
            assert await ends(talk) == [ended("ok", "chose None")]

    play(scene)


def test_two_questions_of_one_tool_are_answered_in_any_order() -> None:
    async def scene(world: World) -> None:
        @tool(timeout_s=2)
        async def both(context: ToolContext) -> str:
            return "+".join(await asyncio.gather(context.ask("a?"), context.ask("b?")))

        stage = Stage(world, [call("both"), say("done")], [both])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            requests = {r.data["question"]: r for r in await talk.until_asked(2)}
            await talk.answer(requests["b?"], {"value": "B"})
            await talk.sleep(10_000)
            await talk.answer(requests["a?"], {"value": "A"})
            await talk.service.wait(accepted)
            assert await ends(talk) == [ended("ok", "A+B")]

    play(scene)


def test_a_tool_that_ends_with_an_open_question_takes_it_back() -> None:
    async def scene(world: World) -> None:
        @tool
        async def impatient(context: ToolContext) -> str:
            asking = asyncio.ensure_future(context.ask("Well?"))
            await world.clock.sleep_until(world.clock.now_ms() + 500)
            asking.cancel()
            return "gave up"

        stage = Stage(world, [call("impatient"), say("done")], [impatient])
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"
            [resolved] = await talk.of(InteractionResolved)
            assert (resolved.by, resolved.decision) == ("system", "withdrawn")
            assert await ends(talk) == [ended("ok", "gave up")]

    play(scene)


def test_an_answer_given_in_the_moment_the_tool_ends_is_taken_first() -> None:
    async def scene(world: World) -> None:
        ending = asyncio.Event()

        @tool
        async def impatient(context: ToolContext) -> str:
            asking = asyncio.ensure_future(context.ask("Well?"))
            await ending.wait()
            asking.cancel()
            return "gave up"

        stage = Stage(world, [call("impatient"), say("done")], [impatient])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            [request] = await talk.until_asked()
            ending.set()
            await talk.answer(request, {"value": 1})
            assert (await talk.service.wait(accepted)).text == "done"
            [resolved] = await talk.of(InteractionResolved)
            assert (resolved.by, resolved.decision) == ("local", "answered")

    play(scene)


def test_a_cancel_takes_back_the_question_of_a_running_tool() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("choose"), say("done")], [asker()])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until_asked()
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert [one["status"] for one in await ends(talk)] == ["cancelled"]
            assert await talk.asked() == []

    play(scene)


def test_a_question_that_is_open_in_a_crash_is_withdrawn_and_the_outcome_asked_for() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [call("choose"), say("done")], [asker()])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until_asked()
        async with stage.open() as talk:
            requests = await talk.until_asked(2)
            assert [request.purpose for request in requests] == ["unknown_outcome"]
            await talk.answer(requests[0], {"outcome": "not_run"})
            assert (await talk.service.wait(accepted)).text == "done"

    play(scene)


def test_progress_reaches_readers_and_what_is_no_json_is_the_tools_own_error() -> None:
    async def scene(world: World) -> None:
        @tool
        async def work(context: ToolContext) -> str:
            await context.progress({"done": 0.5})
            await context.progress(object())
            return "never"

        stage = Stage(world, [call("work"), say("done")], [work])
        async with stage.open() as talk:
            seen: list[Any] = []
            accepted = await talk.send("go")
            async for frame in talk.service.follow(accepted, "0"):
                if getattr(frame.event, "kind", "") == "progress":
                    seen.append(frame.event.data)  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
            assert seen == [{"done": 0.5}]
            [one] = await ends(talk)
            assert one["status"] == "error"

    play(scene)


# --- an executor that breaks its contract ----------------------------------------------------------------------------


def test_a_prepare_that_raises_fails_the_run_and_the_session_goes_on() -> None:
    @tool
    def f() -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f"), say("fine")], [f])
        async with stage.open() as talk:
            executor: Any = talk.host.definitions["helper"].executor  # pyright: ignore[reportAttributeAccessIssue]
            whole = executor.prepare

            async def broken(*_: Any) -> Any:
                raise KeyError("oops")

            executor.prepare = broken
            result = await talk.say("go")
            assert result.outcome == "failed"
            assert "KeyError" in (result.error.message if result.error else "")
            executor.prepare = whole
            assert (await talk.say("again")).text == "fine"

    play(scene)


def test_an_execute_that_raises_ends_the_call_with_an_error() -> None:
    @tool
    def f() -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f"), say("fine")], [f])
        async with stage.open() as talk:
            executor: Any = talk.host.definitions["helper"].executor  # pyright: ignore[reportAttributeAccessIssue]

            async def broken(*_: Any) -> Any:
                raise KeyError("oops")

            executor.execute = broken
            assert (await talk.say("go")).text == "fine"
            assert [one["status"] for one in await ends(talk)] == ["error"]

    play(scene)


# --- waits and gates -------------------------------------------------------------------------------------------------


def test_the_partial_text_of_an_open_response_is_saved_once_a_second() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [say("Hel") + wait(1500) + gate(opened) + say("lo")])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.sleep(1400)
            [tail] = await talk.host.env.store.tails(talk.session_id)
            assert tail.body["blocks"][0]["text"] == "Hel"
            opened.set()
            assert (await talk.service.wait(accepted)).text == "Hello"

    play(scene)


def test_a_request_that_expires_counts_as_denied_and_the_run_goes_on() -> None:
    @tool(approval="ask")
    def pay() -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, [call("pay"), say("fine")], [pay], {"approval_expires_s": 60})
        async with stage.open() as talk:
            result = await talk.say("go")
            assert result.state == "interrupted"
            await talk.until(RunEnded)
            assert [b.decision for b in await talk.of(InteractionResolved)] == ["expired"]
            assert await ends(talk) == [ended("denied", results.EXPIRED)]
            [asked] = await talk.of(InteractionRequested)
            facts = await talk.facts()
            assert facts[-1].at_ms - (asked.expires_at_ms or 0) < 1100

    play(scene)


def test_a_config_error_of_a_tools_secret_names_the_variable() -> None:
    @tool
    async def f(context: ToolContext) -> str:
        return context.secrets.get("PAY_KEY")

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f"), say("fine")], [f], {"secrets": ["PAY_KEY"]})
        async with stage.open() as talk:
            await talk.say("go")
            [one] = await ends(talk)
            assert one["status"] == "error"
            assert "PAY_KEY" in one["text"]

    play(scene)


def test_a_tools_secret_never_reaches_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAY_KEY", "sk-very-secret")

    @tool
    async def f(context: ToolContext) -> str:
        return f"used {context.secrets.get('PAY_KEY')}"

    async def scene(world: World) -> None:
        stage = Stage(world, [call("f"), say("fine")], [f], {"secrets": ["PAY_KEY"]})
        async with stage.open() as talk:
            await talk.say("go")
            assert await ends(talk) == [ended("ok", "used [PAY_KEY]")]

    play(scene)


def test_an_agent_cannot_be_given_an_instance_of_a_backend() -> None:
    from ownloop.agent import Agent
    from ownloop.backends.scripted import ScriptedBackend

    with pytest.raises(ConfigError, match="pass the class or a factory"):
        Agent("a", model=ScriptedBackend([say("x")]).backend())  # pyright: ignore[reportArgumentType]
