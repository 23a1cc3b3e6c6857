from __future__ import annotations

import json
from pathlib import Path

import pytest

from ownloop.cli.agent_files import AgentFile, remember, remembered


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "sessions.db")


def known(store: str, agent: str) -> AgentFile:
    found = remembered(store, agent)
    assert found is not None
    return found


def test_each_agent_is_found_where_it_was_loaded_from_last(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    remember(store, "support", "old.py")
    remember(store, "support", "agents.py:bot")
    remember(store, "sales", "/elsewhere/shop.py")
    remember(store, "desk", "my.agents:desk")
    assert known(store, "support").from_here == "agents.py:bot"
    monkeypatch.chdir(tmp_path / "sub")
    assert known(store, "support").from_here == f"{tmp_path}/agents.py:bot"
    assert known(store, "support").file == tmp_path / "agents.py"
    assert known(store, "sales").from_here == "/elsewhere/shop.py"
    assert (known(store, "desk").from_here, known(store, "desk").file) == ("my.agents:desk", None)
    assert known(store, "desk").folder == str(tmp_path)
    assert remembered(store, "nobody") is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"support": 1}', '{"support": {"where": "x"}}', "\0"])
def test_a_damaged_memory_is_none(store: str, text: str) -> None:
    Path(store + ".agents.json").write_text(text)
    assert remembered(store, "support") is None
    remember(store, "support", "agents.py")
    assert known(store, "support").where == "agents.py"


def test_what_cannot_be_written_is_not_remembered(store: str, tmp_path: Path) -> None:
    remember(str(tmp_path / "no" / "such" / "folder.db"), "support", "agents.py")
    remember("memory", "support", "agents.py")
    assert list(tmp_path.iterdir()) == []


def test_it_is_a_file_its_owner_can_read_and_nobody_else(store: str, tmp_path: Path) -> None:
    remember(store, "support", "agents.py")
    assert (tmp_path / "sessions.db.agents.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / "sessions.db.agents.json").read_text()) == {
        "support": {"where": "agents.py", "folder": str(tmp_path)}
    }
