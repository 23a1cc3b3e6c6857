import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ownloop.backends.openai_compatible import (
    LiveQwenBackend,
    OpenAICompatibleAdapter,
    OpenAICompatibleBackend,
    normal_base_url,
)
from ownloop.backends.profiles import PROFILES, Profile
from ownloop.core.backend import Finish, ModelSettings, Part
from ownloop.core.toolspec import ToolSpec
from ownloop.errors import (
    ConfigError,
)
from ownloop.testing.wire_cases import WireCase, decode_case, decode_parts, load_cases
from tests.backends.reading import ASK, failure, parts_of, words
from tests.backends.wire_server import DONE, HELLO, Reply, WireServer, frame

PING = ToolSpec("ping", "Ping", {"type": "object"})
CAPTURES = Path(__file__).parents[1] / "captures"


@asynccontextmanager
async def adapter(server: WireServer | str, **options: Any) -> AsyncGenerator[OpenAICompatibleAdapter]:
    base_url = server if isinstance(server, str) else server.base_url
    options = {"api_key": "sk-own"} | options
    opened = OpenAICompatibleAdapter(base_url, "m", **options)
    try:
        yield opened
    finally:
        await opened.aclose()


# --- requests ---


async def test_a_request_carries_the_conversation_and_the_key() -> None:
    async with WireServer(Reply(HELLO)) as server, adapter(server) as opened:
        parts = await parts_of(opened, replace(ASK, tools=(PING,), settings=ModelSettings(max_tokens=5, stop=("x",))))
        assert words(parts) == "Hello"
        assert isinstance(parts[-1], Finish)
        (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.header("authorization") == "Bearer sk-own"
    assert request.body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "stop": ["x"],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "ping",
                    "description": "Ping",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        (" http://[::1]:1/v1 ", "http://[::1]:1/v1"),
    ],
)
def test_base_urls_are_taken_with_and_without_their_ends(given: str, used: str) -> None:
    assert normal_base_url(given) == used


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h/v1", "http://", "", "http://user:sk-secret@h/v1"])
def test_what_is_no_base_url_is_refused_without_repeating_a_secret(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        normal_base_url(url)
    assert "sk-secret" not in str(caught.value)


# --- responses ---

REPLIES = [
    case
    for case in load_cases(Path(__file__).parents[1] / "cases")
    if case.wire == "openai-chat" and case.kind != "request"
]


@pytest.mark.parametrize("case", REPLIES, ids=[case.name for case in REPLIES])
async def test_every_case_comes_through_the_sdk_as_the_pure_half_reads_it(case: WireCase) -> None:
    response = case.raw["response"]
    reply = Reply(case.chunks, response["status"], response["headers"], "reset" if case.is_reset else "close")
    expected = decode_case(case)
    async with WireServer(reply) as server, adapter(server, profile=case.profile) as opened:
        request = replace(ASK, tools=case.tools)
        if expected.error is None:
            assert words(await parts_of(opened, request)) == words(_parts(case))
        else:
            error, shown = await failure(opened, request)
            assert error.code == expected.error.code
            assert shown == words(_parts(case))
        assert len(server.requests) == 1


def _parts(case: WireCase) -> list[Part]:
    if case.raw["response"]["status"] >= 400:
        return []
    return [part for batch in decode_parts(case, case.chunks).batches for part in batch]


# --- the rest ---


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
def test_every_profile_names_a_pattern_that_some_call_id_fits(profile: Profile) -> None:
    assert any(re.fullmatch(profile.call_ids, id) for id in ("call_0123456789abcdef01234567", "0123456ab"))


async def test_the_three_methods_hold_a_conversation() -> None:
    call = frame({"tool_calls": [{"index": 0, "id": "p1", "function": {"name": "ping", "arguments": "{}"}}]})
    replies = (Reply([call, frame(finish="tool_calls"), DONE]), Reply(HELLO))
    async with WireServer(*replies) as server:
        backend = LiveQwenBackend(server.base_url, "m", system_prompt="Be brief.")
        assert isinstance(backend, OpenAICompatibleBackend)
        backend.add_user_message("Ping it.")
        turn = await backend.next_turn([PING.schema()])
        (tool_call,) = turn.tool_calls
        assert (backend.name, turn.stop_reason, tool_call.name) == ("qwen-live", "tool_use", "ping")
        backend.add_tool_result(tool_call.id, "ping", "no answer", is_error=True)
        turn = await backend.next_turn([PING.schema()])
        await backend.aclose()
        assert (turn.text_blocks, turn.stop_reason) == (["Hello"], "end_turn")
        assert server.requests[1].body["messages"][-2:] == [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "p1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "p1", "content": "ERROR: no answer"},
        ]
