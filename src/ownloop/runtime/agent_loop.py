"""`AgentLoop`: an owned, streaming, human-in-the-loop loop over one conversation, in memory. For users, without a host.

It shows what the host shows: its events are the `agent` projection of the same facts, only that nobody journals them.
The invariant: between runs `messages` is a conversation that any provider takes: each call has exactly one result.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from ownloop.core import results
from ownloop.core.backend import Adapter, Backend, Finish, Part, PartDelta, PartEnd, PartStart, PartType, StopReason
from ownloop.core.events import Event, Fact, FactBody, LiveEvent, ResponseEnded, ToolEnded, ToolStatus, TurnStarted
from ownloop.core.messages import Json, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from ownloop.core.ports import Clock, Ids
from ownloop.core.provider import ContentBlock, ModelResponse, Provider, ProviderMessage, StreamEvent, ToolCall
from ownloop.core.text import clean_json, clean_text
from ownloop.core.turn import CUT, INTERRUPTED, TurnBuilder
from ownloop.core.usage import merge_counts
from ownloop.errors import StreamInterruptedError
from ownloop.projections import agent
from ownloop.runtime.provider_of import provider_of
from ownloop.runtime.system import SystemClock, SystemIds

logger = logging.getLogger(__name__)

T = TypeVar("T")
ToolExecutor: TypeAlias = Callable[[str, Json], Awaitable[list[Json]]]
HitlHandler: TypeAlias = Callable[[str, Json], Awaitable[tuple[bool, Json | None]]]
WsEmitter: TypeAlias = Callable[[str, Json], Awaitable[None]]

MAX_TOKENS = 8192
"""For a provider that insists on being told; others keep their own default."""
CANCELLED = "Cancelled before it came to a result. If the tool had started, it may have taken effect."


class AgentLoop:
    """Run a model and its tools until it is done, asking a person about every tool call.

    ```python
    loop = AgentLoop("s1", backend, "", "You help.", tools, run_tool, ask_person, send)
    await loop.run("Refund order 7.")
    ```

    Not durable: the conversation, and the wait for a person, live in this process and end with it. `Agent` and the host
    are for runs that must survive.

    Args:
        session_id: Yours; for logs.
        provider: A `Provider`, or any backend: an adapter, or a three-method `Backend` (class, factory, or an instance
            that is nobody else's). A three-method Backend of your own keeps its own system prompt.
        model: Handed to the provider. An adapter is bound to its model and does not look at it.
        tools: Handed to the provider: `ToolSchema`s, or what a provider of your own takes.
        tool_executor: `(name, input) -> list[content block]`. What it raises becomes an error result.
        hitl_handler: `(name, input) -> (approved, updated_input | None)`, asked for every call that can run. An
            `updated_input` replaces the input, also `{}`. If it raises, the tool is not run.
        ws_emitter: `(event, data)`, awaited in order. What it raises ends the run.
        max_turns: Most responses of one run; None or 0 = no limit.
        cwd: Kept for the tools.
        max_tokens: Handed to the provider if its `stream_message` takes it; None = its own default.

    Both callbacks about a call get a copy of its input: changing it in place changes nothing.

    What `ws_emitter` gets; all text of a response is one message, and each call is one:

    | event              | data                                                                                       |
    |--------------------|--------------------------------------------------------------------------------------------|
    | agent:stream_start | message_id, role: assistant or tool_call, tool_name of a tool_call                          |
    | agent:stream_delta | message_id, delta                                                                          |
    | agent:stream_end   | message_id; of a call when its block ends, of text when the response does                   |
    | agent:message      | message: {id, role, content}; content of assistant: the text, of tool_call: {id, tool,      |
    |                    | input}, of tool_result: {text, tool_name, elapsed_ms since the person was asked}            |
    """

    def __init__(
        self,
        session_id: str,
        provider: Provider | Adapter | Backend | Callable[[], Backend],
        model: str,
        system_prompt: str | None,
        tools: Sequence[Any],
        tool_executor: ToolExecutor,
        hitl_handler: HitlHandler,
        ws_emitter: WsEmitter,
        max_turns: int | None = None,
        cwd: str | None = None,
        *,
        max_tokens: int | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.session_id = session_id
        self.provider: Provider = provider_of(provider, session_id)
        self.model = model
        self.system_prompt = system_prompt
        self.tools = tools
        self.tool_executor = tool_executor
        self.hitl_handler = hitl_handler
        self.ws_emitter = ws_emitter
        self.max_turns = max_turns
        self.cwd = cwd
        self.max_tokens = max_tokens
        self.messages: list[Any] = []
        """The conversation, in the provider's form. Between runs it may be replaced: kept elsewhere, and put back."""
        self.total_input_tokens = 0
        """Summed over all responses, also those that broke off."""
        self.total_output_tokens = 0
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        # A prefix of its own: loops of the same session in other processes never repeat a message id.
        self._shown = agent.AgentState(self._ids.new("msg"))
        self._seq = 0
        self._is_running = False

    async def run(self, user_content: Any) -> None:
        """Take what a person said, and go on until the model asks for no tool or `max_turns` is reached.

        Cancelling it reaches the provider's stream or the tool. Text that was shown is kept, open calls get a result.

        Raises:
            StreamInterruptedError: the response broke off. Nothing of it was run; the text it came to is kept.
            RuntimeError: another run of this loop is not over.
        """
        if self._is_running:
            raise RuntimeError(f"session {self.session_id!r} has a run that is not over: await it, or use another loop")
        self._is_running = True
        try:
            self.messages.append(self.provider.format_user_message(clean_json(user_content)))
            turn = 0
            while not self.max_turns or turn < self.max_turns:
                turn += 1
                response, ending = await self._respond(turn)
                calls = [block for block in response.content if block.tool_call is not None]
                self._remember(response)
                await self._finish_turn(ending, calls)
                if not calls:
                    return
            logger.info("max_turns reached, session=%s turns=%d", self.session_id, turn)
        finally:
            self._is_running = False

    # --- the model's half of a turn ---

    async def _respond(self, turn: int) -> tuple[ModelResponse, list[Event]]:
        """Read one response; return it with the events of its end, which are still to be shown."""
        started = self._fact(TurnStarted(turn, 1, "", "", self.model))
        reader = _ResponseReader(started.seq, turn, self._ids)
        try:
            await self._show(started)
            await self._read(reader)
        except (Exception, asyncio.CancelledError):
            # Nobody asks again here, so what was said stays, as after a cancel in the host: the text, and no call.
            closing, ended = reader.end(is_broken=True)
            self._remember(reader.response(ended))
            await self._show_before_raising(*closing, self._fact(ended))
            raise
        finally:
            self.total_input_tokens += reader.usage.get("input_tokens") or 0
            self.total_output_tokens += reader.usage.get("output_tokens") or 0
        closing, ended = reader.end()
        return reader.response(ended), [*closing, self._fact(ended)]

    async def _read(self, reader: _ResponseReader) -> None:
        ask = self.provider.stream_message
        extra: Json = {}
        parameter = _parameter(ask, "max_tokens")
        if parameter is not None and (self.max_tokens is not None or parameter.default is parameter.empty):
            extra["max_tokens"] = self.max_tokens or MAX_TOKENS
        messages, tools = list(self.messages), list(self.tools)
        stream: Any = ask(model=self.model, system=self.system_prompt, messages=messages, tools=tools, **extra)
        if inspect.isawaitable(stream):  # an `async def` that returns its iterator
            stream = await stream
        try:
            async for event in stream:
                await self._show(*reader.feed(event))
        finally:
            close = getattr(stream, "aclose", None)  # generators have it; the contract asks for an iterator
            if close is not None:
                await close()
        if not reader.is_stopped:
            raise StreamInterruptedError(
                f"session {self.session_id!r}: the provider's stream ended without message_stop, so the response is "
                "not complete; nothing of it was run"
            )

    def _remember(self, response: ModelResponse) -> None:
        # Providers refuse a message of the assistant that holds nothing.
        if response.content:
            self.messages.append(self.provider.format_assistant_message(response))

    # --- the tools' half ---

    async def _finish_turn(self, ending: Sequence[Event], calls: Sequence[ContentBlock]) -> None:
        """Show the end of the response and answer its calls, one after the other; each gets a result, come what may."""
        answers: list[Any] = []
        began_s = self._clock.monotonic_s()
        try:
            await self._show(*ending)
            for block in calls:
                began_s = self._clock.monotonic_s()
                result = await self._call_tool(block)
                answer, result = self._formatted(block, result)
                answers.append(answer)
                await self._show(self._ended(block, result, self._elapsed_ms(began_s)))
        except asyncio.CancelledError:
            elapsed_ms = self._elapsed_ms(began_s)
            for block in calls[len(answers) :]:
                await self._show_before_raising(self._ended(block, _cancelled(), elapsed_ms))
                elapsed_ms = 0  # those behind the first had not begun
            raise
        finally:
            for block in calls[len(answers) :]:
                answers.append(self._format(block, _cancelled()))
            if answers:
                self.messages.append(ProviderMessage("tool_result", answers))

    async def _call_tool(self, block: ContentBlock) -> _Result:
        call = _call(block)
        if block.problem is not None:
            return self._failed("invalid", call, block.problem)
        try:
            is_approved, edited = await _await_foreign(self._ask(call))
        except _CallbackError as error:
            return self._failed("denied", call, f"asking for approval failed ({error}), so it was not run", error)
        if not is_approved:
            return _Result("denied", _text(results.DENIED))
        input = deepcopy(call.input) if edited is None else edited
        try:
            return _Result("ok", await _await_foreign(self._use(call.name, input)))
        except _CallbackError as error:
            return self._failed("error", call, str(error), error)

    async def _ask(self, call: ToolCall) -> tuple[bool, Json | None]:
        answer = await self.hitl_handler(call.name, deepcopy(call.input))
        is_approved, edited = cast("tuple[object, object]", answer)
        if not (isinstance(is_approved, bool) and isinstance(edited, dict | None)):  # what is no clear yes is a no
            raise TypeError("hitl_handler must return (True or False, a dict or None)")
        return answer

    async def _use(self, name: str, input: Json) -> list[Json]:
        content: Any = await self.tool_executor(name, input)
        match content:
            case []:
                return _text("Done.")
            case [*items] if all(isinstance(item, dict) for item in items):
                return clean_json(items)
            case _:
                raise TypeError(f"tool_executor returned {type(content).__name__!r}, not a list of content blocks")

    def _failed(self, status: ToolStatus, call: ToolCall, reason: str, error: Exception | None = None) -> _Result:
        logger.warning("call failed, session=%s call=%s tool=%s", self.session_id, call.id, call.name, exc_info=error)
        return _Result(status, _text(clean_text(f"Error executing {call.name}: {reason}")))

    def _formatted(self, block: ContentBlock, result: _Result) -> tuple[Any, _Result]:
        """Return the result in the provider's form; a result that it does not take becomes one that says so."""
        try:
            return self._format(block, result), result
        except Exception as error:  # noqa: BLE001 - a user's code: what it made of the call must still be told
            words = f"its result cannot be given to the model ({str(error) or type(error).__name__})"
            result = self._failed("error", _call(block), words, error)
            return self._format(block, result), result

    def _format(self, block: ContentBlock, result: _Result) -> Any:
        format_tool_result: Callable[..., Any] = self.provider.format_tool_result
        takes_is_error = _parameter(format_tool_result, "is_error") is not None
        extra = {"is_error": result.status != "ok"} if takes_is_error else {}
        return format_tool_result(_call(block).id, result.content, **extra)

    # --- what is shown ---

    def _fact(self, body: FactBody) -> Fact:
        self._seq += 1
        return Fact(self._seq, self._clock.now_ms(), 0, None, body)

    def _elapsed_ms(self, began_s: float) -> int:
        return int((self._clock.monotonic_s() - began_s) * 1000)

    def _ended(self, block: ContentBlock, result: _Result, elapsed_ms: int) -> Fact:
        texts = tuple(TextBlock(str(item.get("text", ""))) for item in result.content if item.get("type") == "text")
        return self._fact(ToolEnded(_call(block).id, 1, result.status, texts, elapsed_ms))

    async def _show(self, *events: Event) -> None:
        for event in events:
            self._shown, frames = agent.feed(self._shown, event)
            for name, data in frames:
                await self.ws_emitter(name, data)

    async def _show_before_raising(self, *events: Event) -> None:
        """Show the last events of a run that ends in an error, which a further one must not hide."""
        try:
            await self._show(*events)
        except Exception:
            logger.warning("the end of a run could not be shown, session=%s", self.session_id, exc_info=True)


_PART_TYPES: dict[str, PartType] = {"text": "text", "thinking": "thinking", "tool_use": "tool_call"}
_DELTA_TYPES = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
_STOP_REASONS: dict[str, StopReason] = {"end_turn": "end_turn", "tool_use": "tool_use", "max_tokens": "max_tokens"}


class _ResponseReader:
    """One response: a provider's events in, live events out, and its content at the end. Pure but for minted ids."""

    def __init__(self, stream: int, turn: int, ids: Ids) -> None:
        self.usage: Json = {}
        self.is_stopped = False
        self._turn = turn
        self._ids = ids
        self._builder = TurnBuilder(stream, lambda: self._call_id)
        self._call_id = ""
        """Of the call that starts next."""
        self._call_ids: set[str] = set()
        self._types: list[str] = []
        """The provider's block types, by number."""
        self._open: dict[int, int] = {}
        """Numbers of the open blocks, by the provider's index."""

    def feed(self, event: StreamEvent) -> list[LiveEvent]:
        if event.type == "usage":
            self.usage = merge_counts(self.usage, event.usage)
            return []
        return [] if self.is_stopped else self._builder.feed(self._parts(event))

    def _parts(self, event: StreamEvent) -> list[Part]:
        # Fields of our own are read with a default: a provider may bring event objects that lack them.
        match event.type:
            case "content_block_start":
                return [*self._break_off(event.index), self._start(event)]
            case "content_block_delta":
                number = self._open.get(event.index)
                if number is None or event.delta_type != _DELTA_TYPES.get(self._types[number]):
                    return []
                return [PartDelta(number, event.text)]
            case "content_block_stop":
                number = self._open.pop(event.index, None)
                raw, problem = getattr(event, "raw", None), getattr(event, "problem", None)
                return [] if number is None else [PartEnd(number, raw, problem)]
            case "message_stop":
                self.is_stopped = True
                raw_stop: str = getattr(event, "stop_reason", None) or "end_turn"
                broken = [part for index in list(self._open) for part in self._break_off(index)]
                return [*broken, Finish(_STOP_REASONS.get(raw_stop, "other"), raw_stop)]
            case _:
                return []

    def _start(self, event: StreamEvent) -> Part:
        number = self._open[event.index] = len(self._types)
        self._types.append(event.block_type)
        if event.block_type != "tool_use":
            return PartStart(number, _PART_TYPES.get(event.block_type, "provider"))
        is_usable = event.tool_id and event.tool_id not in self._call_ids
        self._call_id = event.tool_id if is_usable else self._ids.new("call")
        self._call_ids.add(self._call_id)
        return PartStart(number, "tool_call", event.tool_name, event.tool_id or None)

    def _break_off(self, index: int) -> list[Part]:
        """End a block that the provider did not end; a call may then be incomplete, whatever it parses to."""
        number = self._open.pop(index, None)
        return [] if number is None else [PartEnd(number, problem=INTERRUPTED)]

    def end(self, *, is_broken: bool = False) -> tuple[list[LiveEvent], ResponseEnded]:
        return self._builder.end(self._turn, "cancelled" if is_broken else None)

    def response(self, ended: ResponseEnded) -> ModelResponse:
        """Return what goes into the history: of a response that broke off, its text."""
        blocks = [self._content(ended, number) for number in range(len(ended.blocks))]
        content = [block for block in blocks if block is not None]
        if ended.status == "cancelled":
            content = [block for block in content if block.type == "text" and block.text.strip()]
        has_calls = any(block.tool_call is not None for block in content)
        return ModelResponse(content, "tool_use" if has_calls else ended.stop_reason or "other", self.usage)

    def _content(self, ended: ResponseEnded, number: int) -> ContentBlock | None:
        match ended.blocks[number]:
            case TextBlock(text, raw):
                return ContentBlock("text", text, raw=raw) if text or raw else None  # an empty one is refused
            case ThinkingBlock(text, raw):
                return None if raw is None else ContentBlock("thinking", text, raw=raw)
            case ProviderBlock(raw):
                return ContentBlock(self._types[number], raw=raw) if raw else None
            case ToolCallBlock() as call:
                problem = call.problem
                if ended.status == "cut" and number == len(ended.blocks) - 1 and call.arguments == "":
                    problem = CUT  # cut before its arguments began
                return ContentBlock(
                    "tool_use",
                    tool_call=ToolCall(call.call_id, call.name, call.input),
                    arguments=call.arguments,
                    problem=problem,
                    provider_id=call.provider_id,
                    raw=call.raw,
                )


@dataclass(frozen=True, slots=True)
class _Result:
    status: ToolStatus
    content: list[Json]


class _CallbackError(Exception):
    """A callback failed, for its own reasons; the text is its reason."""


async def _await_foreign(callback: Coroutine[Any, Any, T]) -> T:
    """Await a user's code: what it raises by itself is a _CallbackError, a cancel of the run passes through."""
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        return await callback
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling() > cancels:
            raise
        raise _CallbackError("it was cancelled") from error
    except (Exception, SystemExit) as error:
        raise _CallbackError(str(error) or type(error).__name__) from error


def _cancelled() -> _Result:
    return _Result("cancelled", _text(CANCELLED))


def _call(block: ContentBlock) -> ToolCall:
    assert block.tool_call is not None
    return block.tool_call


def _text(words: str) -> list[Json]:
    return [{"type": "text", "text": words}]


def _parameter(method: Callable[..., Any], name: str) -> inspect.Parameter | None:
    return inspect.signature(method).parameters.get(name)
