"""A whole session as a person reads it: what was said, called, decided and spent. Used by `sessions show`.

The conversation itself looks as it does in a chat; beside it stand the times, and what people decided.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from ownloop.cli.harmless import harmless
from ownloop.cli.output import Output
from ownloop.cli.screen import Screen
from ownloop.core.events import (
    Event,
    Fact,
    InputAccepted,
    InteractionRequested,
    InteractionResolved,
    ResponseEnded,
    TurnStarted,
)
from ownloop.core.messages import Json
from ownloop.core.usage import Usage

PEOPLE = {"local": "you", "clock": "", "system": ""}
"""Who decided, as a person at this machine calls them; what nobody decided has no name."""


class Transcript(Screen):
    """A screen that shows times and decisions too."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._requested: dict[str, InteractionRequested] = {}

    def show(self, event: Event) -> None:
        if isinstance(event, Fact) and isinstance(event.body, InputAccepted):
            self.output.end_text()
            self.output.line()
            self.output.line(self.output.dim(moment(event.at_ms)))
        super().show(event)
        match event:
            case Fact(body=InteractionRequested() as body):
                self._requested[body.request_id] = body
                if _is_question(body):
                    self._decision(_question(body))
            case Fact(body=InteractionResolved() as body):
                self._decision(_decided(body, self._requested.get(body.request_id)))
            case _:
                pass

    def _decision(self, words: str) -> None:
        self.output.line(self.output.style("33", "? ") + harmless(words).replace("\n", "\n  "))


def _is_question(body: InteractionRequested) -> bool:
    return body.purpose not in ("approval", "unknown_outcome")


def _says_nothing(body: InteractionResolved) -> bool:
    """Whether a question was declined, or answered with nothing."""
    return body.decision == "denied" or (body.decision == "answered" and body.value in (None, ""))


def _question(body: InteractionRequested) -> str:
    """Return what was asked: in its own words if it is a sentence, else with all that was asked."""
    data: Any = body.data
    sentence: Any = cast("Json", data).get("question") if isinstance(data, dict) else data
    if isinstance(sentence, str) and sentence:
        return sentence
    return f"{body.type or body.purpose} {json.dumps(body.data, ensure_ascii=False)}"


def _decided(body: InteractionResolved, requested: InteractionRequested | None) -> str:
    if requested is not None and _is_question(requested) and _says_nothing(body):
        return "no answer" + (f" ({body.note})" if body.note else "")
    who = PEOPLE.get(body.by, body.by)
    words = body.decision
    if body.edited_input is not None:
        words += " with other arguments"
    words += f" by {who}" if who else ""
    if body.rule is not None:
        words += ", and from then on unasked"
    if body.value is not None:
        value = body.value if isinstance(body.value, str) else json.dumps(body.value, ensure_ascii=False)
        words += f": {value}"
    return words + (f" ({body.note})" if body.note else "")


def spent(facts: Sequence[Fact]) -> str:
    """Say what a session cost so far, "" if nobody counted."""
    responses = [fact.body for fact in facts if isinstance(fact.body, ResponseEnded)]
    usage = sum((body.usage for body in responses if body.usage is not None), Usage())
    read, written = usage.total - (usage.output or 0), usage.output or 0
    if not usage.total:
        return ""
    cost = sum(body.cost or 0 for body in responses)
    cached = f" ({usage.cache_read:,} from a cache)" if usage.cache_read else ""
    return f"{read:,} tokens read{cached}, {written:,} written" + (f", {cost:.4f} USD" if cost else "")


def models(facts: Sequence[Fact]) -> str:
    """Name the models that answered, in order of their first answer."""
    return ", ".join(dict.fromkeys(fact.body.model for fact in facts if isinstance(fact.body, TurnStarted)))


def moment(at_ms: int) -> str:
    """Return a time as a person here reads it."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M}"
