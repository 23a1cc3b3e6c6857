from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ownloop.backends import llama_server as module
from ownloop.backends.llama_server import (
    LlamaServer,
    LlamaServerSettings,
    LocalServerPool,
    default_threads,
    steering_template,
)
from ownloop.backends.weights import ensure_default_model
from ownloop.errors import BackendUnavailableError, ConfigError

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(server: LlamaServer, text: str, *, key: str | None = None, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 40, **fields}
    request = urllib.request.Request(
        f"{server.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {server.api_key if key is None else key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pid: int, within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not alive(pid)


# ── without a model ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_number_of_threads_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OWNLOOP_LOCAL_THREADS", raising=False)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 16)
    assert default_threads() == 2
    monkeypatch.setattr(module.os, "cpu_count", lambda: None)
    assert default_threads() == 1
    monkeypatch.setenv("OWNLOOP_LOCAL_THREADS", "4")
    assert default_threads() == 4
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("OWNLOOP_LOCAL_THREADS", wrong)
        with pytest.raises(ConfigError, match="OWNLOOP_LOCAL_THREADS"):
            default_threads()


async def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ownloop\[local\]'"):
        await LlamaServer.open(Path("m.gguf"))


async def test_a_server_that_is_not_started_has_no_address() -> None:
    server = LlamaServer(LlamaServerSettings(Path("m.gguf")))
    assert server.generation == 0
    assert server.log_tail == ""
    with pytest.raises(BackendUnavailableError, match="not started"):
        _ = server.base_url
    await server.aclose()
    with pytest.raises(BackendUnavailableError, match="closed"):
        await server.ensure()


def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Put another program in the place of the child's."""
    path = tmp_path / "child.py"
    path.write_text(
        "import json, os, sys, time\nsettings = json.loads(sys.stdin.readline())\n" + textwrap.dedent(program)
    )
    monkeypatch.setattr(module, "_CHILD", path)
    monkeypatch.setattr(module, "_require_xllamacpp", lambda: None)


async def test_a_child_that_dies_while_loading_tells_its_last_words_without_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # 1 MB of log, more than any pipe holds: it must not get stuck in writing it.
    stand_in(
        monkeypatch,
        tmp_path,
        """
        sys.stderr.write("chatter\\n" * 130_000)
        sys.stderr.write(f"cannot load, key {settings['api_key']} out of memory")
        sys.exit(3)
        """,
    )
    server = LlamaServer(LlamaServerSettings(Path("big.gguf")))
    with pytest.raises(BackendUnavailableError, match=r"'big.gguf' \(exit code 3\)") as caught:
        await server.ensure()
    assert caught.value.detail is not None
    assert caught.value.detail.endswith("chatter\ncannot load, key [key] out of memory")
    assert server.api_key not in str(caught.value)
    assert server.generation == 0


async def test_a_large_template_gets_through_the_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "sys.stderr.write(str(len(settings['template']))); sys.exit(1)")
    server = LlamaServer(LlamaServerSettings(Path("m.gguf"), template="x" * 300_000))
    with pytest.raises(BackendUnavailableError, match="300000"):
        await server.ensure()


async def test_a_child_that_hangs_is_ended_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "print('loading', file=sys.stderr, flush=True); time.sleep(60)")
    server = LlamaServer(LlamaServerSettings(Path("m.gguf"), start_timeout_s=2))
    told: list[str] = []
    with pytest.raises(BackendUnavailableError, match="not get ready within 2 s"):
        await server.ensure(told.append)
    assert told[0] == "loading model…"
    assert server._child is not None
    assert server._child.process.returncode == -signal.SIGKILL


async def test_a_cancelled_start_leaves_no_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "time.sleep(60)")
    server = LlamaServer(LlamaServerSettings(Path("m.gguf")))
    task = asyncio.ensure_future(server.ensure())
    while server._child is None:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server._child.process.returncode == -signal.SIGKILL


async def test_closing_ends_a_start_that_others_wait_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, "time.sleep(60)")
    server = LlamaServer(LlamaServerSettings(Path("m.gguf")))
    tasks = [asyncio.ensure_future(server.ensure()) for _ in range(3)]
    while server._child is None:
        await asyncio.sleep(0.01)
    await server.aclose()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, BackendUnavailableError)
    assert server._child.process.returncode == -signal.SIGKILL


async def test_the_child_gets_no_secrets_by_environment_or_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-planted")
    monkeypatch.setenv("DATABASE_URL", "postgres://planted")
    stand_in(
        monkeypatch,
        tmp_path,
        "open(settings['model_path'], 'w').write(json.dumps([dict(os.environ), sys.argv, settings])); sys.exit(1)",
    )
    server = LlamaServer(LlamaServerSettings(tmp_path / "seen.json"))
    with pytest.raises(BackendUnavailableError):
        await server.ensure()
    environ, argv, settings = json.loads((tmp_path / "seen.json").read_text())
    assert environ["PATH"] == os.environ["PATH"]
    assert environ["OMP_WAIT_POLICY"] == "passive"
    assert "planted" not in json.dumps([environ, argv])
    assert server.api_key not in json.dumps([environ, argv])
    assert settings["api_key"] == server.api_key


# ── with the real server ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture(scope="module")
def model() -> Path:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra `local`")
    return ensure_default_model()


@pytest.fixture
async def server(model: Path) -> AsyncIterator[LlamaServer]:
    server = await LlamaServer.open(model, template=steering_template(), threads=1)
    yield server
    await server.aclose()


@pytest.mark.slow
async def test_it_answers_whoever_has_the_key(server: LlamaServer) -> None:
    assert server.base_url.startswith("http://127.0.0.1:")
    assert server.generation == 1
    reply = await asyncio.to_thread(ask, server, "What is the capital of France?")
    assert "Paris" in reply["choices"][0]["message"]["content"]
    assert reply["model"] == "local"
    reply = await asyncio.to_thread(ask, server, "What is the weather in Paris?", tools=[TOOL])
    call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})

    for wrong in ("", "wrong"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(ask, server, "Hello!", key=wrong)
        assert refused.value.code == 401
        refused.value.close()
    assert server.api_key not in server.log_tail
    if sys.platform == "linux":
        proc = Path(f"/proc/{server.pid}")
        assert server.api_key.encode() not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()


@pytest.mark.slow
async def test_a_killed_server_comes_back(server: LlamaServer) -> None:
    first = server.pid
    os.kill(first, signal.SIGKILL)
    await asyncio.gather(*(server.ensure() for _ in range(5)))  # at once: it may not even be reaped yet
    assert server.generation == 2
    assert server.pid != first
    assert not alive(first)
    reply = await asyncio.to_thread(ask, server, "What is the capital of France?")
    assert "Paris" in reply["choices"][0]["message"]["content"]
    await server.ensure()
    assert server.generation == 2


@pytest.mark.slow
async def test_a_request_that_ends_the_process_is_survived(server: LlamaServer) -> None:
    # A forced tool choice with the steering template aborts llama.cpp; our backend never sends it.
    with pytest.raises((OSError, urllib.error.URLError)):
        await asyncio.to_thread(
            ask, server, "Use get_weather for Paris.", tools=[TOOL], tool_choice="required", max_tokens=80
        )
    await server.ensure()
    assert server.generation == 2


@pytest.mark.slow
async def test_it_stops_when_closed_and_ctrl_c_is_not_for_it(model: Path) -> None:
    server = await LlamaServer.open(model)
    pid = server.pid
    os.kill(pid, signal.SIGINT)
    await asyncio.sleep(0.2)
    assert alive(pid)
    assert os.getpgid(pid) != os.getpgid(0)  # the terminal's signals do not even reach it
    await server.aclose()
    assert not alive(pid)
    assert server._child is not None
    assert server._child.process.returncode == 0  # SIGTERM was enough
    await server.aclose()
    with pytest.raises(BackendUnavailableError, match="closed"):
        await server.ensure()


@pytest.mark.slow
async def test_a_frozen_server_is_ended_after_the_grace(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_GRACE_S", 0.3)
    server = await LlamaServer.open(model)
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    await server.ensure()  # it may be busy: no reason to end it
    assert server.pid == pid
    await server.aclose()
    assert not alive(pid)


@pytest.mark.slow
async def test_the_log_of_a_model_that_does_not_load_is_shown(model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:20_000_000])  # noqa: ASYNC240  nothing else runs in this loop
    with pytest.raises(BackendUnavailableError, match=r"(?s)exit code 1.*model is corrupted or incomplete"):
        await LlamaServer.open(cut)


@pytest.mark.slow
def test_it_outlives_event_loops(model: Path) -> None:
    pool = LocalServerPool()
    settings = LlamaServerSettings(model, threads=1)

    async def use() -> tuple[int, int]:
        servers = await asyncio.gather(*(pool.get(settings) for _ in range(3)))
        assert len(set(map(id, servers))) == 1
        return servers[0].pid, servers[0].generation

    first = asyncio.run(use())
    assert asyncio.run(use()) == first
    asyncio.run(pool.aclose())
    assert not alive(first[0])
    with pytest.raises(BackendUnavailableError, match="closed"):
        asyncio.run(use())


PARENT = """
import asyncio, os, sys, time
from pathlib import Path
from ownloop.backends.llama_server import LlamaServer

async def main():
    server = await LlamaServer.open(Path(sys.argv[1]), threads=1)
    if sys.argv[2] == "forked" and os.fork() == 0:
        # Holds a copy of the pipe's end whose closing would tell the child.
        time.sleep(60)
        os._exit(0)
    print(server.pid, flush=True)
    if sys.argv[2] != "leaves":
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "leaves", "forked"])
async def test_it_dies_with_its_parent(model: Path, way: str) -> None:
    parent = subprocess.Popen(  # noqa: ASYNC220  nothing else runs in this loop
        [sys.executable, "-W", "ignore", "-c", PARENT, str(model), way], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    try:
        child = int(await asyncio.to_thread(parent.stdout.readline))
        if way != "leaves":
            assert alive(child)
            parent.kill()
        assert await gone(child)
    finally:
        os.killpg(parent.pid, signal.SIGKILL) if way == "forked" else parent.kill()
        parent.wait()
        parent.stdout.close()
