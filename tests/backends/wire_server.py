"""A bare HTTP server on loopback that says what a test tells it, write by write, as no framework would."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

SSE = {"content-type": "text/event-stream"}


@dataclass
class Reply:
    """What the server does with one request."""

    chunks: Iterable[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE))
    then: Literal["close", "reset", "hang", "keep"] = "close"
    """keep: end the body (chunked encoding) and leave the connection open for the next request."""
    gates: dict[int, asyncio.Event] = field(default_factory=dict)
    """Wait for the event before the chunk with this number."""
    is_silent: bool = False
    """Not even headers: read the request, then `then`."""
    pings_every_s: float | None = None
    """After the chunks, send comments at this pace for ever."""


@dataclass
class Request:
    head: str
    body: Any
    connection: int

    @property
    def path(self) -> str:
        return self.head.split(" ", 2)[1]

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


class WireServer:
    """Answers the n-th request with the n-th reply, the last one again and again."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.gone = asyncio.Event()
        """Set when a client closed its connection while a reply hung."""
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        number = self._connections
        try:
            while await self._serve(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled by __aexit__, which waits; asyncio's streams complain about a cancelled handler
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().strip()
        request = Request(head, None, connection)
        length = int(request.header("content-length") or 0)
        request.body = json.loads(await reader.readexactly(length)) if length else None
        reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(request)
        if not reply.is_silent:
            headers = dict(reply.headers)
            headers |= {"transfer-encoding": "chunked"} if reply.then == "keep" else {"connection": "close"}
            lines = [f"HTTP/1.1 {reply.status} Said", *(f"{key}: {value}" for key, value in headers.items())]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        for number, chunk in enumerate(reply.chunks):
            if number in reply.gates:
                await reply.gates[number].wait()
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk) if reply.then == "keep" else chunk)
            await writer.drain()
        while reply.pings_every_s is not None:
            await asyncio.sleep(reply.pings_every_s)
            writer.write(b": ping\n\n")
            await writer.drain()
        match reply.then:
            case "keep":
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            case "reset":
                # The last write is to be read first: a reset throws away what the client has not taken yet.
                while _unacknowledged(writer):
                    await asyncio.sleep(0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case "hang":
                await reader.read()
                self.gone.set()
            case "close":
                pass
        return False


def _unacknowledged(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer's kernel has not taken all bytes."""
    return writer.transport.get_write_buffer_size() > 0


def frame(delta: dict[str, Any] | None = None, finish: str | None = None, **rest: Any) -> bytes:
    """One chunk of an OpenAI chat stream."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice], **rest}).encode() + b"\n\n"


def events(*objects: dict[str, Any]) -> bytes:
    """Events as wires send them that name each by its type."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (o["type"].encode(), json.dumps(o).encode()) for o in objects)


def text(words: str) -> bytes:
    return frame({"content": words})


DONE = b"data: [DONE]\n\n"
HELLO = [text("Hel"), text("lo"), frame(finish="stop"), DONE]
"""A whole answer."""
