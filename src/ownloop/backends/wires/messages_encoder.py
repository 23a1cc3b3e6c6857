"""Encode a neutral conversation as the body of an Anthropic Messages request. Pure.

The rules come from refusals of that API and hold for the other servers of this wire as well:

- A person speaks first, last, and between any two answers. Where history has nothing of the kind, `GO_ON` stands:
  newer models refuse to continue their own words. Only an answer that the provider paused inside a tool of its own
  stays last, as it was.
- The results of a turn are one message, in the order of the calls, before anything a person says.
- No block is empty or blank.
- Thinking, and what only the provider understands, go back verbatim to the very model they came from, else not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ownloop.backends.wires.encoder import FAILED, Encoder, base64_of, object_schema, unread, wire_name
from ownloop.core.backend import ModelRequest
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
)
from ownloop.core.toolspec import ToolSpec

GO_ON: Final = "Continue."
NOTHING: Final = "(empty)"
"""Where the API wants content and there is none."""

_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_THINKING: Final = ("thinking", "redacted_thinking")


class MessagesEncoder(Encoder):
    """See `Encoder`."""

    def _body(self, request: ModelRequest, messages: list[Json], tools: list[Json]) -> Json:
        settings = request.settings
        body = dict(settings.extra)
        if settings.max_tokens is not None:
            body["max_tokens"] = settings.max_tokens
        body.setdefault("max_tokens", self._profile.default_max_tokens)
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if settings.stop:
            body["stop_sequences"] = list(settings.stop)
        if request.system.strip():
            body["system"] = request.system
        body["messages"] = self._merged(_without_open_calls(_with_people(messages)))
        body["tools"] = [*tools, *(body.get("tools") or ())]  # the provider's own tools come as extra fields
        if not body["tools"]:
            del body["tools"]
            body.pop("tool_choice", None)  # refused without tools
        return self._marked(body)

    def _marked(self, body: Json) -> Json:
        """Ask for the prompt to be cached, in two of the four marks that are allowed.

        One stands after what all conversations of an agent share; the other the API itself moves along with the last
        block. `cache_control` among the extra fields replaces the mark, None means none.
        """
        mark = body.pop("cache_control", {"type": "ephemeral"} if self._profile.cache_control else None)
        if mark is None:
            return body
        system, tools = body.get("system"), body.get("tools")
        if isinstance(system, str):
            body["system"] = [{**_text(system), "cache_control": mark}]
        elif tools and not system:
            body["tools"] = [*tools[:-1], {**tools[-1], "cache_control": mark}]
        return {**body, "cache_control": mark}

    def _merged(self, messages: Iterable[Json]) -> list[Json]:
        """Merge messages of one role that follow each other."""
        out: list[Json] = []
        for message in messages:
            last = out[-1] if out else None
            if last is None or last["role"] != message["role"] or not self._may_follow(last, message):
                out.append(message)
            else:
                out[-1] = {**last, "content": [*last["content"], *message["content"]]}
        return out

    def _may_follow(self, last: Json, message: Json) -> bool:
        """Whether the blocks of `message` may stand in one message behind those of `last`."""
        mixes = message["content"][0]["type"] != "tool_result" and last["content"][-1]["type"] == "tool_result"
        return self._profile.text_behind_results or not mixes

    # --- messages ---

    def _user(self, blocks: Sequence[ResultContent], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        yield {"role": "user", "content": self._content(blocks, blobs)}

    def _assistant(self, message: Message, ids: Sequence[str]) -> Iterator[Json]:
        own, rest = self._is_own(message), iter(ids)
        said = [block for each in message.blocks if (block := self._said(each, rest, own=own)) is not None]
        content = _without_last_thoughts(said)
        if content:
            yield {"role": "assistant", "content": content}

    def _results(self, results: Sequence[tuple[str, ToolResultBlock]], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        if results:
            yield {"role": "user", "content": [self._result(id, result, blobs) for id, result in results]}

    def _tool(self, spec: ToolSpec) -> Json:
        return {
            "name": wire_name(spec.name),
            "description": spec.description,
            "input_schema": object_schema(spec),
        }

    # --- blocks ---

    def _said(self, block: Block, ids: Iterator[str], *, own: bool) -> Json | None:
        match block:
            case TextBlock(text, raw) if text.strip():
                return raw if own and raw else _text(text)
            case ThinkingBlock(raw=dict() as raw) | ProviderBlock(raw):
                return raw if own and raw.get("type") else None  # what was cut is kept as {}
            case ThinkingBlock(text) if own and text and self._profile.unsigned_thinking:
                return {"type": "thinking", "thinking": text}
            case ToolCallBlock(name=name, input=input, raw=raw):
                more = raw if own and raw else {}
                return {**more, "type": "tool_use", "id": next(ids), "name": wire_name(name), "input": input}
            case _:
                return None

    def _result(self, id: str, result: ToolResultBlock, blobs: Mapping[str, bytes]) -> Json:
        content = self._content(result.content, blobs)
        block: Json = {"type": "tool_result", "tool_use_id": id, "content": content}
        if not result.is_error:
            return block
        if not self._profile.error_flag:
            block["content"] = [_text(FAILED), *content]
        return block | {"is_error": True}

    def _content(self, blocks: Iterable[ResultContent], blobs: Mapping[str, bytes]) -> list[Json]:
        content = [
            self._part(block, blobs) for block in blocks if not isinstance(block, TextBlock) or block.text.strip()
        ]
        return content or [_text(NOTHING)]

    def _part(self, block: ResultContent, blobs: Mapping[str, bytes]) -> Json:
        if isinstance(block, TextBlock):
            return _text(block.text)
        if not self._can_read(block):
            return _text(unread(block))
        source = {"type": "base64", "media_type": block.media_type, "data": base64_of(block, blobs)}
        return {"type": "image" if block.media_type in _IMAGES else "document", "source": source}

    def _can_read(self, block: BlobBlock) -> bool:
        return self._profile.attachments and (block.media_type in _IMAGES or block.media_type == "application/pdf")


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _with_people(messages: Sequence[Json]) -> Iterator[Json]:
    """Let a person speak before the first answer, between two, and after the last, if nobody did."""
    go_on: Json = {"role": "user", "content": [_text(GO_ON)]}
    is_owed = True
    for message in messages:
        if message["role"] == "assistant":
            if is_owed:
                yield go_on
            is_owed = not _is_paused(message)
        else:
            is_owed = False
        yield message
    if is_owed and messages:
        yield go_on


def _is_paused(message: Json) -> bool:
    """Whether an answer ends inside the provider's own tools: nothing may come between it and what follows."""
    return message["content"][-1]["type"].endswith(("_tool_use", "_tool_result"))


def _without_open_calls(messages: Iterable[Json]) -> list[Json]:
    """Drop calls of the provider's own tools that have no result where a person went on: nothing answers them now."""
    answered: set[str] = set()
    has_spoken = False
    out: list[Json] = []
    for message in reversed(list(messages)):
        content = message["content"]
        if message["role"] == "user":
            has_spoken = has_spoken or any(block["type"] != "tool_result" for block in content)
        else:
            answered.update(str(block.get("tool_use_id")) for block in content)
            if has_spoken and any(_is_open(block, answered) for block in content):
                content = _without_last_thoughts([block for block in content if not _is_open(block, answered)])
                message = {**message, "content": content}
        if content:
            out.append(message)
    out.reverse()
    return out


def _is_open(block: Json, answered: set[str]) -> bool:
    return block["type"].endswith("_tool_use") and str(block.get("id")) not in answered


def _without_last_thoughts(content: list[Json]) -> list[Json]:
    """Drop thinking that nothing follows: it may not stand last."""
    end = len(content)
    while end and content[end - 1]["type"] in _THINKING:
        end -= 1
    return content[:end]
