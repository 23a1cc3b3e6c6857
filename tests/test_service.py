"""The operations: messages, answers, cancels and stops, and what they come to. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ownloop.backends.scripted import call, gate, hang, say
from ownloop.core import results
from ownloop.core.events import (
    ConfigChanged,
    Delta,
    Fact,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Note,
    RunEnded,
    RunStarted,
    SessionClosed,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import BlobBlock, TextBlock, text_of
from ownloop.core.operations import GivenAnswer
from ownloop.core.ports import Filter, Principal
from ownloop.errors import (
    BusyError,
    ConfigError,
    ConflictError,
    CursorAheadError,
    InvalidRequestError,
    NotFoundError,
    OwnloopError,
    SessionClosedError,
)
from ownloop.store.memory import MemoryStore
from ownloop.testing.virtual_time import World
from ownloop.tools.decorator import tool
from tests.runtime.stage import Stage, Talk, play, results_of, said

paid: list[Any] = []


@tool(approval="ask")
def pay(eur: int) -> str:
    """Pay somebody."""
    paid.append(eur)
    return f"paid {eur}"


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


def paying(world: World, *script: Any, **options: Any) -> Stage:
    return Stage(world, script or [call("pay", {"eur": 5}), say("done")], [pay], options)


async def ends(talk: Talk) -> list[tuple[str, str]]:
    return [(body.status, text_of(body.blocks)) for body in await talk.of(ToolEnded)]


# --- approvals -------------------------------------------------------------------------------------------------------


def test_an_approval_interrupts_the_run_and_shows_what_is_asked() -> None:
    async def scene(world: World) -> None:
        async with paying(world).open() as talk:
            result = await talk.say("pay")
            assert (result.state, result.outcome) == ("interrupted", None)
            [request] = result.requests
            assert request.purpose == "approval"
            assert request.data["tool"] == "pay"
            assert request.data["input"] == {"eur": 5}
            assert request.data["description"] == "Pay somebody."
            assert request.schema["properties"]["edited_input"]["properties"] == pay.spec.input_schema["properties"]
            assert paid == []
            info = await talk.service.session(talk.session_id)
            assert (info.owner, info.runnable_at_ms, info.open_requests) == (None, None, 1)
            assert await talk.service.requests(Filter(state="open")) == [request]

    play(scene)


def test_answers_come_in_a_batch_and_each_stands_for_itself() -> None:
    async def scene(world: World) -> None:
        async with paying(world).open() as talk:
            result = await talk.say("pay")
            [request] = result.requests
            taken, unknown = await talk.service.answers(
                [
                    GivenAnswer(talk.session_id, request.request_id, {"approved": True}),
                    GivenAnswer(talk.session_id, "req_nobody", {"approved": True}),
                ]
            )
            assert isinstance(unknown, NotFoundError)
            assert not isinstance(taken, OwnloopError)
            await talk.rested()
            assert paid == [5]

    play(scene)


def test_an_approved_call_runs_once_on_the_authority_of_its_request() -> None:
    async def scene(world: World) -> None:
        async with paying(world).open() as talk:
            result = await talk.say("pay")
            [request] = result.requests
            await talk.answer(request, {"approved": True})
            await talk.rested()
            after = await talk.service.run(result.run_id)
            assert (after.outcome, after.text) == ("completed", "done")
            assert paid == [5]
            [started] = await talk.of(ToolStarted)
            assert started.authority == request.request_id
            assert await talk.asked() == []

    play(scene)


def test_an_edited_input_is_what_runs_and_the_model_is_told() -> None:
    async def scene(world: World) -> None:
        stage = paying(world)
        async with stage.open() as talk:
            [request] = (await talk.say("pay")).requests
            await talk.answer(request, {"approved": True, "edited_input": {"eur": 3}})
            await talk.rested()
            assert paid == [3]
            [told] = results_of(stage.backend.requests[1].messages)
            assert told.startswith("paid 3")
            assert 'A person changed the input to {"eur":3}' in told

    play(scene)


def test_an_edited_input_passes_the_policy_again_and_deny_wins() -> None:
    def policy(name: str, input: Any, context: Any) -> str | None:
        return "deny" if input["eur"] > 100 else None

    async def scene(world: World) -> None:
        async with paying(world, policy=policy).open() as talk:
            [request] = (await talk.say("pay")).requests
            await talk.answer(request, {"approved": True, "edited_input": {"eur": 500}})
            await talk.rested()
            assert paid == []
            assert [status for status, _ in await ends(talk)] == ["denied"]

    play(scene)


def test_a_denied_call_is_told_to_the_model_with_the_note() -> None:
    async def scene(world: World) -> None:
        stage = paying(world)
        async with stage.open() as talk:
            result = await talk.say("pay")
            await talk.answer(result.requests[0], {"approved": False, "note": "too much"})
            await talk.rested()
            assert paid == []
            assert results_of(stage.backend.requests[1].messages) == [f"{results.DENIED} Reason: too much"]
            assert (await talk.service.run(result.run_id)).outcome == "completed"

    play(scene)


def test_remember_runs_the_same_call_unasked_until_it_is_revoked() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, lambda r: say("done") if r.messages[-1].role == "tool" else call("pay", {"eur": 5}), [pay])
        async with stage.open() as talk:
            [request] = (await talk.say("one")).requests
            await talk.answer(request, {"approved": True, "remember": "session"})
            await talk.rested()
            assert (await talk.say("two")).text == "done"
            assert paid == [5, 5]
            [rule] = await talk.service.rules(talk.session_id)
            assert rule.tool == "pay"
            assert (await talk.of(ToolStarted))[1].authority == rule.rule_id
            await talk.service.revoke_rule(talk.session_id, rule.rule_id)
            assert (await talk.say("three")).state == "interrupted"
            assert await talk.service.rules(talk.session_id) == []
            with pytest.raises(NotFoundError):
                await talk.service.revoke_rule(talk.session_id, rule.rule_id)

    play(scene)


def test_a_remembered_rule_covers_exactly_its_arguments() -> None:
    async def scene(world: World) -> None:
        script = [call("pay", {"eur": 5}), say("done"), call("pay", {"eur": 6}), say("done")]
        async with paying(world, *script).open() as talk:
            [request] = (await talk.say("one")).requests
            await talk.answer(request, {"approved": True, "remember": "session"})
            await talk.rested()
            assert (await talk.say("two")).state == "interrupted"

    play(scene)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_several_requests_are_answered_in_any_order(order: tuple[int, ...]) -> None:
    async def scene(world: World) -> None:
        three = call("pay", {"eur": 0}) + call("pay", {"eur": 1}) + call("pay", {"eur": 2})
        stage = paying(world, three, say("done"))
        async with stage.open() as talk:
            result = await talk.say("pay")
            requests = sorted(result.requests, key=lambda request: request.data["input"]["eur"])
            for number in order:
                assert (await talk.service.run(result.run_id)).state != "ended"
                await talk.answer(requests[number], {"approved": number != 1})
                await talk.rested()
            assert (await talk.service.run(result.run_id)).text == "done"
            assert paid == [number for number in order if number != 1]
            assert results_of(stage.backend.requests[1].messages) == ["paid 0", results.DENIED, "paid 2"]

    play(scene)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "approved"),
        ({"approved": "yes"}, "boolean"),
        ({"approved": True, "extra": 1}, "extra"),
        ({"approved": True, "edited_input": {"eur": "many"}}, "eur"),
        ({"approved": True, "edited_input": {}}, "eur"),
        ({"approved": False, "edited_input": {"eur": 1}}, "edited_input"),
        ({"approved": True, "remember": "always"}, "always"),
        ("yes", "object"),
        (None, "object"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_and_the_request_stays_open(answer: Any, words: str) -> None:
    async def scene(world: World) -> None:
        async with paying(world).open() as talk:
            [request] = (await talk.say("pay")).requests
            with pytest.raises(InvalidRequestError, match=words):
                await talk.answer(request, answer)
            assert await talk.asked() == [request]

    play(scene)


def test_the_same_answer_twice_changes_nothing_and_another_one_is_a_conflict() -> None:
    async def scene(world: World) -> None:
        async with paying(world).open() as talk:
            [request] = (await talk.say("pay")).requests
            await talk.answer(request, {"approved": True})
            await talk.answer(request, {"approved": True})
            await talk.rested()
            await talk.answer(request, {"approved": True})
            with pytest.raises(ConflictError):
                await talk.answer(request, {"approved": False})
            with pytest.raises(NotFoundError):
                await talk.answer("req_nobody", {"approved": True})
            await talk.rested()
            assert paid == [5]
            assert len(await talk.of(InteractionResolved)) == 1

    play(scene)


def test_an_answer_is_taken_by_a_new_host_on_the_same_store() -> None:
    async def scene(world: World) -> None:
        stage = paying(world)
        async with stage.open() as talk:
            result = await talk.say("pay")
        async with stage.open() as talk:
            [request] = await talk.asked()
            await talk.answer(request, {"approved": True})
            await talk.rested()
            assert (await talk.service.run(result.run_id)).text == "done"
            assert paid == [5]

    play(scene)


def test_an_answer_is_taken_while_another_call_of_the_turn_still_runs() -> None:
    async def scene(world: World) -> None:
        @tool
        async def nap() -> str:
            await world.clock.sleep_until(world.clock.now_ms() + 5000)
            return "slept"

        stage = paying(world, call("pay", {"eur": 5}) + call("nap"), say("done"))
        stage.tools = [pay, nap]
        async with stage.open() as talk:
            accepted = await talk.send("go")
            [request] = await talk.until_asked()
            assert (await talk.service.run(accepted.run_id)).state == "running"
            await talk.answer(request, {"approved": True})
            assert (await talk.service.wait(accepted)).text == "done"
            assert [text for _, text in await ends(talk)] == ["paid 5", "slept"]

    play(scene)


def test_a_changed_tool_is_asked_about_again() -> None:
    async def scene(world: World) -> None:
        stage = paying(world)
        async with stage.open() as talk:
            [first] = (await talk.say("pay")).requests

        @tool(name="pay", approval="ask", version="2")
        def pay_otherwise(eur: int) -> str:
            paid.append(-eur)
            return "paid"

        stage.tools = [pay_otherwise]
        async with stage.open() as talk:
            await talk.answer(first, {"approved": True})
            await talk.rested()
            [second] = await talk.asked()
            assert second.request_id != first.request_id
            assert paid == []
            await talk.answer(second, {"approved": True})
            await talk.rested()
            assert paid == [-5]

    play(scene)


def test_a_vanished_tool_is_an_error_result() -> None:
    async def scene(world: World) -> None:
        stage = paying(world)
        async with stage.open() as talk:
            result = await talk.say("pay")
        stage.tools = []
        async with stage.open() as talk:
            await talk.answer(result.requests[0], {"approved": True})
            await talk.rested()
            [(status, text)] = await ends(talk)
            assert status == "error"
            assert "'pay' is not registered" in text
            assert (await talk.service.run(result.run_id)).text == "done"

    play(scene)


# --- a busy session --------------------------------------------------------------------------------------------------


def test_a_message_to_a_busy_session_is_queued_and_answered_by_a_run_of_its_own() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [gate(opened) + say("one"), say("two")])
        async with stage.open() as talk:
            first = await talk.send("1")
            await talk.until(TurnStarted)
            second = await talk.send("2")
            assert second.run_id != first.run_id
            opened.set()
            assert (await talk.service.wait(second)).text == "two"
            assert (await talk.service.run(first.run_id)).text == "one"
            assert said(stage.backend.requests[1].messages) == [("user", "1"), ("assistant", "one"), ("user", "2")]

    play(scene)


def test_a_steer_enters_at_the_next_tool_boundary() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()

        @tool
        async def work() -> str:
            await opened.wait()
            return "worked"

        stage = Stage(world, [call("work"), say("done")], [work])
        async with stage.open() as talk:
            first = await talk.send("go")
            await talk.until(ToolStarted)
            steer = await talk.send("hurry", on_busy="steer")
            assert steer.run_id == first.run_id
            opened.set()
            assert (await talk.service.wait(steer)).text == "done"
            assert [m.role for m in stage.backend.requests[1].messages] == ["user", "assistant", "tool", "user"]
            assert len(await talk.of(RunStarted)) == 1

    play(scene)


def test_a_steer_that_comes_with_the_last_answer_goes_on_in_the_same_run() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [gate(opened) + say("one"), say("two")])
        async with stage.open() as talk:
            first = await talk.send("go")
            await talk.until(TurnStarted)
            await talk.send("and?", on_busy="steer")
            opened.set()
            assert (await talk.service.wait(first)).text == "two"
            assert len(await talk.of(RunStarted)) == 1

    play(scene)


def test_a_steer_left_over_by_a_run_that_ended_otherwise_starts_its_own_run() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [gate(opened) + say("one"), say("two")], options={"max_turns": 1})
        async with stage.open() as talk:
            await talk.send("go")
            await talk.until(TurnStarted)
            await talk.send("and?", on_busy="steer")
            opened.set()
            await talk.until(lambda facts: sum(isinstance(f.body, RunEnded) for f in facts) == 2)
            assert [body.result for body in await talk.of(RunEnded)] == ["one", "two"]

    play(scene)


def test_a_steer_to_an_idle_session_is_a_message() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one")]).open() as talk:
            assert (await talk.say("go", on_busy="steer")).text == "one"

    play(scene)


def test_a_cancel_by_a_person_withdraws_the_steers_of_its_run_and_leaves_what_is_queued() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("one") + hang(), say("two")])
        async with stage.open() as talk:
            first = await talk.send("go")
            await talk.until(TurnStarted)
            await talk.sleep(50)
            await talk.send("hurry", on_busy="steer")
            queued = await talk.send("next")
            await talk.until(lambda facts: sum(isinstance(f.body, InputAccepted) for f in facts) == 3)
            await talk.service.cancel(run_id=first.run_id)
            assert (await talk.service.wait(queued)).text == "two"
            assert len(await talk.of(InputWithdrawn)) == 1
            assert (await talk.service.run(first.run_id)).outcome == "cancelled"

    play(scene)


def test_reject_refuses_a_message_to_a_busy_session() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [hang()])
        async with stage.open() as talk:
            await talk.send("go", on_busy="reject")
            with pytest.raises(BusyError):
                await talk.send("again", on_busy="reject")
            await talk.until(TurnStarted)
            with pytest.raises(BusyError):
                await talk.send("again", on_busy="reject")
            await talk.service.stop(talk.session_id)
            await talk.rested()

    play(scene)


def test_a_message_while_an_approval_waits_is_queued_and_the_approval_stays() -> None:
    async def scene(world: World) -> None:
        async with paying(world, call("pay", {"eur": 5}), say("done"), say("two")).open() as talk:
            first = await talk.say("pay")
            second = await talk.say("hello?")
            assert second.state == "interrupted"
            assert [r.request_id for r in second.requests] == [first.requests[0].request_id]
            await talk.answer(first.requests[0], {"approved": True})
            await talk.rested()
            assert (await talk.service.run(second.run_id)).text == "two"

    play(scene)


def test_deny_open_refuses_the_open_approvals_with_the_text_as_the_reason() -> None:
    async def scene(world: World) -> None:
        stage = paying(world, call("pay", {"eur": 5}), say("ok, not"), say("two"))
        async with stage.open() as talk:
            first = await talk.say("pay")
            second = await talk.say("no, ask her first", deny_open=True)
            assert second.text == "two"
            assert (await talk.service.run(first.run_id)).text == "ok, not"
            assert results_of(stage.backend.requests[1].messages) == [f"{results.DENIED} Reason: no, ask her first"]
            assert paid == []

    play(scene)


def test_an_answer_that_was_first_stands_against_deny_open() -> None:
    async def scene(world: World) -> None:
        async with paying(world, call("pay", {"eur": 5}), say("paid"), say("two")).open() as talk:
            first = await talk.say("pay")
            await talk.service._store.post(  # posted, and nobody woken yet
                talk.session_id, _answer_item(world, first.requests[0].request_id)
            )
            assert (await talk.say("no", deny_open=True)).text == "two"
            assert paid == [5]

    play(scene)


def _answer_item(world: World, request_id: str) -> Any:
    from ownloop.core.inbox import AnswerRequest, InboxItem
    from ownloop.core.interactions import Answer

    return InboxItem(AnswerRequest(request_id, Answer("approved")), world.clock.now_ms())


# --- taking back -----------------------------------------------------------------------------------------------------


def test_a_queued_message_can_be_withdrawn_and_whoever_waits_for_it_is_told() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [gate(opened) + say("one"), say("three")])
        async with stage.open() as talk:
            await talk.send("1")
            await talk.until(TurnStarted)
            second = await talk.send("2")
            waiting = asyncio.create_task(talk.service.wait(second))
            await talk.sleep(20)
            await talk.service.withdraw(talk.session_id, second.input_id)
            result = await waiting
            assert (result.state, result.outcome) == ("ended", "cancelled")
            opened.set()
            assert (await talk.say("3")).text == "three"
            assert said(stage.backend.requests[1].messages) == [("user", "1"), ("assistant", "one"), ("user", "3")]

    play(scene)


def test_a_withdrawal_that_comes_too_late_is_noted_and_changes_nothing() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [gate(opened) + say("one")])
        async with stage.open() as talk:
            first = await talk.send("1")
            await talk.until(TurnStarted)
            await talk.service.withdraw(talk.session_id, first.input_id)
            opened.set()
            assert (await talk.service.wait(first)).text == "one"
            [note] = await talk.of(Note)
            assert note.data["code"] == "withdraw_too_late"

    play(scene)


def test_the_run_of_a_queued_message_can_be_cancelled_before_it_starts() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [gate(opened) + say("one"), say("three")])
        async with stage.open() as talk:
            first = await talk.send("1")
            await talk.until(TurnStarted)
            second = await talk.send("2")
            assert (await talk.service.run(second.run_id)).state == "running"  # known, and not over
            await talk.service.cancel(run_id=second.run_id)
            await talk.until(InputWithdrawn)
            opened.set()
            assert (await talk.service.wait(first)).text == "one"
            await talk.rested()
            assert (await talk.service.wait(second)).outcome == "cancelled"
            assert len(await talk.of(RunStarted)) == 1

    play(scene)


def test_a_cancel_posted_before_the_run_started_leaves_nothing_to_run() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("one")])
        async with stage.open() as talk:
            accepted = await talk.send("1")
            await talk.service.cancel(run_id=accepted.run_id)
            result = await talk.service.wait(accepted)
            assert (result.state, result.outcome) == ("ended", "cancelled")
            assert stage.backend.requests == []
            assert (await talk.say("2")).text == "one"

    play(scene)


def test_a_cancel_of_a_session_without_a_live_run_changes_nothing() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one"), say("two")]).open() as talk:
            await talk.service.cancel(session_id=talk.session_id)
            assert (await talk.say("1")).text == "one"
            await talk.service.cancel(session_id=talk.session_id)
            assert (await talk.say("2")).text == "two"

    play(scene)


# --- stop and delete -------------------------------------------------------------------------------------------------


def test_stop_closes_an_idle_session_and_later_messages_are_refused() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one")]).open() as talk:
            await talk.say("1")
            await talk.service.stop(talk.session_id)
            await talk.service.stop(talk.session_id)
            await talk.rested()
            assert (await talk.kinds())[-1] == "session_closed"
            with pytest.raises(SessionClosedError):
                await talk.send("2")
            await talk.service.stop(talk.session_id)
            with pytest.raises(SessionClosedError):
                await talk.service.cancel(session_id=talk.session_id)

    play(scene)


def test_stop_ends_a_live_run_and_withdraws_what_is_queued() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one") + hang(), say("two")]).open() as talk:
            first = await talk.send("1")
            second = await talk.send("2")
            await talk.until(TurnStarted)
            await talk.service.stop(talk.session_id)
            assert (await talk.service.wait(first)).outcome == "cancelled"
            assert (await talk.service.wait(second)).outcome == "cancelled"
            await talk.rested()
            assert (await talk.kinds())[-3:] == ["run_ended", "input_withdrawn", "session_closed"]

    play(scene)


def test_stop_withdraws_an_open_approval() -> None:
    async def scene(world: World) -> None:
        async with paying(world).open() as talk:
            result = await talk.say("pay")
            await talk.service.stop(talk.session_id)
            await talk.rested()
            assert await talk.asked() == []
            assert len(await talk.of(SessionClosed)) == 1
            with pytest.raises((ConflictError, SessionClosedError)):
                await talk.answer(result.requests[0], {"approved": True})

    play(scene)


def test_stop_cancels_a_live_tool() -> None:
    async def scene(world: World) -> None:
        @tool
        async def wait_for_ever() -> None:
            await asyncio.Event().wait()

        async with Stage(world, [call("wait_for_ever")], [wait_for_ever]).open() as talk:
            await talk.send("1")
            await talk.until(ToolStarted)
            await talk.service.stop(talk.session_id)
            await talk.rested()
            assert [status for status, _ in await ends(talk)] == ["cancelled"]
            assert (await talk.kinds())[-1] == "session_closed"

    play(scene)


def test_a_stop_survives_its_host() -> None:
    async def scene(world: World) -> None:
        closing = False

        @tool
        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if closing:
                        raise

        stage = Stage(world, [call("stubborn")], [stubborn])
        async with stage.open() as talk:
            await talk.send("1")
            await talk.until(ToolStarted)
            await talk.service.stop(talk.session_id)
            await talk.sleep(100)
            closing = True
        async with stage.open() as talk:
            await talk.until(SessionClosed)
            assert [status for status, _ in await ends(talk)] == ["unknown"]

    play(scene)


def test_delete_stops_the_session_first() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [hang()]).open() as talk:
            await talk.send("1")
            await talk.until(TurnStarted)
            await talk.service.delete(talk.session_id)
            with pytest.raises(NotFoundError):
                await talk.service.session(talk.session_id)
            await talk.sleep(5000)

    play(scene)


# --- repeated requests -----------------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_message_and_another_content_is_a_conflict() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one"), say("two")]).open() as talk:
            first = await talk.send("1", idem_key="k")
            again = await talk.send("1", idem_key="k")
            assert again == first
            with pytest.raises(ConflictError):
                await talk.send("2", idem_key="k")
            other = await talk.send("2", idem_key="k", principal=Principal("ann"))
            assert other.run_id != first.run_id
            assert (await talk.service.wait(other)).text == "two"
            assert len(await talk.of(InputAccepted)) == 2

    play(scene)


def test_the_same_key_gives_the_same_session() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one")]).open() as talk:
            one = await talk.service.create_session(idem_key="k")
            assert (await talk.service.create_session(idem_key="k")).session_id == one.session_id
            with pytest.raises(ConflictError):
                await talk.service.create_session(session_id=one.session_id)

    play(scene)


# --- what cannot be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "  \n", []])
def test_an_empty_message_is_refused(content: Any) -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one")]).open() as talk:
            with pytest.raises(InvalidRequestError, match="some text"):
                await talk.send(content)

    play(scene)


def test_unknown_agents_sessions_runs_and_configs_are_named() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one")]).open() as talk:
            with pytest.raises(NotFoundError, match="'nobody'.*'helper'"):
                await talk.service.create_session("nobody")
            with pytest.raises(NotFoundError):
                await talk.service.send("sess_nobody", "hi")
            with pytest.raises(NotFoundError):
                await talk.service.run("run_nobody")
            with pytest.raises(InvalidRequestError, match="'color'"):
                await talk.service.create_session(config={"color": "red"})
            with pytest.raises(InvalidRequestError, match="takes 'message' and 'steer'"):
                await talk.service.interact(talk.session_id, "shout", "hi")
            with pytest.raises(InvalidRequestError, match="a run or a session"):
                await talk.service.cancel()
            with pytest.raises(CursorAheadError):
                async with talk.service.subscribe(talk.session_id, "99"):
                    pass

    play(scene)


def test_text_that_no_provider_takes_is_cleaned_where_it_enters() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("one")])
        async with stage.open() as talk:
            await talk.say("a\x00b\ud800")
            assert said(stage.backend.requests[0].messages) == [("user", "a�b�")]

    play(scene)


def test_an_image_reaches_the_model_with_its_bytes() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("a cat")])
        async with stage.open() as talk:
            blob = await talk.service.put_blob(talk.session_id, "image/png", b"png")
            assert (await talk.say([TextBlock("what is it?"), blob])).text == "a cat"
            [request] = stage.backend.requests
            assert isinstance(request.messages[0].blocks[1], BlobBlock)
            assert request.blobs[blob.digest] == b"png"

    play(scene)


def test_an_interaction_is_a_message_a_steer_or_an_answer() -> None:
    async def scene(world: World) -> None:
        async with paying(world).open() as talk:
            accepted = await talk.service.interact(
                talk.session_id, "message", [{"type": "text", "text": "pay"}], idem_key="k"
            )
            await talk.rested()
            [request] = await talk.asked()
            await talk.service.interact(
                talk.session_id, "approval", {"approved": True}, interaction_id=request.request_id
            )
            await talk.rested()
            assert (await talk.service.run(accepted.run_id or "")).text == "done"
            with pytest.raises(InvalidRequestError, match="list of text and blob blocks"):
                await talk.service.interact(talk.session_id, "message", [{"type": "text", "txt": "pay"}])

    play(scene)


# --- events ----------------------------------------------------------------------------------------------------------


def test_follow_gives_each_event_once_and_goes_on_after_an_interruption_from_its_cursor() -> None:
    async def scene(world: World) -> None:
        stage = paying(world, say("I pay. ", chunk=2) + call("pay", {"eur": 5}), say("done", chunk=1))
        async with stage.open() as talk:
            accepted = await talk.send("pay")
            first = [frame async for frame in talk.service.follow(accepted, "1")]
            [asked] = await talk.asked()
            assert isinstance(first[-1].event, Fact)
            assert _is_request(first[-1].event)
            again = [frame async for frame in talk.service.follow(accepted, first[-1].cursor)]
            assert again == []
            await talk.answer(asked, {"approved": True})
            second = [frame async for frame in talk.service.follow(accepted, first[-1].cursor)]
            seqs = [frame.event.seq for frame in [*first, *second] if isinstance(frame.event, Fact)]
            facts = [f for f in await talk.facts() if f.run_id == accepted.run_id]
            assert seqs == [fact.seq for fact in facts]
            text = "".join(frame.event.text for frame in second if isinstance(frame.event, Delta))
            assert text == "done"

    play(scene)


def test_follow_shows_all_of_an_interrupted_run_also_when_its_reader_is_the_slower_one() -> None:
    class SlowToRead(MemoryStore):
        async def read(self, session_id: str, after: int = 0, limit: int = 1000) -> Any:
            await asyncio.sleep(0.5 if limit > 1 else 0)
            return await super().read(session_id, after, limit)

    async def scene(world: World) -> None:
        stage = paying(world)
        stage.store = SlowToRead()
        async with stage.open() as talk:
            accepted = await talk.send("pay")
            await talk.rested()
            frames = [frame async for frame in talk.service.follow(accepted, "1")]
            assert isinstance(frames[-1].event, Fact)
            assert _is_request(frames[-1].event)

    play(scene)


def _is_request(fact: Fact) -> bool:
    return isinstance(fact.body, InteractionRequested)


def test_a_subscription_carries_on_from_every_cursor_without_gap_or_double() -> None:
    async def scene(world: World) -> None:
        stage = paying(world, say("I pay. ", chunk=1) + call("pay", {"eur": 5}), say("done", chunk=1))
        async with stage.open() as talk:
            accepted = await talk.send("pay")
            frames = [frame async for frame in talk.service.follow(accepted, "1")]
            await talk.answer((await talk.asked())[0], {"approved": True})
            frames += [frame async for frame in talk.service.follow(accepted, frames[-1].cursor)]
            for at, frame in enumerate(frames[:-1]):
                rest = [f async for f in talk.service.follow(accepted, frame.cursor)]
                facts = [f.event.seq for f in rest if isinstance(f.event, Fact)]
                assert facts == [f.event.seq for f in frames[at + 1 :] if isinstance(f.event, Fact)]

    play(scene)


def test_read_events_pages_with_its_own_cursor() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one")]).open() as talk:
            await talk.say("1")
            seen: list[int] = []
            cursor = ""
            while True:
                facts, cursor = await talk.service.read_events(talk.session_id, cursor, 2)
                if not facts:
                    break
                seen += [fact.seq for fact in facts]
            assert seen == list(range(1, 7))

    play(scene)


def test_the_whole_session_can_be_followed_until_it_is_closed() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one"), say("two")]).open() as talk:

            async def read() -> list[int]:
                async with talk.service.subscribe(talk.session_id) as frames:
                    return [frame.event.seq async for frame in frames if isinstance(frame.event, Fact)]

            reading = asyncio.create_task(read())
            await talk.say("1")
            await talk.say("2")
            await talk.service.stop(talk.session_id)
            assert await reading == list(range(1, 13))

    play(scene)


def test_a_session_is_unattended_while_it_has_something_to_do_and_nobody_does_it() -> None:
    async def scene(world: World) -> None:
        @tool
        async def work() -> str:
            await asyncio.Event().wait()
            return ""

        stage = Stage(world, [call("work"), say("done")], [work])
        async with stage.open() as talk:
            assert await talk.service.unattended() == []
            await talk.send("1")
            await talk.until(ToolStarted)
            assert await talk.service.unattended() == []
        async with stage.open(adopt=False) as talk:
            assert await talk.service.unattended() == [talk.session_id]

    play(scene)


def test_the_config_of_a_session_may_be_changed_within_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"tone": {"enum": ["dry", "warm"]}},
        "additionalProperties": False,
    }

    def instructions(session_id: str, config: Any) -> str:
        return f"Be {config.get('tone', 'neutral')}."

    async def scene(world: World) -> None:
        stage = Stage(world, [say("one"), say("two")], options={"config": schema, "instructions": instructions})
        async with stage.open() as talk:
            await talk.say("1")
            await talk.service.configure(talk.session_id, {"tone": "dry"})
            with pytest.raises(InvalidRequestError, match="tone"):
                await talk.service.configure(talk.session_id, {"tone": "loud"})
            await talk.say("2")
            assert [request.system for request in stage.backend.requests] == ["Be neutral.", "Be dry."]

    play(scene)


def test_the_model_of_a_session_may_be_changed_by_who_runs_it_though_its_config_is_closed() -> None:
    schema = {"type": "object", "properties": {"tone": {"type": "string"}}, "additionalProperties": False}

    async def scene(world: World) -> None:
        stage = Stage(world, [say("one"), say("two")], options={"config": schema})
        async with stage.open() as talk:
            await talk.say("1")
            with pytest.raises(InvalidRequestError, match="model"):
                await talk.service.configure(talk.session_id, {"model": "http://localhost:1/v1#other"})
            with pytest.raises(ConfigError, match="nonsense"):
                await talk.service.set_model(talk.session_id, "nonsense")
            await talk.service.set_model(talk.session_id, "http://localhost:1/v1#other")
            await talk.service.configure(talk.session_id, {"tone": "dry"})
            with pytest.raises(InvalidRequestError, match="model"):
                await talk.service.configure(talk.session_id, {"model": "local"})
            await talk.service.set_model(talk.session_id, "scripted")
            await talk.say("2")
            facts, _ = await talk.service.read_events(talk.session_id)
            changes = [fact.body.patch for fact in facts if isinstance(fact.body, ConfigChanged)]
            assert changes == [{"model": "http://localhost:1/v1#other"}, {"tone": "dry"}, {"model": "scripted"}]

    play(scene)
