"""What the tests of all decoders share: one row per wire, and how to read a body that comes in pieces."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ownloop.backends.wires.chat_decoder import ChatDecoder
from ownloop.backends.wires.decoder import Decoder
from ownloop.backends.wires.messages_decoder import MessagesDecoder
from ownloop.backends.wires.responses_decoder import ResponsesDecoder
from ownloop.core.backend import Part, UsageSeen
from ownloop.core.events import ErrorInfo, ResponseEnded
from ownloop.core.turn import TurnBuilder
from ownloop.errors import ProviderError
from tests.backends.wires.messages_samples import MESSAGE, streamed

CAPTURES = Path(__file__).parents[2] / "captures"
NAMES = {"get_weather": "get_weather", "get_time": "get_time"}


@dataclass(frozen=True, slots=True)
class Row:
    """A decoder, and where the bytes of real servers are that it reads."""

    captures: str
    decoder: Callable[[], Decoder]
    samples: Sequence[bytes] = ()
    """Further bodies, with what no capture has."""


WIRES = {
    "openai-chat": Row("*_chat_*.sse", lambda: ChatDecoder(NAMES)),
    "anthropic-messages": Row(
        "*_messages_*.sse", lambda: MessagesDecoder(NAMES), (streamed(MESSAGE), json.dumps(MESSAGE).encode())
    ),
    "openai-responses": Row("*_responses_*.sse", lambda: ResponsesDecoder(NAMES)),
}


def captures(wire: str) -> list[Path]:
    return sorted(CAPTURES.glob(WIRES[wire].captures))


def cut(body: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Cut a body at offsets, of which any may lie outside."""
    edges = [0, *sorted(min(offset, len(body)) for offset in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


def one_byte_each(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a decoder makes of a body: what must not depend on how it was cut."""

    fact: ResponseEnded
    parts: Sequence[Part]
    """Without the counts, which are told once for each read; the fact has the last ones."""
    error: ProviderError | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self._key() == other._key()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # compared only

    def _key(self) -> object:
        error = self.error
        return self.fact, self.parts, error and (type(error), str(error), error.detail, error.status)


def decode(wire: str, pieces: Iterable[bytes]) -> Outcome:
    """Read a body to its end, as a transport does."""
    decoder = WIRES[wire].decoder()
    builder = TurnBuilder(1, iter(f"call_{n}" for n in range(1_000_000)).__next__)
    parts: list[Part] = []
    for piece in pieces:
        if decoder.done:
            break
        batch = decoder.feed(piece)
        builder.feed(batch)
        parts += batch
    batch = decoder.close()
    builder.feed(batch)
    parts += batch
    error = decoder.error
    status = None if error is None else "failed"
    _, fact = builder.end(1, status, None if error is None else ErrorInfo(error.code, error.message))
    return Outcome(fact, [part for part in parts if not isinstance(part, UsageSeen)], error)
