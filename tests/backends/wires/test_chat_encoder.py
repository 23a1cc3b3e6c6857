import base64
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.backends.profiles import DEEPSEEK, GENERIC, LOCAL, MISTRAL, OPENAI, STRICT_TEMPLATE, Profile
from ownloop.backends.wires import encoder as encoder_module
from ownloop.backends.wires.chat_encoder import ChatEncoder
from ownloop.backends.wires.encoder import Encoded, wire_name
from ownloop.core.backend import ModelRequest, ModelSettings
from ownloop.core.messages import (
    BlobBlock,
    Block,
    Json,
    Message,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from ownloop.core.toolspec import ToolSpec

PNG = BlobBlock("d1", "image/png", 3)
PDF = BlobBlock("d2", "application/pdf", 3)
BLOBS = {"d1": b"png", "d2": b"pdf"}


def user(text: str) -> Message:
    return Message("user", (TextBlock(text),))


def assistant(*blocks: Block, provider: str = "p", model: str = "m") -> Message:
    return Message("assistant", blocks, provider=provider, model=model)


def results(*results: ToolResultBlock) -> Message:
    return Message("tool", results)


def result(call_id: str, text: str = "ok", *, is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(call_id, "t", (TextBlock(text),), is_error)


def encode_request(request: ModelRequest, profile: Profile = GENERIC) -> Encoded:
    return ChatEncoder("p", "m", profile).encode(request)


def encode(
    *messages: Message, profile: Profile = GENERIC, system: str = "", tools: tuple[ToolSpec, ...] = ()
) -> list[Json]:
    request = ModelRequest(system, messages, tools, ModelSettings(), blobs=BLOBS)
    return encode_request(request, profile).body["messages"]


def ids(messages: list[Json]) -> list[str]:
    """The ids of calls and results, in order."""
    return [
        id for m in messages for id in ([c["id"] for c in m.get("tool_calls", [])] or [m.get("tool_call_id")]) if id
    ]


def test_a_turn_with_two_calls_is_one_message_and_one_result_each() -> None:
    messages = encode(
        user("Go."),
        assistant(
            ThinkingBlock("hm"),
            TextBlock("I look. "),
            ToolCallBlock("call_1", "t", {"n": 1}, "a", '{"n": 1}'),
            ToolCallBlock("call_2", "t", {"n": 2}, "b"),
        ),
        results(result("call_1"), result("call_2", "no such file", is_error=True)),
        system="Be brief.",
    )
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "I look. ",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "t", "arguments": '{"n": 1}'}},
                {"id": "b", "type": "function", "function": {"name": "t", "arguments": '{"n":2}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {"role": "tool", "tool_call_id": "b", "content": "ERROR: no such file"},
    ]


@pytest.mark.parametrize(
    ("arguments", "input", "sent"),
    [
        (None, {"n": 1}, '{"n":1}'),
        ('{ "n" : 1 }', {"n": 1}, '{ "n" : 1 }'),
        ("", {}, "{}"),
        ('{"n": ', {}, "{}"),
        ("[1]", {}, "{}"),
        ("null", {}, "{}"),
        ('"{\\"n\\": 1}"', {"n": 1}, '{"n":1}'),
        ('{"s": "a\nb"}', {"s": "a\nb"}, '{"s":"a\\nb"}'),
        ('{"n": NaN}', {}, "{}"),
        ("[" * 100_000, {}, "{}"),
    ],
)
def test_arguments_go_back_as_streamed_only_if_they_are_an_object(
    arguments: str | None, input: Json, sent: str
) -> None:
    (message, _) = encode(assistant(ToolCallBlock("c", "t", input, "a", arguments)), results(result("c")))
    assert message["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.parametrize(("profile", "content"), [(GENERIC, ""), (OPENAI, None)])
def test_content_beside_calls_is_there_as_the_profile_wants_it(profile: Profile, content: str | None) -> None:
    (message, _) = encode(
        assistant(TextBlock(" \n"), ToolCallBlock("c", "t", {}, "a")), results(result("c")), profile=profile
    )
    assert message["content"] == content


def test_an_assistant_message_that_says_nothing_is_not_sent() -> None:
    assert encode(user("a"), assistant(ThinkingBlock("hm"), TextBlock(""), ProviderBlock({"x": 1})), user("b")) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_own_ids_are_kept_where_they_are_legal_and_new_else_replaced_for_good() -> None:
    turns = [
        assistant(ToolCallBlock("call_1", "t", {}, "0"), ToolCallBlock("call_2", "t", {}, "0")),
        results(result("call_1"), result("call_2")),
        assistant(ToolCallBlock("call_3", "t", {}, "0")),
        results(result("call_3")),
        assistant(ToolCallBlock("call_4", "t", {})),
        results(result("call_4")),
    ]
    assert ids(encode(*turns)) == ["0", "call_2", "0", "call_2", "call_3", "call_3", "call_4", "call_4"]
    assert ids(encode(*turns[:2])) == ["0", "call_2", "0", "call_2"]


def test_ids_are_as_the_server_takes_them() -> None:
    turn = [assistant(ToolCallBlock("call_1", "t", {}, "functions.t:0")), results(result("call_1"))]
    assert ids(encode(*turn)) == ["functions.t:0", "functions.t:0"]
    assert ids(encode(*turn, profile=OPENAI)) == ["call_1", "call_1"]
    call_id, result_id = ids(encode(*turn, profile=MISTRAL))
    assert call_id == result_id
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert ids(encode(*turn, profile=MISTRAL)) == [call_id, result_id]


def test_a_replacement_is_never_an_id_that_is_in_use() -> None:
    turns = [
        assistant(ToolCallBlock("call_1", "t", {}, "call_2")),
        results(result("call_1")),
        assistant(ToolCallBlock("call_2", "t", {})),
        results(result("call_2")),
    ]
    sent = ids(encode(*turns))
    assert sent[0] == sent[1]
    assert sent[2] == sent[3]
    assert sent[0] != sent[2]


def test_a_result_without_its_call_is_left_out() -> None:
    assert encode(results(result("gone")), user("Go on.")) == [{"role": "user", "content": "Go on."}]


def test_thinking_and_unknown_fields_go_back_to_their_own_model_only() -> None:
    blocks = (ThinkingBlock("hm"), ToolCallBlock("c", "t", {}, "a", raw={"extra_content": {"sig": 1}}))
    (own, _) = encode(assistant(*blocks), results(result("c")), profile=DEEPSEEK)
    assert own["reasoning_content"] == "hm"
    assert own["tool_calls"][0]["extra_content"] == {"sig": 1}
    for foreign in (assistant(*blocks, provider="q"), assistant(*blocks, model="n")):
        (other, _) = encode(foreign, results(result("c")), profile=DEEPSEEK)
        assert "reasoning_content" not in other
        assert "extra_content" not in other["tool_calls"][0]
    (elsewhere, _) = encode(assistant(*blocks), results(result("c")))
    assert "reasoning_content" not in elsewhere


def test_images_of_results_follow_all_results_in_one_message_of_the_user() -> None:
    first = ToolResultBlock("c1", "shot", (TextBlock("640x480"), PNG))
    second = ToolResultBlock("c2", "shot", (PDF,))
    calls = (ToolCallBlock("c1", "shot", {}, "a"), ToolCallBlock("c2", "shot", {}, "b"))
    messages = encode(assistant(*calls), results(first, second), user("And?"))
    assert [m["role"] for m in messages] == ["assistant", "tool", "tool", "user", "user"]
    assert messages[1]["content"] == "640x480"
    assert "next message" in messages[2]["content"]
    url = "data:image/png;base64," + base64.b64encode(b"png").decode()
    assert [part["type"] for part in messages[3]["content"]] == ["text", "image_url", "text", "file"]
    assert messages[3]["content"][1] == {"type": "image_url", "image_url": {"url": url}}
    assert messages[3]["content"][3]["file"]["file_data"].startswith("data:application/pdf;base64,")


def test_a_model_that_reads_no_attachments_is_told_of_them() -> None:
    (message,) = encode(Message("user", (TextBlock("See:"), PNG)), profile=LOCAL)
    assert message["content"][1] == {
        "type": "text",
        "text": "[an attachment of type image/png that this model cannot read]",
    }


def test_a_blob_whose_bytes_are_missing_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="blob 'd9'"):
        encode(Message("user", (BlobBlock("d9", "image/png", 1),)))


def test_a_strict_template_gets_alternating_roles() -> None:
    messages = encode(
        user("a"),
        Message("user", (TextBlock("b"), PNG)),
        assistant(TextBlock("c")),
        assistant(TextBlock("d")),
        user("e"),
        assistant(ToolCallBlock("1", "t", {}, "x")),
        results(result("1")),
        user("f"),
        user("g"),
        profile=STRICT_TEMPLATE,
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "tool", "user"]
    assert [part.get("text") for part in messages[0]["content"]] == ["a", "b", None]
    assert messages[1]["content"] == "c\n\nd"
    assert messages[5]["content"] == "f\n\ng"


def test_tools_are_offered_under_legal_names() -> None:
    specs = (
        ToolSpec("files.read", "Read", {"properties": {"p": {}}}),
        ToolSpec("plain", "", {}),
        ToolSpec("x" * 80, "", {}),
    )
    encoded = encode_request(ModelRequest("", (), specs, ModelSettings()))
    names = [tool["function"]["name"] for tool in encoded.body["tools"]]
    assert names[1] == "plain"
    assert [encoded.names[name] for name in names] == [spec.name for spec in specs]
    assert encoded.body["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert encode_request(ModelRequest("", (), (), ModelSettings())).body.keys() == {"stream_options", "messages"}


@given(st.text(max_size=100), st.text(max_size=100))
def test_wire_names_are_legal_stable_and_apart(a: str, b: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(a))
    assert wire_name(a) == wire_name(a)
    assert (wire_name(a) == wire_name(b)) == (a == b)


# --- the memo ---


def conversation(turns: int) -> list[Message]:
    out: list[Message] = []
    for n in range(turns):
        out.append(user(f"question {n}"))
        out.append(assistant(TextBlock("look"), ToolCallBlock(f"call_{n}", "t", {"n": n}, str(n % 3))))
        out.append(results(result(f"call_{n}", f"answer {n}")))
    return out


def request_of(messages: list[Message]) -> ModelRequest:
    return ModelRequest("s", messages, (), ModelSettings())


def test_a_growing_conversation_sends_the_same_prefix_and_encodes_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[Any] = []
    original = ChatEncoder._encode_message

    def spy(self: ChatEncoder, message: Message, *rest: Any) -> Any:
        encoded.append(message)
        return original(self, message, *rest)

    monkeypatch.setattr(ChatEncoder, "_encode_message", spy)
    encoder = ChatEncoder("p", "m")
    messages = conversation(20)
    before: list[Json] = []
    for length in range(1, len(messages) + 1):
        sent = encoder.encode(request_of(messages[:length])).body["messages"]
        assert sent[: len(before)] == before
        assert encoded == [messages[length - 1]]
        encoded.clear()
        before = sent


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(0, 10))
def test_the_memo_changes_nothing_whatever_is_asked(lengths: list[int], dropped: int) -> None:
    encoder = ChatEncoder("p", "m")
    messages = conversation(20)
    for length in lengths:
        # Dropping a prefix (compaction) frees ids that were taken.
        for history in (messages[:length], messages[3 * dropped : length]):
            assert encoder.encode(request_of(history)) == encode_request(request_of(history))


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "REMEMBERED_MESSAGES", 10)
    encoder = ChatEncoder("p", "m")
    for _ in range(5):
        history = conversation(20)
        assert encoder.encode(request_of(history)) == encode_request(request_of(history))
        assert len(encoder._young) + len(encoder._old) <= 20


def test_what_is_sent_is_json() -> None:
    json.dumps(encode(*conversation(2)))


def test_settings_become_the_fields_of_the_profile() -> None:
    settings = ModelSettings(max_tokens=9, temperature=0.0, top_p=0.5, extra={"seed": 1, "tool_choice": "auto"})
    ask = ModelRequest("", (), (ToolSpec("ping", "", {}),), settings)
    body = encode_request(ask, OPENAI).body
    assert {key: body[key] for key in ("max_completion_tokens", "temperature", "top_p", "seed", "tool_choice")} == {
        "max_completion_tokens": 9,
        "temperature": 0.0,
        "top_p": 0.5,
        "seed": 1,
        "tool_choice": "auto",
    }
    bare = encode_request(replace(ask, tools=()), replace(GENERIC, usage_option=False)).body
    assert not {"tools", "tool_choice", "parallel_tool_calls", "stream_options"} & bare.keys()
