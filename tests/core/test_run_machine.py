"""The machine's table, row by row: after these facts, these commands are due, or that fact is illegal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ownloop.core.commands import (
    Ask,
    CallModel,
    CancelModel,
    CancelTool,
    CloseResponse,
    Command,
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
    InputAccepted,
    InputMode,
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
    Verdict,
)
from ownloop.core.interactions import Purpose
from ownloop.core.messages import TextBlock, ToolCallBlock
from ownloop.core.session import SessionState, advance, due, fold
from ownloop.core.toolspec import OnUnknown
from ownloop.core.usage import Usage
from ownloop.errors import IllegalFactError

RETRY = ErrorInfo("overloaded", "later", retryable=True, retry_after_ms=70)
FATAL = ErrorInfo("auth", "no key")
Step = Draft | int
"""A fact, or the epoch from which on facts are."""


def of(body: FactBody, run_id: str | None = "r1") -> Draft:
    return Draft(run_id, body)


def accepted(number: int = 1, mode: InputMode = "queue") -> Draft:
    return of(InputAccepted(f"i{number}", mode, (TextBlock("words"),)), f"r{number}")


def begun(**limits: Any) -> list[Step]:
    return [accepted(), of(RunStarted(Limits(**limits), "m", ("i1",)))]


def turn(number: int = 1, attempt: int = 1, *inputs: str, run_id: str = "r1") -> Draft:
    first = ("i1",) if (number, attempt, run_id) == (1, 1, "r1") else ()
    return of(TurnStarted(number, attempt, "b", "p", "m", first + inputs), run_id)


def ended(*calls: str, turn: int = 1, run_id: str = "r1", **body: Any) -> Draft:
    """A response with these calls (`!` marks a cut one), else with text."""
    blocks = tuple(
        ToolCallBlock(name.strip("!"), "tool", {"n": 1}, problem="cut" if name.endswith("!") else None)
        for name in calls
    )
    body = {"status": "complete", "blocks": blocks or (TextBlock("answer"),), **body}
    return of(ResponseEnded(turn, **body), run_id)


def prepared(verdict: Verdict = "run", call: str = "c", tool: str = "t1", **more: Any) -> Draft:
    return of(CallsPrepared(1, (PreparedCall(call, verdict, "policy", "d1", tool, **more),)))


def asked(request: str = "q", purpose: Purpose = "approval", call: str | None = "c", **more: Any) -> Draft:
    return of(InteractionRequested(request, purpose, {}, {}, "", call, "d1", "t1", **more))


def resolved(decision: Any, value: Any = None, request: str = "q", by: str = "ann", **more: Any) -> Draft:
    return of(InteractionResolved(request, by, decision, value, **more))


def tool(
    on_unknown: OnUnknown = "ask", attempt: int = 1, by: str = "policy", call: str = "c", child: str | None = None
) -> Draft:
    return of(ToolStarted(call, attempt, "key", by, "d1", on_unknown, child))


def result(status: Any = "ok", attempt: int = 1, call: str = "c", **more: Any) -> Draft:
    return of(ToolEnded(call, attempt, status, **more))


CHILD = Draft("r9", RunStarted(Limits(), "m", (), "r1", "c", 1, "sub", (TextBlock("task"),)))
CANCEL = of(CancelRequested("ann"))
CALLED = [*begun(), turn(), ended("c")]
RUNNING = [*CALLED, prepared(), tool()]
DOUBTED = [*RUNNING, asked(purpose="unknown_outcome")]
DELEGATED = [*CALLED, prepared(), tool(child="r9"), CHILD]


@dataclass(frozen=True)
class Row:
    what: str
    steps: list[Step]
    due: list[str]
    model: bool = False
    """A response is being read."""
    tools: tuple[tuple[str, int], ...] = ()
    epoch: int = 1
    stopping: bool = field(default=False)


def reached(row: Row) -> SessionState:
    facts = [Fact(1, 0, 0, None, SessionStarted("agent", "v1"))]
    epoch = 1
    for step in row.steps:
        if isinstance(step, int):
            epoch = step
        else:
            facts.append(Fact(facts[-1].seq + 1, 30, epoch, step.run_id, step.body))
    return fold(facts)


def said(command: Command) -> str:
    match command:
        case CallModel(run_id, turn, attempt, inputs, not_before):
            when = f" at {not_before}" if not_before else ""
            return " ".join([f"CallModel {run_id} {turn}.{attempt}", *inputs]) + when
        case PrepareCall(_, _, call_id):
            return f"Prepare {call_id}"
        case Ask(_, call_id, purpose):
            return f"Ask {call_id} {purpose}"
        case StartTool(_, call_id, attempt, authority):
            return f"StartTool {call_id}.{attempt} by {authority}"
        case CancelTool(call_id, attempt):
            return f"CancelTool {call_id}.{attempt}"
        case CancelModel():
            return "CancelModel"
        case CloseResponse(_, _, status):
            return f"CloseResponse {status}"
        case StartRun(input_id, run_id):
            return f"StartRun {run_id} for {input_id}"
        case EndSegment(wake_at):
            return "EndSegment" if wake_at is None else f"EndSegment until {wake_at}"
        case Record(facts):
            return "Record " + ", ".join(map(recorded, facts))


def recorded(draft: Draft) -> str:
    match draft.body:
        case ToolEnded(call_id, attempt, status):
            return f"{call_id}.{attempt} {status}"
        case RunEnded(outcome):
            return f"{draft.run_id} {outcome}"
        case InteractionResolved(request_id, _, decision):
            return f"{request_id} {decision}"
        case CancelRequested():
            return f"cancel {draft.run_id}"
        case InputWithdrawn(input_id):
            return f"withdraw {input_id}"
        case body:
            return body.kind


def again(**said: Any) -> Draft:
    return resolved("answered", {"outcome": "again", **said})


FAILED: dict[str, Any] = {"status": "failed", "error": RETRY}
EMPTY: dict[str, Any] = {"blocks": ()}
CUT: dict[str, Any] = {"status": "cut", "stop_reason": "max_tokens"}
OTHER: dict[str, Any] = {"stop_reason": "other"}
STEER = accepted(2, "steer")

ROWS = [
    # no live root run
    Row("an input waits", [accepted(1), accepted(2)], ["StartRun r1 for i1"]),
    Row(
        "a steer is left over",
        [*begun(), turn(), STEER, ended(status="failed", error=FATAL), of(RunEnded("failed"))],
        ["StartRun r2 for i2"],
    ),
    Row("nothing waits", [], ["EndSegment"]),
    Row("stop, nothing live", [accepted()], ["Record withdraw i1, session_closed"], stopping=True),
    Row("stop, a run is live", [*begun(), turn()], ["Record cancel r1"], model=True, stopping=True),
    Row("closed", [of(SessionClosed("ann"), None)], ["EndSegment"]),
    # model
    Row("run_started", begun(), ["CallModel r1 1.1 i1"]),
    Row("run_started, a steer waits", [*begun(), STEER], ["CallModel r1 1.1 i1 i2"]),
    Row("turn_started, its reader lives", [*begun(), turn()], [], model=True),
    Row("turn_started of an older epoch", [*begun(), turn()], ["CloseResponse abandoned"], epoch=2),
    Row("the same, cancelling", [*begun(), turn(), CANCEL], ["CloseResponse cancelled"], epoch=2),
    Row("complete, calls", CALLED, ["Prepare c"]),
    Row("cut, calls", [*begun(), turn(), ended("a", "b!", **CUT)], ["Prepare a", "Record b.0 invalid"]),
    Row("no calls, a steer waits", [*begun(), turn(), STEER, ended()], ["CallModel r1 2.1 i2"]),
    Row("the same, cut", [*begun(), turn(), STEER, ended(**CUT)], ["CallModel r1 2.1 i2"]),
    Row("the same at a limit", [*begun(max_turns=1), turn(), STEER, ended()], ["Record r1 completed"]),
    Row("complete, no calls", [*begun(), turn(), ended()], ["Record r1 completed"]),
    Row("cut, no calls", [*begun(), turn(), ended(**CUT)], ["Record r1 completed"]),
    Row("the same, continue_on_cut", [*begun(continue_on_cut=1), turn(), ended(**CUT)], ["CallModel r1 2.1"]),
    Row(
        "the same, once too often",
        [*begun(continue_on_cut=1), turn(), ended(**CUT), turn(2), ended(turn=2, **CUT)],
        ["Record r1 completed"],
    ),
    Row("empty", [*begun(), turn(), ended(**EMPTY)], ["CallModel r1 1.2"]),
    Row("the same, a steer waits", [*begun(), turn(), STEER, ended(**EMPTY)], ["CallModel r1 1.2 i2"]),
    Row("empty, withheld", [*begun(), turn(), ended(raw_stop="refusal", **EMPTY)], ["Record r1 completed"]),
    Row(
        "empty again",
        [*begun(), turn(), ended(**EMPTY), turn(1, 2), ended(**EMPTY)],
        ["Record note, r1 completed"],
    ),
    Row("other, three methods", [*begun(continue_on_other=True), turn(), ended(**OTHER)], ["CallModel r1 2.1"]),
    Row(
        "the same at max_turns",
        [*begun(continue_on_other=True, max_turns=1), turn(), ended(**OTHER)],
        ["Record r1 max_turns"],
    ),
    Row("other, ours", [*begun(), turn(), ended(**OTHER)], ["Record r1 completed"]),
    Row("failed, retryable", [*begun(), turn(), ended(**FAILED)], ["CallModel r1 1.2 at 100"]),
    Row("the same, a steer waits", [*begun(), turn(), STEER, ended(**FAILED)], ["CallModel r1 1.2 i2 at 100"]),
    Row(
        "failed for the third time",
        [*begun(), turn(), ended(**FAILED), turn(1, 2), ended(**FAILED), turn(1, 3), ended(**FAILED)],
        ["Record r1 failed"],
    ),
    Row("failed otherwise", [*begun(), turn(), ended(status="failed", error=FATAL)], ["Record r1 failed"]),
    Row("abandoned", [*begun(), turn(), ended(status="abandoned")], ["CallModel r1 1.2"]),
    Row(
        "abandoned once too often",
        [*begun(abandons=2), turn(), ended(status="abandoned"), turn(1, 2), ended(status="abandoned")],
        ["Record r1 failed"],
    ),
    # calls
    Row("verdict run", [*CALLED, prepared()], ["StartTool c.1 by policy"]),
    Row("verdict ask", [*CALLED, prepared("ask")], ["Ask c approval"]),
    Row("verdict ask, a question", [*CALLED, prepared("ask", purpose="question")], ["Ask c question"]),
    Row("verdict deny", [*CALLED, prepared("deny")], ["Record c.0 denied"]),
    Row("verdict invalid", [*CALLED, prepared("invalid")], ["Record c.0 invalid"]),
    Row("no such tool", [*CALLED, prepared("unknown_tool")], ["Record c.0 error"]),
    Row("a refusal holds in a new epoch", [*CALLED, prepared("deny")], ["Record c.0 denied"], epoch=2),
    Row("prepared in an older epoch", [*CALLED, prepared()], ["Prepare c"], epoch=2),
    Row("the same, to be asked", [*CALLED, prepared("ask")], ["Prepare c"], epoch=2),
    Row("asked before, allowed now", [*CALLED, prepared("ask"), 2, prepared()], ["Ask c approval"], epoch=2),
    Row("asked", [*CALLED, prepared("ask"), asked()], ["EndSegment"]),
    Row(
        "asked, others run",
        [*begun(), turn(), ended("c", "b"), prepared("ask"), asked(), prepared(call="b"), tool(call="b")],
        [],
        tools=(("b", 1),),
    ),
    Row("approved", [*CALLED, prepared("ask"), asked(), resolved("approved")], ["Prepare c"]),
    Row(
        "approved, and allowed",
        [*CALLED, prepared("ask"), asked(), resolved("approved"), prepared()],
        ["StartTool c.1 by q"],
    ),
    Row(
        "approved, and to be asked as before",
        [*CALLED, prepared("ask"), asked(), resolved("approved"), prepared("ask")],
        ["StartTool c.1 by q"],
    ),
    Row(
        "approved, of another tool",
        [*CALLED, prepared("ask"), asked(), resolved("approved"), prepared("ask", tool="t2")],
        ["Ask c approval"],
    ),
    Row(
        "approved, another tool that is allowed",
        [*CALLED, prepared("ask"), asked(), resolved("approved"), prepared(tool="t2")],
        ["Ask c approval"],
    ),
    Row(
        "approved, with another input",
        [*CALLED, prepared("ask"), asked(), resolved("approved", effective_digest="d2"), prepared("ask")],
        ["Ask c approval"],
    ),
    Row(
        "approved, and denied by policy",
        [*CALLED, prepared("ask"), asked(), resolved("approved"), prepared("deny")],
        ["Record c.0 denied"],
    ),
    Row("denied", [*CALLED, prepared("ask"), asked(), resolved("denied")], ["Record c.0 denied"]),
    Row("expired", [*CALLED, prepared("ask"), asked(), resolved("expired")], ["Record c.0 denied"]),
    Row("withdrawn", [*CALLED, prepared("ask"), asked(), resolved("withdrawn")], ["Record c.0 not_run"]),
    *(
        Row(
            f"a durable question {decision}",
            [
                *CALLED,
                prepared("ask", purpose="question"),
                asked(purpose="question"),
                resolved(decision, "blue" if decision == "answered" else None),
            ],
            [f"Record c.0 {status}"],
        )
        for decision, status in [("answered", "ok"), ("denied", "denied"), ("expired", "denied")]
    ),
    Row("tool_started", RUNNING, [], tools=(("c", 1),)),
    Row("timeout, ask", DOUBTED, ["EndSegment"]),
    Row("timeout, retry or error", [*RUNNING, result("timeout")], ["CallModel r1 2.1"]),
    Row(
        "tool_ended, others open",
        [*begun(), turn(), ended("c", "b"), prepared(), tool(), prepared(call="b"), tool(call="b"), result()],
        [],
        tools=(("b", 1),),
    ),
    Row("all settled", [*RUNNING, result()], ["CallModel r1 2.1"]),
    Row("all settled, a steer waits", [*RUNNING, STEER, result()], ["CallModel r1 2.1 i2"]),
    Row(
        "all settled, at max_turns",
        [*begun(max_turns=1), turn(), ended("c"), prepared(), tool(), result()],
        ["Record r1 max_turns"],
    ),
    Row(
        "all settled, budget spent",
        [*begun(budget_tokens=9), turn(), ended("c", usage=Usage(output=9)), prepared(), tool(), result()],
        ["Record r1 budget_exceeded"],
    ),
    Row("lost, retry", [*CALLED, prepared(), tool("retry")], ["Prepare c"], epoch=2),
    Row("lost, retry, but in this epoch", [*CALLED, prepared(), tool("retry")], ["Record c.1 unknown"]),
    Row(
        "lost, retry, allowed",
        [*CALLED, prepared(), tool("retry"), 2, prepared()],
        ["StartTool c.2 by policy"],
        epoch=2,
    ),
    *(
        Row(
            f"lost, retry, verdict {verdict}",
            [*CALLED, prepared(), tool("retry"), 2, prepared(verdict)],
            ["Record c.1 unknown"],
            epoch=2,
        )
        for verdict in ("ask", "deny", "invalid", "unknown_tool")
    ),
    Row(
        "lost, retry, attempts used up",
        [*CALLED, prepared(), tool("retry"), 2, prepared(), tool("retry", 2), 3, prepared(), tool("retry", 3)],
        ["Record c.3 unknown"],
        epoch=4,
    ),
    Row("lost, error", [*CALLED, prepared(), tool("error")], ["Record c.1 unknown"], epoch=2),
    Row("lost, ask", RUNNING, ["Ask c unknown_outcome"], epoch=2),
    Row("ran", [*DOUBTED, resolved("answered", {"outcome": "ran"})], ["Record c.1 ok"]),
    Row("did not run", [*DOUBTED, resolved("answered", {"outcome": "not_run"})], ["Record c.1 not_run"]),
    Row("again", [*DOUBTED, again()], ["Prepare c"]),
    Row("again, the old attempt lives", [*DOUBTED, again()], ["CancelTool c.1", "Prepare c"], tools=(("c", 1),)),
    Row("again, allowed", [*DOUBTED, again(), prepared()], ["StartTool c.2 by q"]),
    Row("again, denied", [*DOUBTED, again(), prepared("deny")], ["Record c.1 unknown"]),
    Row("nobody knows in time", [*DOUBTED, resolved("expired", by="clock")], ["Record c.1 unknown"]),
    Row("the question is withdrawn", [*DOUBTED, resolved("withdrawn", by="system")], ["Record c.1 unknown"]),
    Row("a tool asks", [*RUNNING, asked(purpose="question")], [], tools=(("c", 1),)),
    Row(
        "a tool has its answer",
        [*RUNNING, asked(purpose="question"), resolved("answered", 1)],
        [],
        tools=(("c", 1),),
    ),
    Row("a tool asked and is lost", [*RUNNING, asked(purpose="question")], ["Record q withdrawn"], epoch=2),
    Row("delegated", DELEGATED, ["CallModel r9 1.1"]),
    Row("delegated, of an older epoch", DELEGATED, ["CallModel r9 1.1"], epoch=2),
    Row("a sub-agent completed", [*DELEGATED, of(RunEnded("completed"), "r9")], ["Record c.1 ok"]),
    Row("a sub-agent did not", [*DELEGATED, of(RunEnded("max_turns"), "r9")], ["Record c.1 error"]),
    Row("a sub-agent never began", [*CALLED, prepared(), tool(child="r9")], ["Record c.1 unknown"]),
    Row(
        "a sub-agent spends its caller's budget",
        [
            *begun(budget_tokens=9),
            turn(),
            ended("c"),
            prepared(),
            tool(child="r9"),
            CHILD,
            turn(run_id="r9"),
            ended("d", run_id="r9", usage=Usage(input=9)),
            Draft("r9", CallsPrepared(1, (PreparedCall("d", "deny"),))),
            Draft("r9", ToolEnded("d", 0, "denied")),
        ],
        ["Record r9 budget_exceeded"],
    ),
    Row(
        "only open requests remain",
        [*begun(), turn(), ended("c", "b")]
        + [s for n, c in enumerate("cb") for s in (prepared("ask", c), asked(f"q{n}", call=c, expires_at_ms=90 - n))],
        ["EndSegment until 89"],
    ),
    # cancelling
    Row("cancel during the response", [*begun(), turn(), CANCEL], ["CancelModel"], model=True),
    Row("cancel before the first turn", [*begun(), CANCEL], ["Record r1 cancelled"]),
    Row("cancel, a tool runs", [*RUNNING, CANCEL], ["CancelTool c.1"], tools=(("c", 1),)),
    Row("cancel, a tool is lost", [*RUNNING, CANCEL], ["Record c.1 unknown"], epoch=2),
    Row("cancel, to be prepared", [*CALLED, CANCEL], ["Record c.0 not_run"]),
    Row("cancel, an approval is open", [*CALLED, prepared("ask"), asked(), CANCEL], ["Record q withdrawn"]),
    Row(
        "the approval was first",
        [*CALLED, prepared("ask"), asked(), CANCEL, resolved("approved")],
        ["Record c.0 not_run"],
    ),
    Row(
        "the denial was first", [*CALLED, prepared("ask"), asked(), CANCEL, resolved("denied")], ["Record c.0 not_run"]
    ),
    *(
        Row(
            f"a person said {word}",
            [*DOUBTED, CANCEL, resolved("answered", {"outcome": word})],
            [f"Record c.1 {status}"],
        )
        for word, status in [("ran", "ok"), ("not_run", "not_run"), ("again", "unknown")]
    ),
    Row("cancel, a sub-agent lives", [*DELEGATED, CANCEL], ["Record cancel r9"]),
    Row("cancel, all settled", [*RUNNING, CANCEL, result()], ["Record r1 cancelled"]),
    Row("cancel by a fault", [*RUNNING, of(CancelRequested("system", FATAL)), result()], ["Record r1 failed"]),
    Row(
        "a person's cancel, a steer waits",
        [*begun(), turn(), STEER, CANCEL],
        ["CancelModel", "Record withdraw i2"],
        model=True,
    ),
    Row(
        "a fault leaves the steer",
        [*begun(), turn(), STEER, of(CancelRequested("system", FATAL))],
        ["CancelModel"],
        model=True,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_what_is_due_follows_from_the_state(row: Row) -> None:
    in_flight = InFlight(frozenset({"r1"} if row.model else ()), frozenset(row.tools))
    assert [said(command) for command in due(reached(row), row.epoch, in_flight, row.stopping)] == row.due


RETRIED = [*CALLED, prepared(), tool("retry")]
APPROVED = [*CALLED, prepared("ask"), asked(), resolved("approved")]
AFTER = [*begun(), turn(), ended(), of(RunEnded("completed"))]

ILLEGAL: list[tuple[str, list[Step], Draft, str]] = [
    # inputs
    ("the same input twice", [accepted()], accepted(), "accepted before"),
    ("a steer without a run", [], accepted(1, "steer"), "needs a live root run"),
    ("a steer of a cancelled run", [*begun(), CANCEL], accepted(2, "steer"), "needs a live root run"),
    ("the withdrawal of a bound input", begun(), of(InputWithdrawn("i1"), None), "does not wait"),
    # runs
    ("a run without its input", [], of(RunStarted(Limits(), "m", ("i1",))), "one waiting input"),
    ("a run under another id", [accepted()], of(RunStarted(Limits(), "m", ("i1",)), "r2"), "one waiting input"),
    ("a second root run", [*begun(), accepted(2)], of(RunStarted(Limits(), "m", ("i2",)), "r2"), "is live"),
    ("a sub-agent that nobody called", [*CALLED, prepared()], CHILD, "is not what a call"),
    ("a sub-agent of a cancelled run", [*DELEGATED[:-1], CANCEL], CHILD, "is not what a call"),
    ("the same sub-agent twice", DELEGATED, CHILD, "started before"),
    ("a fact after run_ended", AFTER, CANCEL, "not live"),
    ("a second cancel", [*begun(), CANCEL], CANCEL, "cancelled already"),
    ("the end under an open response", [*begun(), turn()], of(RunEnded("failed")), "cannot end while"),
    ("the end over an open call", CALLED, of(RunEnded("failed")), "cannot end while"),
    (
        "the end over an open request",
        [*begun(), turn(), ended(), asked(purpose="custom", call=None)],
        of(RunEnded("completed")),
        "cannot end while",
    ),
    ("the end over a live sub-agent", DELEGATED, of(RunEnded("failed")), "cannot end while"),
    ("an outcome that is not the cancel's", [*begun(), CANCEL], of(RunEnded("completed")), "ends cancelled"),
    ("a cancel that nobody asked for", begun(), of(RunEnded("cancelled")), "nobody cancelled"),
    # responses
    ("a turn in a cancelled run", [*begun(), CANCEL], turn(), "cancelled run"),
    ("a turn while a response is open", [*begun(), turn()], turn(1, 2), "response is open"),
    ("a turn over an open call", CALLED, turn(2), "every call is settled"),
    (
        "a turn over an open request",
        [*begun(), asked(purpose="custom", call=None)],
        turn(),
        "every request closed",
    ),
    ("a turn that is not due", [*RUNNING, result()], turn(3), "2.1 was due"),
    ("a turn after the last word", [*begun(), turn(), ended()], turn(2), "none was due"),
    ("another try of an answer that was given", [*RUNNING, result()], turn(1, 2), "was due"),
    (
        "a turn beyond max_turns",
        [*begun(max_turns=1), turn(), ended("c"), prepared(), tool(), result()],
        turn(2),
        "beyond the limit",
    ),
    (
        "a turn beyond the budget",
        [*begun(budget_cost=1.0), turn(), ended(cost=1.0)],
        turn(2),
        "budget is spent",
    ),
    ("a turn with an input of another run", [*begun(), accepted(2)], turn(1, 1, "i2"), "is not there"),
    ("a response that nobody waits for", begun(), ended(), "is open"),
    ("a response of another turn", [*begun(), turn()], ended(turn=2), "is open"),
    ("a cancelled response of a run that is not", [*begun(), turn()], ended(status="cancelled"), "only be cancelled"),
    ("two calls of one id", [*begun(), turn()], ended("c", "c"), "share one id"),
    # verdicts
    ("a verdict in a cancelled run", [*CALLED, CANCEL], prepared(), "not prepared"),
    ("a verdict about a broken call", [*begun(), turn(), ended("c!")], prepared(), "cannot be prepared"),
    ("a verdict about another turn", CALLED, of(CallsPrepared(2, (PreparedCall("c", "run"),))), "cannot be prepared"),
    ("a verdict about nothing", CALLED, prepared(call="x"), "not of this turn"),
    ("a verdict after a refusal", [*CALLED, prepared("deny"), 2], prepared(), "cannot be prepared"),
    ("a verdict while it is asked", [*CALLED, prepared("ask"), asked()], prepared(), "cannot be prepared"),
    ("a retry by the same owner", RETRIED, prepared(), "cannot be prepared"),
    ("a retry of what must be asked", [*RUNNING, 2], prepared(), "cannot be prepared"),
    ("a retry under an open question", [*RETRIED, asked(purpose="question"), 2], prepared(), "cannot be prepared"),
    (
        "a retry too many",
        [*begun(attempts=1), turn(), ended("c"), prepared(), tool("retry"), 2],
        prepared(),
        "cannot be prepared",
    ),
    ("a verdict after did not run", [*DOUBTED, resolved("answered", {"outcome": "not_run"})], prepared(), "prepared"),
    # requests
    ("a request in a cancelled run", [*CALLED, prepared("ask"), CANCEL], asked(), "nothing is asked"),
    ("one about no call, too", [*begun(), CANCEL], asked(purpose="custom", call=None), "nothing is asked"),
    ("the same request twice", [*CALLED, prepared("ask"), asked()], asked(), "made before"),
    ("an approval that is not due", [*CALLED, prepared()], asked(), "no approval is due"),
    ("a question for an approval", [*CALLED, prepared("ask")], asked(purpose="question"), "no question is due"),
    ("an approval of what runs", RUNNING, asked(), "no approval is due"),
    ("an approval of a retry", [*RETRIED, 2, prepared("ask")], asked(), "no approval is due"),
    ("doubt about what never started", CALLED, asked(purpose="unknown_outcome"), "not in doubt"),
    (
        "doubt while the tool asks",
        [*RUNNING, asked(purpose="question")],
        asked("q2", "unknown_outcome"),
        "not in doubt",
    ),
    ("a request about a call of no run", CALLED, Draft(None, asked().body), "names no run"),
    ("an answer to nothing", begun(), resolved("withdrawn"), "is not open"),
    ("a second answer", APPROVED, resolved("denied"), "is not open"),
    ("an answer in another run", [*CALLED, prepared("ask"), asked()], of(resolved("denied").body, None), "is not open"),
    ("an approval that is answered", [*CALLED, prepared("ask"), asked()], resolved("answered", 1), "cannot be"),
    ("an outcome that is approved", DOUBTED, resolved("approved"), "cannot be"),
    ("an outcome in other words", DOUBTED, resolved("answered", {"outcome": "maybe"}), "ran, not_run or again"),
    ("an outcome that is no object", DOUBTED, resolved("answered", "ran"), "ran, not_run or again"),
    # starts
    ("a start without a verdict", CALLED, tool(), "nothing allows it"),
    ("a start on a verdict of an older epoch", [*CALLED, prepared(), 2], tool(), "nothing allows it"),
    ("a start of what must be asked", [*CALLED, prepared("ask")], tool(), "nothing allows it"),
    ("a start of what is denied", [*CALLED, prepared("deny")], tool(), "nothing allows it"),
    ("a start on an approval alone", APPROVED, tool(by="q"), "nothing allows it"),
    (
        "a start on the approval of another tool",
        [*APPROVED, prepared("ask", tool="t2")],
        tool(by="q"),
        "nothing allows it",
    ),
    (
        "a start on policy where a person was to be asked",
        [*CALLED, prepared("ask"), 2, prepared()],
        tool(),
        "nothing allows it",
    ),
    (
        "a second start on one approval",
        [*APPROVED, prepared("ask"), tool("retry", by="q"), 2, prepared("ask")],
        tool("retry", 2, by="q"),
        "nothing allows it",
    ),
    ("a start by another authority", [*CALLED, prepared()], tool(by="q"), "was allowed by 'policy'"),
    (
        "a start with another input",
        [*CALLED, prepared()],
        of(ToolStarted("c", 1, "key", "policy", "d2", "ask")),
        "allowed",
    ),
    ("a start that skips an attempt", [*CALLED, prepared()], tool(attempt=2), "follows attempt 0"),
    ("a start in a cancelled run", [*CALLED, prepared(), CANCEL], tool(), "no tool is started"),
    ("a start of what runs", RUNNING, tool(attempt=2), "nothing allows it"),
    # results
    ("a second result", [*RUNNING, result()], result(), "has its result"),
    ("a result of another attempt", RUNNING, result(attempt=2), "is not its current one"),
    ("a result under an open request", DOUBTED, result(), "has an open request"),
    ("a result under the tool's question", [*RUNNING, asked(purpose="question")], result(), "has an open request"),
    ("a result before the sub-agent's", DELEGATED, result(), "before its sub-agent"),
    ("a denial of what was started", RUNNING, result("denied"), "it cannot end denied"),
    ("not_run of what was started", RUNNING, result("not_run"), "it cannot end not_run"),
    ("not_run against what a person said", [*DOUBTED, again()], result("not_run"), "it cannot end not_run"),
    ("success of what never started", [*CALLED, prepared()], result("ok", 0), "was never started"),
    ("doubt about what was only allowed", [*CALLED, prepared()], result("unknown", 0), "was never started"),
    ("a denial that nobody spoke", [*CALLED, prepared()], result("denied", 0), "was never started"),
    ("a denial in a cancelled run", [*CALLED, prepared("deny"), CANCEL], result("denied", 0), "was never started"),
    ("a result in time after the doubt", [*DOUBTED, resolved("expired")], result("ok"), "it cannot end ok"),
    # sessions
    ("a close over a live run", begun(), of(SessionClosed("ann"), None), "cannot be closed"),
    ("a close over a waiting input", [accepted()], of(SessionClosed("ann"), None), "cannot be closed"),
    (
        "a close over an open request",
        [of(asked(purpose="custom", call=None).body, None)],
        of(SessionClosed("ann"), None),
        "cannot be closed",
    ),
    ("anything after the close", [of(SessionClosed("ann"), None)], accepted(), "after session_closed"),
    ("a second beginning", [], of(SessionStarted("agent", "v2"), None), "in the middle"),
]


@pytest.mark.parametrize(("steps", "fact", "words"), [row[1:] for row in ILLEGAL], ids=[row[0] for row in ILLEGAL])
def test_an_illegal_fact_raises_and_changes_nothing(steps: list[Step], fact: Draft, words: str) -> None:
    row = Row("", steps, [])
    state = reached(row)
    epoch = max([1, *(step for step in steps if isinstance(step, int))])
    with pytest.raises(IllegalFactError, match=words):
        advance(state, [fact], 30, epoch)
    assert state == reached(row)


def test_a_result_may_be_late_only_in_the_append_that_withdraws_the_question() -> None:
    late = Row("", [*DOUBTED, resolved("withdrawn"), result("ok", late=True)], [])
    assert reached(late).runs["r1"].settled


def test_a_message_may_come_at_any_time() -> None:
    for row in ROWS:
        if not reached(row).closed:
            assert "i8" in reached(replace(row, steps=[*row.steps, accepted(8)])).inputs
