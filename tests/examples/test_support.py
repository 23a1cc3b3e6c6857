"""examples/support.py: looks up unasked, refunds once and only what a person approved and the policy allows."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ownloop.errors import InvalidRequestError
from tests.cli.conftest import Program
from tests.cli.terminal import Terminal
from tests.examples.conftest import APPROVAL, EXAMPLES, MODEL_S, Loader, call, say, served

FILE = str(EXAMPLES / "support.py")
REFUND = call(("refund", {"order_id": "A1", "amount_eur": 20}))
SAID = say("Done.")


def refunds(folder: Path) -> list[tuple[str, float]]:
    """Return what the shop's database says was paid back."""
    if not (folder / "shop.db").exists():
        return []
    db = sqlite3.connect(folder / "shop.db")
    try:
        return db.execute("SELECT order_id, eur FROM refunds ORDER BY rowid").fetchall()
    finally:
        db.close()


async def test_an_order_is_looked_up_without_asking_anybody(example: Loader) -> None:
    with served(call(("look_up_order", {"order_id": "A1"})), SAID) as model:
        result = await example("support", MODEL=model.string).agent.run("Look up order A1.")
        assert (result.outcome, result.text) == ("completed", "Done.")
        assert model.heard == "Your order A1 is a lamp for 49 EUR, and 0 EUR of it are paid back."


async def test_an_order_that_is_not_there_is_an_answer_too(example: Loader) -> None:
    with served(call(("look_up_order", {"order_id": "A9"})), SAID) as model:
        await example("support", MODEL=model.string).agent.run("Look up order A9.")
        assert model.heard == "There is no order A9."


@pytest.mark.parametrize(
    ("answer", "paid", "heard"),
    [
        ({"approved": True}, [("A1", 20.0)], "We refunded 20 EUR for order A1."),
        (
            {"approved": True, "edited_input": {"order_id": "A1", "amount_eur": 5}},
            [("A1", 5.0)],
            "We refunded 5 EUR for order A1.",
        ),
        ({"approved": False, "note": "too late"}, [], "denied by the user. Reason: too late"),
        # No person overrules the policy, neither with too much nor for an order that is not there.
        (
            {"approved": True, "edited_input": {"order_id": "A1", "amount_eur": 49.01}},
            [],
            "denied by the agent's policy",
        ),
        ({"approved": True, "edited_input": {"order_id": "A9", "amount_eur": 5}}, [], "denied by the agent's policy"),
    ],
)
async def test_a_person_decides_within_the_policy(
    example: Loader, tmp_path: Path, answer: dict[str, Any], paid: list[tuple[str, float]], heard: str
) -> None:
    with served(REFUND, SAID) as model:
        agent = example("support", MODEL=model.string).agent
        asked = await agent.run("Refund 20 EUR for order A1.")
        assert asked.state == "interrupted"
        assert refunds(tmp_path) == []
        result = await agent.resume(asked, {asked.requests[0].request_id: answer})
        assert result.outcome == "completed"
        assert heard in model.heard
    assert refunds(tmp_path) == paid


@pytest.mark.parametrize("amount", [500, 0, -3, 120.01])
async def test_what_the_policy_denies_nobody_is_asked_about(example: Loader, tmp_path: Path, amount: float) -> None:
    with served(call(("refund", {"order_id": "A2", "amount_eur": amount})), SAID) as model:
        result = await example("support", MODEL=model.string).agent.run("Refund it.")
        assert result.outcome == "completed"
        assert "denied by the agent's policy" in model.heard
    assert refunds(tmp_path) == []


async def test_an_amount_that_is_none_reaches_neither_person_nor_tool(example: Loader, tmp_path: Path) -> None:
    with served(REFUND, SAID) as model:
        agent = example("support", MODEL=model.string).agent
        asked = await agent.run("Refund 20 EUR for order A1.")
        answer = {"approved": True, "edited_input": {"order_id": "A1", "amount_eur": "much"}}
        with pytest.raises(InvalidRequestError):
            await agent.resume(asked, {asked.requests[0].request_id: answer})
    assert refunds(tmp_path) == []


async def test_two_refunds_that_are_approved_together_pay_back_no_more_than_was_paid(
    example: Loader, tmp_path: Path
) -> None:
    whole = ("refund", {"order_id": "A1", "amount_eur": 49})
    with served(call(whole, whole), SAID) as model:
        agent = example("support", MODEL=model.string).agent
        asked = await agent.run("Refund order A1, twice.")
        assert len(asked.requests) == 2
        await agent.resume(asked, {request.request_id: True for request in asked.requests})
        results = sorted(message["content"] for message in model.asked[-1] if message["role"] == "tool")
        assert "Order A1 was refunded already." in results[0]
        assert results[1] == "We refunded 49 EUR for order A1."
    assert refunds(tmp_path) == [("A1", 49.0)]


@pytest.mark.parametrize(("order", "parts"), [("A1", (9.22, 8.02, 6.42, 8.17, 17.17)), ("A2", (119.9, 0.1))])
def test_parts_add_up_to_the_price_to_the_cent(
    example: Loader, tmp_path: Path, order: str, parts: tuple[float, ...]
) -> None:
    """Sums of floats are a little more or less than the price; these are."""
    support = example("support")
    for part in parts:
        assert support.policy("refund", {"order_id": order, "amount_eur": part}, None) is None
        support.refund(order, part, SimpleNamespace(key=f"key {part}"))
    assert support.policy("refund", {"order_id": order, "amount_eur": 0.01}, None) == "deny"
    assert refunds(tmp_path) == [(order, part) for part in parts]


def test_a_call_that_is_run_again_under_its_key_pays_once(example: Loader, tmp_path: Path) -> None:
    support = example("support")
    for _ in range(2):
        assert support.refund("A1", 49.0, SimpleNamespace(key="a key")) == "We refunded 49 EUR for order A1."
    assert refunds(tmp_path) == [("A1", 49.0)]


@pytest.mark.slow
def test_without_a_person_a_refund_waits(ownloop: Program, tmp_path: Path) -> None:
    with served(REFUND, SAID) as model:
        done = ownloop("run", FILE, "Refund 20 EUR for order A1.", MODEL=model.string)
    assert done.returncode == 3
    assert refunds(tmp_path) == []


# --- in a terminal ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "paid"),
    [(["a"], [("A1", 20.0)]), (["e", "\x7f" * len("20}") + "5}"], [("A1", 5.0)]), (["d", "not today"], [])],
    ids=["approve", "edit", "deny"],
)
def test_a_person_decides_at_the_terminal(tmp_path: Path, keys: list[str], paid: list[tuple[str, float]]) -> None:
    with served(REFUND, SAID) as model, Terminal(["chat", FILE], tmp_path, env={"MODEL": model.string}) as chat:
        chat.prompt()
        chat.enter("Refund 20 EUR for order A1.")
        chat.prompt(APPROVAL)
        assert "amount_eur = 20" in chat.text
        chat.enter(keys[0])
        if keys[0] != "a":
            chat.prompt({"e": "arguments ›", "d": "reason ›"}[keys[0]])
            chat.enter(keys[1])
        chat.until("Done.")
        chat.prompt()
    assert refunds(tmp_path) == paid


@pytest.mark.slow
def test_kill_9_while_it_asks_then_approved_pays_exactly_once(tmp_path: Path) -> None:
    with served(REFUND, SAID) as model:
        env = {"MODEL": model.string}
        for _ in range(2):  # killed as often as you like
            with Terminal(["chat", FILE], tmp_path, env=env) as chat:
                if not model.asked:
                    chat.prompt()
                    chat.enter("Refund 20 EUR for order A1.")
                chat.prompt(APPROVAL)
                chat.kill()
            assert refunds(tmp_path) == []
        with Terminal(["chat", FILE], tmp_path, env=env) as chat:
            chat.prompt(APPROVAL)
            assert "Refund 20 EUR for order A1." in chat.text
            chat.enter("a")
            chat.until("Done.")
            chat.prompt()
            chat.kill()
        with Terminal(["chat", FILE], tmp_path, env=env) as chat:
            chat.prompt()  # nothing is left over
        assert len(model.asked) == 2
    assert refunds(tmp_path) == [("A1", 20.0)]


@pytest.mark.slow
def test_kill_9_inside_the_refund_then_run_again_by_a_person_pays_exactly_once(tmp_path: Path) -> None:
    with served(REFUND, SAID) as model:
        env = {"MODEL": model.string}
        with Terminal(["chat", FILE], tmp_path, env=env) as chat:
            chat.prompt()
            chat.enter("Refund 20 EUR for order A1.")
            chat.prompt(APPROVAL)
            db = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
            db.execute("BEGIN EXCLUSIVE")  # the refund waits for us
            chat.enter("a")
            chat.until("running refund")
            chat.kill()
            db.close()
        with Terminal(["chat", FILE], tmp_path, env=env) as chat:
            chat.prompt(APPROVAL)
            assert "nobody knows how it ended" in chat.text
            assert refunds(tmp_path) == []
            chat.enter("g")
            chat.until("Done.")
            chat.prompt()
    assert refunds(tmp_path) == [("A1", 20.0)]


# --- on the real local model ---


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_local_model_looks_up_refunds_and_is_refused(tmp_path: Path) -> None:
    with Terminal(["chat", FILE], tmp_path) as chat:
        chat.prompt(limit_s=MODEL_S)
        chat.enter("Refund 20 EUR for order A1.")
        chat.prompt(APPROVAL, limit_s=MODEL_S)
        chat.enter("a")
        chat.until("We refunded 20 EUR for order A1.")
        chat.prompt(limit_s=MODEL_S)
        chat.enter("Look up order A1.")
        chat.until("Your order A1 is a lamp for 49 EUR, and 20 EUR of it are paid back.")
        chat.prompt(limit_s=MODEL_S)
        chat.enter("Refund 500 EUR for order A2.")
        chat.prompt(limit_s=MODEL_S)
        assert "refund was denied" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0
    assert refunds(tmp_path) == [("A1", 20.0)]
