"""The crash kit: kills at every position, the faults it must find, and what a kill inside a tool comes to."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ownloop.core import results
from ownloop.core.events import Fact, InteractionRequested, InteractionResolved, ToolEnded, ToolStarted, TurnStarted
from ownloop.core.messages import ToolResultBlock, text_of
from ownloop.core.ports import Filter, Page
from ownloop.core.session import fold, history
from ownloop.testing.crash import Report, crash_test
from ownloop.testing.crash.scenario import proposed_calls
from tests.store.scenes import opened

SCENARIOS = "tests.testing.crash_scenarios"
FAULTS = "tests.testing.crash_faults"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("scenario", ["APPROVAL", "ON_UNKNOWN", "INTERRUPTIONS"])
def test_a_kill_at_any_position_violates_nothing(scenario: str):
    report = crash_test(f"{SCENARIOS}:{scenario}")
    assert report.violations == [], str(report)
    assert report.missed == []
    assert len(report.positions) > 70


def test_it_finds_tools_that_start_before_the_commit():
    report = crash_test(f"{SCENARIOS}:APPROVAL", fault=f"{FAULTS}:starts_tools_before_the_commit", twice=False)
    found = at(report, "in refund, after its effect")
    assert "fact 12 (tool_started) was acknowledged, and is not in the journal" in found
    assert "attempt 1 of a call took effect 2 times" in found
    assert at(report, "no kill") == []


def test_it_finds_calls_that_run_again_without_asking():
    report = crash_test(f"{SCENARIOS}:ON_UNKNOWN", fault=f"{FAULTS}:runs_again_without_asking", twice=False)
    found = " ".join(at(report, "in charge, after its effect"))
    assert "of charge with on_unknown='ask' was started again, and nobody said so" in found
    assert "of charge took effect 2 times" in found
    assert "of mail took effect 2 times" in found
    assert "of ship took effect 2 times" not in found, "with on_unknown='retry' it may"
    assert at(report, "no kill") == []


def test_a_kill_is_the_same_one_in_every_run():
    place = "in mail, after its effect"
    fault = f"{FAULTS}:runs_again_without_asking"
    first, second = (crash_test(f"{SCENARIOS}:ON_UNKNOWN", fault=fault, at=place) for _ in range(2))
    assert first.positions == second.positions
    assert first.violations


def test_a_place_that_is_not_passed_is_refused_with_those_that_are():
    with pytest.raises(RuntimeError, match="passes no place 'in bed'; it passes: .*'before create'"):
        crash_test(f"{SCENARIOS}:APPROVAL", at="in bed")


# --- kill -9 inside a tool ---


@dataclass(frozen=True)
class Left:
    """What a position leaves of one of its tools."""

    started: list[ToolStarted]
    ended: ToolEnded
    asked: list[InteractionRequested]
    answers: list[InteractionResolved]
    told: str
    """What the model reads as the call's result."""
    keys: list[str]
    """One for each effect in the world."""


async def kill_in(tool: str, when: str, folder: Path) -> Left:
    report = crash_test(f"{SCENARIOS}:ON_UNKNOWN", at=f"in {tool}, {when} its effect", twice=False, folder=folder)
    assert report.violations == [], str(report)
    [_, position] = report.positions
    assert position.reached
    store = Path(position.folder) / "store.db"
    effects = [json.loads(line) for line in (store.parent / "effects.jsonl").read_text().splitlines()]
    return left_of(tool, await journal(store), [effect["key"] for effect in effects if effect["tool"] == tool])


async def journal(path: Path) -> list[Fact]:
    async with opened(path) as store:
        [info] = await store.sessions(Filter(), Page())
        return list(await store.read(info.session_id))


def left_of(tool: str, facts: list[Fact], keys: list[str]) -> Left:
    [call_id] = [block.call_id for fact in facts for block in proposed_calls(fact) if block.name == tool]

    def of_call(kind: type[Any]) -> list[Any]:
        bodies: list[Any] = [fact.body for fact in facts if isinstance(fact.body, kind)]
        return [body for body in bodies if body.call_id == call_id]

    asked = of_call(InteractionRequested)
    ids = {body.request_id for body in asked}
    answers = [f.body for f in facts if isinstance(f.body, InteractionResolved) and f.body.request_id in ids]
    [ended] = of_call(ToolEnded)
    [*_, asking] = [fact for fact in facts if isinstance(fact.body, TurnStarted)]
    state = fold(facts[: asking.seq])
    assert asking.run_id is not None
    blocks = [block for message in history(state, asking.run_id) for block in message.blocks]
    [result] = [b for b in blocks if isinstance(b, ToolResultBlock) and b.call_id == call_id]
    return Left(of_call(ToolStarted), ended, asked, answers, text_of(result.content), keys)


@pytest.mark.parametrize(("when", "effects"), [("before", 1), ("after", 2)])
async def test_killed_in_a_tool_that_may_be_retried_it_runs_again_under_the_same_key(
    when: str, effects: int, tmp_path: Path
):
    left = await kill_in("ship", when, tmp_path)
    assert [start.attempt for start in left.started] == [1, 2]
    assert left.asked == []
    assert (left.ended.status, left.told) == ("ok", "Shipped.")
    assert left.keys == [left.started[0].key] * effects == [left.started[1].key] * effects


@pytest.mark.parametrize(("when", "effects"), [("before", 0), ("after", 1)])
async def test_killed_in_a_tool_whose_outcome_is_an_error_the_model_is_told_that_it_is_unknown(
    when: str, effects: int, tmp_path: Path
):
    left = await kill_in("mail", when, tmp_path)
    assert [start.attempt for start in left.started] == [1]
    assert left.asked == []
    assert (left.ended.status, left.told) == ("unknown", results.UNKNOWN)
    assert len(left.keys) == effects


async def test_killed_before_the_effect_of_a_tool_that_asks_a_person_has_it_run_again(tmp_path: Path):
    left = await kill_in("charge", "before", tmp_path)
    [asked], [answer] = left.asked, left.answers
    assert asked.purpose == "unknown_outcome"
    assert asked.data["tool"] == "charge"
    assert asked.data["input"] == {"euros": 7}
    assert (asked.data["attempt"], asked.data["key"]) == (1, left.started[0].key)
    assert (answer.by, answer.value) == ("local", {"outcome": "again"})
    assert [start.attempt for start in left.started] == [1, 2]
    assert left.started[1].authority == asked.request_id
    assert (left.ended.status, left.told) == ("ok", "Charged.")
    assert len(left.keys) == 1


async def test_killed_after_the_effect_of_a_tool_that_asks_the_model_is_told_what_a_person_saw(tmp_path: Path):
    left = await kill_in("charge", "after", tmp_path)
    [asked], [answer] = left.asked, left.answers
    assert asked.purpose == "unknown_outcome"
    assert answer.value == {"outcome": "ran", "result": "It ran."}
    assert [start.attempt for start in left.started] == [1]
    assert (left.ended.status, left.told) == ("ok", "It ran.")
    assert len(left.keys) == 1


def at(report: Report, place: str) -> list[str]:
    """Return what was found at a place."""
    [position] = [position for position in report.positions if str(position) == place]
    return list(position.violations)
