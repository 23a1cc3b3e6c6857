"""Every example stands in the table, can be read at once, and holds an agent that the terminal finds."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from ownloop.cli.load import load_agent
from tests.examples.conftest import EXAMPLES

FILES = sorted(EXAMPLES.glob("*.py"))
TABLE = (EXAMPLES / "README.md").read_text()


def test_the_table_names_each_example_once() -> None:
    assert sorted(re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", TABLE, re.MULTILINE)) == [file.name for file in FILES]
    for name in re.findall(r"examples/(\w+\.py)", TABLE):
        assert (EXAMPLES / name).exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_short_says_how_to_run_it_and_holds_one_agent(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # it adds the folder of the file
    source = file.read_text()
    assert len(source.splitlines()) < 100
    said = ast.get_docstring(ast.parse(source)) or ""
    assert f"examples/{file.name}" in said or "make run" in said
    assert load_agent(str(file)).name
    assert list(tmp_path.iterdir()) == [], "loading an example leaves nothing behind"
