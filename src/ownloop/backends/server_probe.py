"""Which model servers listen on this machine, and which models they have. For people who look what they can use.

Asks the usual ports of the loopback and nobody else, all at once, each for a moment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from ownloop.backends.model_forms import USUAL_SERVERS, UsualServer
from ownloop.backends.models import key_variable

MOMENT_S: Final = 1.0
"""Servers on the same machine answer in milliseconds; one that loads a model may take longer, and is then left out."""
MAX_BYTES: Final = 1_000_000
"""Of an answer: more than the longest list of models."""

Status: TypeAlias = Literal["up", "key", "other", "down"]


@dataclass(frozen=True, slots=True)
class FoundServer:
    """What answered at a usual port."""

    server: UsualServer
    status: Status
    """`up`: it has `models`; `key`: it wants a key; `other`: something else listens there; `down`: nothing does."""
    models: tuple[str, ...] = ()

    @property
    def strings(self) -> tuple[str, ...]:
        """The models as they are written in `Agent(model=…)`."""
        return tuple(f"{self.server.base_url}#{name}" for name in self.models)


async def find_servers(env: Mapping[str, str], servers: Sequence[UsualServer] = USUAL_SERVERS) -> Sequence[FoundServer]:
    """Ask each server for its models; a key in `env` goes along if it belongs to the server's host."""
    return await asyncio.gather(*(_ask(server, env.get(key_variable(server.base_url))) for server in servers))


async def _ask(server: UsualServer, key: str | None) -> FoundServer:
    try:
        response = await _get(f"{server.base_url}/models", key)
    except (HTTPException, ValueError):  # one of the former is an OSError too: an empty answer
        return FoundServer(server, "other")
    except (OSError, TimeoutError):
        return FoundServer(server, "down")
    if response.status in (401, 403):
        return FoundServer(server, "key")
    names = _names(response.body) if response.status == 200 else None
    return FoundServer(server, "other") if names is None else FoundServer(server, "up", names)


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes


class _Received:
    """Bytes in the place of a socket, for the standard library's parser."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> BytesIO:
        del mode
        return BytesIO(self._data)


async def _get(url: str, key: str | None) -> _Response:
    """Fetch a URL of the loopback, past every proxy. Raises OSError and TimeoutError, HTTPException, ValueError."""
    parts = urlsplit(url)
    async with asyncio.timeout(MOMENT_S):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    received = b""
    try:
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        # HTTP/1.0: the server closes the connection behind its answer.
        head = f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n{authorization}\r\n"
        writer.write(head.encode("latin-1"))
        async with asyncio.timeout(MOMENT_S):
            while len(received) <= MAX_BYTES and (more := await reader.read(65536)):
                received += more
    except TimeoutError:
        pass  # one that keeps the connection has said by now what it has to say
    finally:
        writer.close()
    response = HTTPResponse(cast("Any", _Received(received)))
    response.begin()
    return _Response(response.status, response.read())


def _names(body: bytes) -> tuple[str, ...] | None:
    """Return the ids in a list of models; None if it is none."""
    try:
        models: Any = json.loads(body)["data"] or []
        return tuple(str(model["id"]) for model in models)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
