"""Encode a neutral conversation as the body of an OpenAI chat-completions request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ownloop.backends.wires.encoder import (
    FAILED,
    Encoder,
    call_arguments,
    data_url,
    object_schema,
    paragraphs,
    returned_by,
    see_next_message,
    unread,
    wire_name,
)
from ownloop.core.backend import ModelRequest
from ownloop.core.messages import (
    BlobBlock,
    Json,
    Message,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    calls_of,
    text_of,
)
from ownloop.core.toolspec import ToolSpec


class ChatEncoder(Encoder):
    """See `Encoder`."""

    def _body(self, request: ModelRequest, messages: list[Json], tools: list[Json]) -> Json:
        settings, profile = request.settings, self._profile
        if request.system:
            messages = [{"role": "system", "content": request.system}, *messages]
        body = dict(settings.extra)
        if profile.usage_option:
            body["stream_options"] = {"include_usage": True}
        if settings.max_tokens is not None:
            body[profile.max_tokens_field] = settings.max_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if settings.stop:
            body["stop"] = list(settings.stop)
        body["messages"] = merge_neighbours(messages) if profile.strict_template else messages
        body["tools"] = [*tools, *(body.get("tools") or ())]  # the provider's own tools come as extra fields
        if not body["tools"]:  # refused if it is empty, and these without it
            for key in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(key, None)
        return body

    def _assistant(self, message: Message, ids: Sequence[str]) -> Iterator[Json]:
        text = text_of(message.blocks)
        calls = calls_of(message.blocks)
        if not calls:
            if text:  # a message with neither text nor calls is refused
                yield {"role": "assistant", "content": text}
            return
        own = self._is_own(message)
        body: Json = {"role": "assistant", "content": text if text.strip() else self._profile.content_beside_calls}
        if own and self._profile.thinking_field:
            body[self._profile.thinking_field] = "".join(b.text for b in message.blocks if isinstance(b, ThinkingBlock))
        body["tool_calls"] = [
            {
                # Unknown fields of a call, such as a signature, mean something only to whoever wrote them.
                **(call.raw or {} if own else {}),
                "id": id,
                "type": "function",
                "function": {"name": wire_name(call.name), "arguments": call_arguments(call)},
            }
            for id, call in zip(ids, calls, strict=True)
        ]
        yield body

    def _user(self, blocks: Sequence[ResultContent], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        if all(isinstance(block, TextBlock) for block in blocks):
            yield {"role": "user", "content": paragraphs(blocks)}
            return
        yield {"role": "user", "content": [part for block in blocks if (part := self._part(block, blobs)) is not None]}

    def _results(self, results: Sequence[tuple[str, ToolResultBlock]], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        """One tool message per call; a tool message carries text only, so images follow in one message of the user."""
        shown: list[Json] = []
        for id, result in results:
            text = paragraphs(result.content)
            attached = [block for block in result.content if isinstance(block, BlobBlock)]
            if attached:
                text = text or see_next_message(attached)
                shown.append({"type": "text", "text": returned_by(result, id)})
                shown.extend(part for block in attached if (part := self._part(block, blobs)) is not None)
            yield {"role": "tool", "tool_call_id": id, "content": FAILED + text if result.is_error else text}
        if shown:
            yield {"role": "user", "content": shown}

    def _part(self, block: ResultContent, blobs: Mapping[str, bytes]) -> Json | None:
        if isinstance(block, TextBlock):
            return {"type": "text", "text": block.text} if block.text else None
        if not self._can_read(block):
            return {"type": "text", "text": unread(block)}
        url = data_url(block, blobs)
        if block.media_type.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": url}}
        return {"type": "file", "file": {"filename": f"{block.digest[:12]}.pdf", "file_data": url}}

    def _tool(self, spec: ToolSpec) -> Json:
        return {
            "type": "function",
            "function": {
                "name": wire_name(spec.name),
                "description": spec.description,
                "parameters": object_schema(spec),
            },
        }


def merge_neighbours(messages: Sequence[Json]) -> list[Json]:
    """Merge messages of one role that follow each other; calls and their results stay as they are."""
    out: list[Json] = []
    for message in messages:
        last = out[-1] if out else None
        if (
            last is None
            or last["role"] != message["role"]
            or message["role"] == "tool"
            or "tool_calls" in last
            or "tool_calls" in message
        ):
            out.append(message)
        elif isinstance(last["content"], str) and isinstance(message["content"], str):
            out[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            out[-1] = {**last, "content": [*_as_parts(last["content"]), *_as_parts(message["content"])]}
    return out


def _as_parts(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
