"""Talk to open models by Hugging Face's own client: its router, an Inference Endpoint, or a server of one's own.

The client sends and knows the way; it opens one HTTP request a turn over connections that all turns share. Its own
reader of the stream loses keep-alives, names and errors, so the reply's bytes are taken before it reads any of them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from ownloop.backends.base import AdapterBackend
from ownloop.backends.openai_compatible import normal_base_url
from ownloop.backends.profiles import Profile
from ownloop.backends.transport import CONNECT_S, Failures, HttpAdapter, Reply, is_loopback
from ownloop.backends.wires.chat_decoder import ChatDecoder
from ownloop.backends.wires.chat_encoder import ChatEncoder
from ownloop.backends.wires.decoder import Decoder
from ownloop.backends.wires.encoder import Encoded
from ownloop.core.backend import Adapter, ModelSettings
from ownloop.core.messages import Json
from ownloop.errors import ConfigError

ROUTER_URL: Final = "https://router.huggingface.co/v1"

_reply: ContextVar[list[Any]] = ContextVar("_reply")
"""Where the reply of the running turn goes."""


@dataclass(frozen=True, slots=True)
class _Hub:
    client: Any
    """A kind of AsyncInferenceClient."""
    httpx2: Any
    failures: Failures


@cache
def _load() -> _Hub:
    # Without it the first request would fetch a list of programs from the Hub, and stop the event loop meanwhile.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        httpx2, hub, errors = (import_module(name) for name in ("httpx2", "huggingface_hub", "huggingface_hub.errors"))
    except ImportError as error:
        raise ConfigError(f"this model needs the package {error.name!r}: pip install 'ownloop[huggingface]'") from error

    class SharedConnections(hub.AsyncInferenceClient):
        """The one place where it makes its HTTP client; otherwise it would open new connections for every turn.

        And the one where it sends: it rewrites models' names and response formats for a server of its vendor's.
        """

        http: Any
        body: Json

        async def _get_async_client(self) -> Any:
            return self.http

        async def _inner_post(self, request_parameters: Any, *, stream: bool = False) -> Any:
            parent: Any = super()
            return await parent._inner_post(replace(request_parameters, json=self.body), stream=stream)

    return _Hub(
        SharedConnections,
        httpx2,
        Failures(
            any=(httpx2.HTTPError, errors.InferenceTimeoutError, OSError),
            status=(httpx2.HTTPStatusError,),
            connect_timeout=(httpx2.ConnectTimeout,),
            silent=(TimeoutError, httpx2.ReadTimeout),
            refused=(httpx2.ConnectError,),
            cut=(httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError),
        ),
    )


async def _keep_reply(response: Any) -> None:
    if not response.is_success:
        # Raised here, for the client takes a redirect for an answer, and fails itself of what it cannot read.
        await response.aread()
        response.raise_for_status()
    _reply.get().append(response)


class HuggingFaceAdapter(HttpAdapter):
    """See `HttpAdapter`. Without `base_url` the model is one of the Hub, and the router finds who runs it.

    `bill_to` is the organisation that pays. A provider is named behind the model: "Qwen/Qwen3-8B:groq".
    """

    NAME = "qwen-hf"
    ENCODER = ChatEncoder

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        *,
        base_url: str = ROUTER_URL,
        bill_to: str | None = None,
        profile: Profile | None = None,
        name: str | None = None,
        provider: str | None = None,
        key_variable: str | None = None,
    ) -> None:
        super().__init__(
            base_url,
            model,
            api_key,
            profile=profile,
            name=name,
            provider=provider,
            key_variable=key_variable,
        )
        self._bill_to = bill_to

    def _normal_url(self, url: str) -> str:
        return normal_base_url(url)

    def _decoder(self, encoded: Encoded) -> Decoder:
        return ChatDecoder(
            encoded.names, provider=self.provider, think_tags=self.profile.think_tags, secrets=self._secrets
        )

    def _failures(self) -> Failures:
        return _load().failures

    async def _post(self, stack: AsyncExitStack, body: Json, timeout_s: float | None) -> Reply:
        hub = _load()
        # What it streams stays open until it is closed, so each turn has its own.
        client = hub.client(
            base_url=self.base_url,
            # With nothing here it would look for a token of the Hub, and send it to any server.
            api_key=self._secrets[0] if self._secrets else "none",
            timeout=hub.httpx2.Timeout(timeout_s, connect=CONNECT_S),
            bill_to=self._bill_to,
        )
        client.http = self._opened_client()
        stack.push_async_callback(client.close)
        client.body = {"model": self.model, "stream": True, **body}
        replies: list[Any] = []
        token = _reply.set(replies)
        try:
            await client.chat_completion(body["messages"], model=self.model, stream=True)
        finally:
            _reply.reset(token)
        (response,) = replies
        return Reply(response.headers, cast("AsyncGenerator[bytes]", response.aiter_bytes()))

    def _open_client(self) -> Any:
        httpx2 = _load().httpx2
        return httpx2.AsyncClient(
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None if self.profile.pooled else 0),
            event_hooks={"request": [self._drop_no_key], "response": [_keep_reply]},
            trust_env=not is_loopback(self.base_url),
            timeout=None,
        )

    async def _close_client(self, client: Any) -> None:
        await client.aclose()

    async def _drop_no_key(self, request: Any) -> None:
        if not self._secrets:
            request.headers.pop("authorization", None)


class QwenHFBackend(AdapterBackend):
    """One conversation with a model on Hugging Face.

    ```python
    backend = QwenHFBackend("Qwen/Qwen3-8B", os.environ["HF_TOKEN"], system_prompt="Be brief.")
    ```
    """

    name = "qwen-hf"

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        *,
        base_url: str = ROUTER_URL,
        bill_to: str | None = None,
        system_prompt: str = "",
        settings: ModelSettings | None = None,
        profile: Profile | None = None,
    ) -> None:
        adapter = HuggingFaceAdapter(model, api_key, base_url=base_url, bill_to=bill_to, profile=profile)
        super().__init__(adapter, system_prompt=system_prompt, settings=settings)


if TYPE_CHECKING:
    _: type[Adapter] = HuggingFaceAdapter
