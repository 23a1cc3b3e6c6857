"""Reads what the person types: with editing and history on a terminal, plain lines from a pipe."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import termios
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPress

    from ownloop.core.ports import Threads


KEYS_AT_ONCE = termios.ECHO | termios.ICANON | termios.IEXTEN
"""What is off while keys are read as they are pressed."""


class Interrupted(Exception):
    """Ctrl-C in an empty line; in a steer's, also when something stands in it."""


class Prompt(Protocol):
    has_person: bool
    """Whether somebody is there to decide. If not, what is read are messages and nothing else."""

    async def ask(self, label: str, default: str = "") -> str:
        """Read a message. Raises EOFError when nobody will write any more, Interrupted for Ctrl-C."""
        ...

    async def decide(self, label: str, default: str = "") -> str:
        """Read an answer to what is shown: nothing counts that was typed before it was shown. Raises as `ask` does."""
        ...

    async def typed(self) -> None:
        """Return when the person begins to type while nothing is asked; what they typed is kept for `steer`."""
        ...

    def is_typing(self) -> bool:
        """Whether the person has begun to type while nothing is asked, as of now; kept as by `typed`."""
        ...

    async def edit(self, label: str, text: str) -> str:
        """Let a text be changed, as `decide` does; "" for Esc, and for Ctrl-C in an empty line."""
        ...

    async def steer(self, label: str, default: str = "") -> str:
        """Read what is said into a run; a line that says nothing is taken away. "" for Esc. Raises as `ask` does."""
        ...

    def lent(self) -> AbstractContextManager[object]:
        """Leave the terminal to another program while the context is open."""
        ...


class TerminalPrompt:
    """A line editor: arrows, pasted text, input methods, several lines, and a history of the messages."""

    has_person = True

    def __init__(self, commands: Iterable[str] = ()) -> None:
        """`commands` are completed by Tab in messages."""
        from ownloop.cli.line_editor import LineEditor

        self._messages = LineEditor(commands=tuple(commands), continues=True)
        self._answers = LineEditor()
        self._texts = LineEditor(gives_up=True)
        self._steers = LineEditor(history=self._messages.history, continues=True, is_beside=True)

    async def ask(self, label: str, default: str = "") -> str:
        return await self._messages.read(label, default)

    async def decide(self, label: str, default: str = "") -> str:
        self._forget_what_was_typed(self._answers.input)
        return await self._answers.read(label, default)

    def _forget_what_was_typed(self, input: Input) -> None:
        from prompt_toolkit.input.typeahead import clear_typeahead

        # It is read and thrown away, not flushed: of a paste that is still coming the rest must stay one.
        with _mode(off=KEYS_AT_ONCE):
            while _waiting(input.fileno()):
                input.read_keys()
        input.flush_keys()
        clear_typeahead(input)

    async def typed(self) -> None:
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead

        input, output = self._steers.input, self._steers.output
        begun = asyncio.get_running_loop().create_future()
        # Enter behind the last message may have brought more with it.
        early = get_typeahead(input)

        def keep(keys: list[KeyPress]) -> None:
            if begun.done():
                store_typeahead(input, keys)
            elif typed := _from_first_sign(keys):
                store_typeahead(input, typed)
                begun.set_result(None)

        def mark_pastes() -> None:
            output.enable_bracketed_paste()
            output.flush()

        keep(early)
        with _keys_at_once(again=mark_pastes), input.attach(lambda: keep(input.read_keys())):
            mark_pastes()
            try:
                await begun
            finally:
                output.disable_bracketed_paste()
                output.flush()

    def is_typing(self) -> bool:
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead

        input = self._steers.input
        keys = get_typeahead(input)
        with _mode(off=KEYS_AT_ONCE):
            while _waiting(input.fileno()):
                keys += input.read_keys()
        typed = _from_first_sign(keys)
        store_typeahead(input, typed)
        return bool(typed)

    async def edit(self, label: str, text: str) -> str:
        self._forget_what_was_typed(self._texts.input)
        try:
            return await self._texts.read(label, text)
        except Interrupted:
            return ""

    async def steer(self, label: str, default: str = "") -> str:
        return await self._steers.read(label, default)

    def lent(self) -> AbstractContextManager[object]:
        return _mode(on=termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)


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

    async def typed(self) -> None:
        await asyncio.get_running_loop().create_future()  # each line is a message of its own

    def is_typing(self) -> bool:
        return False

    async def edit(self, label: str, text: str) -> str:
        del label, text
        raise EOFError

    async def steer(self, label: str, default: str = "") -> str:
        del label, default
        raise EOFError

    def lent(self) -> AbstractContextManager[object]:
        return nullcontext()


def has_person() -> bool:
    """Whether somebody can be asked: both ends are a terminal."""
    return _is_terminal(sys.stdin) and _is_terminal(sys.stdout)


def _is_terminal(file: Any) -> bool:
    return file is not None and file.isatty()


def _waiting(fd: int) -> int:
    """Return how many bytes wait to be read; none if the terminal was closed."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _from_first_sign(keys: list[KeyPress]) -> list[KeyPress]:
    """Return the keys from the first that writes something: arrows, Enter and answers of the terminal are nothing."""
    for place, press in enumerate(keys):
        if (len(press.key) == 1 and press.key.isprintable()) or press.key == "<bracketed-paste>":
            return keys[place:]
    return []


@contextmanager
def quiet_keys() -> Generator[None]:
    """Do not show what is typed while nothing is asked; the next prompt shows it. Leaves the terminal as it was."""
    if not has_person():
        yield
        return
    with _mode(off=termios.ECHO):
        yield


@contextmanager
def _keys_at_once(again: Callable[[], None]) -> Generator[None]:
    """Let keys be read when they are pressed, as they are, not when their line is complete; Ctrl-C stays a signal.

    After Ctrl-Z and `fg` the terminal is as the shell wants it: then it is changed once more, and `again` called.
    """
    loop = asyncio.get_running_loop()
    with _mode(off=KEYS_AT_ONCE, input_off=termios.ICRNL) as change:

        def resume() -> None:
            change()
            again()

        loop.add_signal_handler(signal.SIGCONT, resume)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGCONT)


@contextmanager
def _mode(*, on: int = 0, off: int = 0, input_off: int = 0) -> Generator[Callable[[], None]]:
    """Change flags of the terminal while the context is open: local ones, and those of its input.

    Yields what changes them once more.
    """
    try:
        before = termios.tcgetattr(sys.stdin)
    except termios.error:  # the terminal was closed
        yield lambda: None
        return
    input, output, control, local, *rest = before
    changed = [input & ~input_off, output, control, (local | on) & ~off, *rest]
    if changed == before:  # to set it would stop a program in the background
        yield lambda: _set(changed)
        return
    _set(changed)
    try:
        yield lambda: _set(changed)
    finally:
        _set(before)


def _set(attributes: list[Any]) -> None:
    with suppress(termios.error):  # the terminal was closed
        termios.tcsetattr(sys.stdin, termios.TCSANOW, attributes)
