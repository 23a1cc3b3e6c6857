"""The commands and their options, and what `--help` says of them. Imports none of the commands."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from ownloop._version import __version__
from ownloop.cli.columns import GAP, filled, width, wrapped
from ownloop.cli.harmless import harmless

TOP = """\
start here:
  ownloop chat agents.py                  talk to the agent in that file
  ownloop run agents.py "Where is A1?"    one answer, for scripts too
  ownloop models                          which models work here, and what others need

environment:
  OWNLOOP_STORE   where sessions are kept: a file, or "memory" (default: a file in your data folder)
  OWNLOOP_CACHE   where the local model is kept (default: your cache folder)
  NO_COLOR        no colours

Keys of models: ownloop models. More about a command: ownloop COMMAND --help
"""
CHAT = """\
examples:
  ownloop chat agents.py                   go on with the last session if something in it waits, else a new one
  ownloop chat agents.py:support --new     a new session of the agent `support` in the file
  ownloop chat agents.py --session sess_…  go on with this one

Enter sends, Alt-Enter makes a new line. What you type while the agent works is said into its run; Ctrl-C cancels it.
/help lists what else there is: /sessions, /cost, /model …

In a pipe each line is a message of a new session (or of --session); a pipe never answers approvals: the command then
ends with code 3 and says what waits.

exit codes: 0 left, 1 failed, 2 wrong use, 3 something was left open, 130 ended by Ctrl-C while something ran
"""
RUN = """\
examples:
  ownloop run agents.py "Where is order A1?"
  ownloop run agents.py - <question.txt >answer.txt
  ownloop run agents.py "Refund A1." --json | tail -1 | jq -r .result
  ownloop run agents.py --session sess_…            go on with what is unfinished in it

The answer goes to stdout; tool calls, progress and errors go to stderr, unless stdout is a terminal. In a terminal
you are asked what a tool asks; else the command ends with code 3 and says how to go on. Whoever reads the answer may
leave early: the run goes on to its end.

with --json:
Each line of stdout is one JSON object. The first is {"kind": "accepted", "session_id", "input_id", "run_id"}. Then come
the events of the session as they happen, each with its "cursor": "delta" is a piece of text, "tool_started" and
"tool_ended" a call, "interaction_requested" what a person is asked. The last is {"kind": "run_result", "state",
"outcome", "result", "requests", "exit_code"}. Nobody is asked: what waits stands in "requests", and "go_on" is the
command to answer it. docs/terminal.md has every field.

exit codes: 0 answered, 1 failed, 2 wrong use, 3 waits for a person, 4 a limit was reached, 130 cancelled
"""
SESSIONS = """\
examples:
  ownloop sessions list
  ownloop sessions show sess_0k3v8x2m
  ownloop sessions resume sess_0k3v8x2m

The beginning of an ID is enough where only one session has it. More about one: ownloop sessions COMMAND --help
"""
LIST = """\
examples:
  ownloop sessions list --agent support --limit 5
  ownloop sessions list --json | jq -r 'select(.state == "waiting").session_id'

A session is one of: running, waits for you, unfinished (its process is gone; resume it), idle, closed. With --json each
line is one session, and its state is running, waiting, unfinished, idle or closed.
"""
SHOW = """\
examples:
  ownloop sessions show sess_0k3v8x2m | less
  ownloop sessions show sess_0k3v8x2m --json | jq 'select(.kind == "tool_ended")'

With --json each line is one fact of its journal, as in: ownloop run --json
"""
RESUME = """\
examples:
  ownloop sessions resume sess_0k3v8x2m              with the agent's file as it was loaded last
  ownloop sessions resume sess_0k3v8x2m agents.py    with this file
"""
ANSWER = """\
examples:
  ownloop sessions answer sess_0k3v8x2m approve
  ownloop sessions answer sess_0k3v8x2m deny --note "Too much."
  ownloop sessions answer sess_0k3v8x2m '{"approved": true, "edited_input": {"order": "A1"}}'

ANSWER is approve or deny for an approval; ran, not_run or again for a call whose outcome nobody knows; the value
itself, or decline, for a question; or the whole answer as JSON. It is kept at once; then the session goes on in the
process that has it, or with: ownloop sessions resume ID, ownloop run FILE --session ID
"""
MODELS = """\
examples:
  ownloop models
  ownloop models --json | jq -r '.servers[].models[]'

Shows each form of Agent(model="…") with what it needs: a package, a key (never the key itself), a file. Then the
servers that listen on the usual ports of this machine, with their models as strings to copy.
"""
FILE_HELP = "a Python file with an agent in it (agents.py, agents.py:support), or a module (my.agents:support)"
STORE_HELP = "keep sessions in this file instead"
VERBOSE_HELP = "write the log to stderr"
SHORTEST_TEXT = 24
"""Columns for what is said beside an example; with fewer it stands below."""
ID_HELP = "the session's id, or the beginning of it"


class Parser(argparse.ArgumentParser):
    """One command: help that fits the terminal, errors of one line, and no abbreviations, whose meaning would change
    with new options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **settings)
        self.commands: dict[str, Parser] = {}
        """Those below it; a command that has some does nothing by itself."""

    def below(self, name: str, *, teaches: str, help: str, description: str) -> Parser:
        """Return a new command below this one."""
        if not self.commands:
            # argparse would list them at the end; we do it at the top.
            self._below = self.add_subparsers(help=argparse.SUPPRESS, parser_class=Parser, prog=self.prog)
            self.usage = "%(prog)s COMMAND …"
            self.description = f"{self.description}\n\ncommands:"
        self.description = f"{self.description}\n  {name:10}{help}"
        self.commands[name] = self._below.add_parser(name, description=description, epilog=teaches)
        return self.commands[name]

    def leaves(self) -> Iterator[Parser]:
        """Yield the commands below it that do something."""
        for command in self.commands.values():
            yield from command.leaves() if command.commands else (command,)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {harmless(message)}; see: {self.prog} --help\n")

    def in_short(self) -> str:
        """Return how it is called, without the names of its options, which are listed below."""
        words = [action for action in self._actions if not action.option_strings]
        return " ".join([self.prog, *(f"[{a.metavar}]" if a.nargs == "?" else f"{a.metavar}" for a in words), "[--…]"])

    def options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def parser() -> Parser:
    top = Parser(
        prog="ownloop",
        description="Run agents whose loop you own: durable, streaming, with a person in the loop.",
        epilog=TOP,
    )
    top.add_argument("--version", action="version", version=f"ownloop {__version__}")
    top.add_argument("--verbose", action="store_true", help=VERBOSE_HELP)
    _chat(top)
    _run(top)
    _sessions(top)
    models = top.below(
        "models",
        teaches=MODELS,
        help="show which models can be used here",
        description="Show what a model may be, what is configured for it here, and what is missing.",
    )
    models.add_argument("--json", action="store_true", help="one JSON object")
    for command in top.leaves():
        # Without a default: it would undo what stands before the command.
        command.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=VERBOSE_HELP)
        command.usage = command.in_short()
    return top


def _chat(top: Parser) -> None:
    chat = top.below(
        "chat",
        teaches=CHAT,
        help="talk to an agent in the terminal",
        description="Talk to an agent. What a tool that asks wants to do, you approve, edit or deny. Kill it at any "
        "moment and start it again: it goes on where it was.",
    )
    chat.add_argument("file", metavar="FILE", help=FILE_HELP)
    which = chat.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="ID", help="go on with this session")
    which.add_argument("--new", action="store_true", help="a new session, even if the last one waits for you")
    chat.add_argument("--store", metavar="PATH", help=STORE_HELP)


def _run(top: Parser) -> None:
    run = top.below(
        "run",
        teaches=RUN,
        help="send one message and show the answer",
        description="Send one message, show the answer as it comes, and exit.",
    )
    run.add_argument("file", metavar="FILE", help=FILE_HELP)
    run.add_argument(
        "message",
        metavar="MESSAGE",
        nargs="?",
        help='what to say; "-" reads it from standard input; with --session it may be left out, to go on',
    )
    run.add_argument("--session", metavar="ID", help="say it in this session")
    run.add_argument("--json", action="store_true", help="events and outcome as JSON, an object per line")
    run.add_argument("--store", metavar="PATH", help=STORE_HELP)


def _sessions(top: Parser) -> None:
    sessions = top.below(
        "sessions",
        teaches=SESSIONS,
        help="list, show, answer and resume what is kept",
        description="Look at the sessions that are kept, and go on with one.",
    )
    listing = sessions.below(
        "list", teaches=LIST, help="list them, newest first", description="List the sessions that are kept."
    )
    listing.add_argument("--agent", metavar="NAME", help="only those of this agent")
    listing.add_argument("--limit", metavar="N", type=_count, default=20, help="how many at most (default: 20)")
    listing.add_argument("--json", action="store_true", help="an object per line")
    showing = sessions.below(
        "show",
        teaches=SHOW,
        help="show a whole session",
        description="Show a session: what was said, called, decided and spent.",
    )
    showing.add_argument("id", metavar="ID", help=ID_HELP)
    showing.add_argument("--json", action="store_true", help="its facts as JSON, an object per line")
    resuming = sessions.below(
        "resume", teaches=RESUME, help="go on with a session in a chat", description="Open a chat on a session."
    )
    resuming.add_argument("id", metavar="ID", help=ID_HELP)
    resuming.add_argument(
        "file", metavar="FILE", nargs="?", help="where its agent is (default: where it was loaded from last)"
    )
    answering = sessions.below(
        "answer",
        teaches=ANSWER,
        help="answer what waits in a session",
        description="Answer what a session waits for, without its agent.",
    )
    answering.add_argument("id", metavar="ID", help=ID_HELP)
    answering.add_argument("answer", metavar="ANSWER", help="approve, deny, a value, or JSON")
    answering.add_argument("--request", metavar="ID", help="which request, if several wait")
    answering.add_argument("--note", metavar="TEXT", help="a word to the model: why")
    answering.add_argument("--json", action="store_true", help="say what was kept as JSON")
    for command in sessions.commands.values():
        command.add_argument("--store", metavar="PATH", help="the file that sessions are kept in")


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of sessions; give 1 or more")
    return number


# --- reading what was typed ---


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line. Ends the program for help and version, for wrong use, and where a command is missing.

    `command` is the command's whole name, as in "sessions list".
    """
    top = parser()
    command = _meant(top, argv)
    args, unknown = top.parse_known_args(argv)
    if unknown:
        command.error(_what_is_unknown(command, unknown))
    args.command = command.prog.removeprefix("ownloop ")
    return args


def _meant(top: Parser, argv: Sequence[str]) -> Parser:
    """Return the command that is called. Ends the program if there is none of that name, or none at all."""
    at = top
    for word in argv:
        if not at.commands:
            break
        if word in ("-h", "--help", "--version"):
            return at
        if word.startswith("-"):
            continue
        if word not in at.commands:
            at.error(_no_such_command(at, word))
        at = at.commands[word]
    if at.commands:
        at.print_help()
        at.exit(0)
    return at


def _no_such_command(at: Parser, word: str) -> str:
    if word.endswith(".py") or Path(word).is_file():
        return f"{word!r} is no command; did you mean: ownloop chat {word}"
    near = difflib.get_close_matches(word.lower(), [*at.commands, *at.options()], n=1)
    if near:
        return f"there is no command {word!r}; did you mean: {at.prog} {near[0]}"
    return f"there is no command {word!r}; there are: {', '.join(at.commands)}"


def _what_is_unknown(command: Parser, unknown: Sequence[str]) -> str:
    option = next((word for word in unknown if word.startswith("-")), None)
    if option is None:
        words = " ".join(unknown)
        hint = "; a message of several words stands in quotes" if command.prog == "ownloop run" else ""
        return f"too many arguments: {words}{hint}"
    name = option.partition("=")[0]
    near = difflib.get_close_matches(name, command.options(), n=1)
    return f"there is no option {name}" + (f"; did you mean {near[0]}?" if near else "")


# --- help that fits ---


class _Help(argparse.HelpFormatter):
    """Wraps sentences, and keeps the lines that are indented: examples, and what is said beside them."""

    def __init__(self, prog: str, **settings: Any) -> None:
        columns = max(30, min(shutil.get_terminal_size().columns, 100) - 1)
        super().__init__(prog, max_help_position=min(24, columns // 3), width=columns, **settings)
        self.columns = columns

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        del width
        return "\n".join(indent + line for line in _filled(text.split("\n"), self.columns - len(indent)))


_BESIDE = re.compile(r"\s{2,}")


def _filled(lines: Iterable[str], columns: int) -> Iterator[str]:
    for is_row, group in groupby(lines, lambda line: line.startswith("  ")):
        if is_row:
            yield from _rows(list(group), columns)
        else:
            yield from _sentences(group, columns)


def _sentences(lines: Iterable[str], columns: int) -> Iterator[str]:
    """Wrap the lines between empty ones and headings as one."""
    for is_kept, group in groupby(lines, lambda line: not line or line.endswith(":")):
        if is_kept:
            yield from group
        else:
            yield from wrapped(" ".join(group), columns)


def _rows(lines: Sequence[str], columns: int) -> Iterator[str]:
    """Lay out examples, each with what may be said beside it; below it, where there is no room. Commands stay whole."""
    rows = [_BESIDE.split(line.strip(), maxsplit=1) for line in lines]
    left = max((width(row[0]) for row in rows if len(row) > 1), default=0)
    room = columns - left - 2 * GAP
    for example, *said in rows:
        if room >= SHORTEST_TEXT and said:
            first, *rest = wrapped(said[0], room)
            yield "  " + filled(example, left + GAP) + first
            yield from (" " * (left + 2 * GAP) + part for part in rest)
        else:
            yield "  " + example
            yield from ("      " + part for words in said for part in wrapped(words, columns - 6))
