"""The contracts of import-linter bite: every forbidden import, planted in a copy of the tree, is found."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

# The arrows as the design states them, highest first; written here once more, so that a slip in the contract shows.
LADDER = [
    ["cli", "testing"],
    ["server", "deploy", "client"],
    ["agent"],
    ["service"],
    ["runtime", "backends", "tools", "store"],
    ["projections"],
    ["core"],
    ["errors"],
]
MODULES = {"agent", "client", "errors", "service"}
"""The members of the ladder that are one file; the others are packages."""

UPWARD = [
    (lower, upper)
    for level, names in enumerate(LADDER)
    for lower in names
    for upper in [name for above in LADDER[:level] for name in above] + [name for name in names if name != lower]
]
IMPURE = ["asyncio", "anyio", "socket", "sqlite3", "subprocess", "threading", "time", "random", "uuid"]
BEHIND_PORTS = ["time", "random", "uuid", "secrets", "threading", "concurrent"]
VENDORS = ["openai", "anthropic", "huggingface_hub", "xllamacpp", "aiohttp"]
OUTSIDE = [
    *[("core", module) for module in IMPURE],
    *[(package, module) for package in ("runtime", "tools", "store") for module in BEHIND_PORTS],
    *[(package, module) for package in ("core", "runtime", "service", "cli", "testing") for module in VENDORS],
]


class Copy:
    """A copy of the package to plant imports in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "src" / "ownloop"
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)

    def plant(self, importer: str, statement: str) -> str:
        """Put an import into a part of the package and return the name of the module that now holds it."""
        if importer in MODULES:
            path = self.package / f"{importer}.py"
            with path.open("a") as file:
                file.write(f"\n{statement}\n")
            return f"ownloop.{importer}"
        name = f"planted_{len(list((self.package / importer).glob('planted_*')))}"
        path = self.package / importer / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(f"{statement}\n")
        return f"ownloop.{importer}.{name}"

    def lint(self) -> subprocess.CompletedProcess[str]:
        command = [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"]
        return subprocess.run(
            command, cwd=self.folder, env={"PYTHONPATH": "src", "COLUMNS": "200"}, capture_output=True, text=True
        )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[tuple[str, str], str], str]:
    """Plant everything in one copy, lint it once, and return who holds which import, and the report."""
    copy = Copy(tmp_path_factory.mktemp("planted"))
    holder: dict[tuple[str, str], str] = {}
    for lower, upper in UPWARD:
        if not (copy.package / upper).exists() and not (copy.package / f"{upper}.py").exists():
            copy.plant(upper, "")
        holder[lower, upper] = copy.plant(lower, f"import ownloop.{upper}")
    for importer, module in OUTSIDE:
        holder[importer, module] = copy.plant(importer, f"import {module}")
    holder["cli", "ownloop"] = copy.plant("cli", "from ownloop import Agent")
    copy.plant("unheard_of", "")
    done = copy.lint()
    assert done.returncode == 1
    return holder, done.stdout


@pytest.mark.parametrize(("importer", "imported"), [*UPWARD, *OUTSIDE, ("cli", "ownloop")])
def test_a_forbidden_import_is_found(importer: str, imported: str, report: tuple[dict[tuple[str, str], str], str]):
    holder, text = report
    target = f"ownloop.{imported}" if (importer, imported) in UPWARD else imported
    assert f"{holder[importer, imported]} -> {target} (l." in text


def test_a_module_that_has_no_place_in_the_layers_is_found(report: tuple[dict[tuple[str, str], str], str]):
    assert "ownloop.unheard_of" in report[1]


def test_allowed_imports_are_allowed(tmp_path: Path):
    copy = Copy(tmp_path)
    copy.plant("backends", "import openai, anthropic, huggingface_hub, xllamacpp, aiohttp, asyncio, time")
    copy.plant("runtime", "import asyncio")
    copy.plant("runtime", "import ownloop.core, ownloop.errors, ownloop._version")
    copy.plant("testing", "import ownloop.runtime, ownloop.core")
    (copy.package / "runtime" / "system.py").write_text("import time, uuid, secrets, concurrent.futures\n")
    done = copy.lint()
    assert done.returncode == 0, done.stdout + done.stderr
