"""The owner's reading of the inbox: which facts each row becomes."""

from __future__ import annotations

from typing import Any

import pytest

from ownloop.core.codec import digest
from ownloop.core.events import (
    CancelRequested,
    ConfigChanged,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Note,
    Rule,
    RuleRevoked,
    ToolEnded,
)
from ownloop.core.inbox import (
    AnswerRequest,
    Cancel,
    Config,
    InboxBody,
    InboxItem,
    InboxRow,
    Input,
    LateResult,
    Log,
    Request,
    RevokeRule,
    Stop,
    Withdraw,
)
from ownloop.core.intake import Intake, intake
from ownloop.core.interactions import Answer
from ownloop.core.messages import TextBlock
from tests.core.machine import World


def world_with(*tools: str) -> World:
    world = World()
    world.say()
    world.round()
    if tools:
        world.respond(*tools)
    return world


def read(world: World, *bodies: InboxBody) -> Intake:
    rows = [InboxRow(n, InboxItem(body, 0, "ann")) for n, body in enumerate(bodies, 1)]
    return intake(world.state, rows, 0, world.state.epoch, world.new)


def message(mode: Any = "queue", number: int = 8, **more: Any) -> Input:
    return Input(f"in{number}", f"run{number}", mode, (TextBlock("rather not"),), **more)


def bodies(taken: Intake) -> list[Any]:
    return [draft.body for draft in taken.facts]


def test_a_message_is_accepted_under_the_run_id_its_sender_minted() -> None:
    taken = read(world_with(), message())
    assert [draft.run_id for draft in taken.facts] == ["run8"]
    assert bodies(taken) == [InputAccepted("in8", "queue", (TextBlock("rather not"),), "ann")]
    assert taken.takes == (1,)


@pytest.mark.parametrize(
    ("before", "mode"), [((), "steer"), ((Cancel(),), "queue")], ids=["live", "cancelled in the same inbox"]
)
def test_a_steer_needs_a_live_run_that_is_not_cancelled(before: tuple[InboxBody, ...], mode: str) -> None:
    assert bodies(read(world_with(), *before, message("steer")))[-1].mode == mode


def test_without_a_live_run_a_steer_is_queued() -> None:
    assert bodies(read(World(), message("steer")))[-1].mode == "queue"


def test_deny_open_refuses_approvals_with_its_text_and_nothing_else() -> None:
    world = world_with("pay", "form")
    approval = world.request("approval").request_id
    taken = read(world, message(deny_open=True))
    assert bodies(taken)[1:] == [InteractionResolved(approval, "ann", "denied", note="rather not")]


def test_a_waiting_input_is_withdrawn_by_its_id_or_by_its_runs() -> None:
    for word in (Withdraw("in8"), Cancel("run8")):
        assert bodies(read(world_with(), message(), word))[1:] == [InputWithdrawn("in8", "ann")]


@pytest.mark.parametrize("word", [Withdraw("in1"), Withdraw("nothing")])
def test_a_withdrawal_that_comes_too_late_is_noted(word: Withdraw) -> None:
    [note] = bodies(read(world_with(), word))
    assert note.data == {"code": "withdraw_too_late", "input_id": word.input_id}


def test_cancel_names_a_run_or_means_the_live_one_and_counts_once() -> None:
    world = world_with()
    assert bodies(read(world, Cancel(), Cancel("run1"))) == [CancelRequested("ann")]
    assert read(world, Cancel(), Cancel("run1")).takes == (1, 2)


@pytest.mark.parametrize("run_id", [None, "run1", "nothing"])
def test_a_cancel_of_what_has_ended_is_moot(run_id: str | None) -> None:
    world = world_with()
    world.respond()
    taken = read(world, Cancel(run_id))
    assert (taken.facts, taken.takes) == ((), (1,))


def test_an_approval_is_bound_to_the_input_that_was_shown_or_edited() -> None:
    world = world_with("pay")
    request = world.request("approval")
    [plain] = bodies(read(world, AnswerRequest(request.request_id, Answer("approved"))))
    assert plain.effective_digest == request.input_digest
    edited = Answer("approved", edited_input={"n": 2}, note="less")
    [changed] = bodies(read(world, AnswerRequest(request.request_id, edited)))
    assert (changed.effective_digest, changed.edited_input, changed.note) == (digest({"n": 2}), {"n": 2}, "less")


def test_what_is_remembered_is_this_tool_with_the_effective_input() -> None:
    world = world_with("pay")
    request = world.request("approval")
    answer = Answer("approved", edited_input={"n": 2}, remember="session")
    [resolved] = bodies(read(world, AnswerRequest(request.request_id, answer)))
    assert resolved.rule == Rule("rule1", "pay", "pay.1", digest({"n": 2}))


def test_an_answer_to_a_request_that_is_closed_is_noted() -> None:
    [note] = bodies(read(world_with(), AnswerRequest("gone", Answer("approved"))))
    assert note.data == {"code": "answer_too_late", "request_id": "gone"}


def test_rules_are_revoked_once() -> None:
    world = world_with("pay")
    world.answer("approval", {"approved": True, "remember": "session"})
    world.round()
    assert bodies(read(world, RevokeRule("rule1"), RevokeRule("rule1"))) == [RuleRevoked("rule1", "ann")]


def test_a_foreign_agents_words_become_notes_and_requests() -> None:
    world = world_with()
    taken = read(world, Log(({"a": 1},)), Request("poll1", "poll", {"q": 1}), Request("poll1", "poll", {}))
    log, request, reused = taken.facts
    assert log.body == Note("info", {"log": [{"a": 1}]})
    assert isinstance(request.body, InteractionRequested)
    assert (request.run_id, request.body.purpose, request.body.type) == ("run1", "custom", "poll")
    assert isinstance(reused.body, Note)
    assert reused.body.data["code"] == "request_id_reused"


def test_config_is_taken_as_it_is() -> None:
    assert bodies(read(world_with(), Config({"model": "b"}))) == [ConfigChanged({"model": "b"}, "ann")]


def test_a_late_result_yields_to_an_answer_that_stands_anywhere_in_the_inbox() -> None:
    world = world_with("send")
    tool = world.tool("send")
    world.time_over(tool)
    late = LateResult(*tool, "ok", (TextBlock("sent"),))
    assert [type(body) for body in bodies(read(world, late))] == [InteractionResolved, ToolEnded]
    answer = AnswerRequest(world.request("unknown_outcome").request_id, Answer("answered", {"outcome": "ran"}))
    assert [type(body) for body in bodies(read(world, late, answer))] == [Note, InteractionResolved]


def test_a_stop_is_left_for_the_append_that_closes() -> None:
    taken = read(world_with(), Stop(), Stop())
    assert (taken.stop, taken.takes, taken.facts) == (1, (2,), ())


def test_whatever_is_found_after_the_session_was_closed_is_taken_without_a_fact() -> None:
    world = world_with()
    world.wind_up()
    taken = read(world, message(), Stop())
    assert (taken.facts, taken.takes, taken.stop) == ((), (1, 2), None)
