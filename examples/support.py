"""Customer support that looks orders up by itself, and pays money back only when a person says so.

    ownloop chat examples/support.py
    ownloop run examples/support.py "Look up order A1."
    MODEL=openai:gpt-5 ownloop chat examples/support.py    # a real model, by one word

Three things stand between the model and the money: a person, who approves, edits or denies each refund; a policy in
code, which no person can overrule; and the key of the call, under which the shop's database pays only once. Kill the
program with -9 while it asks, start it again, approve: there is one row in the `refunds` of `shop.db`.
"""

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

from ownloop import Agent, ToolContext, ToolRetry, tool
from ownloop.core.ports import PrepareContext

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, what TEXT, paid REAL);
CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, order_id TEXT, eur REAL);
INSERT OR IGNORE INTO orders VALUES ('A1', 'a lamp', 49), ('A2', 'a chair', 120), ('A3', 'a vase', 25);
"""
ORDER = (
    "SELECT what, paid, round(total(eur), 2) FROM orders LEFT JOIN refunds ON order_id = id WHERE id = ? GROUP BY id"
)


@contextmanager
def shop() -> Generator[sqlite3.Connection]:
    """Open the shop's database, a file in the folder you are in, for one transaction."""
    with closing(sqlite3.connect("shop.db")) as db:
        db.executescript(TABLES)
        with db:
            yield db


def find_order(db: sqlite3.Connection, order_id: str) -> tuple[str, float, float] | None:
    """Return what was ordered, what was paid for it, and what of that was refunded."""
    return db.execute(ORDER, [order_id]).fetchone()


@tool(approval="ask")
def refund(order_id: str, amount_eur: float, context: ToolContext) -> str:
    """Refund an order, the whole price or a part of it."""
    with shop() as db:
        # All attempts of one call have the same key: after a crash in here, a further one pays nothing twice.
        db.execute("INSERT OR IGNORE INTO refunds VALUES (?, ?, ?)", [context.key, order_id, amount_eur])
        match find_order(db, order_id):
            case (_, paid, refunded) if refunded <= paid:
                return f"We refunded {amount_eur:g} EUR for order {order_id}."
            case _:  # another refund was approved meanwhile; raising takes this one back, and the model reads why
                raise ToolRetry(f"Order {order_id} was refunded already.")


@tool(read_only=True)
def look_up_order(order_id: str) -> str:
    """Look an order up: what it is, what it cost, and how much of that was paid back."""
    with shop() as db:
        match find_order(db, order_id):
            case (what, paid, refunded):
                return f"Your order {order_id} is {what} for {paid:g} EUR, and {refunded:g} EUR of it are paid back."
            case _:
                return f"There is no order {order_id}."


def policy(tool_name: str, input: dict[str, Any], context: PrepareContext) -> str | None:
    """Deny what nobody may approve: to pay back more than was paid."""
    if tool_name != "refund":
        return None
    with shop() as db:
        match find_order(db, input["order_id"]):
            case (_, paid, refunded) if input["amount_eur"] > 0 and round(refunded + input["amount_eur"], 2) <= paid:
                return None
            case _:
                return "deny"


agent = Agent(
    "support",
    model=os.environ.get("MODEL", "local"),
    instructions="You are the support of a shop. Refund at most what an order has cost.",
    tools=[refund, look_up_order],
    policy=policy,
    suggestions=["Look up order A1.", "Refund 20 EUR for order A1.", "Refund 500 EUR for order A2."],
)
