"""The ports: what the edges implement and the runtime uses. Those with promises have a public conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from ownloop.core.backend import Adapter, Backend, ModelSettings
from ownloop.core.events import Draft, Fact, Limits, PreparedCall, Rule, ToolStatus
from ownloop.core.inbox import InboxItem, InboxRow
from ownloop.core.interactions import Purpose
from ownloop.core.messages import Json, ResultContent, ToolCallBlock
from ownloop.core.toolspec import ToolSpec

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    DepsT = TypeVarWithDefault("DepsT", default=Any, covariant=True)
else:
    DepsT = TypeVar("DepsT", covariant=True)


# --- time, ids, threads: replaced by the simulator -------------------------------------------------------------------


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back, for measuring."""
        ...

    async def sleep_until(self, at_ms: int) -> None:
        """Return when `now_ms() >= at_ms`; at once if it is.

        If the clock is set back meanwhile, return after the time that it would have taken: who waits looks again.
        """
        ...


class Ids(Protocol):
    def new(self, kind: str) -> str:
        """Return a fresh id, `kind_…`: letters, digits, `_` only; unguessable; later ids sort after earlier ones."""
        ...


class Threads(Protocol):
    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a blocking function in a worker thread, in the caller's context.

        Cancelling the awaiting task gives up on the result; the function itself runs on to its end.
        """
        ...


# --- the store -------------------------------------------------------------------------------------------------------

PostResult: TypeAlias = Literal["new", "duplicate", "conflict"]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session's row."""

    session_id: str
    agent: str
    agent_digest: str
    principal: str
    tenant: str = "local"
    title: str | None = None
    parent_id: str | None = None
    parent_seq: int | None = None
    head_seq: int = 0
    epoch: int = 0
    owner: str | None = None
    takeovers: int = 0
    closing: bool = False
    pinned: bool = False
    runnable_at_ms: int | None = None
    updated_ms: int = 0
    live_run_id: str | None = None
    open_requests: int = 0


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request's row; what is asked stands in the fact `seq` of its session."""

    session_id: str
    request_id: str
    seq: int
    run_id: str | None
    purpose: Purpose
    assignee: str | None
    expires_at_ms: int | None
    state: Literal["open", "answered", "closed"]
    answer_digest: str | None = None
    answered_by: str | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run's row."""

    session_id: str
    run_id: str
    first_seq: int
    last_seq: int
    phase: Literal["queued", "live", "ended"]
    """`queued`: its input was accepted and has not started it; the seqs are 0."""
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to append to one session, until a newer epoch."""

    session_id: str
    worker_id: str
    epoch: int
    head_seq: int
    takeovers: int = 0
    """Claims from a dead owner in a row, without progress between them."""
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """A saved piece of an open stream: what a reader elsewhere, or the next owner, starts from."""

    stream: int
    units: int
    body: Json
    """The blocks so far and their order, as `turn.TurnBuilder.tail` wrote them."""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """What an idempotency key was answered with."""

    operation: str
    request_digest: str
    status: int
    reply: Any


@dataclass(frozen=True, slots=True)
class Page:
    limit: int = 100
    after: str | None = None
    """The id of the last row of the page before; of requests `session_id/request_id`."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which sessions or requests; None = any."""

    agent: str | None = None
    tenant: str | None = None
    principal: str | None = None
    session_id: str | None = None
    state: str | None = None
    """Of requests: open (default of callers), answered, closed."""


class Store(Protocol):
    """Journal, inbox and records of all sessions (docs/design.md). Every method is one transaction: all or nothing.

    Raises `StoreError`s only. `open` before use, `aclose` after; both may be called again. After `aclose`, nothing of
    the store runs on.
    """

    async def open(self) -> None: ...

    async def aclose(self) -> None: ...

    async def create(
        self, info: SessionInfo, facts: Sequence[Draft], at_ms: int, *, copied: Sequence[Fact] = ()
    ) -> None:
        """Create a session with its first facts: the one append without a lease.

        They are of epoch `info.epoch`: 0, or a fork's the one its parent had at `info.parent_seq`. seq goes on at
        `info.parent_seq` + 1, or 1. An import passes in `copied` what stands before them, as it was written elsewhere.
        Raises ConflictError if the id exists.
        """
        ...

    async def post(self, session_id: str, item: InboxItem) -> PostResult:
        """Put one row into the inbox; durable when it returns; sets `runnable_at_ms` = now in the same transaction.

        Same (session, principal, idem_key) with the same kind and body → duplicate, with another → conflict. An
        `answer` also moves its request open → answered: an equal answer again is a duplicate, another one a conflict. A
        `stop` marks the session closing; every later post raises SessionClosedError, and so does any post to a closed
        session, except an equal `stop` (duplicate). An input with `on_busy="reject"` raises BusyError while a root run
        is live or another input waits. Raises NotFoundError for an unknown session or request.
        """
        ...

    async def claim(self, worker_id: str, session_id: str | None = None, *, now_ms: int) -> Lease | None:
        """Take a session to own: that one, or the one that is runnable the longest; None if none may be taken.

        Free, owned by a dead worker, or by this worker itself; always epoch + 1. From a dead owner: takeovers + 1. A
        named session may be claimed whatever its `runnable_at_ms`; unnamed ones when `runnable_at_ms <= now_ms` or
        their owner is dead, never this worker's own, which a segment is driving. Raises StoreInUseError for a named
        session whose owner lives, NotFoundError if there is none, StoreError if this worker is not registered
        (`heartbeat`).
        """
        ...

    async def inbox(self, lease: Lease) -> Sequence[InboxRow]:
        """Return all untaken rows in order of arrival."""
        ...

    async def append(
        self,
        lease: Lease,
        after_seq: int,
        facts: Sequence[Draft],
        *,
        at_ms: int,
        takes: Sequence[int] = (),
        runnable_at_ms: int | None = None,
        release: bool = False,
        progress: bool = True,
    ) -> Sequence[Fact]:
        """Append facts after `after_seq` and take inbox rows, in one transaction; return the facts as written.

        Keeps `requests`, `runs`, `rules` and the session's row in step. `facts` may be empty. `release` gives the
        session back: runnable_at_ms becomes now if an untaken row exists, else the given value. `progress` resets
        takeovers.

        Raises:
            FencedError: the lease's epoch is not the session's any more.
            StaleError: `after_seq` is not the head; or a fact by "clock" or "system", or a denial of a message with
                deny_open, closes a request that is not open any more.
            StoreFullError, StoreError.
        """
        ...

    async def read(self, session_id: str, after: int = 0, limit: int = 1000) -> Sequence[Fact]:
        """Return up to `limit` facts with seq > `after`, in order; follows parents. Raises NotFoundError."""
        ...

    async def save_tail(self, lease: Lease, tails: Sequence[Tail]) -> None:
        """Replace the session's tails; an empty sequence clears them. Silently does nothing when fenced."""
        ...

    async def tails(self, session_id: str) -> Sequence[Tail]: ...

    async def heartbeat(self, worker_id: str, *, pid: int, address: str = "") -> None:
        """Say that this worker lives; the first call registers it."""
        ...

    async def retire(self, worker_id: str) -> None:
        """Forget this worker; its sessions are free."""
        ...

    async def put_blob(self, session_id: str, digest: str, media_type: str, body: bytes) -> None: ...

    async def get_blob(self, digest: str) -> tuple[str, bytes]:
        """Return media type and bytes. Raises NotFoundError."""
        ...

    async def session(self, session_id: str) -> SessionInfo:
        """Raises NotFoundError, also for a deleted one."""
        ...

    async def sessions(self, which: Filter, page: Page) -> Sequence[SessionInfo]:
        """Newest update first."""
        ...

    async def set_title(self, session_id: str, title: str | None) -> None: ...

    async def requests(self, which: Filter, page: Page) -> Sequence[RequestInfo]:
        """Oldest first."""
        ...

    async def request(self, session_id: str, request_id: str) -> RequestInfo: ...

    async def run(self, run_id: str, session_id: str | None = None) -> RunInfo:
        """Return a run as it stands in a session: by default the one that started it; forks have it too.

        It is known from the post of the input that carries its id. Raises NotFoundError.
        """
        ...

    async def rules(self, session_id: str) -> Sequence[Rule]: ...

    async def runnable(self, now_ms: int, limit: int = 100) -> Sequence[str]:
        """Return ids of sessions that `claim` without a name would take now."""
        ...

    async def remember_reply(self, principal: str, key: str, reply: StoredReply, at_ms: int) -> StoredReply:
        """Keep the first reply to a key, and return the one that is kept."""
        ...

    async def reply(self, principal: str, key: str) -> StoredReply | None: ...

    async def delete(self, session_id: str) -> None:
        """Delete a session with all it holds; a prefix that forks share stays until the last of them goes."""
        ...


# --- tools -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool came to; never an exception."""

    status: ToolStatus
    blocks: tuple[ResultContent, ...]
    blobs: Mapping[str, tuple[str, bytes]] = field(default_factory=dict[str, tuple[str, bytes]])
    """Media type and bytes of the blob blocks, by digest; the loop stores them before the result."""
    confirmed_cancel: bool = False
    """The tool ended because it was cancelled, and says so by having stopped."""
    notes: tuple[str, ...] = ()


class ToolContext(Protocol[DepsT]):
    """What a tool may know and do while it runs. A parameter annotated with it is not shown to the model.

    `ToolContext[Deps]` types `deps`. `progress` and `ask` are awaited, so they are for async tools.
    """

    @property
    def session_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def call_id(self) -> str: ...
    @property
    def attempt(self) -> int:
        """1 for the first start."""
        ...

    @property
    def key(self) -> str:
        """The idempotency key: hand it to the service you call, and a repeated start changes nothing."""
        ...

    @property
    def deps(self) -> DepsT:
        """What the agent was given as `deps`."""
        ...

    @property
    def secrets(self) -> Secrets: ...

    async def progress(self, data: Any) -> None:
        """Show readers how far the tool is; JSON. Not replayed once the tool has ended."""
        ...

    async def ask(self, question: str, schema: Json | None = None) -> Any:
        """Ask a person in mid-call and wait; returns the value, or None if they decline.

        Pins the process: a crash while it waits makes the call's outcome unknown.
        """
        ...


@dataclass(frozen=True, slots=True)
class PrepareContext:
    """What a policy may look at."""

    session_id: str
    run_id: str
    rules: Mapping[str, Rule]
    deps: Any = None


class ToolExecutor(Protocol):
    """Finds, checks and runs tools. Neither method raises; failures are verdicts and results."""

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """What the model is offered, in a fixed order."""
        ...

    async def prepare(self, call: ToolCallBlock, input: Json, context: PrepareContext) -> PreparedCall:
        """Decide about one call with this input: schema first, then policy; deny wins. Starts nothing."""
        ...

    async def execute(self, name: str, input: Json, context: ToolContext) -> ToolResult:
        """Run a tool to its end. Cancelling the awaiting task cancels the tool; a sync tool's thread runs on.

        The cancel becomes a result: `cancelled` and confirmed if the tool ended by it, `unknown` if its thread runs on
        (`ToolSpec.cancellable` says so beforehand), the tool's own if it came to one. No time limit is set here.
        """
        ...


class Secrets(Protocol):
    def get(self, name: str) -> str:
        """Return a secret. Raises ConfigError naming the variable that is missing."""
        ...

    def redact(self, text: str) -> str:
        """Return `text` with every secret handed out so far replaced by `[name]`."""
        ...


# --- who runs what ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelCall:
    """What hooks around a model call see."""

    session_id: str
    run_id: str
    turn: int
    system: str
    messages: Sequence[Any]
    settings: ModelSettings


@dataclass(frozen=True, slots=True)
class Hooks:
    """Coroutines around model and tool calls. One that raises fails the run, with its error in the journal."""

    before_model: Callable[[ModelCall], Awaitable[ModelCall | None]] | None = None
    """May return a changed call: messages and system for this request only; the journal keeps the originals."""
    after_model: Callable[[ModelCall, Any], Awaitable[None]] | None = None
    before_tool: Callable[[str, Json, ToolContext], Awaitable[None]] | None = None
    after_tool: Callable[[str, Json, ToolResult, ToolContext], Awaitable[ToolResult | None]] | None = None
    """May return a changed result."""


class Definition(Protocol):
    """A declarative agent as the host drives it. `Agent` builds it; the runtime never imports agent."""

    name: str
    config_schema: Json
    settings: ModelSettings
    limits: Limits
    hooks: Hooks
    executor: ToolExecutor
    deps: Any
    secrets: Secrets
    """Those that its tools may ask for; they are kept out of its errors."""
    approval_expires_ms: int | None

    @property
    def digest(self) -> str: ...

    @property
    def model(self) -> str:
        """The model of sessions that choose none."""
        ...

    async def instructions(self, session_id: str, config: Json) -> str: ...

    def open_backend(self, model: str) -> Adapter | Callable[[], Backend]:
        """Return an adapter, or a factory of three-method Backends. Raises ConfigError."""
        ...


RunSegment: TypeAlias = Callable[[str], Awaitable[None]]


class Engine(Protocol):
    """Who runs which session when. Carries session ids and nothing else; the lease alone decides who writes."""

    def wake(self, session_id: str, at_ms: int | None = None) -> None:
        """Ask for a segment, now or at a time. May be lost, doubled or late: a sweeper finds what is runnable."""
        ...

    def serve(self, run_segment: RunSegment) -> AbstractAsyncContextManager[None]:
        """Run segments while the context is open; leaving it cancels those that run and waits for them."""
        ...


class Bus(Protocol):
    """Best-effort frames between the processes that serve one store."""

    def publish(self, topic: str, frame: Any) -> None: ...

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[Any]]: ...


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks."""

    id: str = "local"
    tenant: str = "local"
    scopes: frozenset[str] = frozenset({"*"})


class Authenticator(Protocol):
    async def __call__(self, headers: Mapping[str, str]) -> Principal | None: ...
