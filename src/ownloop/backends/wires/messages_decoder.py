"""Decode the body of a streamed Anthropic message: bytes in, parts out. Pure; for the backends of that wire.

The rules come from observed servers (tests/cases); the ones that decide most:

- The JSON's own type counts, not the event line. Events, blocks and deltas of unknown types are no errors.
- A message is complete only with a stop reason; `message_stop` alone says nothing.
- Input that streams is final only as the provider sent it: nothing is repaired, and whether a call was cut is for
  `core.turn` to judge.
- Thinking with its signature, citations, and every block that only the provider understands are kept verbatim.
- Usage is cumulative: each field is replaced by its last value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, cast

from ownloop.backends.wires.decoder import (
    NAMELESS,
    Decoder,
    arguments_text,
    count_of,
    kept,
    load_exact,
    object_of,
    stop_reason,
)
from ownloop.core.backend import Finish, PartDelta, PartEnd, PartStart, PartType
from ownloop.core.messages import Json
from ownloop.core.usage import Usage
from ownloop.errors import StreamInterruptedError

_KINDS: Final[Mapping[str, PartType]] = {
    "text": "text",
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "tool_use": "tool_call",
}
"""Every other type of block is its provider's."""

_STREAMED: Final[Mapping[str, tuple[PartType, str]]] = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("tool_call", "partial_json"),
}
"""The deltas that grow a part, and where they hold its text."""

_CALL_FIELDS: Final = frozenset({"type", "id", "name", "input"})


class _Block:
    """What is known of one content block while it streams."""

    __slots__ = ("citations", "grown", "kind", "part", "raw")

    def __init__(self, part: int, kind: PartType, raw: Json) -> None:
        self.part = part
        self.kind: PartType = kind
        self.raw = raw
        """As it began."""
        self.grown: dict[str, list[str]] = {}
        """The fields that deltas go on with, in pieces."""
        self.citations: list[object] = []

    def grow(self, field: str, text: str) -> None:
        pieces = self.grown.get(field)
        if pieces is None:
            pieces = self.grown[field] = [_string(self.raw.get(field))]
        pieces.append(text)

    def add(self, delta: Json) -> None:
        """Take a delta that is no text of a part: only the verbatim form of the block has it."""
        if "citation" in delta and self.kind in ("text", "provider"):
            self.citations.append(delta["citation"])
        elif self.kind == "thinking" and "signature" in delta:
            self.raw["signature"] = _string(delta["signature"])
        elif self.kind == "provider":
            for field, value in delta.items():
                if type(value) is str and field != "type":
                    self.grow(field, value)
                elif field != "type":
                    self.raw[field] = value

    def whole(self) -> Json:
        """Return the block as if the provider had sent it in one piece."""
        whole = self.raw | {field: "".join(pieces) for field, pieces in self.grown.items()}
        if self.citations:
            whole["citations"] = [*_list(whole.get("citations")), *self.citations]
        return whole


class MessagesDecoder(Decoder):
    """See `Decoder`."""

    EVENTS: ClassVar[tuple[str, ...]] = ("message", "content_block")

    def __init__(self, names: Mapping[str, str], *, provider: str = "anthropic", secrets: Sequence[str] = ()) -> None:
        super().__init__(names, provider=provider, secrets=secrets)
        self._next = 0
        self._open: dict[int, _Block] = {}
        """By the provider's index, in order of appearance."""
        self._has_calls = False
        self._word = ""

    @property
    def finished(self) -> bool:
        return bool(self._word)

    def _end(self) -> Finish:
        if self.error is None and not self._word:
            self._interrupted()
        if self.error is None:
            for index in list(self._open):
                self._stop(index)
        return Finish(stop_reason(self._word, has_calls=self._has_calls), self._word or None, self.request_id)

    def _frame(self, frame: Json, data: str) -> None:
        match frame.get("type"):
            case "content_block_delta":
                self._delta(self._index(frame), object_of(frame.get("delta")))
            case "content_block_start":
                self._start(frame.get("index"), object_of(object_of(load_exact(data)).get("content_block")))
            case "content_block_stop":
                self._stop(self._index(frame))
            case "message_start":
                self._count(object_of(object_of(frame.get("message")).get("usage")))
            case "message_delta":
                self._count(object_of(frame.get("usage")))
                self._finish(object_of(frame.get("delta")).get("stop_reason"))
            case "message_stop":
                self._said_done = self.done = True
            case "message":
                self._whole(object_of(load_exact(data)))
            case "error":
                self._fail(frame)
            case _:
                if frame.get("error"):
                    self._fail(frame)

    def _finish(self, word: object) -> None:
        self._word = _string(word) or self._word

    def _whole(self, message: Json) -> None:
        """Read a message that comes in one piece: a body that is one JSON document."""
        if not self._next:  # after blocks it would only repeat them
            for index, raw in enumerate(_list(message.get("content"))):
                self._start(index, object_of(raw))
                self._stop(index)
        self._count(object_of(message.get("usage")))
        self._finish(message.get("stop_reason"))

    # --- blocks ---

    def _index(self, frame: Json) -> int:
        """Return the index that a delta or stop names; without one it means the block that was opened last."""
        index = frame.get("index")
        return index if type(index) is int else next(reversed(self._open), -1)

    def _start(self, index: object, raw: Json) -> None:
        word = raw.get("type")
        if type(word) is not str:
            return
        kind: PartType = _KINDS.get(word, "provider")
        block = self._begin(index if type(index) is int else -1 - self._next, kind, raw)
        text = _string(raw.get(word))
        if text and kind in ("text", "thinking"):  # a beginning that the deltas go on from
            self._out.append(PartDelta(block.part, text))

    def _begin(self, index: int, kind: PartType, raw: Json) -> _Block:
        self._stop(index)  # some servers never stop their blocks
        block = self._open[index] = _Block(self._next, kind, raw)
        self._next += 1
        if kind == "tool_call":
            self._has_calls = True
            name = _string(raw.get("name"))
            self._out.append(PartStart(block.part, kind, self._names.get(name, name), _string(raw.get("id")) or None))
        else:
            self._out.append(PartStart(block.part, kind))
        return block

    def _delta(self, index: int, delta: Json) -> None:
        block = self._open.get(index)
        streamed = _STREAMED.get(_string(delta.get("type")))
        if streamed is None or (block is not None and block.kind == "provider"):
            if block is not None:
                block.add(delta)
            return
        kind, field = streamed
        text = _string(delta.get(field))
        if not text:
            return
        if block is None or block.kind != kind:
            if kind == "tool_call":  # a call without it would run with other arguments than the model gave
                self.lose(StreamInterruptedError(f"{self._provider!r} sent input that belongs to no call"))
                return
            block = self._begin(index, kind, {"type": kind})
        block.grow(field, text)
        self._out.append(PartDelta(block.part, text))

    def _stop(self, index: int) -> None:
        block = self._open.pop(index, None)
        if block is None:
            return
        match block.kind:
            case "text":
                self._out.append(PartEnd(block.part, _text_raw(block)))
            case "thinking":
                self._out.append(PartEnd(block.part, _thinking_raw(block)))
            case "tool_call":
                self._end_call(block)
            case "provider":
                self._out.append(PartEnd(block.part, _provider_raw(block)))

    def _end_call(self, block: _Block) -> None:
        raw = block.raw
        if raw.get("input") and not block.grown:  # it came whole, with the start
            self._out.append(PartDelta(block.part, arguments_text(raw["input"])))
        problem = None if _string(raw.get("name")) else NAMELESS
        more = {key: value for key, value in raw.items() if key not in _CALL_FIELDS and value is not None}
        self._out.append(PartEnd(block.part, kept(more) or None, problem))

    def _usage(self, counts: Json) -> Usage:
        return usage_of(counts)


def usage_of(counts: Json) -> Usage:
    """Return the normalised view of this wire's counts: its input tokens are those that no cache had."""
    return Usage(
        input=count_of(counts.get("input_tokens")),
        cache_read=count_of(counts.get("cache_read_input_tokens")),
        cache_write=count_of(counts.get("cache_creation_input_tokens")),
        output=count_of(counts.get("output_tokens")),
        reasoning=count_of(object_of(counts.get("output_tokens_details")).get("thinking_tokens")),
        raw=counts,
    )


def _text_raw(block: _Block) -> Json | None:
    """Return what to keep of a text beside itself: citations, for one."""
    whole = {field: value for field, value in block.whole().items() if value not in (None, [])}
    return None if whole.keys() <= {"type", "text"} else kept(whole)


def _thinking_raw(block: _Block) -> Json | None:
    whole = block.whole()
    return kept(whole) if whole.get("signature") or whole["type"] == "redacted_thinking" else None


def _provider_raw(block: _Block) -> Json:
    """Return the block with the input that was streamed; nothing if it was cut, for half a block cannot go back."""
    input = "".join(block.grown.pop("partial_json", ()))
    whole = block.whole()
    try:
        return kept(whole | {"input": json.loads(input)} if input else whole) or {}
    except (ValueError, RecursionError):
        return {}


def _string(value: object) -> str:
    return value if type(value) is str else ""


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if type(value) is list else []
