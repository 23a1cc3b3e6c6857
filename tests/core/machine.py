"""A simulator of the runtime around the run machine: one session's store, its owner, and the world outside. Pure.

It does what `runtime.loop` does, without an event loop: each round plans on a trial state, appends the whole batch, and
only then begins effects. Everything it writes is audited, fact by fact, by `audit.Audit`, which knows nothing of the
machine. Tests play the rest of the world: models, tools, people, crashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ownloop.core import results
from ownloop.core.codec import digest
from ownloop.core.commands import (
    Ask,
    CallModel,
    CancelModel,
    CancelTool,
    CloseResponse,
    EndSegment,
    InFlight,
    PrepareCall,
    Record,
    StartRun,
    StartTool,
)
from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Draft,
    ErrorInfo,
    Fact,
    FactBody,
    InputMode,
    InteractionRequested,
    InteractionResolved,
    Limits,
    PreparedCall,
    ResponseEnded,
    RunEnded,
    RunStarted,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    ToolStatus,
    TurnStarted,
    Verdict,
)
from ownloop.core.inbox import AnswerRequest, Cancel, InboxBody, InboxItem, InboxRow, Input, LateResult, Stop
from ownloop.core.intake import intake, late_result
from ownloop.core.interactions import Answer, Purpose, answer_schema, read_answer
from ownloop.core.messages import Json, TextBlock, ToolCallBlock
from ownloop.core.run import CallState, RequestState, RunState
from ownloop.core.session import SessionState, advance, due, expired, fold, history
from ownloop.core.toolspec import OnUnknown
from ownloop.core.usage import Usage
from ownloop.errors import ConflictError, FencedError, SessionClosedError, StaleError
from tests.core.audit import Audit

ENOUGH = 200
"""Rounds and steps after which something that should have come to an end is taken to run for ever."""
STARTED = SessionStarted("agent", "v1")


class NeverEndsError(AssertionError):
    """The system goes on by itself without end."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What a deployment says of one tool."""

    verdict: Verdict = "run"
    on_unknown: OnUnknown = "ask"
    version: int = 1
    question: bool = False
    delegates: bool = False


TOOLS: dict[str, Tool] = {
    "look": Tool("run", "retry"),
    "send": Tool("run", "ask"),
    "post": Tool("run", "error"),
    "pay": Tool("ask", "ask"),
    "save": Tool("ask", "retry"),
    "form": Tool("ask", question=True),
    "sub": Tool("run", delegates=True),
    "drop": Tool("deny"),
    "typo": Tool("invalid"),
}


class Book:
    """The store of one session: journal, inbox and requests, with the rules that a transaction keeps."""

    def __init__(self, facts: Sequence[Fact] = ()) -> None:
        self.facts: list[Fact] = []
        self.rows: list[InboxRow] = []
        self.taken: set[int] = set()
        self.requests: dict[str, str] = {}
        self.answer_rows: dict[str, int] = {}
        self.epoch = facts[-1].epoch if facts else 0
        self.owned = False
        self.runnable_at: int | None = 0
        self.audit = Audit()
        self._write(facts or [Fact(1, 0, 0, None, STARTED)])

    @property
    def untaken(self) -> list[InboxRow]:
        return [row for row in self.rows if row.id not in self.taken]

    @property
    def closing(self) -> bool:
        return self.audit.closed or any(isinstance(row.item.body, Stop) for row in self.rows)

    def post(self, body: InboxBody, at_ms: int, by: str = "ann") -> None:
        if self.closing:
            raise SessionClosedError
        row = InboxRow(len(self.rows) + 1, InboxItem(body, at_ms, by))
        if isinstance(body, AnswerRequest):
            if self.requests.get(body.request_id) != "open":
                raise ConflictError
            self.requests[body.request_id] = "answered"
            self.answer_rows[body.request_id] = row.id
        self.rows.append(row)
        self.runnable_at = at_ms

    def claim(self) -> int:
        self.owned = True
        self.epoch += 1
        return self.epoch

    def append(
        self,
        epoch: int,
        after_seq: int,
        drafts: Sequence[Draft],
        at_ms: int,
        takes: Sequence[int],
        end: EndSegment | None = None,
    ) -> list[Fact]:
        if epoch != self.epoch:
            raise FencedError
        if after_seq != self.facts[-1].seq:
            raise StaleError
        for draft in drafts:
            if isinstance(draft.body, InteractionResolved):
                request_id = draft.body.request_id
                answered = self.answer_rows.get(request_id) in takes
                if self.requests.get(request_id, "open") != ("answered" if answered else "open"):
                    raise StaleError
        facts = [
            Fact(self.facts[-1].seq + n, at_ms, epoch, draft.run_id, draft.body) for n, draft in enumerate(drafts, 1)
        ]
        assert not self.taken & set(takes), "a row is taken once"
        self._write(facts)
        self.taken |= set(takes)
        if end is not None:
            self.owned = False
            self.runnable_at = at_ms if self.untaken else end.wake_at_ms
        return facts

    def _write(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self.audit.feed(fact)
            match fact.body:
                case InteractionRequested(request_id):
                    self.requests[request_id] = "open"
                case InteractionResolved(request_id):
                    self.requests[request_id] = "closed"
                case _:
                    pass
        self.facts.extend(facts)


@dataclass(frozen=True, slots=True)
class ResponseDone:
    run_id: str
    stream: int
    body: ResponseEnded


@dataclass(frozen=True, slots=True)
class ToolDone:
    run_id: str
    call_id: str
    attempt: int
    status: ToolStatus = "ok"


@dataclass(frozen=True, slots=True)
class ToolAsks:
    run_id: str
    call_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class TimeOver:
    """The timeout of a running tool, or the grace of a cancelled one."""

    run_id: str
    call_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Fault:
    run_id: str


Signal = ResponseDone | ToolDone | ToolAsks | TimeOver | Fault
"""No facts: each only chooses which fact is recorded."""
ToolId = tuple[str, str, int]
"""Run, call, attempt."""


@dataclass(slots=True)
class Plan:
    state: SessionState
    facts: list[Draft] = field(default_factory=list[Draft])
    takes: list[int] = field(default_factory=list[int])
    tools: list[ToolId] = field(default_factory=list[ToolId])
    models: list[CallModel] = field(default_factory=list[CallModel])
    cancels: list[CancelModel | CancelTool] = field(default_factory=list[CancelModel | CancelTool])
    given_up: list[ToolId] = field(default_factory=list[ToolId])
    waits_until: int | None = None
    end: EndSegment | None = None


class Owner:
    """One segment: what a worker knows while it holds the session."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epoch = world.book.claim()
        self.state = fold(world.book.facts)
        self.models: dict[str, int] = {}
        """Run → stream of the responses being read."""
        self.tools: set[ToolId] = set()
        self.told_to_stop: set[ToolId | str] = set()
        """Tools, and runs whose response, that were cancelled."""
        self.waits_until: int | None = None

    # --- planning, as the loop does it ---

    def plan(self, signals: Sequence[Signal]) -> Plan:
        world = self.world
        plan = Plan(self.state)
        # The inbox first: a person who answered before a tool ended has answered (H13, H16, H17).
        taken = intake(plan.state, world.book.untaken, world.now, self.epoch, world.new)
        self._add(plan, *taken.facts)
        plan.takes += taken.takes
        for signal in signals:
            self._signal(plan, signal)
        self._add(plan, *expired(plan.state, world.now))
        for _ in range(ENOUGH):
            before = len(plan.facts)
            self._due(plan, stopping=taken.stop is not None)
            if len(plan.facts) == before:
                break
        else:
            raise NeverEndsError("facts are due without end")
        if plan.state.closed and taken.stop is not None:
            plan.takes.append(taken.stop)
        return plan

    def _add(self, plan: Plan, *drafts: Draft) -> None:
        plan.state = advance(plan.state, drafts, self.world.now, self.epoch)
        plan.facts += drafts

    def in_flight(self, plan: Plan | None = None) -> InFlight:
        tools = self.tools | set(plan.tools) if plan else self.tools
        given_up = set(plan.given_up) if plan else set[ToolId]()
        models = {*self.models, *(call.run_id for call in plan.models)} if plan else {*self.models}
        return InFlight(frozenset(models), frozenset(id[1:] for id in tools - given_up))

    def _due(self, plan: Plan, stopping: bool) -> None:
        plan.waits_until, plan.end = None, None
        prepares: dict[str, list[PrepareCall]] = {}
        for command in due(plan.state, self.epoch, self.in_flight(plan), stopping):
            match command:
                case PrepareCall(run_id):
                    prepares.setdefault(run_id, []).append(command)
                case Record(facts):
                    self._add(plan, *facts)
                case Ask(run_id, call_id, purpose, prepared):
                    self._add(plan, self._ask(plan.state, run_id, call_id, purpose, prepared))
                case StartTool():
                    self._start_tool(plan, command)
                case CallModel():
                    self._call_model(plan, command)
                case StartRun(input_id, run_id):
                    self._add(plan, Draft(run_id, RunStarted(self.world.limits, "m", (input_id,))))
                case CloseResponse(run_id, turn, status):
                    self._add(plan, Draft(run_id, ResponseEnded(turn, status, (TextBlock("tail"),))))
                case CancelModel() | CancelTool():
                    plan.cancels.append(command)
                case EndSegment():
                    plan.end = command
        for run_id, calls in prepares.items():
            verdicts = tuple(self._prepare(plan.state, command) for command in calls)
            self._add(plan, Draft(run_id, CallsPrepared(calls[0].turn, verdicts)))

    def _prepare(self, state: SessionState, command: PrepareCall) -> PreparedCall:
        call = state.runs[command.run_id].calls[command.call_id]
        tool = self.world.tools.get(call.name, Tool("unknown_tool"))
        purpose = "question" if tool.question else "approval"
        input_digest, tool_digest = digest(command.input), f"{call.name}.{tool.version}"
        verdict, rule = tool.verdict, "policy"
        for known in state.rules.values():
            if verdict == "ask" and (known.tool_digest, known.input_digest) == (tool_digest, input_digest):
                verdict, rule = "run", known.rule_id
        return PreparedCall(call.call_id, verdict, rule, input_digest, tool_digest, None, verdict, purpose)

    def _ask(
        self, state: SessionState, run_id: str, call_id: str, purpose: Purpose, prepared: PreparedCall | None
    ) -> Draft:
        call = state.runs[run_id].calls[call_id]
        expires = self.world.expires_ms
        return Draft(
            run_id,
            InteractionRequested(
                self.world.new("req"),
                purpose,
                {"tool": call.name, "input": call.input},
                answer_schema(purpose),
                call_id=call_id,
                input_digest=prepared.input_digest if prepared else None,
                tool_digest=prepared.tool_digest if prepared else None,
                expires_at_ms=self.world.now + expires if expires else None,
            ),
        )

    def _start_tool(self, plan: Plan, command: StartTool) -> None:
        run = plan.state.runs[command.run_id]
        call = run.calls[command.call_id]
        tool = self.world.tools[call.name]
        assert call.prepared is not None
        child_id = self.world.new("run") if tool.delegates else None
        started = ToolStarted(
            call.call_id,
            command.attempt,
            f"key {run.run_id} {call.call_id}",
            command.authority,
            call.prepared.input_digest,
            tool.on_unknown,
            child_id,
        )
        self._add(plan, Draft(run.run_id, started))
        if child_id is None:
            plan.tools.append((run.run_id, call.call_id, command.attempt))
        else:
            task = (TextBlock("task"),)
            child = RunStarted(self.world.child_limits, "m", (), run.run_id, call.call_id, run.depth + 1, "sub", task)
            self._add(plan, Draft(child_id, child))

    def _call_model(self, plan: Plan, command: CallModel) -> None:
        if command.not_before_ms > self.world.now:
            plan.waits_until = command.not_before_ms
            return
        started = TurnStarted(command.turn, command.attempt, "b", "p", "m", command.input_ids)
        self._add(plan, Draft(command.run_id, started))
        self.world.check_history(plan.state, command.run_id)
        plan.models.append(command)

    def _signal(self, plan: Plan, signal: Signal) -> None:
        run = plan.state.runs.get(signal.run_id)
        if isinstance(signal, ResponseDone):
            if run is not None and run.stream == signal.stream:
                body = signal.body
                if run.cancel is None and body.status == "cancelled":
                    body = replace(body, status="failed", error=ErrorInfo("x", "broke off"))
                self._add(plan, Draft(run.run_id, body))
            return
        if isinstance(signal, Fault):
            if run is not None and run.live and run.cancel is None:
                error = ErrorInfo("internal", "a hook raised")
                self._add(plan, Draft(run.run_id, CancelRequested("system", error)))
            return
        call = run.calls.get(signal.call_id) if run is not None else None
        current = call is not None and call.phase == "running" and call.attempt == signal.attempt
        if run is None or call is None or not current:
            if isinstance(signal, ToolDone):
                late = LateResult(signal.run_id, signal.call_id, signal.attempt, signal.status, ())
                self._add(plan, *late_result(plan.state, late))
                plan.given_up.append((signal.run_id, signal.call_id, signal.attempt))
            return
        if isinstance(signal, ToolAsks):
            if run.cancel is None:
                asked = InteractionRequested(
                    self.world.new("req"),
                    "question",
                    {"question": "?"},
                    answer_schema("question"),
                    call_id=call.call_id,
                )
                self._add(plan, Draft(run.run_id, asked))
            return
        plan.given_up.append((signal.run_id, signal.call_id, signal.attempt))
        self._add(plan, *(Draft(run.run_id, InteractionResolved(q, "system", "withdrawn")) for q in call.questions))
        self._add(plan, self._end_of(plan.state, run, call, signal))

    def _end_of(self, state: SessionState, run: RunState, call: CallState, signal: ToolDone | TimeOver) -> Draft:
        if isinstance(signal, ToolDone):
            return Draft(run.run_id, ToolEnded(call.call_id, call.attempt, signal.status))
        if run.cancel is not None:
            return Draft(run.run_id, ToolEnded(call.call_id, call.attempt, "unknown", results.text(results.UNKNOWN)))
        assert call.started is not None
        if call.started.on_unknown == "ask":
            return self._ask(state, run.run_id, call.call_id, "unknown_outcome", call.prepared)
        return Draft(
            run.run_id, ToolEnded(call.call_id, call.attempt, "timeout", results.timed_out(1, read_only=False))
        )

    # --- committing and performing ---

    def commit(self, plan: Plan) -> list[Fact]:
        """Append the batch; a refused append changes nothing."""
        facts: list[Fact] = []
        if plan.facts or plan.takes or plan.end:
            facts = self.world.book.append(
                self.epoch, self.state.head_seq, plan.facts, self.world.now, plan.takes, plan.end
            )
        self.state = plan.state
        return facts

    def perform(self, plan: Plan, facts: Sequence[Fact]) -> None:
        """Begin the effects of a batch that is committed."""
        self.waits_until = plan.waits_until
        self.tools -= set(plan.given_up)
        for cancel in plan.cancels:
            if isinstance(cancel, CancelModel):
                self.told_to_stop.add(cancel.run_id)
            else:
                self.told_to_stop |= {id for id in self.tools if id[1:] == (cancel.call_id, cancel.attempt)}
        for id in plan.tools:
            self.world.enter_tool(id)
            self.tools.add(id)
        streams = {fact.run_id: fact.seq for fact in facts if isinstance(fact.body, TurnStarted)}
        for call in plan.models:
            self.models[call.run_id] = streams[call.run_id]


class World:
    """One session and everything around it. `owner` is the segment that works now, if any."""

    def __init__(self, facts: Sequence[Fact] = (), **settings: Any) -> None:
        self.now = facts[-1].at_ms if facts else 0
        self.limits = Limits(max_turns=4)
        self.child_limits = Limits(max_turns=2)
        self.expires_ms: int | None = None
        self.tools = dict(TOOLS)
        for name, value in settings.items():
            setattr(self, name, value)
        self._ids: Counter[str] = Counter()
        self._suffix = f"x{len(facts)}" if facts else ""
        self.entered: Counter[ToolId] = Counter()
        """Physical starts of tools. Nobody but the world counts them."""
        self.still_running: set[ToolId] = set()
        """Tools that were given up and go on in their thread."""
        self.book = Book(facts)
        for fact in facts:
            if isinstance(fact.body, ToolStarted) and fact.run_id and fact.body.child_run_id is None:
                self.entered[(fact.run_id, fact.body.call_id, fact.body.attempt)] += 1
        self.owner: Owner | None = None
        self.interfere: Callable[[], None] | None = None
        """Called once between the planning and the append of a round."""

    def new(self, kind: str) -> str:
        self._ids[kind] += 1
        return f"{kind}{self._ids[kind]}{self._suffix}"

    @property
    def state(self) -> SessionState:
        return self.owner.state if self.owner else fold(self.book.facts)

    @property
    def root(self) -> RunState:
        root = self.state.root
        assert root is not None, "no run is live"
        return root

    def call(self, name: str) -> CallState:
        """Return the latest call of this tool in any live run."""
        return [c for run in self.state.runs.values() for c in run.calls.values() if c.name == name][-1]

    def request(self, purpose: Purpose) -> RequestState:
        [request] = [r for r in self.state.requests.values() if r.purpose == purpose]
        return request

    def bodies(self, kind: type[FactBody]) -> list[Any]:
        return [fact.body for fact in self.book.facts if isinstance(fact.body, kind)]

    @property
    def kinds(self) -> list[str]:
        return [fact.body.kind for fact in self.book.facts]

    # --- what happens to the session ---

    def claim(self) -> Owner:
        """Take the session: a takeover, if somebody owned it."""
        self.owner = Owner(self)
        return self.owner

    def crash(self) -> None:
        """Kill the owner: its memory is gone, its tools may or may not have done their work."""
        self.owner = None

    def round(self, *signals: Signal, crash: bool = False) -> None:
        """Let the owner plan, append and perform, again whenever somebody was first; `crash` = between the last two."""
        owner = self.owner or self.claim()
        for _ in range(ENOUGH):
            plan = owner.plan(signals)
            if self.interfere is not None:
                interfere, self.interfere = self.interfere, None
                interfere()
            before = owner.state
            try:
                facts = owner.commit(plan)
            except StaleError:
                assert owner.state is before
                continue
            if crash:
                self.crash()
                return
            owner.perform(plan, facts)
            if plan.end is not None:
                self.still_running |= owner.tools
                self.owner = None
            return
        raise NeverEndsError("an append is refused for ever")

    def post(self, body: InboxBody, by: str = "ann") -> None:
        self.book.post(body, self.now, by)

    def say(self, text: str = "hello", mode: InputMode = "queue", *, deny_open: bool = False) -> str:
        """Post a message; return the id of the run that it starts, if it starts one."""
        run_id = self.new("run")
        self.post(Input(self.new("in"), run_id, mode, (TextBlock(text),), deny_open))
        return run_id

    def answer(self, purpose: Purpose, raw: Json | None = None, by: str = "ann") -> str:
        """Post an answer to the one open request of this purpose."""
        request = self.request(purpose)
        self.post(AnswerRequest(request.request_id, self.checked(request, raw)), by)
        return request.request_id

    def checked(self, request: RequestState, raw: Json | None = None) -> Answer:
        yes: dict[str, Json] = {"approval": {"approved": True}, "unknown_outcome": {"outcome": "again"}}
        return read_answer(request.purpose, request.schema, raw or yes.get(request.purpose, {"value": 1}))

    def respond(self, *calls: str, run_id: str | None = None, crash: bool = False, **body: Any) -> None:
        """Let the model answer: with these calls, else with text, else as `body` says."""
        owner = self.owner
        assert owner is not None
        run = owner.state.runs[run_id or next(iter(owner.models))]
        ended = response(run.turn, *(ToolCallBlock(self.new("call"), name, {"n": 1}) for name in calls), **body)
        stream = owner.models.pop(run.run_id)
        self.round(ResponseDone(run.run_id, stream, ended), crash=crash)

    def tool(self, name: str) -> ToolId:
        """Return the attempt of this tool that the owner has in flight."""
        owner = self.owner
        assert owner is not None
        [id] = [id for id in owner.tools if owner.state.runs[id[0]].calls[id[1]].name == name]
        return id

    def done(self, id: ToolId, status: ToolStatus = "ok", *, crash: bool = False) -> None:
        self.round(ToolDone(*id, status), crash=crash)

    def time_over(self, id: ToolId) -> None:
        """Let a tool's timeout, or its grace after a cancel, run out; the thread goes on."""
        self.still_running.add(id)
        self.round(TimeOver(*id))

    def enter_tool(self, id: ToolId) -> None:
        self.entered[id] += 1
        assert self.entered[id] == 1, f"attempt {id} was entered twice"
        assert any(
            isinstance(f.body, ToolStarted) and (f.run_id, f.body.call_id, f.body.attempt) == id
            for f in self.book.facts
        ), f"attempt {id} was entered before its tool_started was committed"

    def check_history(self, state: SessionState, run_id: str) -> None:
        """What the model is to see is a legal conversation: each call has its result, in the message after it."""
        messages = history(state, run_id)
        assert messages, "the model is never called with an empty history"
        limits = state.runs[run_id].limits
        assert messages[-1].role != "assistant" or limits.continue_on_cut or limits.continue_on_other
        for before, after in zip((None, *messages), (*messages, None), strict=True):
            called = [b.call_id for b in before.blocks if isinstance(b, ToolCallBlock)] if before else []
            told = [b.call_id for b in after.blocks if b.type == "tool_result"] if after else []
            if before is None or before.role != "tool":
                assert called == told, "calls and results do not pair"

    # --- without people ---

    def rest(self) -> None:
        """Let everything that goes on without people go on to its end; fail if there is none, or no legal rest."""
        for _ in range(ENOUGH):
            if not self._step():
                return self.check_rest()
        raise NeverEndsError("the system goes on for ever")

    def _step(self) -> bool:
        owner = self.owner
        if owner is None:
            wakes = self.book.runnable_at is not None and self.book.runnable_at <= self.now
            if wakes or self.book.owned or self.book.untaken:
                assert wakes or self.book.owned, "a row waits and nobody wakes up for it"
                self.round()
                return True
            return False
        if owner.models:
            self.respond(run_id=next(iter(owner.models)))
        elif owner.tools:
            self.done(next(iter(sorted(owner.tools))))
        else:
            if owner.waits_until is not None:
                self.now = max(self.now, owner.waits_until)
            self.round()
        return True

    def check_rest(self) -> None:
        """docs/design.md, The machine, 2, and that the store and the fold agree (§4.9)."""
        state = fold(self.book.facts)
        assert not self.book.owned
        assert not self.book.untaken
        if state.root is not None:
            assert state.requests, "a run is live, and nobody is asked for anything"
        else:
            assert not state.inputs, "an input waits, and no run is live"
        assert set(self.book.requests.values()) <= {"open", "closed"}
        assert {r for r, s in self.book.requests.items() if s == "open"} == set(state.requests)
        self.book.audit.check_rest()

    def wind_up(self) -> None:
        """Go to rest, then let all questions expire, then cancel, then stop: each must come to its end."""
        self.rest()
        times = [r.expires_at_ms for r in self.state.requests.values()]
        if times and all(times):
            self.now = max(t for t in times if t is not None)
            self.rest()
        if self.state.root is not None and not self.book.closing:
            run_id = self.root.run_id
            self.post(cancel(run_id))
            self.rest()
            assert self.book.audit.runs[run_id].outcome in ("cancelled", "failed")
        if not self.book.closing:
            self.post(Stop())
        self.rest()
        assert self.book.audit.closed


def cancel(run_id: str | None = None) -> InboxBody:
    return Cancel(run_id)


def response(turn: int, *calls: ToolCallBlock, **body: Any) -> ResponseEnded:
    """Return a response: complete, with these calls or else with text."""
    said: dict[str, Any] = {"status": "complete", "usage": Usage(input=1, output=1)}
    said["blocks"] = calls or (TextBlock("answer"),)
    return ResponseEnded(turn, **{**said, **body})


def ends(world: World) -> list[tuple[str, str]]:
    """Return (call's tool, status) of every result, in order."""
    names = {call_id: call.name for call_id, call in world.book.audit.calls.items()}
    return [(names[body.call_id], body.status) for body in world.bodies(ToolEnded)]


def outcome(world: World) -> RunEnded:
    """Return how the last run ended."""
    return world.bodies(RunEnded)[-1]
