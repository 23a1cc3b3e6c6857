"""What a person is asked, on the terminal: the look that approvals and questions share. Used by `ask`.

Invariant: whatever came from a model is indented and shown with everything that is in it, so that it can neither look
like words of ours nor hide anything.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from ownloop.cli.harmless import harmless, revealed
from ownloop.cli.output import Output
from ownloop.cli.prompt import Prompt
from ownloop.core.messages import Json
from ownloop.core.operations import Asked
from ownloop.errors import InvalidRequestError

NOTHING: Mapping[str, str] = MappingProxyType({})
LEAVE = "[l]eave it open"


class RequestCard(ABC):
    """One request on the terminal."""

    def __init__(self, output: Output, prompt: Prompt, request: Asked) -> None:
        self.out = output
        self.prompt = prompt
        self.request = request
        self.data = cast("Json", request.data) if isinstance(request.data, dict) else {}

    @abstractmethod
    def show(self, where: str) -> None:
        """Show what is asked; `where` counts the requests if there are several."""

    @abstractmethod
    async def answer(self) -> Json:
        """Read an answer. Raises EOFError when the person leaves, Interrupted for Ctrl-C."""

    def refused(self, error: InvalidRequestError) -> str:
        """Return why the answer was not taken, in the words of what was typed."""
        return str(error).partition(" does not fit: ")[2] or str(error)

    def head(self, text: str, where: str) -> None:
        """Show the question itself, which may have further lines."""
        self.out.line(self.out.style("33;1", "? ") + self.out.bold(indented(text, "  ") + where))

    def say(self, text: str) -> None:
        """Say something about it."""
        self.out.prose(harmless(text), "  ")

    def values(self, values: Any) -> None:
        """Show a value that a model proposed, as a person writes lists."""
        for line in readable(values):
            self.out.line("    " + indented(revealed(line), "      "))

    async def choose(self, *options: str, hint: str = "", explained: Mapping[str, str] = NOTHING, **others: str) -> str:
        """Offer options and return the letter in brackets of the one that was chosen; `others` are words for them.

        `explained` says for `/help` what each letter does. Raises EOFError for who leaves it open.
        """
        self.out.prose("   ".join(option.replace(" ", "\u00a0") for option in options), "  ")
        if hint:
            self.out.prose(hint, "  ")
        letters = {option[option.index("[") + 1]: option for option in options}
        words = {option.replace("[", "").replace("]", "").split()[0]: letter for letter, option in letters.items()}
        words |= others
        while True:
            word = (await self.prompt.decide("  your answer › ")).strip().lower()
            if LEAVE in options and word in ("/quit", "/leave"):
                raise EOFError
            if explained and word == "/help":
                for option, words_of_it in explained.items():
                    self.out.prose(f"{option}  {words_of_it}", "  ")
                continue
            letter = word if word in letters else words.get(word, "")
            if letters.get(letter) == LEAVE:
                raise EOFError
            if letter:
                return letter
            self.out.prose(f"Type one of {', '.join(letters)}.", "  ")


def indented(text: str, indent: str) -> str:
    return text.replace("\n", "\n" + indent)


def pretty(value: Any) -> str:
    """Return JSON on one line, as a person writes it."""
    return json.dumps(value, ensure_ascii=False)


def readable(value: Any) -> list[str]:
    """Return lines that show a value as a person writes lists."""
    if value is None or value == {} or value == []:
        return []
    if isinstance(value, dict):
        return [line for name, inner in cast("Json", value).items() for line in _item(f"{name} =", f"{name}:", inner)]
    if isinstance(value, list):
        return [line for inner in cast("list[Any]", value) for line in _item("-", "-", inner)]
    return [_plain(value)]


def _item(before: str, above: str, value: Any) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [above, *("  " + line for line in readable(value))]
    return [f"{before} {_plain(value)}"]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else pretty(value)
