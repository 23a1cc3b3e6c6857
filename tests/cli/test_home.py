"""The agent of `make run`, as it stands in examples/, on the real local model, in a real terminal."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "home.py"
APPROVAL = "your answer ›"
MODEL_S = 120.0
"""Fetching the model once, or an answer on a machine that does a lot beside."""

EFFECT = """
def effect(words: str) -> str:
    with open("effects", "a") as file:
        print(words, file=file)
    return words


"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the example in it; each call of its tools is noted in the file `effects`."""
    source = re.sub(r"^    return (.+)$", r"    return effect(\1)", EXAMPLE.read_text(), flags=re.MULTILINE)
    source = source.replace("\n@tool", f"{EFFECT}@tool", 1)
    assert source.count("return effect(") == 4
    (tmp_path / "home.py").write_text(source)
    return tmp_path


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


def test_message_tool_call_edit_approve_answer(home: Path) -> None:
    with Terminal(["chat", "home.py"], home) as chat:
        chat.prompt(limit_s=MODEL_S)
        for sentence in (
            "home on local",
            "This is a 135-million-parameter model",
            "Set the temperature to 19 degrees.",
        ):
            assert sentence in chat.text
        chat.enter("What is the capital of France?")
        chat.prompt(limit_s=MODEL_S)
        assert "Paris" in chat.text.partition("capital of France?\n")[2].partition("you ›")[2]
        chat.enter("Set the temperature to 19 degrees.")
        chat.prompt(APPROVAL, limit_s=MODEL_S)
        assert "    degrees = 19\n" in chat.text
        chat.enter("e")
        chat.prompt("arguments ›")
        chat.press("\x7f" * len("19}") + "21}")
        chat.enter("")
        chat.prompt(limit_s=MODEL_S)
        assert '→ set_temperature {"degrees":21}  (as edited)\n← The heating is set to 21 degrees.\n' in chat.text
        chat.enter("Turn off the lamp.")
        chat.prompt(APPROVAL, limit_s=MODEL_S)
        chat.enter("d")
        chat.prompt("reason ›")
        chat.enter("I am reading")
        chat.prompt(limit_s=MODEL_S)
        assert "← set_lamp was denied: I am reading" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0
    assert effects(home) == ["The heating is set to 21 degrees."]


def test_kill_9_while_the_approval_waits_then_approved_ran_exactly_once(home: Path) -> None:
    with Terminal(["chat", "home.py"], home) as chat:
        chat.prompt(limit_s=MODEL_S)
        chat.enter("Book a flight from Madrid to Vienna.")
        chat.prompt(APPROVAL, limit_s=MODEL_S)
        chat.kill()
    assert effects(home) == []
    with Terminal(["chat", "home.py"], home) as chat:
        chat.prompt(APPROVAL, limit_s=MODEL_S)
        assert "you › Book a flight from Madrid to Vienna." in chat.text
        chat.enter("a")
        chat.prompt(limit_s=MODEL_S)
        chat.enter("/quit")
        assert chat.end() == 0
    with Terminal(["chat", "home.py"], home) as chat:
        chat.prompt(limit_s=MODEL_S)  # nothing is left over
        assert APPROVAL not in chat.text
    assert effects(home) == ["Your flight from Madrid to Vienna is booked."]


def test_something_is_said_into_a_run_and_the_session_is_looked_at(home: Path) -> None:
    with Terminal(["chat", "home.py"], home, columns=40) as chat:
        chat.prompt(limit_s=MODEL_S)
        chat.enter("What is the capital of France?")
        chat.until("reading …")
        chat.press("What is the weather in Paris?")
        chat.until("steer › What is the weather in Paris?", limit_s=MODEL_S)
        chat.enter("")
        chat.prompt(limit_s=MODEL_S)
        assert "← It is 18 degrees and sunny in Paris." in chat.text
        chat.enter("/cost")
        chat.prompt()
        assert re.search(r"this session  \d+ turns: [\d,]+ tokens read", chat.text)
        chat.enter("/sessions")
        chat.prompt()
        assert "›  1  What is the capital of" in chat.text
        chat.enter("/model local:/no/such/file.gguf")
        chat.prompt()
        assert "error: " in chat.text
        assert "/no/such/file.gguf" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0


def test_ctrl_c_cancels_the_real_models_answer(home: Path) -> None:
    with Terminal(["chat", "home.py"], home, columns=40) as chat:
        chat.prompt(limit_s=MODEL_S)
        chat.enter("Tell me a very long story about a ship.")
        chat.until("reading …")
        chat.interrupt()
        chat.prompt(limit_s=MODEL_S)
        assert "(cancelled)" in chat.text
        chat.enter("What is the weather in Paris?")
        chat.prompt(limit_s=MODEL_S)
        assert "← It is 18 degrees and sunny in Paris." in chat.text
        chat.child.kill(signal.SIGHUP)
        assert chat.end() == 129


def test_one_run_in_a_terminal(home: Path) -> None:
    with Terminal(["run", "home.py", "What is the weather in Paris?"], home) as program:
        assert program.end(limit_s=MODEL_S) == 0
        assert "→ get_weather" in program.text
    assert effects(home) == ["It is 18 degrees and sunny in Paris."]
