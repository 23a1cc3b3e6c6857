import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownloop.backends.profiles import ANTHROPIC, MESSAGES, Profile, messages_profile_for
from ownloop.backends.wires.messages_encoder import GO_ON, NOTHING, MessagesEncoder
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
from tests.backends.wires.messages_samples import CALL, CITED, FOUND, REDACTED, SEARCH, THOUGHT

PNG = BlobBlock("d1", "image/png", 3)
PDF = BlobBlock("d2", "application/pdf", 3)
SVG = BlobBlock("d3", "image/svg+xml", 3)
BLOBS = {"d1": b"png", "d2": b"pdf", "d3": b"svg"}
PING = ToolSpec("ping", "Ping", {"type": "object", "properties": {}})


def user(text: str) -> Message:
    return Message("user", (TextBlock(text),))


def assistant(*blocks: Block, provider: str = "p", model: str = "m") -> Message:
    return Message("assistant", blocks, provider=provider, model=model)


def results(*results: ToolResultBlock) -> Message:
    return Message("tool", results)


def result(call_id: str, text: str = "ok", *, is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(call_id, "ping", (TextBlock(text),), is_error)


def call(call_id: str, provider_id: str | None = None, **rest: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, "ping", {}, provider_id, **rest)


def request(
    *messages: Message, system: str = "", tools: tuple[ToolSpec, ...] = (), settings: ModelSettings | None = None
) -> ModelRequest:
    return ModelRequest(system, messages, tools, settings or ModelSettings(), blobs=BLOBS)


def body(request: ModelRequest, profile: Profile = ANTHROPIC) -> Json:
    return MessagesEncoder("p", "m", profile).encode(request).body


def encode(*messages: Message, profile: Profile = ANTHROPIC) -> list[Json]:
    return body(request(*messages), profile)["messages"]


def said(role: str, *content: Json | str) -> Json:
    return {"role": role, "content": [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]}


def tool_use(id: str) -> Json:
    return {"type": "tool_use", "id": id, "name": "ping", "input": {}}


def tool_result(id: str, *texts: str, **rest: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": said("", *texts)["content"], **rest}


# --- whole requests ---


def test_a_turn_with_two_calls_is_one_answer_and_one_message_of_results() -> None:
    sent = body(
        request(
            user("Go."),
            assistant(
                ThinkingBlock("I should look it up.", THOUGHT),
                TextBlock("I look. "),
                ToolCallBlock("call_1", "files.read", {"n": 1}, "toolu_1", '{ "n": 1 }'),
                call("call_2", "toolu_2"),
            ),
            results(result("call_1"), result("call_2", "no such file", is_error=True)),
            user("Hurry."),
            system="Be brief.",
            tools=(ToolSpec("files.read", "Read", {"properties": {"n": {}}}), PING),
        )
    )
    assert sent == {
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            said("user", "Go."),
            said(
                "assistant",
                THOUGHT,
                "I look. ",
                {"type": "tool_use", "id": "toolu_1", "name": "files_read_601e4eb6", "input": {"n": 1}},
                tool_use("toolu_2"),
            ),
            said(
                "user",
                tool_result("toolu_1", "ok"),
                tool_result("toolu_2", "no such file", is_error=True),
                "Hurry.",
            ),
        ],
        "tools": [
            {
                "name": "files_read_601e4eb6",
                "description": "Read",
                "input_schema": {"type": "object", "properties": {"n": {}}},
            },
            {"name": "ping", "description": "Ping", "input_schema": {"type": "object", "properties": {}}},
        ],
        "cache_control": {"type": "ephemeral"},
    }


def test_a_server_of_ones_own_gets_no_marks_words_for_errors_and_text_in_a_message_of_its_own() -> None:
    sent = body(
        request(
            user("Go."),
            assistant(call("call_1", "chatcmpl-tool-1")),
            results(result("call_1", "no such file", is_error=True)),
            user("Hurry."),
            user("Please."),
            system="Be brief.",
        ),
        MESSAGES,
    )
    assert sent == {
        "max_tokens": 4096,
        "system": "Be brief.",
        "messages": [
            said("user", "Go."),
            said("assistant", tool_use("chatcmpl-tool-1")),
            said("user", tool_result("chatcmpl-tool-1", "ERROR: ", "no such file", is_error=True)),
            said("user", "Hurry.", "Please."),
        ],
    }


def test_the_profile_follows_from_the_host() -> None:
    assert messages_profile_for("https://api.anthropic.com") is ANTHROPIC
    assert messages_profile_for("http://localhost:8000") is MESSAGES


# --- who speaks when ---

A, B = said("user", "a"), said("assistant", "b")
CONTINUE = said("user", GO_ON)


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        ([], []),
        ([user("a")], [A]),
        ([user("a"), user("c")], [said("user", "a", "c")]),
        # an answer is never the last word, and never the first
        ([user("a"), assistant(TextBlock("b"))], [A, B, CONTINUE]),
        ([assistant(TextBlock("b")), user("a")], [CONTINUE, B, A]),
        # an answer that was cut and went on
        ([user("a"), assistant(TextBlock("b")), assistant(TextBlock("b"))], [A, B, CONTINUE, B, CONTINUE]),
        # an answer that says nothing is not sent
        ([user("a"), assistant(TextBlock(" \n"), ThinkingBlock("hm", THOUGHT)), user("c")], [said("user", "a", "c")]),
        ([user("a"), assistant(TextBlock("")), assistant(TextBlock("b")), user("a")], [A, B, A]),
        # thinking may not stand last
        ([user("a"), assistant(TextBlock("b"), ThinkingBlock("hm", THOUGHT)), user("a")], [A, B, A]),
        # a person who says nothing
        ([user(" "), assistant(TextBlock("b")), user("a")], [said("user", NOTHING), B, A]),
        # a result without its call
        ([results(result("gone")), user("a")], [A]),
        ([user("a"), results(result("gone"))], [A]),
    ],
)
@pytest.mark.parametrize("profile", [ANTHROPIC, MESSAGES], ids=lambda profile: profile.name)
def test_people_and_the_model_take_turns(messages: list[Message], sent: list[Json], profile: Profile) -> None:
    assert encode(*messages, profile=profile) == sent


OWN_SEARCH, OWN_FOUND = ProviderBlock(SEARCH), ProviderBlock(FOUND)


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        # paused inside a tool of the provider: it goes on from there
        ([assistant(TextBlock("b "), OWN_SEARCH)], [said("assistant", "b ", SEARCH)]),
        ([assistant(OWN_SEARCH, OWN_FOUND)], [said("assistant", SEARCH, FOUND)]),
        # and what it said then belongs to the same turn
        (
            [assistant(OWN_SEARCH), assistant(OWN_FOUND, TextBlock("c")), user("d")],
            [said("assistant", SEARCH, FOUND, "c"), said("user", "d")],
        ),
        # nobody answers a call that a person has left behind
        ([assistant(TextBlock("b"), OWN_SEARCH), user("c")], [B, said("user", "c")]),
        ([assistant(OWN_SEARCH, TextBlock("b"))], [B, CONTINUE]),
        ([assistant(ThinkingBlock("", THOUGHT), OWN_SEARCH), user("c")], []),
        # but results are no words of a person
        (
            [assistant(OWN_SEARCH, call("1", "x")), results(result("1"))],
            [said("assistant", SEARCH, tool_use("x")), said("user", tool_result("x", "ok"))],
        ),
        # its result came after ours
        (
            [
                assistant(OWN_SEARCH, call("1", "x")),
                results(result("1")),
                assistant(OWN_FOUND, TextBlock("b")),
                user("c"),
            ],
            [
                said("assistant", SEARCH, tool_use("x")),
                said("user", tool_result("x", "ok")),
                said("assistant", FOUND, "b"),
                said("user", "c"),
            ],
        ),
    ],
)
def test_the_providers_own_tools_go_on_where_they_stopped(messages: list[Message], sent: list[Json]) -> None:
    expected = [A, *sent] if sent else [said("user", "a", "c")]
    assert encode(user("a"), *messages) == expected


# --- what goes back ---


def test_what_only_its_writer_understands_goes_back_to_it_verbatim_and_to_nobody_else() -> None:
    blocks = (
        ThinkingBlock("I should look it up.", THOUGHT),
        ThinkingBlock("", REDACTED),
        OWN_SEARCH,
        OWN_FOUND,
        TextBlock(CITED["text"], CITED),
        call("1", "x", raw={"caller": {"type": "direct"}}),
    )
    own = encode(user("a"), assistant(*blocks), results(result("1")))[1]
    called = {"caller": {"type": "direct"}} | tool_use("x")
    assert own == said("assistant", THOUGHT, REDACTED, SEARCH, FOUND, CITED, called)
    for foreign in (assistant(*blocks, provider="q"), assistant(*blocks, model="n")):
        sent = encode(user("a"), foreign, results(result("1")))[1]
        assert sent == said("assistant", CITED["text"], tool_use("x"))


@pytest.mark.parametrize(
    ("profile", "message", "sent"),
    [
        (ANTHROPIC, assistant(ThinkingBlock("hm"), TextBlock("b")), said("assistant", "b")),
        (
            MESSAGES,
            assistant(ThinkingBlock("hm"), TextBlock("b")),
            said("assistant", {"type": "thinking", "thinking": "hm"}, "b"),
        ),
        (MESSAGES, assistant(ThinkingBlock("hm"), TextBlock("b"), model="n"), said("assistant", "b")),
        # a block of the provider that was cut
        (ANTHROPIC, assistant(ProviderBlock({}), TextBlock("b")), said("assistant", "b")),
    ],
)
def test_thinking_without_a_signature_goes_where_it_is_taken(profile: Profile, message: Message, sent: Json) -> None:
    assert encode(user("a"), message, user("c"), profile=profile)[1] == sent


@pytest.mark.parametrize(
    ("provider_id", "sent"),
    [
        ("toolu_01A-b_c", "toolu_01A-b_c"),
        ("functions.ping:0", "call_1"),
        ("x" * 65, "call_1"),
        (None, "call_1"),
        ("", "call_1"),
    ],
)
def test_ids_are_legal_and_the_same_on_call_and_result(provider_id: str | None, sent: str) -> None:
    turn = [assistant(call("call_1", provider_id), provider="q"), results(result("call_1"))]
    _, asked, answered = encode(*turn)
    assert asked["content"][0]["id"] == answered["content"][0]["tool_use_id"] == sent


def test_the_input_of_a_call_that_could_not_be_read_is_empty() -> None:
    broken = ToolCallBlock("1", "ping", {}, "x", '{"n": ', problem="not JSON")
    assert encode(user("a"), assistant(broken), results(result("1")))[1] == said("assistant", tool_use("x"))


# --- results and attachments ---


def attachment(type: str, media_type: str, data: bytes) -> Json:
    encoded = base64.b64encode(data).decode()
    return {"type": type, "source": {"type": "base64", "media_type": media_type, "data": encoded}}


IMAGE = attachment("image", "image/png", b"png")
DOCUMENT = attachment("document", "application/pdf", b"pdf")
UNREAD = "[an attachment of type image/svg+xml that this model cannot read]"


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ((TextBlock("640x480"), PNG, PDF), ["640x480", IMAGE, DOCUMENT]),
        ((PNG, TextBlock(" \n")), [IMAGE]),
        ((SVG,), [UNREAD]),
        ((TextBlock(""),), [NOTHING]),
        ((), [NOTHING]),
    ],
)
def test_attachments_stay_where_they_are_and_nothing_is_blank(content: Any, sent: list[Json | str]) -> None:
    (shown,) = encode(Message("user", content))
    assert shown == said("user", *sent)
    answer = ToolResultBlock("1", "ping", content, is_error=True)
    block = encode(user("a"), assistant(call("1", "x")), results(answer))[2]["content"][0]
    assert block == tool_result("x", is_error=True) | {"content": shown["content"]}


def test_a_model_that_reads_no_attachments_is_told_of_them() -> None:
    (message,) = encode(Message("user", (PNG,)), profile=replace(MESSAGES, attachments=False))
    assert message == said("user", "[an attachment of type image/png that this model cannot read]")


def test_a_blob_whose_bytes_are_missing_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="blob 'd9'"):
        encode(Message("user", (BlobBlock("d9", "image/png", 1),)))


# --- the other fields ---


def test_settings_become_fields() -> None:
    settings = ModelSettings(
        max_tokens=9, temperature=0.0, top_p=0.5, stop=("#",), extra={"thinking": {"type": "adaptive"}, "max_tokens": 1}
    )
    sent = body(request(user("a"), system=" \n", settings=settings))
    assert {key: sent[key] for key in sent.keys() - {"messages", "cache_control"}} == {
        "max_tokens": 9,
        "temperature": 0.0,
        "top_p": 0.5,
        "stop_sequences": ["#"],
        "thinking": {"type": "adaptive"},
    }
    assert body(request(user("a"), settings=ModelSettings(extra={"max_tokens": 1})))["max_tokens"] == 1


def test_tools_of_the_provider_stand_behind_ours_and_without_any_there_is_no_choice() -> None:
    search = {"type": "web_search_20260318", "name": "web_search"}
    settings = ModelSettings(extra={"tools": [search], "tool_choice": {"type": "auto"}})
    both = body(request(user("a"), tools=(PING,), settings=settings), MESSAGES)
    assert [tool["name"] for tool in both["tools"]] == ["ping", "web_search"]
    assert both["tool_choice"] == {"type": "auto"}
    none = body(request(user("a"), settings=ModelSettings(extra={"tool_choice": {"type": "auto"}})), MESSAGES)
    assert none.keys() == {"max_tokens", "messages"}


def marks(value: Any) -> Iterator[Json]:
    """Find every mark in a body."""
    if isinstance(value, dict):
        if "cache_control" in value:
            yield value["cache_control"]
        for item in value.values():
            yield from marks(item)
    elif isinstance(value, list):
        for item in value:
            yield from marks(item)


@pytest.mark.parametrize(
    ("profile", "extra", "mark"),
    [
        (ANTHROPIC, {}, {"type": "ephemeral"}),
        (ANTHROPIC, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"type": "ephemeral", "ttl": "1h"}),
        (ANTHROPIC, {"cache_control": None}, None),
        (MESSAGES, {}, None),
        (MESSAGES, {"cache_control": {"type": "ephemeral"}}, {"type": "ephemeral"}),
    ],
)
def test_the_prompt_is_marked_for_the_cache_twice_or_not_at_all(profile: Profile, extra: Json, mark: Any) -> None:
    settings = ModelSettings(extra=extra)
    plain = body(request(user("a"), system="s", tools=(PING,), settings=settings), profile)
    assert list(marks(plain)) == ([mark, mark] if mark else [])
    assert plain.get("cache_control") == mark
    without_system = body(request(user("a"), tools=(PING, PING), settings=settings), profile)
    assert [tool.get("cache_control") for tool in without_system["tools"]] == [None, mark]
    assert list(marks(body(request(user("a"), settings=settings), profile))) == ([mark] if mark else [])


def test_a_mark_does_not_stay_on_a_tool() -> None:
    encoder = MessagesEncoder("p", "m", ANTHROPIC)
    tools = (PING,)
    encoder.encode(request(user("a"), tools=tools))
    assert "cache_control" not in encoder.encode(request(user("a"), system="s", tools=tools)).body["tools"][0]


# --- the memo ---

TURNS = [
    user("question"),
    user("another"),
    assistant(ThinkingBlock("", THOUGHT), TextBlock("look"), call("c1", "x"), call("c2", "x")),
    results(result("c1"), result("c2", "", is_error=True)),
    user("steer"),
    assistant(TextBlock("cut")),
    assistant(TextBlock("and on"), call("c3", "x", raw={"caller": {"type": "direct"}}), provider="q"),
    results(result("c3")),
    assistant(TextBlock(" ")),
    assistant(OWN_SEARCH, OWN_FOUND, TextBlock(CITED["text"], CITED)),
    Message("user", (PNG, TextBlock("see"))),
]


def flat(messages: list[Json]) -> list[tuple[str, Json]]:
    """The blocks in order: what the API reads, and what its cache goes by."""
    return [(message["role"], block) for message in messages for block in message["content"]]


@pytest.mark.parametrize("profile", [ANTHROPIC, MESSAGES], ids=lambda profile: profile.name)
def test_a_growing_conversation_sends_the_same_prefix(profile: Profile) -> None:
    encoder = MessagesEncoder("p", "m", profile)
    before: list[tuple[str, Json]] = []
    for length in range(1, len(TURNS) + 1):
        sent = flat(encoder.encode(request(*TURNS[:length])).body["messages"])
        grown = before[:-1] if before and before[-1] == ("user", CONTINUE["content"][0]) else before
        assert sent[: len(grown)] == grown
        before = sent
    json.dumps(before)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), min_size=1, max_size=6))
def test_the_memo_changes_nothing_whatever_is_asked(parts: list[tuple[int, int]]) -> None:
    encoder = MessagesEncoder("p", "m", ANTHROPIC)
    for start, end in parts:
        asked = request(*TURNS[start:end], system="s", tools=(PING,))
        assert encoder.encode(asked) == MessagesEncoder("p", "m", ANTHROPIC).encode(asked)


BLOCKS = st.sampled_from(
    [TextBlock("b"), TextBlock(" "), ThinkingBlock("", THOUGHT), ThinkingBlock("hm"), OWN_SEARCH, OWN_FOUND]
)
HISTORIES = st.lists(
    st.one_of(
        st.sampled_from([user("a"), user(""), results(result("gone"))]),
        st.lists(BLOCKS, max_size=4).map(lambda blocks: assistant(*blocks)),
    ),
    max_size=8,
)


@given(HISTORIES)
def test_whatever_the_history_the_rules_of_the_api_hold(history: list[Message]) -> None:
    sent = encode(*history)
    roles = [message["role"] for message in sent]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    for message in sent:
        blocks = message["content"]
        assert blocks
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        assert blocks[-1]["type"] not in ("thinking", "redacted_thinking")
    if roles[-1:] == ["assistant"]:
        assert sent[-1]["content"][-1] in (SEARCH, FOUND)


def test_what_was_read_goes_back_as_it_came() -> None:
    assert CALL["input"]["n"] > 2**64
    block = ToolCallBlock("1", "get_weather", CALL["input"], "toolu_1")
    assert encode(user("a"), assistant(block), results(result("1")))[1]["content"] == [CALL]
