"""A model that says what a script tells it: for tests, users' and ours, and for demonstrations without a model.

Deterministic: which entry of the script answers follows from the conversation alone, so a crash and a new process go
on at the right place. Timing comes through a `Clock`, so a virtual clock runs a script without waiting.

```python
backend = ScriptedBackend([
    think("They want their money back.") + call("refund", {"order_id": "A1"}),
    say("Done.", chunk=2),
])
assert backend.requests[0].messages[-1].role == "user"     # what it was asked, after the run
```
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ownloop.backends.base import AdapterBackend
from ownloop.core.backend import (
    Adapter,
    Finish,
    ModelRequest,
    ModelSettings,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    PartType,
    StopReason,
    UsageSeen,
)
from ownloop.core.codec import dumps
from ownloop.core.ports import Clock
from ownloop.core.usage import Usage
from ownloop.errors import BadRequestError, ProviderError, StreamInterruptedError

DEFAULT_CHUNK: Final = 4
"""Characters in one delta: about a token."""


class Waitable(Protocol):
    """An `asyncio.Event`, or anything like it."""

    async def wait(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Block:
    type: PartType
    text: str
    chunk: int | None
    name: str | None = None
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Wait:
    ms: int


@dataclass(frozen=True, slots=True)
class _Gate:
    event: Waitable


@dataclass(frozen=True, slots=True)
class _Fail:
    error: ProviderError


_Item: TypeAlias = _Block | _Wait | _Gate | _Fail


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of the model. Made by `say`, `think`, `call` …, and put together with `+`."""

    items: tuple[_Item, ...] = ()
    usage: Usage | None = None
    stop_reason: StopReason | None = None
    """None: tool_use if there are calls, else end_turn."""
    raw_stop: str | None = None

    def __add__(self, other: Turn) -> Turn:
        return Turn(
            self.items + other.items,
            other.usage or self.usage,
            other.stop_reason or self.stop_reason,
            other.raw_stop or self.raw_stop,
        )


Reply: TypeAlias = Turn | Callable[[ModelRequest], Turn] | Sequence[Turn]
"""One entry of a script: a turn, a function of the request, or one turn for each attempt (the last one repeats)."""


def say(text: str, *, chunk: int | None = None) -> Turn:
    """Say `text`, `chunk` characters at a time (None: as the backend's default)."""
    return Turn((_Block("text", text, chunk),))


def think(text: str, *, chunk: int | None = None) -> Turn:
    """Think aloud, as reasoning models do."""
    return Turn((_Block("thinking", text, chunk),))


def call(
    name: str, input: dict[str, Any] | str | None = None, *, id: str | None = None, chunk: int | None = None
) -> Turn:
    """Call a tool. A string for `input` is streamed as it is, cut or wrong as it may be; `id` is the provider's."""
    text = input if isinstance(input, str) else dumps(input or {})
    return Turn((_Block("tool_call", text, chunk, name, id),))


def calls(*turns: Turn) -> Turn:
    """Put several calls into one response: `calls(call("a"), call("b"))`, the same as `call("a") + call("b")`."""
    return sum(turns, Turn())


def finish(stop_reason: StopReason, *, raw: str | None = None) -> Turn:
    """End with this stop reason: `say("half a sen") + finish("max_tokens")`."""
    return Turn(stop_reason=stop_reason, raw_stop=raw)


def using(input: int | None = None, output: int | None = None, **buckets: int) -> Turn:
    """Report these token counts at the end; further buckets as in `Usage`."""
    return Turn(usage=replace(Usage(input=input, output=output), **buckets))


def wait(ms: int) -> Turn:
    """Wait on the backend's clock: `say("One moment. ") + wait(500) + say("Here.")`."""
    return Turn((_Wait(ms),))


def gate(event: Waitable) -> Turn:
    """Wait until the test opens `event` (an `asyncio.Event`)."""
    return Turn((_Gate(event),))


def hang() -> Turn:
    """Say nothing more until the request is cancelled."""
    return Turn((_Gate(_Never()),))


def fail(error: ProviderError | None = None) -> Turn:
    """Fail, at the start or after what stands before it: `say("Hel") + fail()` breaks off in mid-answer.

    The default is StreamInterruptedError. To fail once and then answer, give the entry one turn for each attempt:
    `[fail(OverloadedError()), say("Hello")]`.
    """
    return Turn((_Fail(error or StreamInterruptedError("the script breaks off here")),))


class ScriptedBackend:
    """An `Adapter` that plays a script; sessions may share it, each at its own place.

    The n-th entry answers a conversation that holds n-1 responses of the assistant (a failed attempt is none). An entry
    that is a sequence plays its k-th turn at the k-th attempt of that session at that place. Instead of a list, one
    function of the request may write every turn. `backend()` gives a three-method Backend of it.
    """

    def __init__(
        self,
        script: Sequence[Reply] | Callable[[ModelRequest], Turn],
        *,
        chunk: int = DEFAULT_CHUNK,
        clock: Clock | None = None,
        name: str = "scripted",
        provider: str = "scripted",
        model: str = "scripted",
    ) -> None:
        if chunk < 1:
            raise ValueError(f"chunk is {chunk!r}, expected at least one character")
        self.name = name
        self.provider = provider
        self.model = model
        self.requests: list[ModelRequest] = []
        """Every request, in the order of arrival."""
        self.closed = 0
        """How many responses were left before their end: cancelled, or no longer read."""
        self._script = script
        self._chunk = chunk
        self._clock = clock
        self._attempts: dict[tuple[str, int], int] = {}

    def backend(self, *, system_prompt: str = "", settings: ModelSettings | None = None) -> AdapterBackend:
        """Return a fresh three-method Backend that plays this script."""
        return AdapterBackend(self, system_prompt=system_prompt, settings=settings)

    async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
        """See `Adapter.start`. One batch for each chunk."""
        self.requests.append(request)
        turn = self._turn(request)
        open_parts: list[Part] = []
        is_over = False
        try:
            for index, item in enumerate(turn.items):
                match item:
                    case _Wait(ms):
                        await self._sleep(ms)
                    case _Gate(event):
                        await event.wait()
                    case _Fail(error):
                        is_over = True
                        raise error.with_traceback(None)
                    case _Block():
                        # As real providers do it: a block ends when the next one begins, or with the response.
                        yield [*open_parts, PartStart(index, item.type, item.name, item.provider_id)]
                        size = item.chunk or self._chunk
                        for at in range(0, len(item.text), size):
                            await asyncio.sleep(0)  # as a network read would: others run, and a cancel arrives
                            yield [PartDelta(index, item.text[at : at + size])]
                        open_parts = [PartEnd(index)]
            is_over = True
            usage = [UsageSeen(turn.usage)] if turn.usage is not None else []
            yield [*open_parts, *usage, Finish(self._stop_reason(turn), turn.raw_stop)]
        finally:
            self.closed += not is_over

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _turn(self, request: ModelRequest) -> Turn:
        if callable(self._script):
            return self._script(request)
        place = sum(message.role == "assistant" for message in request.messages)
        if place >= len(self._script):
            raise BadRequestError(
                f"the script has {len(self._script)} turns, and the conversation asks for turn {place + 1}: add one"
            )
        reply = self._script[place]
        if isinstance(reply, Turn):
            return reply
        if callable(reply):
            return reply(request)
        attempt = self._attempts[request.session_id, place] = self._attempts.get((request.session_id, place), -1) + 1
        return reply[min(attempt, len(reply) - 1)]

    def _stop_reason(self, turn: Turn) -> StopReason:
        has_calls = any(isinstance(item, _Block) and item.type == "tool_call" for item in turn.items)
        return turn.stop_reason or ("tool_use" if has_calls else "end_turn")

    async def _sleep(self, ms: int) -> None:
        if self._clock is None:
            await asyncio.sleep(ms / 1000)
        else:
            await self._clock.sleep_until(self._clock.now_ms() + ms)


class _Never:
    async def wait(self) -> None:
        await asyncio.Event().wait()


if TYPE_CHECKING:
    _: type[Adapter] = ScriptedBackend
