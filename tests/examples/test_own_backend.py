"""examples/own_backend.py: three methods on rules or any program, and sessions that outlive their process."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ownloop import open_store
from ownloop.core.events import RunEnded
from ownloop.core.ports import Filter, Page
from tests.cli.conftest import Program
from tests.cli.terminal import Terminal
from tests.examples.conftest import EXAMPLES, Loader

FILE = str(EXAMPLES / "own_backend.py")


async def test_the_rules_answer_call_the_tool_and_remember(example: Loader) -> None:
    async with example("own_backend").agent.open() as agent:
        first = await agent.run("Who am I?")
        assert first.text == "Who are you?"
        said = [
            (await agent.run(words, session_id=first.session_id)).text
            for words in ("My name is Ada.", "What is 6 * 7?", "Who am I?")
        ]
        assert said == ["You are Ada, I believe.", "6 times 7 is 42.", "You are Ada, I believe."]
        assert (await agent.run("Who am I?")).text == "Who are you?", "another session knows another conversation"


async def test_a_new_process_is_given_the_same_text_as_one_that_was_there(
    example: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load` loses nothing and adds nothing: the program cannot tell that there was a restart."""
    messages = ["My name is Ada.", "What is 6 * 7?", "Who am I?", "What is 2 * 2?"]
    texts: list[list[str]] = []
    for restarts in (False, True):
        module = example("own_backend")
        heard: list[str] = []
        rules = module.rules

        def listening(text: str, rules: Any = rules, heard: list[str] = heard) -> str:
            heard.append(text)
            return rules(text)

        monkeypatch.setattr(module, "rules", listening)
        session_id: str | None = None
        if restarts:
            for message in messages:
                session_id = (await module.agent.run(message, session_id=session_id, store="s.db")).session_id
        else:
            async with module.agent.open() as agent:
                for message in messages:
                    session_id = (await agent.run(message, session_id=session_id)).session_id
        texts.append(heard)
    assert texts[0] == texts[1]
    assert 'You: {"tool": "multiply", "input": {"a": 6, "b": 7}}\nResult of multiply: 6 times 7 is 42.' in texts[1][-1]


PROGRAM = """
    import json, os, sys, time
    text = sys.stdin.read()
    last = text.splitlines()[-1]
    if "fail" in last:
        sys.exit(3)
    if "wait" in last:
        open("pid", "w").write(str(os.getpid()))
        time.sleep(100)
    if "twelve" in last:
        print(json.dumps({"tool": "multiply", "input": {"a": 12, "b": "many"}}))
    elif last.startswith("Error of multiply:"):
        print(json.dumps({"tool": "multiply", "input": {"a": 12, "b": 12}}))
    elif '"name": "multiply"' in text:
        print(last)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The command of a program that is a model of sorts. Told to wait, it writes its pid into a pipe."""
    os.mkfifo(tmp_path / "pid")
    (tmp_path / "model.py").write_text(dedent(PROGRAM))
    return shlex.join([sys.executable, str(tmp_path / "model.py")])


async def test_a_program_is_the_model(example: Loader, program: str) -> None:
    async with example("own_backend", LLM=program).agent.open() as agent:
        assert (await agent.run("Hello?")).text == "User: Hello?"
        # It is told what was wrong with its call, calls again, and reads the result.
        assert (await agent.run("Say twelve.")).text == "Result of multiply: 12 times 12 is 144."


@pytest.mark.parametrize(
    ("command", "why"), [(None, "ended with 3"), ("no-such-program", "No such file or directory: 'no-such-program'")]
)
async def test_a_program_that_fails_fails_the_run_and_says_why(
    example: Loader, program: str, command: str | None, why: str
) -> None:
    result = await example("own_backend", LLM=command or program).agent.run("Please fail.")
    assert result.outcome == "failed"
    assert result.error is not None
    assert why in result.error.message


async def test_a_cancel_ends_the_program(example: Loader, program: str, tmp_path: Path) -> None:
    async with example("own_backend", LLM=program).agent.open() as agent:
        session_id = (await agent.service.create_session("own")).session_id
        accepted = await agent.service.send(session_id, "Please wait.")
        pid = int(await asyncio.to_thread((tmp_path / "pid").read_text))
        await agent.service.cancel(session_id=session_id)
        assert (await agent.service.wait(accepted)).outcome == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_one_answer_in_a_pipe(ownloop: Program) -> None:
    done = ownloop("run", FILE, "What is 6 * 7?")
    assert (done.returncode, done.stdout) == (0, "6 times 7 is 42.\n")


async def ended(store: Path) -> tuple[str, int]:
    """Return the session in a store, and how many runs ended in it."""
    opened = open_store(store)
    await opened.open()
    try:
        [session] = await opened.sessions(Filter(), Page())
        facts = await opened.read(session.session_id, 0)
        return session.session_id, sum(isinstance(fact.body, RunEnded) for fact in facts)
    finally:
        await opened.aclose()


@pytest.mark.slow
def test_killed_and_started_again_it_goes_on_with_what_was_said(tmp_path: Path) -> None:
    with Terminal(["chat", FILE, "--store", "s.db"], tmp_path) as chat:
        for words, answer in (("My name is Ada.", "You are Ada"), ("What is 6 * 7?", "6 times 7 is 42.")):
            chat.prompt()
            chat.enter(words)
            chat.until(answer)
        chat.prompt()
        chat.kill()
    session_id, runs = asyncio.run(ended(tmp_path / "s.db"))
    assert runs == 2
    with Terminal(["chat", FILE, "--store", "s.db", "--session", session_id], tmp_path) as chat:
        chat.prompt()
        chat.enter("Who am I?")
        chat.prompt()
        assert chat.text.count("You are Ada, I believe.") == 2
        chat.enter("What is 11 * 11?")
        chat.until("11 times 11 is 121.")
        chat.prompt()
        chat.enter("/quit")
        assert chat.end() == 0
    assert asyncio.run(ended(tmp_path / "s.db")) == (session_id, 4)


@pytest.mark.slow
def test_killed_while_the_program_thinks_it_answers_after_the_restart(tmp_path: Path, program: str) -> None:
    env = {"LLM": program}
    with Terminal(["chat", FILE, "--store", "s.db"], tmp_path, env=env) as chat:
        chat.prompt()
        chat.enter("Please wait.")
        pid = int((tmp_path / "pid").read_text())
        chat.kill()
    os.kill(pid, signal.SIGKILL)  # nobody did
    source = tmp_path / "model.py"
    source.write_text(source.read_text().replace('if "wait" in last', "if False"))
    with Terminal(["chat", FILE, "--store", "s.db"], tmp_path, env=env) as chat:
        chat.until("User: Please wait.")
        chat.prompt()
    assert asyncio.run(ended(tmp_path / "s.db"))[1] == 1
