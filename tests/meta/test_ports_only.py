"""What import-linter cannot see: clocks, sleeps, ids and threads that are reached through an allowed import."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "ownloop"
BEHIND_PORTS = ["runtime", "tools", "store"]
THE_PORTS = PACKAGE / "runtime" / "system.py"
"""The one module that implements Clock, Ids and Threads."""

MODULES = {"_thread", "concurrent", "random", "sched", "secrets", "threading", "time", "uuid"}
CALLS = {
    "anyio.current_time",
    "anyio.fail_after",
    "anyio.move_on_after",
    "anyio.sleep",
    "anyio.sleep_until",
    "anyio.to_thread",
    "asyncio.sleep",
    "asyncio.timeout",
    "asyncio.timeout_at",
    "asyncio.to_thread",
    "os.urandom",
}
CLOCKS = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
}
METHODS = {"call_at", "call_later", "run_in_executor"}
WITH_TIMEOUT = {"asyncio.as_completed", "asyncio.wait", "asyncio.wait_for"}
"""Fine without a time limit; with one they read the loop's clock."""


class Names:
    """Resolve expressions to dotted names through the imports of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.full_name_of: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.full_name_of[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.full_name_of[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self.full_name_of.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self.dotted(node.value)):
            return f"{owner}.{node.attr}"
        return ""


def timeout_of(call: ast.Call) -> ast.expr | None:
    """Return the time limit that a call of asyncio.wait_for or its kin passes, None if it passes none."""
    by_name = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    by_place = call.args[1:2]
    limits = [limit for limit in by_name + by_place if not (isinstance(limit, ast.Constant) and limit.value is None)]
    return limits[0] if limits else None


def outside_ports(source: str) -> list[str]:
    """List what a module reaches past the ports, one entry per place."""
    tree = ast.parse(source)
    names = Names(tree)

    def found() -> Iterator[tuple[ast.stmt | ast.expr, str]]:
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    for alias in node.names:
                        if alias.name.partition(".")[0] in MODULES:
                            yield node, alias.name
                case ast.ImportFrom(module=str(module)):
                    for alias in node.names:
                        if module.partition(".")[0] in MODULES or f"{module}.{alias.name}" in CALLS | CLOCKS:
                            yield node, f"{module}.{alias.name}"
                case ast.Attribute(attr=attr) if attr in METHODS:
                    yield node, attr
                case ast.Attribute(attr="time", value=owner) if ast.unparse(owner).removesuffix("()").endswith("loop"):
                    yield node, "loop.time"
                case ast.Attribute() if names.dotted(node) in CALLS | CLOCKS:
                    yield node, names.dotted(node)
                case ast.Call(func=function) if names.dotted(function) in WITH_TIMEOUT and timeout_of(node):
                    yield node, f"{names.dotted(function)} with a time limit"
                case _:
                    pass

    return [f"{node.lineno}: {what}" for node, what in found()]


def impure(source: str) -> list[str]:
    """List what a module of the core must not do although no import shows it: wait, or read a clock."""
    tree = ast.parse(source)
    names = Names(tree)
    places: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            places.append(f"{node.lineno}: await")
        elif isinstance(node, ast.Attribute) and names.dotted(node) in CLOCKS | {"os.urandom"}:
            places.append(f"{node.lineno}: {names.dotted(node)}")
    return places


def modules_of(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (PACKAGE / package).rglob("*.py") if path != THE_PORTS)


@pytest.mark.parametrize("path", modules_of(*BEHIND_PORTS), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_time_ids_and_threads_come_only_through_ports(path: Path):
    assert outside_ports(path.read_text()) == []


@pytest.mark.parametrize("path", modules_of("core"), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_waits_for_nothing_and_reads_no_clock(path: Path):
    assert impure(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time", "time"),
        ("from time import monotonic", "time.monotonic"),
        ("import concurrent.futures", "concurrent.futures"),
        ("import asyncio\nasyncio.sleep(1)", "asyncio.sleep"),
        ("import asyncio as aio\naio.sleep(0)", "asyncio.sleep"),
        ("from asyncio import sleep as nap", "asyncio.sleep"),
        ("import asyncio\nasyncio.to_thread(f)", "asyncio.to_thread"),
        ("import asyncio\nasyncio.timeout(None)", "asyncio.timeout"),
        ("import asyncio\nasyncio.wait_for(x, 3)", "asyncio.wait_for with a time limit"),
        ("from asyncio import wait_for\nwait_for(x, timeout=t)", "asyncio.wait_for with a time limit"),
        ("import asyncio\nasyncio.wait(x, timeout=0.1)", "asyncio.wait with a time limit"),
        ("loop.time()", "loop.time"),
        ("self._loop.time()", "loop.time"),
        ("import asyncio\nasyncio.get_running_loop().time()", "loop.time"),
        ("loop.call_later(1, f)", "call_later"),
        ("loop.call_at(1, f)", "call_at"),
        ("loop.run_in_executor(None, f)", "run_in_executor"),
        ("from datetime import datetime\ndatetime.now(tz)", "datetime.datetime.now"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("import anyio\nanyio.sleep(1)", "anyio.sleep"),
        ("from anyio import to_thread", "anyio.to_thread"),
    ],
)
def test_the_scan_finds(source: str, what: str):
    assert [place.partition(": ")[2] for place in outside_ports(source)] == [what]


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasyncio.wait_for(x, None)",
        "import asyncio\nasyncio.wait_for(x, timeout=None)",
        "import asyncio\nasyncio.wait(x, return_when=asyncio.FIRST_COMPLETED)",
        "import asyncio\nasyncio.Queue()",
        "clock.sleep_until(3)",
        "record.time",
        "from datetime import datetime, UTC\ndatetime.fromtimestamp(0, UTC)",
    ],
)
def test_the_scan_allows(source: str):
    assert outside_ports(source) == []


@pytest.mark.parametrize(
    "source",
    ["async def f(): await g()", "async def f():\n async with g(): ...", "import datetime as d\nd.datetime.now()"],
)
def test_the_scan_of_the_core_finds(source: str):
    assert len(impure(source)) == 1
