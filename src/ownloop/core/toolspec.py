"""What a model and a person are told about a tool, and what the machine must know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ownloop.core.codec import digest
from ownloop.core.messages import Json

Approval: TypeAlias = Literal["allow", "ask", "deny"]
OnUnknown: TypeAlias = Literal["retry", "error", "ask"]
"""What to do about a started call whose outcome is unknown after a crash or timeout."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    description: str
    input_schema: Json
    approval: Approval | Literal["predicate"] = "allow"
    read_only: bool = False
    on_unknown: OnUnknown = "ask"
    timeout_s: float | None = None
    version: str = ""
    """The author's own version; part of the digest."""
    cancellable: bool = True
    """False: a plain function in a thread. Cancelling `execute` gives up on its result and stops nothing."""

    @property
    def digest(self) -> str:
        """Binds an approval to this tool as it was shown; never made of its source."""
        return digest(
            {
                "name": self.name,
                "schema": self.input_schema,
                "approval": self.approval,
                "on_unknown": self.on_unknown,
                "read_only": self.read_only,
                "version": self.version,
            }
        )

    def schema(self) -> dict[str, Any]:
        """Return the neutral form that `Backend.next_turn` takes."""
        return {"name": self.name, "description": self.description, "input_schema": self.input_schema}
