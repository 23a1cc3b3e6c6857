"""What a person sees while the model writes and tools run, in a real terminal, wide and narrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import AgentFile
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.slow

WRITER = """
from ownloop.core.backend import Finish, PartDelta, PartEnd, PartStart

class Writer:
    "Writes a call piece by piece, each when it is let."
    name = provider = model = "writer"

    async def start(self, request):
        if any(m.role == "assistant" for m in request.messages):
            yield [PartStart(0, "text"), PartDelta(0, "Written."), PartEnd(0), Finish("end_turn")]
            return
        yield [PartStart(0, "thinking")]
        for piece in ("They want ", "a letter."):
            yield [PartDelta(0, piece)]
        await Until("thought").wait()
        yield [PartEnd(0), PartStart(1, "tool_call", "write")]
        yield [PartDelta(1, '{"to": "\\x1b[3')]
        yield [PartDelta(1, '1mAnn", ')]
        await Until("half").wait()
        yield [PartDelta(1, '"words": 7}'.replace("\\x1b", "\\\\\\\\u001b"))]
        yield [PartEnd(1), Finish("tool_use")]

    async def aclose(self): ...

@tool
async def write(to: str, words: int, context: ToolContext) -> str:
    "Write a letter."
    await context.progress("3 of 7 words")
    await Until("written").wait()
    return "A letter."

agent = Agent("a", model=Writer(), tools=[write])
"""


def go(folder: Path, name: str) -> None:
    (folder / name).touch()


@pytest.mark.parametrize("columns", [80, 40])
def test_a_call_from_its_first_letter_to_its_result(agent_file: AgentFile, tmp_path: Path, columns: int) -> None:
    agent_file(WRITER.replace("\\x1b[3", "").replace("1mAnn", "Ann"))
    with Terminal(["chat", "agents.py"], tmp_path, columns=columns) as chat:
        chat.prompt()
        chat.enter("Write to Ann.")
        chat.until("thinking …  They want a letter.")
        go(tmp_path, "thought")
        chat.until('thought: They want a letter.\n→ write {"to": "Ann",')
        assert "thinking" not in chat.text
        go(tmp_path, "half")
        chat.until('→ write {"to": "Ann", "words": 7}\nrunning write …  3 of 7 words')
        chat.until("running write … 2 s  3 of 7 words")
        go(tmp_path, "written")
        chat.prompt()
        text = chat.text
        assert text.count("→ write") == 1
        assert 'thought: They want a letter.\n→ write {"to": "Ann", "words": 7}\n← A letter.' in text
        assert "running" not in text
        assert text.endswith("Written.\n\nyou ›")


def test_escape_sequences_in_arguments_are_shown_also_when_they_are_split(
    agent_file: AgentFile, tmp_path: Path
) -> None:
    agent_file(WRITER)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        for name in ("thought", "half", "written"):
            go(tmp_path, name)
        chat.enter("Write to Ann.")
        chat.until('→ write {"to": "␛[31mAnn", "words": 7}')
        chat.prompt()
        assert b"\x1b[31mAnn" not in chat.raw


NASTY = "\\x1b]0;owned\\x07\\x1b[2J\\x9b31mred"


def test_nothing_that_a_model_or_a_tool_says_moves_the_cursor(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(f"""
        @tool(read_only=True)
        async def look(order: str, context: ToolContext) -> str:
            "Look."
            await context.progress("{NASTY}")
            await context.ask("{NASTY}?", {{"type": "string", "description": "{NASTY}"}})
            raise RuntimeError("{NASTY}")

        agent = Agent("a", tools=[look], model=ScriptedBackend([
            think("{NASTY}") + say("{NASTY}", chunk=1) + call("look", {{"order": "{NASTY}"}}, chunk=1),
            call("no{NASTY}"), say("The end."), fail(OverloadedError("{NASTY}"))]))
    """)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Go.")
        chat.prompt("your answer")
        chat.enter("\x1b[31m")
        chat.prompt()
        chat.enter("Again.")
        chat.prompt()
        for command in ("/sessions", "/cost"):
            chat.enter(command)
            chat.prompt()
        chat.enter("/quit")
        assert chat.end() == 0
        assert "owned" in chat.text
        assert "you › Go." in chat.text, "the screen was never cleared"
    for sequence in (b"\x1b]0;", b"\x1b[2J", b"\x9b31m", b"\xc2\x9b", b"\x07"):
        assert sequence not in chat.raw, sequence


def test_a_window_that_becomes_narrow_while_a_tool_runs(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        @tool
        async def work(context: ToolContext) -> str:
            "Work."
            await context.progress("a long word about what it is that is done here just now")
            await Until("narrow").wait()
            await context.progress("another long word about what it is that is done here")
            await Until("go").wait()
            return "Worked."

        agent = Agent("a", tools=[work], model=ScriptedBackend([call("work"), say("Done.")]))
    """)
    with Terminal(["chat", "agents.py"], tmp_path, columns=80) as chat:
        chat.prompt()
        chat.enter("Work.")
        chat.until("running work …  a long word about what it is that is done here just now")
        chat.resize(40)
        go(tmp_path, "narrow")
        chat.until("another long word…")
        go(tmp_path, "go")
        chat.prompt()
        assert "→ work {}\n← Worked." in chat.text
        assert "another" not in chat.text


def test_an_error_of_a_provider_is_one_block_that_says_what_to_do(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        agent = Agent("a", model=ScriptedBackend([
            [fail(OverloadedError("'acme' is overloaded (status 529)", request_id="req_7"))], say("Here I am.")]),
            limits=Limits(failures=1))
    """)
    with Terminal(["chat", "agents.py"], tmp_path, columns=60) as chat:
        chat.prompt()
        chat.enter("Hello?")
        chat.prompt()
        assert (
            "you › Hello?\n"
            "error: 'acme' is overloaded (status 529) (overloaded)\n"
            "  The provider's id of this request: req_7\n"
            "  What you said is kept: say “go on” in a moment. Or take\n"
            "  another model: /model.\n"
            "\n"
            "you ›"
        ) in chat.text
