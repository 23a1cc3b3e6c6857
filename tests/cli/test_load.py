from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from ownloop.cli.load import load_agent
from ownloop.errors import ConfigError
from tests.cli.conftest import AgentFile, Program


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.chdir(tmp_path)


def refused(where: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_agent(where)
    return str(caught.value)


def test_the_only_agent_needs_no_name(agent_file: AgentFile) -> None:
    agent_file('bot = same = Agent("one", model="local")')
    assert load_agent("agents.py").name == "one"
    assert load_agent("agents.py:same").name == "one"


def test_a_module_is_named_without_its_suffix(agent_file: AgentFile) -> None:
    agent_file('bot = Agent("one", model="local")', "some_bots.py")
    assert load_agent("some_bots").name == "one"
    assert load_agent("some_bots:bot").name == "one"


def test_a_class_of_the_contract_is_an_agent(agent_file: AgentFile) -> None:
    agent_file("""
        from ownloop import AgentBase
        class Concierge(AgentBase):
            @classmethod
            async def create(cls, config, on_logs, on_interaction_request): return cls()
            async def stop(self): ...
            async def interaction(self, interaction): ...
    """)
    assert load_agent("agents.py").name == "Concierge"


def test_neighbours_of_the_file_can_be_imported(agent_file: AgentFile, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "prices.py").write_text("PRICE = 5")
    (tmp_path / "sub" / "shop.py").write_text(
        'import prices\nfrom ownloop import Agent\na = Agent(f"shop{prices.PRICE}", model="local")'
    )
    assert load_agent("sub/shop.py").name == "shop5"


@pytest.mark.parametrize(
    ("source", "where", "said"),
    [
        ("", "agents.py", "agents.py holds no agent; define one at its top level"),
        ("x = 1", "agents.py:x", "agents.py:x is of type 'int', not an Agent"),
        ('a = Agent("a", model="local")', "agents.py:b", "agents.py has no 'b'; the agents in it: a"),
        (
            'a = Agent("a", model="local")\nb = Agent("b", model="local")',
            "agents.py",
            "holds several agents; name one: agents.py:a, agents.py:b",
        ),
        ("def broken(:", "agents.py", "line 22: invalid syntax"),
        ("1 / 0", "agents.py", "agents.py, line 22: it could not be run, ZeroDivisionError: division by zero"),
        ("import no_such_thing", "agents.py", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise SystemExit(3)", "agents.py", "it could not be run, SystemExit: 3"),
        ('a = Agent("no good name!", model="local")', "agents.py", "agents.py, line 22: agent name 'no good name!'"),
        ("@tool\ndef f(x): ...", "agents.py", "agents.py, line 22: tool 'f': parameter 'x' has no annotation"),
    ],
)
def test_what_cannot_be_loaded_is_said_with_its_line(agent_file: AgentFile, source: str, where: str, said: str) -> None:
    agent_file(source)
    assert said in refused(where)


MODEL = """
from ownloop import AgentBase, AgentTurn, Backend

class Parrot(Backend):
    name = "parrot"
    def add_user_message(self, content): ...
    async def next_turn(self, tool_schemas): return AgentTurn(["Hi."])
    def add_tool_result(self, tool_call_id, name, content, is_error): ...

class Half(AgentBase):
    @classmethod
    async def create(cls, config, on_logs, on_interaction_request): return cls()

class Whole(Half):
    async def stop(self): ...
    async def interaction(self, interaction): ...

class Alone: ...

def make(): ...

whole = Whole()
script = ScriptedBackend([])
parrot = Parrot()
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Parrot", 'a Backend class, which is a model; give it to an agent: agent = Agent("name", model=Parrot)'),
        ("parrot", "a model (Parrot), not an agent; give it to one"),
        ("script", "a model (ScriptedBackend), not an agent; give it to one"),
        ("Half", "an AgentBase class without interaction, stop; define what is missing"),
        ("whole", "an instance of Whole; name the class"),
        ("Alone", "a class (Alone), not an Agent; let it inherit from ownloop.AgentBase"),
        ("make", "a function, not an agent; if it makes one, call it at the top level"),
    ],
)
def test_what_is_no_agent_is_named_and_how_to_make_one_of_it(agent_file: AgentFile, name: str, said: str) -> None:
    agent_file(MODEL)
    assert f"agents.py:{name} is {said}" in refused(f"agents.py:{name}")
    assert refused(f"agents.py:{name}").endswith("; the agents in it: Whole")


def test_a_file_with_only_a_model_in_it_says_so(agent_file: AgentFile) -> None:
    agent_file(MODEL[: MODEL.index("class Half")])
    assert refused("agents.py") == (
        "agents.py holds no agent; Parrot in it is a Backend class, which is a model; "
        'give it to an agent: agent = Agent("name", model=Parrot)'
    )
    assert refused("agents.py:x").startswith("agents.py has no 'x'; it holds no agent; Parrot in it is")


def test_an_agent_is_found_by_its_own_name_too(agent_file: AgentFile) -> None:
    agent_file('bot = Agent("front-desk", model="local")\nother = Agent("bot", model="local")')
    assert load_agent("agents.py:front-desk").name == "front-desk"
    assert load_agent("agents.py:bot").name == "front-desk"  # what stands at the top level comes first


def test_a_path_may_hold_colons(agent_file: AgentFile, tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    agent_file('bot = Agent("one", model="local")', "a:b/c:d.py")
    for where in ("a:b/c:d.py", "a:b/c:d.py:bot", str(tmp_path / "a:b/c:d.py")):
        assert load_agent(where).name == "one"


def test_a_file_that_runs_itself_is_told_how_not_to(agent_file: AgentFile) -> None:
    agent_file('print(Agent("one", model=ScriptedBackend([])).run_sync("Hi"))')

    async def load() -> None:
        load_agent("agents.py")

    with pytest.raises(ConfigError, match=r"belongs under: if __name__ == \"__main__\":$"):
        asyncio.run(load())


def test_a_file_that_is_not_there_is_said_and_the_one_that_may_be_meant(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("")
    assert refused("agent.py") == "there is no file 'agent.py'; did you mean 'agents.py'?"
    assert refused("nothing/like/it.py") == "there is no file 'nothing/like/it.py'"
    assert "is a folder" in refused("./")
    (tmp_path / "agents.txt").write_text("")
    assert refused("./agents.txt") == "'agents.txt' is no Python file; its name should end in .py"
    assert refused("nomodule") == "there is no module 'nomodule' here, and no file 'nomodule.py'"
    assert refused("agentz") == "there is no module 'agentz' here, and no file 'agentz.py'; did you mean 'agents.py'?"


def test_what_cannot_be_loaded_ends_with_2(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("1 / 0")
    for command in (("run", "agents.py", "Hi"), ("chat", "agents.py"), ("chat", "absent.py")):
        done = ownloop(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("ownloop: ")
        assert done.stderr.count("\n") == 1


def test_a_model_that_does_not_exist_is_said_and_nothing_is_stored(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('a = Agent("a", model="opnai:gpt-4o")')
    done = ownloop("chat", "agents.py", stdin="Hi\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'openai:gpt-4o'?" in done.stderr
    assert "keeps sessions" not in ownloop("chat", "agents.py", "--session", "sess_x").stderr
