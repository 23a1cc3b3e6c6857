"""What a loop needs from any LLM: the three-method `Backend` that users write, and the streaming `Adapter` inside ours.

A `Backend` owns one conversation and is therefore never shared between sessions. An `Adapter` is stateless: it is
handed the whole conversation each time, so a session may change its provider in mid-conversation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from ownloop.core.messages import Json, Message
from ownloop.core.toolspec import ToolSpec
from ownloop.core.usage import Usage

StopReason: TypeAlias = Literal["end_turn", "tool_use", "max_tokens", "other"]


@dataclass
class ToolCall:
    """One tool call that the model asks for."""

    id: str
    """Pairs the call with its later `add_tool_result`."""
    name: str
    input: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class AgentTurn:
    """The model's half of one turn, the same for every provider."""

    text_blocks: list[str] = field(default_factory=list[str])
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    stop_reason: StopReason = "end_turn"
    """`end_turn` ends the run unless there are calls; `other` without calls goes on to the limit of turns."""


class Backend(ABC):
    """Any LLM, in three methods. Pass the class or a factory, never a shared instance.

    The caller alternates: `add_user_message`, `next_turn`, one `add_tool_result` for each call of that turn, in order,
    `next_turn` … Nothing streams. A subclass may also define `load(history: Sequence[Message]) -> None`, called once on
    a fresh instance: that makes its sessions restorable after a restart. Without it a new instance is given the
    conversation so far as a transcript in its first user message.
    """

    name: ClassVar[str] | str = "backend"
    """Shown in /healthz and logs: "claude", "qwen-hf", "local" …"""

    @abstractmethod
    def add_user_message(self, content: str) -> None:
        """Append what the user said."""

    @abstractmethod
    async def next_turn(self, tool_schemas: list[dict[str, Any]]) -> AgentTurn:
        """Ask the model once and remember its answer.

        `tool_schemas` holds `{"name", "description", "input_schema"}` for each tool. Cancelling the awaiting task must
        close the request. Any exception fails the turn.
        """

    @abstractmethod
    def add_tool_result(self, tool_call_id: str, name: str, content: str, is_error: bool) -> None:
        """Append the result of one call of the last turn."""


PartType: TypeAlias = Literal["text", "thinking", "tool_call", "provider"]


@dataclass(frozen=True, slots=True)
class PartStart:
    """A content block begins. Indices are the adapter's own: unique in the response, ascending as blocks appear."""

    index: int
    type: PartType
    name: str | None = None
    """The tool's name, complete."""
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class PartDelta:
    """More of an open block: text, thinking, or the JSON text of a call's arguments. Blocks may interleave."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class PartEnd:
    """A block is complete.

    `problem` marks a call that must not run; `raw` is the provider's block where it cannot be derived from the neutral
    one.
    """

    index: int
    raw: Json | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class UsageSeen:
    """The counts of this response so far; a later one replaces an earlier one."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Finish:
    """The response is complete: the provider said so. Exactly one, last.

    An adapter that reaches the end of its stream without the provider's word raises `StreamInterruptedError` instead.
    """

    stop_reason: StopReason
    raw_stop: str | None = None
    request_id: str | None = None


Part: TypeAlias = PartStart | PartDelta | PartEnd | UsageSeen | Finish


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What may be tuned per call; None leaves it to the provider."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    timeout_s: float | None = 600.0
    """Longest silence of the provider."""
    extra: Json = field(default_factory=dict[str, Any])
    """Further fields of the provider's own request body."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    settings: ModelSettings
    session_id: str = ""
    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """The bytes of every blob block in `messages`, by digest."""


class Adapter(Protocol):
    """One model on one provider, stateless and streaming.

    `start` yields the parts of one response in batches, one batch for what one network read gave, and ends after
    `Finish`. It raises `ProviderError`s only, and never retries. Closing the iterator, or cancelling the task that
    reads it, closes the provider's socket.
    """

    name: str
    """The backend's label: "claude", "local" …"""
    provider: str
    """Company or host; with `model` the tag of provider blocks that may be replayed to it."""
    model: str

    def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]: ...

    async def aclose(self) -> None: ...
