"""Reads what the person types: with editing and history on a terminal, plain lines from a pipe."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from ownloop.core.ports import Threads


class TerminalPrompt:
    """A line editor (prompt_toolkit): arrows, history, pasted text, input methods."""

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(erase_when_done=False)

    async def ask(self, label: str, default: str = "") -> str:
        return await self._session.prompt_async(label, default=default)


class LinePrompt:
    """Lines of a pipe or file. Says nothing by itself; ends with EOFError."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def ask(self, label: str, default: str = "") -> str:
        del label
        line = await self._threads.run(sys.stdin.readline)
        if not line:
            raise EOFError
        return line.rstrip("\n") or default


def has_person() -> bool:
    """Whether somebody can be asked: both ends are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def never() -> None:
    """Wait for ever; for `asyncio.wait` beside something that ends."""
    await asyncio.get_running_loop().create_future()
