"""Encode a neutral conversation as the body of an OpenAI chat-completions request. Pure; for the backends of that wire.

The invariant: what was sent for a message never changes while the conversation grows (servers cache prompts by their
prefix), so an `Encoder` may memoise by the identity of the immutable messages, and a request costs what is new.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ownloop.backends.profiles import GENERIC, Profile
from ownloop.core.backend import ModelRequest
from ownloop.core.codec import dumps, loads
from ownloop.core.messages import (
    BlobBlock,
    Json,
    Message,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    calls_of,
    text_of,
)
from ownloop.core.toolspec import ToolSpec

FAILED: Final = "ERROR: "
"""Opens the result of a failed call: this wire has no flag for it."""
REMEMBERED_MESSAGES: Final = 4096
"""An encoder keeps the encodings of up to twice as many messages, over all sessions; older ones are made again."""

_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """The parts of a request's body that stand for the conversation. Not to be changed: the encoder shares them."""

    messages: list[Json]
    tools: list[Json]
    """Empty: leave the key out; servers refuse an empty list."""
    names: Mapping[str, str]
    """Our name of each tool by its name on the wire."""


@dataclass(frozen=True, slots=True)
class _Memo:
    message: Message
    calls: tuple[ToolCallBlock, ...]
    ids: tuple[str, ...]
    """The ids on the wire of its calls or results: the one thing that depends on the rest of the conversation."""
    body: tuple[Json, ...]


class Encoder:
    """Encode requests to one model on one provider; holds nothing but the memo, so sessions may share it."""

    __slots__ = ("_call_ids", "_model", "_old", "_profile", "_provider", "_tools", "_young")

    def __init__(self, provider: str, model: str, profile: Profile = GENERIC) -> None:
        self._provider = provider
        self._model = model
        self._profile = profile
        self._call_ids = re.compile(profile.call_ids)
        # Two generations: what was not asked for while the young one filled up is forgotten.
        self._young: dict[int, _Memo] = {}
        self._old: dict[int, _Memo] = {}
        self._tools: tuple[tuple[ToolSpec, ...], list[Json], dict[str, str]] = ((), [], {})

    def encode(self, request: ModelRequest) -> Encoded:
        """Raises ValueError if the bytes of a blob are not in the request."""
        out: list[Json] = [{"role": "system", "content": request.system}] if request.system else []
        wire_ids: dict[str, str] = {}
        used: set[str] = set()
        for message in request.messages:
            memo = self._young.get(id(message)) or self._old.get(id(message))
            calls = memo.calls if memo is not None else calls_of(message.blocks)
            if message.role == "tool":
                results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
                ids = tuple(wire_ids.get(result.call_id, "") for result in results)
            elif calls:
                ids = tuple(self._wire_id(call, used) for call in calls)
                wire_ids.update(zip((call.call_id for call in calls), ids, strict=True))
            else:
                ids = ()
            if memo is None or memo.ids != ids:
                memo = _Memo(message, calls, ids, tuple(self._encode_message(message, ids, request.blobs)))
            self._remember(memo)
            out.extend(memo.body)
        if self._profile.strict_template:
            out = merge_neighbours(out)
        tools, names = self._encode_tools(request.tools)
        return Encoded(out, tools, names)

    def _remember(self, memo: _Memo) -> None:
        self._young[id(memo.message)] = memo  # the memo holds the message, so its id cannot be given to another one
        if len(self._young) >= REMEMBERED_MESSAGES:
            self._old, self._young = self._young, {}

    def _wire_id(self, call: ToolCallBlock, used: set[str]) -> str:
        """Return the provider's own id where it is legal and new in this conversation, else a stable replacement."""
        for candidate in _candidates(call):
            if candidate not in used and self._call_ids.fullmatch(candidate):
                used.add(candidate)
                return candidate
        raise AssertionError  # the candidates do not end

    def _encode_message(self, message: Message, ids: Sequence[str], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        match message.role:
            case "user":
                yield self._user([block for block in message.blocks if isinstance(block, TextBlock | BlobBlock)], blobs)
            case "assistant":
                yield from self._assistant(message, ids)
            case "tool":
                results = [block for block in message.blocks if isinstance(block, ToolResultBlock)]
                # A result without its call is refused; whatever trimmed the call has trimmed the exchange.
                yield from self._results([(id, result) for id, result in zip(ids, results, strict=True) if id], blobs)

    def _assistant(self, message: Message, ids: Sequence[str]) -> Iterator[Json]:
        text = text_of(message.blocks)
        calls = calls_of(message.blocks)
        if not calls:
            if text:  # a message with neither text nor calls is refused
                yield {"role": "assistant", "content": text}
            return
        own = message.provider == self._provider and message.model == self._model
        body: Json = {"role": "assistant", "content": text if text.strip() else self._profile.content_beside_calls}
        if own and self._profile.thinking_field:
            body[self._profile.thinking_field] = "".join(b.text for b in message.blocks if isinstance(b, ThinkingBlock))
        body["tool_calls"] = [
            {
                # Unknown fields of a call, such as a signature, mean something only to whoever wrote them.
                **(call.raw or {} if own else {}),
                "id": id,
                "type": "function",
                "function": {"name": wire_name(call.name), "arguments": _arguments(call)},
            }
            for id, call in zip(ids, calls, strict=True)
        ]
        yield body

    def _user(self, blocks: Sequence[ResultContent], blobs: Mapping[str, bytes]) -> Json:
        if all(isinstance(block, TextBlock) for block in blocks):
            return {"role": "user", "content": _joined(blocks)}
        return {"role": "user", "content": [part for block in blocks if (part := self._part(block, blobs)) is not None]}

    def _results(self, results: Sequence[tuple[str, ToolResultBlock]], blobs: Mapping[str, bytes]) -> Iterator[Json]:
        """One tool message per call; a tool message carries text only, so images follow in one message of the user."""
        shown: list[Json] = []
        for id, result in results:
            text = _joined(result.content)
            attached = [block for block in result.content if isinstance(block, BlobBlock)]
            if attached:
                text = text or f"See the {'attachment' if len(attached) == 1 else 'attachments'} in the next message."
                shown.append({"type": "text", "text": f"Returned by {wire_name(result.name)} (call {id}):"})
                shown.extend(part for block in attached if (part := self._part(block, blobs)) is not None)
            yield {"role": "tool", "tool_call_id": id, "content": FAILED + text if result.is_error else text}
        if shown:
            yield {"role": "user", "content": shown}

    def _part(self, block: ResultContent, blobs: Mapping[str, bytes]) -> Json | None:
        if isinstance(block, TextBlock):
            return {"type": "text", "text": block.text} if block.text else None
        readable = block.media_type.startswith("image/") or block.media_type == "application/pdf"
        if not (readable and self._profile.attachments):
            return {"type": "text", "text": f"[an attachment of type {block.media_type} that this model cannot read]"}
        body = blobs.get(block.digest)
        if body is None:
            raise ValueError(f"the bytes of blob {block.digest!r} are not in the request")
        url = f"data:{block.media_type};base64,{base64.b64encode(body).decode('ascii')}"
        if block.media_type.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": url}}
        return {"type": "file", "file": {"filename": f"{block.digest[:12]}.pdf", "file_data": url}}

    def _encode_tools(self, specs: Sequence[ToolSpec]) -> tuple[list[Json], dict[str, str]]:
        known = self._tools[0]
        if len(known) != len(specs) or any(a is not b for a, b in zip(known, specs, strict=True)):
            tools = [_tool(spec) for spec in specs]
            self._tools = (tuple(specs), tools, {wire_name(spec.name): spec.name for spec in specs})
        return self._tools[1:]


def encode_request(request: ModelRequest, profile: Profile = GENERIC, provider: str = "", model: str = "") -> Encoded:
    """Encode one request without a memo. `provider` and `model` say whose own fields may go back."""
    return Encoder(provider, model, profile).encode(request)


def wire_name(name: str) -> str:
    """Return a tool's name as the wire allows it, the same for the same name in every conversation.

    A name with other characters, or with more than 64, is rewritten and told apart by a digest of the original.
    """
    if _LEGAL_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[:55]}_{digest}"


def _tool(spec: ToolSpec) -> Json:
    return {
        "type": "function",
        "function": {
            "name": wire_name(spec.name),
            "description": spec.description,
            # Chat templates walk through `properties` without asking whether it is there.
            "parameters": {"type": "object", "properties": {}, **spec.input_schema},
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


def _candidates(call: ToolCallBlock) -> Iterator[str]:
    if call.provider_id:
        yield call.provider_id
    if call.call_id:
        yield call.call_id
    for salt in itertools.count():
        digest = hashlib.sha256(f"{call.call_id}/{salt}".encode()).hexdigest()
        yield f"call_{digest[:24]}"
        yield digest[:9]  # nine letters or digits: what Mistral's API and templates take


def _arguments(call: ToolCallBlock) -> str:
    """Return what the model streamed if it is an object, else the input: servers parse it, and fail on less."""
    if call.arguments is not None:
        try:
            if isinstance(loads(call.arguments), dict):
                return call.arguments
        except (ValueError, RecursionError):
            pass
    return dumps(call.input)


def _joined(blocks: Sequence[ResultContent]) -> str:
    return "\n\n".join(block.text for block in blocks if isinstance(block, TextBlock) and block.text)


def _as_parts(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
