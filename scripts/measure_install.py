"""Install the core alone into a temporary environment and measure it.

Counts what a user gets by installing ownloop without extras: the packages of requirements/core.txt and ownloop itself,
with the bytecode that pip compiles, without pip and setuptools. Runs in the developer's environment, which holds the
build backend; tests/meta/test_install_size.py holds the result to its bounds.
"""

import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_COUNTED = {"pip", "setuptools", "wheel"}


@dataclass(frozen=True, slots=True)
class InstallSize:
    size_mb_of: dict[str, float]
    """Package name → megabytes (10^6 bytes) on disk."""

    @property
    def packages(self) -> int:
        return len(self.size_mb_of)

    @property
    def size_mb(self) -> float:
        return sum(self.size_mb_of.values())


def measure_core_install() -> InstallSize:
    """Install the core into a temporary environment and measure it."""
    with tempfile.TemporaryDirectory(prefix="ownloop-size-") as name:
        folder = Path(name)
        wheels = folder / "wheels"
        _pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT))
        venv.create(folder / "env", with_pip=True)
        python = str(folder / "env" / "bin" / "python")
        core = str(ROOT / "requirements" / "core.txt")
        _pip(python, "install", "--require-hashes", "--only-binary=:all:", "-r", core)
        _pip(python, "install", "--no-deps", *map(str, wheels.glob("*.whl")))
        _pip(python, "check")
        return measure(folder / "env")


def _pip(python: str, *arguments: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"pip {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def measure(environment: Path) -> InstallSize:
    """Measure what is in a virtual environment."""
    (site,) = environment.glob("lib/python*/site-packages")
    sizes: dict[str, float] = {}
    for distribution in distributions(path=[str(site)]):
        if distribution.name in NOT_COUNTED:
            continue
        files = [Path(str(file.locate())) for file in distribution.files or []]
        sizes[distribution.name] = sum(file.stat().st_size for file in files if file.exists()) / 1e6
    return InstallSize(dict(sorted(sizes.items(), key=lambda item: -item[1])))


def main() -> None:
    """Print the sizes, largest first."""
    result = measure_core_install()
    for package, size_mb in result.size_mb_of.items():
        print(f"{size_mb:7.2f} MB  {package}")
    print(f"{result.size_mb:7.2f} MB  in {result.packages} packages")


if __name__ == "__main__":
    main()
