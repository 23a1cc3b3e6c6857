"""`ownloop run --json`: what a program reads."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ownloop.core.cursor import parse_cursor
from tests.cli.conftest import AgentFile, Program
from tests.cli.terminal import OWNLOOP, environment

ASKING = """
@tool(approval="ask")
def refund(order: str) -> str:
    "Refund an order."
    note("effects", order)
    return "Refunded."

agent = Agent("support", model=ScriptedBackend([say("I will.") + call("refund", {"order": "A1"}), say("Done.")]),
              tools=[refund])
"""


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_events_come_with_their_cursors_between_accepted_and_run_result(
    agent_file: AgentFile, ownloop: Program
) -> None:
    agent_file("""
        print("the file prints")

        @tool(read_only=True)
        async def look(context: ToolContext) -> str:
            "Look."
            await context.progress("looking")
            print("the tool prints")
            os.system("echo its child prints")
            return "\\x1b[31mshipped"

        agent = Agent("a", model=ScriptedBackend([call("look"), say("Shipped, 日本.")]), tools=[look])
    """)
    done = ownloop("run", "agents.py", "Where is it?", "--json")
    assert done.returncode == 0
    first, *events, last = lines(done.stdout)
    assert first == {
        "kind": "accepted",
        "session_id": last["session_id"],
        "input_id": events[0]["input_id"],
        "run_id": last["run_id"],
    }
    assert [event["kind"] for event in events if event["kind"] not in ("delta", "block_started", "block_ended")] == [
        "input_accepted",
        "run_started",
        "turn_started",
        "response_ended",
        "calls_prepared",
        "tool_started",
        "progress",
        "tool_ended",
        "turn_started",
        "response_ended",
        "run_ended",
    ]
    assert "".join(event["text"] for event in events if event["kind"] == "delta") == "{}Shipped, 日本."
    seqs = [parse_cursor(event["cursor"]).seq for event in events]
    assert seqs == sorted(seqs)
    assert all(next(iter(event)) == "cursor" for event in events)
    assert last == {
        "kind": "run_result",
        "session_id": last["session_id"],
        "run_id": first["run_id"],
        "state": "ended",
        "outcome": "completed",
        "result": "Shipped, 日本.",
        "requests": [],
        "stop_reason": "end_turn",
        "exit_code": 0,
    }
    # What anybody else prints never stands between the lines.
    assert sorted(done.stderr.splitlines()) == ["its child prints", "the file prints", "the tool prints"]


@pytest.mark.slow
def test_what_waits_for_a_person_is_answered_by_a_program(
    agent_file: AgentFile, ownloop: Program, tmp_path: Path
) -> None:
    agent_file(ASKING)
    asked = ownloop("run", "agents.py", "Refund A1", "--json")
    last = lines(asked.stdout)[-1]
    assert (asked.returncode, last["exit_code"], last["state"]) == (3, 3, "interrupted")
    [request] = last["requests"]
    assert (request["purpose"], request["data"]["input"]) == ("approval", {"order": "A1"})
    session = last["session_id"]
    assert last["go_on"] == f"ownloop chat agents.py --session {session}"
    assert "Waiting for a person: refund" in asked.stderr

    # Going on without an answer changes nothing.
    again = ownloop("run", "agents.py", "--session", session, "--json")
    assert (again.returncode, lines(again.stdout)[-1]["requests"]) == (3, [request])
    assert not (tmp_path / "effects").exists()

    kept = ownloop("sessions", "answer", session[:20], '{"approved": true, "edited_input": {"order": "B2"}}', "--json")
    assert lines(kept.stdout) == [
        {
            "kind": "answered",
            "session_id": session,
            "request_id": request["request_id"],
            "answer": {"approved": True, "edited_input": {"order": "B2"}},
        }
    ]
    assert not (tmp_path / "effects").exists()
    ended = ownloop("run", "agents.py", "--session", session[:20], "--json")
    assert ended.returncode == 0
    first, *events, last = lines(ended.stdout)
    assert (first["kind"], first["run_id"], last["result"]) == ("accepted", asked_run(asked), "Done.")
    assert events[0]["kind"] == "interaction_resolved"
    assert (tmp_path / "effects").read_text() == "B2\n"

    over = ownloop("run", "agents.py", "--session", session, "--json")
    assert (over.returncode, over.stdout) == (2, "")
    assert f"nothing is unfinished in session {session!r}; say something in it" in over.stderr


def asked_run(done: subprocess.CompletedProcess[str]) -> str:
    return lines(done.stdout)[0]["run_id"]


@pytest.mark.parametrize(
    ("script", "code", "found"),
    [
        ('[say("Half") + fail(OverloadedError())]', 1, {"state": "ended", "outcome": "failed"}),
        ("[]", 1, {"outcome": "failed"}),
        ('[call("look")] * 9', 4, {"outcome": "max_turns"}),
    ],
)
def test_the_last_line_tells_the_outcome_and_the_exit_code(
    agent_file: AgentFile, ownloop: Program, script: str, code: int, found: dict[str, str]
) -> None:
    agent_file(f"""
        @tool(read_only=True)
        def look() -> str:
            "Look."
            return "seen"

        agent = Agent("a", model=ScriptedBackend({script}), tools=[look], limits=Limits(max_turns=2, failures=1))
    """)
    done = ownloop("run", "agents.py", "Hi", "--json")
    last = lines(done.stdout)[-1]
    assert (done.returncode, last["exit_code"]) == (code, code)
    assert {name: last[name] for name in found} == found
    assert ("error" in last) == (last["outcome"] == "failed")


@pytest.mark.slow
def test_wrong_use_writes_no_line(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("1 / 0")
    for words in (("agents.py", "Hi"), ("absent.py", "Hi"), ("agents.py", " ")):
        done = ownloop("run", *words, "--json")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("ownloop: ")


@pytest.mark.slow
def test_a_tool_that_asks_in_mid_call_ends_with_3_and_no_command(agent_file: AgentFile, ownloop: Program) -> None:
    agent_file("""
        @tool
        async def book(context: ToolContext) -> str:
            "Book a room."
            return f"Booked {await context.ask('Sea or garden?')}."

        agent = Agent("a", model=ScriptedBackend([call("book"), say("Done.")]), tools=[book])
    """)
    done = ownloop("run", "agents.py", "A room.", "--json")
    last = lines(done.stdout)[-1]
    assert (done.returncode, last["state"], last["exit_code"]) == (3, "running", 3)
    assert last["requests"][0]["data"]["question"] == "Sea or garden?"
    assert "go_on" not in last


@pytest.mark.slow
def test_ctrl_c_cancels_and_the_last_line_says_so(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file('agent = Agent("a", model=ScriptedBackend([say("One moment. ") + wait(600_000) + say("Never.")]))')
    with subprocess.Popen(
        [*OWNLOOP, "run", "agents.py", "-", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path),
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("Hi")
        program.stdin.close()
        text = ""
        while "moment" not in text:
            line = json.loads(program.stdout.readline())
            text += line.get("text", "")
        program.send_signal(signal.SIGINT)
        *_, last = lines(program.stdout.read())
        assert program.wait(timeout=60) == 130
    assert (last["outcome"], last["result"], last["exit_code"]) == ("cancelled", "One moment. ", 130)


@pytest.mark.slow
def test_a_reader_that_takes_one_line_stops_nothing(agent_file: AgentFile, ownloop: Program, tmp_path: Path) -> None:
    agent_file(f"{ASKING}\nagent = Agent('b', model=ScriptedBackend([say('word ' * 4_000)]))")
    command = " ".join([*OWNLOOP, "run", "agents.py", "Hi", "--json"])
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {command} | head -1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    [first] = lines(done.stdout.decode())
    [session] = lines(ownloop("sessions", "list", "--json").stdout)
    assert (session["session_id"], session["state"]) == (first["session_id"], "idle")


@pytest.mark.slow
def test_on_a_terminal_lines_hold_nothing_that_it_obeys(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(r'agent = Agent("a", model=ScriptedBackend([say("\x9b2J\u202e\x7f!")]))')
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*OWNLOOP, "run", "agents.py", "Hi", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path),
    ) as program:
        os.close(theirs)
        written = b""
        try:
            while more := os.read(ours, 65536):
                written += more
        except OSError:
            pass  # the terminal is closed when the program has ended
        assert program.wait(timeout=60) == 0
    os.close(ours)
    assert not re.search("[\x7f-\x9f\u202e]", written.decode())
    assert lines(written.decode())[-1]["result"] == "\x9b2J\u202e\x7f!"
