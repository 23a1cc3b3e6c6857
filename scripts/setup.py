"""Make .venv hold what a profile needs: `run` (core and the local model) or `dev` (everything).

Called by `make setup` and `make run` with any Python 3.11 or newer, so it uses the standard library alone. The
packages come from the hashed files under requirements/ and from nowhere else. Stamp files in .venv remember what was
installed; while they fit, the script ends at once.
"""

import ctypes
import fcntl
import hashlib
import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
PROFILES = {"run": ["run"], "dev": ["run", "dev"]}
"""Profile → profiles that it satisfies: a developer's environment can also run."""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def requirements(profile: str) -> Path:
    return ROOT / "requirements" / f"{profile}.txt"


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def packages_key(profile: str) -> str:
    """Name what the packages in .venv depend on; the folder counts because scripts in .venv hold absolute paths."""
    return digest(requirements(profile).read_bytes(), sys.version.encode(), str(ROOT).encode())


def project_key() -> str:
    """Name what the editable install of the project itself depends on."""
    return digest((ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode())


def stamp(name: str) -> Path:
    return VENV / f".stamp-{name}"


def stamped(name: str) -> str | None:
    try:
        return stamp(name).read_text()
    except FileNotFoundError:
        return None


def missing_system_packages() -> list[str]:
    missing: list[str] = []
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("python3-venv")
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libgomp.so.1")  # the local model's server is linked against it
        except OSError:
            missing.append("libgomp1")
    return missing


def install_system_packages() -> None:
    """Install the system packages that are missing, as root on Debian; else say what to run, and end.

    Raises:
        SystemExit: they are missing, and this script may not or cannot install them.
    """
    missing = missing_system_packages()
    if not missing:
        return
    install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    by_hand = f"apt-get update && {shlex.join(install)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sudo = "" if os.geteuid() == 0 else "sudo "
        command = by_hand.replace("apt-get", f"{sudo}apt-get")
        raise SystemExit(
            f"setup: missing on this system: {', '.join(missing)}. On Debian and Ubuntu run\n\n    {command}"
        )
    say(f"installing system packages: {', '.join(missing)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
    subprocess.run([*install[:2], "-qq", *install[2:]], check=True, env=quiet, stdout=subprocess.DEVNULL)
    importlib.invalidate_caches()
    if still := missing_system_packages():
        raise SystemExit(f"setup: {', '.join(still)} did not help {sys.executable}; choose another with PYTHON=…")


def pip_install(*arguments: str) -> None:
    # Errors only: with several package indexes configured, pip warns about each package that one of them lacks.
    command = [str(VENV_PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def install_packages(profile: str) -> None:
    stamps = {known: stamped(known) for known in PROFILES}
    if stamps[profile] == packages_key(profile):
        return
    # Packages of an older file would linger unseen, so only an environment of the present files is added to.
    if any(key is not None and key != packages_key(known) for known, key in stamps.items()) or not any(stamps.values()):
        say(f"making .venv with Python {sys.version.split()[0]}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    file = requirements(profile)
    say(f"installing the packages of {file.relative_to(ROOT)}, each checked by its hash")
    pip_install("--require-hashes", "--only-binary=:all:", "-r", str(file))
    for satisfied in PROFILES[profile]:
        stamp(satisfied).write_text(packages_key(satisfied))


def install_project() -> None:
    if stamped("project") == project_key():
        return
    say("installing ownloop itself, editable")
    pip_install("--no-deps", "--no-build-isolation", "--editable", ".")
    stamp("project").write_text(project_key())


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in PROFILES:
        raise SystemExit(f"usage: setup.py {{{','.join(PROFILES)}}}")
    profile = sys.argv[1]
    if sys.version_info < (3, 11):  # noqa: UP036  # this line is there for the Python that is too old
        raise SystemExit(f"setup: Python 3.11 or newer is needed, this is {sys.version.split()[0]}; set PYTHON=…")
    began = time.monotonic()
    # Two terminals may call make at once: the second one waits, then finds everything done.
    with (ROOT / ".setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamped(profile) == packages_key(profile) and stamped("project") == project_key():
            return
        try:
            install_system_packages()
            install_packages(profile)
            install_project()
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"setup: failed: {shlex.join(map(str, error.cmd))}") from error
    say(f"ready after {time.monotonic() - began:.0f} s")


main()
