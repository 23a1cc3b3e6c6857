"""A real pseudo-terminal with a program in it, and eyes: what it wrote is drawn on a screen, which tests read."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pexpect
import pyte

OWNLOOP = [sys.executable, "-m", "ownloop"]
LIMIT_S = 40.0
"""After which what is waited for will not come; a busy machine needs a few."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment whose sessions are below `folder`, and which is else like ours."""
    ours = {"OWNLOOP_STORE", "NO_COLOR", "COLUMNS", "LINES", "VISUAL", "EDITOR"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    # The commands that it prints are to be those of an installation.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **kept,
        "PATH": path,
        "XDG_DATA_HOME": str(folder / "data"),
        "TERM": "xterm-256color",
        "PYTHONUTF8": "1",
        **more,
    }


class Terminal:
    """`ownloop ARGUMENTS` in a terminal. As a context manager it kills what is left."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        program: Sequence[str] = OWNLOOP,
        columns: int = 80,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, 50, history=2000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self._prompts: dict[str, int] = {}
        command = [*program, *arguments]
        self.child = pexpect.spawn(
            command[0],
            command[1:],
            cwd=str(folder),
            env=environment(folder, **(env or {})),
            dimensions=(50, columns),
        )
        self.child.delaybeforesend = None
        # The program asks where the cursor is, as line editors do; terminals answer.
        self.screen.write_process_input = self.press

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note("\n| ".join(["the terminal showed:", *self.lines]))
        self.child.close(force=True)

    @property
    def lines(self) -> list[str]:
        """All lines that were ever shown, without the empty ones at the end."""
        above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        lines = [line.rstrip() for line in [*above, *self.screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, text: str, limit_s: float = LIMIT_S) -> None:
        """Read on until `text` stands on the screen."""
        deadline = time.monotonic() + limit_s
        while text not in self.text:
            self._read(deadline, f"{text!r} never came")

    def prompt(self, label: str = "you ›", limit_s: float = LIMIT_S) -> None:
        """Read on until the program asks with `label`, once more than when this was last called."""
        deadline = time.monotonic() + limit_s
        while True:
            asked = sum(line.strip().startswith(label) for line in self.lines)
            here = self.screen.display[self.screen.cursor.y].strip()
            if asked > self._prompts.get(label, 0) and here.startswith(label):
                self._prompts[label] = asked
                return
            self._read(deadline, f"the prompt {label!r} never came")

    def enter(self, text: str) -> None:
        self.child.send(text + "\r")

    def press(self, data: str) -> None:
        self.child.send(data)

    def paste(self, text: str) -> None:
        """Paste text, as a terminal does for a program that asked for it to be marked."""
        assert b"\x1b[?2004h" in self.raw
        self.child.send(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int) -> None:
        """Change the width of the window."""
        self.screen.resize(columns=columns)
        self.child.setwinsize(50, columns)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.child.send("\x03")

    def kill(self) -> None:
        """kill -9."""
        self.child.kill(signal.SIGKILL)
        assert self.end() == -signal.SIGKILL

    def close_window(self) -> int:
        """Close the window that the program runs in; return its exit code."""
        process: Any = self.child.ptyproc  # pyright: ignore[reportAttributeAccessIssue]
        process.fileobj.close()
        process.wait()
        self.child.closed = process.closed = True
        return process.exitstatus

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Read on until the program has ended; return its exit code, negative for a signal."""
        deadline = time.monotonic() + limit_s
        while self._read(deadline, "it did not end", at_end=True):
            pass
        self.child.wait()
        return self.child.exitstatus if self.child.exitstatus is not None else -(self.child.signalstatus or 0)

    def _read(self, deadline: float, problem: str, *, at_end: bool = False) -> bool:
        try:
            data = self.child.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            assert time.monotonic() < deadline, f"{problem}; the terminal shows:\n{self.text}"
            return True
        except pexpect.EOF:
            assert at_end, f"{problem}, and the program has ended; the terminal shows:\n{self.text}"
            return False
        self.raw += data
        self._stream.feed(data)
        return True
