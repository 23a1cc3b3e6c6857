"""`ownloop models`: what can be used here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ownloop.backends.model_forms import FORMS, USUAL_SERVERS
from ownloop.backends.server_probe import FoundServer
from ownloop.cli import models
from ownloop.cli.columns import width
from ownloop.cli.models import show_models
from tests.cli.conftest import Program
from tests.cli.terminal import Terminal

SECRET = "sk-secret-1234"
OLLAMA = FoundServer(USUAL_SERVERS[0], "up", ("qwen3:8b", "evil\x1b[2J"))
REST = [FoundServer(server, "down") for server in USUAL_SERVERS[1:]]

Shown = Callable[..., "Any"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Shown:
    """Return what `ownloop models` writes with these variables and servers."""

    async def show(*servers: FoundServer, columns: int = 90, as_json: bool = False, **env: str) -> str:
        kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        for name in set(os.environ) - set(kept):
            monkeypatch.delenv(name)
        everything = {"COLUMNS": str(columns), "OWNLOOP_CACHE": str(tmp_path), **env}
        for name, value in everything.items():
            monkeypatch.setenv(name, value)

        async def found(env: Any) -> Sequence[FoundServer]:
            return servers or [FoundServer(server, "down") for server in USUAL_SERVERS]

        monkeypatch.setattr(models, "find_servers", found)
        monkeypatch.setattr(models, "fetched_model", lambda: None)
        assert await show_models(as_json=as_json) == 0
        return capfd.readouterr().out

    return show


def row(text: str, form: str) -> str:
    """Return what stands beside and below a form, as one line."""
    after = text[text.index(form) + len(form) :]
    ends = [after.index("\n" + other.example) for other in FORMS if "\n" + other.example in after]
    return " ".join(after[: min([*ends, after.index("\n\n")])].split())


async def test_without_any_key_it_says_what_is_missing(shown: Shown) -> None:
    text = await shown()
    assert row(text, "local ") == (
        "ready a tiny model on this machine, fetched once; no key · "
        "SmolLM2-135M-Instruct is fetched with the first use: 98 MB"
    )
    assert row(text, "anthropic:NAME") == "no key Claude · set ANTHROPIC_API_KEY"
    assert row(text, "hf:NAME") == "no key open models, hosted by Hugging Face · set HF_TOKEN"
    assert row(text, "http://HOST:PORT/v1#NAME").startswith("ready any OpenAI-compatible server")
    assert "keys: MISTRAL_API_KEY, GEMINI_API_KEY, " in row(text, "https://HOST/v1#NAME")
    assert "None at the usual ports: Ollama (11434), vLLM (8000)" in text


async def test_what_is_configured_is_said_and_never_a_key(shown: Shown) -> None:
    env = {
        "ANTHROPIC_API_KEY": SECRET,
        "OPENAI_API_KEY": SECRET,
        "OPENAI_BASE_URL": "https://gateway.example/v1",
        "GROQ_API_KEY": SECRET,
        "OWNLOOP_API_KEY_GPU1": SECRET,
        "HF_TOKEN": "",
    }
    text = await shown(**env)
    assert row(text, "anthropic:NAME") == "ready Claude · the key is in ANTHROPIC_API_KEY"
    assert row(text, "openai:NAME").endswith("OPENAI_API_KEY · goes to gateway.example (by OPENAI_BASE_URL)")
    assert row(text, "hf:NAME").startswith("no key")
    assert "keys are in OWNLOOP_API_KEY_GPU1" in row(text, "http://HOST:PORT/v1#NAME")
    assert "keys are in GROQ_API_KEY · others: MISTRAL_API_KEY" in row(text, "https://HOST/v1#NAME")
    found = await shown(as_json=True, **env)
    assert SECRET not in text + found


@pytest.mark.parametrize(
    "url", [f"https://user:{SECRET}@gateway.example/v1", f"https://gateway.example?key={SECRET}", "http://[x", SECRET]
)
async def test_a_url_that_cannot_be_used_is_said_and_not_shown(shown: Shown, url: str) -> None:
    env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": url}
    text = await shown(**env)
    assert row(text, "openai:NAME").startswith("wrong URL")
    assert row(text, "openai:NAME").endswith("OPENAI_BASE_URL holds no usable URL")
    found = await shown(as_json=True, **env)
    assert SECRET not in text + found
    form = next(form for form in json.loads(found)["forms"] if form["model"] == "openai:NAME")
    assert (form["ready"], form["host"]) == (False, "?")


async def test_packages_that_are_not_installed_are_named_by_their_extra(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"aiohttp", "openai", "anthropic"}
    monkeypatch.setattr(
        "ownloop.backends.model_forms.importlib.util.find_spec", lambda name: name if name in installed else None
    )
    text = await shown()
    assert row(text, "openai:NAME").startswith("no key")
    assert "not installed" in row(text, "local ")
    assert "pip install 'ownloop[local]'" in row(text, "local ")
    assert row(text, "hf:NAME").endswith("pip install 'ownloop[huggingface]' · set HF_TOKEN")
    hf = next(form for form in json.loads(await shown(as_json=True))["forms"] if form["model"] == "hf:NAME")
    assert (hf["missing_packages"], hf["ready"]) == (["huggingface_hub"], False)


async def test_a_fetched_model_is_shown_with_its_place(
    shown: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await shown()
    monkeypatch.setattr(models, "fetched_model", lambda: tmp_path / "models" / "tiny.gguf")
    assert list(models._local({})) == [f"SmolLM2-135M-Instruct, 98 MB, in {tmp_path / 'models'}"]


async def test_models_of_servers_are_strings_to_copy(shown: Shown) -> None:
    many = FoundServer(USUAL_SERVERS[3], "up", tuple(f"m{number}" for number in range(30)))
    text = await shown(OLLAMA, many, FoundServer(USUAL_SERVERS[4], "key"), FoundServer(USUAL_SERVERS[1], "up"))
    assert "Ollama\n  http://localhost:11434/v1#qwen3:8b\n  http://localhost:11434/v1#evil␛[2J\n" in text
    assert "#m19\n  and 10 more\n" in text
    assert "llama.cpp\n  wants a key: set OWNLOOP_API_KEY_LOCALHOST\n" in text
    assert "vLLM\n  has no model yet\n" in text
    assert "None at" not in text
    found = json.loads(await shown(OLLAMA, *REST, as_json=True))
    assert found["kind"] == "models"
    assert found["servers"][0]["models"] == [
        "http://localhost:11434/v1#qwen3:8b",
        "http://localhost:11434/v1#evil\x1b[2J",
    ]
    assert [server["status"] for server in found["servers"]] == ["up", "down", "down", "down", "down"]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
async def test_it_fits(shown: Shown, columns: int) -> None:
    for line in (await shown(OLLAMA, *REST, columns=columns, OPENROUTER_API_KEY=SECRET)).splitlines():
        assert width(line) < columns
        assert line == line.rstrip()


@pytest.mark.slow
def test_in_a_pipe_and_on_a_narrow_terminal(ownloop: Program, tmp_path: Path) -> None:
    done = ownloop("models", "--json")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert {form["model"] for form in json.loads(done.stdout)["forms"]} == {form.example for form in FORMS}
    with Terminal(["models"], tmp_path, columns=40) as terminal:
        assert terminal.end() == 0
        assert terminal.lines[0].startswith("local  ")
        assert terminal.lines[1] == "  a tiny model on this machine, fetched"
        assert "\x1b[32mready" in terminal.raw.decode()
    with Terminal(["models"], tmp_path, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert b"\x1b[" not in terminal.raw
