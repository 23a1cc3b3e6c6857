"""Rows and the core's values, both ways. Pure; imported by the modules of `store` only."""

from __future__ import annotations

from sqlite3 import Row
from typing import Any

from ownloop.core.codec import dump_body, load_body, loads
from ownloop.core.events import Fact, Rule
from ownloop.core.inbox import InboxItem, InboxRow, load_item
from ownloop.core.ports import RequestInfo, RunInfo, SessionInfo, StoredReply, Tail


def fact_row(session_id: str, fact: Fact) -> tuple[Any, ...]:
    body = fact.body
    return session_id, fact.seq, fact.epoch, fact.at_ms, fact.run_id, body.kind, body.v, dump_body(body)


def read_fact(row: Row) -> Fact:
    seq, at_ms, epoch, run_id, kind, v, body = row
    return Fact(seq, at_ms, epoch, run_id, load_body(kind, v, body))


def read_item(row: Row) -> InboxRow:
    body = load_item(row["kind"], row["body"])
    return InboxRow(row["id"], InboxItem(body, row["at_ms"], row["principal"], row["idem_key"], row["origin"]))


def read_session(row: Row) -> SessionInfo:
    return SessionInfo(
        session_id=row["id"],
        agent=row["agent"],
        agent_digest=row["agent_digest"],
        principal=row["principal"],
        tenant=row["tenant"],
        title=row["title"],
        parent_id=row["parent_id"],
        parent_seq=row["parent_seq"],
        head_seq=row["head_seq"],
        epoch=row["epoch"],
        owner=row["owner"],
        takeovers=row["takeovers"],
        closing=bool(row["closing"]),
        pinned=bool(row["pinned"]),
        runnable_at_ms=row["runnable_at_ms"],
        updated_ms=row["updated_ms"],
        live_run_id=row["live_run_id"],
        open_requests=row["open_requests"],
    )


def read_request(row: Row) -> RequestInfo:
    return RequestInfo(
        session_id=row["session_id"],
        request_id=row["request_id"],
        seq=row["seq"],
        run_id=row["run_id"],
        purpose=row["purpose"],
        assignee=row["assignee"],
        expires_at_ms=row["expires_at_ms"],
        state=row["state"],
        answer_digest=row["answer_digest"],
        answered_by=row["answered_by"],
    )


def read_run(row: Row) -> RunInfo:
    return RunInfo(row["session_id"], row["run_id"], row["first_seq"], row["last_seq"], row["phase"], row["outcome"])


def read_rule(row: Row) -> Rule:
    return Rule(**loads(row["body"]))


def read_tail(row: Row) -> Tail:
    return Tail(row["stream"], row["units"], loads(row["body"]))


def read_reply(row: Row) -> StoredReply:
    return StoredReply(row["operation"], row["request_digest"], row["status"], loads(row["reply"]))
