"""Talk to OpenAI, or another server, over the Responses API. The history stays ours: nothing is stored there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ownloop.backends.base import AdapterBackend
from ownloop.backends.openai_compatible import OPENAI_URL, OpenAISdkAdapter
from ownloop.backends.profiles import Profile
from ownloop.backends.wires.decoder import Decoder
from ownloop.backends.wires.encoder import Encoded
from ownloop.backends.wires.responses_decoder import ResponsesDecoder
from ownloop.backends.wires.responses_encoder import ResponsesEncoder
from ownloop.core.backend import Adapter, ModelSettings


class OpenAIResponsesAdapter(OpenAISdkAdapter):
    """See `HttpAdapter`."""

    NAME = "openai-responses"
    WIRE = "/responses"
    ENCODER = ResponsesEncoder

    def _decoder(self, encoded: Encoded) -> Decoder:
        return ResponsesDecoder(
            encoded.names,
            provider=self.provider,
            think_tags=self.profile.think_tags,
            max_tokens=None if self.profile.says_when_cut else encoded.body.get("max_output_tokens"),
            secrets=self._secrets,
        )

    def _request(self, client: Any, **options: Any) -> Any:
        return client.responses.with_streaming_response.create(input=[], **options)


class OpenAIResponsesBackend(AdapterBackend):
    """One conversation with a model over the Responses API.

    ```python
    backend = OpenAIResponsesBackend("gpt-5", os.environ["OPENAI_API_KEY"], system_prompt="Be brief.")
    ```
    """

    name = "openai-responses"

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        *,
        base_url: str = OPENAI_URL,
        system_prompt: str = "",
        settings: ModelSettings | None = None,
        profile: Profile | None = None,
    ) -> None:
        adapter = OpenAIResponsesAdapter(base_url, model, api_key, profile=profile)
        super().__init__(adapter, system_prompt=system_prompt, settings=settings)


if TYPE_CHECKING:
    _: type[Adapter] = OpenAIResponsesAdapter
