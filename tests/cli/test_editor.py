"""Arguments that are edited in the person's own editor, in a real terminal."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import AgentFile
from tests.cli.terminal import Terminal
from tests.cli.test_terminal import APPROVAL, REFUND, ask_for_refund, effects

pytestmark = pytest.mark.slow

EDITOR = """\
import os, pathlib, stat, sys, time
*options, name = sys.argv[1:]
file, here = pathlib.Path(name), pathlib.Path(__file__).parent
times = here / "times"
round = times.read_text().count("x") + 1 if times.exists() else 1
with times.open("a") as counted:
    counted.write("x")
text = file.read_text()
(here / f"seen{round}").write_text(text)
(here / "how").write_text(
    f"{options} {file.name} {stat.S_IMODE(file.stat().st_mode):o} {stat.S_IMODE(file.parent.stat().st_mode):o} {file}"
)
"""


@pytest.fixture
def asking(agent_file: AgentFile, tmp_path: Path) -> Path:
    agent_file(REFUND)
    return tmp_path


def editing(folder: Path, what: str) -> dict[str, str]:
    """Return an environment whose editor does `what` with `file` and `text`."""
    script = folder / "my editor.py"
    script.write_text(EDITOR + what)
    return {"EDITOR": f"'{sys.executable}' '{script}' --wait"}


def test_what_is_saved_is_approved_and_the_file_is_nobody_elses_and_gone(asking: Path) -> None:
    env = editing(asking, 'file.write_text(text.replace("50", "5"))')
    with Terminal(["chat", "agents.py"], asking, env=env) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.prompt()
        assert '→ refund {"order":"A1","eur":5.0}  (as edited)\n← Refunded 5 EUR.\n' in chat.text
    assert effects(asking) == ["A1 5.0"]
    assert (asking / "seen1").read_text() == '{\n  "order": "A1",\n  "eur": 50.0\n}\n'
    *how, place = (asking / "how").read_text().split(" ", 4)
    assert how == ["['--wait']", "arguments.json", "600", "700"]
    assert not Path(place).parent.exists()


def test_visual_comes_first_and_what_is_unchanged_is_approved_as_it_is(asking: Path) -> None:
    env = {"VISUAL": editing(asking, "")["EDITOR"], "EDITOR": "false"}
    with Terminal(["chat", "agents.py"], asking, env=env) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.prompt()
        assert "what you save is approved, also if it is unchanged" in chat.text.replace("\n  ", " ")
        assert "(as edited)" not in chat.text
    assert effects(asking) == ["A1 50.0"]


def test_what_does_not_fit_is_said_and_can_be_edited_on(asking: Path) -> None:
    env = editing(
        asking,
        """file.write_text([text[:-3], text + '"eur": "much"}', '{"order": "A1", "eur": 7}', ""][round - 1])""",
    )
    with Terminal(["chat", "agents.py"], asking, env=env) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.until("  error: this is not JSON")
        chat.prompt(APPROVAL)
        assert "[e]dit on   [b]ack" in chat.text
        chat.enter("e")
        chat.until("error: this is not JSON", 20)
        chat.prompt(APPROVAL)
        assert (asking / "seen2").read_text() == (asking / "seen1").read_text()[:-3]
        assert effects(asking) == []
        chat.enter("e")
        chat.prompt()
    assert effects(asking) == ["A1 7.0"]


def test_a_value_that_the_schema_refuses_is_named(asking: Path) -> None:
    env = editing(asking, """file.write_text('{"order": "A1", "eur": "much"}')""")
    with Terminal(["chat", "agents.py"], asking, env=env) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.until("  error: eur: 'much' is not of type 'number'")
        chat.prompt(APPROVAL)
        chat.enter("b")
        chat.prompt(APPROVAL)
        chat.enter("a")
        chat.prompt()
    assert effects(asking) == ["A1 50.0"]


def test_an_emptied_file_goes_back_to_the_question(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking, env=editing(asking, 'file.write_text("")')) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.prompt(APPROVAL)
        chat.enter("d")
        chat.prompt("reason ›")
        chat.enter("")
        chat.prompt()
        assert "← refund was denied" in chat.text
    assert effects(asking) == []


@pytest.mark.parametrize(
    ("editor", "why"),
    [
        ("no-such-editor -w", "the editor 'no-such-editor' cannot be started: No such file or directory"),
        ("false", "the editor 'false' ended with code 1"),
        ("unbalanced 'quote", "cannot be read as a command"),
    ],
)
def test_an_editor_that_fails_leaves_the_line(asking: Path, editor: str, why: str) -> None:
    with Terminal(["chat", "agents.py"], asking, env={"EDITOR": editor}, columns=120) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.prompt('arguments › {"order": "A1", "eur": 50.0}')
        assert why in chat.text
        chat.press("\x7f" * len("50.0}") + "5}")
        chat.enter("")
        chat.prompt()
    assert effects(asking) == ["A1 5.0"]


@pytest.mark.parametrize("keys", ["\x1b", "\x03\x03", "\x15\r"])
def test_escape_and_ctrl_c_in_an_empty_line_go_back_to_the_choices(asking: Path, keys: str) -> None:
    with Terminal(["chat", "agents.py"], asking, env={"EDITOR": ""}) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.prompt('arguments › {"order": "A1", "eur": 50.0}')
        assert "Enter approves what stands in the line; Esc goes back" in chat.text
        chat.press(keys)
        chat.prompt(APPROVAL)
        chat.enter("d")
        chat.prompt("reason ›")
        chat.enter("")
        chat.prompt()
        assert "(cancelled)" not in chat.text
    assert effects(asking) == []


def test_help_explains_the_choices_and_quit_leaves_them_open(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.enter("/help")
        chat.prompt(APPROVAL)
        shown = chat.text.partition("/help\n")[2].splitlines()
        assert [line.split()[0] for line in shown[:5]] == ["a", "s", "e", "d", "l"]
        chat.enter("/quit")
        assert chat.end() == 3
        assert "Left open. Go on with:" in chat.text
    assert effects(asking) == []


def test_an_editor_has_the_terminal_and_ctrl_c_for_itself(asking: Path) -> None:
    env = editing(
        asking,
        """
try:
    input("editor> ")
except KeyboardInterrupt:
    file.write_text(text.replace("50", input("again> ")))
""",
    )
    with Terminal(["chat", "agents.py"], asking, env=env) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.until("editor>")
        chat.press("what is typed is shown")
        chat.until("what is typed is shown")
        chat.interrupt()
        chat.until("again>")
        chat.enter("6")
        chat.prompt()
        assert "(cancelled)" not in chat.text
    assert effects(asking) == ["A1 6.0"]


def test_what_is_settled_elsewhere_meanwhile_leaves_the_editor_its_terminal(asking: Path) -> None:
    env = editing(asking, 'input("editor> ")')
    with Terminal(["chat", "agents.py"], asking, env=env) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.until("editor>")
        with Terminal(["chat", "agents.py"], asking) as other:
            other.prompt(APPROVAL)
            other.enter("d")
            other.prompt("reason ›")
            other.enter("")
            other.prompt()
        chat.press("x")
        chat.until("editor> x")
        assert "(this was settled" not in chat.text
        chat.enter("")
        chat.until("(this was settled elsewhere meanwhile)")
        chat.prompt()
    assert effects(asking) == []


def test_a_program_that_is_ended_takes_its_editor_with_it(asking: Path) -> None:
    env = editing(asking, 'print(os.getpid(), flush=True); (here / "pid").write_text(str(os.getpid())); time.sleep(60)')
    with Terminal(["chat", "agents.py"], asking, env=env) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.until("In your editor")
        while not (asking / "pid").exists() or not (asking / "pid").read_text():
            chat.until("In your editor")
        chat.child.kill(signal.SIGTERM)
        assert chat.end() == 143
        pid = int((asking / "pid").read_text())
        assert not Path(f"/proc/{pid}").exists()
        assert "Traceback" not in chat.text
