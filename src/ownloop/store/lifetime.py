"""How a session goes: all of it, but for the facts that forks still read. Runs inside the caller's transaction."""

from __future__ import annotations

from sqlite3 import Connection

from ownloop.store.journal import live_session
from ownloop.store.statements import execute, one


def delete(db: Connection, session_id: str) -> None:
    live_session(db, session_id)
    for name in ("bury_session", "delete_inbox", "delete_requests", "delete_rules", "clear_tails"):
        execute(db, name, session_id=session_id)
    _prune(db, session_id)


def _prune(db: Connection, session_id: str | None) -> None:
    """Drop what nobody reads any more, from a deleted session upwards: with its last fork a deleted parent goes too."""
    while session_id is not None:
        lineage = one(db, "get_lineage", session_id=session_id)
        if lineage is None or not lineage["deleted"]:
            return
        (shared,) = execute(db, "shared_prefix", session_id=session_id).fetchone()
        execute(db, "delete_facts", session_id=session_id, after=shared or 0)
        if shared is not None:
            return
        for name in ("delete_runs", "delete_own_blobs", "delete_blob_refs", "delete_session"):
            execute(db, name, session_id=session_id)
        session_id = lineage["parent_id"]
