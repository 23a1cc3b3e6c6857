from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import AgentFile, Program


def test_without_the_package_of_the_local_model_the_extra_is_named(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        import sys
        sys.modules["xllamacpp"] = None  # as if it were not installed
        agent = Agent("a", model="local")
    """)
    for command in (("run", "agents.py", "Hi"), ("chat", "agents.py")):
        done = ownloop(*command)
        assert done.returncode == 2
        assert "pip install 'ownloop[local]'" in done.stderr


def test_without_the_sdk_of_a_provider_the_extra_is_named(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        import sys
        sys.modules["openai"] = None
        agent = Agent("a", model="openai:gpt-4o")
    """)
    done = ownloop("run", "agents.py", "Hi", OPENAI_API_KEY="sk-none")
    assert done.returncode in (1, 2)
    assert "pip install 'ownloop[openai]'" in done.stderr
    assert "sk-none" not in done.stderr


def test_without_a_key_the_variable_is_named(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model="openai:gpt-4o")')
    done = ownloop("run", "agents.py", "Hi", OPENAI_API_KEY="")
    assert done.returncode == 2
    assert "set OPENAI_API_KEY, or try model 'local', which needs none" in done.stderr


def test_a_cache_that_cannot_be_written_is_named(agent_file: AgentFile, ownloop: Program, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model="local")')
    (tmp_path / "cache").write_text("a file, no folder")
    done = ownloop("run", "agents.py", "Hi", OWNLOOP_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert f"cannot keep the model in '{tmp_path}/cache/models'" in done.stderr
    assert "OWNLOOP_CACHE names another folder" in done.stderr


def test_the_chat_says_what_it_is_and_where_sessions_are_kept(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        script = ScriptedBackend([say("Hello.")])
        agent = Agent("support", model=script, suggestions=["Where is A1?"])
    """)
    done = ownloop("chat", "agents.py", HOME="/home/somebody", XDG_DATA_HOME="/nowhere", OWNLOOP_STORE="memory")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "support on scripted",
        "Sessions are kept in memory, as long as this program runs. Type /help for help,",
        "/quit to leave.",
        "",
        "Try:",
        "  Where is A1?",
        "",
    ]
