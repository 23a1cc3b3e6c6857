"""What all adapters over HTTP share: send a request, read the reply to its end, and name what goes wrong on the way.

The vendors' SDKs do transport and auth; the bytes, their meaning and every retry are ours. The invariants: a key goes
to the base URL it was given for and nowhere else, and leaving a response in any way closes its socket.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit, urlunsplit

from ownloop.backends.profiles import Profile, profile_for
from ownloop.backends.wires.decoder import Decoder
from ownloop.backends.wires.encoder import Encoded, Encoder
from ownloop.backends.wires.provider_errors import provider_error, redact
from ownloop.core.backend import Adapter, ModelRequest, Part
from ownloop.core.codec import dumps
from ownloop.core.messages import Json
from ownloop.core.text import clean_text
from ownloop.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConfigError,
    ProviderError,
    StreamInterruptedError,
)

CONNECT_S: Final = 10.0
"""A host that answers no connection for so long is down; waiting for the answer is what `timeout_s` is for."""
FINISH_GRACE_S: Final = 5.0
"""After the finish reason only usage may come; a server that then keeps the stream open does not hold up the turn."""
DRAIN_S: Final = 0.05
"""After the last event, how long the end of the body may take, so that the connection can be used again."""
SILENCE_FACTOR: Final = 3
"""Keep-alive comments reset `timeout_s`, but a stream of nothing else ends after this many times it."""

_REASONS: Final = {"gaierror": "its name is not known here", "ConnectionRefusedError": "connection refused"}
"""What Python's names of failures mean to a person."""

Exceptions = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Failures:
    """The exceptions that an SDK's raw path lets out, by what they mean; their causes are asked too."""

    any: Exceptions
    status: Exceptions
    """The server refused: the exception has the reply in `response`."""
    connect_timeout: Exceptions
    silent: Exceptions
    refused: Exceptions
    """There is nobody to talk to. Asked before `cut`, of which some libraries make these a kind."""
    cut: Exceptions
    """The connection stood, and broke."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply whose headers were read."""

    headers: Mapping[str, str]
    body: AsyncGenerator[bytes]


class HttpAdapter(ABC):
    """One model behind one base URL; stateless, so sessions share it.

    Without `api_key` no key is sent, whatever the environment holds. A subclass is one wire over one SDK; it follows no
    redirect. Its client belongs to the event loop that first uses it; after `aclose`, or in another loop, the next use
    opens a new one. Raises ConfigError for what cannot be a base URL or a key.
    """

    NAME: ClassVar[str]
    """The label, unless another is given."""
    WIRE: ClassVar[str] = ""
    """Follows the host in `provider`, so that blocks of one wire are not replayed on another one of the same host."""
    ENCODER: ClassVar[type[Encoder]]

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        profile: Profile | None = None,
        name: str | None = None,
        provider: str | None = None,
        key_variable: str | None = None,
    ) -> None:
        self.base_url = self._normal_url(base_url)
        self.name = name or self.NAME
        self.provider = provider or urlsplit(self.base_url).netloc + self.WIRE
        self.model = model
        self.profile = profile or self._usual_profile()
        self._key_hint = f"the key is read from ${key_variable}" if key_variable else ""
        self._secrets = (_checked_key(api_key, key_variable),) if api_key else ()
        self._encoder = self.ENCODER(self.provider, model, self.profile)
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_answered = False
        """Whether there may be an idle connection that the server has closed in the meantime."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r}, {self.model!r})"

    # --- what a wire and its SDK say ---

    def _normal_url(self, url: str) -> str:
        """Return a base URL as the SDK wants it. Raises ConfigError."""
        return http_url(url)

    def _usual_profile(self) -> Profile:
        return profile_for(self.base_url)

    @abstractmethod
    def _decoder(self, encoded: Encoded) -> Decoder:
        """Return a fresh decoder for the reply to a request."""

    @abstractmethod
    def _failures(self) -> Failures:
        """Import the SDK (half a second the first time). Raises ConfigError that names the extra."""

    @abstractmethod
    async def _post(self, stack: AsyncExitStack, body: Json, timeout_s: float | None) -> Reply:
        """Send a request and read the headers of the reply, which `stack` closes.

        Raises whatever `_failures` knows. `timeout_s` is the longest silence; connecting may take CONNECT_S.
        """

    @abstractmethod
    def _open_client(self) -> Any:
        """Open the SDK's client, or the connections that it is to use, for the running event loop."""

    @abstractmethod
    async def _close_client(self, client: Any) -> None: ...

    # --- its client ---

    def _opened_client(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._open_client(), loop
            self._has_answered = False
        return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        self._has_answered = False
        if client is not None and self._loop is asyncio.get_running_loop():
            await self._close_client(client)

    # --- one response ---

    async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
        """See `Adapter.start`. One batch for each network read that gave parts."""
        failures = self._failures()
        encoded = self._encoder.encode(request)
        decoder = self._decoder(encoded)
        timeout_s = request.settings.timeout_s
        cause: BaseException | None = None
        async with AsyncExitStack() as stack:
            reply = await self._send(failures, stack, encoded.body, timeout_s)
            decoder.request_id = redact(request_id(reply.headers), self._secrets) or None
            await stack.enter_async_context(aclosing(reply.body))
            batches = await stack.enter_async_context(aclosing(_read(reply.body, decoder, timeout_s)))
            try:
                async for parts in batches:
                    yield parts
            except failures.any as error:
                cause = error
                decoder.lose(self._broken(failures, error, timeout_s))
            parts = decoder.close()
            if parts:
                yield parts
            if decoder.error is not None:
                raise decoder.error from cause or decoder.error.__cause__
            if self.profile.pooled:
                await _drain(reply.body, failures.any)

    async def _send(self, failures: Failures, stack: AsyncExitStack, body: Json, timeout_s: float | None) -> Reply:
        """Send the request.

        A pooled connection may have been closed by the server while it was idle; nothing of a reply has arrived then,
        and the request is repeated once, at once, on a fresh connection.
        """
        for may_repeat in (self.profile.pooled, False):
            may_repeat = may_repeat and self._has_answered
            try:
                # A refusal is read to its end in there, and need not have one.
                async with asyncio.timeout(None if timeout_s is None else CONNECT_S + timeout_s * SILENCE_FACTOR):
                    reply = await self._post(stack, body, timeout_s)
            except failures.any as error:
                if may_repeat and _is_cut(failures, error):
                    continue
                # A refusal says all there is to say; the SDK's words for it may hold the key.
                raise self._refused(failures, error, timeout_s) from (
                    None if isinstance(error, failures.status) else error
                )
            except Exception as error:  # the SDKs' own code fails of values, and of what servers say, in many ways
                raise self._failed(error, body) from error
            self._has_answered = True
            return reply
        raise AssertionError  # the second round cannot repeat

    def _refused(self, failures: Failures, error: BaseException, timeout_s: float | None) -> ProviderError:
        """Translate what happened before the reply began."""
        response: Any = getattr(error, "response", None)
        if isinstance(error, failures.status) and response is not None:
            if 300 <= response.status_code < 400:
                return self._redirected(response.status_code, response.headers)
            return provider_error(
                self.provider,
                response.content.decode("utf-8", "replace"),  # the charset that it names may be none
                status=response.status_code,
                headers=response.headers,
                secrets=self._secrets,
                key_hint=self._key_hint,
            )
        links = list(chain(error))
        if any(isinstance(link, failures.connect_timeout) for link in links):
            return BackendUnavailableError(f"{self.base_url} did not accept a connection within {CONNECT_S:g} s")
        if any(isinstance(link, failures.silent) for link in links):
            return self._silent(timeout_s)
        root = type(links[-1]).__name__
        if _is_cut(failures, error):
            return BackendUnavailableError(f"{self.base_url} closed the connection before it answered ({root})")
        if any(isinstance(link, failures.refused) for link in links):
            own = is_loopback(self.base_url)
            hint = "is the server running?" if own else "is there a network, and is the address right?"
            return BackendUnavailableError(f"cannot reach {self.base_url} ({_REASONS.get(root, root)}): {hint}")
        return BackendUnavailableError(f"{self.base_url} gave no answer that can be read ({root})")

    def _failed(self, error: Exception, body: Json) -> ProviderError:
        """Translate what no SDK should let out."""
        try:
            dumps(body).encode()
        except (ValueError, TypeError, RecursionError):
            return BadRequestError(f"this request cannot be written as JSON ({type(error).__name__})")
        return BackendUnavailableError(f"{self.base_url} gave no answer that can be read ({type(error).__name__})")

    def _redirected(self, status: int, headers: Mapping[str, str]) -> ProviderError:
        where, _, _ = redact(clean_text(headers.get("location") or "elsewhere"), self._secrets).partition("?")
        return BadRequestError(
            f"{self.base_url} sends requests on to {where} (status {status}), which is not followed; "
            "if you trust that server, name it in the base URL",
            status=status,
            request_id=redact(request_id(headers), self._secrets) or None,
        )

    def _broken(self, failures: Failures, error: BaseException, timeout_s: float | None) -> ProviderError:
        """Translate what broke a reply that had begun."""
        if any(isinstance(link, failures.silent) for link in chain(error)):
            return self._silent(timeout_s)
        return StreamInterruptedError(f"the connection to {self.provider!r} broke before its answer was complete")

    def _silent(self, timeout_s: float | None) -> ProviderError:
        return BackendTimeoutError(f"{self.provider!r} sent nothing for {timeout_s or 0:g} s (setting timeout_s)")


def http_url(url: str) -> str:
    """Return a base URL without a slash at its end.

    Raises ConfigError for what is no http(s) URL, or has a user, a password or parameters in it.
    """
    shown = "…"
    try:
        parts = urlsplit(url.strip())
        shown = f"{parts.scheme}://{parts.hostname or ''}…"
        has_more = parts.username or parts.password or parts.query
        # Reading a port raises ValueError if it is none.
        if parts.scheme in ("http", "https") and _is_host(parts.hostname or "") and parts.port != -1 and not has_more:
            return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    except ValueError:
        pass
    raise ConfigError(
        f"base URL {shown!r} is not usable; expected http(s)://host[:port][/v1], without user, key or parameters"
    )


def _is_host(host: str) -> bool:
    """Whether a host can be looked up. Raises ValueError (UnicodeError) for some that cannot."""
    labels = host.encode("idna").decode("ascii").removesuffix(".")
    return bool(labels) and labels.isprintable() and " " not in labels


def _checked_key(key: str, variable: str | None) -> str:
    """Return a key without the space around it, which files and shells leave there. Raises ConfigError."""
    key = key.strip()
    if key.isascii() and key.isprintable() and " " not in key:
        return key
    where = f" in ${variable}" if variable else ""
    raise ConfigError(f"the key{where} has signs in it that no key has: a space, a line break, a “; copy it once more")


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def request_id(headers: Mapping[str, str]) -> str:
    """Return the provider's name for a request, for its support; "" if it gave none."""
    return headers.get("x-request-id") or headers.get("request-id") or ""


def chain(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an exception and what caused it: SDKs wrap their transport's."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _is_cut(failures: Failures, error: BaseException) -> bool:
    links = list(chain(error))
    return not any(isinstance(link, failures.refused) for link in links) and any(
        isinstance(link, failures.cut) for link in links
    )


async def _read(
    body: AsyncIterator[bytes], decoder: Decoder, timeout_s: float | None
) -> AsyncGenerator[Sequence[Part]]:
    """Feed the body to the decoder until it wants no more; raise TimeoutError when only keep-alives come."""
    loop = asyncio.get_running_loop()
    silence_s = None if timeout_s is None else timeout_s * SILENCE_FACTOR
    events, heard_s = 0, loop.time()
    ends_s: float | None = None
    while not decoder.done:
        if ends_s is None:
            data = await anext(body, None)
        else:
            async with asyncio.timeout_at(ends_s):
                data = await anext(body, None)
        if data is None:
            return
        parts = decoder.feed(data)
        if parts:
            yield parts
        if decoder.finished and ends_s is None:
            ends_s = loop.time() + FINISH_GRACE_S
        if silence_s is not None:
            if decoder.events != events:
                events, heard_s = decoder.events, loop.time()
            elif loop.time() - heard_s > silence_s:
                raise TimeoutError("nothing but keep-alives")


async def _drain(body: AsyncIterator[bytes], failures: Exceptions) -> None:
    """Read to the end of a body that has nothing more to say: a connection with an unread rest is closed."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while await anext(body, None) is not None:
                pass
    except failures:  # TimeoutError is among them; the turn is complete either way
        pass


if TYPE_CHECKING:
    _: type[Adapter] = HttpAdapter
