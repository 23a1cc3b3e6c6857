"""Messages and content blocks: the neutral form of a conversation.

All values are frozen; a conversation grows by new messages, never by changed ones, so that an adapter may memoise
what it made of a message by the message's identity. Dicts inside are JSON and are treated as immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TextBlock:
    text: str
    raw: Json | None = None
    """The provider's block verbatim, only where it holds more than the text (citations, for one)."""
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    text: str
    raw: Json | None = None
    """Verbatim block with its signature; replayed only to the provider and model that made it. Redacted: text is ''."""
    type: Literal["thinking"] = "thinking"


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    call_id: str
    """Ours: minted when the block starts, unique in the session."""
    name: str
    input: Json
    provider_id: str | None = None
    """The provider's own id, as received; None where it sent none."""
    arguments: str | None = None
    """The streamed text, verbatim, when it differs from the canonical dump of `input`."""
    problem: str | None = None
    """Why this call must never run (cut by the output limit, not JSON, withheld); `input` is then `{}`."""
    raw: Json | None = None
    type: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True, slots=True)
class BlobBlock:
    """An image or document; its bytes lie in the content-addressed blob table."""

    digest: str
    media_type: str
    bytes: int
    type: Literal["blob"] = "blob"


@dataclass(frozen=True, slots=True)
class ToolResultBlock:
    call_id: str
    name: str
    content: tuple[TextBlock | BlobBlock, ...]
    is_error: bool = False
    type: Literal["tool_result"] = "tool_result"


@dataclass(frozen=True, slots=True)
class ProviderBlock:
    """A block only its provider understands (a server-side tool and its result): kept and replayed verbatim."""

    raw: Json
    type: Literal["provider"] = "provider"


ResultContent: TypeAlias = TextBlock | BlobBlock
"""What a tool's result, and a person's message, may consist of."""
Block: TypeAlias = TextBlock | ThinkingBlock | ToolCallBlock | ToolResultBlock | BlobBlock | ProviderBlock
Role: TypeAlias = Literal["user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    """`tool` messages hold the tool_result blocks of one turn, in call order."""
    blocks: tuple[Block, ...]
    seq: int = 0
    """The fact that brought it into the history; 0 outside a journal."""
    provider: str | None = None
    model: str | None = None
    ids: tuple[str, ...] = field(default=())
    """The inputs a user message was made of."""


def text_of(blocks: Sequence[Block]) -> str:
    """Join the visible text of `blocks`, without separator."""
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def calls_of(blocks: Sequence[Block]) -> tuple[ToolCallBlock, ...]:
    return tuple(block for block in blocks if isinstance(block, ToolCallBlock))


def as_blocks(content: str | Sequence[ResultContent]) -> tuple[ResultContent, ...]:
    """Turn what a user hands over into blocks: a string becomes one text block."""
    return (TextBlock(content),) if isinstance(content, str) else tuple(content)
