import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from ownloop.backends.profiles import GENERIC, LOCAL, OPENAI, Profile
from ownloop.backends.wires.responses_encoder import ResponsesEncoder
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
from tests.backends.wires.typed_dicts import problems

PNG = BlobBlock("d1", "image/png", 3)
PDF = BlobBlock("d2", "application/pdf", 3)
BLOBS = {"d1": b"png", "d2": b"pdf"}
PING = ToolSpec("ping", "Ping", {})

THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
NAMELESS_THOUGHT = {key: value for key, value in THOUGHT.items() if key != "id"}
PLAIN = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}


def user(*blocks: TextBlock | BlobBlock | str) -> Message:
    return Message("user", tuple(TextBlock(block) if isinstance(block, str) else block for block in blocks))


def own(*blocks: Block) -> Message:
    return Message("assistant", blocks, provider="p", model="m")


def other(*blocks: Block) -> Message:
    return Message("assistant", blocks, provider="q", model="m")


def results(*results: ToolResultBlock) -> Message:
    return Message("tool", results)


def result(call_id: str, *content: TextBlock | BlobBlock, is_error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(call_id, "t", content or (TextBlock("ok"),), is_error)


def call(call_id: str = "c", id: str | None = "fc_1") -> ToolCallBlock:
    return ToolCallBlock(call_id, "t", {"n": 1}, f"call_{call_id}", raw=None if id is None else {"id": id})


def body_of(request: ModelRequest, profile: Profile = OPENAI, model: str = "m") -> Json:
    """Encode a request, and hold what goes out against the types of OpenAI's own SDK."""
    body = ResponsesEncoder("p", model, profile).encode(request).body
    json.dumps(body)
    # OpenAI takes reasoning without an id, but those types do not know it.
    items = [{"id": "rs", **item} if item["type"] == "reasoning" else item for item in body["input"]]
    assert problems({"model": model, "stream": True, **body, "input": items}, ResponseCreateParamsStreaming) == []
    return body


def encode(*messages: Message, profile: Profile = OPENAI) -> list[Json]:
    return body_of(ModelRequest("", messages, (), ModelSettings(), blobs=BLOBS), profile)["input"]


def call_item(id: str | None = None, call_id: str = "call_c") -> Json:
    item = {"type": "function_call", "call_id": call_id, "name": "t", "arguments": '{"n":1}'}
    return item if id is None else {"id": id, **item}


def output(text: Any = "ok", call_id: str = "call_c") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def said(text: str, **more: Any) -> Json:
    return {"type": "message", "role": "assistant", "content": text, **more}


def said_as(id: str, text: str, **more: Any) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": more.pop("annotations", [])}]
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content, **more}


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop": ["a"]},
        {"input": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]},
        {"input": [{"type": "reasoning", "summary": []}]},
        {"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "text", "text": "a"}]}]},
        {"tools": [{"type": "function", "name": "t", "parameters": {}}]},
        {"store": 0},
    ],
)
def test_openais_types_tell_what_is_wrong(wrong: Json) -> None:
    assert problems({"model": "m", "stream": True, "input": []}, ResponseCreateParamsStreaming) == []
    assert problems({"model": "m", "stream": True, "input": [], **wrong}, ResponseCreateParamsStreaming) != []


# --- the request ---


def test_settings_become_fields_and_nothing_is_stored() -> None:
    settings = ModelSettings(
        max_tokens=900, temperature=0.0, top_p=0.5, stop=("END",), extra={"store": True, "reasoning": {"effort": "low"}}
    )
    assert body_of(ModelRequest("Be brief.", (user("Hi."),), (), settings)) == {
        "store": False,
        "instructions": "Be brief.",
        "max_output_tokens": 900,
        "temperature": 0.0,
        "top_p": 0.5,
        "reasoning": {"effort": "low"},
        "input": [{"type": "message", "role": "user", "content": "Hi."}],
    }


@pytest.mark.parametrize(
    ("model", "profile", "asks"),
    [
        ("gpt-5", OPENAI, True),
        ("gpt-6.2-sol", OPENAI, True),
        ("o4-mini", OPENAI, True),
        ("gpt-4o", OPENAI, False),
        ("gpt-4.1-mini", OPENAI, False),
        ("gpt-5-chat-latest", OPENAI, False),
        ("gpt-5", GENERIC, False),
    ],
)
def test_only_models_that_reason_are_asked_for_their_reasoning(model: str, profile: Profile, asks: bool) -> None:
    body = body_of(ModelRequest("", (), (), ModelSettings()), profile, model)
    assert body.get("include") == (["reasoning.encrypted_content"] if asks else None)


def test_what_a_user_wants_included_is_included_as_well() -> None:
    extra = {"include": ["web_search_call.action.sources", "reasoning.encrypted_content"]}
    body = body_of(ModelRequest("", (), (), ModelSettings(extra=extra)), OPENAI, "gpt-5")
    assert body["include"] == extra["include"]


def test_tools_are_flat_and_not_strict_and_hosted_ones_follow() -> None:
    spec = ToolSpec("files.read", "Read", {"properties": {"p": {"type": "string"}}})
    settings = ModelSettings(extra={"tools": [{"type": "web_search"}], "tool_choice": "auto"})
    encoded = ResponsesEncoder().encode(ModelRequest("", (), (spec,), settings))
    mine, hosted = encoded.body["tools"]
    assert mine == {
        "type": "function",
        "name": mine["name"],
        "description": "Read",
        "parameters": {"type": "object", "properties": {"p": {"type": "string"}}},
        "strict": False,
    }
    assert encoded.names == {mine["name"]: "files.read"}
    assert hosted == {"type": "web_search"}
    assert encoded.body["tool_choice"] == "auto"


def test_without_tools_nothing_speaks_of_them() -> None:
    extra = {"tool_choice": "auto", "parallel_tool_calls": True, "tools": None}
    assert body_of(ModelRequest("", (), (), ModelSettings(extra=extra))) == {"store": False, "input": []}
    assert "tool_choice" in body_of(ModelRequest("", (), (PING,), ModelSettings(extra=extra)))


# --- people ---


def test_what_a_person_says_and_shows() -> None:
    plain, shown = encode(user("a", "b"), user("See:", PNG, PDF))
    assert plain == {"type": "message", "role": "user", "content": "a\n\nb"}
    assert shown["content"] == [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,cG5n"},
        {"type": "input_file", "filename": "d2.pdf", "file_data": "data:application/pdf;base64,cGRm"},
    ]


def test_a_model_that_reads_no_attachments_is_told_of_them() -> None:
    (message,) = encode(user(PNG), profile=LOCAL)
    (part,) = message["content"]
    assert "that this model cannot read" in part["text"]


def test_a_blob_whose_bytes_are_missing_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="blob 'd9'"):
        encode(user(BlobBlock("d9", "image/png", 1)))


# --- results ---


def test_every_call_has_one_output_and_a_failure_says_so() -> None:
    items = encode(
        own(TextBlock("I look."), call("a", None), call("b", None)),
        results(result("a"), result("b", TextBlock("no such file"), is_error=True)),
    )
    assert items == [
        said("I look."),
        call_item(call_id="call_a"),
        call_item(call_id="call_b"),
        output(call_id="call_a"),
        output("ERROR: no such file", "call_b"),
    ]


def test_images_are_part_of_an_output_where_they_may_be() -> None:
    turn = (own(call(id=None)), results(result("c", TextBlock("640x480"), PNG, is_error=True)))
    (_, item) = encode(*turn)
    assert [part.get("text", part["type"]) for part in item["output"]] == ["ERROR: 640x480", "input_image"]
    (_, item) = encode(own(call(id=None)), results(result("c", PDF)))
    assert [part["type"] for part in item["output"]] == ["input_file"]


def test_images_of_outputs_follow_all_of_them_where_they_may_not() -> None:
    items = encode(
        own(call("a", None), call("b", None)),
        results(result("a", TextBlock("640x480"), PNG), result("b", PNG, PDF, is_error=True)),
        user("And?"),
        profile=GENERIC,
    )
    assert [item["type"] for item in items[2:]] == [
        "function_call_output",
        "function_call_output",
        "message",
        "message",
    ]
    assert items[2]["output"] == "640x480"
    assert items[3]["output"] == "ERROR: See the attachments in the next message."
    assert [part.get("text", part["type"]) for part in items[4]["content"]] == [
        "Returned by t (call call_a):",
        "input_image",
        "Returned by t (call call_b):",
        "input_image",
        "input_file",
    ]


def test_a_result_without_its_call_is_left_out() -> None:
    assert encode(results(result("gone")), user("Go on.")) == [{"type": "message", "role": "user", "content": "Go on."}]


# --- answers ---


def test_an_answer_of_another_model_is_its_words_and_its_calls() -> None:
    blocks = (
        ThinkingBlock("hm", THOUGHT),
        TextBlock("I ", {"id": "msg_1", "phase": "commentary"}),
        ProviderBlock(SEARCH),
        call(),
        TextBlock("look."),
    )
    assert encode(other(*blocks), results(result("c"))) == [said("I look."), call_item(), output()]


def test_an_answer_that_says_nothing_is_not_sent() -> None:
    assert encode(own(ThinkingBlock("hm", THOUGHT), TextBlock(" \n")), other(TextBlock(""))) == []


def test_reasoning_goes_back_with_the_ids_of_all_that_belongs_to_it() -> None:
    notes = [{"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "http://u"}]
    message = own(
        ThinkingBlock("", THOUGHT),
        ProviderBlock(SEARCH),
        TextBlock("I look.", {"id": "msg_1", "phase": "commentary", "annotations": notes}),
        call(),
    )
    assert encode(message, results(result("c"))) == [
        THOUGHT,
        SEARCH,
        said_as("msg_1", "I look.", annotations=notes, phase="commentary"),
        call_item("fc_1"),
        output(),
    ]


def test_what_a_server_wrote_as_null_is_left_out() -> None:
    raw = {**PLAIN, "encrypted_content": None, "status": None}
    assert encode(own(ThinkingBlock("hm", raw), TextBlock("a", {"id": "msg_1"})), profile=GENERIC)[0] == PLAIN


@pytest.mark.parametrize(
    "thought",
    [
        ThinkingBlock("hm"),  # from tags in the text
        ThinkingBlock("hm", {}),
        ThinkingBlock("hm", {**THOUGHT, "encrypted_content": None}),
        ThinkingBlock("hm", {**THOUGHT, "encrypted_content": ""}),
        ThinkingBlock("hm", PLAIN),
    ],
)
def test_without_its_reasoning_an_answer_has_no_ids_and_no_hosted_tools(thought: ThinkingBlock) -> None:
    message = own(thought, ProviderBlock(SEARCH), TextBlock("I look.", {"id": "msg_1", "phase": "commentary"}), call())
    assert encode(message, results(result("c"))) == [said("I look.", phase="commentary"), call_item(), output()]


def test_reasoning_that_is_only_partly_readable_stays_away_as_a_whole() -> None:
    message = own(ThinkingBlock("", THOUGHT), call("a"), ThinkingBlock("hm"), call("b", "fc_2"))
    assert [item["type"] for item in encode(message)] == ["function_call", "function_call"]


@pytest.mark.parametrize("raw", [{"id": "x" * 65}, {"id": ""}, {}])
def test_an_id_that_cannot_go_back_leaves_all_others_behind(raw: Json) -> None:
    items = encode(own(ThinkingBlock("", THOUGHT), TextBlock("a", raw), call()))
    assert items == [NAMELESS_THOUGHT, said("a"), call_item()]


def test_reasoning_is_never_last() -> None:
    thought = ThinkingBlock("", THOUGHT)
    assert encode(own(thought, TextBlock("a", {"id": "msg_1"}), thought)) == [THOUGHT, said_as("msg_1", "a")]
    assert encode(own(thought, TextBlock("\n"))) == []


def test_plain_reasoning_goes_back_where_it_is_read() -> None:
    message = own(ThinkingBlock("hm", PLAIN), TextBlock("a", {"id": "msg_1"}))
    assert encode(message, profile=GENERIC) == [PLAIN, said_as("msg_1", "a")]
    assert encode(message, profile=replace(GENERIC, plain_reasoning=False)) == [said("a")]


def test_hosted_tools_of_a_model_that_does_not_reason_go_back() -> None:
    assert encode(own(ProviderBlock(SEARCH), TextBlock("a", {"id": "msg_1"}))) == [SEARCH, said("a")]
    assert encode(own(ProviderBlock({}), TextBlock("a"))) == [said("a")]


def test_a_call_that_nobody_answers_stays_away_and_takes_the_ids_with_it() -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "x", "name": "shell", "input": "ls"}
    thought = ThinkingBlock("", THOUGHT)
    assert encode(own(thought, ProviderBlock(custom), call())) == [NAMELESS_THOUGHT, call_item()]
    assert encode(own(TextBlock("a"), thought, ProviderBlock(custom))) == [said("a")]
    assert encode(own(TextBlock("a"), thought, ProviderBlock(SEARCH))) == [said("a")]


def test_a_call_that_the_provider_answered_itself_goes_back_with_its_output() -> None:
    program = {"type": "program", "id": "p_1", "call_id": "x", "code": "1", "fingerprint": "f"}
    answer = {"type": "program_output", "id": "po_1", "call_id": "x", "result": "1", "status": "completed"}
    message = own(ProviderBlock(program), ProviderBlock(answer), TextBlock("a"))
    assert encode(message) == [program, answer, said("a")]


def test_namespace_and_caller_of_a_call_go_back() -> None:
    raw = {"id": "fc_1", "namespace": "files", "caller": {"type": "direct"}}
    (item,) = encode(own(replace(call(), raw=raw)))
    assert item == {"namespace": "files", "caller": {"type": "direct"}, **call_item()}


def test_an_id_that_repeats_is_replaced_in_call_and_output_alike() -> None:
    first, second = (ToolCallBlock(f"own_{n}", "t", {}, "call_0") for n in (1, 2))
    items = encode(own(first), results(result("own_1")), own(second), results(result("own_2")))
    assert [item["call_id"] for item in items] == ["call_0", "call_0", "own_2", "own_2"]


# --- any conversation ---

WORDS = st.text("ab \n", max_size=4)
IDS = st.sampled_from(["msg_1", "fc_2", "x"])
FIELDS = st.fixed_dictionaries({}, optional={"id": IDS, "phase": st.just("commentary")})
THOUGHTS = st.sampled_from([None, THOUGHT, PLAIN, {**THOUGHT, "encrypted_content": None}])
BLOCKS = st.one_of(
    st.builds(TextBlock, WORDS, st.none() | FIELDS),
    st.builds(ThinkingBlock, WORDS, THOUGHTS),
    st.builds(call, id=st.sampled_from([None, "fc_1"])),
    st.sampled_from([ProviderBlock(SEARCH), ProviderBlock({})]),
)
TURNS = st.lists(
    st.tuples(
        st.lists(BLOCKS, max_size=6),
        st.sampled_from([own, other]),
        st.booleans(),
        st.sampled_from([(), (PNG,), (PDF, PNG)]),
    ),
    max_size=4,
)


def conversation(
    turns: Sequence[tuple[Sequence[Block], Callable[..., Message], bool, Sequence[BlobBlock]]],
) -> list[Message]:
    """Number the calls, answer them, and let a person speak after each answer."""
    numbers = itertools.count()
    out: list[Message] = []
    for blocks, wrote, is_error, files in turns:
        answer = [replace(b, call_id=f"c{next(numbers)}") if isinstance(b, ToolCallBlock) else b for b in blocks]
        calls = [block for block in answer if isinstance(block, ToolCallBlock)]
        results_ = [result(block.call_id, TextBlock("r"), *files, is_error=is_error) for block in calls]
        out += [wrote(*answer), results(*results_), user("Go on.", *files)]
    return out


@given(TURNS.map(conversation), st.sampled_from([OPENAI, GENERIC, LOCAL]))
def test_any_conversation_is_one_that_openai_takes(messages: list[Message], profile: Profile) -> None:
    items = encode(*messages, profile=profile)
    outputs = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert outputs == [item["call_id"] for item in items if item["type"] == "function_call"]
    assert len(set(outputs)) == len(outputs)
    for item, following in zip(items, [*items, {}][1:], strict=True):
        if item["type"] == "reasoning":
            assert following.get("type") in ("reasoning", "message", "function_call", "web_search_call")
            assert following.get("role") != "user"


@given(TURNS.map(conversation))
def test_a_growing_conversation_sends_the_same_prefix(messages: list[Message]) -> None:
    encoder = ResponsesEncoder("p", "m", OPENAI)
    before: list[Json] = []
    for length in range(0, len(messages) + 1, 3):
        request = ModelRequest("", messages[:length], (), ModelSettings(), blobs=BLOBS)
        sent = encoder.encode(request).body["input"]
        assert sent[: len(before)] == before
        assert sent == ResponsesEncoder("p", "m", OPENAI).encode(request).body["input"]
        before = sent
