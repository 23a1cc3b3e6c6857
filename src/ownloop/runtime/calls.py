"""The effects of the loop, each a task: one response being read, one tool call being run. They never touch the journal;
what they come to is a signal to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from ownloop.core import results
from ownloop.core.backend import Adapter, ModelRequest
from ownloop.core.codec import as_read, dump_body, dumps, loads
from ownloop.core.events import ErrorInfo, LiveEvent, Progress, ResponseEnded, ToolEnded, ToolStarted
from ownloop.core.messages import Json, TextBlock
from ownloop.core.ports import Clock, Hooks, ModelCall, Secrets, ToolExecutor, ToolResult
from ownloop.core.schema import check_schema
from ownloop.core.text import clean_json, clean_text
from ownloop.core.turn import TurnBuilder
from ownloop.errors import IllegalFactError, OwnloopError, ProviderError, StreamInterruptedError
from ownloop.runtime.environment import Environment

logger = logging.getLogger(__name__)

MAX_ADVISED_WAIT_S = 60.0
"""Longer waits than this are the caller's decision."""
BACK_OFF_MS = (500, 1000, 2000, 4000)


@dataclass(frozen=True, slots=True)
class ResponseDone:
    run_id: str
    stream: int
    body: ResponseEnded


@dataclass(frozen=True, slots=True)
class ToolDone:
    run_id: str
    call_id: str
    attempt: int
    result: ToolResult
    elapsed_ms: int
    fault: ErrorInfo | None = None
    """A hook raised: the run cannot go on."""


@dataclass(frozen=True, slots=True)
class ToolAsks:
    run_id: str
    call_id: str
    attempt: int
    question: str
    schema: Json | None
    answer: asyncio.Future[Any]


def decline(asked: ToolAsks) -> None:
    """Answer a question that nobody can be asked any more, as if it were declined."""
    if not asked.answer.done():
        asked.answer.set_result(None)


Signal: TypeAlias = ResponseDone | ToolDone | ToolAsks
Tell: TypeAlias = Callable[[Signal], None]
Show: TypeAlias = Callable[[Sequence[LiveEvent]], None]


def error_info(error: BaseException, secrets: Secrets, failures: int = 0) -> ErrorInfo:
    """Return a failure as the journal keeps it: no secret, and for how long to wait before another attempt."""
    words = clean_text(secrets.redact(str(error) or type(error).__name__))
    if not isinstance(error, ProviderError):
        code = error.code if isinstance(error, OwnloopError) else "internal"
        return ErrorInfo(code, words if isinstance(error, OwnloopError) else f"{type(error).__name__}: {words}")
    wait = error.retry_after_s
    if wait is not None and not 0 <= wait < math.inf:  # also NaN
        wait = None
    retryable = error.retryable and (wait is None or wait <= MAX_ADVISED_WAIT_S)
    back_off = BACK_OFF_MS[min(failures, len(BACK_OFF_MS) - 1)] if retryable else None
    return ErrorInfo(
        error.code,
        words,
        retryable,
        back_off if wait is None else int(wait * 1000),
        error.status,
        clean_text(error.request_id) if error.request_id else None,
        clean_text(secrets.redact(error.detail)) if error.detail else None,
    )


def _as_read(body: ResponseEnded) -> ResponseEnded:
    return cast("ResponseEnded", as_read(body))


class ResponseReader:
    """Reads one response of a model into its stream."""

    def __init__(
        self,
        env: Environment,
        session_id: str,
        run_id: str,
        turn: int,
        failures: int,
        stream: int,
        secrets: Secrets,
        *,
        retry_interrupted: bool = False,
    ) -> None:
        self.builder = TurnBuilder(stream, lambda: env.ids.new("call"))
        self.run_id = run_id
        self.saved_units = 0
        self.cancelled = False
        """Set by the loop when it cancels the task because the run is cancelled."""
        self._env = env
        self._session_id = session_id
        self._turn = turn
        self._failures = failures
        self._secrets = secrets
        self._retry_interrupted = retry_interrupted

    async def read(self, adapter: Adapter, call: ModelCall, request: ModelRequest, hooks: Hooks, tell: Tell) -> None:
        stream = self.builder.stream
        self._env.hub.open_stream(self._session_id, self.builder)
        try:
            if hooks.before_model is not None:
                changed = await hooks.before_model(call) or call
                request = ModelRequest(
                    changed.system,
                    changed.messages,
                    request.tools,
                    changed.settings,
                    request.session_id,
                    request.blobs,
                )
            parts = adapter.start(request)
            try:
                async for batch in parts:
                    self._show(self.builder.feed(batch))
            finally:
                close = getattr(parts, "aclose", None)  # async generators have it; the protocol asks for an iterator
                if close is not None:
                    await close()
            closing, body = self.builder.end(self._turn)
            body = _as_read(body)  # what no journal can hold breaks the adapter's contract, like parts out of order
            if hooks.after_model is not None:
                await hooks.after_model(call, body)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # the backend's own doing: nobody asked for it
                closing, body = self._failed(StreamInterruptedError("the backend cancelled its own request"))
            elif self.cancelled:
                closing, body = self.builder.end(self._turn, "cancelled")
            else:
                raise
        except ProviderError as error:
            closing, body = self._failed(error)
        except Exception as error:
            if not isinstance(error, OwnloopError):  # ours say what to do; where they come from tells nobody more
                logger.exception(
                    "model call failed inside, session=%s run=%s turn=%d", self._session_id, self.run_id, self._turn
                )
            info = error_info(error, self._secrets)
            closing, body = self.builder.end(self._turn, "failed", error=info)
        self._show(closing)
        tell(ResponseDone(self.run_id, stream, self._kept(body)))

    def _kept(self, body: ResponseEnded) -> ResponseEnded:
        """Return the response as its journal gives it back; of one that cannot be written only the failure is left."""
        try:
            return _as_read(body)
        except IllegalFactError as error:
            known = body.error
            info = ErrorInfo(known.code, known.message) if known is not None else error_info(error, self._secrets)
            return ResponseEnded(self._turn, "failed", error=info)

    def _failed(self, error: ProviderError) -> tuple[list[LiveEvent], ResponseEnded]:
        info = error_info(error, self._secrets, self._failures)
        shown = self.builder.units > 0
        if shown and self._retry_interrupted and info.retryable:
            return self.builder.end(self._turn, "abandoned", error=info)
        if shown:
            # What a person has seen is not silently said again (quirk 87).
            info = replace(
                info, retryable=False, retry_after_ms=None if error.retry_after_s is None else info.retry_after_ms
            )
        return self.builder.end(self._turn, "failed", error=info)

    def _show(self, events: Sequence[LiveEvent]) -> None:
        if events:
            self._env.hub.live(self._session_id, events)


@dataclass(slots=True)
class CallContext:
    """The `ToolContext` of one attempt."""

    session_id: str
    run_id: str
    call_id: str
    attempt: int
    key: str
    deps: Any
    secrets: Secrets
    stream: int
    tell: Tell
    show: Show

    async def progress(self, data: Any) -> None:
        text = dumps(data)  # what is not JSON is this tool's error, not that of whoever reads it
        self.show([Progress(self.stream, clean_json(loads(text), self._told))])

    async def ask(self, question: str, schema: Json | None = None) -> Any:
        if schema is not None and (wrong := check_schema(schema)):
            raise ValueError(f"the schema of this question is no JSON schema: {wrong}")
        dumps(schema)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.tell(ToolAsks(self.run_id, self.call_id, self.attempt, self._told(question), schema, answer))
        return await answer

    def _told(self, text: str) -> str:
        """Return a tool's text as people may see it."""
        return clean_text(self.secrets.redact(text))


@dataclass(slots=True)
class ToolRun:
    """One attempt of one call, while it runs."""

    run_id: str
    name: str
    input: Json
    started: ToolStarted
    read_only: bool
    timeout_s: float | None
    began_s: float
    task: asyncio.Task[None] | None = None
    deadline_s: float | None = None
    """On the monotonic clock; None while the tool's own question is open, or without a timeout."""
    left_s: float = 0.0
    asks: dict[str, asyncio.Future[Any]] = field(default_factory=dict[str, "asyncio.Future[Any]"])
    cancel_sent: bool = False
    given_up: bool = False
    """Its fact is written; what it still comes to is late."""
    entered: bool = False
    """The tool's own code has begun: from here on it may have taken effect."""
    result: ToolResult | None = None
    """What the tool came to, with its blobs kept."""

    @property
    def id(self) -> tuple[str, int]:
        return self.started.call_id, self.started.attempt

    def elapsed_ms(self, clock: Clock) -> int:
        return int((clock.monotonic_s() - self.began_s) * 1000)

    def broken_off(self, cancelled: bool) -> ToolResult:
        """Return what an attempt comes to whose task ended without telling."""
        if self.result is not None:
            return self.result  # it took effect, and what came after it does not change that
        if not cancelled:
            # Executors do not raise; one that does, or a store that cannot keep a blob, ends the call with an error.
            return ToolResult("error", results.text(f"Error executing {self.name}: its result could not be kept."))
        if self.entered:
            return ToolResult("unknown", results.text(results.UNKNOWN))
        return ToolResult("cancelled", results.text(results.NOT_RUN), confirmed_cancel=True)


async def run_tool(
    env: Environment, run: ToolRun, context: CallContext, executor: ToolExecutor, hooks: Hooks, tell: Tell
) -> None:
    """Run one attempt to its end and tell the loop what it came to; who is cancelled before that tells nothing."""
    fault: ErrorInfo | None = None
    try:
        if hooks.before_tool is not None:
            await hooks.before_tool(run.name, run.input, context)
    except Exception as error:
        logger.exception("before_tool hook failed, session=%s call=%s", context.session_id, context.call_id)
        fault = error_info(error, context.secrets)
        result = ToolResult(
            "cancelled", (TextBlock("Not run: the agent's own code failed before it."),), confirmed_cancel=True
        )
    else:
        run.entered = True
        result = await executor.execute(run.name, run.input, context)
        await _keep_blobs(env, context.session_id, result)
        run.result = result
        try:
            if hooks.after_tool is not None:
                changed = await hooks.after_tool(run.name, run.input, result, context)
                if changed is not None:
                    dump_body(ToolEnded(context.call_id, context.attempt, "ok", changed.blocks))
                    await _keep_blobs(env, context.session_id, changed)
                    result = changed
        except Exception as error:
            logger.exception("after_tool hook failed, session=%s call=%s", context.session_id, context.call_id)
            fault = error_info(error, context.secrets)
    elapsed_ms = run.elapsed_ms(env.clock)
    tell(ToolDone(run.run_id, context.call_id, context.attempt, result, elapsed_ms, fault))


async def _keep_blobs(env: Environment, session_id: str, result: ToolResult) -> None:
    for digest, (media_type, body) in result.blobs.items():
        await env.store.put_blob(session_id, digest, media_type, body)
