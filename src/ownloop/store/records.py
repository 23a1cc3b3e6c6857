"""What is looked up and kept beside the facts: lists, tails, blobs, replies. Each function runs inside the caller's
transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from sqlite3 import Connection

from ownloop.core.codec import dumps
from ownloop.core.events import Rule
from ownloop.core.ports import Filter, Lease, Page, RequestInfo, RunInfo, SessionInfo, StoredReply, Tail
from ownloop.errors import NotFoundError
from ownloop.store.journal import live_session
from ownloop.store.rows import read_reply, read_request, read_rule, read_run, read_session, read_tail
from ownloop.store.statements import execute, one


def session(db: Connection, session_id: str) -> SessionInfo:
    row = one(db, "session_info", session_id=session_id)
    if row is None:
        raise NotFoundError(f"there is no session {session_id!r}")
    return read_session(row)


def sessions(db: Connection, which: Filter, page: Page) -> Sequence[SessionInfo]:
    if page.after is not None:
        live_session(db, page.after)
    wanted = asdict(which)
    del wanted["state"]
    return [read_session(row) for row in execute(db, "list_sessions", **wanted, after=page.after, limit=page.limit)]


def set_title(db: Connection, session_id: str, title: str | None) -> None:
    if execute(db, "rename_session", session_id=session_id, title=title).rowcount != 1:
        raise NotFoundError(f"there is no session {session_id!r}")


def request(db: Connection, session_id: str, request_id: str) -> RequestInfo:
    row = one(db, "get_request", session_id=session_id, request_id=request_id)
    if row is None:
        raise NotFoundError(f"session {session_id!r} has no request {request_id!r}")
    return read_request(row)


def requests(db: Connection, which: Filter, page: Page) -> Sequence[RequestInfo]:
    after = 0
    if page.after is not None:
        session_id, _, request_id = page.after.partition("/")
        row = one(db, "get_request", session_id=session_id, request_id=request_id)
        if row is None:
            raise NotFoundError(f"a page of requests begins after 'session_id/request_id'; there is no {page.after!r}")
        after = row["id"]
    rows = execute(db, "list_requests", **asdict(which), after=after, limit=page.limit)
    return [read_request(row) for row in rows]


def run(db: Connection, run_id: str, session_id: str | None) -> RunInfo:
    if session_id is None:
        row = one(db, "get_run", run_id=run_id)
    else:
        row = one(db, "get_run_of_session", run_id=run_id, session_id=session_id)
    if row is not None:
        return read_run(row)
    queued = one(db, "get_queued_run", run_id=run_id, session_id=session_id)
    if queued is None:
        raise NotFoundError(f"there is no run {run_id!r}" + (f" in session {session_id!r}" if session_id else ""))
    return RunInfo(queued["session_id"], run_id, 0, 0, "queued")


def rules(db: Connection, session_id: str) -> Sequence[Rule]:
    live_session(db, session_id)
    return [read_rule(row) for row in execute(db, "list_rules", session_id=session_id)]


def save_tail(db: Connection, lease: Lease, tails: Sequence[Tail]) -> None:
    row = one(db, "get_session", session_id=lease.session_id)
    if row is None or row["epoch"] != lease.epoch or row["owner"] != lease.worker_id:
        return
    execute(db, "clear_tails", session_id=lease.session_id)
    for tail in tails:
        execute(
            db,
            "insert_tail",
            session_id=lease.session_id,
            stream=tail.stream,
            units=tail.units,
            body=dumps(tail.body),
        )


def tails(db: Connection, session_id: str) -> Sequence[Tail]:
    live_session(db, session_id)
    return [read_tail(row) for row in execute(db, "list_tails", session_id=session_id)]


def put_blob(db: Connection, session_id: str, digest: str, media_type: str, body: bytes) -> None:
    found = hashlib.sha256(body).hexdigest()
    if found != digest:
        raise ValueError(f"the digest is {digest!r}, but these {len(body)} bytes have the SHA-256 {found!r}")
    live_session(db, session_id)
    execute(db, "put_blob", digest=digest, media_type=media_type, body=body)
    execute(db, "put_blob_ref", session_id=session_id, digest=digest)


def get_blob(db: Connection, digest: str) -> tuple[str, bytes]:
    row = one(db, "get_blob", digest=digest)
    if row is None:
        raise NotFoundError(f"there is no blob {digest!r}")
    return row["media_type"], row["body"]


def remember_reply(db: Connection, principal: str, key: str, reply: StoredReply, at_ms: int) -> StoredReply:
    execute(
        db,
        "put_reply",
        principal=principal,
        key=key,
        operation=reply.operation,
        request_digest=reply.request_digest,
        status=reply.status,
        reply=dumps(reply.reply),
        at_ms=at_ms,
    )
    kept = reply_to(db, principal, key)
    assert kept is not None
    return kept


def reply_to(db: Connection, principal: str, key: str) -> StoredReply | None:
    row = one(db, "get_reply", principal=principal, key=key)
    return None if row is None else read_reply(row)
