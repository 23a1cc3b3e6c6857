import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.backends.wires.decoder import NAMELESS
from ownloop.backends.wires.messages_decoder import MessagesDecoder, usage_of
from ownloop.core.backend import Finish, Part, PartDelta, PartEnd, PartStart, UsageSeen
from ownloop.core.events import ErrorInfo, ResponseEnded
from ownloop.core.messages import Block, Json, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.core.turn import CUT, INTERRUPTED, WITHHELD, TurnBuilder
from ownloop.core.usage import Usage
from ownloop.errors import ContextLengthError, OverloadedError, ProviderError, RateLimitedError, StreamInterruptedError
from tests.backends.wires.messages_samples import (
    CALL,
    CITED,
    END,
    FOUND,
    MESSAGE,
    REDACTED,
    SEARCH,
    THOUGHT,
    USAGE,
    begin,
    delta,
    event,
    finish,
    start,
    stop,
    streamed,
)

NAMES = {"get_weather": "get_weather", "files_read_1a2b3c4d": "files.read"}
TEXT: Json = {"type": "text", "text": ""}
TOOL: Json = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}


def decode(*chunks: bytes, **options: Any) -> tuple[ResponseEnded, list[Part], ProviderError | None]:
    decoder = MessagesDecoder(NAMES, **options)
    builder = TurnBuilder(1, iter(f"call_{n}" for n in range(100)).__next__)
    parts: list[Part] = []
    for batch in (*map(decoder.feed, chunks), decoder.close()):
        parts += batch
        builder.feed(batch)
    error = decoder.error
    if error is None:
        return builder.end(1)[1], parts, None
    return builder.end(1, "failed", ErrorInfo(error.code, error.message))[1], parts, error


def blocks_of(*chunks: bytes) -> tuple[Block, ...]:
    fact, _, error = decode(*chunks, finish("end_turn"), END)
    assert error is None
    return fact.blocks


def text(words: str, index: int = 0) -> bytes:
    return start(index, TEXT) + delta(index, "text_delta", text=words) + stop(index)


def call(arguments: str, index: int = 0, block: Json = TOOL) -> bytes:
    return start(index, block) + delta(index, "input_json_delta", partial_json=arguments) + stop(index)


# --- blocks ---


def test_every_kind_of_block_is_read_and_what_is_its_providers_is_kept_verbatim() -> None:
    fact, _, error = decode(streamed(MESSAGE))
    assert error is None
    assert fact.blocks == (
        ThinkingBlock(THOUGHT["thinking"], THOUGHT),
        ThinkingBlock("", REDACTED),
        ProviderBlock(SEARCH),
        ProviderBlock(FOUND),
        TextBlock(CITED["text"], CITED),
        TextBlock("I check the weather. \n"),
        ToolCallBlock("call_0", "get_weather", CALL["input"], "toolu_1", json.dumps(CALL["input"])),
        ToolCallBlock("call_1", "get_time", {}, "toolu_2", ""),
    )
    assert (fact.stop_reason, fact.raw_stop) == ("tool_use", "tool_use")
    assert fact.usage == Usage(12, 2_000, 300, 90, 40, USAGE)


@given(st.integers(1, 30))
def test_a_document_and_a_stream_say_the_same(size: int) -> None:
    def neutral(fact: ResponseEnded) -> list[Any]:
        return [(b.name, b.input, b.provider_id) if isinstance(b, ToolCallBlock) else b for b in fact.blocks]

    whole, parts, error = decode(json.dumps(MESSAGE, indent=1).encode())
    live, _, _ = decode(streamed(MESSAGE, size))
    assert error is None
    assert isinstance(parts[-1], Finish)
    assert neutral(whole) == neutral(live)
    assert (whole.stop_reason, whole.usage) == (live.stop_reason, live.usage)


def test_what_streams_reaches_the_user_at_once() -> None:
    decoder = MessagesDecoder(NAMES)
    assert decoder.feed(start(0, THOUGHT | {"thinking": "", "signature": ""})) == [PartStart(0, "thinking")]
    assert decoder.feed(delta(0, "thinking_delta", thinking="hm")) == [PartDelta(0, "hm")]
    assert decoder.feed(delta(0, "signature_delta", signature="s")) == []
    ended = {"type": "thinking", "thinking": "hm", "signature": "s"}
    assert decoder.feed(stop(0)) == [PartEnd(0, ended)]
    assert decoder.feed(start(1, TOOL)) == [PartStart(1, "tool_call", "get_weather", "toolu_1")]
    assert decoder.feed(delta(1, "input_json_delta", partial_json='{"ci')) == [PartDelta(1, '{"ci')]
    assert decoder.feed(stop(1)) == [PartEnd(1)]
    assert decoder.feed(start(2, SEARCH | {"input": {}})) == [PartStart(2, "provider")]
    assert decoder.feed(delta(2, "input_json_delta", partial_json='{"query": "tides"}')) == []
    assert decoder.feed(stop(2)) == [PartEnd(2, SEARCH)]


@pytest.mark.parametrize(
    ("chunks", "blocks"),
    [
        # a beginning in the start
        ([start(0, {"type": "text", "text": "He"}), delta(0, "text_delta", text="llo"), stop(0)], [TextBlock("Hello")]),
        # an empty block is a block: readers count them
        ([start(0, TEXT), stop(0)], [TextBlock("")]),
        # thinking without a signature
        (
            [start(0, {"type": "thinking", "thinking": ""}), delta(0, "thinking_delta", thinking="hm"), stop(0)],
            [ThinkingBlock("hm")],
        ),
        # only a signature: thinking that is not shown
        (
            [start(0, {"type": "thinking", "thinking": ""}), delta(0, "signature_delta", signature="s"), stop(0)],
            [ThinkingBlock("", {"type": "thinking", "thinking": "", "signature": "s"})],
        ),
        # blocks that interleave, and one that never stops
        (
            [start(3, TEXT), start(1, TEXT), delta(3, "text_delta", text="a"), delta(1, "text_delta", text="b")],
            [TextBlock("a"), TextBlock("b")],
        ),
        # an index that is used again
        ([text("a"), text("b")], [TextBlock("a"), TextBlock("b")]),
        ([start(0, TEXT), delta(0, "text_delta", text="a"), text("b")], [TextBlock("a"), TextBlock("b")]),
        # no index
        (
            [
                event("content_block_start", content_block=TEXT),
                event("content_block_delta", delta={"type": "text_delta", "text": "a"}),
                event("content_block_stop"),
            ],
            [TextBlock("a")],
        ),
        # a stop without a start
        ([stop(7), text("a"), stop(0)], [TextBlock("a")]),
        # words without a start
        ([delta(0, "text_delta", text="a"), delta(0, "text_delta", text="b")], [TextBlock("ab")]),
        # a block type that does not exist yet, and deltas that do not exist yet
        (
            [
                start(0, {"type": "poem", "title": "", "lines": 0}),
                delta(0, "poem_delta", title="O"),
                delta(0, "poem_delta", title="de", lines=3),
                stop(0),
                start(1, TEXT),
                delta(1, "colour_delta", colour="red"),
                delta(1, "text_delta", text="a"),
                stop(1),
            ],
            [ProviderBlock({"type": "poem", "title": "Ode", "lines": 3}), TextBlock("a")],
        ),
        # an unknown block with known deltas
        (
            [start(0, {"type": "poem"}), delta(0, "text_delta", text="O"), delta(0, "text_delta", text="de"), stop(0)],
            [ProviderBlock({"type": "poem", "text": "Ode"})],
        ),
        # no block at all
        ([start(0, {}), event("content_block_start", index=1, content_block=None), stop(0)], []),
        # nulls and empty lists are nothing to keep
        ([start(0, TEXT | {"citations": None}), start(1, TEXT | {"citations": []})], [TextBlock(""), TextBlock("")]),
    ],
)
def test_blocks_are_told_apart(chunks: list[bytes], blocks: list[Block]) -> None:
    assert list(blocks_of(begin(), *chunks)) == blocks
    assert list(blocks_of(b"".join(chunks))) == blocks  # without message_start as well


def test_a_delta_of_a_wrong_type_is_no_input() -> None:
    (block,) = blocks_of(start(0, SEARCH), delta(0, "input_json_delta", partial_json=True), stop(0))
    assert isinstance(block, ProviderBlock)
    assert block.raw["input"] == SEARCH["input"]


def test_citations_follow_the_text_they_came_with() -> None:
    cites = [{"cited_text": "a", "n": 10**30}, {"cited_text": "b"}]
    (block,) = blocks_of(
        start(0, TEXT),
        delta(0, "citations_delta", citation=cites[0]),
        delta(0, "text_delta", text="One."),
        delta(0, "citations_delta", citation=cites[1]),
        stop(0),
    )
    assert isinstance(block, TextBlock)
    assert block.raw is not None
    assert [cite["cited_text"] for cite in block.raw["citations"]] == ["a", "b"]
    assert block.raw["text"] == block.text == "One."


# --- calls ---


@pytest.mark.parametrize(
    ("chunk", "input", "problem"),
    [
        (call('{"city": "Cork"}'), {"city": "Cork"}, None),
        (call(""), {}, None),
        (start(0, TOOL) + stop(0), {}, None),
        # the input came with the start
        (start(0, TOOL | {"input": {"n": 10**30}}) + stop(0), {"n": 10**30}, None),
        (start(0, TOOL | {"input": '{"n": 1}'}) + stop(0), {"n": 1}, None),
        (start(0, TOOL | {"input": [1]}) + stop(0), {}, "JSON array"),
        (start(0, TOOL | {"input": {"n": float("nan")}}) + stop(0), {}, "NaN is not JSON"),
        (start(0, TOOL | {"input": "@"}).replace(b'"@"', b"[" * 900 + b"]" * 900) + stop(0), {}, "send"),
        # and was only a placeholder
        (start(0, TOOL | {"input": {"n": 0}}) + delta(0, "input_json_delta", partial_json='{"n": 1}'), {"n": 1}, None),
        (call('{"query": "a" "limit": }'), {}, "not valid JSON"),
        (call("{}", block=TOOL | {"name": ""}), {}, NAMELESS),
        (call("{}", block=TOOL | {"name": None}), {}, NAMELESS),
    ],
)
def test_the_input_of_a_call_is_what_the_provider_sent(chunk: bytes, input: Json, problem: str | None) -> None:
    fact, _, error = decode(begin(), chunk, finish("tool_use"), END)
    assert error is None
    (block,) = fact.blocks
    assert isinstance(block, ToolCallBlock)
    assert block.input == input
    assert (problem or "") in (block.problem or "")
    assert (problem is None) == (block.problem is None)


def test_our_name_of_a_tool_is_told_not_the_one_on_the_wire() -> None:
    (block,) = blocks_of(call("{}", block=TOOL | {"name": "files_read_1a2b3c4d", "id": ""}))
    assert isinstance(block, ToolCallBlock)
    assert (block.name, block.provider_id) == ("files.read", None)


def test_unknown_fields_of_a_call_are_kept_for_its_provider() -> None:
    caller = {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}
    (block,) = blocks_of(call("{}", block=TOOL | {"caller": caller, "toolset_name": None}))
    assert isinstance(block, ToolCallBlock)
    assert block.raw == {"caller": caller}


@pytest.mark.parametrize("before", [b"", text("a"), start(0, TEXT)])
def test_input_that_belongs_to_no_call_is_an_interruption(before: bytes) -> None:
    fact, _, error = decode(before, delta(0, "input_json_delta", partial_json="{}"), finish("tool_use"), END)
    assert type(error) is StreamInterruptedError
    assert fact.status == "failed"


def test_calls_cut_by_the_output_limit_do_not_run_and_complete_ones_do() -> None:
    fact, _, _ = decode(call('{"n": 1}'), call('{"n": ', 1), finish("max_tokens"), END)
    assert fact.status == "cut"
    assert [(b.input, b.problem) for b in fact.blocks if isinstance(b, ToolCallBlock)] == [({"n": 1}, None), ({}, CUT)]


def test_a_providers_block_that_was_cut_is_kept_as_nothing() -> None:
    half = delta(0, "input_json_delta", partial_json='{"qu')
    fact, _, _ = decode(start(0, SEARCH | {"input": {}}), half, stop(0), finish("max_tokens"), END)
    assert fact.blocks == (ProviderBlock({}),)


@pytest.mark.parametrize("value", ["NaN", "1e999", "[" * 500 + "]" * 500])
def test_what_no_journal_can_hold_is_not_kept(value: str) -> None:
    body = start(0, {"type": "poem", "x": "@"}) + start(1, TOOL | {"x": "@"}) + start(2, THOUGHT | {"x": "@"})
    fact, _, error = decode(body.replace(b'"@"', value.encode()), finish("tool_use", n=1), END)
    assert error is None
    assert fact.blocks == (
        ProviderBlock({}),
        ToolCallBlock("call_0", "get_weather", {}, "toolu_1", ""),
        ThinkingBlock(THOUGHT["thinking"]),
    )


# --- the end ---


@pytest.mark.parametrize(
    ("reason", "calls", "stop_reason", "status"),
    [
        ("end_turn", False, "end_turn", "complete"),
        ("stop_sequence", False, "end_turn", "complete"),
        ("tool_use", True, "tool_use", "complete"),
        ("tool_use", False, "other", "complete"),
        ("end_turn", True, "tool_use", "complete"),
        ("max_tokens", False, "max_tokens", "cut"),
        ("max_tokens", True, "max_tokens", "cut"),
        ("model_context_window_exceeded", False, "max_tokens", "cut"),
        ("pause_turn", False, "other", "complete"),
        ("refusal", False, "other", "complete"),
        ("refusal", True, "other", "complete"),
        ("compaction", False, "other", "complete"),
    ],
)
def test_the_stop_reason_follows_from_word_and_calls(reason: str, calls: bool, stop_reason: str, status: str) -> None:
    fact, parts, error = decode(begin(), call('{"n": 1}') if calls else text("a"), finish(reason), END)
    assert error is None
    assert (fact.stop_reason, fact.raw_stop, fact.status) == (stop_reason, reason, status)
    assert isinstance(parts[-1], Finish)


def test_after_a_refusal_nothing_runs() -> None:
    fact, _, _ = decode(begin(), stop(4), call("{}"), finish("refusal"), END)
    (block,) = fact.blocks
    assert isinstance(block, ToolCallBlock)
    assert block.problem == WITHHELD


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [b": keep-alive\n\n"],
        [event("ping")],
        [begin()],
        [END],
        [text("half")],
        [text("half"), END],
        [text("half"), finish(None), END],
        [text("half"), finish(""), END],
        [text("half"), b"data: [DONE]\n\n"],
        [call("{}"), END],
        [b"<html>not here</html>"],
        [json.dumps(MESSAGE).encode()[:-40]],
        [json.dumps(MESSAGE | {"stop_reason": None}).encode()],
        [text("half"), b'event: content_block_delta\ndata: {"type": "content_bl\n\n', finish("end_turn"), END],
        [text("half"), b'data: {"type": "content_bl\n\n', finish("end_turn"), END],
    ],
)
def test_without_a_stop_reason_a_message_is_interrupted(chunks: list[bytes]) -> None:
    fact, parts, error = decode(*chunks)
    assert type(error) is StreamInterruptedError
    assert not any(isinstance(part, Finish) for part in parts)
    assert all(b.problem in (INTERRUPTED, None) for b in fact.blocks if isinstance(b, ToolCallBlock))


@pytest.mark.parametrize(
    "junk",
    [b"event: ping\n\n", b"event: ping\ndata: now\n\n", b"data: null\n\n", event("usage_hint", n=1)]
    + [event("content_block_delta", index=0, delta=junk) for junk in (None, [], {"type": 7}, {"type": "text_delta"})]
    + [event("message_start", message=None), event("message_delta"), event("content_block_stop", index=9)],
)
def test_junk_between_frames_is_skipped(junk: bytes) -> None:
    before, after = delta(0, "text_delta", text="a"), delta(0, "text_delta", text="b")
    fact, _, error = decode(begin(), start(0, TEXT), before, junk, after, finish("end_turn"))
    assert error is None
    assert fact.blocks == (TextBlock("ab"),)


def test_the_event_line_may_be_missing_or_wrong() -> None:
    body = streamed(MESSAGE)
    plain = b"\n".join(line for line in body.split(b"\n") if not line.startswith(b"event:"))
    assert decode(plain)[0] == decode(body)[0]
    assert decode(body.replace(b"event: content_block_delta", b"event: message"))[0] == decode(body)[0]


def test_nothing_is_read_after_the_last_word() -> None:
    decoder = MessagesDecoder(NAMES)
    decoder.feed(text("a") + finish("end_turn"))
    assert decoder.finished
    assert not decoder.done
    decoder.feed(END + text("b", 1))
    assert decoder.done
    assert decoder.feed(text("c", 2)) == []
    assert decoder.close() == [Finish("end_turn", "end_turn")]


def test_a_connection_that_breaks_after_the_stop_reason_breaks_nothing() -> None:
    decoder = MessagesDecoder(NAMES)
    decoder.request_id = "req_1"
    decoder.feed(text("a") + finish("end_turn"))
    decoder.lose(StreamInterruptedError("reset"))
    assert decoder.close() == [Finish("end_turn", "end_turn", "req_1")]
    assert decoder.error is None


@pytest.mark.parametrize(
    ("chunk", "kind", "words"),
    [
        (event("error", error={"type": "overloaded_error", "message": "Overloaded"}), OverloadedError, "Overloaded"),
        (event("error", error={"type": "rate_limit_error", "message": "slow"}), RateLimitedError, "slow"),
        (event("error", error={"type": "api_error", "message": "boom"}), ProviderError, "boom"),
        (event("error", error={"message": "prompt is too long: 3 > 2"}), ContextLengthError, None),
        (event("error"), ProviderError, None),
        (b'data: {"type": "error", "error": {"type": "overloaded_error"}}\n\n', OverloadedError, None),
        (b'data: {"error": {"message": "bad key sk-secret", "code": 500}}\n\n', ProviderError, "bad key [key]"),
        (b'event: error\ndata: {"code": 500, "message": "boom", "type": "server_error"}\n\n', ProviderError, "boom"),
        (b"event: error\ndata: overloaded, sorry\n\n", ProviderError, "overloaded, sorry"),
    ],
)
def test_an_error_in_the_stream_fails_the_response_and_keeps_the_text(
    chunk: bytes, kind: type[ProviderError], words: str | None
) -> None:
    fact, _, error = decode(
        begin(input_tokens=5), text("So "), chunk, text("far"), finish("end_turn"), END, secrets=["sk-secret"]
    )
    assert type(error) is kind
    assert fact.blocks == (TextBlock("So "),)
    assert fact.usage == Usage(input=5, raw={"input_tokens": 5})
    if words is not None:
        assert error is not None
        assert error.detail == words


# --- usage ---


def test_usage_is_replaced_field_by_field_and_told_once_for_each_read() -> None:
    decoder = MessagesDecoder(NAMES)
    batch = decoder.feed(
        begin(input_tokens=31, cache_read_input_tokens=7, output_tokens=1) + finish(None, output_tokens=9)
    )
    assert [part for part in batch if isinstance(part, UsageSeen)] == [
        UsageSeen(Usage(31, 7, None, 9, None, {"input_tokens": 31, "cache_read_input_tokens": 7, "output_tokens": 9}))
    ]
    (last,) = decoder.feed(finish("end_turn", output_tokens=17, input_tokens=None, cache_read_input_tokens=None))
    assert isinstance(last, UsageSeen)
    assert (last.usage.input, last.usage.cache_read, last.usage.output, last.usage.total) == (31, 7, 17, 55)


def test_unknown_counts_stay_unknown() -> None:
    assert usage_of({}) == Usage()
    assert usage_of({"input_tokens": None, "output_tokens": "3", "output_tokens_details": 4}).total == 0
    assert decode(begin(), text("a"), finish("end_turn"))[0].usage is None
