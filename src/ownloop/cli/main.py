"""The command line: parses, calls one module per command, turns errors into words and exit codes."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from ownloop._version import __version__
from ownloop.cli.signals import handled
from ownloop.errors import ConfigError, InvalidRequestError, NotFoundError, OwnloopError

EPILOG = """\
start here:
  ownloop chat agents.py
  ownloop run agents.py "What is the weather in Paris?"

environment:
  OWNLOOP_STORE   where sessions are kept: a file, or "memory" (default: a file in your data folder)
  OWNLOOP_CACHE   where the local model is kept (default: your cache folder)
  OPENAI_API_KEY  the key for model="openai:…"
  NO_COLOR        no colours

`ownloop COMMAND --help` says more.
"""
CHAT_EPILOG = """\
examples:
  ownloop chat agents.py                   go on with the last session if something in it waits, else a new one
  ownloop chat agents.py:support --new     a new session of the agent named `support` in the file
  ownloop chat agents.py --session sess_…  go on with this one

In a pipe each line is a message of a new session (or of --session); a pipe never answers approvals: the command then
ends with code 3 and says what waits.

exit codes: 0 left, 1 failed, 2 wrong use, 3 something was left open, 130 left by Ctrl-C
"""
RUN_EPILOG = """\
examples:
  ownloop run agents.py "Where is order A1?"
  ownloop run agents.py - <question.txt >answer.txt

The answer goes to stdout; tool calls, progress and errors go to stderr, unless stdout is a terminal. In a terminal
you are asked what a tool asks; else the command ends with code 3 and says how to go on.

exit codes: 0 answered, 1 failed, 2 wrong use, 3 waits for a person, 4 a limit was reached, 130 cancelled
"""
FILE_HELP = "a Python file with an agent in it (agents.py, agents.py:support), or a module (my.agents:support)"
STORE_HELP = "keep sessions in this file instead"
VERBOSE_HELP = "write the log to stderr"


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="ownloop",
        description="Run agents whose loop you own: durable, streaming, with a person in the loop.",
        epilog=EPILOG,
    )
    top.add_argument("--version", action="version", version=f"ownloop {__version__}")
    top.add_argument("--verbose", action="store_true", help=VERBOSE_HELP)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    chat = commands.add_parser(
        "chat",
        help="talk to an agent in the terminal",
        description="Talk to an agent. What a tool that asks wants to do, you approve, edit or deny. Kill it at any "
        "moment and start it again: it goes on where it was.",
        epilog=CHAT_EPILOG,
    )
    chat.add_argument("file", metavar="FILE", help=FILE_HELP)
    which = chat.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="go on with this session")
    which.add_argument("--new", action="store_true", help="a new session, even if the last one waits for you")
    chat.add_argument("--store", metavar="PATH", help=STORE_HELP)
    # Without a default: it would undo what stands before the command.
    chat.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=VERBOSE_HELP)

    run = commands.add_parser(
        "run",
        help="send one message and show the answer",
        description="Send one message, show the answer as it comes, and exit.",
        epilog=RUN_EPILOG,
    )
    run.add_argument("file", metavar="FILE", help=FILE_HELP)
    run.add_argument("message", metavar="MESSAGE", help='what to say; "-" reads it from standard input')
    run.add_argument("--session", metavar="ID", help="say it in this session")
    run.add_argument("--store", metavar="PATH", help=STORE_HELP)
    run.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=VERBOSE_HELP)
    return top


TERMINAL_CLOSED = 128 + signal.SIGHUP
"""The exit code of a program whose terminal went away."""


class _Parser(argparse.ArgumentParser):
    """Keeps the lines of its texts, and takes no abbreviations: what they mean would change with new options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign shows `?`
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, stream=sys.stderr)
    try:
        if args.command == "run" and args.message == "-":
            args.message = _standard_input()
        code = asyncio.run(_command(args))
    except (ConfigError, NotFoundError, InvalidRequestError) as error:
        print(f"ownloop: {error}", file=sys.stderr)
        return 2
    except OwnloopError as error:
        print(f"ownloop: {error} ({error.code})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        if error.errno == errno.EPIPE:  # whoever read our answer is gone
            _silence(1)
            return 1
        code = TERMINAL_CLOSED
    if code == TERMINAL_CLOSED:
        _silence(1, 2)
    return code


def _silence(*streams: int) -> None:
    """Write nothing more, also not when Python ends: what is left in its buffers would fail then."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(nowhere, stream)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8 text (byte {error.start})") from error


async def _command(args: argparse.Namespace) -> int:
    with handled() as signals:
        try:
            # Each command's module is imported when it is called for: `--help` needs none of them.
            if args.command == "chat":
                from ownloop.cli.chat import chat

                return await chat(args.file, session_id=args.session, new=args.new, store=args.store, signals=signals)
            from ownloop.cli.run import run

            return await run(args.file, args.message, session_id=args.session, store=args.store, signals=signals)
        except asyncio.CancelledError:
            if signals.exit_code is None:
                raise
            return signals.exit_code
