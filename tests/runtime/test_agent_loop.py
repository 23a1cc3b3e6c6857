"""AgentLoop alone, under a provider that knows the contract and nothing beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ownloop.core.provider import ProviderMessage, StreamEvent, ToolSchema
from ownloop.core.turn import CUT, INTERRUPTED, WITHHELD
from ownloop.errors import OverloadedError, StreamInterruptedError
from ownloop.runtime.agent_loop import CANCELLED, MAX_TOKENS, AgentLoop
from tests.runtime.loop_scene import STOP, Scene, ScriptedProvider, cancel_when, is_valid, text, tool, usage

# --- the sequence ---


async def test_text_two_calls_and_a_final_text_are_shown_in_this_sequence():
    provider = ScriptedProvider(
        [
            usage(input_tokens=10),
            *text("Let me ", "see."),
            *tool("add", '{"a": 1,', ' "b": 2}', id="t1", index=1),
            *text("And more.", index=2),
            *tool("list", id="t2", index=3),
            usage(output_tokens=7),
            STOP,
        ],
        [*text("Done"), STOP],
    )
    scene = Scene(provider)

    async def slow(input: dict[str, Any]) -> Any:
        scene.clock.now_s += 1.5
        return [{"type": "text", "text": "3"}]

    scene.results["add"] = slow

    await scene.loop.run("What is 1 + 2?")

    assert scene.log == [
        ("stream_start", "A", {"role": "assistant"}),
        ("stream_delta", "A", {"delta": "Let me "}),
        ("stream_delta", "A", {"delta": "see."}),
        ("stream_start", "B", {"role": "tool_call", "tool_name": "add"}),
        ("stream_delta", "B", {"delta": '{"a": 1,'}),
        ("stream_delta", "B", {"delta": ' "b": 2}'}),
        ("stream_end", "B"),
        ("stream_delta", "A", {"delta": "And more."}),
        ("stream_start", "C", {"role": "tool_call", "tool_name": "list"}),
        ("stream_end", "C"),
        ("stream_end", "A"),
        ("message", "A", "assistant", "Let me see.\nAnd more."),
        ("message", "B", "tool_call", {"id": "t1", "tool": "add", "input": {"a": 1, "b": 2}}),
        ("message", "C", "tool_call", {"id": "t2", "tool": "list", "input": {}}),
        ("ask", "add", {"a": 1, "b": 2}),
        ("execute", "add", {"a": 1, "b": 2}),
        ("message", "D", "tool_result", {"text": "3", "tool_name": "add", "elapsed_ms": 1500}),
        ("ask", "list", {}),
        ("execute", "list", {}),
        ("message", "E", "tool_result", {"text": "list ran", "tool_name": "list", "elapsed_ms": 0}),
        ("stream_start", "F", {"role": "assistant"}),
        ("stream_delta", "F", {"delta": "Done"}),
        ("stream_end", "F"),
        ("message", "F", "assistant", "Done"),
    ]


async def test_the_history_is_what_the_provider_formatted_and_one_tool_result_message_per_turn():
    provider = ScriptedProvider(
        [*text("I add."), *tool("add", '{"a":1}', id="t1"), *tool("list", "{}", id="t2", index=2), STOP],
        [*text("Done"), STOP],
    )
    scene = Scene(provider)
    await scene.loop.run("Hi")

    assert scene.loop.messages == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "list", "input": {}},
            ],
        },
        ProviderMessage(
            "tool_result",
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "add ran"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "list ran"}]},
            ],
        ),
        {"role": "assistant", "content": [{"type": "text", "text": "Done"}]},
    ]
    assert provider.asked == [scene.loop.messages[:1], scene.loop.messages[:3]]
    assert provider.request == ("m1", "Be brief.", [ToolSchema("add", "Adds.", {"type": "object"})])


async def test_a_second_run_goes_on_with_the_conversation_and_with_fresh_message_ids():
    provider = ScriptedProvider([*text("One"), STOP], [*text("Two"), STOP])
    scene = Scene(provider)
    await scene.loop.run("first")
    await scene.loop.run("second")
    assert [message["role"] for message in provider.asked[1]] == ["user", "assistant", "user"]
    assert [entry[:2] for entry in scene.shown("message")] == [("message", "A"), ("message", "B")]


async def test_two_loops_of_one_session_never_share_a_message_id():
    seen: list[str] = []

    async def emit(event: str, data: dict[str, Any]) -> None:
        seen.append(data.get("message_id") or data["message"]["id"])

    for _ in range(2):
        provider = ScriptedProvider([*text("One"), STOP])
        await AgentLoop("s1", provider, "m", None, [], _unused, _unused, emit).run("hi")
    assert len(set(seen)) == 2


async def _unused(name: str, input: dict[str, Any]) -> Any:
    raise AssertionError("nothing was called")


async def test_interleaved_blocks_keep_their_own_text_and_ids():
    start_a, delta_a, stop_a = tool("add", '{"n":1}', id="t1", index=7)
    start_b, delta_b, stop_b = tool("sub", '{"n":2}', id="t2", index=3)
    provider = ScriptedProvider([start_a, start_b, delta_b, delta_a, stop_b, stop_a, STOP], [STOP])
    scene = Scene(provider)
    await scene.loop.run("go")
    assert scene.shown("stream_start", "stream_delta", "stream_end", "message")[:8] == [
        ("stream_start", "A", {"role": "tool_call", "tool_name": "add"}),
        ("stream_start", "B", {"role": "tool_call", "tool_name": "sub"}),
        ("stream_delta", "B", {"delta": '{"n":2}'}),
        ("stream_delta", "A", {"delta": '{"n":1}'}),
        ("stream_end", "B"),
        ("stream_end", "A"),
        ("message", "A", "tool_call", {"id": "t1", "tool": "add", "input": {"n": 1}}),
        ("message", "B", "tool_call", {"id": "t2", "tool": "sub", "input": {"n": 2}}),
    ]
    assert [entry[1:] for entry in scene.shown("execute")] == [("add", {"n": 1}), ("sub", {"n": 2})]


async def test_unknown_events_blocks_and_deltas_are_ignored():
    provider = ScriptedProvider(
        [
            StreamEvent("ping"),
            StreamEvent("content_block_delta", 9, delta_type="text_delta", text="never started"),
            StreamEvent("content_block_stop", 9),
            StreamEvent("content_block_start", 5, "server_tool_use"),
            StreamEvent("content_block_delta", 5, delta_type="input_json_delta", text="{}"),
            StreamEvent("content_block_stop", 5),
            StreamEvent("content_block_start", 6, "thinking"),
            StreamEvent("content_block_delta", 6, delta_type="thinking_delta", text="hm"),
            StreamEvent("content_block_stop", 6),
            *text("Hi"),
            StreamEvent("content_block_delta", 0, delta_type="text_delta", text=" after its end"),
            StreamEvent("content_block_start", 1, "text"),
            StreamEvent("content_block_delta", 1, delta_type="citations_delta", text="not text"),
            StreamEvent("content_block_stop", 1),
            STOP,
            *text("after the stop", index=2),
        ]
    )
    scene = Scene(provider)
    await scene.loop.run("go")
    assert scene.log == [
        ("stream_start", "A", {"role": "assistant"}),
        ("stream_delta", "A", {"delta": "Hi"}),
        ("stream_end", "A"),
        ("message", "A", "assistant", "Hi"),
    ]
    assert scene.loop.messages[1:] == [{"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}]


async def test_event_objects_of_a_provider_need_only_the_attributes_of_their_type():
    events: list[Any] = [
        SimpleNamespace(type="content_block_start", index=0, block_type="tool_use", tool_name="add", tool_id="t1"),
        SimpleNamespace(type="content_block_delta", index=0, delta_type="input_json_delta", text="{}"),
        SimpleNamespace(type="content_block_stop", index=0),
        SimpleNamespace(type="usage", usage={"input_tokens": 3}),
        SimpleNamespace(type="message_stop"),
    ]
    scene = Scene(ScriptedProvider(events, [STOP]))
    await scene.loop.run("go")
    assert scene.result_texts() == ["add ran"]


async def test_a_call_without_an_id_gets_one_and_an_id_that_comes_twice_is_replaced():
    provider = ScriptedProvider(
        [*tool("a", index=0), *tool("b", id="t", index=1), *tool("c", id="t", index=2), STOP], [STOP]
    )
    scene = Scene(provider)
    await scene.loop.run("go")
    ids = [block["id"] for block in scene.loop.messages[1]["content"]]
    assert ids[1] == "t"
    assert len({*ids, ""}) == 4
    assert is_valid(scene.loop.messages)
    assert [result["tool_name"] for result in scene.tool_results()] == ["a", "b", "c"]


async def test_an_async_def_that_returns_its_iterator_is_a_provider_too():
    class Returning(ScriptedProvider):
        async def stream_message(self, **request: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().stream_message(**request)

    scene = Scene(Returning([*text("Hi"), STOP]))
    await scene.loop.run("go")
    assert scene.shown("message") == [("message", "A", "assistant", "Hi")]


# --- max_tokens ---


class TakesMaxTokens(ScriptedProvider):
    got: Any = None

    async def stream_message(
        self, model: str, system: str | None, messages: list[Any], tools: Sequence[Any], max_tokens: int = 555
    ) -> AsyncIterator[StreamEvent]:
        self.got = max_tokens
        async for event in super().stream_message(model, system, messages, tools):
            yield event


class NeedsMaxTokens(ScriptedProvider):
    got: Any = None

    async def stream_message(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, model: str, system: str | None, messages: list[Any], tools: Sequence[Any], max_tokens: int
    ) -> AsyncIterator[StreamEvent]:
        self.got = max_tokens
        async for event in super().stream_message(model, system, messages, tools):
            yield event


@pytest.mark.parametrize(
    ("provider", "given", "got"),
    [
        (TakesMaxTokens, None, 555),
        (TakesMaxTokens, 99, 99),
        (NeedsMaxTokens, None, MAX_TOKENS),
        (NeedsMaxTokens, 99, 99),
    ],
)
async def test_max_tokens_is_passed_to_a_provider_that_takes_it(provider: Any, given: int | None, got: int):
    scripted = provider([*text("Hi"), STOP])
    await Scene(scripted, max_tokens=given).loop.run("go")
    assert scripted.got == got


async def test_max_tokens_is_not_passed_to_a_provider_that_does_not_take_it():
    scene = Scene(ScriptedProvider([*text("Hi"), STOP]), max_tokens=99)
    await scene.loop.run("go")
    assert scene.shown("message") == [("message", "A", "assistant", "Hi")]


# --- usage ---


async def test_usage_is_replaced_inside_a_response_and_summed_over_responses():
    provider = ScriptedProvider(
        [
            usage(input_tokens=10, output_tokens=1),
            *tool("add", "{}", id="t1"),
            usage(output_tokens=5),
            usage(output_tokens=8),
            STOP,
            usage(input_tokens=11),
        ],
        [usage(input_tokens=20, output_tokens=2), *text("Done"), STOP],
    )
    scene = Scene(provider)
    await scene.loop.run("go")
    assert (scene.loop.total_input_tokens, scene.loop.total_output_tokens) == (31, 10)


async def test_a_null_count_erases_nothing_and_tokens_of_a_broken_response_count():
    empty = StreamEvent("usage", usage={"input_tokens": None})  # pyright: ignore[reportArgumentType]
    provider = ScriptedProvider([usage(input_tokens=10), empty, OverloadedError("busy")])
    scene = Scene(provider)
    with pytest.raises(OverloadedError):
        await scene.loop.run("go")
    assert (scene.loop.total_input_tokens, scene.loop.total_output_tokens) == (10, 0)


# --- what is answered without being run ---


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"a": 1', "the arguments are not valid JSON"),
        ("{'a': 1}", "the arguments are not valid JSON"),
        ("[1]", "the arguments are a JSON array"),
        ('{"a": NaN}', "NaN is not JSON"),
    ],
)
async def test_input_that_does_not_parse_is_answered_with_an_error_and_nobody_is_asked(arguments: str, reason: str):
    provider = ScriptedProvider([*tool("add", arguments, id="t1"), *tool("list", "{}", id="t2", index=2), STOP], [STOP])
    scene = Scene(provider)
    await scene.loop.run("go")
    assert [entry[:2] for entry in scene.shown("ask", "execute")] == [("ask", "list"), ("execute", "list")]
    broken, fine = scene.result_texts()
    assert broken.startswith("Error executing add: ")
    assert reason in broken
    assert fine == "list ran"
    assert is_valid(scene.loop.messages)
    assert len(provider.asked) == 2


@pytest.mark.parametrize("arguments", [(), ('{"a": 1',)])
async def test_a_call_cut_by_the_output_limit_is_not_run_even_before_its_arguments_began(arguments: tuple[str, ...]):
    cut = replace(STOP, stop_reason="max_tokens")
    provider = ScriptedProvider([*tool("list", "", id="t1"), *tool("add", *arguments, id="t2", index=2), cut], [STOP])
    scene = Scene(provider)
    await scene.loop.run("go")
    assert scene.result_texts() == ["list ran", f"Error executing add: {CUT}"]


async def test_a_call_whose_block_never_ended_is_not_run():
    provider = ScriptedProvider([*tool("add", "{}", id="t1")[:-1], STOP], [STOP])
    scene = Scene(provider)
    await scene.loop.run("go")
    assert ("stream_end", "A") in scene.log
    assert scene.shown("ask", "execute") == []
    assert scene.result_texts() == [f"Error executing add: {INTERRUPTED}"]


async def test_no_call_of_a_refused_response_is_run():
    provider = ScriptedProvider([*tool("add", "{}", id="t1"), replace(STOP, stop_reason="refusal")], [STOP])
    scene = Scene(provider)
    await scene.loop.run("go")
    assert scene.result_texts() == [f"Error executing add: {WITHHELD}"]


async def test_calls_decide_that_a_turn_goes_on_whatever_the_stop_word():
    provider = ScriptedProvider(
        [*tool("add", "{}", id="t1"), replace(STOP, stop_reason="end_turn")],
        [*text("Done"), replace(STOP, stop_reason="tool_use")],
    )
    scene = Scene(provider)
    await scene.loop.run("go")
    assert len(provider.asked) == 2
    assert scene.result_texts() == ["add ran"]


# --- people ---


async def test_a_denied_call_becomes_a_result_that_says_so():
    provider = ScriptedProvider([*tool("add", "{}", id="t1"), *tool("list", "{}", id="t2", index=2), STOP], [STOP])
    scene = Scene(provider)
    scene.answers["add"] = (False, None)
    await scene.loop.run("go")
    assert scene.result_texts() == ["Tool use was denied by the user.", "list ran"]
    assert [entry[1] for entry in scene.shown("execute")] == ["list"]
    assert scene.loop.messages[2].content[0]["content"] == [
        {"type": "text", "text": "Tool use was denied by the user."}
    ]


@pytest.mark.parametrize(
    ("edited", "used"), [({"a": 2}, {"a": 2}), ({}, {}), (None, {"a": 1})], ids=["changed", "emptied", "as it was"]
)
async def test_an_edited_input_is_what_runs_also_when_it_is_empty(edited: Any, used: dict[str, Any]):
    scene = Scene(ScriptedProvider([*tool("add", '{"a":1}', id="t1"), STOP], [STOP]))
    scene.answers["add"] = (True, edited)
    await scene.loop.run("go")
    assert scene.shown("execute") == [("execute", "add", used)]
    assert scene.loop.messages[1]["content"][0]["input"] == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("no line"), None, True, (1, None), ("no", None), (True, "yes"), (True, None, None)],
    ids=lambda answer: repr(answer),
)
async def test_where_no_clear_answer_comes_the_tool_is_not_run(answer: Any):
    scene = Scene(ScriptedProvider([*tool("add", "{}", id="t1"), STOP], [*text("I see"), STOP]))
    scene.answers["add"] = answer
    scene.results["add"] = AssertionError("it ran")
    await scene.loop.run("go")
    assert scene.shown("execute") == []
    assert scene.result_texts()[0].startswith("Error executing add: asking for approval failed (")
    assert is_valid(scene.loop.messages)


async def test_changing_the_input_in_place_changes_neither_the_history_nor_what_runs():
    scene = Scene(ScriptedProvider([*tool("add", '{"a":{"b":1}}', id="t1"), STOP], [STOP]))

    async def meddle(input: dict[str, Any]) -> Any:
        input["a"]["b"] = 2
        return True, None

    async def consume(input: dict[str, Any]) -> Any:
        return [{"type": "text", "text": str(input.pop("a"))}]

    scene.answers["add"] = meddle
    scene.results["add"] = consume
    await scene.loop.run("go")
    assert scene.result_texts() == ["{'b': 1}"]
    assert scene.loop.messages[1]["content"][0]["input"] == {"a": {"b": 1}}


# --- tools ---


class Odd(Exception):
    def __str__(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such order"), "no such order"),
        (Odd(), "Odd"),
        (SystemExit(2), "2"),
        (asyncio.CancelledError(), "it was cancelled"),
    ],
)
async def test_what_a_tool_raises_becomes_an_error_result(error: BaseException, reason: str):
    provider = ScriptedProvider([*tool("add", "{}", id="t1"), *tool("list", "{}", id="t2", index=2), STOP], [STOP])
    scene = Scene(provider)
    scene.results["add"] = error
    await scene.loop.run("go")
    assert scene.result_texts() == [f"Error executing add: {reason}", "list ran"]
    assert is_valid(scene.loop.messages)


@pytest.mark.parametrize("result", ["just text", None, {"type": "text"}, ["text"], 3])
async def test_a_result_that_is_no_list_of_blocks_is_an_error_result(result: Any):
    scene = Scene(ScriptedProvider([*tool("add", "{}", id="t1"), STOP], [STOP]))
    scene.results["add"] = result
    await scene.loop.run("go")
    assert "not a list of content blocks" in scene.result_texts()[0]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ([], "Done."),
        ([{"type": "text", "text": ""}], "Done."),
        ([{"type": "image", "data": ""}], "Done."),
        ([{"type": "image", "data": ""}, {"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one"),
        ([{"type": "text", "text": "x" * 20_000}], "x" * 15_000),
    ],
)
async def test_the_first_text_of_a_result_is_shown_up_to_a_limit(content: list[Any], shown: str):
    scene = Scene(ScriptedProvider([*tool("add", "{}", id="t1"), STOP], [STOP]))
    scene.results["add"] = content
    await scene.loop.run("go")
    assert scene.result_texts() == [shown]
    told = scene.loop.messages[2].content[0]["content"]
    assert told == (content or [{"type": "text", "text": "Done."}])


async def test_a_result_that_the_provider_cannot_take_becomes_one_that_says_so():
    class Picky(ScriptedProvider):
        def format_tool_result(self, tool_use_id: str, content: list[dict[str, Any]]) -> Any:
            if content[0]["type"] != "text":
                raise ValueError("no images here")
            return super().format_tool_result(tool_use_id, content)

    scene = Scene(Picky([*tool("add", "{}", id="t1"), STOP], [STOP]))
    scene.results["add"] = [{"type": "image"}]
    await scene.loop.run("go")
    assert scene.result_texts() == ["Error executing add: its result cannot be given to the model (no images here)"]
    assert is_valid(scene.loop.messages)


async def test_a_provider_that_asks_for_it_is_told_which_results_are_errors():
    class Telling(ScriptedProvider):
        def format_tool_result(self, tool_use_id: str, content: list[dict[str, Any]], is_error: bool = False) -> Any:
            return {**super().format_tool_result(tool_use_id, content), "is_error": is_error}

    scene = Scene(Telling([*tool("add", "{}", id="t1"), *tool("sub", "{}", id="t2", index=2), STOP], [STOP]))
    scene.answers["add"] = (False, None)
    await scene.loop.run("go")
    assert [result["is_error"] for result in scene.loop.messages[2].content] == [True, False]


async def test_text_that_no_provider_takes_is_cleaned_where_it_enters():
    scene = Scene(ScriptedProvider([*tool("add", "{}", id="t1"), *tool("sub", "{}", id="t2", index=2), STOP], [STOP]))
    scene.results |= {"add": [{"type": "text", "text": "nul \0"}], "sub": ValueError("half \ud83d")}
    await scene.loop.run([{"type": "text", "text": "\ud83d\ude00"}])
    assert scene.loop.messages[0]["content"] == [{"type": "text", "text": "😀"}]
    assert scene.result_texts() == ["nul \ufffd", "Error executing sub: half \ufffd"]
    assert scene.loop.messages[2].content[0]["content"] == [{"type": "text", "text": "nul \ufffd"}]


# --- limits ---


@pytest.mark.parametrize(("max_turns", "responses"), [(1, 1), (2, 2), (None, 4), (0, 4)])
async def test_max_turns_caps_the_responses_of_a_run_and_none_or_zero_does_not(max_turns: int | None, responses: int):
    provider = ScriptedProvider(*[[*tool("add", "{}", id=f"t{n}"), STOP] for n in range(3)], [*text("Done"), STOP])
    scene = Scene(provider, max_turns=max_turns)
    await scene.loop.run("go")
    assert len(provider.asked) == responses
    assert is_valid(scene.loop.messages)


async def test_a_loop_runs_once_at_a_time():
    opened = asyncio.Event()
    scene = Scene(ScriptedProvider([opened, *text("Hi"), STOP]))
    first = asyncio.create_task(scene.loop.run("go"))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="not over"):
        await scene.loop.run("again")
    opened.set()
    await first
    assert len(scene.loop.messages) == 2


# --- what breaks off ---


async def test_a_stream_without_message_stop_is_interrupted_its_text_kept_and_nothing_run():
    provider = ScriptedProvider(
        [*text("Hel")[:-1], *tool("add", "{}", id="t1"), *tool("sub", "{", id="t2", index=2)[:-1]],
        [*text("Hello again"), STOP],
    )
    scene = Scene(provider)
    with pytest.raises(StreamInterruptedError, match="message_stop"):
        await scene.loop.run("go")
    assert scene.shown() == [
        ("stream_start", "A", {"role": "assistant"}),
        ("stream_start", "B", {"role": "tool_call", "tool_name": "add"}),
        ("stream_end", "B"),
        ("stream_start", "C", {"role": "tool_call", "tool_name": "sub"}),
        ("stream_end", "C"),
        ("stream_end", "A"),
        ("message", "A", "assistant", "Hel"),
    ]
    assert scene.shown("ask", "execute") == []
    assert scene.loop.messages[1:] == [{"role": "assistant", "content": [{"type": "text", "text": "Hel"}]}]

    await scene.loop.run("go on")
    assert [message["role"] for message in scene.loop.messages] == ["user", "assistant", "user", "assistant"]


async def test_what_the_provider_raises_is_what_the_caller_gets():
    provider = ScriptedProvider([*text("Hel"), *tool("add", "{}", id="t1"), OverloadedError("busy")])
    scene = Scene(provider)
    with pytest.raises(OverloadedError, match="busy"):
        await scene.loop.run("go")
    assert scene.loop.messages[1:] == [{"role": "assistant", "content": [{"type": "text", "text": "Hel"}]}]
    assert provider.closed == 1


async def test_a_response_that_said_nothing_leaves_no_message():
    scene = Scene(ScriptedProvider([OverloadedError("busy")], [STOP]))
    with pytest.raises(OverloadedError):
        await scene.loop.run("go")
    await scene.loop.run("again")
    assert [message["role"] for message in scene.loop.messages] == ["user", "user"]
    assert scene.log == []


async def test_a_cancel_while_the_model_speaks_closes_its_stream_and_keeps_the_text():
    provider = ScriptedProvider([*text("Hel"), *tool("add", "{}", id="t1"), asyncio.Event()])
    scene = Scene(provider)
    await cancel_when(scene, lambda: ("stream_end", "B") in scene.log)
    assert provider.closed == 1
    assert scene.shown("message") == [("message", "A", "assistant", "Hel")]
    assert scene.loop.messages[1:] == [{"role": "assistant", "content": [{"type": "text", "text": "Hel"}]}]


@pytest.mark.parametrize("place", ["answers", "results"])
async def test_a_cancel_in_mid_call_gives_every_open_call_a_result_and_the_next_run_goes_on(place: str):
    provider = ScriptedProvider(
        [*(event for n in range(3) for event in tool("add" if n != 1 else "stuck", "{}", id=f"t{n}", index=n)), STOP],
        [*text("Hi"), STOP],
    )
    scene = Scene(provider)
    was_cancelled = False

    async def wait(input: dict[str, Any]) -> Any:
        nonlocal was_cancelled
        scene.clock.now_s += 2
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    getattr(scene, place)["stuck"] = wait
    await cancel_when(scene, lambda: scene.clock.now_s > 100)

    assert was_cancelled
    assert is_valid(scene.loop.messages)
    told = [result["content"][0]["text"] for result in scene.loop.messages[2].content]
    assert told == ["add ran", CANCELLED, CANCELLED] == scene.result_texts()
    assert [result["elapsed_ms"] for result in scene.tool_results()] == [0, 2000, 0]
    assert [entry[1] for entry in scene.shown("ask")] == ["add", "stuck"]

    await scene.loop.run("go on")
    assert is_valid(scene.loop.messages)


@pytest.mark.parametrize("nth", range(11))
async def test_an_emitter_that_fails_ends_the_run_and_leaves_a_valid_history(nth: int):
    provider = ScriptedProvider(
        [*text("Hel"), *tool("add", "{}", id="t1"), *tool("list", "{}", id="t2", index=2), STOP],
        [*text("Hi"), STOP],
    )
    scene = Scene(provider)
    emitted = 0

    async def emit(event: str, data: dict[str, Any]) -> None:
        nonlocal emitted
        emitted += 1
        if emitted > nth:
            raise ConnectionResetError("gone")

    scene.loop.ws_emitter = emit
    with pytest.raises(ConnectionResetError, match="gone"):
        await scene.loop.run("go")
    assert is_valid(scene.loop.messages)


@pytest.mark.parametrize("nth", range(1, 40))
async def test_a_cancel_at_any_step_leaves_a_valid_history(nth: int):
    async def step(input: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return [{"type": "text", "text": "ok"}]

    async def approve(input: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return True, None

    provider = ScriptedProvider(
        [*text("Hel"), *tool("add", "{}", id="t1"), *tool("list", "{}", id="t2", index=2), STOP],
        [*text("Hi"), STOP],
    )
    scene = Scene(provider)
    for name in ("add", "list"):
        scene.results[name], scene.answers[name] = step, approve
    emit = scene.loop.ws_emitter

    cut_off = 0

    async def slow_emit(event: str, data: dict[str, Any]) -> None:
        nonlocal cut_off
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            cut_off += data.get("message", {}).get("role") == "tool_result"
            raise
        await emit(event, data)

    scene.loop.ws_emitter = slow_emit
    task = asyncio.create_task(scene.loop.run("go"))
    for _ in range(nth):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert is_valid(scene.loop.messages)
    shown_calls = [entry for entry in scene.shown("message") if entry[2] == "tool_call"]
    if len(shown_calls) == 2:  # what the cancel found half sent is not sent again
        assert len(scene.tool_results()) + cut_off == 2
