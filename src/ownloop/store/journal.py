"""Facts: how a journal begins, grows and is read. Each function runs inside the caller's transaction.

Invariant: a fact and the rows that follow from it (`requests`, `runs`, `rules`, the session's own) change together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from sqlite3 import Connection, Row

from ownloop.core.codec import dumps
from ownloop.core.events import (
    Draft,
    Fact,
    InteractionRequested,
    InteractionResolved,
    RuleRevoked,
    RunEnded,
    RunStarted,
    SessionClosed,
)
from ownloop.core.inbox import AnswerRequest, load_item
from ownloop.core.ports import Lease, SessionInfo
from ownloop.errors import ConflictError, FencedError, NotFoundError, StaleError
from ownloop.store.rows import fact_row, read_fact
from ownloop.store.statements import execute, execute_many, one

NOT_PEOPLE = frozenset({"clock", "system"})
"""Values of `InteractionResolved.by` that never stand for an answer (core/events)."""
_NO_END = 2**63 - 1


def live_session(db: Connection, session_id: str) -> Row:
    """Return the session's row. Raises NotFoundError, also for a deleted one."""
    row = one(db, "get_session", session_id=session_id)
    if row is None:
        raise NotFoundError(f"there is no session {session_id!r}")
    return row


def create(db: Connection, info: SessionInfo, drafts: Sequence[Draft], at_ms: int, copied: Sequence[Fact]) -> None:
    if info.parent_id is not None:
        parent = live_session(db, info.parent_id)
        if info.parent_seq is None or not 1 <= info.parent_seq <= parent["head_seq"]:
            raise NotFoundError(
                f"session {info.parent_id!r} has no fact {info.parent_seq!r} to fork at; it has {parent['head_seq']}"
            )
    elif info.parent_seq is not None:
        raise ValueError(f"parent_seq is {info.parent_seq!r}, but parent_id is None; a fork needs both")
    first = info.parent_seq or 0
    facts = [*copied, *_numbered(first + len(copied), info.epoch, at_ms, drafts)]
    if [fact.seq for fact in facts] != list(range(first + 1, first + len(facts) + 1)):
        raise ValueError(f"copied facts must be numbered from {first + 1} on, without a gap")
    inserted = execute(
        db,
        "insert_session",
        session_id=info.session_id,
        agent=info.agent,
        agent_digest=info.agent_digest,
        tenant=info.tenant,
        principal=info.principal,
        title=info.title,
        parent_id=info.parent_id,
        parent_seq=info.parent_seq,
        head_seq=first + len(facts),
        epoch=info.epoch,
        pinned=info.pinned,
        runnable_at_ms=info.runnable_at_ms,
        at_ms=at_ms,
    )
    if inserted.rowcount != 1:
        raise ConflictError(f"there is a session {info.session_id!r} already")
    if info.parent_id is not None:
        owner = _owner_of(db, info.parent_id, first)
        execute(db, "inherit_live_runs", session_id=info.session_id, ancestor_id=owner, upto=first)
    _write_facts(db, info.session_id, facts)
    for fact in facts:
        if isinstance(fact.body, InteractionResolved):
            # Nobody can have answered in a session that did not exist: an import or a fork closes what it brings.
            execute(db, "close_request", session_id=info.session_id, request_id=fact.body.request_id, expected="open")


def append(
    db: Connection,
    lease: Lease,
    after_seq: int,
    facts: Sequence[Draft],
    *,
    at_ms: int,
    takes: Sequence[int],
    runnable_at_ms: int | None,
    release: bool,
    progress: bool,
) -> Sequence[Fact]:
    """Append for the session's owner.

    A request closes in exactly one of two ways. If this append takes the inbox row that answers it, the request must be
    `answered`: the row made it so. Otherwise the owner closes it by its own will (expired, withdrawn, denied by a
    message with deny_open), and it must still be `open`: a person who was first is never overruled, and the owner gets
    StaleError. A fact by "clock" or "system" is always of the second kind.
    """
    session_id = lease.session_id
    row = one(db, "get_session", session_id=session_id)
    if row is None or row["epoch"] != lease.epoch or row["owner"] != lease.worker_id:
        raise FencedError(f"session {session_id!r} is no longer owned by {lease.worker_id!r} at epoch {lease.epoch}")
    if row["head_seq"] != after_seq:
        raise StaleError(f"session {session_id!r} is at fact {row['head_seq']}, not at {after_seq}; read it again")
    head = after_seq + len(facts)
    answered = _take(db, session_id, takes, head)
    written = _numbered(after_seq, lease.epoch, at_ms, facts)
    _write_facts(db, session_id, written)
    for fact in written:
        if isinstance(fact.body, InteractionResolved):
            _close_request(db, session_id, fact.body, answered)
    execute(db, "advance_session", session_id=session_id, head_seq=head, at_ms=at_ms, progress=progress)
    if release:
        execute(db, "release_session", session_id=session_id, at_ms=at_ms, runnable_at_ms=runnable_at_ms)
    return written


def read(db: Connection, session_id: str, after: int, limit: int) -> Sequence[Fact]:
    lineage = live_session(db, session_id)
    upto = _NO_END
    spans: list[tuple[str, int, int]] = []
    """Who holds which stretch of the journal, the youngest first."""
    while True:
        start = lineage["parent_seq"] or 0
        spans.append((session_id, max(after, start), upto))
        if after >= start:
            break
        session_id, upto = lineage["parent_id"], min(upto, start)
        lineage = _lineage(db, session_id)
    facts: list[Fact] = []
    for holder, since, last in reversed(spans):
        rows = execute(db, "read_facts", session_id=holder, after=since, upto=last, limit=limit - len(facts))
        facts.extend(map(read_fact, rows))
    return facts


def _lineage(db: Connection, session_id: str) -> Row:
    row = one(db, "get_lineage", session_id=session_id)
    if row is None:
        raise NotFoundError(f"session {session_id!r}, whose facts its forks share, is gone")
    return row


def _owner_of(db: Connection, session_id: str, seq: int) -> str:
    """Return the session in the chain of parents that itself holds the fact `seq`."""
    while seq <= ((lineage := _lineage(db, session_id))["parent_seq"] or 0):
        session_id = lineage["parent_id"]
    return session_id


def _take(db: Connection, session_id: str, ids: Sequence[int], seq: int) -> frozenset[str]:
    """Take inbox rows; return the ids of the requests that they answer."""
    answered: set[str] = set()
    for row_id in ids:
        row = one(db, "get_untaken", id=row_id, session_id=session_id)
        if row is None:
            raise StaleError(
                f"inbox row {row_id} of session {session_id!r} is not there to be taken; read the inbox again"
            )
        if row["kind"] == AnswerRequest.kind:
            item = load_item(row["kind"], row["body"])
            assert isinstance(item, AnswerRequest)
            answered.add(item.request_id)
        execute(db, "take_item", id=row_id, seq=seq)
        execute(db, "drop_item", id=row_id)
    return frozenset(answered)


def _numbered(after_seq: int, epoch: int, at_ms: int, drafts: Sequence[Draft]) -> list[Fact]:
    return [Fact(after_seq + n, at_ms, epoch, draft.run_id, draft.body) for n, draft in enumerate(drafts, 1)]


def _write_facts(db: Connection, session_id: str, facts: Sequence[Fact]) -> None:
    execute_many(db, "insert_fact", [fact_row(session_id, fact) for fact in facts])
    last_of_run: dict[str, int] = {}
    for fact in facts:
        _keep_in_step(db, session_id, fact)
        if fact.run_id is not None:
            last_of_run[fact.run_id] = fact.seq
    for run_id, seq in last_of_run.items():
        execute(db, "advance_run", session_id=session_id, run_id=run_id, seq=seq)


def _keep_in_step(db: Connection, session_id: str, fact: Fact) -> None:
    """Change the rows that follow from a fact; closing a request is the caller's, for it may be refused."""
    match fact.body:
        case RunStarted(parent_run_id=parent_run_id):
            execute(
                db, "insert_run", session_id=session_id, run_id=fact.run_id, parent_run_id=parent_run_id, seq=fact.seq
            )
        case RunEnded(outcome=outcome):
            execute(db, "end_run", session_id=session_id, run_id=fact.run_id, outcome=outcome)
        case InteractionRequested() as request:
            execute(
                db,
                "insert_request",
                session_id=session_id,
                request_id=request.request_id,
                seq=fact.seq,
                run_id=fact.run_id,
                purpose=request.purpose,
                assignee=request.assignee,
                expires_at_ms=request.expires_at_ms,
            )
        case InteractionResolved(rule=rule) if rule is not None:
            execute(db, "put_rule", session_id=session_id, rule_id=rule.rule_id, body=dumps(asdict(rule)))
        case RuleRevoked(rule_id=rule_id):
            execute(db, "drop_rule", session_id=session_id, rule_id=rule_id)
        case SessionClosed():
            execute(db, "close_session", session_id=session_id)
        case _:
            pass


def _close_request(db: Connection, session_id: str, fact: InteractionResolved, answered: frozenset[str]) -> None:
    by_answer = fact.request_id in answered and fact.by not in NOT_PEOPLE
    expected = "answered" if by_answer else "open"
    done = execute(db, "close_request", session_id=session_id, request_id=fact.request_id, expected=expected)
    if done.rowcount != 1:
        raise StaleError(
            f"request {fact.request_id!r} of session {session_id!r} is not {expected}; read the inbox and decide again"
        )
