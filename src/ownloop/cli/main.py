"""The command line: calls one module per command, turns errors into words and exit codes."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence

from ownloop.cli.commands import read
from ownloop.cli.harmless import harmless
from ownloop.cli.pipes import forgive_closed_pipes
from ownloop.cli.signals import Signals, handled
from ownloop.errors import ConfigError, InvalidRequestError, NotFoundError, OwnloopError

TERMINAL_CLOSED = 128 + signal.SIGHUP
"""The exit code of a program whose terminal went away."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    forgive_closed_pipes()
    args = read(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, stream=sys.stderr)
    try:
        if args.command == "run" and args.message == "-":
            args.message = _standard_input()
        code = asyncio.run(_command(args))
    except (ConfigError, NotFoundError, InvalidRequestError) as error:
        print(f"ownloop: {harmless(str(error))}", file=sys.stderr)
        return 2
    except OwnloopError as error:
        print(f"ownloop: {harmless(str(error))} ({error.code})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        code = _what_cannot_be_written(error)
    if code == TERMINAL_CLOSED:
        _silence(1, 2)
    return code


def _what_cannot_be_written(error: OSError) -> int:
    """Return the exit code if it is our output that failed; raise what is another failure."""
    if error.errno == errno.EIO:
        return TERMINAL_CLOSED
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise error
    _silence(1)
    print(f"ownloop: the output cannot be written: {error.strerror}", file=sys.stderr)
    return 1


def _silence(*streams: int) -> None:
    """Write nothing more, also not when Python ends: what is left in its buffers would fail then."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(nowhere, stream)


def _standard_input() -> str:
    if sys.stdin is None:  # so it is if our caller closed it
        return ""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8 text (byte {error.start})") from error


async def _command(args: argparse.Namespace) -> int:
    with handled() as signals:
        try:
            return await _called(args, signals)
        except asyncio.CancelledError:
            if signals.exit_code is None:
                raise
            return signals.exit_code


async def _called(args: argparse.Namespace, signals: Signals) -> int:
    # Each command's module is imported when it is called for: `--help` needs none of them.
    match args.command:
        case "chat":
            from ownloop.cli.chat import chat

            return await chat(args.file, session_id=args.session, new=args.new, store=args.store, signals=signals)
        case "run":
            from ownloop.cli.run import run

            return await run(
                args.file,
                args.message,
                session_id=args.session,
                store=args.store,
                as_json=args.json,
                signals=signals,
            )
        case "models":
            from ownloop.cli.models import show_models

            return await show_models(as_json=args.json)
        case _:
            return await _of_sessions(args, signals)


async def _of_sessions(args: argparse.Namespace, signals: Signals) -> int:
    from ownloop.cli import sessions

    match args.command:
        case "sessions list":
            return await sessions.list_sessions(agent=args.agent, limit=args.limit, store=args.store, as_json=args.json)
        case "sessions show":
            return await sessions.show_session(args.id, store=args.store, as_json=args.json)
        case "sessions answer":
            return await sessions.answer_request(
                args.id, args.answer, request_id=args.request, note=args.note, store=args.store, as_json=args.json
            )
        case _:
            return await sessions.resume(args.id, args.file, store=args.store, signals=signals)
