"""Run llama.cpp's own HTTP server (package `xllamacpp`) as a supervised child process that serves one GGUF file.

For the backends of this layer. Only the process is managed here; requests are the caller's, through any client of the
OpenAI or Anthropic wire, at `base_url` with `api_key`. Invariant: no child survives this process, however it ends, and
the key is nowhere but in the memory of the two.

The servers belong to nobody's event loop: the work around the process is done by threads and by polling, so that
a script which calls `asyncio.run` again and again keeps its loaded model. Not for Windows (signals, pipes).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from ownloop.backends.weights import Progress
from ownloop.errors import BackendUnavailableError, ConfigError

_CHILD: Final = Path(__file__).with_name("llama_child.py")
_POLL_S: Final = 0.02
_STOP_GRACE_S: Final = 3.0
_HEALTH_TIMEOUT_S: Final = 1.0
_LOG_LINES: Final = 200
_LOG_LINE_CHARS: Final = 2000
_SHOWN_LOG_LINES: Final = 12

# What the child gets of our environment. It parses a file of unknown origin in C++: other providers' keys and database
# addresses are no business of its.
_ENV_NAMES: Final = frozenset({"HOME", "LANG", "PATH", "TMPDIR", "TZ", "USER"})
_ENV_PREFIXES: Final = (
    *("PYTHON", "LC_", "LD_", "DYLD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("GGML_", "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "VK_"),
)


@dataclass(frozen=True, slots=True)
class LlamaServerSettings:
    """Everything that makes two servers different."""

    model_path: Path
    template: str | None = None
    """A chat template in Jinja; None: the one inside the model file."""
    n_ctx: int = 8192
    """Tokens of context in all slots together: one request may have `n_ctx / n_parallel`."""
    n_parallel: int = 2
    """Requests that run at once. One more waits in the server, in silence, until a slot is free."""
    threads: int | None = None
    """None: `default_threads()` when the server starts."""
    alias: str = "local"
    """The name by which requests may call the model, and which its answers name."""
    start_timeout_s: float = 120.0
    """Small models load in under a second; a large one on a slow disk takes a minute."""


def steering_template() -> str:
    """Return the chat template for the default model: it shows the tiny model worked examples of the tool it needs.

    For that model only; any other has a template of its own in its file.
    """
    return (Path(__file__).parent / "templates" / "steering.jinja").read_text(encoding="utf-8")


def default_threads() -> int:
    """Return how many threads compute: `$OWNLOOP_LOCAL_THREADS`, or two where there are two cores.

    On a busy machine one is faster than two (measured: 1.2 s against 17 s for one cold request).

    Raises:
        ConfigError: The variable holds no positive number.
    """
    text = os.environ.get("OWNLOOP_LOCAL_THREADS", "")
    if not text:
        return min(2, os.cpu_count() or 1)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"OWNLOOP_LOCAL_THREADS is {text!r}, but must be a positive whole number")
    return int(text)


def _child_environment() -> dict[str, str]:
    named = {key: value for key, value in os.environ.items() if key in _ENV_NAMES or key.startswith(_ENV_PREFIXES)}
    # Threads that wait for each other would spin, and keep from a core the very one they wait for: on a busy machine
    # that takes fifty times as long (measured: 50 s against 1 s for a tool call); on an idle one, waiting costs 0.3 s.
    return {"OMP_WAIT_POLICY": "passive"} | named


class LlamaServer:
    """One server for one model and its settings, started by the first `ensure()` and again after it died.

    All methods may be called from several tasks at once. Whoever made it closes it.
    """

    def __init__(self, settings: LlamaServerSettings) -> None:
        self.settings = settings
        self._key = secrets.token_urlsafe(32)
        self._child: _Child | None = None
        self._generation = 0
        self._closed = False
        self._busy = threading.Lock()

    @classmethod
    async def open(
        cls,
        model_path: Path,
        *,
        template: str | None = None,
        n_ctx: int = 8192,
        n_parallel: int = 2,
        threads: int | None = None,
        on_progress: Progress | None = None,
    ) -> Self:
        """Start a server and return it when it is healthy. Raises as `ensure` does."""
        server = cls(
            LlamaServerSettings(model_path, template=template, n_ctx=n_ctx, n_parallel=n_parallel, threads=threads)
        )
        await server.ensure(on_progress)
        return server

    @property
    def base_url(self) -> str:
        """Where the OpenAI wire is served, "http://127.0.0.1:PORT/v1". Another one in each generation."""
        return f"{self._running.url}/v1"

    @property
    def api_key(self) -> str:
        """The key that every request must carry. The same for the life of this object."""
        return self._key

    @property
    def generation(self) -> int:
        """How often it was started: a request that saw another number may have died with an earlier process."""
        return self._generation

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._running.process.pid

    @property
    def log_tail(self) -> str:
        """The last lines that the latest child wrote, without the key; for the text of an error."""
        return self._child.log_tail() if self._child is not None else ""

    async def ensure(self, on_progress: Progress | None = None) -> None:
        """Return when the server is healthy; start it first if it never ran or has died.

        A server that lives but is too busy to answer at once counts as healthy. When this returns, `generation` tells
        whether the process is still the same; whatever ran in an earlier one is lost, and telling so is the caller's.

        Raises:
            ConfigError: The package `xllamacpp` is missing, or the thread count in the environment is wrong.
            BackendUnavailableError: The child died or did not get healthy in time; the text has its last words.
        """
        child = self._child
        if child is not None and not self._closed and await child.serves():
            return
        async with self._alone(on_progress):
            if self._closed:
                raise BackendUnavailableError("the local model server was closed")
            if self._child is not None:
                if await self._child.serves():  # another task was here first
                    return
                self._child.kill()
            _require_xllamacpp()
            self._child = child = _Child(self.settings, self._key)
            try:
                await self._until_healthy(child, on_progress or _silent)
            except BaseException:  # cancellation too: nobody would know of this child
                child.kill()
                raise
            self._generation += 1

    async def aclose(self) -> None:
        """Stop the child: SIGTERM, then SIGKILL after three seconds. Calling it again does nothing."""
        self._closed = True
        async with self._alone(None):
            if self._child is not None:
                await self._child.stop()

    async def __aenter__(self) -> Self:
        await self.ensure()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def _running(self) -> _Child:
        if self._child is None or self._child.url is None:
            raise BackendUnavailableError("the local model server is not started; await ensure() first")
        return self._child

    @contextlib.asynccontextmanager
    async def _alone(self, on_progress: Progress | None) -> AsyncGenerator[None]:
        # A lock of threads, polled: one of asyncio would belong to the event loop in which it was first waited for.
        told = False
        while not self._busy.acquire(blocking=False):
            if on_progress is not None and not told:
                on_progress("loading model…")
                told = True
            await asyncio.sleep(_POLL_S)
        try:
            yield
        finally:
            self._busy.release()

    async def _until_healthy(self, child: _Child, progress: Progress) -> None:
        started = time.monotonic()
        told = 0
        progress("loading model…")
        while True:
            ended = child.process.poll() is not None
            waited_s = time.monotonic() - started
            if ended or waited_s > self.settings.start_timeout_s:
                child.kill()  # before the log is read, so that it is complete
                what = (
                    f"ended while it was loading {self.settings.model_path.name!r} ({child.cause_of_death()})"
                    if ended
                    else f"did not get ready within {self.settings.start_timeout_s:g} s"
                )
                log = child.log_tail()
                raise BackendUnavailableError(f"the local model server {what}; its last words:\n{log}", detail=log)
            if self._closed:
                raise BackendUnavailableError("the local model server was closed while it was starting")
            if child.url is not None and await child.health() == 200:
                return
            if waited_s >= told + 1:
                told = int(waited_s)
                progress(f"loading model… {told} s")
            await asyncio.sleep(_POLL_S)


class LocalServerPool:
    """The servers that one process shares: one for each model and settings, however many sessions use it.

    Made and closed by whoever builds backends. Backends `get` a server and never close it: sessions come and go, a
    loaded model stays until `aclose()`. (Reference counts would unload it between two sessions.)
    """

    def __init__(self) -> None:
        self._servers: dict[LlamaServerSettings, LlamaServer] = {}
        self._closed = False

    async def get(self, settings: LlamaServerSettings, on_progress: Progress | None = None) -> LlamaServer:
        """Return the healthy server for these settings; start it if need be. Raises as `LlamaServer.ensure` does."""
        if self._closed:
            raise BackendUnavailableError("the local model servers were closed")
        server = self._servers.get(settings)
        if server is None:  # no await between look-up and entry, so two tasks cannot make two
            server = self._servers[settings] = LlamaServer(settings)
        await server.ensure(on_progress)
        return server

    async def aclose(self) -> None:
        """Stop all servers, at the same time. Calling it again does nothing."""
        self._closed = True
        async with asyncio.TaskGroup() as group:
            for server in self._servers.values():
                group.create_task(server.aclose())


class _Child:
    """One run of the child's program, with the thread that reads what it says."""

    def __init__(self, settings: LlamaServerSettings, key: str) -> None:
        self.url: str | None = None
        self._key = key
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._stopping = False
        first_line = {
            "model_path": str(settings.model_path),
            "template": settings.template,
            "n_ctx": settings.n_ctx,
            "n_parallel": settings.n_parallel,
            "threads": settings.threads or default_threads(),
            "alias": settings.alias,
            "api_key": key,
            # A little more than ours, which gives the better error.
            "load_timeout_s": int(settings.start_timeout_s) + 5,
        }
        # By path, and -P: neither the current folder nor the script's may hide a module of the standard library, and
        # it works wherever this file was imported from. A session of its own: Ctrl-C in the terminal is for us alone.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_child_environment(),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"llama-child-{self.process.pid}", daemon=True)
        self._reader.start()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(first_line).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; whoever waits for it reads why in its log

    def log_tail(self) -> str:
        """Return the last lines of its log, without the key."""
        return "\n".join(list(self._log)[-_SHOWN_LOG_LINES:]).replace(self._key, "[key]")

    def cause_of_death(self) -> str:
        code = self.process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGILL":
            return "SIGILL: this build of llama.cpp uses instructions that this CPU does not have"
        return name

    async def serves(self) -> bool:
        """Say whether it is healthy or merely too busy to say so. False: it is dead, or as good as dead."""
        if self._stopping or self.process.poll() is not None or self.url is None:
            return False
        status = await self.health()
        if status is None:
            # Waiting requests occupy the server's threads. Ending it for that would end them all.
            return self.process.poll() is None
        return status == 200

    async def health(self) -> int | None:
        """Return the status of GET /health; 0 when nobody is there (any more), None when no answer came in a second."""
        host = urlsplit(self.url or "")
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host.hostname, host.port)
                try:
                    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                    status_line = (await reader.readline()).split()
                finally:
                    writer.transport.abort()
        except TimeoutError:
            return None
        except OSError:
            return 0
        return int(status_line[1]) if len(status_line) > 1 and status_line[1].isdigit() else 0

    async def stop(self) -> None:
        """Ask it to end, and end it when it does not."""
        self._stopping = True
        try:
            if self.url is not None:  # while it loads, it takes no notice of SIGTERM
                self.process.terminate()
                deadline = time.monotonic() + _STOP_GRACE_S
                while self.process.poll() is None and time.monotonic() < deadline:
                    await asyncio.sleep(_POLL_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it now and give its pipes back. Blocks for the moment that the system needs."""
        self._stopping = True
        self.process.kill()
        self.process.wait()
        self._reader.join()  # both pipes have ended with the process: nothing else holds them
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        """Read both streams until they end, so that the child never waits on a full pipe. Runs in its own thread."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        answer = b""
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ, "answer")
            selector.register(self.process.stderr, selectors.EVENT_READ, "log")
            while selector.get_map():
                for ready, _ in selector.select():
                    data = os.read(ready.fd, 65536)
                    if not data:
                        selector.unregister(ready.fileobj)
                    elif ready.data == "answer":
                        answer += data
                        if answer.endswith(b"\n"):
                            self.url = json.loads(answer)["url"]
                    else:
                        *lines, line = (line + data).split(b"\n")
                        line = line[:_LOG_LINE_CHARS]
                        for complete in lines:
                            self._log.append(complete[:_LOG_LINE_CHARS].decode("utf-8", "replace"))
        if line:
            self._log.append(line.decode("utf-8", "replace"))


def _require_xllamacpp() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError(
            "a local model needs the package xllamacpp, which is not installed: pip install 'ownloop[local]'"
        )


def _silent(text: str) -> None:
    del text
