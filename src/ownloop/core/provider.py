"""The provider contract of `AgentLoop`: a model as a stream of events, and the shapes that go with it. For users.

Only what stands here passes between a loop and a provider. The shapes are those of the contract that AgentLoop was made
for; the fields it did not have are marked optional, and a provider that has never heard of them works without.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ownloop.core.backend import ToolCall
from ownloop.core.messages import Json

__all__ = ["ContentBlock", "ModelResponse", "Provider", "ProviderMessage", "StreamEvent", "ToolCall", "ToolSchema"]


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model is told about it."""

    name: str
    description: str
    input_schema: Json
    """JSON Schema of an object."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a response. Events of other types, and deltas of blocks that never started, are ignored.

    | type                | fields                                                                     |
    |---------------------|----------------------------------------------------------------------------|
    | content_block_start | index, block_type; of a tool_use block also tool_name and tool_id           |
    | content_block_delta | index, delta_type, text                                                    |
    | content_block_stop  | index; optional: raw, problem                                              |
    | usage               | usage                                                                      |
    | message_stop        | optional: stop_reason                                                      |

    Blocks may interleave. A stream that ends without `message_stop` has broken off.
    """

    type: str
    index: int = 0
    """Tells the open blocks of a response apart."""
    block_type: str = ""
    """text, tool_use; blocks of another type are not shown, and kept only if they end with `raw`."""
    delta_type: str = ""
    """text_delta of a text block, input_json_delta of a tool_use block, thinking_delta of a thinking block."""
    text: str = ""
    tool_name: str = ""
    tool_id: str = ""
    """The provider's own id; "" means that it has none, and the loop mints one."""
    usage: dict[str, int] = field(default_factory=dict[str, int])
    """Counts of this response so far (`input_tokens`, `output_tokens`, …): a later one replaces an earlier one."""
    raw: Json | None = None
    """Optional: the provider's own form of the block; comes back in `ContentBlock.raw`."""
    problem: str | None = None
    """Optional: why this call must not run; the model is told."""
    stop_reason: str | None = None
    """Optional: end_turn, tool_use, max_tokens, other, or a refusal (refusal, content_filter): then no call runs."""


@dataclass(frozen=True, slots=True)
class ContentBlock:
    """A finished block of a response."""

    type: str
    """text, tool_use, or the `block_type` that the provider gave."""
    text: str = ""
    tool_call: ToolCall | None = None
    arguments: str | None = None
    """Optional: the streamed arguments, verbatim, where they are not just `tool_call.input` as compact JSON."""
    problem: str | None = None
    """Optional: why this call never runs (cut, not JSON, withheld); its input is then `{}`."""
    provider_id: str | None = None
    """Optional: the `tool_id` that came with the call; `tool_call.id` is another one if that was "", or came twice."""
    raw: Json | None = None
    """Optional: what the provider gave with `content_block_stop`."""


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """A finished response."""

    content: list[ContentBlock]
    stop_reason: str
    """tool_use if it holds calls, else end_turn, max_tokens or other."""
    usage: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class ProviderMessage:
    """One message of a conversation, in the provider's own form."""

    role: str
    """user, assistant, tool_result."""
    content: Any
    """What the provider's format_* methods made; of a tool_result, the list of their results in call order."""
    provider: str | None = None
    """Optional: who wrote it; with `model` it says whether `raw` blocks may be sent back."""
    model: str | None = None


class Provider(Protocol):
    """A model for `AgentLoop`.

    Stateless: the loop keeps the conversation and hands over all of it each time. The messages are the provider's own,
    as its format_* methods made them; the loop adds only `ProviderMessage("tool_result", [results in call order])`.

    `stream_message` may also take `max_tokens`, and `format_tool_result` `is_error`: both are passed by name, and only
    to a method whose signature has them.
    """

    def stream_message(
        self, model: str, system: str | None, messages: list[Any], tools: Sequence[Any]
    ) -> AsyncIterator[StreamEvent]:
        """Ask the model once. Called with keywords. Yields events in order of arrival and ends after `message_stop`.

        Cancelling the reading task must close the request. Whatever it raises fails the run.
        """
        ...

    def format_user_message(self, content: Any, /) -> Any:
        """Return what a person said as a message: a string, or a list of content blocks."""
        ...

    def format_assistant_message(self, response: ModelResponse, /) -> Any:
        """Return a response as a message. Each of its calls, also one with a `problem`, gets a result afterwards."""
        ...

    def format_tool_result(self, tool_use_id: str, content: list[Json], /) -> Any:
        """Return the result of one call: a list of content blocks such as `{"type": "text", "text": …}`."""
        ...
