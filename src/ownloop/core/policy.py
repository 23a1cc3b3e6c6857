"""Whether a call may run: several voices about it, and how they are combined.

The voices are the tool's own `approval` and the agent's policy. For tools, agent and runtime to use. Its one invariant:
**deny wins, then ask, then allow**, and what a person remembered turns an ask into a run, never a denial.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeAlias, cast, get_args

from ownloop.core.events import Rule, Verdict
from ownloop.core.messages import Json
from ownloop.core.ports import PrepareContext
from ownloop.core.toolspec import Approval, ToolSpec

_STRICTNESS: Mapping[object, int] = {word: place for place, word in enumerate(get_args(Approval))}
_VERDICTS: Mapping[Approval, Verdict] = {"allow": "run", "ask": "ask", "deny": "deny"}


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one voice says about a call."""

    approval: Approval
    rule: str
    """Who says so, in words for the journal: "approval=ask", "policy delete_*=deny"."""


def is_approval(word: object) -> bool:
    """Tell whether `word` is "allow", "ask" or "deny"."""
    return isinstance(word, str) and word in _STRICTNESS


def strictest(opinions: Iterable[Opinion]) -> Opinion:
    """Return the strictest opinion, the first of equals. Raises `ValueError` if there is none."""
    return max(opinions, key=lambda opinion: _STRICTNESS[opinion.approval])


def settle(
    opinion: Opinion, rules: Mapping[str, Rule], tool: str, tool_digest: str, input_digest: str
) -> tuple[Verdict, str]:
    """Return the verdict and the rule that decided.

    A remembered rule holds for exactly this tool, as it was shown, with exactly this input.
    """
    if opinion.approval == "ask":
        for rule in rules.values():
            if (rule.tool, rule.tool_digest, rule.input_digest) == (tool, tool_digest, input_digest):
                return "run", rule.rule_id
    return _VERDICTS[opinion.approval], opinion.rule


@dataclass(frozen=True, slots=True)
class Policy:
    """What an agent's author decided about its tools, beside what each tool says of itself.

    ```python
    Policy(default="ask", read_only="allow", rules={"delete_*": "deny"})
    ```
    Raises `ValueError` for a word that is no approval: a mistyped "deny" must not allow.
    """

    default: Approval = "allow"
    """Of the tools that no rule names. "allow" leaves the decision to the tool's own `approval`."""
    rules: Mapping[str, Approval] = field(default_factory=dict[str, Approval])
    """By tool name or pattern (`*`, `?`, `[…]`). Of several that match, the strictest holds."""
    read_only: Approval | None = None
    """Of read-only tools that no rule names; None: as `default`."""

    def __post_init__(self) -> None:
        said: dict[str, object] = {"default": self.default, "read_only": self.read_only or "allow", **self.rules}
        for where, word in said.items():
            if not is_approval(word):
                raise ValueError(f"policy: {where!r} says {word!r}; expected 'allow', 'ask' or 'deny'")

    def opinion(self, spec: ToolSpec) -> Opinion:
        """Return what this policy says about a tool."""
        named = [
            Opinion(approval, f"policy {pattern}={approval}")
            for pattern, approval in self.rules.items()
            if fnmatchcase(spec.name, pattern)
        ]
        if named:
            return strictest(named)
        if spec.read_only and self.read_only is not None:
            return Opinion(self.read_only, f"policy read_only={self.read_only}")
        return Opinion(self.default, f"policy default={self.default}")


PolicyFunction: TypeAlias = Callable[[str, Json, PrepareContext], Approval | Awaitable[Approval | None] | None]
"""A policy in code: `(tool name, input, context)` → an approval, or None for no opinion. May be a coroutine function.

One that raises, or returns anything else, means "ask": a person decides.
"""
ApprovalPredicate: TypeAlias = Callable[[Json, PrepareContext], Approval | bool | Awaitable[Approval | bool]]
"""A tool's `approval` in code: `(input, context)` → an approval; or a bool that answers *does this call need a person?*

So True is "ask" and False "allow". May be a coroutine function. One that raises, or returns anything else, means "ask".
"""


def opinion_of(voice: str, answer: object) -> Opinion | None:
    """Read what a policy function or predicate returned; None if it has no opinion (only a policy may say so)."""
    if is_approval(answer):
        return Opinion(cast("Approval", answer), f"{voice}={answer}")
    if isinstance(answer, bool):
        return Opinion("ask" if answer else "allow", f"{voice}={answer}")
    if answer is None and voice == "policy":
        return None
    return Opinion("ask", f"{voice} returned {type(answer).__name__}, which is no approval, so a person decides")


def opinion_of_failure(voice: str, error: BaseException) -> Opinion:
    """Return what holds when a policy function or predicate raised: a person decides."""
    return Opinion("ask", f"{voice} raised {type(error).__name__}, so a person decides")
