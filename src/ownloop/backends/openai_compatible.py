"""Talk to any server of the OpenAI chat-completions wire: OpenAI, vLLM, SGLang, llama.cpp, Ollama, OpenRouter …

The openai SDK does transport and auth; the bytes, their meaning and every retry are ours. The invariants: a key goes to
the base URL it was given for and nowhere else, and leaving a response in any way closes its socket.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

from ownloop.backends.base import AdapterBackend
from ownloop.backends.profiles import Profile, profile_for
from ownloop.backends.wires.chat_decoder import ChatDecoder
from ownloop.backends.wires.chat_encoder import ChatEncoder
from ownloop.backends.wires.provider_errors import provider_error, redact
from ownloop.core.backend import Adapter, ModelRequest, ModelSettings, Part
from ownloop.core.messages import Json
from ownloop.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConfigError,
    ProviderError,
    StreamInterruptedError,
)

if TYPE_CHECKING:
    import httpx2
    import openai

CONNECT_S: Final = 10.0
"""A host that answers no connection for so long is down; waiting for the answer is what `timeout_s` is for."""
FINISH_GRACE_S: Final = 5.0
"""After the finish reason only usage may come; a server that then keeps the stream open does not hold up the turn."""
DRAIN_S: Final = 0.05
"""After `[DONE]`, how long the end of the body may take, so that the connection can be used again."""
SILENCE_FACTOR: Final = 3
"""Keep-alive comments reset `timeout_s`, but a stream of nothing else ends after this many times it."""


@dataclass(frozen=True, slots=True)
class _Sdk:
    """The SDK's modules, and every exception that its raw path lets out."""

    openai: Any
    httpx2: Any
    aiohttp: Any
    failures: tuple[type[Exception], ...]


def load_sdk() -> _Sdk:
    """Import the openai SDK (half a second the first time). Raises ConfigError that names the extra."""
    try:
        import aiohttp
        import httpx2
        import openai
    except ImportError as error:
        raise ConfigError(
            f"OpenAI-compatible models need the package {error.name!r}: pip install 'ownloop[openai]'"
        ) from error
    return _Sdk(openai, httpx2, aiohttp, (openai.OpenAIError, httpx2.HTTPError, aiohttp.ClientError, OSError))


def normal_base_url(url: str) -> str:
    """Return the URL that the SDK adds `/chat/completions` to; `/v1` is added to a bare host.

    Raises ConfigError for what is no http(s) URL, or has a user or password in it.
    """
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        shown = f"{parts.scheme}://{parts.hostname or ''}…"
        raise ConfigError(f"base URL {shown!r} is not usable; expected http(s)://host[:port][/v1], without user or key")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


class OpenAICompatibleAdapter:
    """One model behind one base URL; stateless, so sessions share it.

    The client belongs to the event loop that first uses it; after `aclose` the next use, in any loop, opens a new one.
    Without `api_key` no Authorization header is sent, whatever the environment holds.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        profile: Profile | None = None,
        name: str = "openai-compatible",
        provider: str | None = None,
        key_variable: str | None = None,
        max_connections: int = 1000,
    ) -> None:
        self.base_url = normal_base_url(base_url)
        self.name = name
        self.provider = provider or urlsplit(self.base_url).netloc
        self.model = model
        self.profile = profile or profile_for(self.base_url)
        self._key_hint = f"the key is read from ${key_variable}" if key_variable else ""
        self._secrets = (api_key,) if api_key else ()
        self._max_connections = max_connections
        self._encoder = ChatEncoder(self.provider, model, self.profile)
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_answered = False
        """Whether the client may hold an idle connection that the server has closed in the meantime."""

    def __repr__(self) -> str:
        return f"OpenAICompatibleAdapter({self.base_url!r}, {self.model!r})"

    async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
        """See `Adapter.start`. One batch for each network read that gave parts."""
        sdk = load_sdk()
        encoded = self._encoder.encode(request)
        decoder = ChatDecoder(
            encoded.names,
            provider=self.provider,
            think_tags=self.profile.think_tags,
            secrets=self._secrets,
        )
        timeout_s = request.settings.timeout_s
        cause: Exception | None = None
        async with AsyncExitStack() as stack:
            response = await self._send(sdk, stack, encoded.body, timeout_s)
            decoder.request_id = redact(response.headers.get("x-request-id", ""), self._secrets) or None
            body = cast("AsyncGenerator[bytes]", response.iter_bytes())
            await stack.enter_async_context(aclosing(body))
            batches = await stack.enter_async_context(aclosing(_read(body, decoder, timeout_s)))
            try:
                async for parts in batches:
                    yield parts
            except sdk.failures as error:
                cause = error
                decoder.lose(self._broken(sdk, error, timeout_s))
            parts = decoder.close()
            if parts:
                yield parts
            if decoder.error is not None:
                raise decoder.error from cause or decoder.error.__cause__
            if self.profile.pooled:
                await _drain(body, sdk.failures)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        self._has_answered = False
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _open_client(self, sdk: _Sdk) -> openai.AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            limits = (
                sdk.httpx2.Limits(max_connections=self._max_connections)
                if self.profile.pooled
                else sdk.httpx2.Limits(max_connections=self._max_connections, keepalive_expiry=0)
            )
            # A proxy from the environment cannot reach this machine's own loopback.
            http_client: httpx2.AsyncClient = sdk.openai.DefaultAioHttpClient(
                limits=limits, trust_env=not is_loopback(self.base_url)
            )
            self._client = sdk.openai.AsyncOpenAI(
                api_key=self._secrets[0] if self._secrets else "none",
                base_url=self.base_url,
                max_retries=0,
                http_client=http_client,
                # Said again, since an Authorization among the environment's own headers would win over the key.
                default_headers={"Authorization": f"Bearer {self._secrets[0]}"} if self._secrets else None,
            )
            self._loop = loop
            self._has_answered = False
        return cast("openai.AsyncOpenAI", self._client)

    def _kept_back(self, omit: Any) -> Iterator[tuple[str, Any]]:
        """Name the headers that are not sent: the SDK would tell any host what the environment holds for OpenAI."""
        if not self._secrets:
            yield "Authorization", omit
        if urlsplit(self.base_url).hostname != "api.openai.com":
            yield "OpenAI-Organization", omit
            yield "OpenAI-Project", omit
            for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n"):
                header, colon, _ = line.partition(":")
                if colon and header.strip().lower() != "authorization":
                    yield header.strip(), omit

    async def _send(self, sdk: _Sdk, stack: AsyncExitStack, body: Json, timeout_s: float | None) -> Any:
        """Send the request and return the SDK's response with its headers read.

        A pooled connection may have been closed by the server while it was idle; nothing of a reply has arrived then,
        and the request is repeated once, at once, on a fresh connection.
        """
        timeout = sdk.httpx2.Timeout(timeout_s, connect=CONNECT_S)
        for may_repeat in (self.profile.pooled, False):
            client = self._open_client(sdk)
            may_repeat = may_repeat and self._has_answered
            try:
                response = await stack.enter_async_context(
                    client.chat.completions.with_streaming_response.create(
                        # The SDK walks through typed messages and tools at each call, but not through extra_body.
                        model=self.model,
                        messages=[],
                        stream=True,
                        extra_body=body,
                        extra_headers=dict(self._kept_back(sdk.openai.Omit())),
                        timeout=timeout,
                    )
                )
            except sdk.failures as error:
                if may_repeat and self._is_cut(sdk, error):
                    continue
                raise self._refused(sdk, error, timeout_s) from error
            self._has_answered = True
            return response
        raise AssertionError  # the second round cannot repeat

    def _is_cut(self, sdk: _Sdk, error: Exception) -> bool:
        cut = (sdk.aiohttp.ServerDisconnectedError, sdk.aiohttp.ClientOSError)
        return any(
            isinstance(link, cut) and not isinstance(link, sdk.aiohttp.ClientConnectorError) for link in _chain(error)
        )

    def _refused(self, sdk: _Sdk, error: Exception, timeout_s: float | None) -> ProviderError:
        """Translate what happened before the reply began."""
        if isinstance(error, sdk.openai.APIStatusError):
            response = cast("Any", error).response
            return provider_error(
                self.provider,
                response.text,
                status=response.status_code,
                headers=response.headers,
                secrets=self._secrets,
                key_hint=self._key_hint,
            )
        # The SDK's aiohttp bridge calls every lost connection a timeout, so the links of the chain are asked.
        links = list(_chain(error))
        if any(isinstance(link, sdk.aiohttp.ConnectionTimeoutError) for link in links):
            return BackendUnavailableError(f"{self.base_url} did not accept a connection within {CONNECT_S:g} s")
        if any(isinstance(link, TimeoutError | sdk.httpx2.ReadTimeout) for link in links):
            return self._silent(timeout_s)
        root = type(links[-1]).__name__
        if self._is_cut(sdk, error):
            return BackendUnavailableError(f"{self.base_url} closed the connection before it answered ({root})")
        return BackendUnavailableError(f"cannot reach {self.base_url} ({root}): is the server running?")

    def _broken(self, sdk: _Sdk, error: Exception, timeout_s: float | None) -> ProviderError:
        """Translate what broke a reply that had begun."""
        if any(isinstance(link, TimeoutError | sdk.httpx2.ReadTimeout) for link in _chain(error)):
            return self._silent(timeout_s)
        return StreamInterruptedError(f"the connection to {self.provider!r} broke before its answer was complete")

    def _silent(self, timeout_s: float | None) -> ProviderError:
        return BackendTimeoutError(f"{self.provider!r} sent nothing for {timeout_s or 0:g} s (setting timeout_s)")


class OpenAICompatibleBackend(AdapterBackend):
    """One conversation with a model on an OpenAI-compatible server.

    ```python
    backend = OpenAICompatibleBackend("http://localhost:8000/v1", "Qwen/Qwen3-8B", system_prompt="Be brief.")
    ```
    """

    name = "openai-compatible"

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        system_prompt: str = "",
        settings: ModelSettings | None = None,
        profile: Profile | None = None,
    ) -> None:
        adapter = OpenAICompatibleAdapter(base_url, model, api_key, profile=profile, name=type(self).name)
        super().__init__(adapter, system_prompt=system_prompt, settings=settings)


class LiveQwenBackend(OpenAICompatibleBackend):
    """A Qwen model on a server of one's own (vLLM, SGLang)."""

    name = "qwen-live"


async def _read(
    body: AsyncIterator[bytes], decoder: ChatDecoder, timeout_s: float | None
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


async def _drain(body: AsyncIterator[bytes], failures: tuple[type[Exception], ...]) -> None:
    """Read to the end of a body that has nothing more to say: a connection with an unread rest is closed."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while await anext(body, None) is not None:
                pass
    except failures:  # TimeoutError is among them; the turn is complete either way
        pass


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


if TYPE_CHECKING:
    _: type[Adapter] = OpenAICompatibleAdapter
