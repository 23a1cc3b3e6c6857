"""The command line: parses, calls one module per command, turns errors into words and exit codes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from ownloop._version import __version__
from ownloop.errors import ConfigError, NotFoundError, OwnloopError

EPILOG = """\
exit codes of run: 0 answered, 1 failed, 2 wrong use, 3 waits for a person, 4 a limit was reached, 130 cancelled

environment:
  OWNLOOP_STORE   where sessions are kept: a file, or "memory" (default: a file in your data folder)
  OPENAI_API_KEY  the key for model="openai:…"
  NO_COLOR        no colours
"""
FILE_HELP = "a Python file with an agent in it (agents.py, agents.py:support), or a module (my.agents:support)"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="ownloop",
        description="Run agents whose loop you own: durable, streaming, with a person in the loop.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"ownloop {__version__}")
    top.add_argument("--verbose", action="store_true", help="show the log")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    chat = commands.add_parser(
        "chat",
        help="talk to an agent in the terminal",
        description="Talk to an agent. What it wants to do with an asking tool, you approve, edit or deny. Kill it at any "
        "moment and start it again: it goes on where it was.",
        epilog="example: ownloop chat examples/home.py",
    )
    chat.add_argument("file", metavar="FILE", help=FILE_HELP)
    which = chat.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="go on with this session")
    which.add_argument("--new", action="store_true", help="a new session, even if the last one waits for you")
    chat.add_argument("--store", metavar="PATH", help="keep sessions in this file")

    run = commands.add_parser(
        "run",
        help="send one message and show the answer",
        description="Send one message, show the answer as it comes, and exit.",
        epilog='example: ownloop run examples/home.py "What is the weather in Paris?"',
    )
    run.add_argument("file", metavar="FILE", help=FILE_HELP)
    run.add_argument("message", help='what to say; "-" reads it from standard input')
    run.add_argument("--session", metavar="ID", help="say it in this session")
    run.add_argument("--store", metavar="PATH", help="keep sessions in this file")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, stream=sys.stderr)
    try:
        return asyncio.run(_command(args))
    except (ConfigError, NotFoundError) as error:
        print(f"ownloop: {error}", file=sys.stderr)
        return 2
    except OwnloopError as error:
        print(f"ownloop: {error} ({error.code})", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except BrokenPipeError:
        # Whoever read us is gone; do not complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def _command(args: argparse.Namespace) -> int:
    # Each command's module is imported when it is called for: `--help` needs none of them.
    if args.command == "chat":
        from ownloop.cli.chat import chat

        return await chat(args.file, session_id=args.session, new=args.new, store=args.store)
    from ownloop.cli.run import run

    message = sys.stdin.read() if args.message == "-" else args.message
    return await run(args.file, message, session_id=args.session, store=args.store)
