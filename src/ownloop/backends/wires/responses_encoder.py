"""Encode a neutral conversation as the body of an OpenAI Responses request. Pure.

The rules come from refusals of that API and of the servers that copy it (tests/cases, `resp-*`):

- The history is ours and `store` is false, so nothing goes out that only a server's memory could complete.
- Reasoning goes back as it came, to the very model that wrote it, if it can be read there: encrypted, or in plain words
  where the profile says so. It never stands last, for it belongs to what follows it.
- Ids bind the items of an answer to its reasoning: they go back all together, or none does. Without them a message is
  its role and its text.
- What a tool of the provider's own said goes back verbatim beside its reasoning, if nothing is left to answer in it.
- The wire knows no stop sequences; those of the settings are left out.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

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
    text_of,
)
from ownloop.core.toolspec import ToolSpec

ENCRYPTED: Final = "reasoning.encrypted_content"
MAX_ID_CHARS: Final = 64
"""Longer ids are refused, also those that a gateway made itself."""


class ResponsesEncoder(Encoder):
    """See `Encoder`."""

    def _body(self, request: ModelRequest, messages: list[Json], tools: list[Json]) -> Json:
        settings = request.settings
        body = dict(settings.extra)
        body["store"] = False
        if request.system:
            body["instructions"] = request.system
        if settings.max_tokens is not None:
            body["max_output_tokens"] = settings.max_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if self._reasons():
            body["include"] = list(dict.fromkeys([*(body.get("include") or ()), ENCRYPTED]))
        body["input"] = messages
        body["tools"] = [*tools, *(body.get("tools") or ())]  # the provider's own tools come as extra fields
        if not body["tools"]:
            for key in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(key, None)
        return body

    def _reasons(self) -> bool:
        """Whether the model is one that may be asked for its reasoning; others refuse the question."""
        models = self._profile.reasoning_models
        return models is not None and re.fullmatch(models, self._model) is not None

    # --- messages ---

    def _user(self, blocks: Sequence[ResultContent], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        if all(isinstance(block, TextBlock) for block in blocks):
            yield {"type": "message", "role": "user", "content": paragraphs(blocks)}
        else:
            yield {"type": "message", "role": "user", "content": self._parts(blocks, blobs)}

    def _assistant(self, message: Message, ids: Sequence[str]) -> Iterator[Json]:
        if self._is_own(message):
            yield from self._own(message.blocks, ids)
            return
        text = text_of(message.blocks)
        if text:
            yield _said(text)
        for call, id in zip(calls_of(message.blocks), ids, strict=True):
            yield _called(call, id)

    def _own(self, blocks: Sequence[Block], ids: Sequence[str]) -> Iterator[Json]:
        """Encode an answer of this very model."""
        open_calls = _open_calls(blocks)
        blocks = _without_last_thoughts([block for block in blocks if _says_something(block, open_calls)])
        thoughts = [block.raw or {} for block in blocks if isinstance(block, ThinkingBlock)]
        can_think = all(map(self._can_think, thoughts))
        is_bound = can_think and bool(thoughts) and not open_calls and all(map(_has_id, blocks))
        if thoughts and not is_bound:
            alone = ProviderBlock if can_think else ProviderBlock | ThinkingBlock
            blocks = _without_last_thoughts([block for block in blocks if not isinstance(block, alone)])
        rest = iter(ids)
        for block in blocks:
            match block:
                case TextBlock(text, raw):
                    yield _said(text, raw or {}, is_bound=is_bound)
                case ToolCallBlock(raw=raw):
                    yield _called(block, next(rest), raw or {}, is_bound=is_bound)
                case ThinkingBlock(raw=raw):
                    item = _without_nulls(raw or {})
                    yield item if is_bound else _without_id(item)
                case ProviderBlock(raw):
                    yield _without_nulls(raw)
                case _:
                    pass

    def _can_think(self, raw: Json) -> bool:
        """Whether a reasoning item can be read where it goes: its server has kept nothing of it."""
        return bool(raw.get("encrypted_content") or (raw.get("content") and self._profile.plain_reasoning))

    def _results(self, results: Sequence[tuple[str, ToolResultBlock]], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        """One item per call, with its images and files where the server takes them, else in one message of the user."""
        shown: list[Json] = []
        for id, result in results:
            text = paragraphs(result.content)
            attached = [block for block in result.content if isinstance(block, BlobBlock)]
            follow = attached and not self._profile.files_in_results
            if follow:
                text = text or see_next_message(attached)
                shown += [*_texts(returned_by(result, id)), *self._parts(attached, blobs)]
            if result.is_error:
                text = FAILED + text
            output = [*_texts(text), *self._parts(attached, blobs)] if attached and not follow else text
            yield {"type": "function_call_output", "call_id": id, "output": output}
        if shown:
            yield {"type": "message", "role": "user", "content": shown}

    def _parts(self, blocks: Iterable[ResultContent], blobs: Mapping[str, bytes]) -> list[Json]:
        return [part for block in blocks for part in self._part(block, blobs)]

    def _part(self, block: ResultContent, blobs: Mapping[str, bytes]) -> list[Json]:
        if isinstance(block, TextBlock):
            return _texts(block.text)
        if not self._can_read(block):
            return _texts(unread(block))
        url = data_url(block, blobs)
        if block.media_type.startswith("image/"):
            return [{"type": "input_image", "detail": "auto", "image_url": url}]
        return [{"type": "input_file", "filename": f"{block.digest[:12]}.pdf", "file_data": url}]

    def _tool(self, spec: ToolSpec) -> Json:
        return {
            "type": "function",
            "name": wire_name(spec.name),
            "description": spec.description,
            "parameters": object_schema(spec),
            # Said, for it is the default: schemas of tools need not be of the subset that it allows.
            "strict": False,
        }


# --- items ---


def _said(text: str, raw: Mapping[str, Any] = {}, *, is_bound: bool = False) -> Json:
    phase = {"phase": raw["phase"]} if raw.get("phase") else {}
    if not is_bound:
        return {"type": "message", "role": "assistant", "content": text, **phase}
    content = {"type": "output_text", "text": text, "annotations": raw.get("annotations", [])}
    return {
        "type": "message",
        "id": raw["id"],
        "role": "assistant",
        "status": "completed",
        "content": [content],
        **phase,
    }


def _called(call: ToolCallBlock, id: str, raw: Mapping[str, Any] = {}, *, is_bound: bool = False) -> Json:
    return {
        **(raw if is_bound else _without_id(raw)),
        "type": "function_call",
        "call_id": id,
        "name": wire_name(call.name),
        "arguments": call_arguments(call),
    }


def _texts(text: str) -> list[Json]:
    return [{"type": "input_text", "text": text}] if text else []


def _without_nulls(raw: Mapping[str, Any]) -> Json:
    """What a server writes as null it may refuse to read."""
    return {key: value for key, value in raw.items() if value is not None}


def _without_id(raw: Mapping[str, Any]) -> Json:
    return {key: value for key, value in raw.items() if key != "id"}


# --- what can go back ---


def _without_last_thoughts(blocks: Sequence[Block]) -> Sequence[Block]:
    """Drop reasoning that nothing follows, as after a cut."""
    end = len(blocks)
    while end and isinstance(blocks[end - 1], ThinkingBlock):
        end -= 1
    return blocks[:end]


def _says_something(block: Block, open_calls: Container[Any]) -> bool:
    match block:
        case TextBlock(text):
            return bool(text.strip())
        case ProviderBlock(raw):  # what was cut is kept as {}
            return bool(raw.get("type")) and raw.get("call_id") not in open_calls
        case _:
            return True


def _has_id(block: Block) -> bool:
    raw = None if isinstance(block, BlobBlock | ToolResultBlock) else block.raw
    id = (raw or {}).get("id")
    return isinstance(id, str) and 0 < len(id) <= MAX_ID_CHARS


def _open_calls(blocks: Iterable[Block]) -> set[Any]:
    """Return the calls of tools unknown to us that have no output in the same answer: nobody will answer them."""
    raws = [block.raw for block in blocks if isinstance(block, ProviderBlock) and block.raw.get("call_id")]
    answered = {raw["call_id"] for raw in raws if str(raw.get("type")).endswith("_output")}
    return {raw["call_id"] for raw in raws} - answered
