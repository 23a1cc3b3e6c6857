"""A call that asks before it runs, and one of which nobody knows whether it ran. Used by `ask`."""

from __future__ import annotations

import json
import re
from typing import cast

from ownloop.cli.editor import Editor, EditorError
from ownloop.cli.harmless import harmless, revealed
from ownloop.cli.output import Output
from ownloop.cli.prompt import Prompt
from ownloop.cli.request_card import LEAVE, RequestCard, pretty
from ownloop.core.codec import loads
from ownloop.core.messages import Json
from ownloop.core.operations import Asked
from ownloop.core.schema import problems

CHOICES = ("[a]pprove", "[s]ame from now on", "[e]dit", "[d]eny", LEAVE)
EXPLAINED = {
    "a": "the call runs with these arguments",
    "s": "as a, and the same call runs unasked in this session, by a rule",
    "e": "change the arguments, then the call runs with those",
    "d": "the call does not run; you may say why, and the model reads it",
    "l": "leave the chat (/quit, Ctrl-D too); the next start asks again",
}
YES_AND_NO = {"y": "a", "yes": "a", "n": "d", "no": "d"}
OUTCOMES = ("it [r]an", "it did [n]ot run", "run it a[g]ain", LEAVE)
CANCELS = "(Ctrl-C cancels the run)"
_EDITED = re.compile(r"^edited_input(?:\.|: )")


class ToolCard(RequestCard):
    """A request about one call."""

    @property
    def tool(self) -> str:
        return harmless(str(self.data.get("tool")))

    @property
    def input(self) -> Json:
        input = self.data.get("input")
        return cast("Json", input) if isinstance(input, dict) else {}

    def show_input(self) -> None:
        if self.input:
            self.values(self.input)
        else:
            self.out.line(self.out.dim("    (no arguments)"))


class Approval(ToolCard):
    """May this call run?"""

    def __init__(self, output: Output, prompt: Prompt, request: Asked, editor: Editor) -> None:
        super().__init__(output, prompt, request)
        self._editor: Editor | None = editor if editor.is_set else None
        self._text = ""
        """The arguments as they were edited last, if that was not taken."""

    def show(self, where: str) -> None:
        self.head(f"May {self.tool} run?", where)
        if self.data.get("description"):
            self.say(str(self.data["description"]).splitlines()[0])
        self.show_input()

    async def answer(self) -> Json:
        while True:
            match await self.choose(*CHOICES, hint=CANCELS, explained=EXPLAINED, **YES_AND_NO):
                case "a":
                    return {"approved": True}
                case "s":
                    if await self._grants():
                        return {"approved": True, "remember": "session"}
                case "d":
                    self.say("Why? The model reads it. It may be empty.")
                    reason = (await self.prompt.decide("  reason › ")).strip()
                    return {"approved": False, **({"note": reason} if reason else {})}
                case _:
                    edited = await self._edit()
                    if edited is not None:
                        return edited

    async def _grants(self) -> bool:
        """Show the rule and ask whether it is meant."""
        self.say(f"The rule: from now on, in this session, {self.tool} runs unasked with exactly these arguments:")
        self.out.line("      " + revealed(pretty(self.input)))
        return await self.choose("[y]es", "[b]ack", no="b", n="b") == "y"

    # --- editing ---

    async def _edit(self) -> Json | None:
        """Let the arguments be edited until they fit; None: not after all."""
        while True:
            with_editor = self._editor is not None
            try:
                text = await self._edited_text()
            except EditorError as error:
                self.out.error(f"{error}. Edit the arguments here instead.", "  ")
                self._editor = None
                continue
            if not text.strip():
                self._text = ""
                return None
            answer, problem = self._read(text)
            if not problem:
                return answer
            self._text = text
            self.out.error(problem if with_editor else f"{problem}. Mend it.", "  ")
            if with_editor and await self.choose("[e]dit on", "[b]ack") == "b":
                return None

    async def _edited_text(self) -> str:
        if self._editor is None:
            text = pretty(self.input) if not self._text else self._text
            self.say("Enter approves what stands in the line; Esc goes back, and so does an empty line.")
            return await self.prompt.edit("  arguments › ", text)
        self.say("In your editor: what you save is approved, also if it is unchanged. Empty the file to go back.")
        text = json.dumps(self.input, ensure_ascii=False, indent=2) + "\n" if not self._text else self._text
        return await self._editor.edit(text, "arguments.json")

    def _read(self, text: str) -> tuple[Json, str]:
        """Return the answer with the edited arguments, and what is wrong with it."""
        try:
            edited = loads(text)
        except ValueError as error:
            return {}, f"this is not JSON: {error}"
        if not isinstance(edited, dict):
            return {}, "the arguments are a JSON object, {…}"
        if edited == self.input:
            return {"approved": True}, ""
        answer: Json = {"approved": True, "edited_input": edited}
        return answer, "; ".join(_EDITED.sub("", problem) for problem in problems(self.request.schema, answer))


class Outcome(ToolCard):
    """How did a call end that was started before a crash?"""

    def show(self, where: str) -> None:
        self.head(f"{self.tool} was started, and nobody knows how it ended.", where)
        self.say("Look whether it took effect. It is never run again without your word.")
        self.show_input()

    async def answer(self) -> Json:
        match await self.choose(*OUTCOMES, hint=CANCELS):
            case "r":
                self.say("What did it return? The model reads it. It may be empty.")
                result = (await self.prompt.decide("  result › ")).strip()
                return {"outcome": "ran", **({"result": result} if result else {})}
            case "n":
                return {"outcome": "not_run"}
            case _:
                return {"outcome": "again"}
