import json
from typing import Any

import pytest

from ownloop.backends.wires.chat_decoder import ChatDecoder, usage_of
from ownloop.backends.wires.think_tags import ThinkTags
from ownloop.core.backend import Finish, Part, PartDelta, PartEnd, PartStart, UsageSeen
from ownloop.core.events import ErrorInfo, ResponseEnded
from ownloop.core.messages import TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.core.turn import CUT, INTERRUPTED, WITHHELD, TurnBuilder
from ownloop.core.usage import Usage
from ownloop.errors import (
    ContextLengthError,
    OverloadedError,
    ProviderError,
    StreamInterruptedError,
)

NAMES = {"read": "read", "read_file": "read_file", "ping": "ping", "files_read_1a2b3c4d": "files.read"}


def frame(delta: dict[str, Any] | None = None, finish: str | None = None, **rest: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **rest}).encode() + b"\n\n"


def call(
    index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    entry: dict[str, Any] = {} if index is None else {"index": index}
    if id is not None:
        entry["id"] = id
    entry["function"] = {"name": name, "arguments": arguments}
    return entry


def calls(*entries: dict[str, Any]) -> bytes:
    return frame({"tool_calls": list(entries)})


DONE = b"data: [DONE]\n\n"


def decode(*chunks: bytes, **options: Any) -> tuple[ResponseEnded, list[Part], ProviderError | None]:
    decoder = ChatDecoder(NAMES, **options)
    builder = TurnBuilder(1, iter(f"call_{n}" for n in range(100)).__next__)
    parts: list[Part] = []
    for batch in (*map(decoder.feed, chunks), decoder.close()):
        parts += batch
        builder.feed(batch)
    error = decoder.error
    if error is None:
        return builder.end(1)[1], parts, None
    return builder.end(1, "failed", ErrorInfo(error.code, error.message))[1], parts, error


def inputs(fact: ResponseEnded) -> list[tuple[str | None, str, Any]]:
    return [(b.provider_id, b.name, b.problem or b.input) for b in fact.blocks if isinstance(b, ToolCallBlock)]


# --- calls ---


def test_arguments_reach_the_user_while_they_stream() -> None:
    decoder = ChatDecoder(NAMES)
    assert decoder.feed(calls(call(0, "a", "read_file", ""))) == [PartStart(0, "tool_call", "read_file", "a")]
    assert decoder.feed(calls(call(0, arguments='{"path"'))) == [PartDelta(0, '{"path"')]
    assert decoder.feed(calls(call(0, arguments=': "x"}'))) == [PartDelta(0, ': "x"}')]


def test_a_name_that_may_still_grow_into_another_tool_is_held_back_until_arguments_begin() -> None:
    decoder = ChatDecoder(NAMES)
    assert decoder.feed(calls(call(0, "a", "read", ""))) == []
    assert decoder.feed(calls(call(0, name="_file", arguments="{"))) == [
        PartStart(0, "tool_call", "read_file", "a"),
        PartDelta(0, "{"),
    ]
    decoder = ChatDecoder(NAMES)
    assert decoder.feed(calls(call(0, "a", "read", ""))) == []
    assert decoder.feed(calls(call(0, arguments="{"))) == [
        PartStart(0, "tool_call", "read", "a"),
        PartDelta(0, "{"),
    ]


def test_a_name_that_comes_after_its_arguments_opens_the_call_with_all_of_them() -> None:
    fact, parts, _ = decode(
        calls(call(0, "a", None, "{}")), calls(call(0, name="ping")), frame(finish="tool_calls"), DONE
    )
    assert parts[:2] == [PartStart(0, "tool_call", "ping", "a"), PartDelta(0, "{}")]
    assert inputs(fact) == [("a", "ping", {})]


def test_our_name_of_a_tool_is_told_not_the_one_on_the_wire() -> None:
    fact, _, _ = decode(calls(call(0, "a", "files_read_1a2b3c4d", "{}")), frame(finish="stop"), DONE)
    assert inputs(fact) == [("a", "files.read", {})]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # one index for all, told apart by ids
        ([call(0, "a", "ping", "{}"), call(0, "b", "ping", "{}")], [("a", "ping", {}), ("b", "ping", {})]),
        # each delta of the two names its call again
        (
            [
                call(0, "a", "read", '{"n":'),
                call(0, "b", "read", '{"n":'),
                call(0, "a", "", "1}"),
                call(0, "b", "", "2}"),
            ],
            [("a", "read", {"n": 1}), ("b", "read", {"n": 2})],
        ),
        # neither index nor id
        (
            [call(None, None, "read", '{"n":1}'), call(None, None, "read", '{"n":2}')],
            [(None, "read", {"n": 1}), (None, "read", {"n": 2})],
        ),
        # neither index nor id, and nothing to tell the arguments apart
        (
            [call(None, None, "ping", ""), call(None, None, "read_file", "")],
            [(None, "ping", {}), (None, "read_file", {})],
        ),
        # an index that vanishes continues the last call
        ([call(3, "a", "read", '{"n":'), call(None, None, None, "1}")], [("a", "read", {"n": 1})]),
        # id and name in every delta
        (
            [call(0, "a", "read_file", '{"n'), call(0, "a", "read_file", '":1}'), call(0, "a", "read_file", "")],
            [("a", "read_file", {"n": 1})],
        ),
        # two calls share an id
        ([call(0, "a", "ping", "{}"), call(1, "a", "ping", "{}")], [("a", "ping", {}), ("a", "ping", {})]),
        # interleaved, later index first
        (
            [
                call(2, "b", "read", '{"n":'),
                call(1, "a", "read", '{"n":'),
                call(2, arguments="2}"),
                call(1, arguments="1}"),
            ],
            [("b", "read", {"n": 2}), ("a", "read", {"n": 1})],
        ),
        # a phantom
        ([call(0, "", "", ""), call(1, "a", "ping", "{}")], [("a", "ping", {})]),
        # an undeclared tool, in pieces and then again
        ([call(0, "a", "no_", ""), call(0, "a", "such", ""), call(0, "a", "no_such", "{}")], [("a", "no_such", {})]),
    ],
)
def test_calls_are_told_apart(entries: list[dict[str, Any]], expected: list[tuple[str | None, str, Any]]) -> None:
    apart, _, _ = decode(*map(calls, entries), frame(finish="tool_calls"), DONE)
    together, _, _ = decode(calls(*entries), frame(finish="tool_calls"), DONE)
    assert inputs(apart) == expected
    assert together == apart
    assert apart.stop_reason == "tool_use"


def test_a_call_without_any_name_is_answered_with_an_error() -> None:
    fact, _, _ = decode(calls(call(0, "a", "", '{"n": 1}')), frame(finish="tool_calls"), DONE)
    (block,) = fact.blocks
    assert isinstance(block, ToolCallBlock)
    assert (block.name, block.input) == ("", {})
    assert "without a tool name" in (block.problem or "")


def test_two_objects_glued_into_one_call_are_refused() -> None:
    fact, _, _ = decode(
        calls(call(0, "a", "read", '{"n":1}')), calls(call(0, arguments='{"n":2}')), frame(finish="stop")
    )
    (block,) = fact.blocks
    assert isinstance(block, ToolCallBlock)
    assert "not valid JSON" in (block.problem or "")


def test_arguments_that_come_as_an_object_keep_all_digits() -> None:
    big = 12345678901234567890123
    fact, _, _ = decode(calls(call(0, "a", "read", {"n": big, "s": "é"})), frame(finish="stop"), DONE)
    assert inputs(fact) == [("a", "read", {"n": big, "s": "é"})]


def test_unknown_fields_of_a_call_are_kept_for_its_provider() -> None:
    entry = call(0, "a", "ping", "{}") | {"type": "function", "extra_content": {"google": {"sig": "x"}}, "other": None}
    fact, _, _ = decode(calls(entry), frame(finish="stop"), DONE)
    (block,) = fact.blocks
    assert isinstance(block, ToolCallBlock)
    assert block.raw == {"extra_content": {"google": {"sig": "x"}}}


def test_a_whole_message_in_one_document_gives_its_calls() -> None:
    message = {"content": None, "tool_calls": [call(None, None, "ping", ""), call(None, None, "ping", {"n": 1})]}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}}
    fact, _, _ = decode(json.dumps(body, indent=1).encode())
    assert inputs(fact) == [(None, "ping", {}), (None, "ping", {"n": 1})]
    assert fact.usage == Usage(input=3, raw={"prompt_tokens": 3})


def test_a_last_event_that_repeats_the_whole_message_doubles_nothing() -> None:
    repeated = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    fact, _, _ = decode(frame({"content": "Hello"}), b"data: " + json.dumps(repeated).encode() + b"\n\n", DONE)
    assert fact.blocks == (TextBlock("Hello"),)


# --- text and thinking ---


def test_blank_text_before_a_call_is_no_block() -> None:
    fact, _, _ = decode(
        frame({"content": "\n\n"}),
        frame({"content": " "}),
        calls(call(0, "a", "ping", "{}")),
        frame(finish="stop"),
        DONE,
    )
    assert [block.type for block in fact.blocks] == ["tool_call"]


def test_blank_text_before_words_is_kept() -> None:
    fact, _, _ = decode(
        frame({"content": "\n"}), frame({"content": " a"}), frame({"content": "\n"}), frame(finish="stop")
    )
    assert fact.blocks == (TextBlock("\n a\n"),)


def test_blocks_follow_each_other_in_the_order_in_which_they_came() -> None:
    fact, parts, _ = decode(
        frame({"reasoning_content": "hm", "reasoning": "hm"}),
        frame({"content": "I look. "}),
        calls(call(0, "a", "ping", "{}")),
        frame({"content": "Done."}),
        frame(finish="stop"),
        DONE,
    )
    assert [block.type for block in fact.blocks] == ["thinking", "text", "tool_call", "text"]
    assert fact.blocks[0] == ThinkingBlock("hm")
    assert [p.index for p in parts if isinstance(p, PartStart)] == [0, 1, 2, 3]
    assert [p.index for p in parts if isinstance(p, PartEnd)] == [0, 1, 3, 2]


def test_a_refusal_is_shown_and_nothing_of_it_runs() -> None:
    fact, _, _ = decode(frame({"refusal": "I can't."}), calls(call(0, "a", "ping", "{}")), frame(finish="stop"), DONE)
    assert fact.blocks[0] == TextBlock("I can't.")
    assert (fact.stop_reason, fact.raw_stop) == ("other", "refusal")
    assert inputs(fact) == [("a", "ping", WITHHELD)]


def think(*pieces: str) -> list[tuple[str, str]]:
    tags = ThinkTags()
    found: list[tuple[str, str]] = []
    for kind, text in [item for piece in pieces for item in tags.feed(piece)] + tags.close():
        if found and found[-1][0] == kind:
            text = found.pop()[1] + text
        found.append((kind, text))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>plan</think>\n\nGo", [("thinking", "plan"), ("text", "Go")]),
        ("\n<think>plan", [("thinking", "plan")]),
        ("<think>a < b </thin k></think>Go", [("thinking", "a < b </thin k>"), ("text", "Go")]),
        ("<think></think>Go", [("text", "Go")]),
        ("</think>Go", [("text", "Go")]),
        ("A <think> tag </think>.", [("text", "A <think> tag </think>.")]),
        ("<thin", [("text", "<thin")]),
        ("<thing>", [("text", "<thing>")]),
        ("<think>plan</thi", [("thinking", "plan</thi")]),
    ],
)
def test_think_tags_are_taken_out_wherever_they_are_cut(text: str, expected: list[tuple[str, str]]) -> None:
    assert think(text) == expected
    assert think(*text) == expected


def test_reasoning_in_its_own_field_wins_over_the_same_in_tags() -> None:
    fact, _, _ = decode(
        frame({"reasoning_content": "plan"}),
        frame({"content": "<think>plan</think>Go"}),
        frame(finish="stop"),
        think_tags=True,
    )
    assert fact.blocks == (ThinkingBlock("plan"), TextBlock("Go"))


def test_text_that_only_looked_like_a_tag_is_not_lost_when_the_stream_breaks() -> None:
    fact, _, error = decode(frame({"content": "<thi"}), think_tags=True)
    assert fact.blocks == (TextBlock("<thi"),)
    assert isinstance(error, StreamInterruptedError)


# --- the end ---


@pytest.mark.parametrize(
    ("chunks", "stop_reason", "raw"),
    [
        ([frame({"content": "x"}, "eos_token")], "end_turn", "eos_token"),
        ([frame({"content": "x"}, "model_length")], "max_tokens", "model_length"),
        ([frame({"content": "x"}, "never_heard_of")], "other", "never_heard_of"),
        ([frame({"content": "x"}, "tool_calls")], "other", "tool_calls"),
        ([calls(call(0, "a", "ping", "{}")), frame(finish="never_heard_of")], "tool_use", "never_heard_of"),
        ([calls(call(0, "a", "ping", "{}")), frame(finish="tool_calls"), frame(finish="stop")], "tool_use", "stop"),
        ([frame({"content": "x"}, "length"), frame(finish="stop")], "max_tokens", "length"),
        ([frame({"content": "x"}, "stop"), frame(finish="content_filter")], "other", "content_filter"),
        ([frame({"content": "x"}), DONE], "end_turn", None),
    ],
)
def test_the_stop_reason_follows_from_word_and_calls(chunks: list[bytes], stop_reason: str, raw: str | None) -> None:
    fact, parts, error = decode(*chunks)
    assert error is None
    assert (fact.stop_reason, fact.raw_stop) == (stop_reason, raw)
    assert isinstance(parts[-1], Finish)


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [b": keep-alive\n\n"],
        [DONE],
        [frame({"reasoning": "hm"}), DONE],
        [frame({"content": "half"})],
        [calls(call(0, "a", "ping", "{}")), DONE],
        [calls(call(0, "a", "ping", "{}"))],
        [b"<html>not here</html>"],
        [b'{"choices": [{"message": {"content": "cut'],
        [frame({"content": "a"}), b'data: {"choices": [\n\n', frame(finish="stop"), DONE],
    ],
)
def test_without_the_providers_last_word_a_response_is_interrupted(chunks: list[bytes]) -> None:
    fact, parts, error = decode(*chunks)
    assert type(error) is StreamInterruptedError
    assert not any(isinstance(part, Finish) for part in parts)
    assert all(problem == INTERRUPTED for _, _, problem in inputs(fact))


def test_a_proxys_page_is_quoted_in_the_error() -> None:
    _, _, error = decode(b"<html>no backend available</html>\n")
    assert isinstance(error, StreamInterruptedError)
    assert error.detail == "<html>no backend available</html>"


@pytest.mark.parametrize(
    ("chunk", "kind", "words"),
    [
        (b'data: {"error": {"message": "boom", "code": 503}}\n\n', OverloadedError, "boom"),
        (b'data: {"error": {"message": "boom", "code": "503"}}\n\n', OverloadedError, "boom"),
        (b'data: {"error": "plain words"}\n\n', ProviderError, "plain words"),
        (b'data: {"object": "error", "message": "boom", "code": 500}\n\n', ProviderError, "boom"),
        (b'error: {"code": 500, "message": "boom"}\n\n', ProviderError, "boom"),
        (b"event: error\ndata: overloaded, sorry\n\n", ProviderError, "overloaded, sorry"),
        (b"event: error\n\n", ProviderError, None),
        (frame({}, "error"), ProviderError, None),
        (b'data: {"error": {"message": "maximum context length is 4"}}\n\n', ContextLengthError, None),
        (b'data: {"error": {"message": "bad key sk-secret"}}\n\n', ProviderError, "bad key [key]"),
    ],
)
def test_an_error_in_the_stream_fails_the_response_and_keeps_the_text(
    chunk: bytes, kind: type[ProviderError], words: str | None
) -> None:
    fact, _, error = decode(
        frame({"content": "So "}), chunk, frame({"content": "far"}, "stop"), DONE, secrets=["sk-secret"]
    )
    assert type(error) is kind
    assert fact.blocks == (TextBlock("So "),)
    assert error is not None
    if words is not None:
        assert error.detail == words


def test_nothing_is_read_after_done() -> None:
    decoder = ChatDecoder(NAMES)
    decoder.feed(frame({"content": "a"}, "stop") + DONE + frame({"content": "b"}))
    assert decoder.done
    assert decoder.feed(frame({"content": "c"})) == []
    assert isinstance(decoder.close()[-1], Finish)


def test_a_connection_that_breaks_after_the_finish_reason_breaks_nothing() -> None:
    decoder = ChatDecoder(NAMES)
    decoder.feed(frame({"content": "a"}, "stop"))
    assert decoder.finished
    decoder.lose(StreamInterruptedError("reset"))
    assert isinstance(decoder.close()[-1], Finish)
    assert decoder.error is None


def test_calls_cut_by_the_output_limit_do_not_run_and_complete_ones_do() -> None:
    fact, _, _ = decode(
        calls(call(0, "a", "read", '{"n": 1}'), call(1, "b", "read", '{"n": ')), frame(finish="length"), DONE
    )
    assert fact.status == "cut"
    assert inputs(fact) == [("a", "read", {"n": 1}), ("b", "read", CUT)]


def test_after_a_content_filter_nothing_runs() -> None:
    fact, _, _ = decode(calls(call(0, "a", "ping", "{}")), frame(finish="content_filter"), DONE)
    assert inputs(fact) == [("a", "ping", WITHHELD)]


@pytest.mark.parametrize("junk", [b"data: : ping\n\n", b"data:\n\n", b"event: ping\ndata: now\n\n", b"data: null\n\n"])
def test_junk_between_frames_is_skipped(junk: bytes) -> None:
    fact, _, error = decode(frame({"content": "a"}), junk, frame({"content": "b"}, "stop"), DONE)
    assert error is None
    assert fact.blocks == (TextBlock("ab"),)


def test_halves_of_a_surrogate_pair_in_two_frames_become_one_character() -> None:
    def half(escape: str) -> bytes:
        return b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % escape.encode()

    fact, _, _ = decode(half("a\\ud83d"), half("\\ude00b"), frame(finish="stop"))
    assert fact.blocks == (TextBlock("a😀b"),)


# --- usage ---


def test_usage_is_replaced_field_by_field_and_told_once_for_each_read() -> None:
    first = {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    decoder = ChatDecoder(NAMES)
    batch = decoder.feed(frame({"content": "a"}, usage=first) + frame(usage={"completion_tokens": 2}))
    assert [part for part in batch if isinstance(part, UsageSeen)] == [
        UsageSeen(Usage(input=6, cache_read=4, output=2, raw=first | {"completion_tokens": 2}))
    ]
    later = decoder.feed(frame(usage={"prompt_tokens": None, "prompt_tokens_details": None}))
    assert later == [UsageSeen(Usage(input=6, cache_read=4, output=2, raw=first | {"completion_tokens": 2}))]


def test_unknown_counts_stay_unknown() -> None:
    assert usage_of({}) == Usage()
    assert usage_of({"prompt_tokens": None, "completion_tokens": "3"}).total == 0


def test_usage_is_known_of_a_response_that_failed() -> None:
    fact, _, _ = decode(frame({"content": "a"}, usage={"prompt_tokens": 5}), b'data: {"error": "x"}\n\n')
    assert fact.usage is not None
    assert fact.usage.input == 5
