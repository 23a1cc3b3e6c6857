"""The examples as users have them, and models on a server that say what a test tells them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.backends.wire_server import DONE, Reply, WireServer, frame, text
from tests.cli.conftest import ownloop as ownloop  # a fixture

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
APPROVAL = "your answer ›"
MODEL_S = 120.0
"""Fetching the local model once, or an answer of it on a machine that does a lot beside."""

Loader = Callable[..., Any]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Load an example by its name, with these environment variables, in an empty folder."""

    def load(name: str, **env: str) -> ModuleType:
        monkeypatch.chdir(tmp_path)
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


def say(words: str) -> Reply:
    return Reply([text(words), frame(finish="stop"), DONE])


def call(*calls: tuple[str, dict[str, Any]]) -> Reply:
    """Call tools, all in one response."""
    chunks = [
        frame({"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": name, "arguments": json.dumps(input)}}]})
        for i, (name, input) in enumerate(calls)
    ]
    return Reply([*chunks, frame(finish="tool_calls"), DONE])


class Model:
    """A model on a server of its own, for this process and others."""

    def __init__(self, server: WireServer) -> None:
        self.string = f"{server.base_url}#scripted"
        """What MODEL is set to."""
        self._server = server

    @property
    def asked(self) -> list[list[dict[str, Any]]]:
        """The messages of each request so far."""
        return [request.body["messages"] for request in self._server.requests]

    @property
    def heard(self) -> str:
        """The last message of the last request."""
        return self.asked[-1][-1]["content"]


@contextmanager
def served(*replies: Reply) -> Generator[Model]:
    """Serve a model that says these replies, the last one again and again. In a thread: tests may block."""
    started = threading.Event()
    models: list[Model] = []
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        async with WireServer(*replies) as server:
            models.append(Model(server))
            ends.append(lambda: loop.call_soon_threadsafe(over.set))
            started.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert started.wait(30)
    try:
        yield models[0]
    finally:
        ends[0]()
        thread.join(30)
