"""The traces of the model check: each is the shortest that goes wrong where its rule is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ownloop.core.events import (
    CancelRequested,
    ErrorInfo,
    Fact,
    FactBody,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Limits,
    Note,
    ParentRef,
    ResponseEnded,
    RunEnded,
    RunStarted,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.forks import fork_facts
from ownloop.core.inbox import AnswerRequest, LateResult, Stop, Withdraw
from ownloop.core.interactions import Answer
from ownloop.core.session import advance, fold
from ownloop.core.usage import Usage
from ownloop.errors import FencedError, SessionClosedError
from tests.core.machine import Fault, Tool, ToolAsks, ToolDone, World, cancel, ends, outcome

OVERLOADED = ErrorInfo("overloaded", "later", retryable=True)


def begun(*tools: str, **settings: Any) -> World:
    """Return a world in which the model has called these tools."""
    world = World(**settings)
    world.say()
    world.round()
    if tools:
        world.respond(*tools)
    return world


def cut_after(world: World, kind: type[FactBody]) -> list[Fact]:
    """Return the journal up to its last fact of this kind."""
    last = max(fact.seq for fact in world.book.facts if isinstance(fact.body, kind))
    return world.book.facts[:last]


def resumed(facts: list[Fact], **settings: Any) -> World:
    """Return a world whose owner died right after these facts."""
    world = World(facts, **settings)
    world.round()
    return world


def approved_and_done() -> World:
    world = begun("pay")
    world.answer("approval")
    world.round()
    world.done(world.tool("pay"))
    world.respond()
    return world


@pytest.mark.parametrize("kind", [RunStarted, TurnStarted, ResponseEnded, InteractionResolved, ToolStarted, ToolEnded])
def test_h01_what_was_lost_in_a_crash_becomes_due_again(kind: type[FactBody]) -> None:
    world = resumed(cut_after(approved_and_done(), kind))
    assert len(world.book.facts) > len(cut_after(approved_and_done(), kind))
    world.rest()
    if world.state.root is not None:
        world.answer("unknown_outcome" if kind is ToolStarted else "approval")
        world.rest()
    assert outcome(world).outcome == "completed"


def test_h02_a_verdict_is_not_used_by_a_new_owner() -> None:
    prepared = [f for f in begun("send").book.facts if not isinstance(f.body, ToolStarted)]
    world = resumed(prepared, tools={"send": Tool("ask")})
    assert world.kinds[-2:] == ["calls_prepared", "interaction_requested"]
    assert not world.entered


def test_h03_an_approval_of_a_changed_tool_is_asked_again() -> None:
    world = begun("pay")
    first = world.answer("approval")
    world.tools["pay"] = Tool("ask", version=2)
    world.round()
    assert world.request("approval").request_id != first
    assert not world.bodies(ToolStarted)
    second = world.answer("approval")
    world.round()
    assert world.bodies(ToolStarted)[-1].authority == second


def test_h03_an_approval_of_a_changed_tool_is_asked_again_even_if_policy_allows_it_by_now() -> None:
    world = begun("pay")
    world.answer("approval")
    world.tools["pay"] = Tool("run", version=2)
    world.round()
    assert world.request("approval")
    assert not world.bodies(ToolStarted)


def test_h04_calls_of_a_response_that_ends_after_the_cancel_are_not_run() -> None:
    world = begun()
    world.post(cancel())
    world.round()
    world.respond("send", "typo")
    assert ends(world) == [("send", "not_run"), ("typo", "not_run")]
    assert outcome(world).outcome == "cancelled"


@pytest.mark.parametrize("tool", ["look", "send", "post"])
def test_h05_after_a_cancel_a_lost_tool_is_neither_retried_nor_asked_about(tool: str) -> None:
    world = begun(tool)
    world.crash()
    world.post(cancel())
    world.round()
    assert ends(world) == [(tool, "unknown")]
    assert outcome(world).outcome == "cancelled"
    assert not world.bodies(InteractionRequested)


def test_h06_a_tool_that_ignores_its_cancel_does_not_hold_the_cancel_up() -> None:
    world = begun("send")
    hangs = world.tool("send")
    world.post(cancel())
    world.round()
    assert world.root.cancel
    assert world.owner is not None
    assert hangs in world.owner.told_to_stop
    world.time_over(hangs)
    assert ends(world) == [("send", "unknown")]
    assert outcome(world).outcome == "cancelled"


def test_h07_a_tool_that_succeeds_after_cancel_is_recorded_as_it_ended() -> None:
    world = begun("send")
    tool = world.tool("send")
    world.post(cancel())
    world.round()
    world.done(tool, "ok")
    assert ends(world) == [("send", "ok")]
    assert outcome(world).outcome == "cancelled"


def test_h08_a_steer_that_its_run_did_not_live_to_hear_starts_a_run_of_its_own() -> None:
    world = begun()
    steered = world.say("and also", "steer")
    world.round()
    world.respond(status="failed", error=ErrorInfo("auth", "no key"))
    assert outcome(world).outcome == "failed"
    assert world.root.run_id == steered


def test_h08_a_person_who_cancels_takes_their_steer_back_too() -> None:
    world = begun()
    world.say("and also", "steer")
    waits = world.say("later")
    world.round()
    world.post(cancel())
    world.round()
    world.respond(status="cancelled")
    assert len(world.bodies(InputWithdrawn)) == 1
    assert world.root.run_id == waits


def test_h09_a_steer_does_not_get_a_turn_beyond_max_turns() -> None:
    world = begun(limits=Limits(max_turns=1))
    steered = world.say("and also", "steer")
    world.respond()
    assert outcome(world).outcome == "completed"
    assert world.root.run_id == steered


def test_h09_neither_does_the_continuation_of_a_cut_answer() -> None:
    world = begun(limits=Limits(max_turns=1, continue_on_cut=2))
    world.respond(status="cut", stop_reason="max_tokens")
    assert outcome(world).outcome == "max_turns"


def test_h10_a_retry_does_not_go_beyond_the_budget() -> None:
    world = begun(limits=Limits(budget_tokens=2))
    world.respond(status="failed", error=OVERLOADED, usage=Usage(input=2))
    assert outcome(world).outcome == "budget_exceeded"


def test_h10_neither_does_the_second_try_after_an_empty_response() -> None:
    world = begun(limits=Limits(budget_tokens=2))
    world.respond(blocks=())
    assert outcome(world).outcome == "budget_exceeded"


@pytest.mark.parametrize("reached", [RunStarted, TurnStarted])
def test_h11_an_input_is_withdrawn_only_until_its_run_starts(reached: type[FactBody]) -> None:
    world = World(cut_after(begun(), reached))
    world.post(Withdraw("in1"))
    world.rest()
    assert world.bodies(Note)[-1].data["code"] == "withdraw_too_late"
    assert outcome(world).outcome == "completed"


def test_h12_cancel_of_a_run_that_has_not_started_withdraws_its_input() -> None:
    world = begun()
    waits = world.say()
    world.round()
    world.post(cancel(waits))
    world.round()
    world.respond()
    assert world.bodies(InputWithdrawn) == [InputWithdrawn("in2", "ann")]
    world.check_rest()


def test_h13_a_refusal_by_message_leaves_an_answered_approval_to_its_answer() -> None:
    world = begun("pay", "save")
    pay, save = world.state.requests.values()
    world.say("rather not", deny_open=True)
    world.post(AnswerRequest(pay.request_id, Answer("approved")))
    world.round()
    decisions = {body.request_id: body.decision for body in world.bodies(InteractionResolved)}
    assert decisions == {pay.request_id: "approved", save.request_id: "denied"}


def test_h14_what_is_posted_while_the_owner_lets_go_wakes_the_session() -> None:
    world = begun("pay", expires_ms=1000)
    world.claim()
    world.interfere = lambda: world.post(cancel())
    world.round()
    assert world.owner is None
    assert world.book.untaken
    world.rest()
    assert outcome(world).outcome == "cancelled"


@pytest.mark.parametrize(
    ("tool", "then"), [("send", "interaction_requested"), ("post", "tool_ended"), ("look", "tool_started")]
)
def test_h15_a_question_of_a_tool_that_is_lost_is_withdrawn_at_the_takeover(tool: str, then: str) -> None:
    world = begun(tool)
    world.round(ToolAsks(*world.tool(tool)))
    world.crash()
    taken_over = len(world.kinds)
    world.round()
    assert world.kinds[taken_over] == "interaction_resolved"
    assert then in world.kinds[taken_over:]
    world.wind_up()


@pytest.mark.parametrize("status", ["ok", "error"])
def test_h16_a_question_of_a_tool_is_withdrawn_when_the_tool_ends(status: str) -> None:
    world = begun("send")
    tool = world.tool("send")
    world.round(ToolAsks(*tool))
    assert world.owner, "a tool that waits for an answer pins its process"
    world.round(ToolDone(*tool, "ok" if status == "ok" else "error"))
    assert world.kinds[-3:] == ["interaction_resolved", "tool_ended", "turn_started"]


def test_h16_a_question_of_a_tool_is_withdrawn_when_its_time_is_over() -> None:
    world = begun("send")
    tool = world.tool("send")
    world.round(ToolAsks(*tool))
    world.time_over(tool)
    assert world.request("unknown_outcome")


def test_h16_an_answer_that_was_first_stands_though_the_tool_ends() -> None:
    world = begun("send")
    tool = world.tool("send")
    world.round(ToolAsks(*tool))
    question = world.request("question")
    world.interfere = lambda: world.post(AnswerRequest(question.request_id, Answer("answered", 1)))
    world.done(tool)
    [resolved] = world.bodies(InteractionResolved)
    assert resolved.decision == "answered"


def test_h17_a_late_result_answers_the_open_question_about_its_outcome() -> None:
    world = begun("send")
    tool = world.tool("send")
    world.time_over(tool)
    world.done(tool)
    assert world.kinds[-3:] == ["interaction_resolved", "tool_ended", "turn_started"]
    assert world.bodies(ToolEnded)[-1].late


def test_h17_a_late_result_of_an_older_attempt_is_only_noted() -> None:
    world = begun("send")
    first = world.tool("send")
    world.time_over(first)
    world.answer("unknown_outcome", {"outcome": "again"})
    world.round()
    second = world.tool("send")
    assert (second[2], len(world.entered)) == (2, 2)
    world.done(first, "error")
    assert world.bodies(Note)[-1].data["late"]["attempt"] == 1
    assert world.call("send").phase == "running"
    world.time_over(second)
    world.done(first, "error")
    assert world.call("send").phase == "doubted"
    world.done(second)
    assert ends(world) == [("send", "ok")]


@pytest.mark.parametrize("late_first", [True, False])
def test_h17_a_person_who_answers_before_the_late_result_is_taken_was_first(late_first: bool) -> None:
    world = begun("send")
    tool = world.tool("send")
    world.time_over(tool)
    if late_first:
        world.post(LateResult(*tool, "ok", ()))
    world.answer("unknown_outcome", {"outcome": "not_run"})
    if not late_first:
        world.post(LateResult(*tool, "ok", ()))
    world.round()
    assert ends(world) == [("send", "not_run")]
    assert "late" in world.bodies(Note)[-1].data


def test_h17_so_was_one_who_answers_while_it_is_being_recorded() -> None:
    world = begun("send")
    tool = world.tool("send")
    world.time_over(tool)
    world.claim()
    world.interfere = lambda: (world.answer("unknown_outcome", {"outcome": "not_run"}), None)[1]
    world.done(tool)
    assert ends(world) == [("send", "not_run")]


def test_h18_a_takeover_does_not_start_a_second_sub_agent() -> None:
    world = begun("sub")
    world.crash()
    world.rest()
    assert len([body for body in world.bodies(RunStarted) if body.parent_run_id]) == 1
    assert ends(world) == [("sub", "ok")]


def test_h19_a_sub_agent_that_waits_for_a_person_holds_no_slot() -> None:
    world = begun("sub")
    world.respond("pay")
    assert world.owner is None
    world.check_rest()


def test_h20_a_cancel_reaches_the_sub_agents() -> None:
    world = begun("sub")
    world.respond("sub")
    world.respond("pay")
    world.post(cancel(world.root.run_id))
    world.rest()
    assert [body.outcome for body in world.bodies(RunEnded)] == ["cancelled"] * 3


def test_h20_nothing_is_begun_for_a_sub_agent_in_the_moment_of_the_cancel() -> None:
    world = begun("sub")
    child = next(run for run in world.state.runs.values() if not run.is_root)
    world.post(cancel(world.root.run_id))
    world.respond("send", run_id=child.run_id)
    assert not world.entered
    world.rest()


def test_h20_a_cancelled_sub_agent_is_an_error_that_its_caller_goes_on_from() -> None:
    world = begun("sub")
    child = next(run for run in world.state.runs.values() if not run.is_root)
    world.post(cancel(child.run_id))
    world.rest()
    assert ends(world) == [("sub", "error")]
    assert outcome(world).outcome == "completed"


def test_h21_an_unknown_outcome_that_nobody_answers_ends_unknown() -> None:
    world = begun("send", expires_ms=1000)
    world.time_over(world.tool("send"))
    assert world.book.runnable_at == 1000
    world.now = 1000
    world.round()
    assert ends(world) == [("send", "unknown")]


@pytest.mark.parametrize("tool", [Tool("deny"), Tool("invalid"), Tool("unknown_tool"), Tool("ask", version=2)])
def test_h22_a_call_that_may_not_run_again_ends_unknown_and_not_denied(tool: Tool) -> None:
    world = begun("send")
    world.time_over(world.tool("send"))
    world.answer("unknown_outcome", {"outcome": "again"})
    world.tools["send"] = tool
    world.round()
    assert ends(world) == [("send", "unknown")]


def test_h22_the_answer_again_covers_a_tool_that_asks() -> None:
    world = begun("pay")
    world.answer("approval")
    world.round()
    world.time_over(world.tool("pay"))
    again = world.answer("unknown_outcome", {"outcome": "again"})
    world.round()
    assert [body.authority for body in world.bodies(ToolStarted)] == ["req1", again]


def test_h23_a_tool_that_kills_its_process_is_retried_at_most_three_times() -> None:
    world = begun("look")
    for _ in range(5):
        if not world.owner or not world.owner.tools:
            break
        world.crash()
        world.round()
    assert [body.attempt for body in world.bodies(ToolStarted)] == [1, 2, 3]
    assert {body.key for body in world.bodies(ToolStarted)} == {"key run1 call1"}
    assert ends(world) == [("look", "unknown")]


def test_h23_a_retry_needs_a_verdict_of_its_own() -> None:
    world = begun("save")
    world.answer("approval")
    world.round()
    world.crash()
    world.round()
    assert ends(world) == [("save", "unknown")], "the approval was used up by the first start"


def test_h24_an_answer_that_comes_before_the_expiry_is_written_counts() -> None:
    world = begun("pay", expires_ms=1000)
    request = world.request("approval")
    world.now = 2000
    owner = world.claim()
    world.interfere = lambda: world.post(AnswerRequest(request.request_id, Answer("approved")))
    world.round()
    [resolved] = world.bodies(InteractionResolved)
    assert resolved.decision == "approved"
    assert owner.state == fold(world.book.facts)


def test_h25_an_answer_is_taken_with_its_facts_or_not_at_all() -> None:
    world = begun("pay")
    world.answer("approval")
    planned = world.claim().plan(())
    assert planned.takes
    world.crash()
    assert world.book.untaken
    world.round()
    assert not world.book.untaken
    assert len(world.bodies(InteractionResolved)) == 1
    assert len(world.bodies(ToolStarted)) == 1


def test_h26_a_tool_is_entered_only_after_its_start_is_committed() -> None:
    world = begun()
    world.respond("send", crash=True)
    assert world.kinds[-1] == "tool_started"
    assert not world.entered, "the owner died between the commit and the effect"
    world.round()
    assert world.request("unknown_outcome"), "nobody can tell whether it was entered"
    assert not world.entered


def test_h27_an_owner_of_an_older_epoch_writes_nothing() -> None:
    world = begun("send")
    frozen = world.owner
    assert frozen
    world.claim()
    world.post(cancel())
    before = list(world.book.facts)
    with pytest.raises(FencedError):
        frozen.commit(frozen.plan([ToolDone(*next(iter(frozen.tools)))]))
    assert world.book.facts == before
    assert world.book.untaken


def test_h28_an_owner_whose_append_failed_claims_again_and_goes_on() -> None:
    world = begun("look")
    lost = world.owner
    assert lost
    lost.plan([ToolDone(*next(iter(lost.tools)))])  # StoreFullError: nothing was written, and the segment dies
    assert world.claim().epoch == lost.epoch + 1
    world.rest()
    assert outcome(world).outcome == "completed"


def test_h29_nothing_can_be_posted_after_stop_and_stop_closes() -> None:
    world = begun("pay")
    world.say("later")
    world.post(Stop())
    with pytest.raises(SessionClosedError):
        world.say("too late")
    world.rest()
    assert world.kinds[-3:] == ["run_ended", "input_withdrawn", "session_closed"]


def test_h29_stop_survives_the_death_of_the_owner_that_read_it() -> None:
    world = begun("send")
    world.post(Stop())
    world.round()
    assert world.root.cancel
    world.crash()
    world.rest()
    assert world.state.closed


@pytest.mark.parametrize(
    ("raw", "status"), [({"value": "blue"}, "ok"), ({"declined": True}, "denied"), (None, "denied")]
)
def test_h30_the_answer_to_a_durable_question_is_its_result(raw: dict[str, object] | None, status: str) -> None:
    world = begun("form", expires_ms=1000)
    if raw is None:
        world.now = 1000
    else:
        world.answer("question", raw)
    world.round()
    assert ends(world) == [("form", status)]
    assert not world.bodies(ToolStarted)


def test_h31_a_prefix_that_ends_between_withdrawal_and_late_result_ends_unknown() -> None:
    world = begun("send")
    tool = world.tool("send")
    world.time_over(tool)
    world.done(tool)
    torn = resumed(cut_after(world, InteractionResolved))
    assert ends(torn) == [("send", "unknown")]


def test_h34_an_inner_fault_ends_the_run_failed_with_its_calls_settled() -> None:
    world = begun("pay", "send")
    world.round(Fault(world.root.run_id))
    world.done(world.tool("send"))
    assert sorted(ends(world)) == [("pay", "not_run"), ("send", "ok")]
    assert outcome(world).outcome == "failed"
    assert outcome(world).error == ErrorInfo("internal", "a hook raised")


def test_h35_a_fork_neither_starts_what_was_allowed_nor_runs_what_waits() -> None:
    world = begun("send")
    world.say("waits")
    world.crash()
    world.round()
    allowed = [f for f in world.book.facts if not isinstance(f.body, ToolStarted | InteractionRequested)]
    allowed = [replace(fact, seq=seq) for seq, fact in enumerate(allowed, 1)]
    state = fold(allowed)
    assert (state.root is not None, len(state.inputs)) == (True, 1)
    started = SessionStarted("agent", "v1", parent=ParentRef("s1", state.head_seq))
    facts = fork_facts(state, started, lambda kind: f"{kind}-fork", 0)
    child = World([*allowed, *(Fact(state.head_seq + n, 0, 9, d.run_id, d.body) for n, d in enumerate(facts, 1))])
    child.rest()
    assert not child.entered
    assert child.bodies(InputWithdrawn)
    answered = child.answer("approval")
    child.round()
    assert child.bodies(ToolStarted)[-1].authority == answered


def test_h37_a_late_result_after_the_segment_comes_through_the_inbox() -> None:
    world = begun("send")
    tool = world.tool("send")
    world.time_over(tool)
    assert world.owner is None
    world.post(LateResult(*tool, "ok", ()))
    world.rest()
    assert ends(world) == [("send", "ok")]
    assert outcome(world).outcome == "completed"


def test_h38_failures_abandons_and_empties_are_counted_apart() -> None:
    world = begun()
    world.respond(status="abandoned")
    world.respond(blocks=())
    world.respond(status="failed", error=OVERLOADED)
    world.respond(status="abandoned")
    world.respond(status="failed", error=OVERLOADED)
    assert world.root.attempt == 6
    world.respond(blocks=())
    assert outcome(world).outcome == "completed"
    assert [body.attempt for body in world.bodies(TurnStarted)] == [1, 2, 3, 4, 5, 6]


def test_a_crash_in_the_cancel_leaves_what_a_person_said_of_a_call() -> None:
    world = begun("send")
    world.time_over(world.tool("send"))
    answered = world.answer("unknown_outcome", {"outcome": "ran", "result": "sent"})
    world.post(cancel())
    world.round()
    assert world.bodies(InteractionResolved)[-1].request_id == answered
    assert world.bodies(CancelRequested)
    assert ends(world) == [("send", "ok")]
    assert outcome(world).outcome == "cancelled"


def test_a_plan_that_is_not_committed_changes_nothing() -> None:
    world = begun("pay")
    owner = world.claim()
    before = owner.state
    world.answer("approval")
    assert owner.plan(()).facts
    assert owner.state is before
    assert advance(before, (), 0, 9) is before
