from __future__ import annotations

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
    assert "Left open. Go on with:\n  ownloop chat agents.py --session sess_" in done.stderr
    assert not (file.parent / "effects").exists()


def test_quit_and_the_end_of_the_pipe_leave(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([]))')
    assert ownloop("chat", "agents.py", stdin="/quit\nnever said\n").returncode == 0
    assert ownloop("chat", "agents.py").returncode == 0
