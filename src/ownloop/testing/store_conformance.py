"""The contract of `core.ports.Store` as test cases that any store can run. A store that passes is supported.

```python
@pytest.mark.parametrize("case", store_conformance(), ids=str)
async def test_my_store_keeps_the_contract(case, tmp_path):
    await case(lambda: MyStore(tmp_path / "store"))
```

A case needs no pytest: it raises AssertionError where the store breaks a promise. Invariant: cases see a store through
its port alone, but for `kill`, which makes a worker look as if its process had died.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ownloop.core.backend import StopReason
from ownloop.core.events import (
    CallsPrepared,
    CancelRequested,
    Compacted,
    ConfigChanged,
    Draft,
    ErrorInfo,
    Fact,
    FactBody,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    Limits,
    Note,
    ParentRef,
    PreparedCall,
    ResponseEnded,
    Rule,
    RuleRevoked,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.inbox import AnswerRequest, Cancel, InboxBody, InboxItem, Input, Stop
from ownloop.core.interactions import Answer, Decision
from ownloop.core.messages import BlobBlock, TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.core.ports import Filter, Lease, Page, SessionInfo, Store, StoredReply, Tail
from ownloop.core.usage import Usage
from ownloop.errors import (
    BusyError,
    ConflictError,
    FencedError,
    NotFoundError,
    SessionClosedError,
    StaleError,
    StoreError,
    StoreInUseError,
)

Kill: TypeAlias = Callable[[str], Awaitable[None]]
Check: TypeAlias = Callable[["StoreContract"], Coroutine[Any, Any, None]]

ANY = Filter()
PID = 4711


class KillableStore(Store, Protocol):
    async def kill(self, worker_id: str) -> None:
        """Make a worker of this store look dead, as if its process had been killed."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """One promise. Await it with a function that makes a fresh, unopened, empty store."""

    name: str
    check: Check

    def __str__(self) -> str:
        return self.name

    async def __call__(self, new_store: Callable[[], KillableStore]) -> None:
        store = new_store()
        await store.open()
        try:
            for worker in ("w1", "w2"):
                await store.heartbeat(worker, pid=PID)
            await self.check(StoreContract(store, store.kill))
        finally:
            await store.aclose()


def store_conformance() -> tuple[Case, ...]:
    """Return every case."""
    checks = vars(StoreContract).items()
    return tuple(Case(name, check) for name, check in checks if inspect.iscoroutinefunction(check) and name[0] != "_")


class StoreContract:
    """The cases, one method each, on a store that is open and has the living workers w1 and w2."""

    def __init__(self, store: Store, kill: Kill) -> None:
        self.store = store
        self.kill = kill

    # --- create ------------------------------------------------------------------------------------------------------

    async def create_writes_the_first_facts_at_epoch_0(self) -> None:
        await self.store.create(
            SessionInfo("s", "support", "d1", "ann", tenant="acme", title="hello", pinned=True, runnable_at_ms=7),
            [Draft(None, SessionStarted("support", "d1")), Draft(None, Note("info", "second"))],
            at_ms=5,
        )
        facts = await self.store.read("s")
        assert [(fact.seq, fact.epoch, fact.at_ms) for fact in facts] == [(1, 0, 5), (2, 0, 5)]
        assert await self.store.session("s") == SessionInfo(
            "s",
            "support",
            "d1",
            "ann",
            tenant="acme",
            title="hello",
            pinned=True,
            runnable_at_ms=7,
            head_seq=2,
            updated_ms=5,
        )

    async def what_create_copies_stays_as_it_was_written(self) -> None:
        """An import: facts of other times and epochs, then its own at the epoch it says."""
        copied = [Fact(1, 5, 0, None, SessionStarted("agent", "digest")), Fact(2, 6, 3, None, NOTE)]
        info = SessionInfo("copy", "agent", "digest", "ann", epoch=3)
        await self.store.create(info, [Draft(None, NOTE)], at_ms=9, copied=copied)
        assert list(await self.store.read("copy")) == [*copied, Fact(3, 9, 3, None, NOTE)]
        lease = await self.store.claim("w1", "copy", now_ms=10)
        assert lease is not None
        assert (lease.epoch, lease.head_seq) == (4, 3)
        hole = [Fact(1, 5, 0, None, SessionStarted("agent", "digest")), Fact(3, 6, 0, None, NOTE)]
        await _raises(ValueError, self.store.create(SessionInfo("hole", "a", "d", "ann"), [], at_ms=9, copied=hole))
        await _raises(NotFoundError, self.store.session("hole"))

    async def create_refuses_an_id_that_exists_and_writes_nothing(self) -> None:
        await self._start("s")
        await _raises(ConflictError, self._start("s", Note("info", "again")))
        assert len(await self.store.read("s")) == 1

    # --- journal -----------------------------------------------------------------------------------------------------

    async def append_returns_the_facts_as_they_are_read(self) -> None:
        lease = await self._owned("s")
        written = await self.store.append(lease, 1, [Draft("r", NOTE), Draft(None, NOTE)], at_ms=9)
        assert written == [Fact(2, 9, 1, "r", NOTE), Fact(3, 9, 1, None, NOTE)]
        assert (await self.store.read("s"))[1:] == written
        info = await self.store.session("s")
        assert (info.head_seq, info.epoch, info.owner, info.updated_ms) == (3, 1, "w1", 9)

    async def every_kind_of_fact_comes_back_as_it_was(self) -> None:
        lease = await self._owned("s")
        drafts = [Draft("r", body) for body in EVERY_KIND]
        await self.store.append(lease, 1, drafts, at_ms=9)
        assert [fact.body for fact in (await self.store.read("s"))[1:]] == list(EVERY_KIND)

    async def read_returns_a_window_in_order(self) -> None:
        lease = await self._owned("s")
        await self._append(lease, 1, *[NOTE] * 9)
        assert _seqs(await self.store.read("s", after=3)) == [4, 5, 6, 7, 8, 9, 10]
        assert _seqs(await self.store.read("s", after=3, limit=2)) == [4, 5]
        assert _seqs(await self.store.read("s", after=10)) == []
        await _raises(NotFoundError, self.store.read("nobody"))

    async def an_older_epoch_writes_nothing_at_any_point(self) -> None:
        lease = await self._owned("s")
        heads = [1]
        for n in range(3):  # a journal of several appends, with a row to take
            heads.append((await self._append(lease, heads[-1], NOTE, NOTE))[-1].seq)
            await self.store.post("s", _input(f"i{n}"))
        newer = await self.store.claim("w1", "s", now_ms=20)
        assert newer is not None
        assert newer.epoch == lease.epoch + 1
        rows = await self.store.inbox(newer)
        before = await self._everything("s")
        for after_seq in range(heads[-1] + 2):
            await _raises(FencedError, self._append(lease, after_seq, NOTE))
            await _raises(FencedError, self.store.append(lease, after_seq, [], at_ms=30, takes=[rows[0].id]))
            await _raises(FencedError, self.store.append(lease, after_seq, [], at_ms=30, release=True))
        await self.store.save_tail(lease, [Tail(9, 1, {})])
        assert await self._everything("s") == before
        await self._append(newer, heads[-1], NOTE)

    async def another_after_seq_writes_nothing(self) -> None:
        lease = await self._owned("s")
        head = (await self._append(lease, 1, NOTE, NOTE))[-1].seq
        await self.store.post("s", _input("i"))
        [row] = await self.store.inbox(lease)
        before = await self._everything("s")
        for after_seq in (0, 1, head - 1, head + 1):
            await _raises(StaleError, self.store.append(lease, after_seq, [Draft(None, NOTE)], at_ms=9, takes=[row.id]))
        assert await self._everything("s") == before

    async def a_lease_that_was_given_back_writes_nothing(self) -> None:
        lease = await self._owned("s")
        await self.store.append(lease, 1, [], at_ms=9, release=True)
        await _raises(FencedError, self._append(lease, 1, NOTE))

    async def concurrent_appends_by_one_owner_leave_no_gap(self) -> None:
        leases = [await self._owned(f"s{n}") for n in range(8)]

        async def write(lease: Lease) -> None:
            head = 1
            for _ in range(5):
                head = (await self._append(lease, head, NOTE, NOTE))[-1].seq

        await asyncio.gather(*map(write, leases))
        for lease in leases:
            assert _seqs(await self.store.read(lease.session_id)) == list(range(1, 12))

    async def one_failing_writer_does_not_touch_the_others(self) -> None:
        good, bad = await self._owned("good"), await self._owned("bad")
        outcomes = await asyncio.gather(
            self._append(good, 1, NOTE),
            self._append(bad, 5, NOTE),
            self.store.post("nobody", _input("i")),
            self.store.post("good", _input("j")),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], StaleError)
        assert isinstance(outcomes[2], NotFoundError)
        assert (outcomes[3], len(await self.store.read("good")), len(await self.store.read("bad"))) == ("new", 2, 1)

    async def a_cancelled_writer_leaves_all_or_nothing(self) -> None:
        lease = await self._owned("s")
        writing = asyncio.ensure_future(self._append(lease, 1, NOTE, NOTE))
        await asyncio.sleep(0)
        writing.cancel()
        other = await self._owned("other")
        await asyncio.gather(writing, return_exceptions=True)
        assert len(await self.store.read("s")) in (1, 3)
        await self._append(other, 1, NOTE)

    # --- inbox -------------------------------------------------------------------------------------------------------

    async def posted_rows_reach_the_owner_in_order_until_taken(self) -> None:
        await self._start("s")
        items = [_input("i1"), InboxItem(Cancel(), 11, "bob", origin="system"), _input("i2", key="k")]
        for item in items:
            assert await self.store.post("s", item) == "new"
        lease = await self._claimed("s")
        rows = await self.store.inbox(lease)
        assert [row.item for row in rows] == items
        await self.store.append(lease, 1, [Draft(None, NOTE)], at_ms=20, takes=[rows[0].id, rows[2].id])
        assert [row.item for row in await self.store.inbox(lease)] == [items[1]]
        await self.store.append(lease, 2, [], at_ms=21, takes=[rows[1].id])
        assert list(await self.store.inbox(lease)) == []

    async def a_row_is_taken_once_and_with_its_facts_or_not_at_all(self) -> None:
        lease = await self._owned("s")
        await self.store.post("s", _input("i1"))
        await self.store.post("s", _input("i2", key="k"))
        first, second = await self.store.inbox(lease)
        await self.store.append(lease, 1, [Draft(None, NOTE)], at_ms=20, takes=[first.id])
        before = await self._everything("s")
        taking = self.store.append(lease, 2, [Draft(None, NOTE)], at_ms=21, takes=[second.id, first.id])
        await _raises(StaleError, taking)
        assert await self._everything("s") == before
        await self.store.append(lease, 2, [Draft(None, NOTE)], at_ms=22, takes=[second.id])
        await _raises(StaleError, self.store.append(lease, 3, [], at_ms=23, takes=[second.id]))

    async def a_crash_between_post_and_take_loses_nothing(self) -> None:
        lease = await self._owned("s")
        await self.store.post("s", _input("i"))
        rows = await self.store.inbox(lease)
        await self.kill("w1")
        lease = await self._claimed("s", "w2")
        assert await self.store.inbox(lease) == rows

    async def a_post_makes_the_session_runnable(self) -> None:
        await self._start("s")
        assert list(await self.store.runnable(now_ms=99)) == []
        await self.store.post("s", _input("i", at_ms=50))
        assert list(await self.store.runnable(now_ms=49)) == []
        assert list(await self.store.runnable(now_ms=50)) == ["s"]
        assert (await self.store.session("s")).updated_ms == 50

    async def a_key_tells_repeats_from_conflicts(self) -> None:
        await self._start("s")
        assert await self.store.post("s", _input("i1", key="k", text="hi")) == "new"
        # Ids that the sender minted do not count.
        assert await self.store.post("s", _input("i2", key="k", text="hi")) == "duplicate"
        assert await self.store.post("s", _input("i3", key="k", text="ho")) == "conflict"
        assert await self.store.post("s", _item(Cancel(), key="k")) == "conflict"
        assert await self.store.post("s", _input("i4", key="k", text="ho", principal="bob")) == "new"
        assert await self.store.post("s", _input("i5", text="hi")) == "new"
        assert await self.store.post("s", _input("i6", text="hi")) == "new"
        await self._start("other")
        assert await self.store.post("other", _input("i7", key="k", text="ho")) == "new"
        assert len(await self.store.inbox(await self._claimed("s"))) == 4

    async def a_key_is_known_after_its_row_was_taken(self) -> None:
        lease = await self._owned("s")
        await self.store.post("s", _input("i1", key="k"))
        [row] = await self.store.inbox(lease)
        await self.store.append(lease, 1, [], at_ms=20, takes=[row.id])
        assert await self.store.post("s", _input("i2", key="k")) == "duplicate"
        assert await self.store.post("s", _input("i2", key="k", text="other")) == "conflict"
        assert list(await self.store.inbox(lease)) == []

    async def posts_to_nobody_are_refused(self) -> None:
        await _raises(NotFoundError, self.store.post("nobody", _input("i")))

    async def after_a_stop_nothing_more_is_posted(self) -> None:
        await self._start("s")
        assert await self.store.post("s", _item(Stop(), key="k")) == "new"
        assert (await self.store.session("s")).closing
        await _raises(SessionClosedError, self.store.post("s", _input("i")))
        await _raises(SessionClosedError, self.store.post("s", _item(Cancel())))
        assert await self.store.post("s", _item(Stop(), key="k")) == "duplicate"
        assert await self.store.post("s", _item(Stop())) == "duplicate"
        lease = await self._claimed("s")
        assert lease.closing
        assert len(await self.store.inbox(lease)) == 1

    async def a_closed_session_takes_no_posts(self) -> None:
        lease = await self._owned("s")
        await self._append(lease, 1, SessionClosed("ann"))
        await _raises(SessionClosedError, self.store.post("s", _input("i")))
        assert await self.store.post("s", _item(Stop())) == "duplicate"

    async def reject_busy_is_decided_by_the_post(self) -> None:
        lease = await self._owned("s")
        polite = _item(Input("i", "r1", "queue", (TextBlock("hi"),), reject_busy=True))
        assert await self.store.post("s", polite) == "new"
        await _raises(BusyError, self.store.post("s", polite))  # another input waits
        [row] = await self.store.inbox(lease)
        started = [Draft("r1", RUN_STARTED), Draft("c1", CHILD_STARTED)]
        await self.store.append(lease, 1, started, at_ms=20, takes=[row.id])
        await _raises(BusyError, self.store.post("s", polite))  # a run is live
        assert await self.store.post("s", _item(Cancel())) == "new"  # only inputs are refused
        await self.store.append(lease, 3, [Draft("r1", RunEnded("completed"))], at_ms=21)
        assert await self.store.post("s", polite) == "new"

    # --- requests ----------------------------------------------------------------------------------------------------

    async def a_request_goes_from_open_to_answered_to_closed(self) -> None:
        lease = await self._asked("s", "q")
        request = await self.store.request("s", "q")
        assert (request.seq, request.run_id, request.purpose, request.assignee) == (2, "r", "approval", "ann")
        assert (request.expires_at_ms, request.state, request.answer_digest) == (99, "open", None)
        assert (await self.store.session("s")).open_requests == 1
        answer = _answer("q", "approved", principal="bob")
        assert await self.store.post("s", answer) == "new"
        request = await self.store.request("s", "q")
        assert (request.state, request.answered_by, request.answer_digest) == ("answered", "bob", answer.content_digest)
        assert (await self.store.session("s")).open_requests == 0
        [row] = await self.store.inbox(lease)
        resolved = [Draft("r", InteractionResolved("q", "bob", "approved"))]
        await self.store.append(lease, 2, resolved, at_ms=20, takes=[row.id])
        assert (await self.store.request("s", "q")).state == "closed"

    async def a_request_takes_one_answer(self) -> None:
        lease = await self._asked("s", "q")
        assert await self.store.post("s", _answer("q", "approved", key="k")) == "new"
        for _ in range(2):  # before, and after the owner took it
            assert await self.store.post("s", _answer("q", "approved", key="k")) == "duplicate"
            assert await self.store.post("s", _answer("q", "approved", principal="bob")) == "duplicate"
            assert await self.store.post("s", _answer("q", "denied", principal="bob")) == "conflict"
            assert await self.store.post("s", _answer("q", "denied", key="k")) == "conflict"
            rows = await self.store.inbox(lease)
            if rows:
                resolved = [Draft("r", InteractionResolved("q", "ann", "approved"))]
                await self.store.append(lease, 2, resolved, at_ms=20, takes=[row.id for row in rows])
        assert list(await self.store.inbox(lease)) == []
        await _raises(NotFoundError, self.store.post("s", _answer("other", "approved")))
        await _raises(NotFoundError, self.store.request("s", "other"))

    async def an_answer_after_the_owner_closed_the_request_conflicts(self) -> None:
        lease = await self._asked("s", "q")
        await self._append(lease, 2, InteractionResolved("q", "clock", "expired"))
        assert (await self.store.request("s", "q")).state == "closed"
        assert await self.store.post("s", _answer("q", "approved")) == "conflict"
        assert list(await self.store.inbox(lease)) == []

    async def the_owner_never_overrules_a_person_who_was_first(self) -> None:
        lease = await self._asked("s", "q")
        await self.store.post("s", _answer("q", "approved"))
        [row] = await self.store.inbox(lease)
        before = await self._everything("s")
        by_its_own_will = [
            InteractionResolved("q", "clock", "expired"),
            InteractionResolved("q", "system", "withdrawn"),
            InteractionResolved("q", "bob", "denied", note="a message with deny_open"),
        ]
        for body in by_its_own_will:
            await _raises(StaleError, self._append(lease, 2, NOTE, body))
        taking = self.store.append(lease, 2, [Draft("r", by_its_own_will[0])], at_ms=9, takes=[row.id])
        await _raises(StaleError, taking)
        assert await self._everything("s") == before
        resolved = [Draft("r", InteractionResolved("q", "ann", "approved"))]
        await self.store.append(lease, 2, resolved, at_ms=20, takes=[row.id])

    async def a_message_with_deny_open_closes_what_is_open(self) -> None:
        lease = await self._asked("s", "q")
        await self.store.post("s", _item(Input("i", "r2", "queue", (TextBlock("no"),), deny_open=True)))
        [row] = await self.store.inbox(lease)
        drafts = [
            Draft("r2", InputAccepted("i", "queue", (TextBlock("no"),))),
            Draft("r", InteractionResolved("q", "ann", "denied", note="no")),
        ]
        await self.store.append(lease, 2, drafts, at_ms=20, takes=[row.id])
        assert (await self.store.request("s", "q")).state == "closed"

    async def no_request_closes_twice(self) -> None:
        lease = await self._asked("s", "q")
        await self._append(lease, 2, InteractionResolved("q", "clock", "expired"))
        await _raises(StaleError, self._append(lease, 3, InteractionResolved("q", "system", "withdrawn")))

    async def requests_are_listed_oldest_first_by_page_and_filter(self) -> None:
        for session_id, agent in (("a", "x"), ("b", "y")):
            await self._start(session_id, agent=agent)
        leases = {session_id: await self._claimed(session_id) for session_id in ("a", "b")}
        order = [("b", "q1"), ("a", "q1"), ("a", "q2"), ("b", "q2")]
        heads = {"a": 1, "b": 1}
        for session_id, request_id in order:
            await self._append(leases[session_id], heads[session_id], _request(request_id))
            heads[session_id] += 1
        listed = await self.store.requests(ANY, Page())
        assert [(row.session_id, row.request_id) for row in listed] == order
        pages: list[tuple[str, str]] = []
        after = None
        while rows := await self.store.requests(ANY, Page(limit=3, after=after)):
            pages += [(row.session_id, row.request_id) for row in rows]
            after = f"{rows[-1].session_id}/{rows[-1].request_id}"
        assert pages == order
        await self.store.post("a", _answer("q1", "denied"))

        async def ids(**which: str) -> list[str]:
            rows = await self.store.requests(Filter(**which), Page())
            return [f"{row.session_id}{row.request_id}" for row in rows]

        assert await ids(session_id="a") == ["aq1", "aq2"]
        assert await ids(agent="y") == ["bq1", "bq2"]
        assert await ids(state="open") == ["bq1", "aq2", "bq2"]
        assert await ids(state="answered", session_id="a") == ["aq1"]
        assert await ids(tenant="nobody") == []

    # --- runs, rules -------------------------------------------------------------------------------------------------

    async def a_run_is_known_from_its_input_on(self) -> None:
        lease = await self._owned("s")
        await self.store.post("s", _input("i"))
        run = await self.store.run("run_of_i")
        assert (run.session_id, run.phase, run.first_seq) == ("s", "queued", 0)
        [row] = await self.store.inbox(lease)
        accepted = Draft("run_of_i", InputAccepted("i", "queue", (TextBlock("hi"),)))
        await self.store.append(lease, 1, [accepted], at_ms=11, takes=[row.id])
        assert (await self.store.run("run_of_i", "s")).phase == "queued"
        await _raises(NotFoundError, self.store.run("run_of_i", "t"))
        started = RunStarted(Limits(), "m", ("i",))
        await self.store.append(lease, 2, [Draft("run_of_i", started)], at_ms=12)
        assert (await self.store.run("run_of_i")).phase == "live"

    async def runs_follow_their_facts(self) -> None:
        lease = await self._owned("s")
        await self._append(lease, 1, RUN_STARTED, run_id="r1")
        await self._append(lease, 2, CHILD_STARTED, run_id="c1")
        await self._append(lease, 3, NOTE, run_id="r1")
        run = await self.store.run("r1")
        assert (run.session_id, run.first_seq, run.last_seq, run.phase, run.outcome) == ("s", 2, 4, "live", None)
        assert (await self.store.session("s")).live_run_id == "r1"
        await self._append(lease, 4, RunEnded("failed"), run_id="r1")
        run = await self.store.run("r1")
        assert (run.last_seq, run.phase, run.outcome) == (5, "ended", "failed")
        assert (await self.store.session("s")).live_run_id is None
        assert (await self.store.run("c1")).phase == "live"
        await _raises(NotFoundError, self.store.run("nobody"))

    async def rules_come_with_an_answer_and_go_when_revoked(self) -> None:
        lease = await self._asked("s", "q")
        rule = Rule("rule1", "refund", "td", "id")
        await self._append(lease, 2, InteractionResolved("q", "ann", "approved", rule=rule))
        assert list(await self.store.rules("s")) == [rule]
        await self._append(lease, 3, RuleRevoked("rule1"))
        assert list(await self.store.rules("s")) == []

    # --- leases ------------------------------------------------------------------------------------------------------

    async def every_claim_raises_the_epoch(self) -> None:
        await self._start("s")
        epochs = [(await self._claimed("s")).epoch for _ in range(3)]
        assert epochs == [1, 2, 3]
        await self.store.retire("w1")
        lease = await self._claimed("s", "w2")
        assert (lease.epoch, lease.head_seq, lease.takeovers) == (4, 1, 0)

    async def a_living_owner_is_never_taken_over(self) -> None:
        lease = await self._owned("s")
        await self.store.post("s", _input("i"))
        error = await _raises(StoreInUseError, self.store.claim("w2", "s", now_ms=10**15))
        assert error.pid == PID
        assert str(PID) in str(error)
        assert await self.store.claim("w2", now_ms=10**15) is None
        await self._append(lease, 1, NOTE)

    async def a_dead_owner_is_taken_over_whatever_was_runnable(self) -> None:
        await self._owned("s")
        await self.kill("w1")
        assert list(await self.store.runnable(now_ms=0)) == ["s"]
        lease = await self.store.claim("w2", now_ms=0)
        assert lease is not None
        assert (lease.session_id, lease.epoch, lease.takeovers) == ("s", 2, 1)

    async def takeovers_are_counted_until_there_is_progress(self) -> None:
        lease = await self._owned("s")
        for n in range(1, 4):
            dead, living = ("w1", "w2") if n % 2 else ("w2", "w1")
            await self.kill(dead)
            await self.store.heartbeat(living, pid=PID)
            lease = await self._claimed("s", living)
            assert lease.takeovers == n
            await self.store.append(lease, n, [Draft(None, NOTE)], at_ms=9, progress=False)
            assert (await self.store.session("s")).takeovers == n
            await self.store.heartbeat(dead, pid=PID)
        await self._append(lease, 4, NOTE)
        assert (await self.store.session("s")).takeovers == 0

    async def a_worker_that_died_and_comes_back_owns_nothing(self) -> None:
        await self._owned("s")
        await self.kill("w1")
        await self.store.heartbeat("w1", pid=PID + 1)
        assert list(await self.store.runnable(now_ms=99)) == ["s"]
        lease = await self._claimed("s", "w2")
        assert lease.takeovers == 1

    async def a_retired_worker_leaves_its_sessions_free(self) -> None:
        await self._owned("s")
        await self.store.retire("w1")
        assert list(await self.store.runnable(now_ms=99)) == ["s"]
        assert (await self._claimed("s", "w2")).takeovers == 0

    async def only_a_registered_worker_claims(self) -> None:
        await self._start("s")
        await _raises(StoreError, self.store.claim("stranger", "s", now_ms=9))
        await self.store.heartbeat("stranger", pid=PID)
        assert await self.store.claim("stranger", "s", now_ms=9) is not None

    async def claim_without_a_name_takes_the_longest_waiting(self) -> None:
        for session_id, at_ms in (("late", 30), ("early", 10), ("future", 99)):
            await self._start(session_id)
            await self.store.post(session_id, _input("i", at_ms=at_ms))
        await self._start("idle")
        assert list(await self.store.runnable(now_ms=50)) == ["early", "late"]
        assert list(await self.store.runnable(now_ms=50, limit=1)) == ["early"]
        claimed = [await self.store.claim("w1", now_ms=50) for _ in range(3)]
        assert [lease and lease.session_id for lease in claimed] == ["early", "late", None]

    async def a_dead_owners_session_waits_its_turn(self) -> None:
        await self._owned("dead")
        await self.store.post("dead", _input("i", at_ms=30))
        for session_id, at_ms in (("early", 20), ("late", 40)):
            await self._start(session_id)
            await self.store.post(session_id, _input("i", at_ms=at_ms))
        await self.kill("w1")
        assert list(await self.store.runnable(now_ms=50)) == ["early", "dead", "late"]
        assert list(await self.store.runnable(now_ms=50, limit=2)) == ["early", "dead"]

    async def claim_without_a_name_leaves_the_workers_own_sessions(self) -> None:
        lease = await self._owned("s")
        await self.store.post("s", _input("i"))
        assert await self.store.claim("w1", now_ms=99) is None
        await self._append(lease, 1, NOTE)

    async def claim_by_name_needs_the_session_but_no_reason(self) -> None:
        await self._start("s")
        assert await self.store.claim("w1", "s", now_ms=0) is not None
        await _raises(NotFoundError, self.store.claim("w1", "nobody", now_ms=0))

    async def of_two_claims_at_once_one_wins(self) -> None:
        await self._start("s")
        await self.store.post("s", _input("i"))
        claims = await asyncio.gather(*(self.store.claim(worker, now_ms=99) for worker in ("w1", "w2")))
        assert sorted(lease.epoch if lease else 0 for lease in claims) == [0, 1]

    async def release_keeps_a_session_runnable_while_a_row_waits(self) -> None:
        lease = await self._owned("s")
        await self.store.post("s", _input("i"))  # after the owner decided to leave
        await self.store.append(lease, 1, [], at_ms=40, runnable_at_ms=5000, release=True)
        info = await self.store.session("s")
        assert (info.owner, info.runnable_at_ms) == (None, 40)

    async def release_sets_when_to_wake(self) -> None:
        for session_id, wake in (("a", 5000), ("b", None)):
            lease = await self._owned(session_id)
            await self.store.append(lease, 1, [Draft(None, NOTE)], at_ms=40, runnable_at_ms=wake, release=True)
            info = await self.store.session(session_id)
            assert (info.owner, info.runnable_at_ms) == (None, wake)

    # --- forks, deletion ---------------------------------------------------------------------------------------------

    async def a_fork_reads_its_parents_prefix(self) -> None:
        parent = await self._owned("parent")
        await self._append(parent, 1, _note(2), _note(3), _note(4))
        await self._fork("child", "parent", 3)
        child = await self._claimed("child")
        assert child.head_seq == 4
        await self._append(child, 4, _note("own"))
        await self._append(parent, 4, _note("later"))
        facts = await self.store.read("child")
        assert _seqs(facts) == [1, 2, 3, 4, 5]
        assert isinstance(facts[3].body, SessionStarted)
        assert facts[2].body == _note(3)
        assert facts[4].body == _note("own")
        assert _seqs(await self.store.read("child", after=1, limit=3)) == [2, 3, 4]
        assert _seqs(await self.store.read("child", after=3)) == [4, 5]
        assert len(await self.store.read("parent")) == 5
        assert (await self.store.session("child")).parent_id == "parent"

    async def a_fork_of_a_fork_may_begin_in_the_shared_prefix(self) -> None:
        await self._owned("a")
        await self._append(await self._claimed("a"), 1, *(_note(n) for n in range(2, 7)))
        await self._fork("b", "a", 5)
        await self._fork("c", "b", 3)
        await self._fork("d", "b", 6)
        assert [_seqs(await self.store.read(id)) for id in "cd"] == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]
        assert (await self.store.read("c"))[:3] == (await self.store.read("a"))[:3]

    async def a_fork_needs_a_fact_to_fork_at(self) -> None:
        await self._start("s")
        await _raises(NotFoundError, self._fork("f", "nobody", 1))
        await _raises(NotFoundError, self._fork("f", "s", 2))
        await _raises(NotFoundError, self.store.session("f"))

    async def a_fork_inherits_live_runs_but_no_requests_and_rules(self) -> None:
        lease = await self._owned("s")
        await self._append(lease, 1, RUN_STARTED, run_id="r1")
        await self._append(lease, 2, _request("q1"), _request("q2"))
        await self._append(lease, 4, InteractionResolved("q1", "ann", "approved", rule=Rule("rule", "t", "td", "id")))
        await self._append(lease, 5, RunEnded("completed"), run_id="r1")
        await self._fork("live", "s", 5)
        await self._fork("ended", "s", 6)
        assert (await self.store.session("live")).live_run_id == "r1"
        assert (await self.store.session("ended")).live_run_id is None
        assert (await self.store.run("r1")).session_id == "s"
        for fork in ("live", "ended"):
            assert list(await self.store.rules(fork)) == []
            assert list(await self.store.requests(Filter(session_id=fork), Page())) == []

    async def a_fork_in_the_shared_prefix_inherits_what_was_live_there(self) -> None:
        lease = await self._owned("a")
        await self._append(lease, 1, RUN_STARTED, NOTE, run_id="r1")
        await self._append(lease, 3, RunEnded("completed"), run_id="r1")
        await self._fork("b", "a", 4)
        await self._fork("c", "b", 3)
        assert (await self.store.session("b")).live_run_id is None
        assert (await self.store.session("c")).live_run_id == "r1"

    async def what_create_brings_is_closed_where_it_says_so(self) -> None:
        drafts = [
            Draft(None, SessionStarted("a", "d")),
            Draft("r", RUN_STARTED),
            Draft("r", _request("q1")),
            Draft("r", _request("q2")),
            Draft("r", InteractionResolved("q1", "system", "withdrawn")),
            Draft("r", InteractionResolved("elsewhere", "system", "withdrawn")),
        ]
        await self.store.create(SessionInfo("s", "a", "d", "ann"), drafts, at_ms=1)
        rows = await self.store.requests(Filter(session_id="s"), Page())
        assert [(row.request_id, row.state) for row in rows] == [("q1", "closed"), ("q2", "open")]
        assert (await self.store.session("s")).live_run_id == "r"

    async def a_deleted_session_is_gone(self) -> None:
        lease = await self._asked("s", "q")
        await self._append(lease, 2, RUN_STARTED, run_id="r1")
        await self.store.post("s", _input("i"))
        await self.store.delete("s")
        for gone in (
            self.store.session("s"),
            self.store.read("s"),
            self.store.run("r1"),
            self.store.request("s", "q"),
            self.store.post("s", _input("j")),
            self.store.claim("w1", "s", now_ms=99),
            self.store.delete("s"),
        ):
            await _raises(NotFoundError, gone)
        await _raises(FencedError, self._append(lease, 3, NOTE))
        assert list(await self.store.sessions(ANY, Page())) == []
        assert list(await self.store.requests(ANY, Page())) == []
        assert list(await self.store.runnable(now_ms=99)) == []

    async def a_shared_prefix_outlives_its_session(self) -> None:
        parent = await self._owned("a")
        await self._append(parent, 1, _note(2), _note(3))
        await self._fork("b", "a", 3)
        await self._fork("c", "b", 4)
        blob = await self._blob("a", b"in the prefix")
        prefix = await self.store.read("c", limit=4)
        await self.store.delete("a")
        await self.store.delete("b")
        await _raises(NotFoundError, self.store.read("a"))
        await _raises(NotFoundError, self.store.read("b"))
        assert await self.store.read("c", limit=4) == prefix
        await self._append(await self._claimed("c"), 5, NOTE)
        await self.store.get_blob(blob)
        await self.store.delete("c")
        await _raises(NotFoundError, self.store.get_blob(blob))

    # --- tails, blobs, replies, lists --------------------------------------------------------------------------------

    async def tails_are_replaced_as_a_whole(self) -> None:
        lease = await self._owned("s")
        await self.store.save_tail(lease, [Tail(2, 10, {"blocks": ["é"]}), Tail(3, 1, {})])
        await self.store.save_tail(lease, [Tail(2, 12, {"blocks": ["éa"]})])
        assert list(await self.store.tails("s")) == [Tail(2, 12, {"blocks": ["éa"]})]
        newer = await self._claimed("s")
        await self.store.save_tail(lease, [])
        assert len(await self.store.tails("s")) == 1
        await self.store.save_tail(newer, [])
        assert list(await self.store.tails("s")) == []

    async def blobs_are_found_by_their_digest_while_a_session_holds_them(self) -> None:
        await self._start("a")
        await self._start("b")
        body = bytes(range(256)) * 1000
        digest = await self._blob("a", body)
        await self._blob("a", body)
        await self._blob("b", body)
        assert await self.store.get_blob(digest) == ("image/png", body)
        await self.store.delete("a")
        assert await self.store.get_blob(digest) == ("image/png", body)
        await self.store.delete("b")
        await _raises(NotFoundError, self.store.get_blob(digest))

    async def a_blob_must_be_what_its_digest_says(self) -> None:
        await self._start("s")
        await _raises(ValueError, self.store.put_blob("s", "0" * 64, "text/plain", b"x"))
        await _raises(NotFoundError, self.store.get_blob("0" * 64))
        digest = hashlib.sha256(b"x").hexdigest()
        await _raises(NotFoundError, self.store.put_blob("nobody", digest, "text/plain", b"x"))

    async def the_first_reply_to_a_key_is_kept(self) -> None:
        first = StoredReply("sessions.create", "d1", 201, {"id": "s", "n": [1, None]})
        assert await self.store.reply("ann", "k") is None
        assert await self.store.remember_reply("ann", "k", first, at_ms=1) == first
        assert await self.store.remember_reply("ann", "k", StoredReply("x", "d2", 200, {}), at_ms=2) == first
        assert await self.store.reply("ann", "k") == first
        assert await self.store.reply("bob", "k") is None

    async def sessions_are_listed_newest_first_by_page_and_filter(self) -> None:
        for n, session_id in enumerate("abcd"):
            info = SessionInfo(session_id, "x" if n % 2 else "y", "d", f"p{n}", tenant="t1" if n else "t0")
            await self.store.create(info, [Draft(None, SessionStarted("x", "d"))], at_ms=10)
        await self.store.post("b", _input("i", at_ms=20))

        async def ids(page: Page, **which: str) -> str:
            return "".join(info.session_id for info in await self.store.sessions(Filter(**which), page))

        assert (await ids(Page()))[0] == "b"
        assert sorted(await ids(Page())) == list("abcd")
        listed, after = "", None
        while page := await ids(Page(limit=3, after=after)):
            listed, after = listed + page, page[-1]
        assert listed == await ids(Page())
        assert await ids(Page(), tenant="t0") == "a"
        assert await ids(Page(), principal="p3") == "d"
        assert sorted(await ids(Page(), agent="y")) == ["a", "c"]
        assert await ids(Page(), agent="y", session_id="c") == "c"

    async def a_title_is_set_and_removed(self) -> None:
        await self._start("s")
        await self.store.set_title("s", "zwölf 🎈")
        assert (await self.store.session("s")).title == "zwölf 🎈"
        await self.store.set_title("s", None)
        assert (await self.store.session("s")).title is None
        await _raises(NotFoundError, self.store.set_title("nobody", "x"))

    # --- open, aclose ------------------------------------------------------------------------------------------------

    async def open_and_aclose_may_be_called_again(self) -> None:
        await self._start("s")
        await self.store.open()
        await self.store.aclose()
        await self.store.aclose()
        for refused in (self.store.read("s"), self.store.post("s", _input("i"))):
            await _raises(StoreError, refused)
        await self.store.open()
        assert len(await self.store.read("s")) == 1

    async def aclose_waits_for_what_was_asked(self) -> None:
        lease = await self._owned("s")
        writing = [asyncio.ensure_future(self.store.post("s", _input(f"i{n}"))) for n in range(5)]
        reading = asyncio.ensure_future(self.store.read("s"))
        await asyncio.sleep(0)
        await self.store.aclose()
        assert await asyncio.gather(*writing) == ["new"] * 5
        assert len(await reading) == 1
        await self.store.open()
        assert len(await self.store.inbox(lease)) == 5

    # --- scenes ------------------------------------------------------------------------------------------------------

    async def _start(self, session_id: str, *bodies: FactBody, agent: str = "a") -> None:
        drafts = [Draft(None, body) for body in (SessionStarted(agent, "d"), *bodies)]
        await self.store.create(SessionInfo(session_id, agent, "d", "ann"), drafts, at_ms=1)

    async def _fork(self, session_id: str, parent_id: str, parent_seq: int) -> None:
        info = SessionInfo(session_id, "a", "d", "ann", parent_id=parent_id, parent_seq=parent_seq)
        first = SessionStarted("a", "d", parent=ParentRef(parent_id, parent_seq))
        await self.store.create(info, [Draft(None, first)], at_ms=1)

    async def _claimed(self, session_id: str, worker_id: str = "w1") -> Lease:
        lease = await self.store.claim(worker_id, session_id, now_ms=9)
        assert lease is not None
        return lease

    async def _owned(self, session_id: str) -> Lease:
        await self._start(session_id)
        return await self._claimed(session_id)

    async def _asked(self, session_id: str, request_id: str) -> Lease:
        lease = await self._owned(session_id)
        await self._append(lease, 1, _request(request_id))
        return lease

    async def _append(self, lease: Lease, after_seq: int, *bodies: FactBody, run_id: str = "r") -> Sequence[Fact]:
        return await self.store.append(lease, after_seq, [Draft(run_id, body) for body in bodies], at_ms=9)

    async def _blob(self, session_id: str, body: bytes) -> str:
        digest = hashlib.sha256(body).hexdigest()
        await self.store.put_blob(session_id, digest, "image/png", body)
        return digest

    async def _everything(self, session_id: str) -> object:
        """Return all that a failed write might have changed."""
        info = await self.store.session(session_id)
        lease = Lease(session_id, "w1", info.epoch, info.head_seq)
        return (
            info,
            await self.store.read(session_id),
            await self.store.inbox(lease),
            await self.store.tails(session_id),
            await self.store.requests(Filter(session_id=session_id), Page()),
        )


async def _raises(kind: type[Any], promise: Awaitable[object]) -> Any:
    """Return the error that `promise` raises, which must be of this kind."""
    [outcome] = await asyncio.gather(promise, return_exceptions=True)
    if isinstance(outcome, kind):
        return outcome
    raise AssertionError(f"expected {kind.__name__}, got {outcome!r}")


def _seqs(facts: Sequence[Fact]) -> list[int]:
    return [fact.seq for fact in facts]


def _note(data: object) -> Note:
    return Note("info", data)


def _item(body: InboxBody, *, key: str | None = None, principal: str = "ann", at_ms: int = 10) -> InboxItem:
    return InboxItem(body, at_ms, principal, key)


def _input(
    input_id: str, *, key: str | None = None, text: str = "hi", principal: str = "ann", at_ms: int = 10
) -> InboxItem:
    body = Input(input_id, f"run_of_{input_id}", "queue", (TextBlock(text),))
    return _item(body, key=key, principal=principal, at_ms=at_ms)


def _request(request_id: str) -> InteractionRequested:
    return InteractionRequested(request_id, "approval", {"tool": "refund"}, {}, assignee="ann", expires_at_ms=99)


def _answer(request_id: str, decision: Any, *, key: str | None = None, principal: str = "ann") -> InboxItem:
    return _item(AnswerRequest(request_id, Answer(decision)), key=key, principal=principal)


NOTE = Note("info", {"text": "größer\u2028 🎈", "big": 2**70, "none": None})
RUN_STARTED = RunStarted(Limits(), "m", ("i",))
CHILD_STARTED = RunStarted(Limits(), "m", parent_run_id="r1", parent_call_id="c", depth=1)
_STOP: StopReason = "tool_use"
_WITHDRAWN: Decision = "withdrawn"
EVERY_KIND: tuple[FactBody, ...] = (
    SessionStarted("a", "d", {"key": "SECRET_NAME"}, "ann", ParentRef("p", 3)),
    InputAccepted("i", "steer", (TextBlock("x"), BlobBlock("0" * 64, "image/png", 5)), "ann", "k"),
    InputWithdrawn("i", "ann"),
    RunStarted(Limits(max_turns=None, budget_cost=0.5), "m", ("i",), agent="sub", task=(TextBlock("t"),)),
    TurnStarted(1, 2, "claude", "anthropic", "m", ("i",)),
    ResponseEnded(
        1,
        "complete",
        (ThinkingBlock("hm"), TextBlock("é\u2029\x00"), ToolCallBlock("c1", "refund", {"n": 2**80, "d": {"a": [1.5]}})),
        _STOP,
        order=((0, 3), (1, 2), (0, 1)),
        usage=Usage(),
        error=ErrorInfo("overloaded", "try later", True, 500),
    ),
    CallsPrepared(1, (PreparedCall("c1", "ask", input={"n": 1}), PreparedCall("c2", "invalid", problem="no"))),
    InteractionRequested("q", "question", {"question": "?"}, {"type": "object"}, call_id="c1", expires_at_ms=5),
    InteractionResolved("q", "system", _WITHDRAWN, value={"a": None}, edited_input={}, rule=Rule("u", "t", "td", "id")),
    ToolStarted("c1", 1, "key", "policy", "digest", "ask", "child"),
    ToolEnded("c1", 1, "timeout", (TextBlock("out"),), 12, True),
    CancelRequested("system", ErrorInfo("hook", "raised")),
    ConfigChanged({"model": "other"}, "ann"),
    RuleRevoked("u", "ann"),
    Compacted(5, (TextBlock("sum"),), Usage()),
    Note("warning", [1, "two", None, True, 1e300]),
    RunEnded("budget_exceeded", "end_turn", Usage(), 0.25, ErrorInfo("x", "y"), {"any": ["json"]}),
    SessionClosed("ann"),
)
"""One fact of each kind, with the values that are easily lost on the way."""
