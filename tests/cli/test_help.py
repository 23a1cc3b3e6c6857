"""What `--help` teaches, and what is said to who uses it wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from ownloop.cli.columns import width
from ownloop.cli.commands import Parser, parser, read
from tests.cli.conftest import AgentFile, Program


def every(at: Parser) -> list[Parser]:
    return [at, *(found for command in at.commands.values() for found in every(command))]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_command_teaches_by_examples_and_fits(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert len(every(parser())) == 9
    for command in every(parser()):
        text = command.format_help()
        assert text.startswith(f"usage: {command.prog} ")
        assert f"\n  {command.prog} " in text or command.commands
        for line in text.splitlines():
            # Commands are never broken, so that they can be copied.
            assert width(line) <= columns or line.startswith(("usage: ", "  ownloop ")), line
            assert line == line.rstrip()


def test_without_arguments_it_shows_the_help(ownloop: Program) -> None:
    top = ownloop("--help").stdout
    for command in ("chat", "run", "sessions", "models"):
        assert f"\n  {command} " in top
    for words, helped in (((), top), (("--verbose",), top), (("sessions",), ownloop("sessions", "--help").stdout)):
        done = ownloop(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, helped, "")
    assert ownloop("--version").stdout.startswith("ownloop ")


def test_the_exit_codes_are_in_the_help() -> None:
    run = " ".join(parser().commands["run"].format_help().split())
    assert (
        "exit codes: 0 answered, 1 failed, 2 wrong use, 3 waits for a person, 4 a limit was reached, 130 cancelled"
        in run
    )
    chat = " ".join(parser().commands["chat"].format_help().split())
    assert "0 left, 1 failed, 2 wrong use, 3 something was left open, 130 ended by Ctrl-C while something ran" in chat


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], "ownloop: there is no command 'fly'; there are: chat, run, sessions, models"),
        (["session", "list"], "ownloop: there is no command 'session'; did you mean: ownloop sessions"),
        (["help"], "ownloop: there is no command 'help'; did you mean: ownloop --help"),
        (["bot.py"], "ownloop: 'bot.py' is no command; did you mean: ownloop chat bot.py"),
        (["sessions", "lsit"], "ownloop sessions: there is no command 'lsit'; did you mean: ownloop sessions list"),
        (["run", "bot.py", "Hi", "--stoer", "x"], "ownloop run: there is no option --stoer; did you mean --store?"),
        (["models", "--jsno=1"], "ownloop models: there is no option --jsno; did you mean --json?"),
        (
            ["run", "bot.py", "Where", "is", "it?"],
            "ownloop run: too many arguments: is it?; a message of several words",
        ),
        (["run"], "ownloop run: the following arguments are required: FILE"),
        (["sessions", "list", "--limit", "0"], "ownloop sessions list: argument --limit: '0' is no number of sessions"),
        (["chat", "bot.py", "--new", "--session", "x"], "ownloop chat: argument --session: not allowed with"),
        (["fl\x1b[2Jy"], "ownloop: there is no command"),
    ],
)
def test_wrong_use_gives_one_clear_line_and_ends_with_2(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert err.endswith(" --help\n")
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_file_in_the_place_of_a_command_is_taken_for_an_agent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bots").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        read(["bots"])
    assert "did you mean: ownloop chat bots" in capsys.readouterr().err


def test_wrong_use_of_the_program_itself(ownloop: Program) -> None:
    done = ownloop("fly")
    assert (done.returncode, done.stdout) == (2, "")


def test_verbose_may_stand_before_and_behind_the_command(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("Hi!")]))')
    for words in (("--verbose", "run", "agents.py", "Hi"), ("run", "agents.py", "Hi", "--verbose")):
        assert ownloop(*words).stdout == "Hi!\n"
