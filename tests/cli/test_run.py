from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import AgentFile, Program
from tests.cli.terminal import OWNLOOP, environment

ASKING = """
@tool(approval="ask")
def refund(order: str) -> str:
    "Refund an order."
    note("effects", order)
    return "Refunded."

agent = Agent("support", model=ScriptedBackend([call("refund", {"order": "A1"}), say("Done.")]), tools=[refund])
"""

CONCIERGE = """
from ownloop import AgentBase, AgentInteractionRequest

class Concierge(AgentBase):
    def __init__(self, on_logs, on_interaction_request):
        self.log = on_logs
        self.ask = on_interaction_request

    @classmethod
    async def create(cls, config, on_logs, on_interaction_request):
        return cls(on_logs, on_interaction_request)

    async def interaction(self, interaction):
        if interaction.interaction_id is not None:
            await self.log([f"booked: {interaction.data}"])
            return None
        await self.ask(AgentInteractionRequest(interaction_id="room", type="choose", data=["sea", "garden"]))
        return "I asked."

    async def stop(self): ...
"""


def test_an_answer_goes_to_stdout_and_ends_with_0(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("Hello there!")]))')
    done = ownloop("run", "agents.py", "Hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello there!\n", "")


def test_in_a_pipe_only_the_models_text_is_on_stdout_and_the_rest_on_stderr(
    agent_file: AgentFile, ownloop: Program
) -> None:
    agent_file("""
        @tool(read_only=True)
        def look(order: str) -> str:
            "Look."
            return "shipped"

        script = [say("Let me look.") + call("look", {"order": "A1"}), say("Shipped.")]
        agent = Agent("a", model=ScriptedBackend(script), tools=[look])
    """)
    done = ownloop("run", "agents.py", "Where is A1?")
    assert done.stdout == "Let me look.\nShipped.\n"
    assert done.stderr == '→ look {"order":"A1"}\n← shipped\n'


def test_a_failed_run_ends_with_1_and_says_why(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""agent = Agent("a", model=ScriptedBackend([]))""")
    done = ownloop("run", "agents.py", "Hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the script has 0 turns")


def test_partial_text_of_a_failed_answer_is_kept_on_stdout(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("Half an ans") + fail(OverloadedError())]))')
    done = ownloop("run", "agents.py", "Hi")
    assert (done.returncode, done.stdout) == (1, "Half an ans\n")
    assert "(overloaded)" in done.stderr


def test_an_empty_message_is_wrong_use(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([]))')
    empty = ownloop("run", "agents.py", "  ")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "the message is empty" in empty.stderr
    none = ownloop("run", "agents.py")
    assert (none.returncode, none.stdout) == (2, "")
    assert 'say something, as in: ownloop run FILE "What is new?"' in none.stderr


def test_a_run_that_needs_a_person_ends_with_3_and_says_how_to_go_on(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file(ASKING)
    done = ownloop("run", "agents.py", "Refund A1")
    assert (done.returncode, done.stdout) == (3, "")
    assert 'Waiting for a person: refund {"order": "A1"}' in done.stderr
    command = re.search(r"Go on with:\n  ownloop (.*)", done.stderr)
    assert command is not None
    assert not Path(agent_file(ASKING).parent / "effects").exists()
    # The very command it names asks on, and without a person leaves it open once more.
    again = ownloop(*command[1].split())
    assert again.returncode == 3
    assert "May refund run?" not in again.stdout


def test_a_message_behind_one_that_waits_is_kept(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file(ASKING)
    first = ownloop("run", "agents.py", "Refund A1")
    session = re.findall(r"sess_\w+", first.stderr)[0]
    second = ownloop("run", "agents.py", "And hurry.", "--session", session)
    assert second.returncode == 3
    assert "Your message is kept, and is answered after that." in second.stderr


def test_a_limit_ends_with_4(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        @tool(read_only=True)
        def look() -> str:
            "Look."
            return "seen"

        agent = Agent("a", model=ScriptedBackend([call("look")] * 9), tools=[look], max_turns=2)
    """)
    done = ownloop("run", "agents.py", "Hi")
    assert done.returncode == 4
    assert done.stderr.endswith("(stopped: max_turns reached)\n")


def test_ctrl_c_cancels_and_ends_with_130_and_what_came_is_kept(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("One moment. ") + wait(600_000) + say("Never.")]))')
    with subprocess.Popen(
        [*OWNLOOP, "run", "agents.py", "Hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=tmp_path,
        env=environment(tmp_path),
    ) as program:
        assert program.stdout is not None
        said = b""
        while said != b"One moment. ":
            said += program.stdout.read(1)
        program.send_signal(2)
        rest, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert said + rest == b"One moment. \n"
    assert errors == b"(cancelled)\n"


def test_the_message_comes_from_stdin_for_a_dash(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file(
        """agent = Agent("a", model=ScriptedBackend(lambda r: say("You said: " + r.messages[-1].blocks[0].text)))"""
    )
    done = ownloop("run", "agents.py", "-", stdin="Grüße\n")
    assert (done.returncode, done.stdout) == (0, "You said: Grüße\n")
    assert ownloop("run", "agents.py", "-", stdin="").returncode == 2


def test_stdin_that_is_no_text_is_refused(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([]))')
    done = subprocess.run(
        [*OWNLOOP, "run", "agents.py", "-"],
        input=b"\xff\xfe",
        capture_output=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, b"ownloop: standard input is not UTF-8 text (byte 0)\n")


def test_a_reader_that_leaves_early_stops_nothing(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        @tool
        def pay() -> str:
            "Pay."
            note("effects", "paid")
            print("paid")
            return "Paid."

        agent = Agent("a", model=ScriptedBackend([say("word " * 40_000) + call("pay"), say("Done.")]), tools=[pay])
    """)
    with subprocess.Popen(
        [*OWNLOOP, "run", "agents.py", "Hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path),
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.read(4)
        program.stdout.close()
        errors = program.stderr.read()
        assert program.wait(timeout=60) == 0
    assert set(errors.decode().splitlines()) == {"→ pay {}", "paid", "← Paid."}
    assert (tmp_path / "effects").read_text() == "paid\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_said(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("Hi!")]))')
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*OWNLOOP, "run", "agents.py", "Hi"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(tmp_path),
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"ownloop: the output cannot be written: No space left on device\n")


@pytest.mark.slow
def test_a_closed_stdout_is_no_error(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("Hi!")]))')
    for more in ([], ["--json"]):
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", *OWNLOOP, "run", "agents.py", "Hi", *more],
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            env=environment(tmp_path),
            timeout=60,
            check=False,
        )
        assert done.returncode == 0


def test_a_closed_stdin_is_an_empty_message(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("Hi!")]))')
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *OWNLOOP, "run", "agents.py", "-"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ownloop: the message is empty")


def test_what_was_closed_is_nobody_elses_file(agent_file: AgentFile, tmp_path: Path) -> None:
    """What C code and children print goes to the files 1 and 2, whoever has opened them."""
    agent_file("""
        import os

        @tool(read_only=True)
        def look() -> str:
            "Look."
            note("files", " ".join(os.readlink(f"/proc/self/fd/{number}") for number in range(3)))
            return "seen"

        agent = Agent("a", model=ScriptedBackend([call("look"), say("Seen.")]), tools=[look])
    """)
    subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *OWNLOOP, "run", "agents.py", "Hi"],
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=60,
        check=True,
    )
    assert (tmp_path / "files").read_text().split() == ["/dev/null"] * 3


def test_output_that_cannot_show_a_sign_shows_a_question_mark(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("5 € …")]))')
    assert ownloop("run", "agents.py", "Hi", PYTHONIOENCODING="ascii", PYTHONUTF8="0").stdout == "5 ? ?\n"


def test_the_log_is_written_to_stderr_only_with_verbose(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        import logging
        @tool(read_only=True)
        def look() -> str:
            "Look."
            logging.getLogger("mine").warning("looked")
            return "seen"

        agent = Agent("a", model=ScriptedBackend([call("look"), say("Seen.")]), tools=[look])
    """)
    assert "looked" not in ownloop("run", "agents.py", "Hi").stderr
    done = ownloop("--verbose", "run", "agents.py", "Hi")
    assert "WARNING:mine:looked" in done.stderr
    assert done.stdout == "Seen.\n"
    assert "WARNING:mine:looked" in ownloop("run", "agents.py", "Hi", "--verbose").stderr


def test_the_program_that_is_named_is_one_that_can_be_called(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file(ASKING)
    done = ownloop("run", "agents.py", "Refund A1", PATH="/nowhere")
    assert f"Go on with:\n  {shlex.quote(sys.executable)} -m ownloop chat agents.py --session" in done.stderr


def test_ids_of_sessions_that_are_not_there_are_answered_with_those_that_are(
    agent_file: AgentFile, ownloop: Program
) -> None:
    agent_file(ASKING)
    none = ownloop("chat", "agents.py", "--session", "sess_nobody")
    assert none.returncode == 2
    assert "there is no session 'sess_nobody' in" in none.stderr
    assert "it holds none of agent 'support'" in none.stderr
    session = re.findall(r"sess_\w+", ownloop("run", "agents.py", "Refund A1").stderr)[0]
    some = ownloop("run", "agents.py", "Hi", "--session", "sess_nobody")
    assert some.returncode == 2
    assert f"  {session}  (waits for you)" in some.stderr


def test_a_session_of_another_agent_is_refused(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file(ASKING)
    agent_file('agent = Agent("other", model=ScriptedBackend([]))', "other.py")
    session = re.findall(r"sess_\w+", ownloop("run", "agents.py", "Refund A1").stderr)[0]
    done = ownloop("chat", "other.py", "--session", session)
    assert done.returncode == 2
    assert f"session {session!r} is one of agent 'support', and other.py holds agent 'other'" in done.stderr


def test_a_tool_that_asks_in_mid_call_does_not_wait_for_nobody(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        @tool
        async def book(context: ToolContext) -> str:
            "Book a room."
            return f"Booked {await context.ask('Sea or garden?')}."

        agent = Agent("a", model=ScriptedBackend([call("book"), say("Done.")]), tools=[book])
    """)
    done = ownloop("run", "agents.py", "A room.")
    assert (done.returncode, done.stdout) == (3, "")
    assert "Waiting for a person: Sea or garden?" in done.stderr
    assert "This question cannot outlive this process; use ownloop chat:\n  ownloop chat agents.py\n" in done.stderr
    assert "Go on with" not in done.stderr


def test_a_foreign_agent_that_asks_nobody_shows_its_result_and_the_question(
    agent_file: AgentFile, ownloop: Program
) -> None:
    agent_file(CONCIERGE)
    done = ownloop("run", "agents.py", "A room.")
    assert (done.returncode, done.stdout) == (3, "I asked.\n")
    assert done.stderr == (
        'Waiting for a person: choose ["sea", "garden"]\n'
        "This question cannot outlive this process; use ownloop chat:\n  ownloop chat agents.py\n"
    )


def test_a_tool_that_runs_is_let_finish_before_an_approval_ends_the_program(
    agent_file: AgentFile, ownloop: Program, tmp_path: Path
) -> None:
    agent_file("""
        @tool
        async def slow() -> str:
            "Take a moment."
            await asyncio.sleep(0.2)
            note("effects", "slow")
            return "At last."

        @tool(approval="ask")
        def quick() -> str:
            "Take no time."
            return "At once."

        script = ScriptedBackend([call("slow") + call("quick"), say("Both.")])
        agent = Agent("a", model=script, tools=[slow, quick])
    """)
    done = ownloop("run", "agents.py", "Both.")
    assert done.returncode == 3
    assert "← slow: At last." in done.stderr
    assert (tmp_path / "effects").read_text() == "slow\n"


def test_what_waits_in_a_store_in_memory_is_not_promised_to_be_kept(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        @tool(approval="ask")
        def refund(eur: int) -> str:
            "Refund money."
            return "done"

        agent = Agent("support", model=ScriptedBackend([call("refund", {"eur": 5})]), tools=[refund])
    """)
    done = ownloop("run", "agents.py", "go", "--store", "memory")
    assert done.returncode == 3
    assert "Nothing is kept: the store was in memory." in done.stderr
    assert "Go on with" not in done.stderr
    piped = ownloop("chat", "agents.py", "--store", "memory", stdin="go\n")
    assert piped.returncode == 3
    assert "Nothing is kept: the store was in memory." in piped.stderr
    assert "--session" not in piped.stderr
