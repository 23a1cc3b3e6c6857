"""Talk to `make run` in a pty, as the README says: an answer, a tool call that is approved, and /quit.

Usage: fresh_chat.py COMMAND…   Part of scripts/fresh.sh; standard library only, as it runs outside of the bare system.
What the command prints is passed on, so that a person can follow. It fails unless the model answers that the capital
of France is Paris, the tool asks and runs once approved, and the program ends with 0.
"""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

SETUP_LIMIT_S = 600.0
ANSWER_LIMIT_S = 120.0
ROWS, COLUMNS = 30, 100

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Za-z]|\x1b[=>78]")
CURSOR_QUERY = b"\x1b[6n"


class ChatError(Exception):
    """The chat did not do what was expected."""


class Terminal:
    def __init__(self, command: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)  # noqa: S606  # this is the child that becomes the command
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.raw = ""

    @property
    def text(self) -> str:
        """What came since the last line was entered, without what steers the terminal."""
        return ESCAPES.sub("", self.raw)

    def enter(self, line: str) -> None:
        self.raw = ""
        os.write(self.fd, line.encode() + b"\r")

    def read(self, wait_s: float) -> None:
        """Read what there is. Raises EOFError at the end."""
        ready, _, _ = select.select([self.fd], [], [], wait_s)
        if not ready:
            return
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:  # Linux reports the end of a pty as EIO
            raise EOFError from error
        if not data:
            raise EOFError
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if CURSOR_QUERY in data:  # a real terminal answers, and line editors wait for that
            os.write(self.fd, b"\x1b[%d;1R" % ROWS)
        self.raw += data.decode(errors="replace")

    def wait_for(self, pattern: str, limit_s: float) -> float:
        """Wait until `pattern` stands in the text; return how long it took."""
        began = time.monotonic()
        while not re.search(pattern, self.text, re.DOTALL):
            if time.monotonic() > began + limit_s:
                raise ChatError(f"{pattern!r} did not come within {limit_s:.0f} s")
            try:
                self.read(0.2)
            except EOFError:
                raise ChatError(f"the program ended before it showed {pattern!r}") from None
        return time.monotonic() - began

    def wait_for_end(self, limit_s: float) -> int:
        deadline = time.monotonic() + limit_s
        try:
            while time.monotonic() < deadline:
                self.read(0.2)
        except EOFError:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        raise ChatError(f"/quit did not end the program within {limit_s:.0f} s")


def talk(terminal: Terminal) -> str:
    """Have the conversation; return how long its parts took."""
    ready_s = terminal.wait_for("you ›", SETUP_LIMIT_S)
    terminal.enter("What is the capital of France?")
    # The line that was entered is shown again, so the answer stands between it and the next prompt.
    answer_s = terminal.wait_for("France\\?.*Paris.*you ›", ANSWER_LIMIT_S)
    terminal.enter("Set the temperature to 19 degrees.")
    call_s = terminal.wait_for("May set_temperature run\\?.*degrees = 19.*your answer ›", ANSWER_LIMIT_S)
    terminal.enter("a")
    terminal.wait_for("← The heating is set to 19 degrees.*you ›", ANSWER_LIMIT_S)
    terminal.enter("/quit")
    code = terminal.wait_for_end(30.0)
    if code != 0:
        raise ChatError(f"/quit ended the program with exit code {code}")
    return f"prompt after {ready_s:.1f} s, answer after {answer_s:.1f} s, tool call after {call_s:.1f} s"


def main() -> None:
    try:
        took = talk(Terminal(sys.argv[1:]))
    except ChatError as error:
        raise SystemExit(f"\nfresh: {error}") from error
    print(f"\nfresh: {took}")


main()
