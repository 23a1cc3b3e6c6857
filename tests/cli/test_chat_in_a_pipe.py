from __future__ import annotations

import re

from tests.cli.conftest import AgentFile, Program
from tests.cli.test_run import ASKING


def test_each_line_of_a_pipe_is_a_message_and_the_answers_are_on_stdout(
    agent_file: AgentFile, ownloop: Program
) -> None:
    agent_file("""agent = Agent("a", model=ScriptedBackend([say("One."), say("Two.")]))""")
    done = ownloop("chat", "agents.py", stdin="first\n\nsecond")
    assert (done.returncode, done.stdout) == (0, "One.\nTwo.\n")
    assert "you ›" not in done.stderr


def test_a_line_of_a_pipe_never_approves_anything(agent_file: AgentFile, ownloop: Program) -> None:
    file = agent_file(ASKING)
    done = ownloop("chat", "agents.py", stdin="Refund A1\na\na\n")
    assert (done.returncode, done.stdout) == (3, "")
    assert 'Waiting for a person: refund {"order": "A1"}\n' in done.stderr
    assert "Left open. Go on with:\n  ownloop chat agents.py --session sess_" in done.stderr
    assert not (file.parent / "effects").exists()


def test_a_pipe_begins_a_session_of_its_own_though_another_one_waits(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file(ASKING)
    assert ownloop("run", "agents.py", "Refund A1").returncode == 3
    done = ownloop("chat", "agents.py", stdin="Refund A1\n")
    assert "Going on where this session stopped" not in done.stderr
    assert 'Waiting for a person: refund {"order": "A1"}\n' in done.stderr
    assert "Another session waits for you:" in done.stderr


def test_a_session_of_another_version_of_the_agent_is_named(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file(ASKING)
    session = re.findall(r"sess_\w+", ownloop("run", "agents.py", "Refund A1").stderr)[0]
    agent_file(ASKING.replace("tools=[refund]", "tools=[]"), "other.py")
    done = ownloop("chat", "other.py")
    assert done.returncode == 0
    waits = f"A session of another version of this agent waits:\n  ownloop chat other.py --session {session}\n"
    assert waits in done.stderr
    assert "Another session" not in done.stderr


def test_a_model_that_cannot_be_is_named_before_anything_else(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model="nobody:none")')
    done = ownloop("chat", "agents.py")
    assert done.returncode == 2
    assert done.stderr.startswith("ownloop: ")
    assert "nobody" in done.stderr


def test_quit_and_the_end_of_the_pipe_leave(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([]))')
    assert ownloop("chat", "agents.py", stdin="/quit\nnever said\n").returncode == 0
    assert ownloop("chat", "agents.py").returncode == 0
