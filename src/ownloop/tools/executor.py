"""Run Python functions as tools: the `ToolExecutor` of an agent's own functions.

A call has two phases. *prepare* finds the tool, checks and mends the input, and asks everybody who has a say; it starts
nothing. *execute* runs the tool. Neither raises: whatever a tool does, it ends itself and not the host.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from traceback import format_exception
from typing import TYPE_CHECKING, Any, cast

from ownloop.core.codec import digest, dumps, loads
from ownloop.core.events import PreparedCall, ToolStatus
from ownloop.core.messages import Json, TextBlock, ToolCallBlock
from ownloop.core.policy import Opinion, Policy, PolicyFunction, opinion_of, opinion_of_failure, settle, strictest
from ownloop.core.ports import PrepareContext, Secrets, Threads, ToolContext, ToolExecutor, ToolResult
from ownloop.core.results import UNKNOWN
from ownloop.core.toolspec import ToolSpec
from ownloop.errors import ToolDefinitionError
from ownloop.tools.decorator import Tool, ToolRetry, tool
from ownloop.tools.rendering import Rendered, RenderError, finish, render

_log = logging.getLogger(__name__)

DENIED = "Tool use was denied by the agent's policy."


class FunctionExecutor:
    """The functions an agent was given, by name.

    Args:
        tools: Tools, or plain functions, which become tools with all defaults.
        policy: What the agent's author says beside the tools' own `approval`; it can only make a verdict stricter.
        output_cap: Characters of text that one result may have.

    Raises:
        ToolDefinitionError: two tools have one name, or a function cannot be a tool.
    """

    def __init__(
        self,
        tools: Sequence[Tool[..., Any] | Callable[..., Any]],
        *,
        policy: Policy | PolicyFunction | None = None,
        threads: Threads,
        secrets: Secrets,
        output_cap: int = 100_000,
    ) -> None:
        self._tools: dict[str, Tool[..., Any]] = {}
        for given in tools:
            self._add(cast("Tool[..., Any]", given) if isinstance(given, Tool) else tool(given))
        self._digests = {name: known.spec.digest for name, known in self._tools.items()}
        self._policy = policy
        self._threads = threads
        self._secrets = secrets
        self._output_cap = output_cap

    def _add(self, known: Tool[..., Any]) -> None:
        name = known.spec.name
        if name in self._tools:
            raise ToolDefinitionError(f"tool {name!r} is there twice; give one of them another name with name=")
        if known.is_method:
            raise ToolDefinitionError(f"tool {name!r} is a method; pass it from an instance, as instance.{name}")
        self._tools[name] = known

    @property
    def specs(self) -> Sequence[ToolSpec]:
        return tuple(known.spec for known in self._tools.values())

    # --- prepare -----------------------------------------------------------------------------------------------------

    async def prepare(self, call: ToolCallBlock, input: Json, context: PrepareContext) -> PreparedCall:
        known = self._tools.get(call.name)
        if known is None:
            return PreparedCall(call.call_id, "unknown_tool", problem=self._unknown(call.name))
        tool_digest = self._digests[call.name]
        if call.problem is not None:
            return PreparedCall(call.call_id, "invalid", tool_digest=tool_digest, problem=call.problem)
        fitted = known.parameters.fit(input)
        if fitted.problems:
            problem = _misfit(known, fitted.problems)
            return PreparedCall(call.call_id, "invalid", tool_digest=tool_digest, problem=problem)
        effective = fitted.input
        input_digest = digest(effective)
        opinion = strictest(await self._opinions(known, effective, context))
        verdict, rule = settle(opinion, context.rules, call.name, tool_digest, input_digest)
        return PreparedCall(
            call.call_id,
            verdict,
            rule=rule,
            input_digest=input_digest,
            tool_digest=tool_digest,
            input=None if effective is input else effective,
            problem=DENIED if verdict == "deny" else None,
        )

    async def _opinions(self, known: Tool[..., Any], input: Json, context: PrepareContext) -> list[Opinion]:
        spec = known.spec
        opinions: list[Opinion | None] = []
        if known.predicate is not None:
            opinions.append(await _hear("approval predicate", known.predicate, _copy(input), context))
        elif spec.approval != "predicate":
            opinions.append(Opinion(spec.approval, f"approval={spec.approval}"))
        if isinstance(self._policy, Policy):
            opinions.append(self._policy.opinion(spec))
        elif self._policy is not None:
            opinions.append(await _hear("policy", self._policy, spec.name, _copy(input), context))
        return [opinion for opinion in opinions if opinion is not None]

    def _unknown(self, name: str) -> str:
        known = list(self._tools)
        if not known:
            return f"tool {name!r} is not registered; there are no tools"
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"tool {name!r} is not registered; {hint}known tools: {', '.join(map(repr, known))}"

    # --- execute -----------------------------------------------------------------------------------------------------

    async def execute(self, name: str, input: Json, context: ToolContext) -> ToolResult:
        known = self._tools.get(name)
        if known is None:
            return self._result("error", self._unknown(name))
        fitted = known.parameters.fit(input)
        if fitted.problems:
            return self._result("invalid", _misfit(known, fitted.problems))
        arguments: dict[str, Any] = {**fitted.values, **dict.fromkeys(known.contexts, context)}
        cancels = _cancels()
        try:
            if known.is_async:
                return self._returned(known, await known.fn(**arguments))
            return await self._threads.run(self._call, known, arguments, context)
        except asyncio.CancelledError as error:
            if _cancels() == cancels:
                return self._raised(known, error, context)  # the tool's own doing: nobody asked us to stop
            if known.is_async:
                return self._result("cancelled", "The tool was cancelled.", confirmed_cancel=True)
            return self._result("unknown", f"The tool was cancelled, but it cannot be stopped. {UNKNOWN}")
        except BaseException as error:  # noqa: BLE001 - a tool's edge: SystemExit and the like end the tool, not the host
            return self._raised(known, error, context)

    def _call(self, known: Tool[..., Any], arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run a plain function to its result, all in its thread: some exceptions cannot leave a thread."""
        try:
            return self._returned(known, known.fn(**arguments))
        except BaseException as error:  # noqa: BLE001 - a tool's edge, as above
            return self._raised(known, error, context)

    def _returned(self, known: Tool[..., Any], value: object) -> ToolResult:
        try:
            return self._finished("ok", render(value))
        except RenderError as error:
            if inspect.iscoroutine(value):
                value.close()  # else Python warns that nobody awaited it
            return self._result("error", f"Error executing {known.spec.name}: the tool ran, but it returned {error}")

    def _raised(self, known: Tool[..., Any], error: BaseException, context: ToolContext) -> ToolResult:
        if isinstance(error, ToolRetry) and str(error):
            return self._result("error", str(error))
        ids = (context.session_id, context.run_id, context.call_id, known.spec.name)
        trace = self._secrets.redact("".join(format_exception(error)))
        _log.warning("tool raised: session=%s run=%s call=%s tool=%s\n%s", *ids, trace)
        return self._result("error", f"Error executing {known.spec.name}: {_reason(error)}")

    def _result(self, status: ToolStatus, words: str, *, confirmed_cancel: bool = False) -> ToolResult:
        return self._finished(status, Rendered((TextBlock(words),)), confirmed_cancel=confirmed_cancel)

    def _finished(self, status: ToolStatus, rendered: Rendered, *, confirmed_cancel: bool = False) -> ToolResult:
        done = finish(rendered, self._secrets.redact, self._output_cap)
        return ToolResult(status, done.blocks, done.blobs, confirmed_cancel, done.notes)


async def _hear(voice: str, ask: Callable[..., object], *args: object) -> Opinion | None:
    try:
        answer = ask(*args)
        return opinion_of(voice, await cast("Awaitable[object]", answer) if inspect.isawaitable(answer) else answer)
    except Exception as error:  # noqa: BLE001 - the author's code: a person decides in its place
        _log.warning("%s raised", voice, exc_info=error)
        return opinion_of_failure(voice, error)


def _copy(input: Json) -> Json:
    """What is handed to the author's code is a copy: the verdict is about the input as it will be journaled."""
    return loads(dumps(input))


def _cancels() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _misfit(known: Tool[..., Any], found: Sequence[str]) -> str:
    words = f"Invalid input for tool {known.spec.name!r}: {'; '.join(found)}."
    parameters = known.parameters.describe()
    return f"{words} It takes {parameters}." if parameters else f"{words} It takes no arguments."


def _reason(error: BaseException) -> str:
    """Return an exception's own words; its type where they are missing or say nothing without it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(inner) for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions)
    name = type(error).__name__
    try:
        words = str(error).strip()
    except BaseException:  # noqa: BLE001 - the author's __str__
        words = ""
    if not words:
        return name
    tells_alone = isinstance(error, Exception) and not isinstance(error, KeyError)
    return words if tells_alone else f"{name}: {words}"


if TYPE_CHECKING:
    _: type[ToolExecutor] = FunctionExecutor
