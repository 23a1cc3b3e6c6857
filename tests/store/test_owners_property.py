"""Random histories of owners, posters and deaths against a model: the invariants of a session's journal and inbox.

The model knows only what the port promises; both stores share their statements, so one of them is enough here.
"""

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from ownloop.core.events import Draft, FactBody, InteractionRequested, InteractionResolved, Note, SessionStarted
from ownloop.core.inbox import AnswerRequest, Cancel, InboxItem
from ownloop.core.interactions import Answer
from ownloop.core.ports import Lease, SessionInfo
from ownloop.errors import FencedError, StaleError, StoreError, StoreInUseError
from ownloop.store.memory import MemoryStore

WORKERS = ("w1", "w2")


class Owners(RuleBasedStateMachine):
    leases = Bundle("leases")
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = MemoryStore()
        self.seq = 1
        self.epochs = [0]
        self.owner: str | None = None
        self.current: Lease | None = None
        self.alive: set[str] = set()
        self.waiting: list[str] = []
        """Keys of the untaken rows, in order."""
        self.state: dict[str, str] = {}
        self.posted = 0

    def do(self, promise: Any) -> Any:
        """Return the result, or the store's refusal."""
        try:
            return self.loop.run_until_complete(promise)
        except StoreError as error:
            return error

    @initialize()
    def begin(self) -> None:
        self.do(self.store.open())
        started = [Draft(None, SessionStarted("a", "d"))]
        self.do(self.store.create(SessionInfo("s", "a", "d", "ann"), started, at_ms=1))

    def teardown(self) -> None:
        self.do(self.store.aclose())
        self.loop.close()

    @rule(worker=st.sampled_from(WORKERS))
    def heartbeat(self, worker: str) -> None:
        self.do(self.store.heartbeat(worker, pid=1))
        if worker not in self.alive and self.owner == worker:
            self.owner = self.current = None
        self.alive.add(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def die(self, worker: str) -> None:
        self.do(self.store.kill(worker))
        self.alive.discard(worker)

    @rule(worker=st.sampled_from(WORKERS), target=leases)
    def claim(self, worker: str) -> Any:
        lease = self.do(self.store.claim(worker, "s", now_ms=5))
        if worker not in self.alive:
            assert type(lease) is StoreError
        elif self.owner not in (None, worker) and self.owner in self.alive:
            assert type(lease) is StoreInUseError
        else:
            assert (lease.epoch, lease.head_seq) == (self.epochs[-1] + 1, self.seq)
            self.epochs.append(lease.epoch)
            self.owner, self.current = worker, lease
            return lease
        return multiple()

    @rule()
    def post(self) -> None:
        self.posted += 1
        key = f"k{self.posted}"
        assert self.do(self.store.post("s", InboxItem(Cancel(), 3, "ann", key))) == "new"
        assert self.do(self.store.post("s", InboxItem(Cancel(), 4, "ann", key))) == "duplicate"
        self.waiting.append(key)

    def append(self, lease: Lease, after_seq: int, *bodies: FactBody, takes: int = 0, release: bool = False) -> Any:
        """Try an append; check its refusal or result against the model, and return whether it was written."""
        rows = self.do(self.store.inbox(lease))[:takes]
        drafts = [Draft(None, body) for body in bodies]
        ids = [row.id for row in rows]
        written = self.do(self.store.append(lease, after_seq, drafts, at_ms=5, takes=ids, release=release))
        if lease is not self.current:
            assert type(written) is FencedError
        elif after_seq != self.seq:
            assert type(written) is StaleError
        elif not isinstance(written, StoreError):
            self.seq += len(bodies)
            assert [fact.seq for fact in written] == list(range(after_seq + 1, self.seq + 1))
            del self.waiting[:takes]
            if release:
                self.owner = self.current = None
            return True
        return False

    @rule(
        lease=leases,
        facts=st.integers(0, 3),
        takes=st.integers(0, 2),
        off=st.sampled_from([0, 0, 0, 0, -1, 1]),
        release=st.sampled_from([False, False, False, True]),
    )
    def write(self, lease: Lease, facts: int, takes: int, off: int, release: bool) -> None:
        # A row that answers a request is taken by `resolve` alone.
        takes = 0 if any(key.startswith("answer") for key in self.waiting[:takes]) else takes
        may = lease is self.current and off == 0
        assert self.append(lease, self.seq + off, *[Note("info", 1)] * facts, takes=takes, release=release) == may

    @precondition(lambda self: self.current is not None)
    @rule(target=requests)
    def ask(self) -> str:
        assert self.current is not None
        request_id = f"q{self.seq}"
        assert self.append(self.current, self.seq, InteractionRequested(request_id, "approval", {}, {}))
        self.state[request_id] = "open"
        return request_id

    @rule(request_id=requests, decision=st.sampled_from(["approved", "denied"]))
    def answer(self, request_id: str, decision: Any) -> None:
        item = InboxItem(AnswerRequest(request_id, Answer(decision)), 3, "ann")
        result = self.do(self.store.post("s", item))
        if self.state[request_id] == "open":
            assert result == "new"
            self.state[request_id] = f"answered {decision}"
            self.waiting.append(f"answer {request_id}")
        else:
            assert result == ("duplicate" if self.state[request_id].endswith(decision) else "conflict")

    @rule(lease=leases, request_id=requests)
    def expire(self, lease: Lease, request_id: str) -> None:
        may = lease is self.current and self.state[request_id] == "open"
        assert self.append(lease, self.seq, InteractionResolved(request_id, "clock", "expired")) == may
        if may:
            self.state[request_id] = "closed"

    @precondition(lambda self: self.current is not None and (self.waiting or [""])[0].startswith("answer"))
    @rule()
    def resolve(self) -> None:
        assert self.current is not None
        request_id = self.waiting[0].removeprefix("answer ")
        decision = self.state[request_id].removeprefix("answered ")
        assert self.append(self.current, self.seq, InteractionResolved(request_id, "ann", decision), takes=1)  # pyright: ignore[reportArgumentType]
        self.state[request_id] = f"closed {decision}"

    @invariant()
    def the_journal_has_no_gap_and_epochs_never_fall(self) -> None:
        if self.store._db is None:
            return
        facts = self.do(self.store.read("s", limit=100_000))
        assert [fact.seq for fact in facts] == list(range(1, self.seq + 1))
        epochs = [fact.epoch for fact in facts]
        assert epochs == sorted(epochs)

    @invariant()
    def the_inbox_holds_what_was_posted_and_not_taken(self) -> None:
        if self.store._db is None:
            return
        rows = self.do(self.store.inbox(Lease("s", "", 0, 0)))
        assert [row.item.idem_key or f"answer {row.item.body.request_id}" for row in rows] == self.waiting

    @invariant()
    def requests_agree(self) -> None:
        for request_id, state in self.state.items():
            assert self.do(self.store.request("s", request_id)).state == state.split()[0]


TestOwners = Owners.TestCase
