"""Importing ownloop is cheap, and loads no SDK, server or terminal library."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HEAVY = {
    "aiohttp",
    "anthropic",
    "httpx2",
    "huggingface_hub",
    "openai",
    "prompt_toolkit",
    "starlette",
    "uvicorn",
    "xllamacpp",
}

LIBRARIES = "import asyncio, jsonschema, orjson, pydantic, sqlite3"

MEASURE = """
import os, sys
before = os.times()
{statement}
after = os.times()
print(after.user + after.system - before.user - before.system)
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def run(statement: str) -> tuple[float, set[str]]:
    script = MEASURE.format(statement=statement)
    # As for a user, whose second start finds compiled modules.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    cpu_s, modules = done.stdout.splitlines()
    return float(cpu_s), set(modules.split())


@pytest.mark.parametrize(
    ("statement", "bound"),
    [("import ownloop", 0.3), ("from ownloop import Agent, tool", 3.0)],
)
def test_an_import_costs_little_cpu_and_loads_nothing_heavy(statement: str, bound: float):
    """`bound` is a multiple of what the libraries cost that the core stands on, for machines differ."""
    runs, libraries = zip(*[(run(statement), run(LIBRARIES)) for _ in range(5)], strict=True)
    # The least of several: a busy machine makes a run slower, never faster.
    assert min(cpu_s for cpu_s, _ in runs) <= bound * min(cpu_s for cpu_s, _ in libraries)
    assert runs[0][1] & HEAVY == set()
