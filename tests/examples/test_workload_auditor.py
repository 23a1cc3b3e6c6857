"""examples/workload_auditor.py: the user's own loop on any backend, and the same tools in an Agent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from ownloop import ModelSettings, OpenAICompatibleBackend
from ownloop.backends.anthropic import ClaudeBackend
from ownloop.backends.base import AdapterBackend
from ownloop.backends.huggingface import QwenHFBackend
from ownloop.backends.llama_server import LlamaServer, steering_template
from ownloop.backends.models import open_model
from ownloop.backends.openai_responses import OpenAIResponsesBackend
from ownloop.backends.weights import locate_model
from tests.backends.wire_server import DONE, Reply, frame, text
from tests.cli.conftest import Program
from tests.cli.terminal import Terminal, environment
from tests.examples.conftest import EXAMPLES, MODEL_S, Loader, Model, call, say, served

FILE = str(EXAMPLES / "workload_auditor.py")
MEASURE = ("measure_workload", {"name": "W1"})


async def audit(auditor: Any, model: Model) -> list[str]:
    """Run the example's loop on a model, and return the lines it shows."""
    async with aclosing(AdapterBackend(open_model(model.string), system_prompt=auditor.PROMPT)) as backend:
        shown: list[str] = [line async for line in auditor.audit(backend, "W1")]
    return "\n".join(shown).splitlines()


async def test_the_loop_runs_every_call_and_hands_the_results_back(example: Loader) -> None:
    calls = call(MEASURE, ("price_of_gpus", {"name": "W9"}), ("fly", {}))
    with served(calls, say("6 GPUs are wasted.")) as model:
        assert await audit(example("workload_auditor"), model) == [
            "→ measure_workload {'name': 'W1'}",
            "← Your workload W1 uses 2 of its 8 GPUs.",
            "→ price_of_gpus {'name': 'W9'}",
            "← KeyError: 'W9'",
            "→ fly {}",
            "← KeyError: 'fly'",
            "6 GPUs are wasted.",
        ]
        asked = model.asked
    assert [message["role"] for message in asked[0]] == ["system", "user"]
    assert asked[0][-1]["content"] == "Audit this workload: W1."
    assert [message["role"] for message in asked[1]] == ["system", "user", "assistant", "tool", "tool", "tool"]
    assert "KeyError: 'W9'" in asked[1][-2]["content"]


async def test_the_loop_ends_at_max_steps(example: Loader) -> None:
    with served(call(MEASURE)) as model:
        assert (await audit(example("workload_auditor"), model))[-1] == "(stopped after 8 steps)"
        assert len(model.asked) == 8


async def test_an_answer_that_was_cut_goes_on_as_the_contract_says(example: Loader) -> None:
    cut = Reply([text("Six GPUs"), frame(finish="length"), DONE])
    with served(cut, say("are wasted.")) as model:
        assert await audit(example("workload_auditor"), model) == ["Six GPUs", "are wasted."]
        assert model.asked[1][-1]["content"] == "Six GPUs"


async def test_the_same_tools_make_an_agent_that_ends_at_max_steps_too(example: Loader) -> None:
    with served(call(MEASURE)) as model:
        result = await example("workload_auditor", MODEL=model.string).agent.run("Audit this workload: W1.")
        assert (result.outcome, len(model.asked)) == ("max_turns", 8)
        assert model.asked[1][-1]["content"] == "Your workload W1 uses 2 of its 8 GPUs."


# --- as a program ---


def python(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `python examples/workload_auditor.py …`."""
    return subprocess.run(
        [sys.executable, "-W", "error", FILE, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder, **env),
        timeout=MODEL_S,
        check=False,
    )


@pytest.mark.slow
def test_both_loops_run_from_the_command_line(tmp_path: Path, ownloop: Program) -> None:
    with served(call(MEASURE), say("6 GPUs are wasted.")) as model:
        done = python(tmp_path, "W1", MODEL=model.string)
        assert (done.returncode, done.stdout.splitlines()[2:], done.stderr) == (0, ["6 GPUs are wasted."], "")
    with served(call(MEASURE), say("6 GPUs are wasted.")) as model:
        done = ownloop("run", FILE, "Audit this workload: W1.", MODEL=model.string)
        assert (done.returncode, done.stdout) == (0, "6 GPUs are wasted.\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("gpt-5", "did you mean 'openai:gpt-5'?"),
        ("anthropic:claude-sonnet-5", "set ANTHROPIC_API_KEY"),
        ("http://127.0.0.1:9/v1#x", "is the server running?"),
    ],
)
def test_a_model_that_cannot_be_had_is_said_in_words(tmp_path: Path, model: str, why: str) -> None:
    done = python(tmp_path, MODEL=model)
    assert done.returncode == 1
    assert why in done.stderr


# --- on the real local model ---

SAID = ["→ measure_workload {'name': 'W1'}", "← Your workload W1 uses 2 of its 8 GPUs."]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_key_it_audits_with_the_local_model(tmp_path: Path) -> None:
    done = python(tmp_path)
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, SAID), done.stderr
    assert "8 GPUs" in done.stdout.splitlines()[2]
    with Terminal(["chat", FILE], tmp_path) as chat:
        chat.prompt(limit_s=MODEL_S)
        chat.enter("Audit this workload: W1.")
        chat.until("Your workload W1 uses 2 of its 8 GPUs.", limit_s=MODEL_S)
        chat.prompt(limit_s=MODEL_S)


TINY = ModelSettings(temperature=0.0, max_tokens=80)
WIRES: dict[str, Callable[..., AdapterBackend]] = {
    "chat": lambda url, key, **more: OpenAICompatibleBackend(url, "local", key, **more),
    "responses": lambda url, key, **more: OpenAIResponsesBackend("local", key, base_url=url, **more),
    "claude": lambda url, key, **more: ClaudeBackend("local", key, base_url=url, **more),
    "huggingface": lambda url, key, **more: QwenHFBackend("local", key, base_url=url, **more),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_loop_is_the_same_on_every_wire(example: Loader) -> None:
    auditor = example("workload_auditor")
    server = await LlamaServer.open(await locate_model("", None), template=steering_template())
    heard: dict[str, Any] = {}
    try:
        await server.ensure()
        for wire, made_by in WIRES.items():
            backend = made_by(server.base_url, server.api_key, system_prompt=auditor.PROMPT, settings=TINY)
            async with aclosing(backend):
                lines = [line async for line in auditor.audit(backend, "W1")]
            heard[wire] = "\n".join(lines).splitlines()
    finally:
        await server.aclose()
    for wire in WIRES:
        assert heard[wire][:2] == SAID, wire
        assert "GPUs" in heard[wire][2], wire
