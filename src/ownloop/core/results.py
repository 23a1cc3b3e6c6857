"""The words a model reads in place of a tool's own result. One place, so that they stay neutral and alike."""

from __future__ import annotations

from typing import Any

from ownloop.core.codec import dumps
from ownloop.core.messages import Json, ResultContent, TextBlock

DENIED = "Tool use was denied by the user."
EXPIRED = "Tool use was not approved in time, so the tool was not run."
NOT_RUN = "Not run: the run ended first."
WITHDRAWN = "Not run: the request for approval was withdrawn."
UNKNOWN = (
    "The outcome of this call is unknown: the tool was started and may or may not have taken effect. "
    "Check before doing it again."
)
NOT_TAKEN_EFFECT = "The tool did not run: a person checked that it took no effect."
RAN = "The tool ran: a person checked that it took effect."
DECLINED = "The question was declined."


def text(words: str) -> tuple[ResultContent, ...]:
    return (TextBlock(words),)


def denied(note: str | None) -> tuple[ResultContent, ...]:
    return text(f"{DENIED} Reason: {note}" if note else DENIED)


def timed_out(seconds: float, read_only: bool) -> tuple[ResultContent, ...]:
    words = f"The tool did not finish within {seconds:g} s."
    return text(words if read_only else f"{words} {UNKNOWN}")


def answered(value: Any) -> tuple[ResultContent, ...]:
    return text(value if isinstance(value, str) else dumps(value))


def edited(input: Json) -> TextBlock:
    """Return the line that tells the model, neutrally, that a person changed what it proposed."""
    return TextBlock(f"(A person changed the input to {dumps(input)} before the tool ran.)")
