"""`ownloop sessions`: what is kept, shown, answered and gone on with."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import HEAD, AgentFile, Program
from tests.cli.terminal import OWNLOOP, Terminal, environment

SUPPORT = """
@tool(approval="ask")
def refund(order: str) -> str:
    "Refund an order."
    note("effects", order)
    return "Refunded \\x1b[31m" + order

def script(request):
    if request.messages[-1].role == "tool":
        return say("Done.")
    words = request.messages[-1].blocks[0].text
    if "efund" not in words:
        return say(f"You said {words}")
    return say("I will.") + call("refund", {"order": words.split()[-1]})

agent = Agent("support", model=ScriptedBackend(script), tools=[refund])
"""
SUPPORT_FILE = HEAD + SUPPORT
BREAK = 'import sys; sys.exit("this file must not be run")'


def said(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def session_of(done: subprocess.CompletedProcess[str]) -> str:
    return re.findall(r"sess_\w+", done.stderr)[0]


@pytest.mark.slow
def test_before_the_first_session_it_says_so(ownloop: Program) -> None:
    for more in ([], ["--json"]):
        done = ownloop("sessions", "list", *more)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.startswith("No sessions are kept in ")
    shown = ownloop("sessions", "show", "sess_x")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "no sessions are kept in" in shown.stderr
    memory = ownloop("sessions", "list", OWNLOOP_STORE="memory")
    assert memory.returncode == 2
    assert "sessions in memory end with their program" in memory.stderr


@pytest.mark.slow
def test_they_are_listed_without_their_agent(agent_file: AgentFile, ownloop: Program) -> None:
    file = agent_file(SUPPORT)
    asking = session_of(ownloop("run", "agents.py", "Please refund A1"))
    ownloop("run", "agents.py", "Hello \x1b[2J there")
    file.write_text(BREAK)
    idle, waiting = said(ownloop("sessions", "list", "--json"))
    assert (idle["state"], idle["first_message"], idle["open_requests"]) == ("idle", "Hello \x1b[2J there", 0)
    assert (waiting["session_id"], waiting["state"], waiting["open_requests"]) == (asking, "waiting", 1)
    [newest] = said(ownloop("sessions", "list", "--json", "--limit", "1", "--agent", "support"))
    assert newest == idle
    table = ownloop("sessions", "list").stdout.splitlines()
    assert re.fullmatch(r"sess_\w{26}  support  idle           now   Hello ␛\[2J there", table[1])
    none = ownloop("sessions", "list", "--agent", "sales")
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.endswith("is one of agent 'sales'; there are those of: support\n")


@pytest.mark.slow
def test_one_is_shown_without_its_agent(agent_file: AgentFile, ownloop: Program) -> None:
    file = agent_file(SUPPORT)
    asking = session_of(ownloop("run", "agents.py", "Please refund A1"))
    file.write_text(BREAK)
    shown = ownloop("sessions", "show", asking[:-10])
    assert (shown.returncode, shown.stderr) == (0, "")
    head, conversation = shown.stdout.split("\n\n", 1)
    assert head.splitlines()[:2] == [asking, "support on scripted"]
    assert conversation.splitlines()[1:] == [
        "you › Please refund A1",
        "I will.",
        '→ refund {"order":"A1"}',
        "",
        'Waits for you: refund {"order": "A1"}',
        "Answer it:",
        f"  ownloop sessions resume {asking}",
    ]
    facts = said(ownloop("sessions", "show", asking, "--json"))
    assert [fact["cursor"] for fact in facts] == [str(seq) for seq in range(1, len(facts) + 1)]
    assert (facts[0]["kind"], facts[-1]["kind"]) == ("session_started", "interaction_requested")


@pytest.mark.slow
def test_one_is_answered_without_its_agent_and_goes_on_with_it(
    agent_file: AgentFile, ownloop: Program, tmp_path: Path
) -> None:
    file = agent_file(SUPPORT)
    asking = session_of(ownloop("run", "agents.py", "Please refund A1"))
    file.write_text(BREAK)
    wrong = ownloop("sessions", "answer", asking, "maybe")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "'maybe' is no answer to this; answer approve, deny, or in full, as JSON" in wrong.stderr
    answered = ownloop("sessions", "answer", asking, "deny", "--note", "Too late.")
    assert answered.stdout == f"Answered.\nGo on with:\n  ownloop sessions resume {asking}\n"
    assert said(ownloop("sessions", "list", "--json"))[0]["state"] == "unfinished"
    twice = ownloop("sessions", "answer", asking, "approve")
    assert (twice.returncode, twice.stderr) == (2, f"ownloop: nothing waits for an answer in session {asking!r}\n")
    file.write_text(SUPPORT_FILE)
    resumed = ownloop("sessions", "resume", asking, stdin="")
    assert (resumed.returncode, "Done.\n" in resumed.stdout) == (0, True)
    assert "refund was denied: Too late." in resumed.stderr
    shown = ownloop("sessions", "show", asking).stdout
    assert "? denied by you (Too late.)\n← refund was denied: Too late.\nDone.\n" in shown
    assert not (tmp_path / "effects").exists()


@pytest.mark.slow
def test_resume_says_which_file_it_misses(agent_file: AgentFile, ownloop: Program, tmp_path: Path) -> None:
    file = agent_file(SUPPORT)
    asking = session_of(ownloop("run", "agents.py", "Please refund A1"))
    file.rename(tmp_path / "moved.py")
    gone = ownloop("sessions", "resume", asking)
    assert gone.returncode == 2
    assert f"agent 'support' was last loaded from {str(file)!r}, which is gone; name the file:" in gone.stderr
    assert ownloop("sessions", "resume", asking, "moved.py", stdin="").returncode == 3
    (tmp_path / "data" / "ownloop" / "sessions.db.agents.json").unlink()
    unknown = ownloop("sessions", "resume", asking)
    assert unknown.returncode == 2
    assert f"is not known here; name the file: ownloop sessions resume {asking} FILE\n" in unknown.stderr


@pytest.mark.slow
def test_one_whose_process_was_killed_is_unfinished_and_one_that_runs_is_running(
    agent_file: AgentFile, ownloop: Program, tmp_path: Path
) -> None:
    agent_file("""
        @tool
        async def work() -> str:
            "Work."
            note("works")
            await asyncio.sleep(600)
            return ""

        agent = Agent("support", model=ScriptedBackend([call("work")]), tools=[work])
    """)
    with subprocess.Popen(
        [*OWNLOOP, "run", "agents.py", "Hi", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path),
    ) as program:
        assert program.stdout is not None
        while b'"tool_started"' not in program.stdout.readline():
            pass
        [listed] = said(ownloop("sessions", "list", "--json"))
        assert listed["state"] == "running"
        shown = ownloop("sessions", "show", listed["session_id"]).stdout
        assert shown.endswith("→ work {}\n\nAnother process is at work in it.\n")
        program.kill()
    [listed] = said(ownloop("sessions", "list", "--json"))
    assert listed["state"] == "unfinished"
    shown = ownloop("sessions", "show", listed["session_id"]).stdout
    assert "Its process is gone before it had finished. Go on with:\n  ownloop sessions resume sess_" in shown


@pytest.mark.slow
def test_a_chat_is_resumed_by_the_beginning_of_its_id_from_any_folder(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(SUPPORT)
    (tmp_path / "elsewhere").mkdir()
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Refund A1")
        chat.prompt("your answer ›")
        chat.kill()
    with Terminal(["sessions", "list"], tmp_path) as listing:
        assert listing.end() == 0
        short = listing.lines[1].split()[0]
        assert re.fullmatch(r"sess_\w{8}", short)
        assert re.search(r"support  waits for you  now   Refund A1$", listing.lines[1])
    env = {"XDG_DATA_HOME": str(tmp_path / "data")}
    with Terminal(["sessions", "resume", short], tmp_path / "elsewhere", columns=40, env=env) as chat:
        chat.prompt("your answer ›")
        assert "you › Refund A1\nI will.\n" in chat.text
        chat.enter("a")
        chat.prompt()
        chat.enter("/quit")
        assert chat.end() == 0
    assert (tmp_path / "effects").read_text() == "A1\n"
    with Terminal(["sessions", "show", short], tmp_path, columns=40) as shown:
        assert shown.end() == 0
        assert '→ refund {"order":"A1"}\n? approved by you\n← Refunded ␛[31mA1\nDone.' in shown.text


@pytest.mark.slow
def test_a_session_that_was_closed_can_be_read_and_not_resumed(
    agent_file: AgentFile, ownloop: Program, tmp_path: Path
) -> None:
    agent_file(SUPPORT)
    agent_file(
        """
        from ownloop import Service, open_host
        from ownloop.agent import open_store
        from agents import agent

        async def main():
            async with open_host(open_store(str(HERE / "data" / "ownloop" / "sessions.db")), [agent]) as host:
                service = Service(host)
                session = await service.create_session(session_id="客户 42", title="A title")
                await service.wait(await service.send(session.session_id, "Hi"))
                await service.stop(session.session_id)

        if __name__ == "__main__":
            asyncio.run(main())
        """,
        "close.py",
    )
    ownloop("run", "agents.py", "Hi")
    subprocess.run([OWNLOOP[0], "close.py"], cwd=tmp_path, env=environment(tmp_path), check=True)
    assert said(ownloop("sessions", "list", "--json"))[0]["state"] == "closed"
    done = ownloop("sessions", "resume", "客")
    assert (done.returncode, done.stderr) == (
        2,
        "ownloop: session '客户 42' was closed for good; to read it: ownloop sessions show '客户 42'\n",
    )
    assert ownloop("sessions", "show", "客").stdout.startswith("客户 42\nA title\nsupport on scripted\n")


@pytest.mark.parametrize("words", [["run", "agents.py", "Hi"], ["sessions", "list"], ["sessions", "show", "x"]])
def test_a_store_whose_name_no_file_can_have_is_an_error_in_words(
    agent_file: AgentFile, ownloop: Program, words: list[str]
) -> None:
    agent_file(SUPPORT)
    done = ownloop(*words, "--store", "x" * 300)
    assert done.returncode == 2
    assert done.stderr.startswith("ownloop: the store 'xxx"), done.stderr
    assert "File name too long" in done.stderr
