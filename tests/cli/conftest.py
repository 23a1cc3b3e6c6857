"""Agents in files, as users write them, and the program run on them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.terminal import OWNLOOP, environment

HEAD = """\
import asyncio, json, os, time
from pathlib import Path
from ownloop import Agent, ScriptedBackend, ToolContext, tool
from ownloop.backends.scripted import call, fail, finish, gate, say, think, wait
from ownloop.core.events import Limits
from ownloop.errors import OverloadedError

HERE = Path(__file__).parent

def note(name, *words):
    with (HERE / name).open("a") as file:
        print(*words, file=file, flush=True)

class Until:
    "Waits until a file is there."
    def __init__(self, name):
        self.file = HERE / name
    async def wait(self):
        while not self.file.exists():
            await asyncio.sleep(0.01)

"""

AgentFile = Callable[..., Path]
Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def agent_file(tmp_path: Path) -> AgentFile:
    def write(source: str, name: str = "agents.py") -> Path:
        file = tmp_path / name
        file.write_text(HEAD + dedent(source))
        return file

    return write


@pytest.fixture
def ownloop(tmp_path: Path) -> Program:
    """Run the program without a terminal; return its exit code and what it wrote."""

    def run(*arguments: str | Path, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*OWNLOOP, *map(str, arguments)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(tmp_path, **env),
            timeout=100,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        return done

    return run
