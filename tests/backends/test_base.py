import asyncio
from typing import Any

import pytest

from ownloop.backends.base import AdapterBackend
from ownloop.backends.scripted import ScriptedBackend, call, fail, finish, hang, say, think, using
from ownloop.core.messages import Message, TextBlock, ToolCallBlock, ToolResultBlock
from ownloop.core.usage import Usage
from ownloop.errors import OverloadedError

PING: dict[str, Any] = {"name": "ping", "description": "Ping", "input_schema": {"type": "object"}}


async def test_a_conversation_in_three_methods() -> None:
    script = ScriptedBackend(
        [
            think("hm") + say("I look. ") + call("ping", {"n": 1}) + call("ping", {"n": 2}) + using(10, 2),
            say("Done.") + using(20, 3),
        ]
    )
    backend = script.backend(system_prompt="Be brief.")
    backend.add_user_message("Go.")
    turn = await backend.next_turn([PING])
    assert (turn.text_blocks, turn.stop_reason) == (["I look. "], "tool_use")
    assert [(c.name, c.input) for c in turn.tool_calls] == [("ping", {"n": 1}), ("ping", {"n": 2})]
    first, second = (c.id for c in turn.tool_calls)
    backend.add_tool_result(second, "ping", "two", is_error=False)
    backend.add_tool_result(first, "ping", "one", is_error=True)
    turn = await backend.next_turn([PING])
    assert (turn.text_blocks, turn.tool_calls, turn.stop_reason) == (["Done."], [], "end_turn")
    assert backend.usage == Usage(input=30, output=5)
    assert script.requests[1].system == "Be brief."
    assert script.requests[1].messages[2] == Message(
        "tool",
        (
            ToolResultBlock(first, "ping", (TextBlock("one"),), is_error=True),
            ToolResultBlock(second, "ping", (TextBlock("two"),)),
        ),
    )


async def test_the_same_schemas_are_the_same_specs_so_that_encoders_remember_them() -> None:
    script = ScriptedBackend([say("a"), say("b")])
    backend = script.backend()
    for _ in range(2):
        backend.add_user_message("Go.")
        await backend.next_turn([dict(PING)])
    assert script.requests[0].tools[0] is script.requests[1].tools[0]


async def test_a_failed_turn_leaves_the_conversation_as_it_was() -> None:
    backend = ScriptedBackend([[say("Hel") + fail(OverloadedError("busy")), say("Hello")]]).backend()
    backend.add_user_message("Hi")
    before = backend.messages
    with pytest.raises(OverloadedError):
        await backend.next_turn([])
    assert backend.messages == before
    assert (await backend.next_turn([])).text_blocks == ["Hello"]


async def test_a_call_without_a_result_is_named_before_anything_is_sent() -> None:
    script = ScriptedBackend([call("ping"), say("never")])
    backend = script.backend()
    backend.add_user_message("Go.")
    (tool_call,) = (await backend.next_turn([PING])).tool_calls
    with pytest.raises(ValueError, match=rf"call '{tool_call.id}' of tool 'ping' has no result"):
        await backend.next_turn([PING])
    assert len(script.requests) == 1


async def test_a_result_for_no_open_call_is_refused() -> None:
    backend = ScriptedBackend([call("ping")]).backend()
    backend.add_user_message("Go.")
    (tool_call,) = (await backend.next_turn([PING])).tool_calls
    with pytest.raises(ValueError, match="'other'"):
        backend.add_tool_result("other", "ping", "", is_error=False)
    backend.add_tool_result(tool_call.id, "ping", "", is_error=False)
    with pytest.raises(ValueError, match="waits for a result"):
        backend.add_tool_result(tool_call.id, "ping", "", is_error=False)


async def test_a_call_that_must_not_run_is_answered_by_the_backend_and_the_loop_goes_on() -> None:
    script = ScriptedBackend([call("ping", '{"n": ') + finish("max_tokens"), say("Sorry.")])
    backend = script.backend()
    backend.add_user_message("Go.")
    turn = await backend.next_turn([PING])
    assert (turn.tool_calls, turn.stop_reason) == ([], "other")
    assert (await backend.next_turn([PING])).text_blocks == ["Sorry."]
    (result,) = script.requests[1].messages[-1].blocks
    assert isinstance(result, ToolResultBlock)
    assert result.is_error
    (content,) = result.content
    assert isinstance(content, TextBlock)
    assert "cut by the output limit" in content.text


async def test_a_loaded_conversation_goes_on_and_call_ids_stay_unique() -> None:
    history = [
        Message("user", (TextBlock("Go."),)),
        Message("assistant", (ToolCallBlock("call_1", "ping", {}),)),
        Message("tool", (ToolResultBlock("call_1", "ping", (TextBlock("ok"),)),)),
    ]
    script = ScriptedBackend([say("never"), call("ping"), say("Done.")])
    backend = script.backend()
    backend.load(history)
    (tool_call,) = (await backend.next_turn([PING])).tool_calls
    assert tool_call.id != "call_1"
    assert backend.messages[:3] == tuple(history)


async def test_cancelling_a_turn_closes_the_response() -> None:
    script = ScriptedBackend([say("Hel") + hang()])
    backend = script.backend()
    backend.add_user_message("Hi")
    task = asyncio.create_task(backend.next_turn([]))
    while not script.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.closed == 1


def test_the_backend_takes_the_name_of_its_adapter() -> None:
    assert AdapterBackend(ScriptedBackend([], name="claude")).name == "claude"
