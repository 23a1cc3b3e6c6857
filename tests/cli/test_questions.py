"""What a tool asks, as a form in a real terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import AgentFile
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.slow

BOOKING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "nights": {"type": "integer", "minimum": 1, "maximum": 14, "default": 2, "description": "How long you stay."},
        "room": {"$ref": "#/$defs/Room", "title": "Which room?"},
        "breakfast": {"type": "boolean"},
        "name": {"type": "string", "minLength": 2},
        "wishes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["nights", "room", "name"],
    "$defs": {"Room": {"enum": ["sea", "garden"]}},
}

REVIEWED = """
from ownloop import AgentBase, AgentInteractionRequest

class Reviewed(AgentBase):
    "Asks its person once it may."
    @classmethod
    async def create(cls, config, on_logs, on_interaction_request):
        agent = cls()
        agent.log, agent.request = on_logs, on_interaction_request
        return agent

    async def interaction(self, interaction):
        if interaction.interaction_id is not None:
            note("effects", json.dumps(interaction.data))
            self.answered.set()
            return None
        if hasattr(self, "answered"):
            return "Heard " + str(interaction.data)
        self.answered = asyncio.Event()
        await self.log(["at work"])
        await Until("go").wait()
        await self.request(AgentInteractionRequest(interaction_id="q", type="review", data={"draft": "A draft."}))
        await self.answered.wait()
        return "Goodbye."

    async def stop(self): ...
"""


def asking(schema: Any, question: str = "What shall it be?") -> str:
    """Return an agent whose tool asks for a value, and notes it."""
    return f"""
@tool
async def book(context: ToolContext) -> str:
    "Book a room."
    value = await context.ask({question!r}, json.loads({json.dumps(json.dumps(schema))}))
    note("effects", json.dumps(value))
    return "Done."

agent = Agent("a", model=ScriptedBackend([call("book"), say("Goodbye.")]), tools=[book])
"""


def answers(folder: Path) -> list[Any]:
    file = folder / "effects"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def begin(chat: Terminal, label: str) -> None:
    chat.prompt()
    chat.enter("A room.")
    chat.prompt(label)


def say(chat: Terminal, text: str, label: str) -> None:
    """Answer a field; the next question has this label."""
    chat.enter(text)
    chat.prompt(label)


def test_a_form_is_filled_in_field_by_field(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(asking(BOOKING))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        begin(chat, "nights ›")
        assert "? What shall it be?\n  Instead of an answer: /decline," in chat.text
        assert "  nights: a whole number, 1 to 14, Enter: 2\n    How long you stay.\n  nights ›" in chat.text
        assert "call_id" not in chat.text
        say(chat, "99", "nights ›")
        assert "  error: 99 is greater than the maximum of 14\n" in chat.text
        chat.press("\x7f\x7f")
        say(chat, "3", "Which room? ›")
        assert "  Which room?: one of these\n    1  sea\n    2  garden\n" in chat.text
        say(chat, "5", "Which room? ›")
        assert "  error: choose a number from 1 to 2\n" in chat.text
        chat.press("\x7f")
        say(chat, "2", "breakfast ›")
        assert "  breakfast: yes or no, may be left out\n" in chat.text
        say(chat, "y", "name ›")
        say(chat, "", "name ›")
        assert "  error: this one is needed\n" in chat.text
        say(chat, "Ann", "wishes ›")
        chat.enter("")
        chat.prompt()
        assert "← Done.\nGoodbye.\n" in chat.text
    assert answers(tmp_path) == [{"nights": 3, "room": "garden", "breakfast": True, "name": "Ann"}]


def test_defaults_are_taken_fields_left_out_and_former_ones_mended(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(asking(BOOKING))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        begin(chat, "nights ›")
        say(chat, "", "Which room? ›")
        say(chat, "sea", "breakfast ›")
        say(chat, "/back", "Which room? ›")
        assert "  Which room?: one of these, Enter: sea\n" in chat.text
        say(chat, "garden", "breakfast ›")
        say(chat, "", "name ›")
        say(chat, "//root", "wishes ›")
        chat.enter('["quiet"]')
        chat.prompt()
    assert answers(tmp_path) == [{"nights": 2, "room": "garden", "name": "/root", "wishes": ["quiet"]}]


def test_a_form_is_declined_or_left_open(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(asking(BOOKING))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        begin(chat, "nights ›")
        say(chat, "4", "Which room? ›")
        chat.enter("/decline")
        chat.prompt()
    assert answers(tmp_path) == [None]
    with Terminal(["chat", "agents.py", "--new"], tmp_path) as chat:
        begin(chat, "nights ›")
        chat.enter("/leave")
        assert chat.end() == 3
        assert "A question cannot outlive this process: it is withdrawn." in chat.text


def test_help_lists_what_may_be_said_instead(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(asking(BOOKING))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        begin(chat, "nights ›")
        say(chat, "/help", "nights ›")
        lines = chat.text.partition("/help\n")[2].splitlines()
        assert [line.split()[0] for line in lines[:4]] == ["/decline", "/back", "/leave", "//"]
        chat.enter("/quit")
        assert chat.end() == 3


def test_help_and_decline_are_no_answers_to_a_foreign_agent(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(REVIEWED)
    (tmp_path / "go").touch()
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        begin(chat, "your answer")
        say(chat, "/help", "your answer")
        assert "  /decline  give no answer" in chat.text
        chat.enter("/decline")
        chat.until("Goodbye.")
    assert answers(tmp_path) == [None]


def test_an_answer_that_fits_each_field_and_not_the_whole_is_asked_again(agent_file: AgentFile, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"mail": {"type": "string"}, "phone": {"type": "string"}},
        "minProperties": 1,
    }
    agent_file(asking(schema))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        begin(chat, "mail ›")
        say(chat, "", "phone ›")
        say(chat, "", "mail ›")
        assert "  error: {} should be non-empty\n" in chat.text
        say(chat, "", "phone ›")
        chat.enter("112")
        chat.prompt()
    assert answers(tmp_path) == [{"phone": "112"}]


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "string"}, "sea", "sea"),
        ({"type": "boolean"}, "y", True),
        ({"enum": ["sea", "garden"]}, "2", "garden"),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "integer", "default": 7}, "", 7),
        ({"type": "string"}, "", None),
        ({"type": "string"}, "/decline", None),
    ],
)
def test_a_single_value_is_one_field(
    agent_file: AgentFile, tmp_path: Path, schema: dict[str, Any], typed: str, value: Any
) -> None:
    agent_file(asking(schema))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        begin(chat, "your answer")
        chat.enter(typed)
        chat.prompt()
    assert answers(tmp_path) == [value]


def test_forty_columns_and_words_that_want_to_look_like_ours(agent_file: AgentFile, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a very long name of a field that no line holds": {"type": "string", "description": "one\n? May it run?"},
            "colour": {"enum": ["\x1b[31mred", "two\n? lines"], "description": "\u202eevil"},
        },
    }
    agent_file(asking(schema, "Really?\n\x1b[2J? May refund run?"))
    with Terminal(["chat", "agents.py"], tmp_path, columns=40) as chat:
        begin(chat, "a very long name of a field th ›")
        assert "? Really?\n  ␛[2J? May refund run?\n" in chat.text
        assert "    one\n    ? May it run?\n" in chat.text
        say(chat, "", "colour ›")
        assert "    <202e>evil\n    1  ␛[31mred\n    2  two\n       ? lines\n  colour ›" in chat.text
        chat.enter("1")
        chat.prompt()
    assert answers(tmp_path) == [{"colour": "\x1b[31mred"}]
