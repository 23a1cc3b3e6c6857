"""What the response decoders of all wires share: bytes in, parts out. Pure.

The invariant: the parts depend on the bytes alone, never on how the network cut them, and a response counts as complete
only if the provider said so.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, cast

import orjson

from ownloop.backends.wires.provider_errors import provider_error, redact
from ownloop.backends.wires.sse import SSEEvent, SSEReader, SSETooLargeError
from ownloop.core.backend import Finish, Part, StopReason, UsageSeen
from ownloop.core.codec import dumps
from ownloop.core.messages import Json
from ownloop.core.text import clean_json
from ownloop.core.turn import REFUSALS, is_too_deep
from ownloop.core.usage import Usage, merge_counts
from ownloop.errors import ProviderError, StreamInterruptedError

FINISH_WORDS: Final[Mapping[str, StopReason]] = {
    "stop": "end_turn",
    "completed": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "tool_use": "tool_use",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "model_length": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
}
"""The words of servers; any other one is `other`."""

NAMELESS: Final = "the provider sent this call without a tool name, so it was not run"


class Decoder(ABC):
    """Build the parts of one response. Feed the body; stop reading when `done`; then `close`, then look at `error`.

    Nothing raises for what a provider sends: what was shown stays shown, and `error` says why the response is not
    complete. `names` maps the declared tools' names on the wire to ours.
    """

    EVENTS: ClassVar[tuple[str, ...]] = ("message",)
    """How the names of this wire's events begin. One of them that is not JSON is damage; any other is a proxy's."""

    def __init__(self, names: Mapping[str, str], *, provider: str = "", secrets: Sequence[str] = ()) -> None:
        self.done = False
        """Nothing that follows matters: the last word or an error was seen."""
        self.error: ProviderError | None = None
        """Why the response is not complete; final after `close`."""
        self.events = 0
        """Events seen so far: the sign of life that a proxy's keep-alive comments are not."""
        self.request_id: str | None = None
        """Set by the transport from the reply's headers."""
        self._names = names
        self._provider = provider
        self._secrets = secrets
        self._reader = SSEReader()
        self._out: list[Part] = []
        self._said_done = False
        self._counts: Json = {}
        self._has_news_of_usage = False

    # --- what a wire says ---

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether the provider gave a finish reason: only usage may still come."""

    @abstractmethod
    def _frame(self, frame: Json, data: str) -> None:
        """Take one JSON object of the stream; `data` is its text."""

    @abstractmethod
    def _end(self) -> Finish:
        """Write the last parts and return the end, after `_interrupted` if the provider never said it."""

    @abstractmethod
    def _usage(self, counts: Json) -> Usage:
        """Return the normalised view of this wire's counts."""

    # --- the body ---

    def feed(self, data: bytes) -> list[Part]:
        """Take the next bytes of the body; return the parts they complete."""
        if self.done:
            return []
        try:
            for event in self._reader.feed(data):
                self._event(event)
                if self.done:
                    break
        except SSETooLargeError as error:
            self._too_large(error)
        return self._take()

    def lose(self, error: ProviderError) -> None:
        """Say that the connection broke or was given up; that hurts only if the provider had not finished."""
        if not self.finished and self.error is None:
            self.error = error
        self.done = True

    def close(self) -> list[Part]:
        """End the response: return the last parts, with `Finish` if it is complete; else `error` is set."""
        if not self.done:
            self._end_body()
            self.done = True
        finish = self._end()
        parts = self._take()
        if self.error is None:
            parts.append(finish)
        return parts

    def _end_body(self) -> None:
        try:
            for event in self._reader.close():
                self._event(event)
        except SSETooLargeError as error:
            self._too_large(error)
        if self._reader.document is not None and self.error is None:
            self._event(SSEEvent("message", self._reader.document))

    def _event(self, event: SSEEvent) -> None:
        self.events += 1
        data = event.data
        if event.event == "error":
            self._fail(data)
            return
        frame = load(data)
        if type(frame) is dict:
            self._frame(cast("Json", frame), data)
        elif type(frame) is list and self._reader.document is not None:  # a body that is a list holds an error (Gemini)
            self._fail(cast("object", frame))
        elif data.strip() == "[DONE]":
            self._said_done = self.done = True
        elif event.event.startswith(self.EVENTS) and frame is not None and not data.startswith(":"):
            # A frame that was cut, or glued to the next: what was in it is lost, so this is no complete answer.
            self.lose(StreamInterruptedError(f"{self._provider!r} sent a damaged frame in its stream"))

    # --- for the wires ---

    def _count(self, counts: Json) -> None:
        """Take more of the response's usage; a field replaces what it was before."""
        counts = kept(counts) or {}
        if counts:
            self._counts = merge_counts(self._counts, counts)
            self._has_news_of_usage = True

    def _fail(self, body: object) -> None:
        """End the response with the provider's own error."""
        self.done = True
        self.error = provider_error(self._provider, body, secrets=self._secrets)
        self.error.request_id = self.request_id

    def _interrupted(self) -> None:
        """End the response as one that the provider never finished."""
        stray = self._reader.stray
        if self._said_done:
            told, stray = "ended its stream without a finish reason", None
        elif self.events:
            told = "closed the connection before its answer was complete"
        else:
            told = "closed the connection without an answer"
        stray = None if stray is None else redact(stray, self._secrets)
        self.error = StreamInterruptedError(f"{self._provider!r} {told}", request_id=self.request_id, detail=stray)

    def _too_large(self, cause: SSETooLargeError) -> None:
        self.lose(StreamInterruptedError(f"{self._provider!r} sent an event that is too large: {cause}"))
        if self.error is not None:
            self.error.__cause__ = cause

    def _take(self) -> list[Part]:
        parts, self._out = self._out, []
        if self._has_news_of_usage:
            self._has_news_of_usage = False
            parts.append(UsageSeen(self._usage(self._counts)))
        return parts


def load(data: str) -> object:
    """Read a frame; False if it is not JSON.

    orjson refuses lone surrogates (`\\ud83d` escapes cut by the provider) and NaN; the slow reader takes both.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return False


def load_exact(data: str) -> object:
    """Read a frame with all digits, for what goes back as it came: orjson makes floats of integers over 64 bits."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return load(data)


def arguments_text(value: object) -> str:
    """Return arguments as the text they should have come as; NaN and the like stay what no reader takes."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "["  # whatever they are, nobody can mean them; so they are refused as what does not parse


def kept(raw: Json) -> Json | None:
    """Return an object as a journal can hold it; None if it cannot: NaN, infinities, too many levels."""
    if is_too_deep(raw):
        return None
    try:
        dumps(raw)
    except ValueError:
        return None
    return clean_json(raw)


def stop_reason(word: str, *, has_calls: bool) -> StopReason:
    """Return what a finish word means: a tool turn is decided by calls that are there, never by the word."""
    meant: StopReason = FINISH_WORDS.get(word, "other")
    if meant == "max_tokens" or word in REFUSALS:
        return meant
    if has_calls:
        return "tool_use"
    return "other" if meant == "tool_use" else meant


def count_of(value: object) -> int | None:
    """Return a token count; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def object_of(value: object) -> Json:
    """Return a JSON object; an empty one for anything else."""
    return cast("Json", value) if isinstance(value, dict) else {}
