from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from ownloop.backends import server_probe
from ownloop.backends.model_forms import UsualServer
from ownloop.backends.server_probe import FoundServer, find_servers

Answer = Callable[[bytes], bytes]
MODELS = json.dumps({"object": "list", "data": [{"id": "qwen3:8b"}, {"id": "llama"}]}).encode()


def plain(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def chunked(body: bytes) -> bytes:
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:]))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"


@asynccontextmanager
async def server(answer: Answer, *, closes: bool = True) -> AsyncGenerator[UsualServer]:
    """Listen on the loopback; `closes`: whether the connection is closed behind the answer."""
    open_ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
        await writer.drain()
        if not closes:
            await open_ended.wait()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield UsualServer("some", "Some", f"http://127.0.0.1:{port}/v1")
    finally:
        open_ended.set()
        listening.close()


async def found(answer: Answer, *, closes: bool = True, **env: str) -> FoundServer:
    async with server(answer, closes=closes) as usual:
        [one] = await find_servers(env, [usual])
    return one


@pytest.mark.parametrize(
    ("answer", "status", "models"),
    [
        (plain("200 OK", MODELS), "up", ("qwen3:8b", "llama")),
        (chunked(MODELS), "up", ("qwen3:8b", "llama")),
        (plain("200 OK", b'{"data": []}'), "up", ()),
        (plain("200 OK", b'{"object": "list", "data": null}'), "up", ()),
        (plain("401 Unauthorized", b""), "key", ()),
        (plain("403 Forbidden", b"{}"), "key", ()),
        (plain("404 Not Found", MODELS), "other", ()),
        (plain("200 OK", b"<html>"), "other", ()),
        (plain("200 OK", b"[1, 2]"), "other", ()),
        (plain("200 OK", b'{"data": [{"name": "x"}]}'), "other", ()),
        (plain("200 OK", b"[" * 100_000), "other", ()),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "other", ()),
        (b"", "other", ()),
        (plain("200 OK", MODELS)[:-20], "other", ()),
        (plain("200 OK", b" " * (server_probe.MAX_BYTES + 200_000) + MODELS), "other", ()),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
async def test_what_answers_is_told_apart(answer: bytes, status: str, models: tuple[str, ...]) -> None:
    one = await found(lambda _: answer)
    assert (one.status, one.models) == (status, models)


async def test_models_are_strings_to_copy() -> None:
    one = await found(lambda _: plain("200 OK", MODELS))
    assert one.strings == (f"{one.server.base_url}#qwen3:8b", f"{one.server.base_url}#llama")


async def test_a_server_that_keeps_the_connection_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_probe, "MOMENT_S", 0.2)
    assert (await found(lambda _: plain("200 OK", MODELS), closes=False)).status == "up"
    assert (await found(lambda _: b"", closes=False)).status == "other"


async def test_a_port_where_nobody_listens_is_down() -> None:
    async with server(lambda _: b"") as usual:
        pass
    [one] = await find_servers({}, [usual])
    assert one.status == "down"


async def test_a_key_goes_along_only_if_it_is_the_servers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        return plain("200 OK", MODELS)

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    await found(answer, OPENAI_API_KEY="sk-secret", OWNLOOP_API_KEY_ELSEWHERE="other")
    await found(answer, OWNLOOP_API_KEY_127_0_0_1="own")
    assert heads[0].startswith(b"GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:")
    assert b"uthorization" not in heads[0]
    assert b"\r\nAuthorization: Bearer own\r\n" in heads[1]


async def test_all_are_asked_at_once() -> None:
    asked = 0
    both = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        if asked == 2:
            both.set()
        await both.wait()  # answers only while the other one is being asked
        writer.write(plain("200 OK", MODELS))
        writer.close()

    first = await asyncio.start_server(serve, "127.0.0.1", 0)
    second = await asyncio.start_server(serve, "127.0.0.1", 0)
    ports = [one.sockets[0].getsockname()[1] for one in (first, second)]
    servers = [UsualServer(str(port), str(port), f"http://127.0.0.1:{port}/v1") for port in ports]
    assert [one.status for one in await find_servers({}, servers)] == ["up", "up"]
    first.close()
    second.close()
