"""The commands of the chat, in a real terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import AgentFile, Program
from tests.cli.terminal import Terminal
from tests.cli.test_terminal import APPROVAL, REFUND

pytestmark = pytest.mark.slow

TALKER = """
from ownloop.backends.scripted import using

class Choosing(Agent):
    "An agent whose models are all here."
    def open_backend(self, model):
        if model == "local:/other.gguf":
            return ScriptedBackend([say("One."), say("I am the other.")] * 9, model="other-1")
        return super().open_backend(model)

script = [say("One.") + using(100, 20, cache_read=50), say("Two.") + using(200, 30)]
agent = Choosing("talker", model=ScriptedBackend(script))
"""


@pytest.fixture
def talker(agent_file: AgentFile, tmp_path: Path) -> Path:
    agent_file(TALKER)
    return tmp_path


def say(chat: Terminal, text: str) -> None:
    chat.enter(text)
    chat.prompt()


def test_help_says_what_can_be_typed(talker: Path) -> None:
    with Terminal(["chat", "agents.py"], talker, columns=40) as chat:
        chat.prompt()
        say(chat, "/help")
        assert "While the agent works, just type: what\nyou send is said into the run." in chat.text
        assert "/quit           leave (Ctrl-D too); the\n                session is kept\n" in chat.text
        say(chat, "/hlep")
        assert "There is no /hlep. Did you mean /help?" in chat.text
        say(chat, "/\x1b[200~xyz\x1b[201~zy")
        assert "There is no /xyzzy. /help lists" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0


def test_two_slashes_send_a_message_that_begins_with_one(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend(lambda r: say("Heard: " + r.messages[-1].blocks[0].text)))')
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        say(chat, "//help me")
        assert "Heard: /help me\n" in chat.text


def test_tab_completes_a_command(talker: Path) -> None:
    with Terminal(["chat", "agents.py"], talker, columns=40) as chat:
        chat.prompt()
        chat.press("/q\t")
        chat.until("you › /quit")
        chat.press("\x15/s\t")
        chat.until("you › /session")
        chat.press("\t")
        chat.until("/session   /sessions")
        chat.press("\x15a/s\t")
        chat.until("you › a/s")
        chat.press("\x15Hello.\r")
        chat.until("you › Hello.\nOne.")


def test_the_cost_of_a_session_and_of_its_last_run(talker: Path) -> None:
    with Terminal(["chat", "agents.py"], talker) as chat:
        chat.prompt()
        say(chat, "/cost")
        assert "No model has answered in this session yet.\n" in chat.text
        say(chat, "Hello.")
        say(chat, "Again.")
        say(chat, "/cost")
        assert (
            "this session  2 turns: 350 tokens read (50 from a cache), 50 written\n"
            "last run      1 turn: 200 tokens read, 30 written\n"
            "cost          unknown: nobody said what scripted costs\n"
        ) in chat.text


def test_another_model_answers_from_the_next_turn_on_and_after_a_restart(talker: Path) -> None:
    with Terminal(["chat", "agents.py"], talker) as chat:
        chat.prompt()
        say(chat, "/model")
        assert "scripted (the agent's own)\n" in chat.text
        say(chat, "Hello.")
        say(chat, "/model nonsense")
        assert "error: model 'nonsense' is not known" in chat.text
        assert "  `ownloop models` says what a model may be.\n" in chat.text
        say(chat, "/model openai:gpt-9")
        assert "OPENAI_API_KEY" in chat.text
        say(chat, "/model local:/other.gguf")
        assert "From the next answer on: local:/other.gguf, in this session.\n" in chat.text
        say(chat, "And you?")
        assert "(other-1 answers from here on)\nI am the other.\n" in chat.text
        say(chat, "/model")
        assert "local:/other.gguf (the agent's own is scripted)\n" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0
        go_on = chat.text.split()[-1]
    with Terminal(["chat", "agents.py", "--session", go_on], talker) as chat:
        chat.prompt()
        assert "talker on local:/other.gguf\n" in chat.text
        say(chat, "/model scripted")
        say(chat, "/new")
        say(chat, "/model local:/other.gguf")
        say(chat, "Hello.")
        say(chat, "Who?")
        assert "I am the other." in chat.text.partition("Who?")[2]
        say(chat, "/new")
        say(chat, "/model")
        assert "scripted (the agent's own)\n" in chat.text


def test_sessions_are_listed_and_gone_to(talker: Path) -> None:
    with Terminal(["chat", "agents.py"], talker, columns=60) as chat:
        chat.prompt()
        say(chat, "/sessions")
        assert "There are none yet; one begins with your first message." in chat.text
        say(chat, "The first.")
        say(chat, "/new")
        say(chat, "The second,\x1b\rin two lines.")
        say(chat, "/sessions")
        assert "›  1  The second, in two lines. (now)\n   2  The first. (now)\n" in chat.text
        say(chat, "/sessions 2")
        assert "you › The first.\nOne.\n\nyou ›" in chat.text.partition("/sessions 2")[2]
        say(chat, "Go on.")
        assert "Two." in chat.text
        say(chat, "/session")
        say(chat, "/sessions 7")
        assert "error: there is no session 7 in the list; /sessions shows\n  it\n" in chat.text
        say(chat, "/sessions sess_nobody")
        assert "error: there is no session 'sess_nobody'" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0


def test_of_a_long_session_the_last_messages_are_shown(agent_file: AgentFile, tmp_path: Path, ownloop: Program) -> None:
    agent_file("""agent = Agent("a", model=ScriptedBackend(lambda r: say(f"Answer {len(r.messages)}.")))""")
    said = "".join(f"Message {number}.\n" for number in range(1, 23))
    go_on = ownloop("chat", "agents.py", stdin=said).stderr.split()[-1]
    with Terminal(["chat", "agents.py", "--session", go_on], tmp_path) as chat:
        chat.prompt()
        assert "(2 earlier messages not shown; `ownloop sessions show` shows all)\nyou › Message 3.\n" in chat.text
        assert "Message 2." not in chat.text
        assert "you › Message 22.\nAnswer 43.\n" in chat.text


def test_what_waits_in_a_session_that_is_gone_to_is_asked(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(REFUND)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Refund A1.")
        chat.prompt(APPROVAL)
        chat.enter("l")
        assert chat.end() == 3
    with Terminal(["chat", "agents.py", "--new"], tmp_path) as chat:
        chat.prompt()
        say(chat, "/sessions")
        assert "   1  Refund A1. (now, waits for you)\n" in chat.text
        chat.enter("/sessions 1")
        chat.prompt(APPROVAL)
        chat.enter("a")
        chat.prompt()
        assert "← Refunded 50 EUR.\nIt is done.\n" in chat.text


def test_an_agent_of_the_contract_chooses_its_model_itself(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        from ownloop import AgentBase

        class Echo(AgentBase):
            @classmethod
            async def create(cls, config, on_logs, on_interaction_request):
                return cls()

            async def interaction(self, interaction):
                return f"Echo: {interaction.data}"

            async def stop(self): ...
    """)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        say(chat, "Hello.")
        assert "Echo: Hello.\n" in chat.text
        for command in ("/model", "/model local"):
            say(chat, command)
            assert "This agent chooses its model itself." in chat.text.partition(command)[2]
        say(chat, "/cost")
        assert "No model has answered in this session yet." in chat.text
