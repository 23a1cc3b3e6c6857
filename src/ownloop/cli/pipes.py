"""Our ends of pipes: a reader that leaves is no reason to stop, and what others print is kept apart from our lines."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Forgiving(io.FileIO):
    """Drops what nobody reads any more. The run goes on: who leaves a pipe has cancelled nothing."""

    def write(self, data: Buffer, /) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def forgive_closed_pipes() -> None:
    """Let what this process writes to stdout and stderr be dropped once its reader has gone.

    A sign that they cannot show is a `?` from now on.
    """
    _fill_standard_streams()
    sys.stdout, sys.stderr = _forgiving(sys.stdout), _forgiving(sys.stderr)


def _fill_standard_streams() -> None:
    """Open what our caller closed, to nowhere: the next file or socket would take its number, and get what C code and
    child processes print.
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number < 3:
        os.set_inheritable(number, True)
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def _forgiving(file: TextIO) -> TextIO:
    if file is None:  # pyright: ignore[reportUnnecessaryComparison] - so it is if our caller closed it
        return file
    file.flush()
    raw = _Forgiving(file.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=file.encoding, errors="replace", line_buffering=True)


@contextmanager
def own_stdout() -> Generator[TextIO]:
    """Yield stdout for us alone: what tools, their child processes and the agent's file print goes to stderr."""
    if sys.stdout is None:  # so it is if our caller closed it
        yield io.TextIOWrapper(io.BytesIO())
        return
    sys.stdout.flush()
    ours = os.dup(1)
    elsewhere = os.dup(2) if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY)
    os.dup2(elsewhere, 1)
    os.close(elsewhere)
    encoding = sys.stdout.encoding
    with io.TextIOWrapper(io.BufferedWriter(_Forgiving(ours, "w")), encoding, "replace") as file:
        try:
            yield file
        finally:
            sys.stdout.flush()
            os.dup2(ours, 1)
