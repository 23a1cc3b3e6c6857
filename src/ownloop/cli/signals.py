"""Ctrl-C, SIGTERM and a terminal that is closed, for the length of one command.

Invariant: what ends the program ends it through its main task, so that the store is closed properly.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Signals:
    """Cancels the task that made it, once a signal says to end. Make it with `handled`."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._interrupt: Callable[[], None] | None = None
        self.exit_code: int | None = None
        """That of the program, once it was told to end."""

    def end(self, exit_code: int) -> None:
        """End the program. Asked a second time, it ends at once: what is durable is so at any moment."""
        if self.exit_code is not None:
            os._exit(self.exit_code)
        self.exit_code = exit_code
        self._task.cancel()

    def on_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGINT and self._interrupt is not None and self.exit_code is None:
            self._interrupt()
        else:
            self.end(128 + number)

    @contextmanager
    def interrupts_go_to(self, interrupt: Callable[[], None]) -> Generator[None]:
        """Call `interrupt` for Ctrl-C, instead of ending the program, while the context is open."""
        before, self._interrupt = self._interrupt, interrupt
        try:
            yield
        finally:
            self._interrupt = before


@contextmanager
def handled() -> Generator[Signals]:
    """Handle the signals that end programs while the context is open."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    signals = Signals(task)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, signals.on_signal, number)
    try:
        yield signals
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
