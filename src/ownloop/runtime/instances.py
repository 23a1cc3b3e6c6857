"""Three-method Backends behind the adapter protocol: one instance per session, made by its factory, never shared.

An instance is used as long as the conversation is the one it has seen. Otherwise (a restart, a failed turn, a change of
model, a fork) a new one is made: with `load` it is given the history, without it its first user message holds the
conversation so far as a transcript.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ownloop.core.backend import (
    AgentTurn,
    Backend,
    Finish,
    ModelRequest,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
)
from ownloop.core.codec import dumps
from ownloop.core.messages import Message, TextBlock, ToolCallBlock, ToolResultBlock, calls_of, text_of

BackendFactory = Callable[..., Backend]


@dataclass(slots=True)
class _Instance:
    backend: Backend
    seen: tuple[int, ...]
    """The seqs of the messages it was given; its own answer follows them."""


class InstanceAdapter:
    """An `Adapter` over a factory of three-method Backends. Nothing streams: each turn comes as one batch."""

    provider = "custom"

    def __init__(self, factory: BackendFactory, model: str = "") -> None:
        name = getattr(factory, "name", None) or getattr(factory, "__name__", None)
        self.name = name if isinstance(name, str) else "custom"
        self.model = model or self.name
        self._factory = factory
        self._instances: dict[str, _Instance] = {}

    async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
        history = request.messages
        # Taken out first: a turn that fails or is cancelled leaves an instance nobody can trust.
        instance = self._instances.pop(request.session_id, None)
        backend = self._resume(instance, history) if instance is not None else None
        if backend is None:
            backend = self._fresh(history, request.system)
        turn = await backend.next_turn([spec.schema() for spec in request.tools])
        try:
            parts = _parts(turn)
        except (AttributeError, TypeError) as error:
            raise TypeError(
                f"next_turn of backend {self.name!r} returned {type(turn).__name__!r}, and it must return "
                f"AgentTurn(text_blocks: list[str], tool_calls: list[ToolCall], stop_reason): {error}"
            ) from error
        self._instances[request.session_id] = _Instance(backend, tuple(message.seq for message in history))
        yield parts

    def forget(self, session_id: str) -> None:
        """Free the instance of a session that was closed."""
        self._instances.pop(session_id, None)

    async def aclose(self) -> None:
        self._instances.clear()

    def _resume(self, instance: _Instance, history: Sequence[Message]) -> Backend | None:
        """Hand over what came since the instance's answer; None if this is not the conversation it knows."""
        known = len(instance.seen)
        if tuple(message.seq for message in history[:known]) != instance.seen:
            return None
        news = history[known:]
        if not news or news[0].role != "assistant" or any(message.role == "assistant" for message in news[1:]):
            return None
        _feed(instance.backend, history, known + 1)
        return instance.backend

    def _fresh(self, history: Sequence[Message], system: str) -> Backend:
        # `Backend(system_prompt=…)` is the contract's way to make one; who does not take it has its own instructions.
        takes_prompt = "system_prompt" in inspect.signature(self._factory).parameters
        backend = self._factory(system_prompt=system) if takes_prompt else self._factory()
        if not isinstance(backend, Backend):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's factory
            raise TypeError(f"the backend factory returned {type(backend).__name__!r}; it must return a Backend")
        answered = max((i + 1 for i, message in enumerate(history) if message.role == "assistant"), default=0)
        load = getattr(backend, "load", None)
        if answered and load is not None:
            load(history[:answered])
            _feed(backend, history, answered)
        elif answered:
            backend.add_user_message(transcript(history))
        else:
            _feed(backend, history, 0)
        return backend


def _feed(backend: Backend, history: Sequence[Message], start: int) -> None:
    calls = {call.call_id: call for message in history for call in calls_of(message.blocks)}
    for message in history[start:]:
        if message.role == "user":
            backend.add_user_message(_plain(message.blocks))
            continue
        for block in message.blocks:
            if isinstance(block, ToolResultBlock):
                call = calls.get(block.call_id)
                own_id = call.provider_id if call is not None and call.provider_id else block.call_id
                backend.add_tool_result(own_id, block.name, _plain(block.content), block.is_error)


def _plain(blocks: Sequence[Any]) -> str:
    words = [block.text if isinstance(block, TextBlock) else f"[{block.media_type}]" for block in blocks]
    return "\n".join(words)


def transcript(history: Sequence[Message]) -> str:
    """Return a conversation as one text, for a model that cannot be given it in another way."""
    lines = ["The conversation so far:"]
    for message in history:
        if message.role == "user":
            lines.append(f"User: {_plain(message.blocks)}")
            continue
        if message.role == "assistant" and (text := text_of(message.blocks)):
            lines.append(f"You: {text}")
        for block in message.blocks:
            if isinstance(block, ToolCallBlock):
                lines.append(f"You called {block.name} with {dumps(block.input)}")
            elif isinstance(block, ToolResultBlock):
                kind = "Error" if block.is_error else "Result"
                lines.append(f"{kind} of {block.name}: {_plain(block.content)}")
    lines.append("Go on from here.")
    return "\n".join(lines)


def _parts(turn: AgentTurn) -> list[Part]:
    parts: list[Part] = []
    index = 0
    for text in turn.text_blocks:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's backend made it
            raise TypeError(f"a text block is of type {type(text).__name__!r}")
        parts += [PartStart(index, "text"), PartDelta(index, text), PartEnd(index)]
        index += 1
    for call in turn.tool_calls:
        parts.append(PartStart(index, "tool_call", call.name, call.id or None))
        try:
            parts += [PartDelta(index, dumps(call.input)), PartEnd(index)]
        except (TypeError, ValueError) as error:
            parts.append(PartEnd(index, problem=f"the backend returned an input that is not JSON: {error}"))
        index += 1
    parts.append(Finish(turn.stop_reason, turn.stop_reason))
    return parts
