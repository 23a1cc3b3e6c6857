"""From what a user types as a session's id, or the beginning of one, to the session."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ownloop.cli.harmless import harmless
from ownloop.cli.place import shown
from ownloop.core.ports import Filter, Page, SessionInfo
from ownloop.errors import ConfigError, NotFoundError
from ownloop.service import Service

LISTED = 5
"""Sessions that an error names: enough to find the one that was meant."""
SHORTEST = 13
"""Characters of an id that are shown at least: `sess_` and its second."""
_PAGE = 1000


async def find_session(service: Service, given: str, place: str, *, agent: str | None = None) -> SessionInfo:
    """Return the session with this id, or the only one whose id begins so.

    `agent` is the one whose sessions are meant; one of another agent is found by its whole id.

    Raises:
        ConfigError: there is none, or there are several; the text lists those that may be meant.
    """
    try:
        return await service.session(given)
    except NotFoundError:
        known = await all_sessions(service, agent)
    begin_so = [session for session in known if given and session.session_id.startswith(given)]
    if len(begin_so) == 1:
        return begin_so[0]
    if begin_so:
        raise ConfigError(
            f"{len(begin_so)} sessions in {shown(place)} begin with {given!r}; give more of the id:\n"
            + _listed(begin_so[:LISTED], agent)
        )
    whose = f" of agent {agent!r}" if agent is not None else ""
    if not known:
        raise ConfigError(f"there is no session {given!r} in {shown(place)}; it holds none{whose}")
    ids = [session.session_id for session in known[:_PAGE]]
    near = difflib.get_close_matches(given, ids, n=LISTED, cutoff=0.8)
    meant = [session for session in known if session.session_id in near]
    which = "near it" if meant else "the newest"
    raise ConfigError(
        f"there is no session {given!r} in {shown(place)}; {which}{whose} there:\n"
        + _listed(meant or known[:LISTED], agent)
    )


async def all_sessions(service: Service, agent: str | None = None) -> list[SessionInfo]:
    """Return all sessions, or those of one agent, newest first."""
    found: list[SessionInfo] = []
    while True:
        page = await service.sessions(Filter(agent=agent), Page(_PAGE, found[-1].session_id if found else None))
        found.extend(page)
        if len(page) < _PAGE:
            return found


def shortened(ids: Iterable[str]) -> dict[str, str]:
    """Return for each id the shortest beginning that no other one has."""
    ordered = sorted(ids)
    short: dict[str, str] = {}
    for before, own, after in zip(["", *ordered], ordered, [*ordered[1:], ""], strict=False):
        shared = max(_shared(own, before), _shared(own, after))
        short[own] = own[: max(SHORTEST, shared + 1)]
    return short


def _shared(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _listed(sessions: Sequence[SessionInfo], agent: str | None) -> str:
    return "\n".join(
        f"  {harmless(session.session_id)}"
        + ("" if agent is not None else f"  {session.agent}")
        + ("  (waits for you)" if session.open_requests else "")
        for session in sessions
    )
