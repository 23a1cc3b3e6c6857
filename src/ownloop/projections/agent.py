"""The `agent:*` vocabulary: stream_start, stream_delta, stream_end, message. Pure.

All ids derive from session, stream and block, so whoever comes back with a cursor gets the same ids again. A reader
that was away for a whole response gets its messages without the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ownloop.core.events import (
    BlockEnded,
    BlockStarted,
    Delta,
    Event,
    Fact,
    LiveEvent,
    ResponseEnded,
    ToolEnded,
    TurnStarted,
)
from ownloop.core.messages import Json, TextBlock, ToolCallBlock

AgentFrame: TypeAlias = tuple[str, Json]
"""Event name and payload."""

MAX_RESULT_CHARS = 15_000
"""Of a tool result's text in its message; the journal has all of it."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """What earlier events said that later frames need.

    To start at a cursor, give the calls without result and the open turns of the session's state there, and subscribe
    with `replay`, which shows again what the marked streams held.
    """

    session_id: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Call ids that have no result yet, and their tools."""
    turns: Mapping[str | None, int] = field(default_factory=dict[str | None, int])
    """Runs whose response is open, and its stream."""
    shown: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """Stream and block to message id, of the blocks of open streams that are shown."""


def feed(state: AgentState, event: Event) -> tuple[AgentState, list[AgentFrame]]:
    """Take the next event and return its frames."""
    if not isinstance(event, Fact):
        return _live(state, event)
    body = event.body
    if isinstance(body, TurnStarted):
        return replace(state, turns={**state.turns, event.run_id: event.seq}), []
    if isinstance(body, ResponseEnded):
        return _response(state, event, body)
    if isinstance(body, ToolEnded):
        names = {call_id: name for call_id, name in state.names.items() if call_id != body.call_id}
        return replace(state, names=names), [_result(state, event.seq, body)]
    return state, []


def _live(state: AgentState, event: LiveEvent) -> tuple[AgentState, list[AgentFrame]]:
    if isinstance(event, Delta):
        message_id = state.shown.get((event.stream, event.block))
        if message_id is None:  # thinking
            return state, []
        return state, [("agent:stream_delta", {"message_id": message_id, "delta": event.text})]
    if isinstance(event, BlockStarted) and event.type in ("text", "tool_call"):
        message_id = _message_id(state, event.stream, event.block if event.type == "tool_call" else None)
        frames: list[AgentFrame] = []
        if event.type == "tool_call":
            tool = {"message_id": message_id, "role": "tool_call", "tool_name": event.name or ""}
            frames.append(("agent:stream_start", tool))
        elif message_id not in state.shown.values():
            frames.append(("agent:stream_start", {"message_id": message_id, "role": "assistant"}))
        return replace(state, shown={**state.shown, (event.stream, event.block): message_id}), frames
    if isinstance(event, BlockEnded):
        message_id = state.shown.get((event.stream, event.block))
        if message_id is not None and message_id != _message_id(state, event.stream):
            return state, [("agent:stream_end", {"message_id": message_id})]
    return state, []


def _message_id(state: AgentState, stream: int, block: int | None = None) -> str:
    """Return the id of a tool call's message, or of the one message of all text of a response."""
    return f"{state.session_id}.{stream}" if block is None else f"{state.session_id}.{stream}.{block}"


def _response(state: AgentState, fact: Fact, body: ResponseEnded) -> tuple[AgentState, list[AgentFrame]]:
    stream = state.turns.get(fact.run_id, fact.seq)
    text_id = _message_id(state, stream)
    frames: list[AgentFrame] = []
    if text_id in state.shown.values():
        frames.append(("agent:stream_end", {"message_id": text_id}))
    names = dict(state.names)
    if body.status not in ("failed", "abandoned"):  # those are asked again, or end the run in an error
        texts = [block.text for block in body.blocks if isinstance(block, TextBlock) and block.text]
        if texts:
            frames.append(_message(text_id, "assistant", "\n".join(texts)))
        for number, block in enumerate(body.blocks):
            if isinstance(block, ToolCallBlock) and body.status != "cancelled":
                names[block.call_id] = block.name
                content = {"id": block.call_id, "tool": block.name, "input": block.input}
                frames.append(_message(_message_id(state, stream, number), "tool_call", content))
    turns = {run_id: open_stream for run_id, open_stream in state.turns.items() if run_id != fact.run_id}
    shown = {key: message_id for key, message_id in state.shown.items() if key[0] != stream}
    return replace(state, names=names, turns=turns, shown=shown), frames


def _result(state: AgentState, seq: int, body: ToolEnded) -> AgentFrame:
    text = next((block.text for block in body.blocks if isinstance(block, TextBlock)), "")
    content = {
        "text": text[:MAX_RESULT_CHARS] or "Done.",
        "tool_name": state.names.get(body.call_id, ""),
        "elapsed_ms": body.elapsed_ms,
    }
    # The seq of a result is that of no stream of a response, so the id is free.
    return _message(_message_id(state, seq), "tool_result", content)


def _message(message_id: str, role: str, content: object) -> AgentFrame:
    return "agent:message", {"message": {"id": message_id, "role": role, "content": content}}
