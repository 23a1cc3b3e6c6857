"""The three-method `Backend` around any streaming adapter. For the backends, and for users who drive a loop by hand.

The invariant: the history changes only by whole steps; a response that failed leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, cast

from ownloop.core.backend import Adapter, AgentTurn, Backend, ModelRequest, ModelSettings
from ownloop.core.messages import Message, TextBlock, ToolCallBlock, ToolResultBlock, calls_of
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import TurnBuilder, agent_turn
from ownloop.core.usage import Usage


class AdapterBackend(Backend):
    """One conversation with one adapter. Never share an instance between sessions; the adapter may be shared."""

    def __init__(self, adapter: Adapter, *, system_prompt: str = "", settings: ModelSettings | None = None) -> None:
        self.name = adapter.name
        self.adapter = adapter
        self.usage = Usage()
        """The sum over all responses so far."""
        self._system = system_prompt
        self._settings = settings or ModelSettings()
        self._messages: list[Message] = []
        self._results: dict[str, ToolResultBlock] = {}
        self._minted = 0
        self._schemas: list[dict[str, Any]] = []
        self._specs: tuple[ToolSpec, ...] = ()

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""
        return tuple(self._messages)

    def load(self, history: Sequence[Message]) -> None:
        """Continue a conversation; for a fresh instance."""
        self._messages = list(history)
        self._minted += sum(len(calls_of(message.blocks)) for message in history)

    def add_user_message(self, content: str) -> None:
        self._answer_calls()
        self._messages.append(Message("user", (TextBlock(content),)))

    def add_tool_result(self, tool_call_id: str, name: str, content: str, is_error: bool) -> None:
        """Raises ValueError if the last turn has no such call, or the call has its result."""
        if tool_call_id not in {call.call_id for call in self._open_calls()} or tool_call_id in self._results:
            raise ValueError(f"no call {tool_call_id!r} of the last turn waits for a result")
        self._results[tool_call_id] = ToolResultBlock(tool_call_id, name, (TextBlock(content),), is_error)

    async def next_turn(self, tool_schemas: list[dict[str, Any]]) -> AgentTurn:
        """Ask the model once.

        Calls that must not run (cut, not JSON) are not in the turn; the model is told what was wrong with them in the
        next request. A turn with only such calls has the stop reason `other`, so that the loop goes on.

        Raises:
            ProviderError: the response is not complete; the same call may be made again.
            ValueError: a call of the last turn has no result yet.
        """
        self._answer_calls()
        request = ModelRequest(self._system, tuple(self._messages), self._tools(tool_schemas), self._settings)
        builder = TurnBuilder(0, self._mint)
        # The contract promises an iterator; ours are generators, which have to be closed when the task is cancelled.
        async with aclosing(cast("Any", self.adapter.start(request))) as batches:
            async for batch in batches:
                builder.feed(batch)
        _, fact = builder.end(0)
        if fact.usage is not None:
            self.usage += fact.usage
        self._messages.append(
            Message("assistant", fact.blocks, provider=self.adapter.provider, model=self.adapter.model)
        )
        turn = agent_turn(fact)
        if not turn.tool_calls and calls_of(fact.blocks):
            turn.stop_reason = "other"
        return turn

    async def aclose(self) -> None:
        """Close the adapter, if nobody else uses it."""
        await self.adapter.aclose()

    def _mint(self) -> str:
        self._minted += 1
        return f"call_{self._minted}"

    def _tools(self, schemas: list[dict[str, Any]]) -> tuple[ToolSpec, ...]:
        if schemas != self._schemas:
            self._schemas = [dict(schema) for schema in schemas]
            self._specs = tuple(ToolSpec(s["name"], s.get("description") or "", s["input_schema"]) for s in schemas)
        return self._specs

    def _open_calls(self) -> tuple[ToolCallBlock, ...]:
        last = self._messages[-1] if self._messages else None
        return calls_of(last.blocks) if last is not None and last.role == "assistant" else ()

    def _answer_calls(self) -> None:
        """Put the results of the last turn into the history, in call order: every call needs exactly one."""
        calls = self._open_calls()
        if not calls:
            return
        results: list[ToolResultBlock] = []
        for call in calls:
            result = self._results.get(call.call_id)
            if result is None and call.problem is not None:
                result = ToolResultBlock(call.call_id, call.name, (TextBlock(call.problem),), is_error=True)
            if result is None:
                raise ValueError(f"call {call.call_id!r} of tool {call.name!r} has no result; add it before going on")
            results.append(result)
        self._results.clear()
        self._messages.append(Message("tool", tuple(results)))
