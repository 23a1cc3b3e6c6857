"""What the machine asks of the runtime. Commands are due by state: one that was lost becomes due again.

`InFlight` says what this segment is performing; it is the only thing beside the state that `due` looks at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ownloop.core.events import Draft, PreparedCall
from ownloop.core.interactions import Purpose
from ownloop.core.messages import Json


@dataclass(frozen=True, slots=True)
class InFlight:
    models: frozenset[str] = frozenset()
    """Runs whose model call is being read."""
    tools: frozenset[tuple[str, int]] = frozenset()
    """(call_id, attempt) of tools being run."""

    def __bool__(self) -> bool:
        return bool(self.models or self.tools)


@dataclass(frozen=True, slots=True)
class StartRun:
    """Record run_started for the oldest waiting input; the runtime adds limits and model."""

    input_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class CallModel:
    run_id: str
    turn: int
    attempt: int
    input_ids: tuple[str, ...]
    """The inputs that this attempt brings into the history."""
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class CancelModel:
    run_id: str


@dataclass(frozen=True, slots=True)
class CloseResponse:
    """Record response_ended for a response whose reader is gone, with the text of its tail."""

    run_id: str
    turn: int
    status: Literal["abandoned", "cancelled"]
    stream: int


@dataclass(frozen=True, slots=True)
class PrepareCall:
    """Ask policy about this input; record the verdict."""

    run_id: str
    turn: int
    call_id: str
    input: Json


@dataclass(frozen=True, slots=True)
class Ask:
    """Record interaction_requested, with a new request id."""

    run_id: str
    call_id: str
    purpose: Purpose
    prepared: PreparedCall | None = None


@dataclass(frozen=True, slots=True)
class StartTool:
    """Record tool_started and, once it is committed, enter the tool."""

    run_id: str
    call_id: str
    attempt: int
    authority: str


@dataclass(frozen=True, slots=True)
class CancelTool:
    call_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Record:
    """Append these facts, together."""

    facts: tuple[Draft, ...]


@dataclass(frozen=True, slots=True)
class EndSegment:
    """Nothing is left to do here before `wake_at_ms`, or before somebody posts."""

    wake_at_ms: int | None = None


Command: TypeAlias = (
    StartRun
    | CallModel
    | CancelModel
    | CloseResponse
    | PrepareCall
    | Ask
    | StartTool
    | CancelTool
    | Record
    | EndSegment
)
