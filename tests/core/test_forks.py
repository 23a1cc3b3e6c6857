"""Forks: what the copied prefix promised does not happen by itself in the child."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Draft,
    Fact,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    ParentRef,
    ResponseEnded,
    RunEnded,
    SessionStarted,
    ToolEnded,
    ToolStarted,
)
from ownloop.core.forks import fork_facts
from ownloop.core.session import fold
from tests.core.machine import World, cancel, ends, outcome


def begun(*tools: str, **settings: Any) -> World:
    world = World(**settings)
    world.say()
    world.round()
    if tools:
        world.respond(*tools)
    return world


def fork(world: World, *, go_on: bool = False, upto: int | None = None) -> tuple[list[Draft], World]:
    """Return the facts of a fork and the world of the child."""
    shared = world.book.facts[:upto]
    state = fold(shared)
    number = count(1)
    started = SessionStarted("agent", "v1", parent=ParentRef("s1", state.head_seq))
    drafts = fork_facts(state, started, lambda kind: f"{kind}-fork{next(number)}", 0, go_on=go_on)
    own = [Fact(state.head_seq + n, 0, state.epoch, d.run_id, d.body) for n, d in enumerate(drafts, 1)]
    assert fold(shared) == state
    return list(drafts), World([*shared, *own])


def kinds(drafts: list[Draft]) -> list[str]:
    return [draft.body.kind for draft in drafts]


def test_of_a_session_at_rest_only_the_rules_and_what_waits_are_left_behind() -> None:
    world = begun("pay")
    world.answer("approval", {"approved": True, "remember": "session"})
    world.round()
    world.done(world.tool("pay"))
    world.say("waits")
    world.round()
    assert world.state.rules
    world.respond()
    world.respond()
    drafts, child = fork(world)
    assert kinds(drafts) == ["session_started"]
    assert not child.state.rules
    assert child.state.messages == world.state.messages


def test_a_waiting_input_is_withdrawn() -> None:
    world = begun()
    world.say("waits")
    world.round()
    drafts, _ = fork(world)
    assert [d.body for d in drafts if isinstance(d.body, InputWithdrawn)] == [InputWithdrawn("in2", "local")]


def test_a_live_run_in_which_nobody_is_asked_ends_cancelled() -> None:
    drafts, child = fork(begun())
    assert [d.body for d in drafts[1:3]] == [ResponseEnded(1, "abandoned"), CancelRequested("forked")]
    assert outcome(child).outcome == "cancelled"
    child.check_rest()


def test_it_goes_on_where_the_fork_says_so() -> None:
    drafts, child = fork(begun(), go_on=True)
    assert kinds(drafts) == ["session_started", "response_ended"]
    child.rest()
    assert outcome(child).outcome == "completed"


def test_an_open_approval_is_asked_under_a_new_id_with_the_same_words() -> None:
    world = begun("pay")
    before = world.request("approval")
    _, child = fork(world)
    asked = child.request("approval")
    assert asked.request_id == "req-fork1"
    assert (asked.data, asked.schema, asked.input_digest, asked.tool_digest) == (
        before.data,
        before.schema,
        before.input_digest,
        before.tool_digest,
    )
    child.rest()
    child.answer("approval")
    child.round()
    assert child.bodies(ToolStarted)[-1].authority == "req-fork1"


def test_an_approval_that_was_given_before_is_asked_again_with_the_edited_input() -> None:
    world = begun("pay")
    world.answer("approval", {"approved": True, "edited_input": {"n": 2}})
    world.round()
    approved = next(f.seq for f in world.book.facts if isinstance(f.body, InteractionResolved))
    _, child = fork(world, upto=approved)
    child.rest()
    assert child.request("approval").data["input"] == {"n": 2}
    child.answer("approval")
    child.rest()
    assert ends(child) == [("pay", "ok")]


@pytest.mark.parametrize("upto", [ResponseEnded, CallsPrepared])
def test_a_call_that_needed_nobody_is_asked_about_too(upto: type) -> None:
    world = begun("send")
    seq = next(f.seq for f in world.book.facts if isinstance(f.body, upto))
    _, child = fork(world, upto=seq)
    child.rest()
    assert not child.entered
    child.answer("approval")
    child.rest()
    assert ends(child) == [("send", "ok")]


def test_a_call_that_was_refused_is_not_asked_about() -> None:
    world = begun("drop", "pay")
    seq = next(f.seq for f in world.book.facts if isinstance(f.body, CallsPrepared))
    _, child = fork(world, upto=seq)
    child.rest()
    assert ends(child) == [("drop", "denied")]
    assert len(child.bodies(InteractionRequested)) == 1


def test_a_durable_question_stays_a_question() -> None:
    world = begun("form")
    data = world.request("question").data
    _, child = fork(world)
    assert child.request("question").data == data
    child.answer("question", {"value": "blue"})
    child.rest()
    assert ends(child) == [("form", "ok")]
    assert not child.bodies(ToolStarted)


@pytest.mark.parametrize("tool", ["look", "send", "post"])
def test_a_started_call_ends_unknown_whatever_its_tool_says(tool: str) -> None:
    world = begun(tool, "pay")
    _, child = fork(world)
    assert ends(child) == [(tool, "unknown")]
    child.answer("approval")
    child.rest()
    assert ends(child) == [(tool, "unknown"), ("pay", "ok")]
    assert outcome(child).outcome == "completed"


def test_so_does_one_that_was_about_to_be_retried() -> None:
    world = begun("look")
    world.crash()
    world.round()
    prepared = [f.seq for f in world.book.facts if isinstance(f.body, CallsPrepared)][-1]
    assert world.book.facts[prepared].body.kind == "tool_started"
    _, child = fork(world, upto=prepared)
    assert ends(child) == [("look", "unknown")]
    assert child.bodies(ToolEnded)[0].attempt == 1
    assert not child.bodies(InteractionRequested)


def test_so_does_one_whose_outcome_is_asked_or_was_answered_again() -> None:
    world = begun("send")
    world.time_over(world.tool("send"))
    _, asked = fork(world)
    world.answer("unknown_outcome")
    world.round()
    answered = max(f.seq for f in world.book.facts if isinstance(f.body, InteractionResolved))
    _, again = fork(world, upto=answered)
    assert ends(asked) == ends(again) == [("send", "unknown")]


def test_sub_agents_end_cancelled_and_their_call_unknown() -> None:
    world = begun("sub", "pay")
    world.respond("pay")
    _, child = fork(world)
    assert [(f.run_id, f.body.outcome) for f in child.book.facts if isinstance(f.body, RunEnded)] == [
        ("run2", "cancelled")
    ]
    assert sorted(ends(child)) == [("pay", "not_run"), ("sub", "unknown")]
    assert child.request("approval").run_id == "run1"


def test_a_run_that_was_being_cancelled_ends_so() -> None:
    world = begun("pay", "send")
    world.post(cancel())
    world.round()
    assert world.root.cancel
    _, child = fork(world)
    assert sorted(ends(child)) == [("pay", "not_run"), ("send", "unknown")]
    assert outcome(child).outcome == "cancelled"


def test_the_original_gets_no_fact() -> None:
    world = begun("pay")
    before = list(world.book.facts)
    fork(world)
    assert world.book.facts == before
