"""Talk to any server of the OpenAI chat-completions wire: OpenAI, vLLM, SGLang, llama.cpp, Ollama, OpenRouter …"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ownloop.backends.base import AdapterBackend
from ownloop.backends.profiles import Profile
from ownloop.backends.sdk import Sdk, SdkAdapter
from ownloop.backends.transport import http_url
from ownloop.backends.wires.chat_decoder import ChatDecoder
from ownloop.backends.wires.chat_encoder import ChatEncoder
from ownloop.backends.wires.decoder import Decoder
from ownloop.backends.wires.encoder import Encoded
from ownloop.core.backend import Adapter, ModelSettings

OPENAI_URL: Final = "https://api.openai.com/v1"


def normal_base_url(url: str) -> str:
    """Return the URL that the SDK adds `/chat/completions` to; `/v1` is added to a bare host.

    Raises ConfigError for what is no http(s) URL, or has a user or password in it.
    """
    base = http_url(url).removesuffix("/chat/completions").removesuffix("/responses")
    return base if base.count("/") > 2 else f"{base}/v1"


class OpenAISdkAdapter(SdkAdapter):
    """What the wires of the openai SDK share."""

    PACKAGE = "openai"
    HOST = "api.openai.com"
    OWN_HEADERS = ("OpenAI-Organization", "OpenAI-Project")
    HEADERS_VARIABLE = "OPENAI_CUSTOM_HEADERS"

    def _normal_url(self, url: str) -> str:
        return normal_base_url(url)

    def _new_client(self, sdk: Sdk, **options: Any) -> Any:
        return sdk.vendor.AsyncOpenAI(**options)


class OpenAICompatibleAdapter(OpenAISdkAdapter):
    """See `HttpAdapter`."""

    NAME = "openai-compatible"
    ENCODER = ChatEncoder

    def _decoder(self, encoded: Encoded) -> Decoder:
        return ChatDecoder(
            encoded.names, provider=self.provider, think_tags=self.profile.think_tags, secrets=self._secrets
        )

    def _request(self, client: Any, **options: Any) -> Any:
        return client.chat.completions.with_streaming_response.create(messages=[], **options)


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


if TYPE_CHECKING:
    _: type[Adapter] = OpenAICompatibleAdapter
