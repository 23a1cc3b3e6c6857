"""Reads what the person types: with editing and history on a terminal, plain lines from a pipe."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from ownloop.core.ports import Threads


class Interrupted(Exception):
    """Ctrl-C in an empty line."""


class Prompt(Protocol):
    has_person: bool
    """Whether somebody is there to decide. If not, what is read are messages and nothing else."""

    async def ask(self, label: str, default: str = "") -> str:
        """Read a message. Raises EOFError when nobody will write any more, Interrupted for Ctrl-C."""
        ...

    async def decide(self, label: str, default: str = "") -> str:
        """Read an answer to what is shown: nothing counts that was typed before it was shown. Raises as `ask` does."""
        ...


class TerminalPrompt:
    """A line editor (prompt_toolkit): arrows, pasted text, input methods, and a history of the messages."""

    has_person = True

    def __init__(self) -> None:
        self._messages = _line_editor()
        self._answers = _line_editor()

    async def ask(self, label: str, default: str = "") -> str:
        return await self._messages.prompt_async(label, default=default, handle_sigint=False)

    async def decide(self, label: str, default: str = "") -> str:
        from prompt_toolkit.input.typeahead import clear_typeahead

        clear_typeahead(self._answers.input)
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
        return await self._answers.prompt_async(label, default=default, handle_sigint=False)


def _line_editor() -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("c-c")
    def interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=Interrupted())

    return PromptSession(key_bindings=keys)


class LinePrompt:
    """Lines of a pipe or file. Says nothing by itself."""

    has_person = False

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._read = b""
        self._ended = sys.stdin is None  # it was closed by our caller

    async def ask(self, label: str, default: str = "") -> str:
        del label, default
        # Not `sys.stdin.readline`: a thread that waits in it would hold its lock when the program ends.
        while b"\n" not in self._read and not self._ended:
            more = await self._threads.run(os.read, 0, 65536)
            self._read += more
            self._ended = not more
        line, newline, self._read = self._read.partition(b"\n")
        if not line and not newline:
            raise EOFError
        return line.decode(errors="replace")

    async def decide(self, label: str, default: str = "") -> str:
        del label, default
        raise EOFError


def has_person() -> bool:
    """Whether somebody can be asked: both ends are a terminal."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stdout)


def _is_terminal(file: Any) -> bool:
    return file is not None and file.isatty()


@contextmanager
def quiet_keys() -> Generator[None]:
    """Do not show what is typed while nothing is asked; the next prompt shows it. Leaves the terminal as it was."""
    if not has_person():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        try:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        except termios.error:
            pass  # the terminal was closed
