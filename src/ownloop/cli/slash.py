"""Commands of the chat: a line that begins with `/`. Pure; `chat` does them.

`//` begins a message that begins with a slash.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Slash:
    """A command as it was typed."""

    name: str
    rest: str


COMMANDS: Final = {
    "/new": ("", "begin a new session"),
    "/sessions": ("[N]", "list the newest sessions; with a number or an id, go to one"),
    "/session": ("", "say which session this is, and where it is kept"),
    "/cost": ("", "say what the session and its last run took"),
    "/model": ("[MODEL]", "say which model answers; take another one for this session"),
    "/help": ("", "this text"),
    "/quit": ("", "leave (Ctrl-D too); the session is kept"),
}
ALIASES: Final = {"/exit": "/quit", "/q": "/quit", "/?": "/help", "/": "/help"}


def is_command(text: str) -> bool:
    """Whether a line is a command, and no message."""
    text = text.lstrip()
    return text.startswith("/") and not text.startswith("//")


def message_of(text: str) -> str:
    """Return the message that a line is: without the space around it, and without the slash that shields another."""
    text = text.strip()
    return text[1:] if text.startswith("//") else text


def parse(text: str) -> Slash:
    """Return the command that a line is; its name may be none that there is."""
    name, _, rest = text.strip().partition(" ")
    return Slash(ALIASES.get(name.lower(), name.lower()), rest.strip())


def nearest(name: str) -> str | None:
    """Return the command that was probably meant."""
    begun = [command for command in COMMANDS if command.startswith(name)]
    near = begun or difflib.get_close_matches(name, COMMANDS, n=1)
    return near[0] if near else None
