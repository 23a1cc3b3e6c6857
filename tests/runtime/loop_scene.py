"""A stage for AgentLoop: a provider scripted in the contract's shapes, and a loop whose callbacks record everything."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from ownloop.core.provider import ModelResponse, ProviderMessage, StreamEvent, ToolSchema
from ownloop.runtime.agent_loop import AgentLoop
from ownloop.testing.virtual_time import SeededIds


def text(*pieces: str, index: int = 0) -> list[StreamEvent]:
    return [
        StreamEvent("content_block_start", index, "text"),
        *(StreamEvent("content_block_delta", index, delta_type="text_delta", text=piece) for piece in pieces),
        StreamEvent("content_block_stop", index),
    ]


def tool(name: str, *pieces: str, id: str = "", index: int = 1) -> list[StreamEvent]:
    return [
        StreamEvent("content_block_start", index, "tool_use", tool_name=name, tool_id=id),
        *(StreamEvent("content_block_delta", index, delta_type="input_json_delta", text=piece) for piece in pieces),
        StreamEvent("content_block_stop", index),
    ]


def usage(**counts: int) -> StreamEvent:
    return StreamEvent("usage", usage=counts)


STOP = StreamEvent("message_stop")
Reply = Sequence[StreamEvent | Exception | asyncio.Event]


class ScriptedProvider:
    """Plays one list of events per response, in the contract's shapes and with nothing beyond it."""

    def __init__(self, *script: Reply) -> None:
        self._script = list(script)
        self.asked: list[list[Any]] = []
        self.closed = 0

    async def stream_message(
        self, model: str, system: str | None, messages: list[Any], tools: Sequence[Any]
    ) -> AsyncIterator[StreamEvent]:
        self.asked.append(messages)
        self.request = (model, system, tools)
        try:
            for event in self._script.pop(0):
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, asyncio.Event):
                    await event.wait()
                else:
                    yield event
        finally:
            self.closed += 1

    def format_user_message(self, content: Any) -> Any:
        return {"role": "user", "content": content}

    def format_assistant_message(self, response: ModelResponse) -> Any:
        content: list[Any] = []
        for block in response.content:
            if block.tool_call is None:
                content.append({"type": "text", "text": block.text})
            else:
                content.append({"type": "tool_use", **asdict(block.tool_call)})
        return {"role": "assistant", "content": content}

    def format_tool_result(self, tool_use_id: str, content: list[dict[str, Any]]) -> Any:
        return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}


class Clock:
    """Stands still unless told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep_until(self, at_ms: int) -> None:
        self.now_s = max(self.now_s, at_ms / 1000)


async def _come_to(outcome: Any, input: dict[str, Any]) -> Any:
    if isinstance(outcome, BaseException):
        raise outcome
    return await outcome(input) if inspect.isfunction(outcome) else outcome


class Scene:
    """A loop with its callbacks; records what they are asked and what is shown."""

    def __init__(self, provider: Any, **options: Any) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.clock = Clock()
        self.answers: dict[str, Any] = {}
        """By tool: what hitl_handler returns, raises, or comes to; else (True, None)."""
        self.results: dict[str, Any] = {}
        """By tool, the same for tool_executor."""
        self._names: dict[str, str] = {}
        self.loop = AgentLoop(
            "s1",
            provider,
            "m1",
            options.pop("system_prompt", "Be brief."),
            options.pop("tools", [ToolSchema("add", "Adds.", {"type": "object"})]),
            self._execute,
            self._ask,
            self._emit,
            clock=self.clock,
            ids=SeededIds(),
            **options,
        )

    async def _execute(self, name: str, input: dict[str, Any]) -> Any:
        self.log.append(("execute", name, input))
        result = self.results.get(name, [{"type": "text", "text": f"{name} ran"}])
        return await _come_to(result, input)

    async def _ask(self, name: str, input: dict[str, Any]) -> Any:
        self.log.append(("ask", name, input))
        answer = self.answers.get(name, (True, None))
        return await _come_to(answer, input)

    async def _emit(self, event: str, data: dict[str, Any]) -> None:
        json.dumps(data)  # what is emitted is JSON
        self.log.append((event.removeprefix("agent:"), *self._plain(data)))

    def _plain(self, data: dict[str, Any]) -> list[Any]:
        """Return the payload with its ids named in order of appearance: A, B …"""
        message = data.get("message")
        if message is not None:
            assert sorted(message) == ["content", "id", "role"]
            return [self._name(message["id"]), message["role"], message["content"]]
        rest = {key: value for key, value in data.items() if key != "message_id"}
        return [self._name(data["message_id"]), *([rest] if rest else [])]

    def _name(self, id: str) -> str:
        return self._names.setdefault(id, chr(ord("A") + len(self._names)))

    def shown(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.log if entry[0] in (kinds or ("stream_start", "stream_end", "message"))]

    def tool_results(self) -> list[dict[str, Any]]:
        return [entry[3] for entry in self.log if entry[0] == "message" and entry[2] == "tool_result"]

    def result_texts(self) -> list[str]:
        return [result["text"] for result in self.tool_results()]


def is_valid(messages: Sequence[Any]) -> bool:
    """Whether each call of a scripted provider's history has exactly one result, right behind it."""
    open_ids: list[str] = []
    for message in messages:
        if isinstance(message, ProviderMessage):
            if [result["tool_use_id"] for result in message.content] != open_ids:
                return False
            open_ids = []
        elif open_ids or not message["content"]:
            return False
        elif message["role"] == "assistant":
            open_ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    return not open_ids


async def cancel_when(scene: Scene, reached: Callable[[], bool]) -> None:
    """Run the scene's loop and cancel it as soon as `reached`."""
    task = asyncio.create_task(scene.loop.run("go"))
    while not reached():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
