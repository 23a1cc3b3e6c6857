"""A real model on this machine: `local` is a tiny one that is fetched once, `local:/path` any GGUF file.

The model runs in llama.cpp's server, a child process; requests go to it over the OpenAI wire. The invariant: a server
that died takes down the responses it was writing, with one typed error each, and is there again for the next request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ownloop.backends.base import AdapterBackend
from ownloop.backends.llama_server import LlamaServer, LlamaServerSettings, LocalServerPool, steering_template
from ownloop.backends.openai_compatible import OpenAICompatibleAdapter
from ownloop.backends.profiles import LOCAL
from ownloop.backends.weights import DEFAULT_WEIGHTS, locate_model
from ownloop.core.backend import Adapter, ModelRequest, ModelSettings, Part
from ownloop.errors import BackendUnavailableError, StreamInterruptedError

TINY_MODEL_NOTE: Final = (
    "This is a 135-million-parameter model on your CPU: fine to try things out, not for real work; it picks a tool by "
    'the words of its name. For a real one change one word: model="openai:…" or "http://localhost:8000/v1#…".'
)
"""To be shown wherever a person talks to the default model."""
TINY_MAX_TOKENS: Final = 80
"""The tiny model rambles when it has nothing to say; its good answers are one sentence."""


class LocalAdapter:
    """One GGUF file, served by a child process that starts with the first request and serves all sessions.

    `path` "" is the default model. With `servers` the process is shared with other adapters of the same model and stops
    when the pool is closed; otherwise `aclose` stops it, and a later request starts a new one.
    """

    def __init__(
        self,
        path: str = "",
        *,
        servers: LocalServerPool | None = None,
        on_progress: Callable[[str], None] | None = None,
        n_ctx: int = 8192,
        n_parallel: int = 2,
        threads: int | None = None,
    ) -> None:
        self.name = "local"
        self.provider = "local"
        self.model = Path(path).name if path else DEFAULT_WEIGHTS.title
        self.is_tiny = not path
        """Whether this is the default model, about which a person should read `TINY_MODEL_NOTE`."""
        self.on_progress = on_progress
        self._path = path
        self._sizes: dict[str, Any] = {"n_ctx": n_ctx, "n_parallel": n_parallel, "threads": threads}
        self._shared = servers
        self._own: LocalServerPool | None = None
        self._settings: LlamaServerSettings | None = None
        self._client: OpenAICompatibleAdapter | None = None

    def __repr__(self) -> str:
        return f"LocalAdapter({self._path!r})"

    async def warm_up(self) -> None:
        """Fetch and load the model now instead of with the first request.

        Raises ConfigError or BackendUnavailableError, as `locate_model` and `LlamaServer.ensure` do.
        """
        await self._server()

    async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
        """See `Adapter.start`. Raises BackendUnavailableError for a response that the dying server took down."""
        server = await self._server()
        generation = server.generation
        client = await self._client_of(server)
        try:
            async with aclosing(cast("Any", client.start(self._tuned(request)))) as batches:
                async for batch in batches:
                    yield batch
        except (StreamInterruptedError, BackendUnavailableError) as error:
            log = server.log_tail  # of the process that failed; the next line may start another one
            await server.ensure(self.on_progress)
            if server.generation == generation:
                raise
            raise BackendUnavailableError(
                "the local model server died while it was answering; it was started again, so ask once more", detail=log
            ) from error

    async def aclose(self) -> None:
        client, self._client = self._client, None
        own, self._own = self._own, None
        if client is not None:
            await client.aclose()
        if own is not None:
            await own.aclose()

    async def _server(self) -> LlamaServer:
        if self._settings is None:
            path = await locate_model(self._path, self.on_progress)
            template = steering_template() if self.is_tiny else None
            self._settings = LlamaServerSettings(path, template=template, **self._sizes)
        servers = self._shared
        if servers is None:
            servers = self._own = self._own or LocalServerPool()
        return await servers.get(self._settings, self.on_progress)

    async def _client_of(self, server: LlamaServer) -> OpenAICompatibleAdapter:
        """Return the client for the server's address, which is another one after each start."""
        old = self._client
        if old is not None and old.base_url == server.base_url:
            return old
        self._client = client = OpenAICompatibleAdapter(
            server.base_url,
            server.settings.alias,
            server.api_key,
            profile=LOCAL,
            name=self.name,
            provider=self.provider,
        )
        if old is not None:
            await old.aclose()
        return client

    def _tuned(self, request: ModelRequest) -> ModelRequest:
        settings = request.settings
        # A forced tool choice ends llama.cpp's process (an error in its grammar code).
        extra = {key: value for key, value in settings.extra.items() if key != "tool_choice"}
        if self.is_tiny:
            temperature = 0.0 if settings.temperature is None else settings.temperature
            max_tokens = settings.max_tokens or TINY_MAX_TOKENS
            settings = replace(settings, temperature=temperature, max_tokens=max_tokens)
        return replace(request, settings=replace(settings, extra=extra))


class LocalBackend(AdapterBackend):
    """One conversation with a model on this machine: `LocalBackend()` is the tiny default one.

    It owns its server: `aclose` stops it. Sessions that should share one take a `LocalAdapter`.
    """

    name = "local"

    def __init__(
        self,
        path: str = "",
        *,
        system_prompt: str = "",
        settings: ModelSettings | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(LocalAdapter(path, on_progress=on_progress), system_prompt=system_prompt, settings=settings)


if TYPE_CHECKING:
    _: type[Adapter] = LocalAdapter
