"""Whatever is wrong: a clear error, and nothing is lost. From the outside, through Agent, Service and the command line.

After each case the journal is read and folded anew, as a later process would.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ownloop import Agent, ScriptedBackend, tool
from ownloop.agent import OpenAgent
from ownloop.backends.scripted import call, say
from ownloop.core.events import Fact, InputAccepted, RunEnded, ToolEnded, ToolStarted
from ownloop.core.messages import text_of
from ownloop.core.operations import RunResult
from ownloop.core.ports import Filter, Page
from ownloop.core.session import fold
from ownloop.errors import (
    ConfigError,
    InvalidRequestError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreInUseError,
    StoreNewerError,
    ToolDefinitionError,
)
from ownloop.runtime.system import SystemClock, SystemThreads
from ownloop.store.sqlite import SQLiteStore
from tests.cli.terminal import OWNLOOP, environment


@asynccontextmanager
async def sqlite(path: Path) -> AsyncGenerator[SQLiteStore]:
    threads = SystemThreads()
    store = SQLiteStore(path, clock=SystemClock(), threads=threads)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()
        await threads.aclose()


async def journal(path: Path) -> Sequence[Fact]:
    """Return the facts of the only session in a store, read and folded as a later process would."""
    async with sqlite(path) as store:
        [info] = await store.sessions(Filter(), Page())
        facts = await store.read(info.session_id, 0, 10_000)
    assert fold(facts).head_seq == facts[-1].seq == len(facts)
    return facts


async def said(path: Path) -> list[str]:
    """Return what was said to the only session in a store."""
    return [text_of(f.body.blocks) for f in await journal(path) if isinstance(f.body, InputAccepted)]


def command(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*OWNLOOP, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder, **env),
        timeout=100,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


HELLO = """\
from ownloop import Agent, ScriptedBackend
from ownloop.backends.scripted import say
agent = Agent("hello", model=ScriptedBackend([say("Hello."), say("Again.")]))
"""


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """A folder with an agent and the store of one talk with it."""
    (tmp_path / "hello.py").write_text(HELLO)
    done = command(tmp_path, "run", "hello.py", "Hi", "--store", "s.db")
    assert (done.returncode, done.stdout) == (0, "Hello.\n")
    return tmp_path


# --- files and definitions ---


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    done = command(tmp_path, "run", "nowhere.py", "Hi", "--store", "s.db")
    assert (done.returncode, done.stderr) == (2, "ownloop: there is no file 'nowhere.py'\n")
    assert not (tmp_path / "s.db").exists()


def test_a_broken_tool_signature_is_refused_where_it_is_defined(tmp_path: Path) -> None:
    with pytest.raises(ToolDefinitionError, match="tool 'sell': parameter 'what' has no annotation"):

        @tool
        def sell(what) -> str:  # pyright: ignore[reportMissingParameterType]
            return ""

    source = f"{HELLO}from ownloop import tool\n@tool\ndef sell(*what: str) -> str: ...\n"
    (tmp_path / "broken.py").write_text(source)
    done = command(tmp_path, "run", "broken.py", "Hi")
    assert done.returncode == 2
    assert "broken.py, line 5: tool 'sell': parameter '*what' has no fixed form" in done.stderr


def test_an_instance_of_a_backend_is_refused_with_what_to_pass() -> None:
    class Mine(ScriptedBackend): ...

    with pytest.raises(ConfigError, match="agent name 'no spaces': use letters"):
        Agent("no spaces", model=Mine([]))


async def test_an_empty_message_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    agent = Agent("a", model=ScriptedBackend([]))
    async with agent.open(store=tmp_path / "s.db") as opened:
        session = await opened.service.create_session()
        with pytest.raises(InvalidRequestError, match="a message needs some text"):
            await opened.service.send(session.session_id, "  \n")
    assert await said(tmp_path / "s.db") == []


# --- what models and tools do ---


class Junk:
    def __repr__(self) -> str:
        raise RuntimeError("not even that")


@tool(read_only=True)
def look(order: str) -> str:
    """Look an order up."""
    return f"{order} is shipped."


@tool
def raises() -> str:
    """Fail."""
    raise ZeroDivisionError("no such luck")


@tool(timeout_s=0.05, read_only=True)
async def hangs() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return "never"


@tool
def exits() -> str:
    """Try to end the program."""
    sys.exit(3)


@tool
def returns_junk() -> Any:
    """Return what has no JSON form."""
    return {"junk": Junk(), "circle": float("nan")}


@tool
def returns_bytes() -> Any:
    """Return bytes that are no text."""
    return b"\xff\x00"


async def result_of(tmp_path: Path, name: str, input: Any) -> tuple[RunResult, ToolEnded, list[ToolStarted]]:
    """Let a model call a tool; return how the run ended, the call's result and its starts, from the journal."""
    tools = [look, raises, hangs, exits, returns_junk, returns_bytes]
    agent = Agent("a", model=ScriptedBackend([call(name, input), say("I see.")]), tools=tools)
    result = await agent.run("Do it.", store=tmp_path / "s.db")
    facts = await journal(tmp_path / "s.db")
    [ended] = [fact.body for fact in facts if isinstance(fact.body, ToolEnded)]
    return result, ended, [fact.body for fact in facts if isinstance(fact.body, ToolStarted)]


@pytest.mark.parametrize(
    ("name", "input", "status", "words", "starts"),
    [
        ("look", {}, "invalid", "order", 0),
        ("look", {"order": 7}, "invalid", "order", 0),
        ("look", {"order": "A1", "extra": 1}, "invalid", "extra", 0),
        ("look", '{"order": "A', "invalid", "", 0),
        ("look", "[1]", "invalid", "", 0),
        ("loook", {}, "error", "did you mean 'look'?", 0),
        ("raises", {}, "error", "no such luck", 1),
        ("exits", {}, "error", "SystemExit", 1),
        ("hangs", {}, "timeout", "did not finish within 0.05 s", 1),
        ("returns_junk", {}, "error", "", 1),
    ],
)
async def test_a_bad_call_or_a_bad_tool_gives_one_result_that_the_model_reads_and_the_run_goes_on(
    tmp_path: Path, name: str, input: Any, status: str, words: str, starts: int
) -> None:
    result, ended, started = await result_of(tmp_path, name, input)
    assert (result.outcome, result.text) == ("completed", "I see.")
    assert ended.status == status, text_of(ended.blocks)
    assert words in text_of(ended.blocks)
    assert len(started) == starts


async def test_bytes_that_are_no_text_are_a_result_too(tmp_path: Path) -> None:
    result, ended, _ = await result_of(tmp_path, "returns_bytes", {})
    assert result.outcome == "completed"
    assert ended.blocks


# --- stores ---


@pytest.mark.parametrize("damage", ["no database at all", "a page in the middle"])
async def test_a_corrupt_store_says_so_and_is_left_as_it_is(hello: Path, damage: str) -> None:
    file = hello / "s.db"
    whole = bytearray(file.read_bytes())
    if damage == "no database at all":
        file.write_bytes(b"this is no database, " * 400)
    else:
        whole[4096:] = b"\xa5" * (len(whole) - 4096)
        file.write_bytes(whole)
    before = file.read_bytes()
    done = command(hello, "run", "hello.py", "Hi again", "--store", "s.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the store 's.db' is damaged, or no SQLite database" in done.stderr
    assert "(store_corrupt)" in done.stderr
    assert file.read_bytes() == before
    with pytest.raises(StoreCorruptError):
        await Agent("hello", model=ScriptedBackend([])).run("Hi", store=file)


async def test_a_newer_store_says_so_and_is_left_as_it_is(hello: Path) -> None:
    file = hello / "s.db"
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("UPDATE meta SET min_reader = 99")
    db.close()
    done = command(hello, "chat", "hello.py", "--store", "s.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert "schema 99, and this ownloop knows 1: upgrade ownloop, or use another file (store_newer)" in done.stderr
    with pytest.raises(StoreNewerError):
        await Agent("hello", model=ScriptedBackend([])).run("Hi", store=file)
    with sqlite3.connect(file) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (99,)
        db.execute("PRAGMA user_version = 1")
        db.execute("UPDATE meta SET min_reader = 1")
    db.close()
    assert await said(file) == ["Hi"]


async def test_the_store_of_another_program_is_not_touched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    (tmp_path / "hello.py").write_text(HELLO)
    before = (tmp_path / "other.db").read_bytes()
    done = command(tmp_path, "run", "hello.py", "Hi", "--store", "other.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is another program's SQLite database" in done.stderr
    assert (tmp_path / "other.db").read_bytes() == before


async def fill(store: SQLiteStore, pages: int | None) -> None:
    """Let the store grow by so many pages and no further; None: as far as it likes."""
    assert store._db is not None
    (count,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {2**30 if pages is None else count + pages}")


async def test_a_full_disk_is_said_and_what_was_said_goes_on_when_there_is_space(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    agent = Agent("a", model=ScriptedBackend([say("x" * 100_000), say("Short.")]))
    threads = SystemThreads()
    store = SQLiteStore(file, clock=SystemClock(), threads=threads)
    async with agent.open(store=store) as opened:
        session = (await opened.service.create_session()).session_id
        await fill(store, 8)
        with pytest.raises(StoreFullError, match="is full: nothing of this call was written; free some space"):
            await opened.run("y" * 200_000, session_id=session)  # the message itself finds no room
        accepted = await opened.service.send(session, "Tell me all.")
        with pytest.raises(StoreFullError):
            await opened.service.wait(accepted)  # it is kept, and its answer finds no room
        await fill(store, None)
        result = await opened.service.wait(accepted)
        while result.state != "ended":
            result = await opened.service.wait(accepted)
        assert (result.outcome, len(result.text)) == ("completed", 100_000)
    await threads.aclose()
    assert await said(file) == ["Tell me all."]
    facts = await journal(file)
    assert isinstance(facts[-1].body, RunEnded)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a small disk takes root to mount")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO.replace('say("Again.")', 'say("z" * 2_000_000)'))
    (tmp_path / "disk").mkdir()
    ownloop = " ".join(OWNLOOP)
    script = f"""
        mount -t tmpfs -o size=3m tmpfs disk || exit 77
        {ownloop} run hello.py Hi --store disk/s.db || exit 10
        session=$({ownloop} run hello.py Hi --session none --store disk/s.db 2>&1 | grep -o 'sess_[0-9a-z]*')
        dd if=/dev/zero of=disk/filler bs=1k count=100000 2>/dev/null
        {ownloop} run hello.py "And again" --session "$session" --store disk/s.db
        echo "code $?"
        rm disk/filler
        {ownloop} run hello.py "And now" --session "$session" --store disk/s.db | tail -c 6; echo "then $?"
        cp disk/s.db disk/s.db-wal .
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=100,
        check=False,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        # As in a chroot. The test above, on a database that may not grow, runs everywhere.
        pytest.skip("this system lets nobody mount")
    assert "code 1" in done.stdout, done
    assert "is full: nothing of this call was written; free some space, then try again (store_full)" in done.stderr
    assert done.stdout.endswith("zzzzz\nthen 0\n")
    assert "Traceback" not in done.stderr
    assert asyncio.run(said(tmp_path / "s.db")) in (["Hi", "And now"], ["Hi", "And again", "And now"])


HOLDING = """\
import asyncio
from pathlib import Path
from ownloop import Agent, ScriptedBackend
from ownloop.backends.scripted import gate, say

class Go:
    async def wait(self):
        while not Path("go").exists():
            await asyncio.sleep(0.01)

agent = Agent("holder", model=ScriptedBackend([say("Wait. ") + gate(Go()) + say("Done."), say("Second.")]))
"""


async def test_a_session_in_use_names_the_process_and_that_process_takes_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "holder.py").write_text(HOLDING)
    file = tmp_path / "s.db"
    holder = await asyncio.create_subprocess_exec(
        *[*OWNLOOP, "run", "holder.py", "First", "--store", "s.db"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    assert holder.stdout is not None
    try:
        assert await holder.stdout.readexactly(6) == b"Wait. "
        async with sqlite(file) as store:
            await store.heartbeat("second", pid=os.getpid())
            [info] = await store.sessions(Filter(), Page())
            with pytest.raises(StoreInUseError, match=rf"is owned by worker .* \(pid {holder.pid}\), which lives"):
                await store.claim("second", info.session_id, now_ms=SystemClock().now_ms())
            await store.retire("second")
        agent = Agent("holder", model=ScriptedBackend([]))  # would fail; it is the holder that answers
        async with agent.open(store=file) as opened:
            assert isinstance(opened, OpenAgent)
            accepted = await opened.service.send(info.session_id, "Second")
            (tmp_path / "go").touch()
            result = await opened.service.wait(accepted)
        assert await holder.stdout.read() == b"\nDone.\n"
        assert await holder.wait() == 0
    finally:
        if holder.returncode is None:
            holder.kill()
            await holder.wait()
    assert await said(file) == ["First", "Second"]
    assert result.state == "ended"


async def test_a_store_that_a_frozen_process_keeps_locked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "s.db"
    agent = Agent("a", model=ScriptedBackend([say("One.")]))
    await agent.run("Hi", store=file)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("ownloop.store.driver.BUSY_TIMEOUT_S", 0.05)
    try:
        with pytest.raises(StoreInUseError, match="was locked by another process"):
            await agent.run("Hi", store=file)
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert await said(file) == ["Hi"]


async def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    done = command(tmp_path, "run", "hello.py", "Hi", "--store", ".")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"ownloop: the store '\.' is a folder", done.stderr)
    with pytest.raises((ConfigError, StoreError)):
        await Agent("a", model=ScriptedBackend([])).run("Hi", store=tmp_path)
