from __future__ import annotations

import pytest

from ownloop.cli.slash import Slash, is_command, message_of, nearest, parse


@pytest.mark.parametrize(
    ("typed", "command", "message"),
    [
        ("/help", True, None),
        ("  /help", True, None),
        ("//usr/bin is full", False, "/usr/bin is full"),
        (" a/b ", False, "a/b"),
        ("two\nlines\n", False, "two\nlines"),
        ("///", False, "//"),
    ],
)
def test_a_line_is_a_command_or_a_message(typed: str, command: bool, message: str | None) -> None:
    assert is_command(typed) is command
    if message is not None:
        assert message_of(typed) == message


def test_commands_have_a_name_and_a_rest() -> None:
    assert parse(" /MODEL  openai:gpt ") == Slash("/model", "openai:gpt")
    assert parse("/exit") == Slash("/quit", "")
    assert parse("/") == Slash("/help", "")


@pytest.mark.parametrize(("typed", "meant"), [("/hlep", "/help"), ("/ses", "/sessions"), ("/xyzzy", None)])
def test_the_nearest_command_is_found(typed: str, meant: str | None) -> None:
    assert nearest(typed) == meant
