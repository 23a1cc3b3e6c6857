"""One session at the terminal: send, follow, steer, ask, cancel. Shared by `run` and `chat`.

While a person types into a run, nothing is shown: events wait in the subscription, and a reader that waits for too long
subscribes again from its cursor.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from ownloop.cli.ask import Leave, answer_all
from ownloop.cli.editor import Editor
from ownloop.cli.prompt import Interrupted, Prompt
from ownloop.cli.screen import STEERED, Screen
from ownloop.cli.signals import Signals
from ownloop.cli.slash import is_command, message_of
from ownloop.core.cursor import Cursor, parse_cursor
from ownloop.core.events import (
    Fact,
    InputAccepted,
    InputWithdrawn,
    InteractionRequested,
    InteractionResolved,
    TurnStarted,
)
from ownloop.core.operations import Accepted, RunResult
from ownloop.core.ports import Filter
from ownloop.errors import OwnloopError, SlowReaderError
from ownloop.runtime.hub import Frame, Subscription
from ownloop.runtime.place import OpenStreams
from ownloop.service import Service

MOMENT_S = 0.5
"""How long is waited for what may come at once and may never: the end of a run whose question outlives it, and what an
answer brings about when no run is live. No event says that there is nothing to come."""
SHOWN_MESSAGES = 20
"""Of a session that is gone on with so many of the last messages are shown, with what followed them."""
TICK_S = 1.0
"""How often it is said how long something takes."""


class Conversation:
    """Shows one session on a screen, each event once."""

    def __init__(
        self,
        service: Service,
        screen: Screen,
        prompt: Prompt,
        signals: Signals,
        session_id: str,
        *,
        steers: bool = False,
    ) -> None:
        """`steers`: what is typed while a run goes on is said into it."""
        self.session_id = session_id
        self._service = service
        self._screen = screen
        self._prompt = prompt
        self._signals = signals
        self._editor = Editor(prompt, signals)
        self._steers = steers and prompt.has_person
        self._steered: dict[str, str | None] = {}
        """What was said into a run and no turn has taken yet, with the run that each would start (None: not known)."""
        self._cursor = "0"
        self._is_asked = False
        self._asked_beside = False
        """Whether what is asked belongs to the session, not to its run: that may end meanwhile."""

    @property
    def cursor(self) -> str:
        """The place up to which all is shown; while an event is being shown, the place after it."""
        return self._cursor

    async def catch_up(self, *, show: bool) -> None:
        """Read what the session holds already, and show it if asked to.

        Ends before what is going on: that is to be followed from its beginning.
        """
        facts: list[Fact] = []
        cursor, going_on = self._cursor, OpenStreams()
        while page := (await self._service.read_events(self.session_id, cursor))[0]:
            facts.extend(page)
            cursor = str(Cursor(page[-1].seq))
            for fact in page:
                going_on.observe(fact)
        before = min(going_on.values(), default=math.inf)
        first = self._first_shown(facts) if show else math.inf
        for fact in facts:
            if fact.seq < before:
                self._cursor = str(Cursor(fact.seq))
                if fact.seq >= first:
                    self._screen.show(fact)
        self._screen.output.end_waiting()

    def _first_shown(self, facts: list[Fact]) -> int:
        """Return the seq of the first fact that is not too long ago to be shown; say what is left out."""
        said = [fact.seq for fact in facts if isinstance(fact.body, InputAccepted)]
        left_out = len(said) - SHOWN_MESSAGES
        if left_out <= 0:
            return 0
        messages = "message" if left_out == 1 else "messages"
        self._screen.output.prose(f"({left_out} earlier {messages} not shown; `ownloop sessions show` shows all)")
        return said[left_out]

    async def send(self, text: str) -> Accepted:
        """Hand a message over; it is durable when this returns."""
        accepted = await self._service.send(self.session_id, text)
        self._screen.said_here.add(accepted.input_id)
        return accepted

    async def unfinished(self) -> Accepted | None:
        """Return the live run of the session, if it has one."""
        run_id = (await self._service.session(self.session_id)).live_run_id
        return Accepted(self.session_id, "", run_id) if run_id is not None else None

    async def settle(self, accepted: Accepted | None) -> RunResult | None:
        """Show what happens and ask what is to be asked, until the run has ended and nothing is open.

        Without a run there may still be something open. Raises Leave when something stays open, and what stopped the
        host from going on.
        """
        answered_beside = gave_up = False
        while True:
            result = await self._follow(accepted) if accepted is not None else None
            is_over = accepted is None or (result is not None and result.state == "ended")
            if is_over and self._steered:
                # It came when the run was over, and has begun one of its own.
                input_id = next(iter(self._steered))
                accepted = Accepted(self.session_id, input_id, self._steered.pop(input_id) or "")
                continue
            if is_over and answered_beside:
                await self._show_what_comes()
            asked = await self._service.requests(Filter(session_id=self.session_id, state="open"))
            while asked and self._steers and self._prompt.is_typing():
                async with self._cancelling():
                    await self._steer()
                asked = await self._service.requests(Filter(session_id=self.session_id, state="open"))
            if is_over and (gave_up or not asked):
                return result
            try:
                await answer_all(
                    self._service, self._screen.output, self._prompt, self._editor, tuple(asked), self._settled
                )
                answered_beside = any(request.run_id is None for request in asked)
            except Leave:
                await self.catch_up(show=True)
                raise
            except Interrupted:
                if is_over:
                    return result
                gave_up = True
                await self._service.cancel(session_id=self.session_id)

    async def _follow(self, accepted: Accepted) -> RunResult | None:
        """Show what happens until the run has ended or waits, or asks something while it goes on (None)."""
        self._is_asked = self._asked_beside = False
        standing = asyncio.create_task(self._stand(accepted))
        ticking = asyncio.create_task(self._tick())
        try:
            async with self._cancelling():
                while not await self._watch(standing):
                    pass
            stands = standing.done() and not self._is_asked and self._has_shown(standing.result()[1])
            return standing.result()[0] if stands else None
        finally:
            await _give_up(standing)
            await _give_up(ticking)

    async def _watch(self, standing: asyncio.Task[tuple[RunResult, int]]) -> bool:
        """Show what happens until the run stands, or asks; False if it was left for too long, and is to be taken up."""
        try:
            async with self._service.subscribe(self.session_id, self._cursor) as frames:
                await self._show_until(standing, frames)
                if self._asked_beside:
                    self._is_asked = False
                    await self._show_until(standing, frames, for_s=MOMENT_S)
        except SlowReaderError:
            return False
        return True

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._screen.output.tick()

    async def _show_until(
        self, standing: asyncio.Task[tuple[RunResult, int]], frames: Subscription, *, for_s: float | None = None
    ) -> None:
        """Show frames until the run stands and all before that is shown, or something is asked, or for so long.

        A line that the person types is never broken off: it ends with Enter or Esc, however long that takes.
        """
        clock = asyncio.get_running_loop().time
        until = None if for_s is None else clock() + for_s
        batch: asyncio.Task[Sequence[Frame]] | None = None
        typed: asyncio.Task[None] | None = None
        try:
            # What another process writes may come here later than the run stands.
            while not standing.done() or not self._has_shown(standing.result()[1]) or None in self._steered.values():
                # One that was begun is waited for, however often: given up, it would lose what it has.
                batch = batch or asyncio.create_task(frames.batch())
                typed = typed or (asyncio.create_task(self._prompt.typed()) if self._steers else None)
                awaited = [batch, *([] if standing.done() else [standing]), *([typed] if typed else [])]
                left_s = None if until is None else until - clock()
                if left_s is not None and left_s <= 0:
                    return
                await asyncio.wait(awaited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                # A key that is pressed comes before what the run has to say, also if its task has not woken yet.
                if typed is not None and (typed.done() or self._prompt.is_typing()):
                    if typed.done():
                        typed.result()
                    await _give_up(typed)
                    typed = None
                    await self._steer()
                elif batch.done():
                    self._show(batch.result())
                    if not batch.result():
                        self._steered.clear()  # nothing follows: the session is closed
                    batch = None
                if self._is_asked:
                    return
        finally:
            await _give_up(batch)
            await _give_up(typed)

    async def _steer(self) -> None:
        """Let the person say something into the run, and go on with it."""
        output = self._screen.output
        text = ""
        with output.aside():
            while True:
                try:
                    text = await self._prompt.steer(STEERED, text)
                except EOFError:
                    return
                except Interrupted:
                    self._signals.on_signal(signal.SIGINT)
                    return
                if not text.strip():
                    return
                output.was_typed()
                if is_command(text):
                    output.prose("Commands wait until the answer is there. To say this as it is, begin with //.")
                    continue
                try:
                    accepted = await self._service.send(self.session_id, message_of(text), on_busy="steer")
                except OwnloopError as error:
                    output.error(str(error))
                    continue
                self._screen.said_here.add(accepted.input_id)
                self._steered[accepted.input_id] = None
                return

    def _has_shown(self, seq: int) -> bool:
        return parse_cursor(self._cursor).seq >= seq

    async def _show_what_comes(self) -> None:
        """Show what comes within a moment."""
        async with self._service.subscribe(self.session_id, self._cursor) as frames:
            with suppress(TimeoutError):
                async with asyncio.timeout(MOMENT_S):
                    async for frame in frames:
                        self._show((frame,))

    async def _stand(self, accepted: Accepted) -> tuple[RunResult, int]:
        """Wait until the run has ended or waits for a person; return its result, and the last fact before that."""
        result = await self._service.wait(accepted)
        return result, (await self._service.session(self.session_id)).head_seq

    def _show(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self._cursor = frame.cursor
            self._screen.show(frame.event)
            if isinstance(frame.event, Fact):
                self._note(frame.event)

    def _note(self, fact: Fact) -> None:
        match fact.body:
            case InteractionRequested(purpose=purpose):
                # A person decides at once, while other tools run. Without one, a tool that waits for an answer is a
                # dead end, but an approval can be given later: other tools do their work before we leave.
                rests = purpose in ("approval", "unknown_outcome")
                self._is_asked = self._is_asked or self._prompt.has_person or not rests
                self._asked_beside = self._asked_beside or fact.run_id is None
            case InputAccepted(input_id=input_id) if input_id in self._steered:
                self._steered[input_id] = fact.run_id
            case InputWithdrawn(input_id=input_id):
                self._steered.pop(input_id, None)
            case TurnStarted(input_ids=input_ids):
                for input_id in input_ids:
                    if self._steered.get(input_id) != fact.run_id:  # else it has begun a run, which is to be followed
                        self._steered.pop(input_id, None)
            case _:
                pass

    async def _settled(self, request_id: str) -> str:
        """Return the decision on a request once there is one: then it is open no more."""
        async with self._service.subscribe(self.session_id, self._cursor) as frames:
            async for frame in frames:
                body = frame.event.body if isinstance(frame.event, Fact) else None
                if isinstance(body, InteractionResolved) and body.request_id == request_id:
                    return body.decision
        return "withdrawn"  # nothing follows: the session is closed, and with it all that it asked

    @asynccontextmanager
    async def _cancelling(self) -> AsyncGenerator[None]:
        """Let Ctrl-C cancel the run, and a second one end the program."""
        cancels: list[asyncio.Task[None]] = []

        def interrupt() -> None:
            if cancels:
                self._signals.end(130)
            else:
                cancels.append(asyncio.create_task(self._cancel()))

        with self._signals.interrupts_go_to(interrupt):
            try:
                yield
            finally:
                await asyncio.gather(*cancels, return_exceptions=True)

    async def _cancel(self) -> None:
        try:
            await self._service.cancel(session_id=self.session_id)
        except OwnloopError as error:
            self._screen.output.error(str(error))


async def _give_up(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
