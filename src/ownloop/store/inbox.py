"""The inbox: how everybody but the owner speaks to a session. Each function runs inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from ownloop.core.inbox import AnswerRequest, InboxItem, InboxRow, Input, Stop, dump_item
from ownloop.core.ports import Lease, PostResult
from ownloop.errors import BusyError, NotFoundError, SessionClosedError
from ownloop.store.journal import live_session
from ownloop.store.rows import read_item
from ownloop.store.statements import execute, one


def post(db: Connection, session_id: str, item: InboxItem) -> PostResult:
    if live_session(db, session_id)["closing"]:
        if isinstance(item.body, Stop):
            return "duplicate"
        raise SessionClosedError(f"session {session_id!r} was stopped and takes no input; start another, or fork it")
    digest = item.content_digest
    if item.idem_key is not None:
        seen = one(db, "find_item", session_id=session_id, principal=item.principal, idem_key=item.idem_key)
        if seen is not None:
            return "duplicate" if seen["digest"] == digest else "conflict"
    match item.body:
        case AnswerRequest(request_id=request_id):
            repeated = _answer(db, session_id, request_id, item.principal, digest)
            if repeated is not None:
                return repeated
        case Stop():
            execute(db, "close_session", session_id=session_id)
        case Input(reject_busy=True):
            if _is_busy(db, session_id):
                raise BusyError(f"session {session_id!r} is busy; wait for its run, or post with on_busy='queue'")
        case _:
            pass
    execute(
        db,
        "insert_item",
        session_id=session_id,
        principal=item.principal,
        idem_key=item.idem_key,
        kind=item.body.kind,
        origin=item.origin,
        digest=digest,
        body=dump_item(item.body),
        at_ms=item.at_ms,
    )
    execute(db, "wake_session", session_id=session_id, at_ms=item.at_ms)
    return "new"


def _is_busy(db: Connection, session_id: str) -> bool:
    reasons = ("has_live_root_run", "has_untaken_input")
    return any(one(db, reason, session_id=session_id) is not None for reason in reasons)


def untaken(db: Connection, lease: Lease) -> Sequence[InboxRow]:
    return [read_item(row) for row in execute(db, "list_untaken", session_id=lease.session_id)]


def _answer(db: Connection, session_id: str, request_id: str, principal: str, digest: str) -> PostResult | None:
    """Move an open request to answered; for one that is not open, say what this answer is to it.

    The digest stays with a closed request, so an answer that is sent again days later is still a duplicate.
    """
    moved = execute(
        db, "answer_request", session_id=session_id, request_id=request_id, digest=digest, principal=principal
    )
    if moved.rowcount == 1:
        return None
    request = one(db, "get_request", session_id=session_id, request_id=request_id)
    if request is None:
        raise NotFoundError(f"session {session_id!r} has no request {request_id!r}")
    return "duplicate" if request["answer_digest"] == digest else "conflict"
