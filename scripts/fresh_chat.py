"""Start a chat in a pty, send one message, wait for the answer, leave with /quit; fail if any of it does not happen.

Usage: fresh_chat.py COMMAND…   Part of scripts/fresh.sh; standard library only, as it runs outside of the bare system.
What the command prints is passed on, so that a person can follow. The answer's words are the model's own business:
there must be some, and the chat must come back to its prompt.
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

PROMPT = os.environ.get("FRESH_PROMPT", r"(?m)^[^\n]{0,20}[>›❯»]\s*$")
"""A line that looks like this shows that the chat waits for a person; a toolbar may follow it."""
MESSAGE = os.environ.get("FRESH_MESSAGE", "Turn on the lamp in the kitchen.")
SETUP_LIMIT_S = 600.0
ANSWER_LIMIT_S = 120.0
QUIET_S = 2.0
"""A prompt counts once nothing more has come for so long: terminals redraw it many times."""

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Za-z]|\x1b[=>78]|\r")
CURSOR_QUERY = b"\x1b[6n"


class ChatError(Exception):
    """The chat did not do what was expected."""


class Terminal:
    def __init__(self, command: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)  # noqa: S606  # this is the child that becomes the command
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.text = ""

    def send(self, line: str) -> None:
        self.text = ""
        os.write(self.fd, line.encode() + b"\r")

    def read(self, wait_s: float) -> bool:
        """Read what there is; return whether anything came. Raises EOFError at the end."""
        ready, _, _ = select.select([self.fd], [], [], wait_s)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:  # Linux reports the end of a pty as EIO
            raise EOFError from error
        if not data:
            raise EOFError
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if CURSOR_QUERY in data:  # a real terminal answers, and prompts wait for that
            os.write(self.fd, b"\x1b[1;1R")
        self.text += ESCAPES.sub("", data.decode(errors="replace"))
        return True

    def wait_for_prompt(self, limit_s: float, answered: bool) -> float:
        """Wait until the prompt stands still, after an answer if one is due; return how long it took."""
        began = last = time.monotonic()
        while time.monotonic() < began + limit_s:
            try:
                came = self.read(0.2)
            except EOFError:
                raise ChatError("the program ended before it showed its prompt") from None
            now = time.monotonic()
            last = now if came else last
            if now - last >= QUIET_S and re.search(PROMPT, self.text) and (not answered or self.answer()):
                return last - began
        raise ChatError(f"no {'answer' if answered else 'prompt'} within {limit_s:.0f} s")

    def answer(self) -> str:
        """Return the words since the message was sent, without its echo and the prompt."""
        body = re.sub(PROMPT, "", self.text).replace(MESSAGE, "")
        return " ".join(re.findall(r"\w{2,}", body))

    def wait_for_end(self, limit_s: float) -> int:
        deadline = time.monotonic() + limit_s
        try:
            while time.monotonic() < deadline:
                self.read(0.2)
        except EOFError:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        raise ChatError(f"/quit did not end the program within {limit_s:.0f} s")


def main() -> None:
    terminal = Terminal(sys.argv[1:])
    try:
        ready_s = terminal.wait_for_prompt(SETUP_LIMIT_S, answered=False)
        terminal.send(MESSAGE)
        answer_s = terminal.wait_for_prompt(ANSWER_LIMIT_S, answered=True)
        terminal.send("/quit")
        code = terminal.wait_for_end(30.0)
        if code != 0:
            raise ChatError(f"/quit ended the program with exit code {code}")
    except ChatError as error:
        raise SystemExit(f"\nfresh: {error}") from error
    print(f"\nfresh: prompt after {ready_s:.1f} s, answer after {answer_s:.1f} s")


main()
