"""The few real parts that tool tests stand on: threads, secrets, a context, an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ownloop.core.messages import Json, TextBlock, ToolCallBlock
from ownloop.core.policy import Policy, PolicyFunction
from ownloop.core.ports import PrepareContext, Secrets, Threads, ToolContext, ToolResult
from ownloop.tools.executor import FunctionExecutor

T = TypeVar("T")


class RealThreads:
    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(fn, *args)


@dataclass
class PlantedSecrets:
    known: dict[str, str] = field(default_factory=dict[str, str])

    def get(self, name: str) -> str:
        return self.known[name]

    def redact(self, text: str) -> str:
        for name, secret in self.known.items():
            text = text.replace(secret, f"[{name}]")
        return text


@dataclass
class Context:
    """A call's context that keeps what the tool reports."""

    session_id: str = "session_1"
    run_id: str = "run_1"
    call_id: str = "call_1"
    attempt: int = 1
    key: str = "key_1"
    deps: Any = None
    secrets: Secrets = field(default_factory=PlantedSecrets)
    reported: list[Any] = field(default_factory=list[Any])

    async def progress(self, data: Any) -> None:
        self.reported.append(data)

    async def ask(self, question: str, schema: Json | None = None) -> Any:
        return f"answer to {question}"


def executor_of(
    *tools: Callable[..., Any],
    policy: Policy | PolicyFunction | None = None,
    secrets: Secrets | None = None,
    output_cap: int = 100_000,
) -> FunctionExecutor:
    return FunctionExecutor(
        tools, policy=policy, threads=RealThreads(), secrets=secrets or PlantedSecrets(), output_cap=output_cap
    )


def call_of(name: str, input: Json, problem: str | None = None) -> ToolCallBlock:
    return ToolCallBlock("call_1", name, input, problem=problem)


ASKING = PrepareContext("session_1", "run_1", {})


def text_of(result: ToolResult) -> str:
    """Return the one text of a result."""
    [block] = result.blocks
    assert isinstance(block, TextBlock)
    return block.text


if TYPE_CHECKING:
    _threads: type[Threads] = RealThreads
    _secrets: type[Secrets] = PlantedSecrets
    _context: type[ToolContext] = Context
