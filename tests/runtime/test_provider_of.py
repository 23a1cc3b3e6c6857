"""Adapters and three-method Backends as providers of an AgentLoop."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from ownloop.backends.base import AdapterBackend
from ownloop.backends.scripted import ScriptedBackend, call, calls, fail, finish, gate, hang, say, think, using
from ownloop.core.backend import (
    AgentTurn,
    Backend,
    Finish,
    ModelRequest,
    ModelSettings,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
)
from ownloop.core.messages import BlobBlock, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock, ToolResultBlock
from ownloop.core.provider import ProviderMessage, ToolCall, ToolSchema
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import CUT, WITHHELD
from ownloop.errors import ConfigError, StreamInterruptedError
from ownloop.runtime.provider_of import AdapterProvider, provider_of
from tests.runtime.loop_scene import Scene, ScriptedProvider, cancel_when


async def test_an_adapter_streams_and_its_history_is_plain_json():
    script = ScriptedBackend(
        [
            say("I add.", chunk=3)
            + calls(call("add", {"a": 1}, id="t1"), call("add", {"a": 2}, id="t1"))
            + using(9, 4),
            say("Done") + using(20, 2, cache_read=5),
        ],
        chunk=100,
    )
    scene = Scene(script, tools=[ToolSchema("add", "Adds.", {"type": "object"})])
    await scene.loop.run("Hi")

    assert scene.shown("stream_delta") == [
        ("stream_delta", "A", {"delta": "I a"}),
        ("stream_delta", "A", {"delta": "dd."}),
        ("stream_delta", "B", {"delta": '{"a":1}'}),
        ("stream_delta", "C", {"delta": '{"a":2}'}),
        ("stream_delta", "F", {"delta": "Done"}),
    ]
    assert (scene.loop.total_input_tokens, scene.loop.total_output_tokens) == (34, 6)
    second = scene.loop.messages[1].content[2]["id"]
    kept = json.loads(json.dumps([asdict(message) for message in scene.loop.messages]))
    assert kept[:3] == [
        {"role": "user", "content": "Hi", "provider": None, "model": None},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}, "provider_id": "t1"},
                {"type": "tool_use", "id": second, "name": "add", "input": {"a": 2}, "provider_id": "t1"},
            ],
            "provider": "scripted",
            "model": "scripted",
        },
        {
            "role": "tool_result",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": id,
                    "content": [{"type": "text", "text": "add ran"}],
                    "is_error": False,
                }
                for id in ("t1", second)
            ],
            "provider": None,
            "model": None,
        },
    ]
    request = script.requests[1]
    assert request.system == "Be brief."
    assert [spec.name for spec in request.tools] == ["add"]
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[1].blocks == (
        TextBlock("I add."),
        ToolCallBlock("t1", "add", {"a": 1}, "t1"),
        ToolCallBlock(second, "add", {"a": 2}, "t1"),
    )
    assert request.messages[2].blocks == (
        ToolResultBlock("t1", "add", (TextBlock("add ran"),)),
        ToolResultBlock(second, "add", (TextBlock("add ran"),)),
    )

    # A history that was kept goes on in a new loop.
    again = Scene(ScriptedBackend(lambda request: say(f"{len(request.messages)} messages")))
    again.loop.messages = [ProviderMessage(**message) for message in kept]
    await again.loop.run("And now?")
    assert again.shown("message") == [("message", "A", "assistant", "5 messages")]


async def test_messages_tools_and_thinking_reach_an_adapter_as_the_same_objects_each_time():
    script = ScriptedBackend([think("Hm.") + call("add", '{ "a": 1 }', id="t1"), call("add"), say("Done")])
    scene = Scene(script)
    await scene.loop.run("go")
    first, second, third = script.requests
    assert second.messages[1].blocks == (
        ThinkingBlock("Hm."),
        ToolCallBlock("t1", "add", {"a": 1}, "t1", arguments='{ "a": 1 }'),
    )
    assert (second.messages[1].provider, second.messages[1].model) == ("scripted", "scripted")
    assert all(a is b for a, b in zip(second.messages, third.messages, strict=False))
    assert first.tools[0] is third.tools[0]
    assert second.messages[0] is first.messages[0]


async def test_a_cut_call_reaches_the_adapter_again_with_its_problem_and_an_error_result():
    script = ScriptedBackend([call("add", '{"a": 1', id="t1") + finish("max_tokens"), say("Done")])
    scene = Scene(script)
    await scene.loop.run("go")
    answered = script.requests[1].messages
    assert answered[1].blocks == (ToolCallBlock("t1", "add", {}, "t1", arguments='{"a": 1', problem=CUT),)
    assert answered[2].blocks == (
        ToolResultBlock("t1", "add", (TextBlock(f"Error executing add: {CUT}"),), is_error=True),
    )


async def test_a_refusal_of_an_adapter_withholds_its_calls():
    script = ScriptedBackend([call("add") + finish("other", raw="content_filter"), say("Sorry")])
    scene = Scene(script)
    await scene.loop.run("go")
    assert scene.result_texts() == [f"Error executing add: {WITHHELD}"]


async def test_an_adapter_that_breaks_off_keeps_its_text_and_the_next_run_goes_on():
    script = ScriptedBackend(lambda request: say("Hel") + fail() if len(request.messages) == 1 else say("Hello"))
    scene = Scene(script)
    with pytest.raises(StreamInterruptedError):
        await scene.loop.run("go")
    await scene.loop.run("go on")
    assert [(message.role, message.content) for message in scene.loop.messages] == [
        ("user", "go"),
        ("assistant", [{"type": "text", "text": "Hel"}]),
        ("user", "go on"),
        ("assistant", [{"type": "text", "text": "Hello"}]),
    ]


async def test_a_cancel_closes_the_stream_of_an_adapter():
    script = ScriptedBackend([say("Hel") + hang()])
    scene = Scene(script)
    await cancel_when(scene, lambda: len(scene.log) == 2)
    assert script.closed == 1


async def test_a_backend_of_ours_streams_through_its_adapter():
    opened = asyncio.Event()
    backend = ScriptedBackend([say("Hello", chunk=1) + gate(opened)]).backend()
    scene = Scene(backend)
    task = asyncio.create_task(scene.loop.run("go"))
    while len(scene.shown("stream_delta")) < 5:
        await asyncio.sleep(0)
    opened.set()
    await task
    assert scene.shown("message") == [("message", "A", "assistant", "Hello")]


class Echo(Backend):
    """A three-method Backend as a user writes it: calls a tool, and then repeats what it was told."""

    name = "echo"
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.history: list[tuple[Any, ...]] = []

    def add_user_message(self, content: str) -> None:
        self.history.append(("user", content))

    async def next_turn(self, tool_schemas: list[dict[str, Any]]) -> AgentTurn:
        last = self.history[-1]
        if last == ("user", "fail"):
            raise RuntimeError("the line is dead")
        if last[0] == "user":
            return AgentTurn([f"{len(tool_schemas)} tools"], [ToolCall("1", "add", {"a": 1}), ToolCall("1", "sub", {})])
        return AgentTurn([f"{self.history[-2:]}"], [], "end_turn")

    def add_tool_result(self, tool_call_id: str, name: str, content: str, is_error: bool) -> None:
        self.history.append((tool_call_id, name, content, is_error))


@pytest.mark.parametrize(
    "make", [lambda: Echo, lambda: Echo(), lambda: lambda: Echo()], ids=["class", "one", "factory"]
)
async def test_a_three_method_backend_is_a_provider_and_gets_its_own_ids_back(make: Callable[[], Any]):
    Echo.made = 0
    scene = Scene(make())
    scene.answers["sub"] = (False, None)
    await scene.loop.run("go")
    await scene.loop.run("and again")
    assert Echo.made == 1
    texts = [entry[3] for entry in scene.shown("message") if entry[2] == "assistant"]
    told = "[('1', 'add', 'add ran', False), ('1', 'sub', 'Tool use was denied by the user.', True)]"
    assert texts == ["1 tools", told, "1 tools", told]


async def test_after_a_failed_turn_a_class_starts_anew_and_a_single_instance_says_what_to_do():
    scene = Scene(Echo)
    with pytest.raises(RuntimeError, match="line is dead"):
        await scene.loop.run("fail")
    await scene.loop.run("go")
    assert scene.result_texts() == ["add ran", "sub ran"]

    alone = Scene(Echo())
    with pytest.raises(RuntimeError, match="line is dead"):
        await alone.loop.run("fail")
    with pytest.raises(ConfigError, match="its class or a factory"):
        await alone.loop.run("go")


async def test_settings_of_a_provider_made_by_hand_reach_the_adapter():
    script = ScriptedBackend([say("Hi"), say("Ho")])
    provider = AdapterProvider(script, ModelSettings(temperature=0.5))
    await Scene(provider).loop.run("go")
    await Scene(provider, max_tokens=7, system_prompt=None).loop.run("go")
    settings = [request.settings for request in script.requests]
    assert [(s.temperature, s.max_tokens) for s in settings] == [(0.5, None), (0.5, 7)]
    assert script.requests[1].system == ""


PIXEL = b"\x89PNG\r\n\x1a\n-not-quite"


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": None}},
        {"type": "image", "mimeType": "image/png", "data": None},
    ],
    ids=["source", "mcp"],
)
async def test_images_of_a_person_and_of_a_tool_reach_an_adapter_as_blobs(image: dict[str, Any]):
    (image.get("source") or image)["data"] = base64.b64encode(PIXEL).decode()
    script = ScriptedBackend([call("look", id="t1"), say("Nice")])
    scene = Scene(script)
    scene.results["look"] = [image]
    await scene.loop.run([{"type": "text", "text": "See"}, image])
    messages = script.requests[1].messages
    blob = messages[0].blocks[1]
    assert isinstance(blob, BlobBlock)
    assert (blob.media_type, blob.bytes) == ("image/png", len(PIXEL))
    assert script.requests[1].blobs == {blob.digest: PIXEL}
    assert messages[2].blocks == (ToolResultBlock("t1", "look", (blob,)),)
    assert scene.result_texts() == ["Done."]


@pytest.mark.parametrize("content", [[{"type": "video"}], [3], 3, [{"mimeType": "image/png", "data": "?"}]])
async def test_content_that_no_adapter_takes_is_refused_from_a_person_and_told_to_the_model_from_a_tool(content: Any):
    script = ScriptedBackend([call("add", id="t1"), say("I see")])
    scene = Scene(script)
    with pytest.raises(ValueError, match="expected|base64"):
        await scene.loop.run(content)
    assert scene.loop.messages == []
    scene.results["add"] = content
    await scene.loop.run("go")
    assert scene.result_texts()[0].startswith("Error executing add: ")


def _history(*messages: ProviderMessage) -> list[ProviderMessage]:
    return [ProviderMessage("user", "Hi"), *messages]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (_history(ProviderMessage("system", "x")), "message 2 has the role 'system'"),
        (_history(ProviderMessage("tool_result", [{"tool_use_id": "t9", "content": "x"}])), "results for \\['t9'\\]"),
    ],
)
async def test_a_history_that_is_not_valid_is_refused_with_its_place(messages: list[ProviderMessage], words: str):
    scene = Scene(ScriptedBackend([say("Hi")]))
    scene.loop.messages = messages
    with pytest.raises(ValueError, match=words):
        await scene.loop.run("go")


async def test_a_replaced_history_is_read_anew():
    script = ScriptedBackend(lambda request: say("ok"))
    scene = Scene(script)
    await scene.loop.run("one")
    await scene.loop.run("two")
    scene.loop.messages = [ProviderMessage("user", "summary"), *scene.loop.messages[2:]]
    await scene.loop.run("three")
    assert [message.blocks for message in script.requests[2].messages] == [
        (TextBlock("summary"),),
        (TextBlock("two"),),
        (TextBlock("ok"),),
        (TextBlock("three"),),
    ]


async def test_verbatim_blocks_of_a_provider_come_back_to_the_adapter():
    parts = [
        [PartStart(0, "thinking"), PartDelta(0, "Hm"), PartEnd(0, raw={"signature": "abc"})],
        [PartStart(1, "provider"), PartEnd(1, raw={"type": "web_search"})],
        [PartStart(2, "text"), PartDelta(2, "Found"), PartEnd(2, raw={"citations": [1]})],
        [PartStart(3, "tool_call", "add"), PartEnd(3, raw={"signature": "def"}), Finish("tool_use")],
    ]

    class Verbatim(ScriptedBackend):
        async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
            self.requests.append(request)
            if len(request.messages) > 1:
                yield [Finish("end_turn")]
                return
            for batch in parts:
                yield batch

    adapter = Verbatim([])
    await Scene(adapter).loop.run("go")
    *others, add = adapter.requests[1].messages[1].blocks
    assert others == [
        ThinkingBlock("Hm", {"signature": "abc"}),
        ProviderBlock({"type": "web_search"}),
        TextBlock("Found", {"citations": [1]}),
    ]
    assert isinstance(add, ToolCallBlock)
    assert (add.raw, add.provider_id, add.arguments) == ({"signature": "def"}, None, "")


@pytest.mark.parametrize(
    "tool",
    [
        ToolSchema("add", "Adds.", {"type": "object"}),
        {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}},
        ToolSpec("add", "Adds.", {"type": "object"}),
    ],
    ids=["ToolSchema", "dict", "ToolSpec"],
)
async def test_tools_may_be_given_in_each_shape_that_a_backend_knows(tool: Any):
    script = ScriptedBackend([say("Hi")])
    await Scene(script, tools=[tool]).loop.run("go")
    assert list(script.requests[0].tools) == [ToolSpec("add", "Adds.", {"type": "object"})]


async def test_a_tool_in_another_shape_is_refused():
    with pytest.raises(ValueError, match="expected a ToolSchema"):
        await Scene(ScriptedBackend([say("Hi")]), tools=[print]).loop.run("go")


@pytest.mark.parametrize("thing", [object(), 3, "local", ScriptedBackend, lambda: 3])
def test_what_is_no_provider_is_refused(thing: Any):
    with pytest.raises(TypeError):
        provider_of(thing)


def test_a_provider_is_taken_as_it_is():
    provider = ScriptedProvider()
    assert provider_of(provider) is provider
    assert isinstance(provider_of(AdapterBackend(ScriptedBackend([]))), AdapterProvider)
