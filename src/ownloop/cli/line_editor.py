"""The line editor of a terminal (prompt_toolkit), as the chat wants it. Used by `prompt`, and imported when it asks.

Enter sends. Alt-Enter makes a new line, and in what is said to the agent so does a backslash before Enter, as in a
shell; a pasted text keeps its lines. Escape sequences in it are shown, never obeyed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.application.current import create_app_session, get_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, DummyCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal

from ownloop.cli.prompt import Interrupted

ESCAPE_S = 0.1
"""How long a lone Escape is taken for the beginning of another key: longer than any terminal takes to send it whole."""
DEEPEST = 10
"""Columns that further lines are indented by at most: below a long question they begin near the edge."""


class LineEditor:
    """Reads lines with one history."""

    def __init__(
        self,
        *,
        history: History | None = None,
        commands: Iterable[str] = (),
        continues: bool = False,
        is_beside: bool = False,
        gives_up: bool = False,
    ) -> None:
        """Make an editor.

        `continues`: a backslash at the end goes on in a new line. `is_beside`: what is typed stands beside the work of
        an agent, so that Escape gives up, Ctrl-C does so at once, and a line that says nothing is taken away.
        `gives_up`: Escape does so here too, and what was typed stays on the screen.
        """
        self.history = history or InMemoryHistory()
        with create_app_session(get_app_session().input, _output()):
            self._session: PromptSession[str] = PromptSession(
                history=self.history,
                multiline=True,
                prompt_continuation=lambda columns, _line, wraps: "" if wraps else " " * min(columns, DEEPEST),
                key_bindings=_keys(continues, is_beside, gives_up or is_beside),
                completer=_Commands(tuple(sorted(commands))) if commands else DummyCompleter(),
                complete_while_typing=False,
                complete_style=CompleteStyle.READLINE_LIKE,
                enable_suspend=True,
            )
        if is_beside or gives_up:
            self._session.app.ttimeoutlen = ESCAPE_S
            self._session.app.timeoutlen = ESCAPE_S

    @property
    def input(self) -> Input:
        return self._session.app.input

    @property
    def output(self) -> Output:
        return self._session.app.output

    async def read(self, label: str, default: str = "") -> str:
        """Read a line, or several. Raises EOFError for Ctrl-D in an empty line, Interrupted for Ctrl-C."""
        self._session.app.erase_when_done = False
        style = "" if os.environ.get("NO_COLOR") else "bold"
        return await self._session.prompt_async(
            [(style, label)], default=default, handle_sigint=False, set_exception_handler=False
        )


def _output() -> Output:
    """Return what the editor draws on."""
    if is_dumb_terminal():
        return PlainTextOutput(sys.stdout)
    output = get_app_session().output
    if isinstance(output, Vt100_Output):
        # It would ask the terminal where the cursor is, which only menus need; some never answer.
        output.enable_cpr = False
    return output


class _Commands(Completer):
    """Completes the first word of a line that begins with a slash."""

    def __init__(self, commands: tuple[str, ...]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        typed = document.text_before_cursor
        return [
            Completion(command, -len(typed), display=f"{command} ")
            for command in self._commands
            if typed.startswith("/") and command.startswith(typed)
        ]


def _keys(continues: bool, is_beside: bool, gives_up: bool) -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if continues and _goes_on(buffer.document):
            buffer.document = Document(buffer.text[:-1] + "\n")
            return
        event.app.erase_when_done = is_beside and not buffer.text.strip()
        buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    @keys.add("escape", "c-j", filter=typing)  # what a terminal makes of Enter while nothing is asked
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=typing)
    def interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text and not is_beside:
            event.current_buffer.reset()
        else:
            event.app.erase_when_done = is_beside
            event.app.exit(exception=Interrupted())

    @keys.add("<vt100-mouse-event>", eager=True)
    def not_asked_for(event: KeyPressEvent) -> None:
        del event  # what only looks like one raises in the editor's own binding, and takes the next keys with it

    if gives_up:

        @keys.add("escape", filter=typing)
        def give_up(event: KeyPressEvent) -> None:
            event.app.erase_when_done = is_beside
            event.app.exit(result="")

    return keys


def _goes_on(document: Document) -> bool:
    """Whether the text ends in a backslash that no other one takes back."""
    text = document.text
    return document.is_cursor_at_the_end and (len(text) - len(text.rstrip("\\"))) % 2 == 1
