"""Tell reasoning from text where a server leaves both in one stream: `<think>…</think>`. Pure; for any wire.

The invariant: what is held back because it may become a tag comes out sooner or later, as text or as thinking.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Plain: TypeAlias = Literal["text", "thinking"]


class ThinkTags:
    """Take one `<think>…</think>` out of the beginning of a text that comes in pieces; a tag may be cut anywhere.

    Only at the beginning: later on, such a tag is what somebody wrote about. A closing tag that stands there alone, as
    after a template that opened it in the prompt, is dropped.
    """

    __slots__ = ("_held", "_state")

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["before", "inside", "after", "passing"] = "before"

    @property
    def passes(self) -> bool:
        """Whether everything from here on is text."""
        return self._state == "passing"

    def feed(self, text: str) -> list[tuple[Plain, str]]:
        out: list[tuple[Plain, str]] = []
        self._held += text
        if self._state == "before":
            seen = self._held.lstrip()
            if seen.startswith("<think>"):
                self._state, self._held = "inside", seen[len("<think>") :]
            elif seen.startswith("</think>"):
                self._state, self._held = "after", seen[len("</think>") :]
            elif not ("<think>".startswith(seen) or "</think>".startswith(seen)):
                self._state = "passing"
        if self._state == "inside":
            thought, tag, rest = self._held.partition("</think>")
            if tag:
                self._state, self._held = "after", rest
            else:
                keep = next((n for n in range(7, 0, -1) if thought.endswith("</think>"[:n])), 0)
                thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
            if thought:
                out.append(("thinking", thought))
        if self._state == "after":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "passing"
        if self._state == "passing" and self._held:
            out.append(("text", self._held))
            self._held = ""
        return out

    def close(self) -> list[tuple[Plain, str]]:
        """Return what was held back, for it became no tag."""
        held, self._held = self._held, ""
        if not held:
            return []
        return [("thinking" if self._state == "inside" else "text", held)]
