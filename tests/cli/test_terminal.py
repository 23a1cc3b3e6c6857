"""The chat in a real terminal, with a model that says what a script tells it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import AgentFile
from tests.cli.terminal import Terminal
from tests.cli.test_run import CONCIERGE

pytestmark = pytest.mark.slow

REFUND = """
@tool(approval="ask")
def refund(order: str, eur: float) -> str:
    "Refund an order."
    note("effects", order, eur)
    return f"Refunded {eur:g} EUR."

agent = Agent("support", tools=[refund], suggestions=["Refund A1."], model=ScriptedBackend([
    say("I will.") + call("refund", {"order": "A1", "eur": 50.0}), say("It is done."), say("You are welcome.")]))
"""
APPROVAL = "your answer ›"


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def asking(agent_file: AgentFile, tmp_path: Path) -> Path:
    """A folder with the refunding agent in it."""
    agent_file(REFUND)
    return tmp_path


def ask_for_refund(chat: Terminal) -> None:
    chat.prompt()
    chat.enter("Refund A1.")
    chat.prompt(APPROVAL)


def test_a_call_is_approved_with_edited_arguments(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        assert "? May refund run?\n  Refund an order.\n    order = A1\n    eur = 50.0\n" in chat.text
        chat.enter("e")
        chat.prompt("arguments ›")
        chat.press("\x7f" * len("50.0}") + "5.0")
        chat.enter("")
        chat.until("error: this is not JSON")
        chat.prompt("arguments ›")
        chat.enter("}")
        chat.prompt()
        assert '→ refund {"order":"A1","eur":5.0}  (as edited)\n← Refunded 5 EUR.\n' in chat.text
        assert "It is done." in chat.text
        assert effects(asking) == ["A1 5.0"]
        chat.enter("/quit")
        assert chat.end() == 0


def test_edited_arguments_that_do_not_fit_are_asked_again(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.enter("e")
        chat.prompt("arguments ›")
        chat.press("\x7f" * len("50.0}"))
        chat.enter('"much"}')
        chat.until("error: eur: 'much' is not of type 'number'")
        chat.prompt('arguments › {"order": "A1", "eur": "much"}')
        assert effects(asking) == []
        chat.press("\x7f" * len('{"order": "A1", "eur": "much"}'))
        chat.enter("")
        chat.prompt(APPROVAL)
        assert "(Ctrl-C cancels the run)" in chat.text
        chat.enter("yes")
        chat.prompt()
        assert effects(asking) == ["A1 50.0"]


def test_a_denied_call_does_not_run_and_the_model_reads_why(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.enter("nonsense")
        chat.until("Type one of a, s, e, d, l.")
        chat.prompt(APPROVAL)
        chat.enter("deny")
        chat.prompt("reason ›")
        chat.enter("too much")
        chat.prompt()
        assert "  reason › too much\n← refund was denied: too much" in chat.text
        assert effects(asking) == []


def test_what_is_left_open_is_asked_again_by_the_next_start(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.enter("l")
        chat.until("Left open. Go on with:\n  ownloop chat agents.py --session sess_")
        assert chat.end() == 3
    with Terminal(["chat", "agents.py", "--new"], asking) as chat:
        chat.prompt()
        assert "Another session waits for you:\n  ownloop chat agents.py --session" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0
    with Terminal(["chat", "agents.py"], asking) as chat:
        chat.prompt(APPROVAL)
        assert "Going on where this session stopped." in chat.text
        assert "you › Refund A1.\nI will.\n" in chat.text
        chat.enter("a")
        chat.prompt()
        assert effects(asking) == ["A1 50.0"]


def test_kill_9_while_an_approval_waits_then_approved_runs_exactly_once(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.kill()
    assert effects(asking) == []
    with Terminal(["chat", "agents.py"], asking) as chat:
        chat.prompt(APPROVAL)
        chat.enter("a")
        chat.prompt()
        assert "It is done." in chat.text
    assert effects(asking) == ["A1 50.0"]


def test_the_same_call_is_not_asked_twice_when_that_was_granted(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(REFUND.replace('say("It is done.")', 'call("refund", {"order": "A1", "eur": 50.0}), say("Twice.")'))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        ask_for_refund(chat)
        chat.enter("s")
        chat.prompt(APPROVAL)
        assert '  these arguments:\n      {"order": "A1", "eur": 50.0}\n  [y]es   [b]ack\n' in chat.text
        chat.enter("n")
        chat.prompt(APPROVAL)
        assert effects(tmp_path) == []
        chat.enter("s")
        chat.prompt(APPROVAL)
        chat.enter("y")
        chat.prompt()
        assert "Twice." in chat.text
        assert chat.text.count("May refund run?") == 1
    assert effects(tmp_path) == ["A1 50.0", "A1 50.0"]


UNKNOWN = """
@tool(approval="ask", on_unknown="{on_unknown}")
async def refund(order: str, context: ToolContext) -> str:
    "Refund an order."
    note("effects", order, context.key, context.attempt)
    await Until("go").wait()
    return "Refunded."

agent = Agent("support", tools=[refund], model=ScriptedBackend([
    call("refund", {{"order": "A1"}}),
    lambda request: say("The model read: " + request.messages[-1].blocks[0].content[0].text)]))
"""


def die_inside_the_tool(agent_file: AgentFile, folder: Path, on_unknown: str, approval: str = "ask") -> None:
    agent_file(UNKNOWN.format(on_unknown=on_unknown).replace('approval="ask"', f'approval="{approval}"'))
    with Terminal(["chat", "agents.py"], folder) as chat:
        chat.prompt()
        chat.enter("Refund A1.")
        if approval == "ask":
            chat.prompt(APPROVAL)
            chat.enter("a")
        chat.until("running refund …")
        while not effects(folder):
            chat.until("running refund …")
        chat.kill()
    (folder / "go").touch()


@pytest.mark.parametrize(
    ("answer", "told", "starts"),
    [("r", "Refunded by hand.", 1), ("n", "The tool did not run: a person checked", 1), ("g", "Refunded.", 2)],
)
def test_kill_9_inside_a_tool_that_asks_a_person_is_told_how_it_ended(
    agent_file: AgentFile, tmp_path: Path, answer: str, told: str, starts: int
) -> None:
    die_inside_the_tool(agent_file, tmp_path, "ask")
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt(APPROVAL)
        assert "? refund was started, and nobody knows how it ended." in chat.text
        assert "    order = A1" in chat.text
        chat.enter(answer)
        if answer == "r":
            chat.prompt("result ›")
            chat.enter("Refunded by hand.")
        chat.prompt()
        assert f"The model read: {told}" in chat.text.replace("\n", " ")
    ran = effects(tmp_path)
    assert len(ran) == starts
    assert len({line.split()[1] for line in ran}) == 1, "each attempt has the same key"


def test_kill_9_inside_a_tool_that_gives_up_tells_the_model(agent_file: AgentFile, tmp_path: Path) -> None:
    die_inside_the_tool(agent_file, tmp_path, "error")
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        assert "The model read: The outcome of this call is unknown" in chat.text
    assert len(effects(tmp_path)) == 1


def test_kill_9_inside_a_tool_that_retries_runs_it_again_with_the_same_key(
    agent_file: AgentFile, tmp_path: Path
) -> None:
    die_inside_the_tool(agent_file, tmp_path, "retry", approval="allow")
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        assert "(attempt 2)" in chat.text
        assert "The model read: Refunded." in chat.text
    (first, again) = [line.split() for line in effects(tmp_path)]
    assert first[1] == again[1]
    assert (first[2], again[2]) == ("1", "2")


SLOW = """
agent = Agent("slow", model=ScriptedBackend([
    [say("Once upon a time ") + gate(Until("go")) + say("there was an end.")], say("And another.")]))
"""


def start_a_story(chat: Terminal) -> None:
    chat.prompt()
    chat.enter("Tell me a story.")
    chat.until("Once upon a time")


def test_ctrl_c_cancels_an_answer_keeps_its_text_and_asks_again(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(SLOW)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        start_a_story(chat)
        chat.interrupt()
        chat.prompt()
        assert "Once upon a time\n(cancelled)\n\nyou ›" in chat.text
        chat.enter("Go on.")
        chat.until("And another.")
        chat.prompt()
        chat.enter("/quit")
        assert chat.end() == 0


def test_ctrl_c_twice_leaves_with_130_and_the_session_goes_on_later(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        @tool
        async def stubborn() -> str:
            "Take no notice of a cancellation."
            note("effects", "started")
            while not (HERE / "go").exists():
                try:
                    await Until("go").wait()
                except asyncio.CancelledError:
                    note("effects", "asked to stop")
            return "Went."

        agent = Agent("a", tools=[stubborn], model=ScriptedBackend([call("stubborn"), say("Never."), say("Hello.")]))
    """)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Go.")
        chat.until("running stubborn …")
        chat.interrupt()
        chat.until("cancelling …")
        chat.interrupt()
        chat.until("Left. Go on with:\n  ownloop chat agents.py --session sess_")
        chat.interrupt()  # the tool takes no notice of the end of the program either
        assert chat.end() == 130
        assert "Traceback" not in chat.text
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.until("you › Go.")
        chat.prompt()


def test_ctrl_c_at_an_approval_cancels_the_run(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.interrupt()
        chat.prompt()
        assert "(cancelled)" in chat.text
        assert effects(asking) == []
        chat.enter("Thanks.")
        chat.prompt()


def test_ctrl_c_empties_a_line_and_in_an_empty_one_leaves(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        chat.prompt()
        chat.press("half a thou")
        chat.until("half a thou")
        chat.interrupt()
        chat.press("x")
        chat.until("you › x")
        assert "half a thou" not in chat.text
        chat.press("\x7f")
        chat.interrupt()
        assert chat.end() == 0
        assert "Traceback" not in chat.text


def test_the_end_of_input_leaves(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        chat.prompt()
        chat.press("\x04")
        assert chat.end() == 0
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.press("\x04")
        assert chat.end() == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_and_what_waited_waits_on(asking: Path, number: signal.Signals, code: int) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        chat.child.kill(number)
        assert chat.end() == code
        assert "Traceback" not in chat.text
    with Terminal(["chat", "agents.py"], asking) as chat:
        chat.prompt(APPROVAL)
        chat.enter("a")
        chat.prompt()
    assert effects(asking) == ["A1 50.0"]


def test_a_terminal_that_is_closed_ends_the_program(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as chat:
        ask_for_refund(chat)
        assert chat.close_window() == 129
    with Terminal(["chat", "agents.py"], asking) as chat:
        chat.prompt(APPROVAL)


def test_what_was_typed_before_a_question_was_shown_does_not_answer_it(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(REFUND.replace('say("I will.") +', 'say("I will.") + gate(Until("go")) +'))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Refund A1.")
        chat.until("I will.")
        chat.enter("a")
        (tmp_path / "go").touch()
        chat.prompt(APPROVAL)
        chat.press("?")
        chat.until("your answer › ?")
        assert effects(tmp_path) == []


def test_a_second_terminal_goes_on_with_what_the_first_is_doing(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(SLOW)
    with Terminal(["chat", "agents.py"], tmp_path) as first:
        start_a_story(first)
        with Terminal(["chat", "agents.py"], tmp_path) as second:
            second.until("you › Tell me a story.")
            second.until("Once upon a time")
            (tmp_path / "go").touch()
            for chat in (first, second):
                chat.prompt()
                assert chat.text.count("Once upon a time\nthere was an end.") == 1
            # The second one says something; the first one, who sits at its prompt, sees it when it goes on.
            second.enter("Go on.")
            second.prompt()
            assert "And another." in second.text


def test_a_question_that_is_answered_in_one_terminal_is_gone_in_the_other(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking) as first:
        ask_for_refund(first)
        with Terminal(["chat", "agents.py"], asking) as second:
            second.prompt(APPROVAL)
            second.enter("a")
            second.prompt()
            first.until("(this was settled elsewhere meanwhile)")
            first.prompt()
            for chat in (first, second):
                assert chat.text.count("← Refunded 50 EUR.") == 1
                assert chat.text.count("It is done.") == 1
    assert effects(asking) == ["A1 50.0"]


def test_a_message_to_a_session_that_a_live_process_owns_is_taken_by_it(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(SLOW)
    with Terminal(["chat", "agents.py"], tmp_path) as first:
        start_a_story(first)
        with Terminal(["chat", "agents.py"], tmp_path) as second:
            second.until("Once upon a time")
            session = next((tmp_path / "data" / "ownloop").glob("sessions.db"))
            assert session.exists()
            second.interrupt()  # cancels the run, which the first process drives
            for chat in (first, second):
                chat.until("(cancelled)")
                chat.prompt()


@pytest.mark.parametrize("terminal", ["xterm-256color", "vt100", "screen", "dumb"])
def test_terminals_of_all_kinds(asking: Path, terminal: str) -> None:
    with Terminal(["chat", "agents.py"], asking, env={"TERM": terminal}) as chat:
        ask_for_refund(chat)
        chat.enter("a")
        chat.prompt()
        assert "It is done." in chat.text
        chat.enter("/quit")
        assert chat.end() == 0
    if terminal == "dumb":
        assert b"\x1b[2m" not in chat.raw


def test_no_colours_where_they_are_refused(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking, env={"NO_COLOR": "1"}) as chat:
        ask_for_refund(chat)
        chat.enter("d")
        chat.prompt("reason ›")
        chat.enter("no")
        chat.prompt()
        assert set(re.findall(rb"\x1b\[[\d;]*m", chat.raw)) <= {b"\x1b[0m"}


def test_forty_columns_are_enough(asking: Path) -> None:
    with Terminal(["chat", "agents.py"], asking, columns=40) as chat:
        ask_for_refund(chat)
        assert "  [a]pprove   [s]ame from now on\n  [e]dit   [d]eny   [l]eave it open\n" in chat.text
        chat.enter("a")
        chat.prompt()


def test_run_asks_a_person_who_is_there(asking: Path) -> None:
    with Terminal(["run", "agents.py", "Refund A1."], asking) as program:
        program.prompt(APPROVAL)
        program.enter("a")
        assert program.end() == 0
        assert "It is done." in program.text
    assert effects(asking) == ["A1 50.0"]


def test_words_of_a_model_cannot_look_like_ours(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(REFUND.replace('"order": "A1"', r'"order": "A1\n    eur = 1.0\n\x1b[2K\u200bB"'))
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        ask_for_refund(chat)
        assert "    order = A1\n          eur = 1.0\n      ␛[2K<200b>B\n    eur = 50.0" in chat.text


def test_a_message_that_was_not_taken_stands_in_the_line_again(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        from ownloop.errors import StoreFullError
        from ownloop.store.sqlite import SQLiteStore

        post = SQLiteStore.post

        async def full(store, *args):
            if (HERE / "full").exists():
                raise StoreFullError
            return await post(store, *args)

        SQLiteStore.post = full
        agent = Agent("a", model=ScriptedBackend([say("Hello.")]))
    """)
    (tmp_path / "full").touch()
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Good morning.")
        chat.until("error: The store's disk is full; nothing of this call was written.")
        chat.prompt("you › Good morning.")
        (tmp_path / "full").unlink()
        chat.enter("")
        chat.until("Hello.")
        chat.prompt()


def test_an_agent_of_the_contract_asks_and_answers(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        from ownloop import AgentBase, AgentInteractionRequest

        class Concierge(AgentBase):
            def __init__(self, on_interaction_request):
                self.ask = on_interaction_request
                self.answered = asyncio.Event()

            @classmethod
            async def create(cls, config, on_logs, on_interaction_request):
                return cls(on_interaction_request)

            async def interaction(self, interaction):
                if interaction.interaction_id is not None:
                    note("effects", json.dumps(interaction.data))
                    self.answered.set()
                    return None
                await self.ask(AgentInteractionRequest(interaction_id="room", type="choose", data=["sea", "garden"]))
                await self.answered.wait()
                return "It is booked."

            async def stop(self): ...
    """)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("A room, please.")
        chat.prompt("your answer")
        assert "\n? choose\n    - sea\n    - garden\n" in chat.text
        chat.enter("sea")
        chat.prompt()
        assert "It is booked.\n\nyou ›" in chat.text
        chat.enter("/quit")
        assert chat.end() == 0
    assert effects(tmp_path) == ['"sea"']


def test_a_question_outlives_its_run_and_what_the_answer_brings_is_shown(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(CONCIERGE)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("A room, please.")
        chat.prompt("your answer")
        assert "I asked.\n\n? choose\n    - sea\n    - garden\n" in chat.text
        chat.enter("sea")
        chat.until("booked: sea")
        chat.prompt()
        assert chat.text.count("? choose") == 1
        assert chat.text.count("I asked.") == 1
        assert "settled elsewhere" not in chat.text


def test_a_run_that_ends_while_its_question_is_open_does_not_take_the_question_away(
    agent_file: AgentFile, tmp_path: Path
) -> None:
    late = CONCIERGE.replace('        return "I asked."', '        await Until("go").wait()\n        return "I asked."')
    agent_file(late)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("A room, please.")
        chat.prompt("your answer")
        chat.press("se")
        (tmp_path / "go").touch()
        chat.until("› se")
        chat.enter("a")
        chat.until("booked: sea")
        chat.prompt()
        assert "I asked." in chat.text
        assert chat.text.count("? choose") == 1
        assert "settled elsewhere" not in chat.text


def test_a_question_whose_run_has_ended_is_left_by_ctrl_c_and_lost_with_the_program(
    agent_file: AgentFile, tmp_path: Path
) -> None:
    agent_file(CONCIERGE)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("A room, please.")
        chat.prompt("your answer")
        chat.interrupt()
        chat.prompt()
        chat.enter("/quit")
        assert chat.end() == 0
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.until("(this is not asked any more)")
        chat.prompt()
        chat.enter("/quit")
        assert chat.end() == 0
    with Terminal(["run", "agents.py", "A room, please."], tmp_path) as program:
        program.prompt("your answer")
        program.press("\x04")
        assert program.end() == 3
        assert "This question cannot outlive this process; use ownloop chat:" in program.text
        assert program.text.count("I asked.") == 1


ASKING_TOOL = """
@tool
async def book(context: ToolContext) -> str:
    "Book a room."
    return f"Booked {await context.ask('Sea or garden?', {'type': 'string'})}."

agent = Agent("a", model=ScriptedBackend([call("book"), say("Done.")]), tools=[book])
"""


def test_a_tool_asks_in_mid_call(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file(ASKING_TOOL)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("A room.")
        chat.prompt("your answer")
        assert "\n? Sea or garden?\n" in chat.text
        chat.enter("sea")
        chat.prompt()
        assert "← Booked sea.\nDone.\n" in chat.text


def test_an_approval_is_asked_while_another_tool_runs(agent_file: AgentFile, tmp_path: Path) -> None:
    agent_file("""
        @tool
        async def slow() -> str:
            "Take long."
            await Until("go").wait()
            return "At last."

        @tool(approval="ask")
        def quick() -> str:
            "Take no time."
            note("effects", "quick")
            return "At once."

        script = ScriptedBackend([call("slow") + call("quick"), say("Both.")])
        agent = Agent("a", model=script, tools=[slow, quick])
    """)
    with Terminal(["chat", "agents.py"], tmp_path) as chat:
        chat.prompt()
        chat.enter("Do both.")
        chat.prompt(APPROVAL)
        chat.enter("a")
        chat.until("← quick: At once.")
        (tmp_path / "go").touch()
        chat.prompt()
        assert "← slow: At last.\nBoth.\n" in chat.text
