import asyncio
import gc
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ownloop.backends import openai_compatible as module
from ownloop.backends.openai_compatible import (
    LiveQwenBackend,
    OpenAICompatibleAdapter,
    OpenAICompatibleBackend,
    normal_base_url,
)
from ownloop.backends.profiles import POOLED, PROFILES, Profile
from ownloop.core.backend import Finish, ModelRequest, ModelSettings, Part, PartDelta
from ownloop.core.messages import Message, TextBlock
from ownloop.core.toolspec import ToolSpec
from ownloop.errors import (
    AuthError,
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConfigError,
    ContextLengthError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    StreamInterruptedError,
)
from ownloop.testing.wire_cases import WireCase, decode_case, decode_parts, load_cases
from tests.backends.wire_server import DONE, HELLO, Reply, WireServer, frame, text

ASK = ModelRequest("Be brief.", (Message("user", (TextBlock("Hi"),)),), (), ModelSettings())
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


async def parts_of(opened: OpenAICompatibleAdapter, request: ModelRequest = ASK) -> list[Part]:
    return [part for batch in await batches_of(opened, request) for part in batch]


async def batches_of(opened: OpenAICompatibleAdapter, request: ModelRequest = ASK) -> list[Sequence[Part]]:
    return [batch async for batch in opened.start(request)]


def words(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, PartDelta))


async def failure(opened: OpenAICompatibleAdapter, request: ModelRequest = ASK) -> tuple[ProviderError, str]:
    """Return how a response failed, and the text that was shown before."""
    seen: list[Part] = []

    async def read() -> None:
        async for batch in opened.start(request):
            seen.extend(batch)

    with pytest.raises(ProviderError) as caught:
        await read()
    return caught.value, words(seen)


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


async def test_nothing_of_the_environment_goes_to_a_foreign_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "sk-ambient")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/elsewhere")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: sk-ambient\nAuthorization: Bearer sk-ambient")
    for key in (None, "sk-own"):
        async with WireServer(Reply(HELLO)) as server, adapter(server, api_key=key) as opened:
            await parts_of(opened)
            (request,) = server.requests
        assert "sk-ambient" not in request.head
        assert request.header("authorization") == (f"Bearer {key}" if key else None)


async def test_a_proxy_in_the_environment_does_not_stand_before_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with WireServer(Reply(HELLO)) as server, adapter(server) as opened:
        assert words(await parts_of(opened)) == "Hello"


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


async def test_each_network_read_becomes_a_batch_at_once() -> None:
    second = asyncio.Event()
    async with WireServer(Reply(HELLO, gates={1: second})) as server, adapter(server) as opened:
        stream = cast("Any", opened.start(ASK))
        async with aclosing(stream):
            assert words(await anext(stream)) == "Hel"
            second.set()  # the server could not have said more before
            rest = [part async for batch in stream for part in batch]
        assert words(rest) == "lo"


async def test_the_request_id_of_the_reply_is_kept() -> None:
    headers = {"content-type": "text/event-stream", "x-request-id": "r7"}
    replies = (Reply(HELLO, headers=headers), Reply(HELLO[:1], headers=headers))
    async with WireServer(*replies) as server, adapter(server) as opened:
        last = (await parts_of(opened))[-1]
        assert isinstance(last, Finish)
        assert last.request_id == "r7"
        error, _ = await failure(opened)
        assert error.request_id == "r7"


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (
            429,
            {"retry-after": "7", "x-request-id": "r1"},
            b'{"error": {"message": "slow down, sk-own"}}',
            RateLimitedError,
        ),
        (500, {}, b"boom", ProviderError),
        (503, {}, b'{"error": {"message": "Loading model"}}', OverloadedError),
        (401, {}, b'{"error": {"message": "Incorrect API key provided: sk-own"}}', AuthError),
        (404, {}, b'{"error": {"message": "no such model"}}', BadRequestError),
        (400, {}, (CAPTURES / "vllm_error_context.sse").read_bytes(), ContextLengthError),
    ],
)
async def test_an_http_error_is_told_once_and_without_the_key(
    status: int, headers: dict[str, str], body: bytes, kind: type[ProviderError]
) -> None:
    async with WireServer(Reply([body], status, headers)) as server:
        async with adapter(server, key_variable="SOME_KEY") as opened:
            error, _ = await failure(opened)
        assert len(server.requests) == 1, "retries are not the adapter's"
    assert type(error) is kind
    assert error.status == status
    assert "sk-own" not in str(error) + str(error.detail)
    assert ("SOME_KEY" in str(error)) is (kind is AuthError)
    if status == 429:
        assert (error.retry_after_s, error.request_id) == (7.0, "r1")


async def test_a_refused_connection_is_no_timeout() -> None:
    async with WireServer(Reply(HELLO)) as server:
        gone = server.base_url
    async with adapter(gone) as opened:
        error, _ = await failure(opened)
    assert type(error) is BackendUnavailableError
    assert gone in str(error)
    assert error.__cause__ is not None


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_connection_cut_before_the_reply_is_no_timeout_either(then: Any) -> None:
    async with WireServer(Reply(is_silent=True, then=then)) as server, adapter(server) as opened:
        error, _ = await failure(opened)
        assert type(error) is BackendUnavailableError
        assert len(server.requests) == 1


async def test_a_chunked_body_without_its_end_is_an_interruption() -> None:
    half = b"%x\r\n%s\r\n" % (len(text("Hel")), text("Hel"))
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    async with WireServer(Reply([half], headers=headers)) as server, adapter(server) as opened:
        error, shown = await failure(opened)
    assert type(error) is StreamInterruptedError
    assert shown == "Hel"
    assert error.__cause__ is not None


@pytest.mark.parametrize("reply", [Reply(is_silent=True, then="hang"), Reply(HELLO[:1], then="hang")])
async def test_silence_ends_in_a_timeout(reply: Reply) -> None:
    async with WireServer(reply) as server, adapter(server) as opened:
        error, _ = await failure(opened, replace(ASK, settings=ModelSettings(timeout_s=0.05)))
        await server.gone.wait()
    assert type(error) is BackendTimeoutError
    assert "0.05 s" in str(error)


async def test_comments_alone_do_not_keep_a_response_alive_for_ever() -> None:
    async with WireServer(Reply([text("Hel")], pings_every_s=0.01)) as server, adapter(server) as opened:
        error, shown = await failure(opened, replace(ASK, settings=ModelSettings(timeout_s=0.05)))
    assert type(error) is BackendTimeoutError
    assert shown == "Hel"


async def test_a_server_that_goes_on_after_its_finish_reason_does_not_hold_up_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FINISH_GRACE_S", 0.05)
    for reply in (Reply(HELLO[:3], pings_every_s=0.01), Reply(HELLO[:3], then="hang")):
        async with WireServer(reply) as server, adapter(server) as opened:
            parts = await parts_of(opened)
            assert words(parts) == "Hello"
            assert isinstance(parts[-1], Finish)


async def test_nothing_is_waited_for_after_done() -> None:
    async with WireServer(Reply(HELLO, then="hang")) as server, adapter(server) as opened:
        assert isinstance((await parts_of(opened))[-1], Finish)
        await server.gone.wait()


# --- leaving ---


async def test_cancelling_the_reader_closes_the_socket() -> None:
    async with WireServer(Reply(HELLO[:1], then="hang")) as server, adapter(server) as opened:
        began = asyncio.Event()

        async def read() -> None:
            async for _ in opened.start(ASK):
                began.set()

        task = asyncio.create_task(read())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.gone.wait()


async def test_cancelling_before_the_first_byte_closes_the_socket() -> None:
    async with WireServer(Reply(is_silent=True, then="hang")) as server, adapter(server) as opened:
        task = asyncio.create_task(parts_of(opened))
        while not server.requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.gone.wait()


async def test_closing_the_iterator_closes_the_socket() -> None:
    async with WireServer(Reply(HELLO[:1], then="hang")) as server, adapter(server) as opened:
        stream = cast("Any", opened.start(ASK))
        await anext(stream)
        await stream.aclose()
        await server.gone.wait()


async def test_an_adapter_may_be_closed_twice_and_used_again() -> None:
    async with WireServer(Reply(HELLO)) as server, adapter(server) as opened:
        await parts_of(opened)
        await opened.aclose()
        await opened.aclose()
        assert words(await parts_of(opened)) == "Hello"


def test_an_adapter_works_in_one_loop_after_the_other() -> None:
    opened = OpenAICompatibleAdapter("http://127.0.0.1:1", "m")

    async def once() -> str:
        async with WireServer(Reply(HELLO)) as server:
            opened.base_url = server.base_url
            try:
                return words(await parts_of(opened))
            finally:
                await opened.aclose()

    assert [asyncio.run(once()), asyncio.run(once())] == ["Hello", "Hello"]
    gc.collect()  # an unclosed session would warn here


# --- connections ---

STREAM = {"content-type": "text/event-stream"}


async def test_a_server_of_ones_own_gets_a_fresh_connection_each_time() -> None:
    async with WireServer(Reply(HELLO, then="keep")) as server, adapter(server) as opened:
        for _ in range(10):
            await parts_of(opened)
        assert [request.connection for request in server.requests] == list(range(1, 11))


async def test_a_pooled_hosts_connection_is_used_again() -> None:
    async with WireServer(Reply(HELLO, then="keep")) as server, adapter(server, profile=POOLED) as opened:
        for _ in range(10):
            await parts_of(opened)
        assert {request.connection for request in server.requests} == {1}


async def test_a_stale_pooled_connection_costs_one_repeat_and_no_error() -> None:
    replies = (Reply(HELLO, then="keep"), Reply(is_silent=True), Reply(HELLO, then="keep"))
    async with WireServer(*replies) as server, adapter(server, profile=POOLED) as opened:
        await parts_of(opened)
        assert words(await parts_of(opened)) == "Hello"
        assert len(server.requests) == 3


async def test_a_repeat_is_made_once_and_only_when_a_connection_could_be_stale() -> None:
    async with WireServer(Reply(is_silent=True)) as server, adapter(server, profile=POOLED) as opened:
        await failure(opened)
        assert len(server.requests) == 1
    replies = (Reply(HELLO, then="keep"), Reply(is_silent=True))
    async with WireServer(*replies) as server, adapter(server, profile=POOLED) as opened:
        await parts_of(opened)
        await failure(opened)
        assert len(server.requests) == 3


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


def test_the_sdk_is_imported_at_the_first_use_only_and_named_if_it_is_missing() -> None:
    script = """
import sys
from ownloop.backends.models import open_model
adapter = open_model("http://127.0.0.1:1#m")
assert not {"openai", "httpx2", "aiohttp"} & sys.modules.keys()
sys.modules["openai"] = None
import asyncio
from ownloop.core.backend import ModelRequest, ModelSettings
from ownloop.errors import ConfigError
async def main():
    try:
        async for _ in adapter.start(ModelRequest("", (), (), ModelSettings())): pass
    except ConfigError as error:
        assert "pip install 'ownloop[openai]'" in str(error), error
    else:
        raise SystemExit("no error")
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script], check=True)
