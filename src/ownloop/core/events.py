"""What happened in a session: facts, which are journaled, and live events, which are only shown.

Facts are a closed, versioned set. A session's facts have one gapless `seq`; state is their fold. Live
events are slices of open streams; they never touch the journal, for the fact that closes their stream holds their text.

Whoever adds a kind: give it a dataclass here, a row in `session.apply`, and if old readers must refuse it, a higher
`v`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from ownloop.core.backend import PartType, StopReason
from ownloop.core.interactions import Decision, Purpose
from ownloop.core.messages import (
    BlobBlock,
    Block,
    Json,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from ownloop.core.toolspec import OnUnknown
from ownloop.core.usage import Usage

InputMode: TypeAlias = Literal["queue", "steer"]
Outcome: TypeAlias = Literal["completed", "cancelled", "failed", "max_turns", "budget_exceeded"]
Status: TypeAlias = Literal["complete", "cut", "cancelled", "failed", "abandoned"]
Verdict: TypeAlias = Literal["run", "ask", "deny", "invalid", "unknown_tool"]
ToolStatus: TypeAlias = Literal["ok", "error", "denied", "invalid", "cancelled", "timeout", "unknown", "not_run"]
Order: TypeAlias = tuple[tuple[int, int], ...]
"""Run lengths `(block, units)` in order of arrival."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A failure as the journal keeps it. Holds no secret."""

    code: str
    message: str
    retryable: bool = False
    retry_after_ms: int | None = None
    """How long to wait before the next attempt: the provider's advice, or the loop's own back-off."""
    status: int | None = None
    request_id: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits one run was started with. They are part of its first fact, so that a fold needs nothing else."""

    max_turns: int | None = 50
    budget_tokens: int | None = None
    """Tokens read and written (`Usage.total`) by this run and its sub-agents."""
    budget_cost: float | None = None
    failures: int = 3
    """Failed responses of one turn, after which the run fails."""
    abandons: int = 3
    attempts: int = 3
    """Starts of one call with on_unknown="retry"."""
    continue_on_cut: int = 0
    """How often a run goes on after an answer that was cut without calls."""
    continue_on_other: bool = False
    """A three-method Backend that ends with `other` and no calls is asked again."""
    grace_ms: int = 10_000
    """How long a cancelled tool may take to confirm."""
    retry_interrupted: bool = False
    """Ask again for a response that broke off after something was shown, behind an `abandoned` fact."""


@dataclass(frozen=True, slots=True)
class ParentRef:
    session_id: str
    seq: int
    """The last fact shared with the parent."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A remembered approval: this tool, with exactly this input, in this session."""

    rule_id: str
    tool: str
    tool_digest: str
    input_digest: str


@dataclass(frozen=True, slots=True)
class SessionStarted:
    agent: str
    agent_digest: str
    config: Json = field(default_factory=dict[str, Any])
    """Secrets only as names."""
    principal: str = "local"
    parent: ParentRef | None = None
    kind: ClassVar[str] = "session_started"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class InputAccepted:
    """A person said something. The envelope's run_id is the run that this input starts, if it starts one."""

    input_id: str
    mode: InputMode
    blocks: tuple[TextBlock | BlobBlock, ...]
    principal: str = "local"
    idem_key: str | None = None
    type: str = "message"
    """Another type, and `data`, go verbatim to a foreign agent."""
    data: Any = None
    kind: ClassVar[str] = "input_accepted"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class InputWithdrawn:
    input_id: str
    principal: str = "local"
    kind: ClassVar[str] = "input_withdrawn"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class RunStarted:
    limits: Limits
    model: str
    input_ids: tuple[str, ...] = ()
    """One for a root run; none for a sub-agent, whose task is in `task`."""
    parent_run_id: str | None = None
    parent_call_id: str | None = None
    depth: int = 0
    agent: str | None = None
    task: tuple[TextBlock | BlobBlock, ...] = ()
    kind: ClassVar[str] = "run_started"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Opens the stream of a response. The inputs it names enter the history here and nowhere else."""

    turn: int
    attempt: int
    backend: str
    provider: str
    model: str
    input_ids: tuple[str, ...] = ()
    kind: ClassVar[str] = "turn_started"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """Closes the stream of its turn. Its blocks replace what was shown."""

    turn: int
    status: Status
    blocks: tuple[TextBlock | ThinkingBlock | ToolCallBlock | ProviderBlock, ...] = ()
    stop_reason: StopReason | None = None
    raw_stop: str | None = None
    order: Order | None = None
    """None when the blocks came one after the other."""
    usage: Usage | None = None
    cost: float | None = None
    request_id: str | None = None
    error: ErrorInfo | None = None
    kind: ClassVar[str] = "response_ended"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class PreparedCall:
    call_id: str
    verdict: Verdict
    rule: str = ""
    """What decided: "policy", "approval=ask", a remembered rule's id …"""
    input_digest: str = ""
    """Of the effective input."""
    tool_digest: str = ""
    input: Json | None = None
    """The effective input, where it differs from what was proposed or edited."""
    problem: str | None = None
    """What the model is told when the call does not run."""
    purpose: Literal["approval", "question"] = "approval"
    """`question`: the tool is itself a question to a person, and its answer the result."""


@dataclass(frozen=True, slots=True)
class CallsPrepared:
    turn: int
    calls: tuple[PreparedCall, ...]
    kind: ClassVar[str] = "calls_prepared"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class InteractionRequested:
    request_id: str
    purpose: Purpose
    data: Any
    """What is shown: for an approval {tool, input, description}, for a question {question} …"""
    schema: Json
    """What an answer must fit."""
    type: str = ""
    """The kind of question in its asker's own words; that of a foreign agent's request."""
    call_id: str | None = None
    input_digest: str | None = None
    tool_digest: str | None = None
    assignee: str | None = None
    expires_at_ms: int | None = None
    kind: ClassVar[str] = "interaction_requested"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class InteractionResolved:
    request_id: str
    by: str
    """A principal, "clock" or "system"."""
    decision: Decision
    value: Any = None
    edited_input: Json | None = None
    effective_digest: str | None = None
    """Of the input that was approved: the edited one, or the one shown."""
    note: str | None = None
    rule: Rule | None = None
    kind: ClassVar[str] = "interaction_resolved"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """Committed before the tool is entered. Opens the stream of its progress."""

    call_id: str
    attempt: int
    key: str
    """The idempotency key: the same for every attempt of this call."""
    authority: str
    """What allowed it: a policy rule, a request_id, a remembered rule."""
    effective_digest: str
    on_unknown: OnUnknown
    child_run_id: str | None = None
    kind: ClassVar[str] = "tool_started"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """The one result of a call."""

    call_id: str
    attempt: int
    """The attempt that ended; 0 = never started."""
    status: ToolStatus
    blocks: tuple[TextBlock | BlobBlock, ...] = ()
    elapsed_ms: int = 0
    late: bool = False
    kind: ClassVar[str] = "tool_ended"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Asked for by a person; or by "system" with an error, when the run cannot go on: it then ends failed."""

    principal: str = "local"
    error: ErrorInfo | None = None
    kind: ClassVar[str] = "cancel_requested"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The one terminal event of a run."""

    outcome: Outcome
    stop_reason: StopReason | None = None
    usage: Usage | None = None
    cost: float | None = None
    error: ErrorInfo | None = None
    result: Any = None
    """The last response's text; of a foreign agent what its `interaction` returned."""
    kind: ClassVar[str] = "run_ended"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """Applies from the next turn."""

    patch: Json
    principal: str = "local"
    kind: ClassVar[str] = "config_changed"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class RuleRevoked:
    rule_id: str
    principal: str = "local"
    kind: ClassVar[str] = "rule_revoked"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Compacted:
    """The history up to `upto_seq`, an exchange border, is from now on these blocks."""

    upto_seq: int
    blocks: tuple[TextBlock | BlobBlock, ...]
    usage: Usage | None = None
    kind: ClassVar[str] = "compacted"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth keeping that changes no state: a foreign agent's log, a late result, a warning."""

    level: Literal["debug", "info", "warning", "error"]
    data: Any
    kind: ClassVar[str] = "note"
    v: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class SessionClosed:
    by: str
    kind: ClassVar[str] = "session_closed"
    v: ClassVar[int] = 1


FactBody: TypeAlias = (
    SessionStarted
    | InputAccepted
    | InputWithdrawn
    | RunStarted
    | TurnStarted
    | ResponseEnded
    | CallsPrepared
    | InteractionRequested
    | InteractionResolved
    | ToolStarted
    | ToolEnded
    | CancelRequested
    | RunEnded
    | ConfigChanged
    | RuleRevoked
    | Compacted
    | Note
    | SessionClosed
)
FACTS: dict[str, type[FactBody]] = {cls.kind: cls for cls in get_args(FactBody)}


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a journal."""

    seq: int
    at_ms: int
    """Unix milliseconds."""
    epoch: int
    run_id: str | None
    body: FactBody


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact that has no place in the journal yet."""

    run_id: str | None
    body: FactBody


@dataclass(frozen=True, slots=True)
class BlockStarted:
    """A block of a response begins; counts 1 unit."""

    stream: int
    block: int
    type: PartType
    name: str | None = None
    call_id: str | None = None
    kind: ClassVar[str] = "block_started"


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of a block; counts its code points."""

    stream: int
    block: int
    text: str
    kind: ClassVar[str] = "delta"


@dataclass(frozen=True, slots=True)
class BlockEnded:
    """A block is complete; counts 1 unit."""

    stream: int
    block: int
    kind: ClassVar[str] = "block_ended"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running tool says of itself; counts 1 unit, and is not replayed once the tool has ended."""

    stream: int
    data: Any
    kind: ClassVar[str] = "progress"


LiveEvent: TypeAlias = BlockStarted | Delta | BlockEnded | Progress
Event: TypeAlias = Fact | LiveEvent

AnyBlock: TypeAlias = Block | ToolResultBlock


def units(event: LiveEvent) -> int:
    """Return how far a live event moves its stream's offset (docs/design.md, Streams and cursors)."""
    return len(event.text) if isinstance(event, Delta) else 1
