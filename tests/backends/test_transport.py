"""What holds for every adapter over HTTP, whatever its wire and its SDK."""

import asyncio
import gc
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from ownloop.backends import transport
from ownloop.backends.anthropic import ClaudeAdapter
from ownloop.backends.huggingface import HuggingFaceAdapter
from ownloop.backends.openai_compatible import OpenAICompatibleAdapter
from ownloop.backends.openai_responses import OpenAIResponsesAdapter
from ownloop.backends.transport import HttpAdapter
from ownloop.core.backend import Finish, ModelSettings
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
from tests.backends import wire_server
from tests.backends.reading import ASK, failure, parts_of, words
from tests.backends.wire_server import Reply, WireServer, events

CAPTURES = Path(__file__).parents[1] / "captures"


@dataclass
class Speaker:
    """One adapter, and how a server of its wire says hello."""

    make: Callable[..., HttpAdapter]
    hello: list[bytes]
    """Four chunks: "Hel", "lo", the finish reason, the last word."""
    path: str

    @asynccontextmanager
    async def open(self, server: WireServer | str, **options: Any) -> AsyncGenerator[HttpAdapter]:
        base_url = server if isinstance(server, str) else server.base_url
        if options.pop("pooled", False):
            options["profile"] = replace(self.make(base_url).profile, pooled=True)
        opened = self.make(base_url, **{"api_key": "sk-own"} | options)
        try:
            yield opened
        finally:
            await opened.aclose()


CLAUDE = [
    events(
        {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    ),
    events({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}}),
    events(
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    ),
    events({"type": "message_stop"}),
]
RESPONSES = [
    events(
        {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"type": "message", "id": "i", "content": []},
        },
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "i", "content_index": 0, "delta": "Hel"},
    ),
    events(
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "i", "content_index": 0, "delta": "lo"},
    ),
    events({"type": "response.completed", "response": {"id": "r1", "status": "completed", "output": []}}),
    b": the last word was said before\n\n",
]
SPEAKERS = {
    "chat": Speaker(
        lambda url, **options: OpenAICompatibleAdapter(url, "m", **options), wire_server.HELLO, "/v1/chat/completions"
    ),
    "responses": Speaker(
        lambda url, **options: OpenAIResponsesAdapter(url, "m", **options), RESPONSES, "/v1/responses"
    ),
    "claude": Speaker(lambda url, **options: ClaudeAdapter("m", base_url=url, **options), CLAUDE, "/v1/messages"),
    "huggingface": Speaker(
        lambda url, **options: HuggingFaceAdapter("m", base_url=url, **options),
        wire_server.HELLO,
        "/v1/chat/completions",
    ),
}


AMBIENT_KEYS = (
    "OPENAI_API_KEY",
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
    "OPENAI_ADMIN_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)


@pytest.fixture(params=SPEAKERS)
def speaker(request: pytest.FixtureRequest) -> Speaker:
    return SPEAKERS[request.param]


async def test_nothing_of_the_environment_goes_to_a_foreign_host(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in AMBIENT_KEYS:
        monkeypatch.setenv(name, "sk-ambient")
    for vendor in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{vendor}_BASE_URL", "http://127.0.0.1:9/elsewhere")
        ambient = "X-Team: sk-ambient\nAuthorization: Bearer sk-ambient\nX-Api-Key: sk-ambient"
        monkeypatch.setenv(f"{vendor}_CUSTOM_HEADERS", ambient)
    for key in (None, "sk-own"):
        async with WireServer(Reply(speaker.hello)) as server, speaker.open(server, api_key=key) as opened:
            await parts_of(opened)
            (request,) = server.requests
        assert request.path == speaker.path
        assert "sk-ambient" not in request.head
        assert request.header("authorization") == (f"Bearer {key}" if key else None)
        assert request.header("x-api-key") is None


async def test_a_proxy_in_the_environment_does_not_stand_before_loopback(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with WireServer(Reply(speaker.hello)) as server, speaker.open(server) as opened:
        assert words(await parts_of(opened)) == "Hello"


# --- replies ---


async def test_each_network_read_becomes_a_batch_at_once(speaker: Speaker) -> None:
    second = asyncio.Event()
    async with WireServer(Reply(speaker.hello, gates={1: second})) as server, speaker.open(server) as opened:
        stream = cast("Any", opened.start(ASK))
        async with aclosing(stream):
            assert words(await anext(stream)) == "Hel"
            second.set()  # the server could not have said more before
            rest = [part async for batch in stream for part in batch]
        assert words(rest) == "lo"


async def test_the_request_id_of_the_reply_is_kept(speaker: Speaker) -> None:
    headers = {"content-type": "text/event-stream", "x-request-id": "r7"}
    replies = (Reply(speaker.hello, headers=headers), Reply(speaker.hello[:1], headers=headers))
    async with WireServer(*replies) as server, speaker.open(server) as opened:
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
    speaker: Speaker, status: int, headers: dict[str, str], body: bytes, kind: type[ProviderError]
) -> None:
    async with WireServer(Reply([body], status, headers)) as server:
        async with speaker.open(server, key_variable="SOME_KEY") as opened:
            error, _ = await failure(opened)
        assert len(server.requests) == 1, "retries are not the adapter's"
    assert type(error) is kind
    assert error.status == status
    assert "sk-own" not in str(error) + str(error.detail)
    assert ("SOME_KEY" in str(error)) is (kind is AuthError)
    if status == 429:
        assert (error.retry_after_s, error.request_id) == (7.0, "r1")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_told_and_not_followed(speaker: Speaker, status: int) -> None:
    """What a conversation holds goes to the base URL alone, as its key does."""
    async with WireServer(Reply(speaker.hello)) as other, WireServer() as server:
        server.replies = [Reply([], status, {"location": f"{other.base_url}/elsewhere?token=t"})]
        async with speaker.open(server) as opened:
            error, _ = await failure(opened)
    assert type(error) is BadRequestError
    assert error.status == status
    assert f"{other.base_url}/elsewhere" in str(error)
    assert "token" not in str(error)
    assert (len(server.requests), len(other.requests)) == (1, 0)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "application/json"}, b"[" * 100_000),
        ({"content-type": "application/json"}, b'{"error": {"code": ' + b"1" * 6000 + b"}}"),
        ({"content-type": "application/json; charset=rot13"}, b'{"error": {"message": "no"}}'),
        ({"content-encoding": "gzip"}, b"no gzip"),
    ],
)
async def test_a_refusal_that_nobody_can_read_is_still_one_of_our_errors(
    speaker: Speaker, headers: dict[str, str], body: bytes
) -> None:
    async with WireServer(Reply([body], 500, headers)) as server, speaker.open(server) as opened:
        error, _ = await failure(opened)
        assert len(server.requests) == 1
    assert "cannot reach" not in str(error)


async def test_a_refusal_that_never_ends_is_given_up(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECT_S", 0.1)
    async with WireServer(Reply([b"oh"], 500, pings_every_s=0.01)) as server, speaker.open(server) as opened:
        error, _ = await failure(opened, replace(ASK, settings=ModelSettings(timeout_s=0.2)))
    assert type(error) is BackendTimeoutError


async def test_nothing_that_a_server_says_of_the_key_stands_in_a_traceback(speaker: Speaker) -> None:
    async with WireServer(Reply([b'{"error": {"message": "bad sk-own"}}'], 401)) as server:
        async with speaker.open(server) as opened:
            error, _ = await failure(opened)
        assert "sk-own" not in "".join(traceback.format_exception(error))
    async with WireServer(Reply([b"<html>sk-own</html>"])) as server, speaker.open(server) as opened:
        error, _ = await failure(opened)
    assert error.detail == "<html>[key]</html>"


@pytest.mark.parametrize("value", ["\ud800", float("nan"), object()])
async def test_what_is_no_json_is_refused_before_it_is_sent(speaker: Speaker, value: Any) -> None:
    async with WireServer(Reply(speaker.hello)) as server, speaker.open(server) as opened:
        error, _ = await failure(opened, replace(ASK, settings=ModelSettings(extra={"x": [{"y": value}]})))
    assert type(error) is BadRequestError
    assert "JSON" in str(error)
    assert server.requests == []


async def test_the_model_and_the_stream_are_the_adapters(speaker: Speaker) -> None:
    extra = {"model": "other", "stream": False, "seed": 7}
    async with WireServer(Reply(speaker.hello)) as server, speaker.open(server) as opened:
        assert words(await parts_of(opened, replace(ASK, settings=ModelSettings(extra=extra)))) == "Hello"
    body = server.requests[0].body
    assert (body["model"], body["stream"], body["seed"]) == ("m", True, 7)


@pytest.mark.parametrize("key", ["sk-own\n", " sk-own", "sk-own\r\n"])
async def test_space_around_a_key_is_no_part_of_it(speaker: Speaker, key: str) -> None:
    async with WireServer(Reply(speaker.hello)) as server, speaker.open(server, api_key=key) as opened:
        await parts_of(opened)
    assert server.requests[0].header("authorization") == "Bearer sk-own"


@pytest.mark.parametrize("key", ["“sk-own”", "sk-own\r\nX-Evil: 1", "sk-own sk-other", "sk-own\0", "sk-\ud800own"])
async def test_what_cannot_be_a_key_is_refused_and_not_shown(speaker: Speaker, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        speaker.make("http://localhost:8000/v1", api_key=key, key_variable="SOME_KEY")
    assert "SOME_KEY" in str(caught.value)
    assert "own" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/v1",
        "http://\u2100.com/v1",
        "http://h:99999/v1",
        "http://h:abc/v1",
        "http://h h/v1",
        "http://h\0/v1",
        "http://" + "a" * 70 + ".example/v1",
        "http://xn--é/v1",
        "http://.../v1",
        "http://h/v1?api_key=secret",
        "http://me:secret@h/v1",
        "secret",
    ],
)
async def test_what_cannot_be_a_base_url_is_refused_at_once(speaker: Speaker, url: str) -> None:
    with pytest.raises(ConfigError, match="base URL") as caught:
        speaker.make(url)
    assert "secret" not in str(caught.value)


async def test_extra_fields_go_out_as_they_are(speaker: Speaker) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    extra = {"response_format": schema, "tools": None}
    async with WireServer(Reply(speaker.hello)) as server, speaker.open(server) as opened:
        await parts_of(opened, replace(ASK, settings=ModelSettings(extra=extra)))
    assert server.requests[0].body["response_format"] == schema
    assert "tools" not in server.requests[0].body, "servers refuse an empty list"


async def test_a_model_may_have_any_name(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello)) as server, speaker.open(server) as opened:
        opened.model = "http://elsewhere.example/v1"
        await parts_of(opened)
    assert server.requests[0].body["model"] == "http://elsewhere.example/v1"


async def test_a_refused_connection_is_no_timeout(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello)) as server:
        gone = server.base_url
    async with speaker.open(gone) as opened:
        error, _ = await failure(opened)
    assert type(error) is BackendUnavailableError
    assert gone.removesuffix("/v1") in str(error)
    assert error.__cause__ is not None


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_connection_cut_before_the_reply_is_no_timeout_either(speaker: Speaker, then: Any) -> None:
    async with WireServer(Reply(is_silent=True, then=then)) as server, speaker.open(server) as opened:
        error, _ = await failure(opened)
        assert type(error) is BackendUnavailableError
        assert len(server.requests) == 1


async def test_a_chunked_body_without_its_end_is_an_interruption(speaker: Speaker) -> None:
    half = b"%x\r\n%s\r\n" % (len(speaker.hello[0]), speaker.hello[0])
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    async with WireServer(Reply([half], headers=headers)) as server, speaker.open(server) as opened:
        error, shown = await failure(opened)
    assert type(error) is StreamInterruptedError
    assert shown == "Hel"
    assert error.__cause__ is not None


@pytest.mark.parametrize("is_silent", [True, False])
async def test_silence_ends_in_a_timeout(speaker: Speaker, is_silent: bool) -> None:
    reply = Reply(speaker.hello[:1], is_silent=is_silent, then="hang")
    if is_silent:
        reply.chunks = ()
    async with WireServer(reply) as server, speaker.open(server) as opened:
        error, _ = await failure(opened, replace(ASK, settings=ModelSettings(timeout_s=0.05)))
        await server.gone.wait()
    assert type(error) is BackendTimeoutError
    assert "0.05 s" in str(error)


async def test_comments_alone_do_not_keep_a_response_alive_for_ever(speaker: Speaker) -> None:
    async with WireServer(Reply([speaker.hello[0]], pings_every_s=0.01)) as server, speaker.open(server) as opened:
        error, shown = await failure(opened, replace(ASK, settings=ModelSettings(timeout_s=0.05)))
    assert type(error) is BackendTimeoutError
    assert shown == "Hel"


async def test_a_server_that_goes_on_after_its_finish_reason_does_not_hold_up_the_turn(
    speaker: Speaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "FINISH_GRACE_S", 0.05)
    for reply in (Reply(speaker.hello[:3], pings_every_s=0.01), Reply(speaker.hello[:3], then="hang")):
        async with WireServer(reply) as server, speaker.open(server) as opened:
            parts = await parts_of(opened)
            assert words(parts) == "Hello"
            assert isinstance(parts[-1], Finish)


async def test_nothing_is_waited_for_after_done(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello, then="hang")) as server, speaker.open(server) as opened:
        assert isinstance((await parts_of(opened))[-1], Finish)
        await server.gone.wait()


# --- leaving ---


async def test_cancelling_the_reader_closes_the_socket(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello[:1], then="hang")) as server, speaker.open(server) as opened:
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


async def test_cancelling_before_the_first_byte_closes_the_socket(speaker: Speaker) -> None:
    async with WireServer(Reply(is_silent=True, then="hang")) as server, speaker.open(server) as opened:
        task = asyncio.create_task(parts_of(opened))
        while not server.requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.gone.wait()


async def test_closing_the_iterator_closes_the_socket(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello[:1], then="hang")) as server, speaker.open(server) as opened:
        stream = cast("Any", opened.start(ASK))
        await anext(stream)
        await stream.aclose()
        await server.gone.wait()


async def test_an_adapter_may_be_closed_twice_and_used_again(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello)) as server, speaker.open(server) as opened:
        await parts_of(opened)
        await opened.aclose()
        await opened.aclose()
        assert words(await parts_of(opened)) == "Hello"


def test_an_adapter_works_in_one_loop_after_the_other(speaker: Speaker) -> None:
    opened = speaker.make("http://127.0.0.1:1")

    async def once() -> str:
        async with WireServer(Reply(speaker.hello)) as server:
            opened.base_url = speaker.make(server.base_url).base_url
            try:
                return words(await parts_of(opened))
            finally:
                await opened.aclose()

    assert [asyncio.run(once()), asyncio.run(once())] == ["Hello", "Hello"]
    gc.collect()  # an unclosed session would warn here


# --- connections ---


async def test_a_server_of_ones_own_gets_a_fresh_connection_each_time(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello, then="keep")) as server, speaker.open(server) as opened:
        for _ in range(10):
            await parts_of(opened)
        assert [request.connection for request in server.requests] == list(range(1, 11))


async def test_a_pooled_hosts_connection_is_used_again(speaker: Speaker) -> None:
    async with WireServer(Reply(speaker.hello, then="keep")) as server, speaker.open(server, pooled=True) as opened:
        for _ in range(10):
            await parts_of(opened)
        assert {request.connection for request in server.requests} == {1}


async def test_a_stale_pooled_connection_costs_one_repeat_and_no_error(speaker: Speaker) -> None:
    replies = (Reply(speaker.hello, then="keep"), Reply(is_silent=True), Reply(speaker.hello, then="keep"))
    async with WireServer(*replies) as server, speaker.open(server, pooled=True) as opened:
        await parts_of(opened)
        assert words(await parts_of(opened)) == "Hello"
        assert len(server.requests) == 3


async def test_a_repeat_is_made_once_and_only_when_a_connection_could_be_stale(speaker: Speaker) -> None:
    async with WireServer(Reply(is_silent=True)) as server, speaker.open(server, pooled=True) as opened:
        await failure(opened)
        assert len(server.requests) == 1
    replies = (Reply(speaker.hello, then="keep"), Reply(is_silent=True))
    async with WireServer(*replies) as server, speaker.open(server, pooled=True) as opened:
        await parts_of(opened)
        await failure(opened)
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("module", "call", "package", "extra"),
    [
        ("openai_compatible", "OpenAICompatibleAdapter('http://127.0.0.1:1', 'm')", "openai", "openai"),
        ("openai_responses", "OpenAIResponsesAdapter('http://127.0.0.1:1', 'm')", "openai", "openai"),
        ("anthropic", "ClaudeAdapter('m')", "anthropic", "anthropic"),
        ("huggingface", "HuggingFaceAdapter('m')", "huggingface_hub", "huggingface"),
    ],
)
def test_the_sdk_is_imported_at_the_first_use_only_and_named_if_it_is_missing(
    module: str, call: str, package: str, extra: str
) -> None:
    script = f"""
import sys
from ownloop.backends.{module} import *
adapter = {call}
assert not {{"openai", "anthropic", "huggingface_hub", "httpx2", "aiohttp"}} & sys.modules.keys()
sys.modules["{package}"] = None
import asyncio
from ownloop.core.backend import ModelRequest, ModelSettings
from ownloop.errors import ConfigError
async def main():
    try:
        async for _ in adapter.start(ModelRequest("", (), (), ModelSettings())): pass
    except ConfigError as error:
        assert "pip install 'ownloop[{extra}]'" in str(error), error
    else:
        raise SystemExit("no error")
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script], check=True)
