"""Typing: several lines, pastes, wide and split characters, narrow and changing windows; in a real terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import AgentFile
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.slow


@pytest.fixture
def echo(agent_file: AgentFile, tmp_path: Path) -> Path:
    """A folder with an agent that says what it heard."""
    agent_file("""agent = Agent("echo", model=ScriptedBackend(lambda r: say(repr(r.messages[-1].blocks[0].text))))""")
    return tmp_path


def test_alt_enter_and_a_trailing_backslash_make_new_lines(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo) as chat:
        chat.prompt()
        chat.press("one\x1b\rtwo\\\rthree")
        chat.until("you › one\n      two\n      three")
        chat.enter("")
        chat.until("'one\\ntwo\\nthree'")
        chat.prompt()
        chat.enter("C:\\\\")
        chat.until("'C:\\\\\\\\'")
        chat.prompt()


def test_a_pasted_text_with_line_breaks_is_one_message(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo, columns=40) as chat:
        chat.prompt()
        chat.paste("def f():\r\n    return 1\r\n\r\nf()\n")
        chat.until("f()")
        assert "Echo" not in chat.text
        chat.enter("")
        chat.until("'def f():\\n    return 1\\n\\nf()'")
        chat.prompt()


def test_a_paste_that_holds_escape_sequences_shows_them(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo) as chat:
        chat.prompt()
        chat.paste("red \x1b[31m and gone \x1b[2J")
        chat.until("and gone")
        assert "echo on scripted" in chat.text
        chat.enter("")
        chat.until("'red \\x1b[31m and gone \\x1b[2J'")
        chat.prompt()


@pytest.mark.parametrize("columns", [80, 40])
def test_wide_and_joined_characters_are_edited_as_they_are_seen(echo: Path, columns: int) -> None:
    with Terminal(["chat", "agents.py"], echo, columns=columns) as chat:
        chat.prompt()
        chat.press("你好，世界 Grüße 👋🏽 " * 3)
        chat.press("x\x7f")
        chat.enter("!")
        chat.prompt()
        assert "'" + ("你好，世界Grüße👋🏽" * 3) + "!'" in "".join(chat.text.split())


def test_utf_8_that_arrives_byte_by_byte_is_one_text(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo) as chat:
        chat.prompt()
        seen = "you ›"
        for byte in "é世😀".encode():
            chat.child.send(bytes([byte]))
        for sign in "é世😀":
            seen += (" " if seen.endswith("›") else "") + sign
            chat.until(seen)
        chat.enter("")
        chat.until("'é世😀'")
        chat.prompt()


def test_bytes_that_are_no_text_do_no_harm(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo) as chat:
        chat.prompt()
        chat.child.send(b"a\xff\xfeb\r")
        chat.until("'a\ufffd\ufffdb'")
        chat.prompt()


def test_what_was_said_is_found_again_with_the_arrows(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo) as chat:
        chat.prompt()
        chat.press("one\x1b\rtwo\r")
        chat.prompt()
        chat.press("\x1b[A")
        chat.until("you › one\n      two\n'one\\ntwo'\n\nyou › one\n      two")
        chat.enter("")
        chat.prompt()
        assert chat.text.count("'one\\ntwo'") == 2


def test_a_window_that_changes_its_width_keeps_what_is_typed(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo, columns=80) as chat:
        chat.prompt()
        chat.press("a message that is longer than a narrow window is wide")
        chat.until("window is wide")
        chat.resize(40)
        chat.press("!")
        chat.until("wide!")
        chat.resize(100)
        chat.enter("")
        chat.until("'a message that is longer than a narrow window is wide!'")
        chat.prompt()


def test_a_dumb_terminal_takes_several_lines_too(echo: Path) -> None:
    with Terminal(["chat", "agents.py"], echo, env={"TERM": "dumb"}) as chat:
        chat.prompt()
        chat.press("one\\\rtwo\r")
        chat.until("'one\\ntwo'")
        chat.prompt()
        assert b"\x1b" not in chat.raw
