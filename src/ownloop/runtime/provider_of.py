"""Any backend as a `Provider`: adapters and three-method Backends under `AgentLoop`. For `agent_loop`, and for users.

The invariant: its messages hold plain JSON in neutral shapes, so they can be kept, and given to another adapter.
A message is read once; it may be replaced, not changed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ownloop.core.backend import (
    Adapter,
    Backend,
    Finish,
    ModelRequest,
    ModelSettings,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    PartType,
    UsageSeen,
)
from ownloop.core.messages import (
    BlobBlock,
    Block,
    Json,
    Message,
    ProviderBlock,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    calls_of,
)
from ownloop.core.provider import ContentBlock, ModelResponse, Provider, ProviderMessage, StreamEvent, ToolSchema
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import REFUSALS
from ownloop.core.usage import Usage
from ownloop.errors import ConfigError
from ownloop.runtime.instances import InstanceAdapter

_EVENT_TYPES: dict[PartType, tuple[str, str]] = {
    "text": ("text", "text_delta"),
    "thinking": ("thinking", "thinking_delta"),
    "tool_call": ("tool_use", "input_json_delta"),
    "provider": ("provider", ""),
}


def provider_of(model: Provider | Adapter | Backend | Callable[[], Backend], session_id: str = "") -> Provider:
    """Return a provider as it is, and anything else of ours as one.

    Raises:
        TypeError: it is none of these.
    """
    source: Any = model
    if isinstance(source, Backend):
        return _of_backend(source, _OnlyInstance(source), session_id)
    if not isinstance(source, type):
        if hasattr(source, "stream_message"):
            return source
        if hasattr(source, "start"):
            return AdapterProvider(source, session_id=session_id)
    if callable(source):
        backend: object = source()
        if isinstance(backend, Backend):
            return _of_backend(backend, _FirstInstance(backend, cast("Callable[[], Backend]", source)), session_id)
    raise TypeError(
        f"{type(source).__name__!r} is no provider: expected an object with stream_message, an adapter, or a Backend "
        "(class, factory or instance)"
    )


def _of_backend(backend: Backend, factory: Callable[[], Backend], session_id: str) -> AdapterProvider:
    # A Backend of ours is a wrapper around an adapter, and only that one streams.
    adapter: Adapter | None = getattr(backend, "adapter", None)
    settings: ModelSettings | None = getattr(backend, "settings", None)
    return AdapterProvider(adapter or InstanceAdapter(factory), settings, session_id=session_id)


class _OnlyInstance:
    """A factory that has one instance to give."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self._backend: Backend | None = backend

    def __call__(self) -> Backend:
        backend, self._backend = self._backend, None
        if backend is None:
            raise ConfigError(
                f"this instance of backend {self.name!r} no longer holds the conversation (a turn of it failed, or the "
                "messages were replaced), and a new one cannot be made: give AgentLoop its class or a factory instead"
            )
        return backend


class _FirstInstance:
    """A factory whose first instance is made already."""

    def __init__(self, backend: Backend, factory: Callable[[], Backend]) -> None:
        self.name = backend.name
        self._backend: Backend | None = backend
        self._factory = factory

    def __call__(self) -> Backend:
        backend, self._backend = self._backend, None
        return backend or self._factory()


class AdapterProvider:
    """An adapter under the provider contract.

    Messages: `user` holds a string or content blocks; `assistant` a list of text, thinking, tool_use {id, name, input}
    and provider blocks; `tool_result` a list of {tool_use_id, content, is_error}. Content blocks are
    `{"type": "text", "text"}` and, for images and documents, `{"type": "image", "source": {"type": "base64",
    "media_type", "data"}}` or MCP's `{"type": "image", "data", "mimeType"}`.

    Args:
        settings: For every request.
        session_id: Names the conversation to adapters that keep something for it.
    """

    def __init__(self, adapter: Adapter, settings: ModelSettings | None = None, *, session_id: str = "") -> None:
        self.adapter = adapter
        self.settings = settings or ModelSettings()
        self._session_id = session_id
        # Adapters memoise by the identity of a message and of a tool: what is the same stays the same object.
        self._read: list[tuple[Any, Message]] = []
        self._blobs: dict[str, bytes] = {}
        self._tools: list[Any] = []
        self._specs: tuple[ToolSpec, ...] = ()

    async def stream_message(
        self,
        model: str,  # noqa: ARG002 - the adapter is bound to its own
        system: str | None,
        messages: Sequence[Any],
        tools: Sequence[Any],
        max_tokens: int | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """See `Provider.stream_message`.

        Raises:
            ProviderError: the adapter's.
            ValueError: a message that is not in this provider's form.
        """
        settings = self.settings if max_tokens is None else replace(self.settings, max_tokens=max_tokens)
        request = ModelRequest(
            system or "", self._history(messages), self._tool_specs(tools), settings, self._session_id, self._blobs
        )
        types: dict[int, PartType] = {}
        # The contract promises an iterator; ours are generators, which have to be closed when the task is cancelled.
        async with aclosing(cast("Any", self.adapter.start(request))) as batches:
            async for batch in batches:
                for part in batch:
                    yield _event(part, types)

    def format_user_message(self, content: Any) -> ProviderMessage:
        """Raises ValueError for a content block that is neither text nor an image or document."""
        _read_content(content)
        return ProviderMessage("user", content)

    def format_assistant_message(self, response: ModelResponse) -> ProviderMessage:
        content = [_written(block) for block in response.content]
        return ProviderMessage("assistant", content, self.adapter.provider, self.adapter.model)

    def format_tool_result(self, tool_use_id: str, content: list[Json], is_error: bool = False) -> Json:
        """Raises ValueError for a content block that is neither text nor an image or document."""
        _read_content(content)
        return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, "is_error": is_error}

    def _history(self, messages: Sequence[Any]) -> tuple[Message, ...]:
        known = 0
        while known < min(len(self._read), len(messages)) and self._read[known][0] is messages[known]:
            known += 1
        del self._read[known:]
        for message in messages[known:]:
            self._read.append((message, self._message(message)))
        return tuple(read for _, read in self._read)

    def _message(self, message: ProviderMessage) -> Message:
        seq = len(self._read) + 1  # its place: what tells an instance of a three-method Backend how far it has come
        match message.role:
            case "user":
                return Message("user", self._content(message.content), seq)
            case "assistant":
                blocks = tuple(_assistant_block(block) for block in message.content)
                return Message("assistant", blocks, seq, message.provider, message.model)
            case "tool_result":
                return Message("tool", tuple(self._results(message.content)), seq)
            case role:
                raise ValueError(f"message {seq} has the role {role!r}; expected user, assistant or tool_result")

    def _results(self, found: Sequence[Json]) -> list[ToolResultBlock]:
        asked = calls_of(self._read[-1][1].blocks) if self._read else ()
        ids = [result["tool_use_id"] for result in found]
        if ids != [call.call_id for call in asked]:
            raise ValueError(
                f"message {len(self._read) + 1} has results for {ids!r}, but the message before it calls "
                f"{[call.call_id for call in asked]!r}: each call needs one result, in order"
            )
        return [
            ToolResultBlock(call.call_id, call.name, self._content(result["content"]), bool(result.get("is_error")))
            for call, result in zip(asked, found, strict=True)
        ]

    def _content(self, content: Any) -> tuple[ResultContent, ...]:
        blocks, blobs = _read_content(content)
        self._blobs.update(blobs)
        return blocks

    def _tool_specs(self, tools: Sequence[Any]) -> tuple[ToolSpec, ...]:
        if list(tools) != self._tools:
            self._tools = list(tools)
            self._specs = tuple(_spec(tool) for tool in tools)
        return self._specs


def _event(part: Part, types: dict[int, PartType]) -> StreamEvent:
    match part:
        case PartDelta(index, text):
            return StreamEvent("content_block_delta", index, delta_type=_EVENT_TYPES[types[index]][1], text=text)
        case PartStart(index, type, name, provider_id):
            types[index] = type
            block_type = _EVENT_TYPES[type][0]
            return StreamEvent(
                "content_block_start", index, block_type, tool_name=name or "", tool_id=provider_id or ""
            )
        case PartEnd(index, raw, problem):
            # A block of thinking is kept only with something in `raw`, and not every provider has something.
            kept = {} if raw is None and types[index] == "thinking" else raw
            return StreamEvent("content_block_stop", index, raw=kept, problem=problem)
        case UsageSeen(usage):
            return StreamEvent("usage", usage=_counts(usage))
        case Finish(stop_reason, raw_stop):
            return StreamEvent("message_stop", stop_reason=raw_stop if raw_stop in REFUSALS else stop_reason)


def _counts(usage: Usage) -> dict[str, int]:
    """Return what is known, in the contract's names; `input_tokens` are all that were read, cached or not."""
    read = [count for count in (usage.input, usage.cache_read, usage.cache_write) if count is not None]
    counts = {
        "input_tokens": sum(read) if read else None,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
        "reasoning_tokens": usage.reasoning,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _written(block: ContentBlock) -> Json:
    written: Json = {"type": block.type, "raw": block.raw or None}
    if block.tool_call is not None:
        call = block.tool_call
        written |= {"id": call.id, "name": call.name, "input": call.input}
        written |= {"arguments": block.arguments, "problem": block.problem}
        written["provider_id"] = block.provider_id
    elif block.type in ("text", "thinking"):
        written["text"] = block.text
    return {key: value for key, value in written.items() if value is not None}


def _assistant_block(block: Json) -> Block:
    raw = block.get("raw")
    match block["type"]:
        case "text":
            return TextBlock(block["text"], raw)
        case "thinking":
            return ThinkingBlock(block["text"], raw)
        case "tool_use":
            return ToolCallBlock(
                block["id"],
                block["name"],
                block["input"],
                provider_id=block.get("provider_id"),
                arguments=block.get("arguments"),
                problem=block.get("problem"),
                raw=raw,
            )
        case _:
            return ProviderBlock(raw or {})


def _read_content(content: Any) -> tuple[tuple[ResultContent, ...], dict[str, bytes]]:
    """Read a string or content blocks; return neutral blocks and the bytes of the blobs among them."""
    if isinstance(content, str):
        return (TextBlock(content),), {}
    if not isinstance(content, list | tuple):
        raise ValueError(f"content is a {type(content).__name__!r}; expected a string or a list of content blocks")
    blocks: list[ResultContent] = []
    blobs: dict[str, bytes] = {}
    for item in cast("Sequence[Any]", content):
        match item:
            case {"type": "text", "text": str(text)}:
                blocks.append(TextBlock(text))
            case {"source": {"type": "base64", "media_type": str(media_type), "data": str(data)}}:
                blocks.append(_blob(media_type, data, blobs))
            case {"data": str(data), "mimeType": str(media_type)}:
                blocks.append(_blob(media_type, data, blobs))
            case _:
                type_ = item.get("type") if isinstance(item, Mapping) else type(item).__name__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                raise ValueError(f"a content block of type {type_!r}; expected text, or an image or document in base64")
    return tuple(blocks), blobs


def _blob(media_type: str, data: str, blobs: dict[str, bytes]) -> BlobBlock:
    try:
        body = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the data of a content block of type {media_type!r} is not base64: {error}") from error
    digest = hashlib.sha256(body).hexdigest()
    blobs[digest] = body
    return BlobBlock(digest, media_type, len(body))


def _spec(tool: Any) -> ToolSpec:
    match tool:
        case ToolSpec():
            return tool
        case ToolSchema(name, description, input_schema):
            return ToolSpec(name, description, input_schema)
        case {"name": name, "input_schema": input_schema}:
            return ToolSpec(name, tool.get("description") or "", input_schema)
        case _:
            raise ValueError(f"a tool is a {type(tool).__name__!r}; expected a ToolSchema, or a dict of its fields")


if TYPE_CHECKING:
    _: type[Provider] = AdapterProvider
