"""Make each driver's virtual environment, on demand, in the user's caches: nothing here touches `.venv`."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.drivers import CHECKOUT, Driver

ROOT = Path(__file__).parent.parent
PINNED = re.compile(r"^[a-z0-9._-]+==\S+", re.M)
"""A line of a requirements file, without its hashes."""


class InstallError(Exception):
    """pip could not make an environment; the text is the end of what it said."""


def folder() -> Path:
    """Return where the environments are."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "ownloop" / "bench"


def environment(driver: Driver) -> Path:
    """Return the folder of the driver's environment, made anew unless it holds what the driver names.

    Raises:
        InstallError: pip failed, most likely for want of a network.
    """
    path = folder() / driver.ENVIRONMENT
    stamp = path / "stamp"
    ours = CHECKOUT in driver.PACKAGES
    files = [ROOT / "pyproject.toml", ROOT / "requirements" / "run.txt"] if ours else []
    words = [sys.version, *driver.PACKAGES, *(file.read_text() for file in files)]
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()
    fresh = stamp.exists() and stamp.read_text() == key
    try:
        if not fresh:
            print(f"installing {', '.join(driver.PACKAGES)} into {path}", flush=True)
            shutil.rmtree(path, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(path))
        if ours:
            _install_checkout(path, with_dependencies=not fresh)
        elif not fresh:
            _pip(path, "install", *driver.PACKAGES)
    except InstallError:
        if not fresh:
            shutil.rmtree(path, ignore_errors=True)
        raise
    stamp.write_text(key)
    return path


def _install_checkout(path: Path, *, with_dependencies: bool) -> None:
    """Install this checkout as it is now, as a user would get it: a change in it while rounds run changes nothing."""
    with tempfile.TemporaryDirectory() as name:
        wheels = Path(name)
        build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", name, str(ROOT)]
        _run(sys.executable, *build)
        [wheel] = wheels.glob("*.whl")
        if with_dependencies:
            constraints = wheels / "constraints.txt"
            constraints.write_text("\n".join(PINNED.findall((ROOT / "requirements" / "run.txt").read_text())))
            _pip(path, "install", "-c", str(constraints), f"{CHECKOUT} @ {wheel.as_uri()}")
        else:
            _pip(path, "install", "--no-deps", "--force-reinstall", str(wheel))


def _pip(path: Path, *arguments: str) -> None:
    _run(str(path / "bin" / "python"), "-m", "pip", "--quiet", "--retries=1", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise InstallError((done.stdout + done.stderr)[-600:].strip())
