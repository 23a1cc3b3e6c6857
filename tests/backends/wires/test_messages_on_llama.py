"""What a real llama.cpp hands to its chat template of a Messages request: the facts behind the profile `messages`."""

import json
from typing import Any

import pytest

from ownloop.backends.anthropic import ClaudeBackend
from ownloop.backends.llama_server import LlamaServer
from ownloop.backends.weights import locate_model
from ownloop.core.messages import Message, TextBlock, ThinkingBlock, ToolCallBlock, ToolResultBlock
from ownloop.errors import BadRequestError

pytestmark = pytest.mark.slow

SHOWN = (
    "{% if messages | length > 2 %}{{ raise_exception('SHOWN ' ~ (messages | tojson)) }}{% endif %}"
    "{{ messages[0].content }}"
)


async def test_a_server_of_ones_own_reads_a_conversation_as_it_was_meant() -> None:
    server = await LlamaServer.open(await locate_model("", None), template=SHOWN)
    try:
        await server.ensure()
        backend = ClaudeBackend("local", server.api_key, base_url=server.base_url, system_prompt="Be brief.")
        call = ToolCallBlock("call_1", "ping", {}, "x")
        answer = (ThinkingBlock("hm"), TextBlock("I look."), call)
        backend.load(
            [
                Message("user", (TextBlock("Go."),)),
                Message("assistant", answer, provider=backend.adapter.provider, model="local"),
                Message("tool", (ToolResultBlock("call_1", "ping", (TextBlock("no such file"),), is_error=True),)),
                Message("user", (TextBlock("Hurry."),)),
            ]
        )
        with pytest.raises(BadRequestError) as refused:
            await backend.next_turn([])
        await backend.aclose()
    finally:
        await server.aclose()
    shown: list[dict[str, Any]] = json.JSONDecoder().raw_decode((refused.value.detail or "").rpartition("SHOWN ")[2])[0]
    assert [(message["role"], message["content"]) for message in shown] == [
        ("system", "Be brief."),
        ("user", "Go."),
        ("assistant", "I look."),
        ("tool", "ERROR: no such file"),
        ("user", "Hurry."),
    ]
    assert shown[2]["reasoning_content"] == "hm"
    assert shown[2]["tool_calls"][0]["id"] == shown[3]["tool_call_id"] == "x"
