import ast
import importlib
import inspect
import subprocess
import sys

import pytest

import ownloop

TABLE: dict[str, str] = vars(ownloop)["_MODULE_OF"]


def test_the_list_is_sorted_and_without_doubles():
    assert ownloop.__all__ == sorted(set(ownloop.__all__))


def test_the_list_and_the_table_name_the_same_things():
    assert set(ownloop.__all__) == {*TABLE, "__version__"}
    assert list(TABLE) == sorted(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_every_name_resolves_to_what_its_module_defines(name: str):
    module = TABLE[name]
    value = getattr(ownloop, name)
    assert value is getattr(importlib.import_module(module), name)
    assert value is getattr(ownloop, name)
    # Where it is defined, not where it happens to be imported: one home per name.
    assert getattr(value, "__module__", module) == module


def test_type_checkers_see_every_name():
    # The imports for type checkers never run, so they are read from the source.
    tree = ast.parse(inspect.getsource(ownloop))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == TABLE


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'ownloop' has no attribute 'nothing'"):
        _ = ownloop.nothing


def test_dir_shows_the_public_names_and_imports_nothing():
    script = "import ownloop, sys; assert set(ownloop.__all__) <= set(dir(ownloop)); print(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = [name for name in out.split() if name.startswith("ownloop.")]
    assert loaded == ["ownloop._version"]
