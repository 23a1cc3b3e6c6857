"""The turn builder: an adapter's parts in, live events and one `ResponseEnded` out. Pure; one per response.

However a stream is sliced, the response is the same. Block numbers count blocks in order of appearance and are the
positions of the blocks in `ResponseEnded.blocks`, so that what a reader missed can be recomputed from the fact alone
(docs/design.md, Streams and cursors): nothing is dropped from the list, not even an empty block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast, get_args

from ownloop.core.backend import AgentTurn, Finish, Part, PartDelta, PartEnd, PartStart, PartType, ToolCall, UsageSeen
from ownloop.core.codec import dumps, finite, refuse
from ownloop.core.events import BlockEnded, BlockStarted, Delta, ErrorInfo, LiveEvent, Order, ResponseEnded, Status
from ownloop.core.messages import Json, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.core.text import TextCleaner, clean_json, clean_text
from ownloop.core.usage import Usage

CUT = "cut by the output limit: the arguments are not complete, so the call was not run"
INTERRUPTED = "the response broke off inside this call, so it was not run"
WITHHELD = "the provider withheld this response, so the call was not run"
REFUSALS = frozenset({"refusal", "content_filter"})
"""Stop words after which no call of the response may run, and an empty response is not asked for again."""

MAX_DEPTH = 100
"""Levels of arrays and objects in arguments: no tool means more, and the journal's writer gives up at some 250."""

AssistantBlock = TextBlock | ThinkingBlock | ToolCallBlock | ProviderBlock


class _OpenBlock:
    """What is known of a block while it streams."""

    __slots__ = ("call_id", "cleaner", "ended", "name", "pieces", "problem", "provider_id", "raw", "type")

    def __init__(self, type: PartType, name: str, call_id: str, provider_id: str | None) -> None:
        self.type = type
        self.name = name
        self.call_id = call_id
        self.provider_id = provider_id
        self.pieces: list[str] = []
        self.cleaner = TextCleaner()
        self.ended = False
        self.raw: Json | None = None
        self.problem: str | None = None

    def build(self, interrupted: str | None) -> AssistantBlock:
        """Return the block as it goes into the fact; `interrupted` says why a call may be incomplete."""
        text = "".join(self.pieces)
        if self.type == "text":
            return TextBlock(text, self.raw)
        if self.type == "thinking":
            return ThinkingBlock(text, self.raw)
        if self.type == "provider":
            return ProviderBlock(self.raw or {})
        input, problem = ({}, self.problem) if self.problem else parse_arguments(text)
        return ToolCallBlock(
            self.call_id,
            self.name,
            input,
            provider_id=self.provider_id,
            arguments=None if dumps(input) == text else text,
            # Of a response that was cut, a call that does not parse is one that was cut.
            problem=interrupted if problem and interrupted else problem,
            raw=self.raw,
        )


def parse_arguments(text: str) -> tuple[Json, str | None]:
    """Read a call's arguments; return the input, or `{}` and what is wrong with the text.

    Nothing and null mean no arguments; an object that was encoded twice is decoded twice; raw control characters inside
    strings are taken (quirks 22-27). Everything else that is not one JSON object is a problem, never repaired.
    """
    if not text.strip():
        return {}, None
    try:
        value: Any = json.loads(text, strict=False, parse_constant=refuse, parse_float=finite)
        if isinstance(value, str):
            value = json.loads(value, strict=False, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not valid JSON ({error}); send one JSON object"
    if value is None:
        return {}, None
    if not isinstance(value, dict):
        return {}, f"the arguments are a JSON {_json_type(value)}; send one JSON object"
    if is_too_deep(value):
        return {}, f"the arguments are nested too deeply; send at most {MAX_DEPTH} levels"
    return clean_json(value), None


def _checked(raw: Json) -> Json:
    """Return a provider's block cleaned; it goes into tails and facts, so it must be JSON."""
    try:
        dumps(raw)
        return clean_json(raw)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"the raw form of a block is not JSON: {error}") from error


def is_too_deep(value: Any) -> bool:
    """Whether a JSON value has more than MAX_DEPTH levels."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("Json", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _json_type(value: object) -> str:
    names: dict[type, str] = {list: "array", str: "string", bool: "boolean"}
    return names.get(type(value), "number")


class TurnBuilder:
    """Build one response. `mint` returns a fresh call id; `stream` is the seq of the turn_started fact."""

    __slots__ = ("_blocks", "_finish", "_mint", "_numbers", "_order", "stream", "units", "usage")

    def __init__(self, stream: int, mint: Callable[[], str]) -> None:
        self.stream = stream
        self.units = 0
        self.usage: Usage | None = None
        self._mint = mint
        self._blocks: list[_OpenBlock] = []
        self._numbers: dict[int, int] = {}
        self._order: list[list[int]] = []
        self._finish: Finish | None = None

    @property
    def finish(self) -> Finish | None:
        """The provider's last word, once it was said."""
        return self._finish

    def feed(self, parts: Iterable[Part]) -> list[LiveEvent]:
        """Take one batch of parts; deltas of the same block that follow each other become one.

        Raises:
            ValueError: the parts break the adapter's contract (a bug in the adapter).
        """
        out: list[LiveEvent] = []
        run_number = -1
        run: list[str] = []
        for part in parts:
            if type(part) is PartDelta:  # the hot path: one per token
                number = self._numbers.get(part.index, -1)
                if number < 0 or self._blocks[number].ended:
                    raise ValueError(f"delta for block {part.index!r}, which is not open")
                if number != run_number:
                    if run:
                        self._text(run_number, "".join(run), out)
                        run = []
                    run_number = number
                run.append(part.text)
                continue
            if run:
                self._text(run_number, "".join(run), out)
                run = []
            run_number = -1
            self._other(part, out)
        if run:
            self._text(run_number, "".join(run), out)
        return out

    def _other(self, part: Part, out: list[LiveEvent]) -> None:
        match part:
            case PartStart(index, type, name, provider_id):
                if index in self._numbers:
                    raise ValueError(f"block {index!r} starts twice")
                if type not in get_args(PartType):
                    raise ValueError(f"block {index!r} is of type {type!r}; expected one of {get_args(PartType)!r}")
                number = self._numbers[index] = len(self._blocks)
                call_id = self._mint() if type == "tool_call" else ""
                block = _OpenBlock(
                    type, clean_text(name or ""), call_id, clean_text(provider_id) if provider_id else None
                )
                self._blocks.append(block)
                self._count(number, 1)
                out.append(BlockStarted(self.stream, number, type, block.name or None, call_id or None))
            case PartEnd(index, raw, problem):
                number = self._numbers.get(index, -1)
                if number < 0 or self._blocks[number].ended:
                    raise ValueError(f"block {index!r} ends, but is not open")
                block = self._blocks[number]
                block.raw = None if raw is None else _checked(raw)
                block.problem = problem
                self._close(number, out)
            case UsageSeen(usage):
                self.usage = usage
            case Finish(stop_reason, raw_stop, request_id):
                self._finish = Finish(stop_reason, clean_text(raw_stop) if raw_stop else None, request_id)
            case _:  # `feed` took the deltas
                raise ValueError(f"{part!r} is no part of a response")

    def _text(self, number: int, text: str, out: list[LiveEvent]) -> None:
        block = self._blocks[number]
        text = block.cleaner.feed(text)
        if text:
            block.pieces.append(text)
            self._count(number, len(text))
            out.append(Delta(self.stream, number, text))

    def _close(self, number: int, out: list[LiveEvent]) -> None:
        block = self._blocks[number]
        held = block.cleaner.close()
        if held:
            block.pieces.append(held)
            self._count(number, len(held))
            out.append(Delta(self.stream, number, held))
        block.ended = True
        self._count(number, 1)
        out.append(BlockEnded(self.stream, number))

    def _count(self, number: int, units: int) -> None:
        self.units += units
        if self._order and self._order[-1][0] == number:
            self._order[-1][1] += units
        else:
            self._order.append([number, units])

    def end(
        self, turn: int, status: Status | None = None, error: ErrorInfo | None = None, cost: float | None = None
    ) -> tuple[list[LiveEvent], ResponseEnded]:
        """Close what is open and return the last live events and the fact that ends the stream.

        `status` None means that the provider finished: complete, or cut if it stopped at the output limit.
        """
        finish = self._finish
        if status is None:
            if finish is None:
                raise ValueError("the response has no Finish: pass the status it ended with")
            status = "cut" if finish.stop_reason == "max_tokens" else "complete"
        if status == "cut":
            interrupted: str | None = CUT
        elif status == "complete":
            interrupted = WITHHELD if finish is not None and finish.raw_stop in REFUSALS else None
        else:
            interrupted = INTERRUPTED
        out: list[LiveEvent] = []
        for number, block in enumerate(self._blocks):
            unsure = status == "complete" or (status in _BROKEN and not block.ended)
            if status == "cut":
                # Nothing where arguments were to come is "no arguments" in a complete response, and a cut here.
                unsure = number == len(self._blocks) - 1 and not "".join(block.pieces).strip()
            if not block.ended:
                self._close(number, out)
            if block.type == "tool_call" and unsure and block.problem is None:
                block.problem = interrupted
        blocks = tuple(block.build(interrupted) for block in self._blocks)
        return out, ResponseEnded(
            turn,
            status,
            blocks,
            finish.stop_reason if finish else None,
            finish.raw_stop if finish else None,
            order=_order(self._order),
            usage=self.usage,
            cost=cost,
            request_id=finish.request_id if finish else error.request_id if error else None,
            error=error,
        )

    def tail(self) -> Json:
        """Return what a reader elsewhere, or the next owner, needs of the stream so far (JSON)."""
        return {
            "blocks": [
                {
                    "type": block.type,
                    "name": block.name,
                    "call_id": block.call_id,
                    "provider_id": block.provider_id,
                    "text": "".join(block.pieces),
                    "ended": block.ended,
                    "raw": block.raw,
                }
                for block in self._blocks
            ],
            "order": [list(run) for run in self._order],
        }


_BROKEN: frozenset[Status] = frozenset({"cancelled", "failed", "abandoned"})


def _order(runs: Sequence[Sequence[int]]) -> Order | None:
    """Return the run lengths, or None when the blocks came one after the other."""
    sequential = all(run[0] == number for number, run in enumerate(runs))
    return None if sequential else tuple((run[0], run[1]) for run in runs)


def abandoned(turn: int, tail: Json | None, status: Status = "abandoned") -> ResponseEnded:
    """Close the response of a lost owner with the text of its last tail, if there is one."""
    blocks: list[AssistantBlock] = []
    runs: list[list[int]] = [list(run) for run in tail["order"]] if tail else []
    for number, saved in enumerate(tail["blocks"] if tail else ()):
        block = _OpenBlock(saved["type"], saved["name"], saved["call_id"], saved["provider_id"])
        block.pieces = [saved["text"]]
        block.raw = saved["raw"]
        block.problem = INTERRUPTED if block.type == "tool_call" else None
        if not saved["ended"]:  # its end counts as one unit, as for every block of a fact
            runs.append([number, 1])
        blocks.append(block.build(INTERRUPTED))
    merged: list[list[int]] = []
    for number, count in runs:
        if merged and merged[-1][0] == number:
            merged[-1][1] += count
        else:
            merged.append([number, count])
    return ResponseEnded(turn, status, tuple(blocks), order=_order(merged))


def streamed_text(block: AssistantBlock) -> str:
    """Return the text that the deltas of a finished block carried."""
    match block:
        case TextBlock(text) | ThinkingBlock(text):
            return text
        case ToolCallBlock(input=input, arguments=arguments):
            return dumps(input) if arguments is None else arguments
        case ProviderBlock():
            return ""


def missing(fact: ResponseEnded, stream: int, seen: int) -> list[LiveEvent]:
    """Return what a reader who saw `seen` units of this closed stream has not seen, in order of arrival.

    Text comes in as few deltas as that order allows, one per block where blocks did not interleave. A reader that stops
    anywhere inside has seen a prefix of the stream, so its offset is a cursor like any other.
    """
    texts = [streamed_text(block) for block in fact.blocks]
    types: list[PartType] = [block.type for block in fact.blocks]
    names = [(b.name, b.call_id) if isinstance(b, ToolCallBlock) else (None, None) for b in fact.blocks]
    order = fact.order or tuple((number, len(text) + 2) for number, text in enumerate(texts))
    return _suffix(stream, seen, texts, types, names, order)


def missing_of_tail(tail: Json, stream: int, seen: int) -> list[LiveEvent]:
    """Return what a reader who saw `seen` units of an open stream has not seen of its tail, as `missing` does."""
    blocks: list[Json] = tail["blocks"]
    return _suffix(
        stream,
        seen,
        [block["text"] for block in blocks],
        [block["type"] for block in blocks],
        [(block["name"] or None, block["call_id"] or None) for block in blocks],
        [(run[0], run[1]) for run in tail["order"]],
    )


def _suffix(
    stream: int,
    seen: int,
    texts: Sequence[str],
    types: Sequence[PartType],
    names: Sequence[tuple[str | None, str | None]],
    order: Sequence[tuple[int, int]],
) -> list[LiveEvent]:
    out: list[LiveEvent] = []
    place_in = [0] * len(texts)
    for number, count in order:
        first = place_in[number]
        last = place_in[number] = first + count
        known = min(seen, count)
        seen -= known
        if known == count:
            continue
        first += known  # of its block's units, 0 is the start, then the text, then the end
        if first == 0:
            out.append(BlockStarted(stream, number, types[number], *names[number]))
        text = texts[number][max(first - 1, 0) : last - 1]
        if text:
            out.append(Delta(stream, number, text))
        if last == len(texts[number]) + 2:
            out.append(BlockEnded(stream, number))
    return out


def is_empty(fact: ResponseEnded) -> bool:
    """Whether a complete response says nothing at all, so that it is worth asking once more."""
    return fact.raw_stop not in REFUSALS and not any(
        isinstance(block, ToolCallBlock | ProviderBlock) or (isinstance(block, TextBlock) and block.text.strip())
        for block in fact.blocks
    )


def agent_turn(fact: ResponseEnded) -> AgentTurn:
    """Return a response in the shape of the three-method contract; calls that must not run are left out."""
    calls = [
        ToolCall(block.call_id, block.name, block.input)
        for block in fact.blocks
        if isinstance(block, ToolCallBlock) and block.problem is None
    ]
    texts = [block.text for block in fact.blocks if isinstance(block, TextBlock) and block.text]
    return AgentTurn(texts, calls, "tool_use" if calls else fact.stop_reason or "other")
