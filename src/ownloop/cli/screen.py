"""What the terminal shows of a session: a fold of its events into text and notes. Knows no prompt and no service.

Live and history are one: a response whose text was not streamed here is shown from the fact that closed it.
"""

from __future__ import annotations

from typing import Any, cast

from ownloop.cli.harmless import harmless
from ownloop.cli.output import Output
from ownloop.core.codec import dumps
from ownloop.core.events import (
    BlockEnded,
    BlockStarted,
    CancelRequested,
    Delta,
    Event,
    Fact,
    InputAccepted,
    InteractionRequested,
    InteractionResolved,
    Note,
    Progress,
    ResponseEnded,
    RunEnded,
    RunStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import Json, TextBlock, ToolCallBlock, text_of
from ownloop.core.results import DENIED, NOT_RUN

LONGEST_RESULT = 2000
"""Characters shown of a tool's result; the journal keeps it whole."""
_OUTCOMES = {
    "cancelled": "cancelled",
    "max_turns": "stopped: max_turns reached",
    "budget_exceeded": "stopped: budget spent",
}
_STATUS = {
    "error": "failed",
    "denied": "was denied",
    "invalid": "was not called",
    "cancelled": "was cancelled",
    "timeout": "took too long",
    "unknown": "has an unknown outcome",
    "not_run": "was not run",
}


class Screen:
    """Shows the events of one session, in order."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.said_here: set[str] = set()
        """The inputs that stand on the screen already, because they were typed here."""
        self._stream = 0
        self._streamed: set[int] = set()
        self._blocks: dict[tuple[int, int], BlockStarted] = {}
        self._calls: dict[str, tuple[str, Json]] = {}
        self._asked: dict[str, str] = {}
        self._shown_calls: set[str] = set()
        self._problem = ""
        self._has_turns = False
        """Whether the run has responses; a foreign agent's has none, but only a result."""

    def show(self, event: Event) -> None:
        """Show one event; most are nothing to look at."""
        match event:
            case BlockStarted(stream, block):
                self._blocks[(stream, block)] = event
                self._streamed.add(stream)
            case Delta(stream, block, text):
                self._delta(self._blocks.get((stream, block)), text)
            case BlockEnded(stream, block):
                started = self._blocks.pop((stream, block), None)
                if started is not None and started.type == "text":
                    self.output.end_text()
            case Progress(data=data):
                self._dim(f"  … {data if isinstance(data, str) else dumps(data)}")
            case Fact():
                self._fact(event)

    def _delta(self, started: BlockStarted | None, text: str) -> None:
        match started and started.type:
            case "text":
                self.output.text(text)
            case "thinking":
                self.output.waiting("thinking …")
            case "tool_call":
                assert started is not None
                self.output.waiting(f"calling {started.name or 'a tool'} …")
            case _:
                pass

    def _fact(self, fact: Fact) -> None:
        match fact.body:
            case InputAccepted() as body:
                self._input(body)
            case RunStarted():
                self._has_turns = False
            case TurnStarted():
                self._turn(fact.seq)
            case ResponseEnded() as body:
                self._response(body)
            case InteractionRequested(request_id=request_id, call_id=str(call_id)):
                self._asked[request_id] = call_id
            case InteractionResolved(request_id=request_id, edited_input=dict(edited)):
                name, _ = self._calls[self._asked[request_id]]
                self._calls[self._asked[request_id]] = (name, edited)
            case ToolStarted() as body:
                self._tool_started(body)
            case ToolEnded() as body:
                self._tool_ended(body)
            case RunEnded() as body:
                self._run_ended(body)
            case CancelRequested(error=None):
                self.output.end_text()
                self.output.waiting("cancelling … (Ctrl-C once more leaves at once)")
            case Note(data={"log": [*entries]}):
                for entry in entries:
                    self._dim(_cut(_words(entry)))
            case Note(level="warning" | "error", data=data):
                self._dim(_words(data))
            case _:
                pass

    def _input(self, body: InputAccepted) -> None:
        if body.input_id not in self.said_here:
            self.output.line(self.output.bold("you › ") + harmless(text_of(body.blocks) or dumps(body.data)))

    def _turn(self, stream: int) -> None:
        if self._problem:
            self._dim(f"({self._problem}; asking again)")
            self._problem = ""
        self._stream = stream
        self._has_turns = True
        self.output.waiting("reading …")

    def _response(self, body: ResponseEnded) -> None:
        if self._stream not in self._streamed and (text := text_of(body.blocks)):
            self.output.text(text)
        self.output.end_text()
        for block in body.blocks:
            if isinstance(block, ToolCallBlock):
                self._calls[block.call_id] = (block.name, block.input)
        if body.status == "failed" and body.error is not None:
            self._problem = body.error.message
            self.output.waiting(f"{body.error.message} …")
        elif body.status == "abandoned":
            self._problem = "the answer above broke off"

    def _tool_started(self, body: ToolStarted) -> None:
        self._show_call(body.call_id, "" if body.attempt == 1 else f"  (attempt {body.attempt})")
        self.output.waiting(f"running {self._name(body.call_id)} …")

    def _show_call(self, call_id: str, more: str = "") -> None:
        self._shown_calls.add(call_id)
        name, input = self._calls.get(call_id, ("?", {}))
        style = self.output
        style.line(
            style.style("36", "→ ") + style.bold(harmless(name)) + " " + harmless(dumps(input)) + style.dim(more)
        )

    def _name(self, call_id: str) -> str:
        return self._calls.get(call_id, ("?", {}))[0]

    def _tool_ended(self, body: ToolEnded) -> None:
        if body.call_id not in self._shown_calls and body.call_id not in self._asked.values():
            self._show_call(body.call_id)
        words = text_of(body.blocks) or ", ".join(b.media_type for b in body.blocks if not isinstance(b, TextBlock))
        out = self.output
        if body.status == "ok":
            out.line(out.style("32", "← ") + harmless(_cut(words)))
            return
        how, why = f"← {harmless(self._name(body.call_id))} {_STATUS[body.status]}", _why(words)
        out.line(out.style("33", f"{how}: ") + harmless(_cut(why)) if why else out.style("33", how))

    def _run_ended(self, body: RunEnded) -> None:
        self.output.end_text()
        self._problem = ""
        if body.outcome == "failed" and body.error is not None:
            self.output.error(f"{body.error.message} ({body.error.code})")
        elif body.outcome == "completed" and not self._has_turns and body.result is not None:
            self.output.text(body.result if isinstance(body.result, str) else dumps(body.result))
            self.output.end_text()
        elif body.outcome != "completed":
            self._dim(f"({_OUTCOMES.get(body.outcome, body.outcome)})")
        elif body.stop_reason == "max_tokens":
            self._dim("(cut: max_tokens reached)")

    def _dim(self, text: str) -> None:
        self.output.line(self.output.dim(harmless(text)))


def _why(words: str) -> str:
    """Return what a result that is none says beyond its status, which the screen names itself."""
    if words in (DENIED, NOT_RUN):
        return ""
    return words.removeprefix(f"{DENIED} Reason: ").removeprefix("Not run: ")


def _cut(words: str) -> str:
    if len(words) <= LONGEST_RESULT:
        return words
    return words[:LONGEST_RESULT] + f" … ({len(words) - LONGEST_RESULT:,} more characters)"


def _words(data: Any) -> str:
    if isinstance(data, dict):
        fields = cast("Json", data)
        return str(fields.get("text") or fields.get("message") or fields.get("code") or dumps(fields))
    return data if isinstance(data, str) else dumps(data)
