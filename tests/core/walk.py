"""Random walks of a `World`: an adversary that spends a string of bytes on what may happen next."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from ownloop.core.events import ErrorInfo, Limits, ToolStatus, Verdict
from ownloop.core.inbox import AnswerRequest, Config, InboxBody, Input, LateResult, Request, RevokeRule, Stop, Withdraw
from ownloop.core.interactions import Answer
from ownloop.core.messages import TextBlock, ToolCallBlock
from ownloop.core.run import RequestState
from ownloop.core.toolspec import OnUnknown
from ownloop.errors import ConflictError, FencedError, SessionClosedError
from tests.core.machine import TOOLS, Fault, Owner, Tool, ToolAsks, ToolDone, ToolId, World, cancel

T = TypeVar("T")
Move = Callable[[], object]

RESPONSES: list[dict[str, Any]] = [
    {},
    {"blocks": ()},
    {"status": "cut", "stop_reason": "max_tokens"},
    {"stop_reason": "other"},
    {"status": "failed", "error": ErrorInfo("overloaded", "later", retryable=True)},
    {"status": "failed", "error": ErrorInfo("overloaded", "later", retryable=True, retry_after_ms=5)},
    {"status": "failed", "error": ErrorInfo("auth", "no key")},
    {"status": "abandoned", "error": ErrorInfo("stream_interrupted", "broke off")},
    {"status": "cancelled", "blocks": (TextBlock("so far"),)},
]
LIMITS = [
    Limits(max_turns=4),
    Limits(max_turns=1),
    Limits(max_turns=3, budget_tokens=5),
    Limits(max_turns=6, continue_on_cut=1, continue_on_other=True),
]


def walks(longest: int = 240) -> st.SearchStrategy[bytes]:
    """Return a strategy of what a `Walk` spends: short, middling and long."""
    third = longest // 3
    short, middling, long = (st.binary(min_size=n * third, max_size=(n + 1) * third) for n in range(3))
    return st.one_of(short, middling, middling, long, long)


_PHASES = set(Phase) - {Phase.explain}  # which traces every line: it takes minutes on a walk


def examples(ordinary: int) -> Callable[[T], T]:
    """Run a property on that many examples; on a hundred times as many, however long it takes, in a soak."""
    soak = os.environ.get("HYPOTHESIS_PROFILE") == "soak"

    def decorate(test: Any) -> Any:
        test = settings(max_examples=ordinary * (100 if soak else 1), phases=_PHASES)(test)
        return pytest.mark.timeout(0)(test) if soak else test

    return decorate


class Walk:
    """One walk: `go` spends the bytes; what they did not decide is decided benignly."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.world = World(limits=self.choose(LIMITS), expires_ms=self.choose([None, 20]))
        self._frozen: list[Owner] = []
        self.moves = 0

    def choose(self, options: Sequence[T]) -> T:
        byte = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return options[byte % len(options)]

    def go(self) -> World:
        self.world.say()
        while self._at < len(self._data):
            self._move()
        return self.world

    def _move(self) -> None:
        world, owner = self.world, self.world.owner
        self.moves += 1
        world.now += 1
        moves: list[Move] = [self._people]
        if owner is None:
            moves += [self._claim]
        else:
            moves += [self._owner] + [self._effects] * 4 + [self._trouble]
        self.choose(moves)()

    # --- people ---

    def _people(self) -> None:
        try:
            self.world.post(self._word(), self.choose(["ann", "bob"]))
        except (SessionClosedError, ConflictError):
            return

    def _word(self) -> InboxBody:
        world, state = self.world, self.world.state
        run_ids = [None, *state.runs, *(w.run_id for w in state.inputs.values())]
        if state.requests and self.choose([True, True, False]):
            return self._answer()
        match self.choose(
            [
                "say",
                "steer",
                "deny",
                "cancel",
                "withdraw",
                "late",
                "config",
                "rule",
                "request",
                *(["stop"] if len(self.world.book.facts) > 60 else []),
            ]
        ):
            case "say":
                return self._input("queue")
            case "steer":
                return self._input("steer")
            case "deny":
                return self._input(self.choose(["queue", "steer"]), deny_open=True)
            case "cancel":
                return cancel(self.choose(run_ids))
            case "withdraw":
                return Withdraw(self.choose(["nothing", *state.inputs]))
            case "late" if world.still_running:
                id = self.choose(sorted(world.still_running))
                return LateResult(*id, self.choose(["ok", "error"]), ())
            case "rule":
                return RevokeRule(self.choose(["nothing", *state.rules]))
            case "request":
                return Request(self.choose([world.new("ext"), "ext1"]), "poll", {})
            case "stop":
                return Stop()
            case _:
                return Config({"model": world.new("m")})

    def _input(self, mode: Any, *, deny_open: bool = False) -> InboxBody:
        new = self.world.new
        return Input(new("in"), new("run"), mode, (TextBlock("words"),), deny_open)

    def _answer(self) -> InboxBody:
        request = self.choose(list(self.world.state.requests.values()))
        return AnswerRequest(request.request_id, self._answer_to(request))

    def _answer_to(self, request: RequestState) -> Answer:
        match request.purpose:
            case "approval":
                return self.choose(
                    [
                        Answer("approved"),
                        Answer("approved", edited_input={"n": 2}),
                        Answer("approved", remember="session"),
                        Answer("denied", note="no"),
                    ]
                )
            case "unknown_outcome":
                return Answer("answered", {"outcome": self.choose(["again", "ran", "not_run"])})
            case _:
                return self.choose([Answer("answered", 1), Answer("denied")])

    # --- the owner ---

    def _claim(self) -> None:
        """Somebody takes the session: by a hint that comes at any time, perhaps with another deployment."""
        if self.choose([True, False]):
            name = self.choose(list(TOOLS))
            old = self.world.tools.get(name, Tool())
            self.world.tools[name] = Tool(
                self.choose([old.verdict, *get_args(Verdict)]),
                self.choose([old.on_unknown, *get_args(OnUnknown)]),
                old.version + self.choose([0, 1]),
                old.question,
                old.delegates,
            )
        self.world.claim()
        self._owner()

    def _owner(self) -> None:
        if self.choose([True, True, False]):
            self._somebody_interferes()
        self.world.round(crash=self.choose([False, False, False, True]))

    def _somebody_interferes(self) -> None:
        if self.world.state.requests:
            self.world.interfere = self._people

    def _effects(self) -> None:
        world, owner = self.world, self.world.owner
        assert owner is not None
        if owner.models and (not owner.tools or self.choose([True, False])):
            self._respond(self.choose(sorted(owner.models)))
        elif owner.tools:
            self._tool(self.choose(sorted(owner.tools)))
        else:
            world.now = max(world.now, owner.waits_until or 0)
            self._owner()

    def _respond(self, run_id: str) -> None:
        world = self.world
        crash = self.choose([False, False, False, False, False, True])
        how = self.choose(["calls", "calls", "calls", "other"])
        if how == "other":
            return world.respond(run_id=run_id, crash=crash, **self.choose(RESPONSES))
        names = [name for name in (*TOOLS, "gone") if name != "sub" or world.state.runs[run_id].depth < 2]
        calls = [
            ToolCallBlock(world.new("call"), self.choose(names), {"n": 1}, problem=self.choose([None] * 5 + ["cut"]))
            for _ in range(self.choose([1, 2, 3]))
        ]
        status = self.choose(["complete", "complete", "cut"])
        return world.respond(run_id=run_id, crash=crash, status=status, blocks=tuple(calls))

    def _tool(self, id: ToolId) -> None:
        world = self.world
        told = id in world.owner.told_to_stop if world.owner else False
        match self.choose(["done", "done", "ask", "time over", "cancelled"]):
            case "ask":
                world.round(ToolAsks(*id))
            case "time over":
                world.time_over(id)
            case "cancelled" if told:
                world.done(id, "cancelled")
            case _:
                status: ToolStatus = self.choose(["ok", "error"])
                world.done(id, status, crash=self.choose([False, False, False, True]))

    def _trouble(self) -> None:
        world, owner = self.world, self.world.owner
        assert owner is not None
        match self.choose(["crash", "freeze", "thaw", "late", "fault"]):
            case "crash":
                world.crash()
            case "freeze":
                self._frozen.append(owner)
                world.crash()
                self._claim()
            case "thaw" if self._frozen:
                before = list(world.book.facts), set(world.book.taken)
                thawed = self._frozen.pop()
                plan = thawed.plan(())
                if plan.facts or plan.takes or plan.end:
                    try:
                        thawed.commit(plan)
                    except FencedError:
                        pass
                    else:
                        raise AssertionError("an owner of an older epoch wrote")
                assert before == (world.book.facts, world.book.taken)
            case "late" if world.still_running:
                world.round(ToolDone(*self.choose(sorted(world.still_running)), self.choose(["ok", "error"])))
            case "fault" if owner.state.runs:
                world.round(Fault(self.choose(list(owner.state.runs))))
            case _:
                pass
