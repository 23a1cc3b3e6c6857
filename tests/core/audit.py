"""An independent reading of a journal: the invariants of docs/design.md, checked fact by fact without the machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Fact,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Limits,
    PreparedCall,
    ResponseEnded,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import ToolCallBlock


@dataclass(slots=True)
class Call:
    run_id: str
    name: str
    prepared: PreparedCall | None = None
    prepared_epoch: int = -1
    was_asked: bool = False
    starts: list[tuple[int, ToolStarted]] = field(default_factory=list[tuple[int, ToolStarted]])
    """Epoch and fact."""
    outcome: str | None = None
    """What a person said of the latest start."""
    question_answered: bool = False
    ended: ToolEnded | None = None


@dataclass(slots=True)
class Request:
    fact: InteractionRequested
    run_id: str | None
    resolved: InteractionResolved | None = None
    used: bool = False


@dataclass(slots=True)
class Run:
    limits: Limits
    parent: str | None
    parent_call: str | None
    stream: int | None = None
    turn: int = 0
    tokens: int = 0
    cancel: CancelRequested | None = None
    outcome: str | None = None


class Audit:
    """Feed it every fact of a session, in order; it fails at the first that breaks a promise."""

    def __init__(self) -> None:
        self.seq = 0
        self.epoch = 0
        self.runs: dict[str, Run] = {}
        self.calls: dict[str, Call] = {}
        self.requests: dict[str, Request] = {}
        self.inputs: dict[str, str] = {}
        """waiting, bound, consumed, withdrawn, dropped (bound to a run that ended without a turn)."""
        self.input_runs: dict[str, str] = {}
        self.started_by: dict[str, str] = {}
        """Root run → its input."""
        self.closed = False

    def feed(self, fact: Fact) -> None:
        body, run_id = fact.body, fact.run_id
        assert fact.seq == self.seq + 1, "seq is gapless (11)"
        assert fact.epoch >= self.epoch, "epochs never decrease (11)"
        self.seq, self.epoch = fact.seq, fact.epoch
        if isinstance(body, SessionStarted):
            self.closed = False
            return
        assert not self.closed, "nothing after session_closed (13)"
        run = self.runs.get(run_id or "")
        if run is not None and not isinstance(body, RunStarted | InputAccepted):
            assert run.outcome is None, "no fact of a run after run_ended (5)"
        match body:
            case InputAccepted(input_id):
                assert input_id not in self.inputs
                assert run_id not in self.runs
                self.inputs[input_id] = "waiting"
                self.input_runs[input_id] = run_id or ""
            case InputWithdrawn(input_id):
                self._input(input_id, {"waiting"}, "withdrawn")
            case RunStarted():
                self._run_started(run_id or "", body)
            case CancelRequested():
                assert run is not None
                assert run.cancel is None
                run.cancel = body
            case TurnStarted():
                assert run is not None
                self._turn_started(fact, run, body)
            case ResponseEnded():
                assert run is not None
                self._response_ended(run_id or "", run, body)
            case CallsPrepared():
                assert run is not None
                assert run.cancel is None
                for prepared in body.calls:
                    call = self.calls[prepared.call_id]
                    assert call.run_id == run_id
                    assert call.ended is None
                    call.prepared, call.prepared_epoch = prepared, fact.epoch
                    call.was_asked |= prepared.verdict == "ask"
            case InteractionRequested(request_id):
                assert request_id not in self.requests, "one interaction_requested per request (9)"
                assert run is None or run.cancel is None
                self.requests[request_id] = Request(body, run_id)
            case InteractionResolved(request_id):
                request = self.requests[request_id]
                assert request.resolved is None, "at most one interaction_resolved (9)"
                assert request.run_id == run_id
                request.resolved = body
                call = self.calls.get(request.fact.call_id or "")
                if call is not None and body.decision == "answered":
                    if request.fact.purpose == "unknown_outcome":
                        call.outcome = body.value["outcome"]
                    elif not call.starts:
                        call.question_answered = True
            case ToolStarted():
                assert run is not None
                self._tool_started(fact, run, body)
            case ToolEnded():
                self._tool_ended(run_id or "", body)
            case RunEnded():
                assert run is not None
                self._run_ended(run_id or "", run, body)
            case SessionClosed():
                assert not self._open_requests(None)
                assert all(run.outcome for run in self.runs.values())
                assert "waiting" not in self.inputs.values()
                self.closed = True
            case _:
                pass

    def _input(self, input_id: str, before: set[str], after: str) -> None:
        assert self.inputs.get(input_id) in before, f"input {input_id} is {self.inputs.get(input_id)} (10)"
        self.inputs[input_id] = after

    def _open_requests(self, run_id: str | None) -> list[str]:
        return [id for id, r in self.requests.items() if r.resolved is None and (run_id is None or r.run_id == run_id)]

    def _live_children(self, run_id: str) -> list[str]:
        return [id for id, run in self.runs.items() if run.parent == run_id and run.outcome is None]

    def _lineage(self, run: Run) -> list[Run]:
        return [run, *(self._lineage(self.runs[run.parent]) if run.parent else [])]

    def _run_started(self, run_id: str, body: RunStarted) -> None:
        assert run_id not in self.runs
        if body.parent_run_id is None:
            assert not any(r.parent is None and r.outcome is None for r in self.runs.values()), "one live root run (5)"
            [input_id] = body.input_ids
            assert self.input_runs[input_id] == run_id
            self._input(input_id, {"waiting"}, "bound")
            self.started_by[run_id] = input_id
        else:
            call = self.calls[body.parent_call_id or ""]
            assert call.run_id == body.parent_run_id
            assert call.starts[-1][1].child_run_id == run_id
            assert call.ended is None
            assert not [r for r in self.runs.values() if r.parent_call == body.parent_call_id and r.outcome is None]
        self.runs[run_id] = Run(body.limits, body.parent_run_id, body.parent_call_id)

    def _turn_started(self, fact: Fact, run: Run, body: TurnStarted) -> None:
        run_id = fact.run_id or ""
        assert run.cancel is None, "no CallModel after a cancel (4)"
        assert run.stream is None
        assert all(c.ended for c in self.calls.values() if c.run_id == run_id), "every call has its result (4)"
        assert not self._open_requests(run_id), "no request is open at a CallModel (4)"
        assert not self._live_children(run_id)
        for above in self._lineage(run):
            budget = above.limits.budget_tokens
            assert budget is None or above.tokens < budget, "the budget is not spent (4)"
        assert not run.limits.max_turns or body.turn <= run.limits.max_turns, "turn <= max_turns (4)"
        assert body.turn == (run.turn + 1 if body.attempt == 1 else run.turn)
        for input_id in body.input_ids:
            own = self.started_by.get(run_id) == input_id
            self._input(input_id, {"bound"} if own else {"waiting"}, "consumed")
        run.stream, run.turn = fact.seq, body.turn

    def _response_ended(self, run_id: str, run: Run, body: ResponseEnded) -> None:
        assert run.stream is not None
        assert body.turn == run.turn
        run.stream = None
        for above in self._lineage(run):
            above.tokens += body.usage.total if body.usage else 0
        if body.status in ("complete", "cut"):
            for block in body.blocks:
                if isinstance(block, ToolCallBlock):
                    assert block.call_id not in self.calls
                    self.calls[block.call_id] = Call(run_id, block.name)

    def _tool_started(self, fact: Fact, run: Run, body: ToolStarted) -> None:
        assert run.cancel is None, "no tool_started after cancel_requested (6)"
        call = self.calls[body.call_id]
        prepared = call.prepared
        assert call.run_id == fact.run_id
        assert call.ended is None
        assert prepared is not None
        assert call.prepared_epoch == fact.epoch, "a verdict gives authority only in its own epoch (6)"
        assert prepared.verdict in ("run", "ask")
        assert body.effective_digest == prepared.input_digest
        request = self.requests.get(body.authority)
        if request is None:
            assert prepared.verdict == "run"
            assert body.authority == prepared.rule
            assert not call.was_asked, "a verdict never becomes weaker (6)"
        else:
            resolved = request.resolved
            assert resolved is not None
            assert not request.used, "an answer is used once (6)"
            assert request.fact.call_id == body.call_id
            again = request.fact.purpose == "unknown_outcome" and resolved.value == {"outcome": "again"}
            assert again or resolved.decision == "approved"
            assert request.fact.tool_digest == prepared.tool_digest, "the approval was of this tool (6)"
            assert (resolved.effective_digest or request.fact.input_digest) == body.effective_digest
            request.used = True
        assert body.attempt == len(call.starts) + 1
        if call.starts and call.outcome != "again":
            epoch, before = call.starts[-1]
            assert before.on_unknown == "retry"
            assert epoch < fact.epoch, "a retry is of a newer epoch (7)"
            assert body.attempt <= run.limits.attempts, "retries are capped (7)"
        call.outcome = None
        call.starts.append((fact.epoch, body))

    def _tool_ended(self, run_id: str, body: ToolEnded) -> None:
        call = self.calls[body.call_id]
        assert call.run_id == run_id
        assert call.ended is None, "one tool_ended per call (4)"
        assert body.attempt == len(call.starts), "tool_ended carries the current attempt (9)"
        asked = [r for r in self.requests.values() if r.fact.call_id == body.call_id and r.resolved is None]
        assert not asked, "no request of a call is open at its end"
        if call.starts:
            assert body.status not in ("denied", "invalid"), "a started call never ends denied or invalid (8)"
            assert body.status != "not_run" or call.outcome == "not_run", "not_run only where a person said so (8)"
            assert (
                call.outcome is None
                or body.status
                in {
                    "ran": {"ok", "unknown"},
                    "not_run": {"not_run", "unknown"},
                    "again": {"unknown"},
                }[call.outcome]
            )
            child = self.runs.get(call.starts[-1][1].child_run_id or "")
            assert child is None or child.outcome is not None, "a sub-agent ends before its call"
        else:
            assert body.status in ("denied", "invalid", "error", "not_run", "ok")
            assert body.status != "ok" or call.question_answered
        call.ended = body

    def _run_ended(self, run_id: str, run: Run, body: RunEnded) -> None:
        assert run.stream is None
        assert all(call.ended for call in self.calls.values() if call.run_id == run_id), "no call is open (5)"
        assert not self._open_requests(run_id), "no request is open at run_ended (5)"
        assert not self._live_children(run_id)
        if run.cancel is not None:
            assert body.outcome == ("failed" if run.cancel.error else "cancelled")
        run.outcome = body.outcome
        started_by = self.started_by.get(run_id)
        if started_by is not None and self.inputs[started_by] == "bound":
            self.inputs[started_by] = "dropped"

    def check_rest(self) -> None:
        """No accepted input is lost, whatever became of its run (10)."""
        live = any(run.outcome is None for run in self.runs.values())
        assert live or not {"waiting", "bound"} & set(self.inputs.values())
