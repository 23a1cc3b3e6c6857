"""Saying something into a run that goes on, in a real terminal."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import AgentFile
from tests.cli.terminal import LIMIT_S, Terminal
from tests.cli.test_questions import REVIEWED, answers
from tests.cli.test_terminal import APPROVAL, REFUND, SLOW, effects, start_a_story

pytestmark = pytest.mark.slow

STEER = "steer ›"
TOLD = """
@tool
async def work() -> str:
    "Work."
    await Until("go").wait()
    return "Worked."

def heard(request):
    said = [b.text for m in request.messages if m.role == "user" for b in m.blocks]
    return say("I heard: " + " | ".join(said))

agent = Agent("a", tools=[work], model=ScriptedBackend([call("work"), heard, heard]))
"""


@pytest.fixture
def working(agent_file: AgentFile, tmp_path: Path) -> Path:
    agent_file(TOLD)
    return tmp_path


KEY_S = 0.06
"""Between two keys of a person who types quickly."""
RUNNING = "running work …"
"""What stands there while nothing is typed."""


def start_work(chat: Terminal) -> None:
    chat.prompt()
    chat.enter("Work.")
    chat.until(RUNNING)


def wait_for_the_end(folder: Path) -> None:
    """Return when a run has ended."""
    wait_for_a_row(folder, "SELECT 1 FROM runs WHERE phase = 'ended'")


def wait_for_a_row(folder: Path, query: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    with closing(sqlite3.connect(folder / "data" / "ownloop" / "sessions.db")) as store:
        while not store.execute(query).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("columns", [80, 40])
def test_what_is_typed_while_a_tool_runs_is_heard_at_the_next_turn_of_the_run(working: Path, columns: int) -> None:
    with Terminal(["chat", "agents.py"], working, columns=columns) as chat:
        start_work(chat)
        chat.press("H")
        chat.prompt(STEER)
        chat.press("urry, 世界!")
        chat.until("steer › Hurry, 世界!")
        chat.enter("")
        chat.until(RUNNING)
        (working / "go").touch()
        chat.prompt()
        assert "→ work {}\nsteer › Hurry, 世界!\n← Worked.\nI heard: Work. | Hurry, 世界!\n\nyou ›" in chat.text


def test_the_display_waits_while_something_is_typed_and_loses_nothing(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        chat.press("x")
        chat.prompt(STEER)
        (working / "go").touch()
        chat.press("yz")
        chat.until("steer › xyz")
        assert "Worked." not in chat.text
        chat.press("\x1b")
        chat.prompt()
        assert STEER not in chat.text, "a line that was given up is taken away"
        assert "→ work {}\n← Worked.\nI heard: Work.\n\nyou ›" in chat.text


def test_an_empty_line_gives_up_and_shows_again_what_is_waited_for(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        chat.press(" ")
        chat.prompt(STEER)
        chat.enter("")
        chat.until(RUNNING)
        assert STEER not in chat.text
        (working / "go").touch()
        chat.prompt()
        assert "I heard: Work.\n" in chat.text


def test_ctrl_c_in_the_line_cancels_the_run(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        chat.press("wrong")
        chat.until("steer › wrong")
        chat.interrupt()
        chat.prompt()
        assert "← work was cancelled" in chat.text
        assert "(cancelled)" in chat.text
        assert "wrong" not in chat.text


def test_keys_that_write_nothing_do_not_open_the_line(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        for key in ("\r", "\x1b[A", "\x1b[B", "\t", "\x7f", "\x1b[12;40R"):
            chat.press(key)
        chat.press("!")
        chat.prompt(STEER)
        chat.until("steer › !")
        chat.enter("")
        chat.until(RUNNING)
        (working / "go").touch()
        chat.prompt()
        assert "I heard: Work. | !\n" in chat.text


def test_no_letter_is_lost_however_they_come(working: Path) -> None:
    words = "every letter of this is said, however they come"
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        for letter in words:
            chat.press(letter)
        chat.until(f"steer › {words}")
        chat.enter("")
        chat.until(RUNNING)
        (working / "go").touch()
        chat.prompt()
        assert f"I heard: Work. | {words}\n" in chat.text


def test_several_lines_that_come_at_once_are_said_one_after_the_other(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        chat.press("one\rtwo\r")
        chat.until("steer › two")
        chat.until(RUNNING)
        (working / "go").touch()
        chat.prompt()
        assert "I heard: Work. | one | two\n" in chat.text


def test_a_pasted_text_is_one_message(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        chat.paste("one\r\ntwo\rthree")
        chat.until("three")
        chat.enter("")
        chat.until(RUNNING)
        (working / "go").touch()
        chat.prompt()
        assert "steer › one\n        two\n        three\n" in chat.text
        assert "I heard: Work. | one\ntwo\nthree\n" in chat.text


def test_a_command_waits_and_can_be_said_with_two_slashes(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        chat.press("/cost\r")
        chat.until("Commands wait until the answer is there.")
        chat.prompt(STEER)
        chat.press("\x15//cost\r")
        chat.until(RUNNING)
        (working / "go").touch()
        chat.prompt()
        assert "I heard: Work. | /cost\n" in chat.text


def test_what_comes_when_the_run_has_ended_begins_a_run_that_is_shown(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(SLOW)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        start_a_story(chat)
        chat.press("More!")
        chat.until("steer › More!")
        (tmp_path / "go").touch()
        wait_for_the_end(tmp_path)
        chat.enter("")
        chat.prompt()
        assert "Once upon a time\nsteer › More!\nthere was an end.\nAnd another.\n\nyou ›" in chat.text


def test_a_steer_into_an_answer_is_answered_behind_it(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(SLOW)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        start_a_story(chat)
        chat.enter("More!")
        chat.until("steer › More!")
        (tmp_path / "go").touch()
        chat.prompt()
        assert "Once upon a time\nsteer › More!\nthere was an end.\nAnd another.\n\nyou ›" in chat.text


def test_a_cancel_takes_back_what_was_said_and_not_yet_heard(working: Path) -> None:
    with Terminal(["chat", "agents.py"], working) as chat:
        start_work(chat)
        chat.enter("Hurry!")
        chat.until("steer › Hurry!")
        chat.until(RUNNING)
        chat.interrupt()
        chat.prompt()
        assert "(a message that waited was taken back)" in chat.text
        assert "I heard" not in chat.text


def test_an_approval_is_shown_when_the_line_is_done_and_is_not_answered_by_it(
    agent_file: AgentFile, tmp_path: Path
) -> None:
    agent_file(REFUND.replace('say("I will.") +', 'say("I will.") + gate(Until("go")) +'))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Refund A1.")
        chat.until("I will.")
        chat.press("a")
        chat.prompt(STEER)
        (tmp_path / "go").touch()
        chat.press("\r")
        chat.press("a\r")
        chat.prompt(APPROVAL)
        chat.press("?")
        chat.until("your answer › ?")
        assert effects(tmp_path) == []


def test_a_paste_that_an_approval_overtakes_does_not_answer_it(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(REFUND.replace('say("I will.") +', 'say("I will.") + gate(Until("go")) +'))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Refund A1.")
        chat.until("I will.")
        chat.press("\x1b[200~a\r")
        (tmp_path / "go").touch()
        chat.prompt(APPROVAL)
        chat.press("a\ra\x1b[201~")
        chat.until("your answer › a")
        assert effects(tmp_path) == []
        chat.interrupt()  # empties the line
        chat.press("d\r")
        chat.prompt("reason ›")
        chat.enter("")
        chat.prompt()
        assert effects(tmp_path) == []


def test_a_message_to_a_foreign_agent_that_is_busy_is_its_next_one(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        from ownloop import AgentBase

        class Slow(AgentBase):
            @classmethod
            async def create(cls, config, on_logs, on_interaction_request):
                agent = cls()
                agent.log = on_logs
                return agent

            async def interaction(self, interaction):
                await self.log(["at work"])
                await Until("go").wait()
                return "Done with " + str(interaction.data)

            async def stop(self): ...
    """)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("one")
        chat.until("at work")
        chat.enter("two")
        chat.until("steer › two")
        (tmp_path / "go").touch()
        chat.prompt()
        assert "Done with one\n" in chat.text
        assert "Done with two\n" in chat.text


@pytest.mark.parametrize("asked_at", [-1, 0, 1, 4])
def test_a_line_that_a_question_overtakes_stays_open_to_its_end(
    agent_file: AgentFile, tmp_path: Path, asked_at: int
) -> None:
    agent_file(REVIEWED)
    words = "I am a pizza"
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Write.")
        chat.until("at work")
        if asked_at < 0:
            (tmp_path / "go").touch()
            wait_for_a_row(tmp_path, "SELECT 1 FROM requests")  # it is asked, and shown in a moment
        for place, letter in enumerate(words):
            if place == asked_at:
                (tmp_path / "go").touch()
            chat.press(letter)
            time.sleep(KEY_S)
        chat.until(f"steer › {words}")
        assert "? review" not in chat.text
        chat.enter("")
        chat.prompt("your answer")
        assert chat.text.index(f"steer › {words}\n") < chat.text.index("? review")
        chat.enter("fine")
        chat.until("Goodbye.")
    assert answers(tmp_path) == ["fine"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with jobs")
def test_the_program_can_be_stopped_while_it_runs_and_taken_up_again(working: Path) -> None:
    with Terminal(["--norc", "-i"], working, program=["bash"], env={"PS1": "shell> "}) as shell:
        shell.prompt("shell>")
        shell.enter("ownloop chat agents.py")
        start_work(shell)
        shell.press("\x1a")
        shell.prompt("shell>")
        shell.enter("fg")
        shell.until("fg\nownloop chat agents.py")
        shell.press("Hurry")
        shell.until("steer › Hurry")
        shell.press("\x1a")
        shell.prompt("shell>")
        shell.enter("fg")
        shell.prompt(STEER)
        shell.enter("!")
        shell.until(RUNNING)
        (working / "go").touch()
        shell.prompt()
        assert "I heard: Work. | Hurry!\n" in shell.text
        shell.enter("/quit")
        shell.prompt("shell>")


def test_a_reader_that_waits_for_long_misses_nothing(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        many = say("." * 9_000, chunk=1)
        agent = Agent("a", model=ScriptedBackend([say("Here: ") + gate(Until("go")) + many + say(" The end.")]))
    """)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Talk.")
        chat.until("Here:")
        chat.press("x")
        chat.prompt(STEER)
        (tmp_path / "go").touch()
        wait_for_the_end(tmp_path)  # by then so much has come that the subscription was cut off
        chat.press("\x1b")
        chat.until("The end.")
        assert chat.text.count("Here:") == 1
        assert chat.text.partition("Here:")[2].count(".") == 9_000 + 1
