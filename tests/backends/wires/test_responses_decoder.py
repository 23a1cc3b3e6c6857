import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.backends.wires.decoder import NAMELESS
from ownloop.backends.wires.responses_decoder import ResponsesDecoder, usage_of
from ownloop.core.backend import Finish, Part, PartDelta, PartEnd, PartStart, UsageSeen
from ownloop.core.events import ErrorInfo, ResponseEnded
from ownloop.core.messages import Json, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock, calls_of
from ownloop.core.turn import CUT, INTERRUPTED, WITHHELD, TurnBuilder
from ownloop.core.usage import Usage
from ownloop.errors import (
    AuthError,
    BadRequestError,
    ContextLengthError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    StreamInterruptedError,
)

NAMES = {"read": "read", "ping": "ping", "files_read_1a2b3c4d": "files.read"}


def ev(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def added(item: Json, **fields: Any) -> bytes:
    return ev("response.output_item.added", item=item, **fields)


def ended(item: Json, **fields: Any) -> bytes:
    return ev("response.output_item.done", item=item, **fields)


def text(delta: str, id: str = "msg_1", **fields: Any) -> bytes:
    return ev("response.output_text.delta", item_id=id, delta=delta, **fields)


def arguments(delta: str, id: str = "fc_1", **fields: Any) -> bytes:
    return ev("response.function_call_arguments.delta", item_id=id, delta=delta, **fields)


def thought(delta: str, id: str = "rs_1", **fields: Any) -> bytes:
    return ev("response.reasoning_text.delta", item_id=id, delta=delta, **fields)


def summary(delta: str, index: int, kind: str = "delta") -> bytes:
    name = f"response.reasoning_summary_text.{kind}"
    return ev(name, item_id="rs_1", summary_index=index, **{"delta" if kind == "delta" else "text": delta})


def completed(*output: Json, status: str = "completed", **fields: Any) -> bytes:
    return ev(f"response.{status}", response={"status": status, "output": list(output), **fields})


def cut(reason: str, *output: Json) -> bytes:
    return completed(*output, status="incomplete", incomplete_details={"reason": reason})


def message(said: str, id: str = "msg_1", **fields: Any) -> Json:
    content = [{"type": "output_text", "text": said, "annotations": []}]
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content, **fields}


def call(name: str = "read", arguments: str = '{"n": 1}', id: str = "fc_1", call_id: str = "call_1") -> Json:
    return {"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments}


def decode(*chunks: bytes, **options: Any) -> tuple[ResponseEnded, list[Part], ProviderError | None]:
    decoder = ResponsesDecoder(NAMES, **options)
    builder = TurnBuilder(1, iter(f"own_{n}" for n in range(1000)).__next__)
    parts: list[Part] = []
    for batch in (*map(decoder.feed, chunks), decoder.close()):
        parts += batch
        builder.feed(batch)
    error = decoder.error
    if error is None:
        return builder.end(1)[1], parts, None
    return builder.end(1, "failed", ErrorInfo(error.code, error.message))[1], parts, error


def inputs(fact: ResponseEnded) -> list[tuple[str | None, str, Any]]:
    return [(call.provider_id, call.name, call.problem or call.input) for call in calls_of(fact.blocks)]


# --- as it streams ---


def test_all_of_it_reaches_the_user_while_it_streams() -> None:
    decoder = ResponsesDecoder(NAMES)
    assert decoder.feed(added({"type": "reasoning", "id": "rs_1"})) == [PartStart(0, "thinking")]
    assert decoder.feed(thought("hm")) == [PartDelta(0, "hm")]
    assert decoder.feed(ended({"type": "reasoning", "id": "rs_1"})) == [PartEnd(0, {"type": "reasoning", "id": "rs_1"})]
    assert decoder.feed(added(message(""))) == []
    assert decoder.feed(text("I ")) == [PartStart(1, "text"), PartDelta(1, "I ")]
    assert decoder.feed(text("look.")) == [PartDelta(1, "look.")]
    assert decoder.feed(ended(message("I look."))) == [PartEnd(1, {"id": "msg_1"})]
    assert decoder.feed(added(call(arguments=""))) == [PartStart(2, "tool_call", "read", "call_1")]
    assert decoder.feed(arguments('{"n"')) == [PartDelta(2, '{"n"')]
    assert decoder.feed(arguments(": 1}")) == [PartDelta(2, ": 1}")]
    assert decoder.feed(ended(call())) == [PartEnd(2, {"id": "fc_1"})]
    assert not decoder.finished
    assert decoder.feed(completed(message("I look."), call())) == []
    assert decoder.finished
    assert decoder.done
    assert decoder.close() == [Finish("tool_use", "completed")]


def test_a_call_is_shown_once_its_name_and_its_id_are_known() -> None:
    decoder = ResponsesDecoder(NAMES)
    assert decoder.feed(arguments('{"n":')) == []
    assert (
        decoder.feed(ev("response.function_call_arguments.done", item_id="fc_1", name="read", arguments='{"n": 1}'))
        == []
    )
    assert decoder.feed(ended(call())) == [
        PartStart(0, "tool_call", "read", "call_1"),
        PartDelta(0, '{"n": 1}'),
        PartEnd(0, {"id": "fc_1"}),
    ]


def test_our_name_of_a_tool_is_told_not_the_one_on_the_wire() -> None:
    fact, _, _ = decode(ended(call("files_read_1a2b3c4d")), completed())
    assert inputs(fact) == [("call_1", "files.read", {"n": 1})]


def test_blocks_may_interleave_and_stand_in_the_order_in_which_they_began() -> None:
    fact, _, _ = decode(
        added(call(arguments="", id="a", call_id="call_a")),
        added(call(arguments="", id="b", call_id="call_b")),
        text("So: "),
        arguments('{"n": 2}', "b"),
        thought("hm"),
        arguments('{"n": 1}', "a"),
        text("both."),
        completed(),
    )
    assert [block.type for block in fact.blocks] == ["tool_call", "tool_call", "text", "thinking"]
    assert inputs(fact) == [("call_a", "read", {"n": 1}), ("call_b", "read", {"n": 2})]
    assert fact.blocks[2] == TextBlock("So: both.")


# --- which item ---


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        # an id that is used again after its item has ended
        ([text("a"), ended(message("a")), added(message("")), text("b"), ended(message("b"))], ["a", "b"]),
        ([text("a"), ended(message("a")), text("b"), ended(message("b"))], ["a", "b"]),
        # a place that is used again
        (
            [
                *(added(message("", "m1"), output_index=0), text("a", "m1", output_index=0)),
                *(added(message("", "m2"), output_index=0), text("b", "m2", output_index=0)),
                *(ended(message("a", "m1"), output_index=0), ended(message("b", "m2"), output_index=0)),
            ],
            ["a", "b"],
        ),
        # announced twice
        ([added(message("")), text("a"), added(message("")), text("b")], ["ab"]),
        # announced late
        ([text("a"), added(message("")), text("b")], ["ab"]),
        # no names at all: the events belong to the last item
        (
            [
                *(ev("response.output_text.delta", delta="a"), ev("response.output_text.done", text="ab")),
                ended(message("ab", "")),
                ev("response.content_part.done", part={"type": "output_text", "text": "ab"}),
            ],
            ["ab"],
        ),
        # ended twice, and the end of a text after the end of its item
        ([text("a"), *[ended(message("a"))] * 2, ev("response.output_text.done", item_id="msg_1", text="a")], ["a"]),
    ],
)  # fmt: skip
def test_texts_find_their_message(chunks: list[bytes], expected: list[str]) -> None:
    fact, _, _ = decode(*chunks, completed())
    assert [block.text for block in fact.blocks if isinstance(block, TextBlock)] == expected


def test_calls_with_one_place_and_no_ids_of_items_are_told_apart_by_their_call_ids() -> None:
    a, b = ({**call(call_id=f"call_{n}", arguments=f'{{"n": {n}}}'), "id": None} for n in (1, 2))
    fact, _, _ = decode(added(a, output_index=0), added(b, output_index=0), ended(b), ended(a), completed(a, b))
    assert inputs(fact) == [("call_1", "read", {"n": 1}), ("call_2", "read", {"n": 2})]


def test_what_follows_an_item_that_has_ended_is_another_item() -> None:
    item = {"type": "reasoning", "id": "rs_0", "encrypted_content": "a"}
    fact, _, _ = decode(
        *(
            added(item),
            ended(item),
            added({**item, "encrypted_content": "b"}),
            ended({**item, "encrypted_content": "b"}),
        ),
        *(thought("hm", "rs_0"), ended(call()), arguments("{}")),
        completed(),
    )
    assert [block.raw for block in fact.blocks if isinstance(block, ThinkingBlock)] == [
        *(item, {**item, "encrypted_content": "b"}),
        {},
    ]
    assert inputs(fact) == [("call_1", "read", {"n": 1}), (None, "", NAMELESS)]


# --- what is said again ---


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([text("Hel"), ended(message("Hello"))], "Hello"),
        ([text("Hel"), completed(message("Hello"))], "Hello"),
        ([text("Hel"), ev("response.output_text.done", item_id="msg_1", text="Hello")], "Hello"),
        ([ev("response.content_part.done", item_id="msg_1", part={"type": "output_text", "text": "Hello"})], "Hello"),
        ([completed({"type": "message", "content": "Hello"})], "Hello"),
        # what was shown stays, also where the server says something else in the end
        ([text("Hello"), ended(message("Goodbye")), completed(message("Goodbye"))], "Hello"),
        ([text("Hello"), ended(message("Hel"))], "Hello"),
        # of two contents the second was not streamed, of three not the middle one
        (
            [
                *(text("a"), ev("response.output_text.done", item_id="msg_1", text="a")),
                ev("response.output_text.done", item_id="msg_1", text="b"),
                *(text("c"), ended(message("abc"))),
            ],
            "abc",
        ),
    ],
)
def test_what_deltas_did_not_bring_is_filled_in_and_nothing_is_said_twice(chunks: list[bytes], expected: str) -> None:
    fact, _, _ = decode(*chunks, completed())
    assert "".join(block.text for block in fact.blocks if isinstance(block, TextBlock)) == expected
    assert len(fact.blocks) == 1


def test_an_item_that_never_ends_is_as_it_was_announced() -> None:
    hosted = {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}
    fact, _, _ = decode(added(call()), added(hosted), completed())
    assert inputs(fact) == [("call_1", "read", {"n": 1})]
    assert fact.blocks[1] == ProviderBlock(hosted)


@pytest.mark.parametrize(
    ("streamed", "whole", "problem"),
    [
        ('{"n":1}', '{"n": 1}', None),
        ('{"n": 1}', "", None),
        ("", '{"n": 1}', None),
        ('{"n": 1}', '{"n": 2}', "two versions"),
        ('{"n": 1}{', '{"n": 1}', "two versions"),
    ],
)
def test_arguments_that_end_as_others_than_were_shown_are_not_run(
    streamed: str, whole: str, problem: str | None
) -> None:
    fact, _, _ = decode(added(call(arguments="")), arguments(streamed), ended(call(arguments=whole)), completed())
    (block,) = calls_of(fact.blocks)
    assert (problem or "") in (block.problem or "")
    assert (block.problem is None) == (problem is None)


def test_a_call_without_any_name_is_answered_with_an_error_and_a_phantom_is_none() -> None:
    phantom = {"type": "function_call", "id": None, "call_id": "", "name": "", "arguments": ""}
    fact, _, _ = decode(
        ended({"type": "function_call", "arguments": "{}"}), added(phantom, output_index=1), completed()
    )
    assert inputs(fact) == [(None, "", NAMELESS)]


def test_a_call_without_a_call_id_is_known_by_its_item() -> None:
    fact, _, _ = decode(ended({**call(), "call_id": None}), completed())
    assert inputs(fact) == [("fc_1", "read", {"n": 1})]


def test_arguments_that_come_as_an_object_keep_all_digits() -> None:
    big = 12345678901234567890123
    fact, _, _ = decode(ended({**call(), "arguments": {"n": big}}), completed())
    assert inputs(fact) == [("call_1", "read", {"n": big})]


# --- reasoning ---


def test_paragraphs_of_a_summary_are_kept_apart() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"text": t} for t in ("one", "two", "two", "three", "four")]}
    unnumbered = ev("response.reasoning_summary_text.delta", item_id="rs_1", delta="e")
    again = ev("response.reasoning_summary_part.done", item_id="rs_1", part={"type": "summary_text", "text": "two"})
    chunks = [
        *(summary("on", 0), unnumbered, summary("one", 0, "done")),
        *(summary("two", 1, "done"), again, summary("two", 2, "done"), again, summary("three", 3)),
    ]
    fact, _, _ = decode(*chunks, ended(item), completed())
    assert fact.blocks == (ThinkingBlock("one\n\ntwo\n\ntwo\n\nthree\n\nfour", item),)
    assert decode(ended(item), completed())[0].blocks == fact.blocks


def test_of_text_and_summary_the_one_that_comes_first_is_shown_and_both_are_kept() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "short"}], "content": [{"text": "long"}]}
    assert decode(summary("sh", 0), thought("long"), ended(item), completed())[0].blocks == (
        ThinkingBlock("short", item),
    )
    assert decode(thought("lo"), summary("short", 0), ended(item), completed())[0].blocks == (
        ThinkingBlock("long", item),
    )
    assert decode(ended(item), completed())[0].blocks == (ThinkingBlock("long", item),)


def test_reasoning_is_kept_as_it_ended_with_all_digits() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", "n": 12345678901234567890123}
    fact, _, _ = decode(added({**item, "encrypted_content": "g"}), ended(item), completed(item))
    assert fact.blocks == (ThinkingBlock("", item),)


def test_the_event_of_the_open_specification_is_read() -> None:
    fact, _, _ = decode(
        ev("response.reasoning.delta", delta="hm"), ev("response.reasoning.done", text="hm"), completed()
    )
    assert fact.blocks == (ThinkingBlock("hm", {}),)


def test_think_tags_are_taken_out_where_the_server_leaves_them_in() -> None:
    pieces = [text("<thi"), text("nk>pl"), text("an</think>"), text("\n\nGo")]
    whole = message("<think>plan</think>\n\nGo")
    fact, _, _ = decode(*pieces, ended(whole), completed(whole), think_tags=True)
    assert fact.blocks == (ThinkingBlock("plan"), TextBlock("Go", {"id": "msg_1"}))
    fact, _, _ = decode(thought("plan"), *pieces, ended(whole), completed(), think_tags=True)
    assert fact.blocks == (ThinkingBlock("plan", {}), TextBlock("Go", {"id": "msg_1"}))
    fact, _, _ = decode(ended(message("<think>plan</think>")), completed(), think_tags=True)
    assert fact.blocks == (ThinkingBlock("plan"),)
    assert decode(*pieces, completed())[0].blocks == (TextBlock("<think>plan</think>\n\nGo"),)


def test_text_that_only_looked_like_a_tag_is_not_lost() -> None:
    assert decode(text("<thi"), completed(), think_tags=True)[0].blocks == (TextBlock("<thi"),)
    fact, _, _ = decode(text("<thi"), ended(message("<thi")), text("b", "msg_2"), completed(), think_tags=True)
    assert [block.text for block in fact.blocks if isinstance(block, TextBlock)] == ["<thi", "b"]
    fact, _, error = decode(text("<thi"), think_tags=True)
    assert fact.blocks == (TextBlock("<thi"),)
    assert isinstance(error, StreamInterruptedError)


# --- other items, and what is kept of those we know ---


def test_an_item_that_only_its_provider_understands_is_kept_as_it_ended() -> None:
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q"}}
    fact, parts, _ = decode(
        added({**item, "status": "in_progress"}),
        ev("response.web_search_call.searching", item_id="ws_1"),
        ended(item),
        completed(item),
    )
    assert fact.blocks == (ProviderBlock(item),)
    assert fact.stop_reason == "end_turn"
    assert parts[:2] == [PartStart(0, "provider"), PartEnd(0, item)]


def test_of_a_message_is_kept_what_is_not_its_text() -> None:
    notes = [{"type": "url_citation", "url": "http://u"}]
    whole = message("a", phase="commentary")
    whole["content"] = [{"type": "output_text", "text": "a", "annotations": notes}]
    fact, _, _ = decode(ended(whole), completed())
    assert fact.blocks == (TextBlock("a", {"id": "msg_1", "phase": "commentary", "annotations": notes}),)


def test_of_a_call_is_kept_what_goes_back_with_it() -> None:
    item = {**call(), "namespace": "files", "caller": None, "status": "completed", "other": 1}
    fact, _, _ = decode(ended(item), completed())
    (block,) = calls_of(fact.blocks)
    assert block.raw == {"id": "fc_1", "namespace": "files"}


def test_blank_text_before_a_call_is_no_block_and_before_words_is_kept() -> None:
    fact, _, _ = decode(text("\n\n"), ended(message("\n\n")), ended(call()), completed())
    assert [block.type for block in fact.blocks] == ["tool_call"]
    fact, _, _ = decode(text("\n"), text(" a"), text("\n"), completed())
    assert fact.blocks == (TextBlock("\n a\n"),)


# --- the end ---


@pytest.mark.parametrize(
    ("chunks", "stop_reason", "raw"),
    [
        ([completed(message("x"))], "end_turn", "completed"),
        ([completed(message("x"), call())], "tool_use", "completed"),
        ([ended(message("x")), ev("response.done", response={})], "end_turn", "completed"),
        ([ended(message("x")), ev("response.incomplete", response={})], "other", "incomplete"),
        ([cut("max_output_tokens", message("x"))], "max_tokens", "max_output_tokens"),
        ([cut("content_filter", message("x"))], "other", "content_filter"),
        ([cut("never_heard_of", message("x"))], "other", "never_heard_of"),
        ([cut("never_heard_of", call())], "tool_use", "never_heard_of"),
        (
            [ev("response.completed", response={"status": "incomplete", "incomplete_details": None})],
            "other",
            "incomplete",
        ),
        ([ev("response.refusal.delta", delta="No."), completed(call())], "other", "refusal"),
        ([ev("response.refusal.delta", delta="No."), cut("content_filter")], "other", "content_filter"),
        ([completed({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]})], "other", "refusal"),
    ],
)
def test_the_stop_reason_follows_from_status_and_calls(chunks: list[bytes], stop_reason: str, raw: str) -> None:
    fact, parts, error = decode(*chunks)
    assert error is None
    assert (fact.stop_reason, fact.raw_stop) == (stop_reason, raw)
    assert isinstance(parts[-1], Finish)


@pytest.mark.parametrize("stop", [cut("content_filter", call()), completed(call())])
def test_what_was_withheld_is_not_run(stop: bytes) -> None:
    fact, _, _ = decode(ev("response.refusal.delta", delta="No."), stop)
    assert inputs(fact) == [("call_1", "read", WITHHELD)]


def test_of_a_cut_answer_only_complete_calls_run() -> None:
    second = call(id="fc_2", call_id="call_2", arguments='{"n": ')
    fact, _, _ = decode(
        ended(call()), added(second), arguments('{"n": ', "fc_2"), cut("max_output_tokens", call(), second)
    )
    assert fact.status == "cut"
    assert inputs(fact) == [("call_1", "read", {"n": 1}), ("call_2", "read", CUT)]


@pytest.mark.parametrize(
    ("max_tokens", "written", "stop_reason"),
    [(12, 12, "max_tokens"), (12, 11, "end_turn"), (None, 12, "end_turn"), (12, None, "end_turn")],
)
def test_a_limit_that_was_reached_cuts_whatever_the_server_says(
    max_tokens: int | None, written: int | None, stop_reason: str
) -> None:
    fact, _, _ = decode(completed(message("x"), usage={"output_tokens": written}), max_tokens=max_tokens)
    assert (fact.stop_reason, fact.raw_stop) == (stop_reason, "completed")
    fact, _, _ = decode(
        completed(
            status="incomplete", incomplete_details={"reason": "content_filter"}, usage={"output_tokens": written}
        ),
        max_tokens=max_tokens,
    )
    assert fact.stop_reason == "other"


def test_a_call_that_llama_cpp_cut_is_told_to_be_cut() -> None:
    half = call(arguments='{"')
    stop = completed(half, usage={"output_tokens": 18})
    assert inputs(decode(ended(half), stop, max_tokens=18)[0]) == [("call_1", "read", CUT)]
    ((_, _, problem),) = inputs(decode(ended(half), stop)[0])
    assert "not valid JSON" in problem


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [b": keep-alive\n\n"],
        [b"data: [DONE]\n\n"],
        [text("half")],
        [ended(message("all of it")), b"data: [DONE]\n\n"],
        [ended(call())],
        [ev("response.completed", response={"status": "in_progress", "output": [call()]})],
        [ev("response.in_progress", response={"status": "completed"})],
        [b'{"object": "response", "status": "queued", "output": []}'],
        [b'{"object": "response", "status": "completed", "output": [{"type": "mess'],
        [b'{"object": "chat.completion", "choices": []}'],
        [text("a"), b"event: response.output_text.delta\ndata: {\n\n", completed(message("a"))],
        [b"<html>not here</html>"],
    ],
)
def test_without_the_status_a_response_is_interrupted(chunks: list[bytes]) -> None:
    fact, parts, error = decode(*chunks)
    assert type(error) is StreamInterruptedError
    assert not any(isinstance(part, Finish) for part in parts)
    assert fact.status == "failed"


@pytest.mark.parametrize(
    ("chunk", "kind", "words"),
    [
        (ev("error", code="server_error", message="boom"), ProviderError, "boom"),
        (ev("error", error={"code": "insufficient_quota", "message": "boom"}), AuthError, "boom"),
        (b'data: {"type": "response.error", "message": "boom"}\n\n', ProviderError, "boom"),
        (
            completed(status="failed", error={"code": "rate_limit_exceeded", "message": "boom"}),
            RateLimitedError,
            "boom",
        ),
        (completed(status="failed", error={"code": "slow_down", "message": "boom"}), RateLimitedError, "boom"),
        (completed(status="failed", error={"code": "server_is_overloaded", "message": "b"}), OverloadedError, "b"),
        (completed(status="failed", error={"code": "image_parse_error", "message": "b"}), BadRequestError, "b"),
        (
            completed(status="failed", error={"code": "context_length_exceeded", "message": "b"}),
            ContextLengthError,
            "b",
        ),
        (completed(status="failed", error=None), ProviderError, "the response is failed"),
        (completed(error={"code": "server_error", "message": "boom"}), ProviderError, "boom"),
        (ev("response.completed", response={"status": "cancelled"}), ProviderError, "the response is cancelled"),
        (b'data: {"error": {"code": 503, "message": "boom"}}\n\n', OverloadedError, "boom"),
        (b'data: {"error": "plain words"}\n\n', ProviderError, "plain words"),
        (b'data: {"code": 500, "message": "boom", "type": "server_error"}\n\n', ProviderError, "boom"),
        (b"event: error\ndata: overloaded, sorry\n\n", ProviderError, "overloaded, sorry"),
        (ev("error", code=None, message="bad key sk-secret"), ProviderError, "bad key [key]"),
    ],
)
def test_an_error_fails_the_response_and_keeps_what_was_shown(
    chunk: bytes, kind: type[ProviderError], words: str
) -> None:
    fact, _, error = decode(text("So "), added(call()), chunk, text("far"), completed(), secrets=["sk-secret"])
    assert type(error) is kind
    assert error is not None
    assert error.detail == words
    assert fact.blocks[0] == TextBlock("So ")
    assert inputs(fact) == [("call_1", "read", INTERRUPTED)]


def test_nothing_is_read_after_the_last_event() -> None:
    decoder = ResponsesDecoder(NAMES)
    decoder.feed(text("a") + completed() + text("b") + ev("error", message="late"))
    assert decoder.done
    assert decoder.feed(text("c")) == []
    decoder.lose(StreamInterruptedError("reset"))
    assert decoder.close()[-1] == Finish("end_turn", "completed")
    assert decoder.error is None


@pytest.mark.parametrize(
    "junk",
    [
        b"data: : ping\n\n",
        b"data: null\n\n",
        ev("keepalive", sequence_number=7),
        ev("response.queued", response={"status": "queued"}),
        ev("response.brand_new", code="x", message="y", error={"a": 1}),
        ev("response.output_text.delta", delta=None),
        ev("response.output_text.annotation.added", annotation={}),
        ev("response.output_item.added", item=None),
        ev("response.output_item.added", item={"type": ""}),
        ev("response.content_part.done", part={"type": "audio"}),
        ev("codex.rate_limits", rate_limits={}),
    ],
)
def test_what_means_nothing_to_us_is_skipped(junk: bytes) -> None:
    fact, _, error = decode(text("a"), junk, text("b"), junk, completed())
    assert error is None
    assert fact.blocks == (TextBlock("ab"),)


# --- usage ---


def test_cached_tokens_are_part_of_the_input() -> None:
    counts = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 7},
    }
    assert usage_of(counts) == Usage(10, 60, 30, 9, 7, counts)
    assert usage_of({}) == Usage()
    assert usage_of({"input_tokens": 5, "input_tokens_details": None}) == Usage(
        input=5, raw={"input_tokens": 5, "input_tokens_details": None}
    )


def test_usage_is_told_with_the_end_also_of_what_was_cut_or_failed() -> None:
    for stop in (
        completed(usage={"input_tokens": 3}),
        completed(status="incomplete", usage={"input_tokens": 3}),
        completed(status="failed", usage={"input_tokens": 3}),
    ):
        fact, parts, _ = decode(text("a"), stop)
        assert fact.usage == Usage(input=3, raw={"input_tokens": 3})
        assert sum(isinstance(part, UsageSeen) for part in parts) == 1


# --- any stream that a server might write ---


@dataclass(frozen=True)
class Habits:
    """What a server leaves out, or gets wrong. What is left always tells which item an event belongs to."""

    ids: str = "right"
    """right | rotating | missing"""
    has_places: bool = True
    are_announced: bool = True
    has_deltas: bool = True
    ends_contents: bool = True
    ends_items: bool = True
    repeats_ends: bool = False
    lists_output: bool = True
    reorders_output: bool = False
    numbers_deltas: bool = False
    """content_index grows with each delta."""
    interleaves: bool = False
    names_events: bool = True


@dataclass
class Writer:
    """A server with its habits; `choose` draws numbers below a bound."""

    habits: Habits
    choose: Callable[[int], int]
    events: list[Json] = field(default_factory=list[Json])
    rotated: int = 0

    def place(self, number: int, id: str) -> Json:
        fields: Json = {}
        if self.habits.ids != "missing":
            fields["item_id"] = self.id(id)
        if self.habits.has_places:
            fields["output_index"] = number
        return fields

    def id(self, id: str) -> str:
        if self.habits.ids != "rotating":
            return id
        self.rotated += 1
        return f"{id}_{self.rotated}"

    def whole(self, item: Json) -> Json:
        item = dict(item)
        if self.habits.ids == "missing":
            item.pop("id")
        else:
            item["id"] = self.id(item["id"])
        return item

    def pieces(self, text: str) -> list[str]:
        out: list[str] = []
        while text:
            size = 1 + self.choose(len(text))
            out.append(text[:size])
            text = text[size:]
        return out

    def item(self, number: int, item: Json) -> list[Json]:
        """Return the events of one item, in their order."""
        habits, out = self.habits, []
        place = {"output_index": number} if habits.has_places else {}
        if habits.are_announced:
            empty = {"arguments": ""} if item["type"] == "function_call" else {"content": [], "summary": []}
            out.append({"type": "response.output_item.added", "item": self.whole({**item, **empty}), **place})
        for stem, channel, content, more in contents(item):
            if habits.has_deltas:
                for n, piece in enumerate(self.pieces(content)):
                    index = {"content_index": n} if habits.numbers_deltas else {}
                    delta = {"type": f"response.{stem}.delta", "delta": piece}
                    out.append({**delta, **more, **index, **self.place(number, item["id"])})
            if habits.ends_contents:
                out.append(
                    {"type": f"response.{stem}.done", channel: content, **more, **self.place(number, item["id"])}
                )
        if habits.ends_items:
            out += [{"type": "response.output_item.done", "item": self.whole(item), **place}] * (
                1 + habits.repeats_ends
            )
        return out

    def body(self, items: Sequence[Json]) -> bytes:
        queues = [self.item(number, item) for number, item in enumerate(items)]
        while any(queues):
            open_ = [queue for queue in queues if queue]
            queue = open_[self.choose(len(open_))] if self.habits.interleaves else open_[0]
            self.events.append(queue.pop(0))
        output = [self.whole(item) for item in items] if self.habits.lists_output else []
        if self.habits.reorders_output:
            output.reverse()
        self.events.append({"type": "response.completed", "response": {"status": "completed", "output": output}})
        return b"".join(map(self.frame, self.events))

    def frame(self, event: Json) -> bytes:
        name = f"event: {event['type']}\n" if self.habits.names_events else ""
        return f"{name}data: {json.dumps(event)}\n\n".encode()


def contents(item: Json) -> Iterable[tuple[str, str, str, Json]]:
    """Yield what an item says: the stem of its events, the field of its end, the text, and what else is in them."""
    if item["type"] == "function_call":
        yield "function_call_arguments", "arguments", item["arguments"], {}
    for n, part in enumerate(item.get("summary", ())):
        yield "reasoning_summary_text", "text", part["text"], {"summary_index": n}
    for part in item.get("content", ()):
        kinds = {"output_text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text"}
        yield kinds[part["type"]], "refusal" if part["type"] == "refusal" else "text", next(iter(part.values())), {}


SOME = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda t: not t.isspace()
)


def a_message(number: int, texts: list[str]) -> Json:
    return {"type": "message", "id": f"msg_{number}", "content": [{"text": t, "type": "output_text"} for t in texts]}


def a_summary(number: int, texts: list[str]) -> Json:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [{"text": t, "type": "summary_text"} for t in texts]}


def a_thought(number: int, texts: list[str]) -> Json:
    content = [{"text": t, "type": "reasoning_text"} for t in texts]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": content}


def a_call(number: int, texts: list[str]) -> Json:
    arguments = json.dumps({"texts": texts}, ensure_ascii=False)
    return {**call("ping", arguments, f"fc_{number}", f"call_{number}")}


ITEMS = st.lists(
    st.tuples(
        st.sampled_from([a_message, a_message, a_summary, a_thought, a_call]),
        st.lists(SOME, min_size=1, max_size=3, unique=True),
    ),
    min_size=1,
    max_size=5,
).map(lambda drawn: [make(number, texts) for number, (make, texts) in enumerate(drawn)])


@st.composite
def habits(draw: st.DrawFn) -> Habits:
    yes = st.booleans()
    drawn = Habits(
        draw(st.sampled_from(["right", "right", "rotating", "missing"])),
        *(draw(yes) for _ in range(11)),
    )
    changes: Json = {}
    has_names = drawn.ids == "right" or drawn.has_places
    if not has_names:  # then only the order tells: one item after the other, each from its beginning to its end
        changes |= {"interleaves": False, "are_announced": True, "ends_items": True, "repeats_ends": False}
    if not drawn.are_announced and not drawn.ends_items:
        changes["lists_output"] = True  # or nobody would say the names of the calls
    if not (drawn.has_deltas or drawn.ends_contents or drawn.ends_items):
        changes["lists_output"] = True
    if drawn.ids != "right" and not drawn.ends_items:
        changes["reorders_output"] = False
    return Habits(**{**drawn.__dict__, **changes})


def expected_of(items: Sequence[Json]) -> list[Any]:
    out: list[Any] = []
    for item in items:
        texts = [content for _, _, content, _ in contents(item)]
        match item["type"]:
            case "function_call":
                out.append((item["call_id"], json.loads(item["arguments"])))
            case "reasoning":
                out.append(("thinking", ("\n\n" if item["summary"] else "").join(texts)))
            case _:
                out.append(("text", "".join(texts)))
    return out


def seen_in(fact: ResponseEnded) -> list[Any]:
    return [
        (block.provider_id, block.problem or block.input)
        if isinstance(block, ToolCallBlock)
        else (block.type, block.text)
        for block in fact.blocks
        if isinstance(block, ToolCallBlock | TextBlock | ThinkingBlock)
    ]


@given(items=ITEMS, habits=habits(), data=st.data(), cuts=st.lists(st.integers(0, 4_000), max_size=5))
def test_whatever_a_server_leaves_out_the_answer_is_the_same(
    items: list[Json], habits: Habits, data: st.DataObject, cuts: list[int]
) -> None:
    writer = Writer(habits, lambda bound: data.draw(st.integers(0, bound - 1)))
    body = writer.body(items)
    fact, _, error = decode(body)
    assert error is None
    seen, expected = seen_in(fact), expected_of(items)
    if habits.interleaves or not habits.ends_items:
        # Then blocks stand in the order in which there was something to show of them.
        seen, expected = sorted(seen, key=repr), sorted(expected, key=repr)
    assert seen == expected
    edges = [0, *sorted(min(offset, len(body)) for offset in cuts), len(body)]
    again, _, _ = decode(*(body[a:b] for a, b in itertools.pairwise(edges)))
    assert again == fact


@given(items=ITEMS, habits=habits(), data=st.data())
def test_wherever_a_stream_breaks_off_what_was_shown_is_a_beginning_of_the_answer(
    items: list[Json], habits: Habits, data: st.DataObject
) -> None:
    writer = Writer(habits, lambda bound: data.draw(st.integers(0, bound - 1)))
    body = writer.body(items)
    whole, _, _ = decode(body)
    last = body.rindex(b"data: ")
    broken, _, error = decode(body[: data.draw(st.integers(0, last))])
    assert type(error) is StreamInterruptedError
    assert broken.status == "failed"
    for shown, block in zip(broken.blocks, whole.blocks, strict=False):
        if isinstance(shown, TextBlock | ThinkingBlock) and isinstance(block, TextBlock | ThinkingBlock):
            assert block.text.startswith(shown.text)
    assert len(broken.blocks) <= len(whole.blocks)
