from __future__ import annotations

from io import StringIO

import pytest

from ownloop.cli.output import Output
from ownloop.cli.transcript import Transcript, models, spent
from ownloop.core.events import (
    Fact,
    FactBody,
    InputAccepted,
    InteractionRequested,
    InteractionResolved,
    ResponseEnded,
    Rule,
    TurnStarted,
)
from ownloop.core.messages import TextBlock, ToolCallBlock
from ownloop.core.usage import Usage

AT_MS = 1_795_000_000_000
CALL = ResponseEnded(1, "complete", (TextBlock("I will."), ToolCallBlock("call_1", "refund", {"order": "A1"})))
ASKED = InteractionRequested("req_1", "approval", {"tool": "refund"}, {}, call_id="call_1")


def shown(*bodies: FactBody) -> str:
    out = StringIO()
    screen = Transcript(Output(out, out))
    for seq, body in enumerate(bodies, 1):
        screen.show(Fact(seq, AT_MS, 1, "run_1", body))
    return out.getvalue()


@pytest.mark.parametrize(
    ("resolved", "line"),
    [
        (InteractionResolved("req_1", "local", "approved"), "? approved by you\n"),
        (InteractionResolved("req_1", "ann", "denied", note="No\x07."), "? denied by ann (No␇.)\n"),
        (InteractionResolved("req_1", "clock", "expired"), "? expired\n"),
        (InteractionResolved("req_1", "system", "withdrawn"), "? withdrawn\n"),
        (
            InteractionResolved("req_1", "local", "approved", rule=Rule("rule_1", "refund", "", "")),
            "? approved by you, and from then on unasked\n",
        ),
    ],
)
def test_what_people_decided_stands_below_the_call(resolved: InteractionResolved, line: str) -> None:
    text = shown(CALL, ASKED, resolved)
    assert text == f'I will.\n→ refund {{"order":"A1"}}\n{line}'


def test_an_edited_call_is_shown_as_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(CALL, ASKED, InteractionResolved("req_1", "local", "approved", edited_input={"order": "B2"}))
    assert '{"order":"B2"}' in text
    assert text.endswith("? approved with other arguments by you\n")


def test_questions_are_shown_with_their_answers() -> None:
    for data, words in ((("Sea?"), "Sea?"), ({"question": "Sea?"}, "Sea?"), (["sea"], 'choose ["sea"]')):
        asked = InteractionRequested("req_1", "custom", data, {}, type="choose")
        text = shown(asked, InteractionResolved("req_1", "local", "answered", value={"room": 5}))
        assert text == f'? {words}\n? answered by you: {{"room": 5}}\n'


@pytest.mark.parametrize(
    "resolved",
    [
        InteractionResolved("req_1", "local", "denied"),
        InteractionResolved("req_1", "local", "answered", value=""),
        InteractionResolved("req_1", "local", "answered"),
    ],
)
def test_a_question_that_was_declined_has_no_answer(resolved: InteractionResolved) -> None:
    assert shown(InteractionRequested("req_1", "custom", "Sea?", {}), resolved) == "? Sea?\n? no answer\n"


def test_each_message_has_its_time() -> None:
    text = shown(InputAccepted("in_1", "queue", (TextBlock("Hi"),)))
    assert text.startswith("\n2026-11-1")
    assert text.endswith("\nyou › Hi\n")


def test_what_was_spent_is_added_up_and_the_models_are_named() -> None:
    bodies = (
        TurnStarted(1, 1, "claude", "anthropic", "claude-5"),
        ResponseEnded(1, "complete", usage=Usage(input=1000, cache_read=500, output=20), cost=0.01),
        TurnStarted(2, 1, "local", "local", "tiny"),
        ResponseEnded(2, "failed"),
        ResponseEnded(2, "complete", usage=Usage(input=10, output=5)),
    )
    facts = [Fact(seq, AT_MS, 1, "run_1", body) for seq, body in enumerate(bodies, 1)]
    assert spent(facts) == "1,510 tokens read (500 from a cache), 25 written, 0.0100 USD"
    assert models(facts) == "claude-5, tiny"
    assert spent([]) == ""
