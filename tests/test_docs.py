"""Every Python block of the documents runs; what it prints stands in the comment behind the print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
PRINTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.M)
BLOCKS = [(doc.name, number, code) for doc in DOCS for number, code in enumerate(BLOCK.findall(doc.read_text()), 1)]


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize(("doc", "number", "code"), BLOCKS, ids=[f"{doc}-{number}" for doc, number, _ in BLOCKS])
def test_an_example_runs_and_prints_what_it_says(doc: str, number: int, code: str, tmp_path: Path) -> None:
    script = tmp_path / f"example_{number}.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{doc}, example {number}:\n{done.stderr}"
    for said in PRINTED.findall(code):
        assert said in done.stdout, f"{doc}, example {number} printed:\n{done.stdout}"
