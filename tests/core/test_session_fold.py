"""The fold of a journal: what a state knows after its facts."""

from __future__ import annotations

from typing import Any

import pytest

from ownloop.core.codec import dump_body, load_body
from ownloop.core.events import (
    Compacted,
    ConfigChanged,
    Fact,
    InputAccepted,
    Limits,
    Note,
    ParentRef,
    RunEnded,
    RunStarted,
    SessionStarted,
    ToolEnded,
    TurnStarted,
)
from ownloop.core.messages import BlobBlock, Message, TextBlock, ToolCallBlock, ToolResultBlock, text_of
from ownloop.core.session import apply, fold, history, last_results
from ownloop.core.usage import Usage
from ownloop.errors import IllegalFactError
from tests.core.machine import World, cancel


def told(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    """Return (role, text) of messages; a call is its tool's name in brackets, a result its text."""
    words: list[tuple[str, str]] = []
    for message in messages:
        said = [
            f"[{b.name}]"
            if isinstance(b, ToolCallBlock)
            else text_of(b.content)
            if isinstance(b, ToolResultBlock)
            else ""
            for b in message.blocks
        ]
        words.append((message.role, text_of(message.blocks) + "".join(said)))
    return words


def begun(*tools: str, text: str = "hello", **settings: Any) -> World:
    world = World(**settings)
    world.say(text)
    world.round()
    if tools:
        world.respond(*tools)
    return world


def test_a_journal_begins_with_session_started() -> None:
    with pytest.raises(IllegalFactError, match="empty"):
        fold([])
    with pytest.raises(IllegalFactError, match="begins with session_started"):
        fold([Fact(1, 0, 0, None, Note("info", {}))])


@pytest.mark.parametrize(("seq", "epoch"), [(1, 0), (3, 0), (2, -1)])
def test_a_gap_a_double_or_an_older_epoch_is_illegal(seq: int, epoch: int) -> None:
    state = fold([Fact(1, 0, 0, None, SessionStarted("agent", "v1"))])
    with pytest.raises(IllegalFactError):
        apply(state, Fact(seq, 0, epoch, None, Note("info", {})))


def test_the_history_is_what_the_model_is_to_see() -> None:
    world = begun("look", "drop")
    world.done(world.tool("look"))
    assert told(history(world.state, "run1")) == [
        ("user", "hello"),
        ("assistant", "[look][drop]"),
        ("tool", "deny"),
    ]
    world.respond()
    assert told(world.state.messages)[-1] == ("assistant", "answer")


def test_results_stand_in_call_order_however_they_ended() -> None:
    world = begun("look", "send")
    second, first = world.tool("send"), world.tool("look")
    world.done(second, "error")
    world.done(first)
    results = last_results(world.state, "run1")
    assert [(block.name, block.is_error) for block in results] == [("look", False), ("send", True)]


def test_a_response_that_failed_or_was_abandoned_is_no_history() -> None:
    world = begun()
    world.respond(status="abandoned", blocks=(TextBlock("partial"), ToolCallBlock("lost", "send", {})))
    assert told(history(world.state, "run1")) == [("user", "hello")]
    assert not world.root.calls


def test_of_a_cancelled_response_the_text_stays_and_its_calls_never_were() -> None:
    world = begun()
    world.post(cancel())
    world.round()
    world.respond(status="cancelled", blocks=(TextBlock("partial"), ToolCallBlock("lost", "send", {})))
    assert told(world.state.messages) == [("user", "hello"), ("assistant", "partial")]
    assert not world.bodies(ToolEnded)


def test_a_steer_enters_the_history_with_the_turn_that_consumes_it() -> None:
    world = begun("look")
    world.say("also this", "steer")
    world.round()
    assert [role for role, _ in told(history(world.state, "run1"))] == ["user", "assistant"]
    world.done(world.tool("look"))
    assert told(history(world.state, "run1"))[-1] == ("user", "also this")


def test_the_model_reads_what_a_person_changed() -> None:
    world = begun("pay")
    world.answer("approval", {"approved": True, "edited_input": {"n": 2}})
    world.round()
    world.done(world.tool("pay"))
    [result] = last_results(world.state, "run1")
    assert '{"n":2}' in text_of(result.content)


def test_an_input_that_started_a_run_is_in_its_first_turn() -> None:
    state = begun().state
    with pytest.raises(IllegalFactError, match="consumes the input"):
        fold([f for f in begun().book.facts if not isinstance(f.body, TurnStarted)] + _turn_without_input())
    assert not state.inputs


def _turn_without_input() -> list[Fact]:
    return [Fact(4, 0, 1, "run1", TurnStarted(1, 1, "b", "p", "m"))]


def test_usage_is_summed_over_responses_and_counts_against_every_run_above() -> None:
    world = begun("sub", limits=Limits(budget_tokens=100))
    world.respond(usage=Usage(input=3, output=4), cost=0.5)
    assert (world.root.usage, world.root.tree_tokens, world.root.tree_cost) == (Usage(input=1, output=1), 9, 0.5)
    assert world.state.usage == Usage(input=4, output=5)
    assert world.state.cost == 0.5


def test_a_sub_agent_has_a_conversation_of_its_own() -> None:
    world = begun("sub")
    child = next(run for run in world.state.runs.values() if not run.is_root)
    assert told(history(world.state, child.run_id)) == [("user", "task")]
    world.respond(run_id=child.run_id)
    assert told(history(world.state, "run1"))[-1] == ("tool", "answer")


@pytest.mark.parametrize("status", ["ok", "unknown"])
def test_a_call_cannot_end_before_its_sub_agent(status: str) -> None:
    world = begun("sub")
    call = world.call("sub")
    ended = ToolEnded(call.call_id, 1, "ok" if status == "ok" else "unknown")
    with pytest.raises(IllegalFactError, match="sub-agent"):
        apply(world.state, Fact(world.state.head_seq + 1, 0, 1, "run1", ended))


def test_two_inputs_cannot_start_the_same_run() -> None:
    world = begun()
    world.say()
    world.round()
    state = world.state
    second = InputAccepted("other", "queue", (TextBlock("words"),))
    with pytest.raises(IllegalFactError):
        apply(state, Fact(state.head_seq + 1, 0, 1, "run2", second))


def test_a_sub_agent_takes_no_inputs() -> None:
    world = begun("sub")
    facts = [f for f in world.book.facts if not (isinstance(f.body, RunStarted) and f.body.parent_run_id)][:-1]
    state = fold(facts)
    child = RunStarted(Limits(), "m", ("in1",), "run1", world.call("sub").call_id, 1)
    with pytest.raises(IllegalFactError, match="not inputs"):
        apply(state, Fact(state.head_seq + 1, 0, 1, "run2", child))


def test_config_changes_add_up_and_a_fork_keeps_them() -> None:
    state = fold(
        [
            Fact(1, 0, 0, None, SessionStarted("agent", "v1", {"model": "a", "style": "x"})),
            Fact(2, 0, 0, None, ConfigChanged({"model": "b"})),
            Fact(3, 0, 0, None, SessionStarted("agent", "v2", {"style": "y"}, "bob", ParentRef("s1", 2))),
        ]
    )
    assert (state.config, state.agent_digest, state.principal) == ({"model": "b", "style": "y"}, "v2", "bob")


def test_a_closed_session_can_be_forked_and_then_talked_to() -> None:
    world = begun()
    world.wind_up()
    state = world.state
    assert state.closed
    fork = SessionStarted("agent", "v1", parent=ParentRef("s1", state.head_seq))
    child = World([*world.book.facts, Fact(state.head_seq + 1, 0, state.epoch, None, fork)])
    child.say("go on")
    child.rest()
    assert told(child.state.messages)[-2:] == [("user", "go on"), ("assistant", "answer")]


def test_compaction_replaces_whole_exchanges_only() -> None:
    world = begun()
    world.respond()
    world.say("second")
    world.round()
    world.respond()
    state = world.state
    first, answer, *_ = state.messages
    summary = (TextBlock("what was said"),)
    with pytest.raises(IllegalFactError, match="no border"):
        apply(state, Fact(state.head_seq + 1, 0, 9, None, Compacted(first.seq, summary)))
    short = apply(state, Fact(state.head_seq + 1, 0, 9, None, Compacted(answer.seq, summary)))
    assert told(short.messages) == [("user", "what was said"), ("user", "second"), ("assistant", "answer")]


def test_blobs_that_inputs_and_results_name_are_known() -> None:
    world = begun("look")
    run_id, call_id, attempt = world.tool("look")
    image = BlobBlock("digest", "image/png", 1)
    state = apply(
        world.state, Fact(world.state.head_seq + 1, 0, 1, run_id, ToolEnded(call_id, attempt, "ok", (image,)))
    )
    assert state.blobs == {"digest"}


def test_the_result_of_a_run_is_its_last_text() -> None:
    world = begun()
    world.respond()
    [ended] = world.bodies(RunEnded)
    assert (ended.outcome, ended.result, ended.usage) == ("completed", "answer", Usage(input=1, output=1))


def test_a_journal_folds_the_same_after_it_was_written_and_read() -> None:
    world = begun("pay", "look", "sub", "typo")
    read = [
        Fact(f.seq, f.at_ms, f.epoch, f.run_id, load_body(f.body.kind, f.body.v, dump_body(f.body)))
        for f in world.book.facts
    ]
    assert fold(read) == world.state
