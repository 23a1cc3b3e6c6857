"""The openai and anthropic SDKs, which are made by one generator: clients, failures, and what they must not send.

Measured: their aiohttp transport costs half of their default one; with it a connection that llama.cpp closed after a
streamed reply is noticed too late, which is why `Profile.pooled` exists.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Final, cast
from urllib.parse import urlsplit

from ownloop.backends.profiles import Profile
from ownloop.backends.transport import CONNECT_S, Failures, HttpAdapter, Reply, is_loopback
from ownloop.core.messages import Json
from ownloop.errors import ConfigError

MAX_CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Sdk:
    """An SDK's modules, and its failures."""

    vendor: Any
    httpx2: Any
    failures: Failures


@cache
def load_sdk(package: str) -> Sdk:
    """Import a vendor's SDK (half a second the first time). Raises ConfigError that names the extra."""
    try:
        aiohttp, httpx2, vendor = (import_module(name) for name in ("aiohttp", "httpx2", package))
    except ImportError as error:
        raise ConfigError(f"this model needs the package {error.name!r}: pip install 'ownloop[{package}]'") from error
    base = getattr(vendor, "OpenAIError", None) or vendor.AnthropicError
    return Sdk(
        vendor,
        httpx2,
        Failures(
            any=(base, httpx2.HTTPError, aiohttp.ClientError, OSError),
            status=(vendor.APIStatusError,),
            # The aiohttp bridge calls every lost connection a timeout, so aiohttp's own word counts.
            connect_timeout=(aiohttp.ConnectionTimeoutError,),
            silent=(TimeoutError, httpx2.ReadTimeout),
            refused=(aiohttp.ClientConnectorError,),
            cut=(aiohttp.ServerDisconnectedError, aiohttp.ClientOSError),
        ),
    )


class SdkAdapter(HttpAdapter):
    """See `HttpAdapter`."""

    PACKAGE: ClassVar[str]
    HOST: ClassVar[str]
    """The vendor's own: the only one that is told what the environment holds for the vendor beside the key."""
    KEY_HEADERS: ClassVar[tuple[str, ...]] = ("Authorization",)
    OWN_HEADERS: ClassVar[tuple[str, ...]] = ()
    """What the SDK fills from the environment."""
    HEADERS_VARIABLE: ClassVar[str]
    """The variable from which the SDK takes further headers."""

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
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        super().__init__(
            base_url, model, api_key, profile=profile, name=name, provider=provider, key_variable=key_variable
        )
        self._max_connections = max_connections

    @abstractmethod
    def _new_client(self, sdk: Sdk, **options: Any) -> Any:
        """Open the SDK's client with these options and the vendor's own."""

    @abstractmethod
    def _request(self, client: Any, **options: Any) -> Any:
        """Return the SDK's context manager of one streamed reply."""

    def _failures(self) -> Failures:
        return load_sdk(self.PACKAGE).failures

    async def _post(self, stack: AsyncExitStack, body: Json, timeout_s: float | None) -> Reply:
        sdk = load_sdk(self.PACKAGE)
        response = await stack.enter_async_context(
            self._request(
                self._opened_client(),
                model=self.model,
                stream=True,
                # The SDKs walk through typed messages and tools at each call, but not through extra_body.
                extra_body=body,
                extra_headers=dict(self._kept_back(sdk.vendor.Omit())),
                timeout=sdk.httpx2.Timeout(timeout_s, connect=CONNECT_S),
            )
        )
        return Reply(response.headers, cast("AsyncGenerator[bytes]", response.iter_bytes()))

    def _open_client(self) -> Any:
        sdk = load_sdk(self.PACKAGE)
        limits = (
            sdk.httpx2.Limits(max_connections=self._max_connections)
            if self.profile.pooled
            else sdk.httpx2.Limits(max_connections=self._max_connections, keepalive_expiry=0)
        )
        return self._new_client(
            sdk,
            # "none" is not sent, see `_kept_back`; with nothing at all the SDKs look in the environment.
            api_key=self._secrets[0] if self._secrets else "none",
            base_url=self.base_url,
            max_retries=0,
            # A proxy from the environment cannot reach this machine's own loopback.
            http_client=sdk.vendor.DefaultAioHttpClient(
                limits=limits, trust_env=not is_loopback(self.base_url), follow_redirects=False
            ),
            # Said again, since an Authorization among the environment's own headers would win over the key.
            default_headers=self._key_headers(),
        )

    async def _close_client(self, client: Any) -> None:
        await client.close()

    def _key_headers(self) -> dict[str, str] | None:
        return {"Authorization": f"Bearer {self._secrets[0]}"} if self._secrets else None

    def _kept_back(self, omit: Any) -> Iterator[tuple[str, Any]]:
        """Name the headers that are not sent: the SDK would tell any host what the environment holds for its vendor."""
        if not self._secrets:
            yield from ((header, omit) for header in self.KEY_HEADERS)
        if urlsplit(self.base_url).hostname != self.HOST:
            yield from ((header, omit) for header in self.OWN_HEADERS)
            for line in os.environ.get(self.HEADERS_VARIABLE, "").split("\n"):
                header, colon, _ = line.partition(":")
                if colon and header.strip().lower() != "authorization":  # ours is said over it, or kept back above
                    yield header.strip(), omit
