"""Talk to Claude, or to another server of the Anthropic Messages API (vLLM, llama.cpp, gateways)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ownloop.backends.base import AdapterBackend
from ownloop.backends.profiles import Profile, messages_profile_for
from ownloop.backends.sdk import MAX_CONNECTIONS, Sdk, SdkAdapter
from ownloop.backends.transport import http_url
from ownloop.backends.wires.decoder import Decoder
from ownloop.backends.wires.encoder import Encoded
from ownloop.backends.wires.messages_decoder import MessagesDecoder
from ownloop.backends.wires.messages_encoder import MessagesEncoder
from ownloop.core.backend import Adapter, ModelSettings

ANTHROPIC_URL: Final = "https://api.anthropic.com"


class ClaudeAdapter(SdkAdapter):
    """See `HttpAdapter`."""

    NAME = "claude"
    WIRE = "/messages"
    ENCODER = MessagesEncoder
    PACKAGE = "anthropic"
    HOST = "api.anthropic.com"
    KEY_HEADERS = ("Authorization", "X-Api-Key")
    HEADERS_VARIABLE = "ANTHROPIC_CUSTOM_HEADERS"

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        *,
        base_url: str = ANTHROPIC_URL,
        profile: Profile | None = None,
        name: str | None = None,
        provider: str | None = None,
        key_variable: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        super().__init__(
            base_url,
            model,
            api_key,
            profile=profile,
            name=name,
            provider=provider,
            key_variable=key_variable,
            max_connections=max_connections,
        )

    def _normal_url(self, url: str) -> str:
        return http_url(url).removesuffix("/messages").removesuffix("/v1")

    def _usual_profile(self) -> Profile:
        return messages_profile_for(self.base_url)

    def _decoder(self, encoded: Encoded) -> Decoder:
        return MessagesDecoder(encoded.names, provider=self.provider, secrets=self._secrets)

    def _new_client(self, sdk: Sdk, **options: Any) -> Any:
        return sdk.vendor.AsyncAnthropic(**options)

    def _request(self, client: Any, **options: Any) -> Any:
        # What the signature wants is replaced by the body.
        return client.messages.with_streaming_response.create(messages=[], max_tokens=1, **options)


class ClaudeBackend(AdapterBackend):
    """One conversation with Claude.

    ```python
    backend = ClaudeBackend("claude-sonnet-5", os.environ["ANTHROPIC_API_KEY"], system_prompt="Be brief.")
    ```
    """

    name = "claude"

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        *,
        base_url: str = ANTHROPIC_URL,
        system_prompt: str = "",
        settings: ModelSettings | None = None,
        profile: Profile | None = None,
    ) -> None:
        adapter = ClaudeAdapter(model, api_key, base_url=base_url, profile=profile)
        super().__init__(adapter, system_prompt=system_prompt, settings=settings)


if TYPE_CHECKING:
    _: type[Adapter] = ClaudeAdapter
