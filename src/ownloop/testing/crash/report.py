"""What the crash kit found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """One kill, or two, and what became of it."""

    place: str
    """Where the first process died; "" for the run that is never killed."""
    second: str = ""
    """Where the process died that went on after it, if that was killed too."""
    reached: bool = True
    """Whether the processes died where they should: a planted fault may change the course."""
    violations: Sequence[str] = ()
    journal: Sequence[str] = ()
    """The last facts, where something is wrong."""
    folder: str = ""
    """Where the store is, if it was kept."""

    def __str__(self) -> str:
        return " / ".join(filter(None, (self.place or "no kill", self.second)))


@dataclass(frozen=True, slots=True)
class Report:
    """All positions of one scenario."""

    scenario: str
    positions: Sequence[Position]
    elapsed_s: float

    @property
    def violations(self) -> list[str]:
        """Each with its position before it."""
        return [f"{position}: {words}" for position in self.positions for words in position.violations]

    @property
    def missed(self) -> list[Position]:
        """Positions that the processes did not reach, so that nobody died there."""
        return [position for position in self.positions if not position.reached]

    def __str__(self) -> str:
        """The table that the command prints."""
        tried, wrong = len(self.positions), [position for position in self.positions if position.violations]
        lines = [f"{self.scenario}: {tried} positions, {len(self.violations)} violations, {self.elapsed_s:.1f} s"]
        for position in wrong:
            lines += [f"  {position}", *(f"    ! {words}" for words in position.violations)]
            lines += [f"      {line}" for line in position.journal]
        return "\n".join(lines)
