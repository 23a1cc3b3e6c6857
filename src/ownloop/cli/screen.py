"""What the terminal shows of a session: a fold of its events into text and notes. Knows no prompt and no service.

Live and history are one: a response whose text was not streamed here is shown from the fact that closed it. One block
is written at a time; what comes for another meanwhile is held until it is complete.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from ownloop.cli.advice import advice
from ownloop.cli.cards import Cards, beginning
from ownloop.cli.columns import cut, width
from ownloop.cli.harmless import harmless
from ownloop.cli.output import Output, last_words
from ownloop.core.codec import dumps
from ownloop.core.events import (
    BlockEnded,
    BlockStarted,
    CancelRequested,
    Delta,
    ErrorInfo,
    Event,
    Fact,
    InputAccepted,
    InputWithdrawn,
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
from ownloop.core.messages import Json, TextBlock, ThinkingBlock, ToolCallBlock, text_of

SAID, STEERED = "you › ", "steer › "
"""Before what a person says."""
LONGEST_ERROR = 500
"""Characters shown of an error: pages of proxies are long, and say what they have to say at their top."""
_OUTCOMES = {
    "cancelled": "cancelled",
    "max_turns": "stopped: max_turns reached",
    "budget_exceeded": "stopped: budget spent",
}
_Key: TypeAlias = tuple[int, int]
_Piece: TypeAlias = BlockStarted | Delta | BlockEnded


class Screen:
    """Shows the events of one session, in order."""

    def __init__(self, output: Output, *, in_chat: bool = False) -> None:
        self.output = output
        self.said_here: set[str] = set()
        """The inputs that stand on the screen already, because they were typed here."""
        self._in_chat = in_chat
        self._cards = Cards(output)
        self._streamed: set[int] = set()
        self._line: BlockStarted | None = None
        """The block that is being written."""
        self._held: dict[_Key, list[_Piece]] = {}
        self._thought = ""
        self._problem = ""
        self._model = ""
        self._has_turns = False
        """Whether the run has responses; a foreign agent's has none, but only a result."""
        self._streams: dict[str | None, int] = {}
        """The stream of each run's response."""

    def show(self, event: Event) -> None:
        """Show one event; most are nothing to look at."""
        match event:
            case BlockStarted() | Delta() | BlockEnded():
                self._piece(event)
            case Progress(stream, data):
                self._cards.progress(stream, data)
            case Fact():
                self._fact(event)

    # --- while the model writes ---

    def _piece(self, piece: _Piece) -> None:
        key = (piece.stream, piece.block)
        if isinstance(piece, BlockStarted):
            self._streamed.add(piece.stream)
            if self._line is None:
                self._begin(piece)
                return
        if self._line is not None and key == (self._line.stream, self._line.block):
            self._write(self._line, piece)
        elif isinstance(piece, BlockStarted) or key in self._held:
            self._held.setdefault(key, []).append(piece)

    def _begin(self, started: BlockStarted) -> None:
        self._line = started
        match started.type:
            case "tool_call":
                self._cards.begin(started.stream, started.name or "a tool")
            case "thinking":
                self._thought = ""
                self.output.waiting("thinking …")
            case _:
                pass

    def _write(self, started: BlockStarted, piece: _Piece) -> None:
        if isinstance(piece, BlockEnded):
            self._end(started)
        elif isinstance(piece, Delta):
            match started.type:
                case "text":
                    self.output.text(piece.text)
                case "tool_call":
                    self._cards.write(piece.text)
                case "thinking":
                    self._thought += piece.text
                    self.output.waiting("thinking …", last_words(self._thought, self.output.width // 2))
                case "provider":
                    pass

    def _end(self, started: BlockStarted) -> None:
        self._line = None
        match started.type:
            case "text":
                self.output.end_text()
            case "tool_call":
                self._cards.end()
            case "thinking":
                self._thinking(self._thought)
            case "provider":
                pass
        self._take_up_held()

    def _take_up_held(self) -> None:
        """Write what was held, block by block, up to one that still grows."""
        while self._held and self._line is None:
            started, *pieces = self._held.pop(next(iter(self._held)))
            assert isinstance(started, BlockStarted)
            self._begin(started)
            for piece in pieces:
                self._write(started, piece)

    def _close(self, stream: int) -> None:
        """End what a response left open."""
        for (of, block), pieces in self._held.items():
            if of == stream and not isinstance(pieces[-1], BlockEnded):
                pieces.append(BlockEnded(of, block))
        while self._line is not None and self._line.stream == stream:
            self._end(self._line)

    # --- what is certain ---

    def _fact(self, fact: Fact) -> None:
        match fact.body:
            case InputAccepted() as body:
                self._input(body)
            case RunStarted():
                self._has_turns = False
            case TurnStarted() as body:
                self._streams[fact.run_id] = fact.seq
                self._turn(body)
            case ResponseEnded() as body:
                self._response(self._streams.pop(fact.run_id, 0), body)
            case InteractionRequested(request_id=request_id, call_id=str(call_id)):
                self._cards.asked(request_id, call_id)
            case InteractionResolved(request_id=request_id, edited_input=edited):
                self._cards.resolved(request_id, edited)
            case ToolStarted(call_id=call_id, attempt=attempt):
                self._cards.started(fact.seq, call_id, attempt)
            case ToolEnded() as body:
                self._cards.ended(body)
            case RunEnded() as body:
                self._run_ended(body)
            case InputWithdrawn():
                self._dim("(a message that waited was taken back)")
            case CancelRequested(error=None):
                self.output.end_text()
                self.output.waiting("cancelling …", "(Ctrl-C once more leaves at once)")
            case Note(data={"log": [*entries]}):
                for entry in entries:
                    self._dim(beginning(_words(entry)))
            case Note(level="warning" | "error", data=data):
                self._dim(_words(data))
            case _:
                pass

    def _input(self, body: InputAccepted) -> None:
        if body.input_id in self.said_here:
            return
        words = text_of(body.blocks)
        if not words:
            words = dumps(body.data) if body.data is not None else ", ".join(f"[{block.type}]" for block in body.blocks)
        said(self.output, STEERED if body.mode == "steer" else SAID, words)

    def _turn(self, body: TurnStarted) -> None:
        if self._problem:
            self._dim(f"({self._problem}; asking again)")
            self._problem = ""
        if self._model not in ("", body.model):
            self._dim(f"({body.model} answers from here on)")
        self._model = body.model
        self._has_turns = True
        self.output.waiting("reading …")

    def _response(self, stream: int, body: ResponseEnded) -> None:
        streamed = stream in self._streamed
        self._streamed.discard(stream)
        self._close(stream)
        self.output.end_text()
        if not streamed:
            for block in body.blocks:
                match block:
                    case TextBlock(text) if text:
                        self.output.text(text)
                        self.output.end_text()
                    case ThinkingBlock(text):
                        self._thinking(text)
                    case _:
                        pass
        if body.status in ("complete", "cut"):
            calls = [block for block in body.blocks if isinstance(block, ToolCallBlock)]
            self._cards.proposed(stream, calls, are_shown=streamed)
        elif body.status == "failed" and body.error is not None:
            self._problem = _first_words(body.error)
            self.output.waiting(f"{self._problem} …")
        elif body.status == "abandoned":
            self._problem = "the answer above broke off"

    def _thinking(self, text: str) -> None:
        """Show a thought, folded to one line."""
        words = " ".join(text.split())
        if not words or not self.output.is_watched:
            return
        room = self.output.width - len("thought: ")
        more = f" ({len(text):,} characters)"
        self._dim("thought: " + _on_one_line(words, room, more))

    def _run_ended(self, body: RunEnded) -> None:
        self.output.end_text()
        self._problem = ""
        if body.outcome == "failed" and body.error is not None:
            self._failed(body.error)
        elif body.outcome == "completed" and not self._has_turns and body.result is not None:
            self.output.text(body.result if isinstance(body.result, str) else dumps(body.result))
            self.output.end_text()
        elif body.outcome != "completed":
            self._dim(f"({_OUTCOMES.get(body.outcome, body.outcome)})")
        elif body.stop_reason == "max_tokens":
            self._dim("(cut: max_tokens reached)")

    def _failed(self, error: ErrorInfo) -> None:
        """Say in one block what went wrong and what to do."""
        words = error.message if len(error.message) <= LONGEST_ERROR else error.message[:LONGEST_ERROR] + " …"
        self.output.error(f"{words} ({error.code})")
        if error.request_id:
            self.output.prose(f"The provider's id of this request: {harmless(error.request_id)}", "  ")
        if hint := advice(error, in_chat=self._in_chat):
            self.output.prose(hint, "  ")

    def _dim(self, text: str) -> None:
        self.output.line(self.output.dim(harmless(text)))


def said(output: Output, label: str, words: str) -> None:
    """Show what a person said; its further lines stand below the first."""
    output.line(output.bold(label) + harmless(words).replace("\n", "\n" + " " * len(label)))


def _on_one_line(words: str, columns: int, more: str) -> str:
    return words if width(words) <= columns else cut(words, columns - len(more)) + more


def _first_words(error: ErrorInfo) -> str:
    return error.message.split("\n")[0][:LONGEST_ERROR]


def _words(data: Any) -> str:
    if isinstance(data, dict):
        fields = cast("Json", data)
        return str(fields.get("text") or fields.get("message") or fields.get("code") or dumps(fields))
    return data if isinstance(data, str) else dumps(data)
