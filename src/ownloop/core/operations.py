"""What the operations of the service take and give: plain values, the same for code, terminal and every binding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ownloop.core.events import ErrorInfo, Outcome
from ownloop.core.interactions import Purpose
from ownloop.core.messages import Json
from ownloop.core.usage import Usage

OnBusy: TypeAlias = Literal["queue", "steer", "reject"]


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent that is served here."""

    name: str
    model: str
    config_schema: Json
    tools: tuple[Json, ...]
    foreign: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that is durable. Its run may be live already (a steer), or start now, or later."""

    session_id: str
    input_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Asked:
    """An open request, with what is asked."""

    session_id: str
    request_id: str
    run_id: str | None
    purpose: Purpose
    data: Any
    schema: Json
    type: str = ""
    call_id: str | None = None
    assignee: str | None = None
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """One answer of a batch."""

    session_id: str
    request_id: str
    answer: Any


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run stands. `interrupted` waits for a person; only `ended` has an outcome."""

    session_id: str
    run_id: str
    state: Literal["running", "interrupted", "ended"]
    outcome: Outcome | None = None
    result: Any = None
    """The last response's text; of a foreign agent what it returned."""
    requests: tuple[Asked, ...] = ()
    usage: Usage | None = None
    cost: float | None = None
    error: ErrorInfo | None = None
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        return self.result if isinstance(self.result, str) else ""
