"""No file of the project says from where, or on which machine, it was made."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Put together from pieces, so that this file does not contain what it looks for.
HOSTS = [
    ".".join(parts)
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("snapshot", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
    ]
]
# Absolute only: a folder of that name inside another one is nobody's machine.
FOLDERS = ["/" + "/".join(parts) for parts in [("work", ""), ("opt", "pypi"), ("opt", "wheels"), ("root", "")]]
FORBIDDEN = re.compile(
    "|".join([*map(re.escape, HOSTS), *(rf"(?<![\w.$}})~*-]){re.escape(folder)}" for folder in FOLDERS)]), re.IGNORECASE
)
LEFT_BY_TOOLS = {".git", ".venv", ".hypothesis", ".pytest_cache", ".ruff_cache", ".import_linter_cache", "__pycache__"}


def project_files() -> list[Path]:
    """List what git tracks or would track; in a plain copy of the tree, everything that no tool left there."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        files = [path for path in ROOT.rglob("*") if not LEFT_BY_TOOLS & set(path.relative_to(ROOT).parts)]
    else:
        files = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in files if path.is_file()]


def test_no_file_names_a_registry_or_a_folder_of_one_machine():
    files = project_files()
    assert Path(__file__) in files
    found: list[str] = []
    for path in files:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number}: {match.group()}" for match in FORBIDDEN.finditer(line)]
    assert found == []


@pytest.mark.parametrize("text", [HOSTS[0], f"https://{HOSTS[1].upper()}/simple", *(f'"{x}' for x in FOLDERS)])
def test_the_pattern_finds_what_it_is_for(text: str):
    assert FORBIDDEN.search(text)


@pytest.mark.parametrize("text", [f"docs{FOLDERS[0]}x", "$HOME/root/", "pypi", f"~{FOLDERS[0]}", "${chroot}/root/x"])
def test_the_pattern_leaves_harmless_text_alone(text: str):
    assert not FORBIDDEN.search(text)


def test_there_is_no_lock_file_that_names_its_index():
    assert {path.name for path in project_files()} & {"uv.lock", "pylock.toml", "poetry.lock", "Pipfile.lock"} == set()
