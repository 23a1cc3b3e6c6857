"""The simple vocabulary: thought, tool_call, tool_result, interaction_requested, done, error. Pure.

It is made of facts alone, so it is the same live, later and after a restart. Each run of a person ends with one `done`
or `error`; a sub-agent's shows as the tool result that it is.

```
thought                {run_id, text}
tool_call              {run_id, call_id, name, input}
tool_result            {run_id, call_id, name, status, is_error, text, elapsed_ms}
interaction_requested  {run_id, request_id, purpose, type, data, schema, call_id?, expires_at_ms?}
done                   {run_id, outcome, result?, stop_reason?}
error                  {run_id, code, message}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ownloop.core.events import Event, Fact, InteractionRequested, ResponseEnded, RunEnded, RunStarted, ToolEnded
from ownloop.core.messages import Json, TextBlock, ToolCallBlock, text_of


@dataclass(frozen=True, slots=True)
class BlocksState:
    """What earlier events said that later frames need; to start at a cursor, fill it from the session's state there."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Call ids that have no result yet, and their tools."""
    children: frozenset[str] = frozenset()
    """Live runs of sub-agents."""


def feed(state: BlocksState, event: Event) -> tuple[BlocksState, list[Json]]:
    """Take the next event and return its frames: JSON objects with `kind` and `seq`."""
    if not isinstance(event, Fact):
        return state, []
    run_id = event.run_id or ""
    match event.body:
        case RunStarted(depth=depth) if depth:
            return replace(state, children=state.children | {run_id}), []
        case RunEnded() if run_id in state.children:
            return replace(state, children=state.children - {run_id}), []
        case ResponseEnded() as body:
            frames = _response(body)
            names = {frame["call_id"]: frame["name"] for frame in frames if frame["kind"] == "tool_call"}
            state = replace(state, names={**state.names, **names}) if names else state
        case ToolEnded(call_id=call_id) as body:
            frames = [_result(body, state.names.get(call_id, ""))]
            state = replace(state, names={other: name for other, name in state.names.items() if other != call_id})
        case InteractionRequested() as body:
            frames = [_request(body)]
        case RunEnded() as body:
            frames = [_end(body)]
        case _:
            return state, []
    return state, [{"kind": frame.pop("kind"), "seq": event.seq, "run_id": run_id, **frame} for frame in frames]


def _response(body: ResponseEnded) -> list[Json]:
    frames: list[Json] = []
    if body.status in ("failed", "abandoned"):  # asked again, or the run ends in an error
        return frames
    for block in body.blocks:
        if isinstance(block, TextBlock) and block.text:
            frames.append({"kind": "thought", "text": block.text})
        elif isinstance(block, ToolCallBlock) and body.status != "cancelled":
            frames.append({"kind": "tool_call", "call_id": block.call_id, "name": block.name, "input": block.input})
    return frames


def _result(body: ToolEnded, name: str) -> Json:
    return {
        "kind": "tool_result",
        "call_id": body.call_id,
        "name": name,
        "status": body.status,
        "is_error": body.status != "ok",
        "text": text_of(body.blocks),
        "elapsed_ms": body.elapsed_ms,
    }


def _request(body: InteractionRequested) -> Json:
    frame: Json = {
        "kind": "interaction_requested",
        "request_id": body.request_id,
        "purpose": body.purpose,
        "type": body.type,
        "data": body.data,
        "schema": body.schema,
    }
    if body.call_id is not None:
        frame["call_id"] = body.call_id
    if body.expires_at_ms is not None:
        frame["expires_at_ms"] = body.expires_at_ms
    return frame


def _end(body: RunEnded) -> Json:
    if body.outcome == "failed":
        error = body.error
        return {
            "kind": "error",
            "code": error.code if error else "failed",
            "message": error.message if error else "the run failed",
        }
    frame: Json = {"kind": "done", "outcome": body.outcome}
    if body.result is not None:
        frame["result"] = body.result
    if body.stop_reason is not None:
        frame["stop_reason"] = body.stop_reason
    return frame
