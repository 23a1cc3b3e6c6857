"""The service: one method per operation, and no protocol.

Terminal, code (`agent.run`) and every binding call these methods and nothing below them. A mutation is durable when its
method returns; what follows from it is done by the host. Methods raise `InvalidRequestError`, `NotFoundError`,
`ConflictError`s and `StoreError`s.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, get_args

from ownloop.core.codec import dumps, loads
from ownloop.core.cursor import Cursor, parse_cursor
from ownloop.core.events import (
    Draft,
    Fact,
    InputWithdrawn,
    InteractionRequested,
    ParentRef,
    Rule,
    RunEnded,
    SessionStarted,
)
from ownloop.core.exports import dump_export, load_export
from ownloop.core.forks import fork_facts, import_facts
from ownloop.core.inbox import AnswerRequest, Cancel, Config, InboxBody, InboxItem, Input, RevokeRule, Stop, Withdraw
from ownloop.core.interactions import Answer, read_answer
from ownloop.core.messages import BlobBlock, Json, ResultContent, TextBlock, as_blocks
from ownloop.core.operations import Accepted, AgentInfo, Asked, GivenAnswer, OnBusy, RunResult
from ownloop.core.ports import Filter, Page, Principal, RequestInfo, RunInfo, SessionInfo
from ownloop.core.schema import problems
from ownloop.core.session import fold
from ownloop.core.text import clean_json, clean_text
from ownloop.errors import (
    ConflictError,
    IllegalFactError,
    InvalidRequestError,
    NotFoundError,
    OwnloopError,
    SessionClosedError,
)
from ownloop.runtime.foreign import ForeignAgent
from ownloop.runtime.host import AnyDefinition, Host
from ownloop.runtime.hub import Frame, Subscription
from ownloop.runtime.journal import read_state

MAX_TEXT = 4_000_000
"""Characters of one message; more is a document and belongs into a blob."""
MAX_ID = 200
"""Characters of a session id that the caller chose."""
LATE_MS = 10_000
"""How long after its time a request can be answered, if its expiry is not in the journal yet."""
LOOK_EVERY_MS = 50
"""How often `wait` looks at a run that another process drives."""
MAX_UNATTENDED = 10_000
"""Sessions that are looked at for being unattended: more than a store ever has at one moment."""
LOCAL = Principal()


class Service:
    """The operations on the sessions of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._env = host.env
        self._store = host.env.store

    # --- agents ---

    def agents(self) -> list[AgentInfo]:
        """agents.list"""
        found: list[AgentInfo] = []
        for definition in self._host.definitions.values():
            if isinstance(definition, ForeignAgent):
                found.append(AgentInfo(definition.name, "", definition.config_schema, (), True))
            else:
                tools = tuple(spec.schema() for spec in definition.executor.specs)
                found.append(AgentInfo(definition.name, definition.model, definition.config_schema, tools, False))
        return found

    # --- sessions ---

    async def create_session(
        self,
        agent: str | None = None,
        config: Json | None = None,
        *,
        session_id: str | None = None,
        title: str | None = None,
        principal: Principal = LOCAL,
        idem_key: str | None = None,
    ) -> SessionInfo:
        """sessions.create. Without `agent`: the only one served here.

        `config` may hold the fields that the agent's config schema declares. The same `idem_key` gives the same
        session.
        """
        definition = self._definition(agent)
        fields: Json = _json(config or {}, "a config")
        found = problems(definition.config_schema, fields)
        if found:
            raise InvalidRequestError(f"this config does not fit agent {definition.name!r}: " + "; ".join(found))
        if session_id is None:
            session_id = self._env.ids.new("sess") if idem_key is None else _derived_id("sess", principal.id, idem_key)
        elif not (0 < len(session_id) <= MAX_ID and session_id.isprintable()):
            raise InvalidRequestError(f"session id {session_id[:80]!r}: use 1 to {MAX_ID} printable characters")
        started = SessionStarted(definition.name, definition.digest, fields, principal.id)
        info = SessionInfo(
            session_id,
            definition.name,
            definition.digest,
            principal.id,
            principal.tenant,
            clean_text(title) if title is not None else None,
            updated_ms=self._now(),
        )
        try:
            await self._store.create(info, [Draft(None, started)], self._now())
        except ConflictError:
            if idem_key is None:
                raise
            first = (await self._store.read(session_id, 0, 1))[0].body
            if not isinstance(first, SessionStarted) or (first.agent, first.config) != (definition.name, fields):
                raise ConflictError(f"the key {idem_key!r} made a session with another agent or config") from None
        return await self._store.session(session_id)

    def _definition(self, agent: str | None) -> AnyDefinition:
        known = self._host.definitions
        if agent is None and len(known) == 1:
            return next(iter(known.values()))
        if agent is None or agent not in known:
            names = ", ".join(map(repr, sorted(known)))
            raise NotFoundError(f"no agent {agent!r} is served here; served are: {names}")
        return known[agent]

    async def session(self, session_id: str) -> SessionInfo:
        """sessions.get"""
        return await self._store.session(session_id)

    async def sessions(self, which: Filter = Filter(), page: Page = Page()) -> Sequence[SessionInfo]:  # noqa: B008 - frozen
        """sessions.list, newest first"""
        return await self._store.sessions(which, page)

    async def unattended(self) -> Sequence[str]:
        """The ids of sessions in which something is to be done now, and nobody is there who does it.

        Their process is gone, or was told to end; whoever serves their agent goes on with them.
        """
        return await self._store.runnable(self._now(), MAX_UNATTENDED)

    async def set_title(self, session_id: str, title: str | None) -> SessionInfo:
        """sessions.update"""
        await self._store.set_title(session_id, clean_text(title) if title is not None else None)
        return await self._store.session(session_id)

    async def configure(self, session_id: str, patch: Json, *, principal: Principal = LOCAL) -> None:
        """Change fields of the session's config; applies from the next turn."""
        info = await self._store.session(session_id)
        definition = self._definition(info.agent)
        state = await read_state(self._env, session_id)
        patch = _json(patch, "a patch of a config")
        declared: Json = definition.config_schema.get("properties", {})
        held = {name: value for name, value in state.config.items() if name != "model" or name in declared}
        found = problems(definition.config_schema, {**held, **patch})
        if found:
            raise InvalidRequestError(f"this config does not fit agent {info.agent!r}: " + "; ".join(found))
        await self._post(session_id, Config(patch), principal)

    async def set_model(self, session_id: str, model: str, *, principal: Principal = LOCAL) -> None:
        """Take another model for a session, from its next turn on, whether its agent declares that as config or not.

        For whoever runs the program, as the terminal; clients are let choose by `configure`. Raises ConfigError for a
        model that cannot be had.
        """
        definition = self._definition((await self._store.session(session_id)).agent)
        if isinstance(definition, ForeignAgent):
            raise InvalidRequestError(f"agent {definition.name!r} chooses its model itself")
        self._host.adapter(definition, model)
        await self._post(session_id, Config({"model": model}), principal)

    async def stop(self, session_id: str, *, principal: Principal = LOCAL) -> None:
        """sessions.stop: cancel, withdraw, free, close. Input after it is refused with session_closed."""
        try:
            await self._post(session_id, Stop(), principal)
        except SessionClosedError:
            return  # it is closed: what the caller wants

    async def delete(self, session_id: str) -> None:
        """sessions.delete. A session with a live run is stopped first."""
        await self.stop(session_id)
        await self._host.rested(session_id)
        await self._store.delete(session_id)

    async def fork(
        self,
        session_id: str,
        seq: int | None = None,
        *,
        go_on: bool = False,
        principal: Principal = LOCAL,
        idem_key: str | None = None,
    ) -> SessionInfo:
        """sessions.fork: a new session that shares the facts up to `seq` (default: all). The original is untouched."""
        parent = await self._store.session(session_id)
        seq = parent.head_seq if seq is None else seq
        if type(seq) is not int or not 1 <= seq <= parent.head_seq:
            raise InvalidRequestError(f"seq {seq!r} is not in session {session_id!r}, which has 1 to {parent.head_seq}")
        state = await read_state(self._env, session_id, seq)
        child_id = (
            self._env.ids.new("sess") if idem_key is None else _derived_id("fork", principal.id, session_id, idem_key)
        )
        started = SessionStarted(
            state.agent, state.agent_digest, state.config, principal.id, ParentRef(session_id, seq)
        )
        now = self._now()
        facts = fork_facts(state, started, self._env.ids.new, now, go_on=go_on)
        info = SessionInfo(
            child_id,
            state.agent,
            state.agent_digest,
            principal.id,
            principal.tenant,
            parent.title,
            session_id,
            seq,
            epoch=state.epoch,
            runnable_at_ms=now,
            updated_ms=now,
        )
        try:
            await self._store.create(info, facts, now)
        except ConflictError:
            if idem_key is None:
                raise
        self._host.wake(child_id)  # its first owner asks what has to be asked anew
        return await self._store.session(child_id)

    async def export(self, session_id: str) -> Json:
        """sessions.export: the whole journal as JSON, with the blobs it names."""
        info = await self._store.session(session_id)
        facts: list[Fact] = []
        while page := await self._store.read(session_id, facts[-1].seq if facts else 0):
            facts.extend(page)
        blobs = {name: await self._store.get_blob(name) for name in fold(facts).blobs}
        return dump_export(info.title, facts, blobs)

    async def import_(
        self, agent: str, exported: Any, *, title: str | None = None, principal: Principal = LOCAL
    ) -> SessionInfo:
        """sessions.import: a copy to read and to talk on with, for an agent that is served here.

        All its calls are closed, its requests withdrawn, its rules dropped: it starts no tool by itself.
        """
        definition = self._definition(agent)
        found_title, facts, blobs = load_export(exported)
        first = facts[0].body
        config = first.config if isinstance(first, SessionStarted) else {}
        now = self._now()
        started = SessionStarted(definition.name, definition.digest, config, principal.id)
        try:
            copied, state, closing = import_facts(facts, started, now)
        except IllegalFactError as error:
            raise InvalidRequestError(f"this exported session is damaged: {error}") from error
        found = problems(definition.config_schema, state.config)
        if found:  # who exported it may have been allowed what is not allowed here: another model, for one
            raise InvalidRequestError(f"its config does not fit agent {definition.name!r}: " + "; ".join(found))
        if missing := state.blobs - blobs.keys():
            raise InvalidRequestError(f"this exported session is damaged: blob {min(missing)!r} is not in it")
        session_id = self._env.ids.new("sess")
        info = SessionInfo(
            session_id,
            definition.name,
            definition.digest,
            principal.id,
            principal.tenant,
            title or found_title,
            epoch=state.epoch,
            updated_ms=now,
        )
        await self._store.create(info, closing, now, copied=copied)
        for name, (media_type, body) in blobs.items():
            await self._store.put_blob(session_id, name, media_type, body)
        return await self._store.session(session_id)

    # --- interactions ---

    async def send(
        self,
        session_id: str,
        content: str | Sequence[ResultContent],
        *,
        on_busy: OnBusy = "queue",
        deny_open: bool = False,
        principal: Principal = LOCAL,
        idem_key: str | None = None,
    ) -> Accepted:
        """interaction (message, or steer with on_busy="steer"): durable when it returns.

        `deny_open` refuses the session's open approvals, with this text as the reason.
        """
        blocks = _clean_blocks(content)
        if sum(len(b.text) for b in blocks if isinstance(b, TextBlock)) > MAX_TEXT:
            raise InvalidRequestError(f"a message may have {MAX_TEXT:,} characters; put more into a blob")
        if not any(isinstance(b, BlobBlock) or b.text.strip() for b in blocks):
            raise InvalidRequestError("a message needs some text, or an image")
        for block in blocks:
            if isinstance(block, BlobBlock):
                await self._store.get_blob(block.digest)  # a conversation with a hole could never be sent
        return await self._send(session_id, blocks, "message", None, on_busy, deny_open, principal, idem_key)

    async def interact(
        self,
        session_id: str,
        type: str,
        data: Any,
        *,
        interaction_id: str | None = None,
        on_busy: OnBusy = "queue",
        principal: Principal = LOCAL,
        idem_key: str | None = None,
    ) -> Accepted | RequestInfo:
        """interaction in the contract's form: an answer if it has an id, else a message, a steer, or a foreign type."""
        if interaction_id is not None:
            return await self.answer(session_id, interaction_id, data, principal=principal)
        info = await self._store.session(session_id)
        if type in ("message", "steer"):
            content = data if isinstance(data, str) else _read_blocks(data)
            return await self.send(
                session_id,
                content,
                on_busy="steer" if type == "steer" else on_busy,
                principal=principal,
                idem_key=idem_key,
            )
        definition = self._host.definitions.get(info.agent)
        if not isinstance(definition, ForeignAgent):
            raise InvalidRequestError(f"agent {info.agent!r} takes 'message' and 'steer', not {type!r}")
        return await self._send(
            session_id, (), type, _json(data, "an interaction's data"), on_busy, False, principal, idem_key
        )

    async def _send(
        self,
        session_id: str,
        blocks: tuple[ResultContent, ...],
        type: str,
        data: Any,
        on_busy: OnBusy,
        deny_open: bool,
        principal: Principal,
        idem_key: str | None,
    ) -> Accepted:
        if on_busy not in get_args(OnBusy):
            raise InvalidRequestError(f"on_busy is {on_busy!r}; expected 'queue', 'steer' or 'reject'")
        info = await self._store.session(session_id)
        self._definition(info.agent)  # a message to an agent nobody serves would wait for ever
        fresh = idem_key is None
        input_id = self._env.ids.new("in") if fresh else _derived_id("in", session_id, principal.id, idem_key or "")
        run_id = self._env.ids.new("run") if fresh else _derived_id("run", session_id, principal.id, idem_key or "")
        body = Input(
            input_id,
            run_id,
            "steer" if on_busy == "steer" else "queue",
            blocks,
            deny_open,
            on_busy == "reject",
            type,
            data,
        )
        await self._post(session_id, body, principal, idem_key)
        live = info.live_run_id if on_busy == "steer" else None
        return Accepted(session_id, input_id, live or run_id)

    async def withdraw(self, session_id: str, input_id: str, *, principal: Principal = LOCAL) -> None:
        """input.withdraw: take a message back that still waits; one that is being answered stays."""
        await self._post(session_id, Withdraw(input_id), principal)

    async def _post(self, session_id: str, body: InboxBody, principal: Principal, idem_key: str | None = None) -> None:
        item = InboxItem(body, self._now(), principal.id, idem_key)
        outcome = await self._store.post(session_id, item)
        if outcome == "conflict":
            if isinstance(body, AnswerRequest):
                raise ConflictError(f"request {body.request_id!r} was answered otherwise, or is closed")
            raise ConflictError(f"the key {idem_key!r} was used for another content in this session")
        self._host.wake(session_id)

    # --- runs ---

    async def run(self, run_id: str) -> RunResult:
        """runs.get; known from the reply to `send` on, also while it is queued."""
        return await self._result_of((await self._store.run(run_id)).session_id, run_id)

    async def cancel(
        self, *, run_id: str | None = None, session_id: str | None = None, principal: Principal = LOCAL
    ) -> None:
        """runs.cancel: durable when it returns. A session's id means its live run."""
        if session_id is None:
            if run_id is None:
                raise InvalidRequestError("cancel needs a run or a session")
            session_id = (await self._store.run(run_id)).session_id
        await self._post(session_id, Cancel(run_id), principal)

    async def wait(self, accepted: Accepted | str) -> RunResult:
        """Wait until the run of an accepted message, or the run with this id, has ended or waits for a person.

        A message that is queued behind a run that waits for a person reports that run's requests. Raises what stopped
        the host from going on (a full store, for one); the run can be gone on with later.
        """
        if isinstance(accepted, str):
            accepted = Accepted((await self._store.run(accepted)).session_id, "", accepted)
        session_id, run_id = accepted.session_id, accepted.run_id
        while True:
            stirred = self._host.watch(session_id)
            try:
                result = await self._result_of(session_id, run_id)
                if result.state != "running":
                    return result
                if stirred.done() and not stirred.exception():  # nothing is done here: another process drives it
                    await self._env.clock.sleep_until(self._now() + LOOK_EVERY_MS)
                facts = await stirred
            finally:
                stirred.cancel()
            if any(isinstance(f.body, InputWithdrawn) and f.body.input_id == accepted.input_id for f in facts):
                return RunResult(session_id, run_id, "ended", "cancelled")

    async def _result_of(self, session_id: str, run_id: str) -> RunResult:
        try:
            run = await self._store.run(run_id, session_id)
        except NotFoundError:
            run = None  # a steer's run is another one's
        if run is not None and run.phase != "queued":
            return await self._run_result(run)
        info = await self._store.session(session_id)
        if self._is_at_rest(info):
            waiting = (await read_state(self._env, session_id)).inputs.values()
            if all(input.run_id != run_id for input in waiting):
                return RunResult(session_id, run_id, "ended", "cancelled")  # withdrawn before it began
            asked = await self.requests(Filter(session_id=session_id, state="open"))
            if asked:
                return RunResult(session_id, run_id, "interrupted", requests=tuple(asked))
        return RunResult(session_id, run_id, "running")

    def _is_at_rest(self, info: SessionInfo) -> bool:
        return info.owner is None and (info.runnable_at_ms is None or info.runnable_at_ms > self._now())

    async def _run_result(self, run: RunInfo) -> RunResult:
        if run.phase == "ended":
            fact = (await self._store.read(run.session_id, run.last_seq - 1, 1))[0]
            ended = fact.body
            if not isinstance(ended, RunEnded):
                raise OwnloopError(f"the row of run {run.run_id!r} does not fit its journal")
            return RunResult(
                run.session_id,
                run.run_id,
                "ended",
                ended.outcome,
                ended.result,
                (),
                ended.usage,
                ended.cost,
                ended.error,
                ended.stop_reason,
            )
        info = await self._store.session(run.session_id)
        asked = tuple(await self.requests(Filter(session_id=run.session_id, state="open")))
        waits = bool(asked) and self._is_at_rest(info)
        return RunResult(run.session_id, run.run_id, "interrupted" if waits else "running", requests=asked)

    # --- events ---

    async def read_events(self, session_id: str, after: str = "", limit: int = 1000) -> tuple[Sequence[Fact], str]:
        """events.read: facts after a cursor, and the cursor to go on from."""
        cursor = parse_cursor(after or "0")
        if limit < 1:
            raise InvalidRequestError(f"limit is {limit!r}; expected how many facts to read, at least 1")
        facts = await self._store.read(session_id, cursor.seq, limit)
        return facts, str(Cursor(facts[-1].seq)) if facts else str(cursor)

    def subscribe(
        self, session_id: str, after: str = "", *, run_id: str | None = None, replay: bool = False
    ) -> Subscription:
        """events.subscribe: all that happens after a cursor, live; see `Hub.subscribe`."""
        return self._env.hub.subscribe(session_id, parse_cursor(after or "0"), run_id=run_id, replay=replay)

    async def follow(self, accepted: Accepted, after: str) -> AsyncIterator[Frame]:
        """Yield what happens in a run after a cursor, until it has ended or waits for a person.

        Raises SlowReaderError, and what stopped the host from going on.
        """
        seq = parse_cursor(after or "0").seq
        last: int | None = None  # the fact after which it waits for a person
        waiting = asyncio.create_task(self.wait(accepted))
        try:
            async with self.subscribe(accepted.session_id, after, run_id=accepted.run_id) as frames:
                waiting.add_done_callback(lambda _: frames.wake())
                news: asyncio.Task[RunResult] | None = waiting
                while last is None or seq < last:
                    shown = await frames.batch(unless=news)
                    if not shown and news is not None and news.done():
                        if news.result().state == "interrupted":
                            last = await self._last_seq(accepted)
                        news = None
                        continue
                    if not shown:
                        return
                    for frame in shown:
                        if isinstance(frame.event, Fact):
                            seq = frame.event.seq
                        yield frame
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _last_seq(self, accepted: Accepted) -> int:
        try:
            return (await self._store.run(accepted.run_id, accepted.session_id)).last_seq
        except NotFoundError:
            return 0  # it is queued behind a run that waits

    # --- requests and rules ---

    async def requests(self, which: Filter = Filter(state="open"), page: Page = Page()) -> list[Asked]:  # noqa: B008 - frozen
        """requests.list: over all sessions, or those of one."""
        return [await self._asked(row) for row in await self._store.requests(which, page)]

    async def _asked(self, row: RequestInfo) -> Asked:
        body = await self._request_fact(row)
        return Asked(
            row.session_id,
            row.request_id,
            row.run_id,
            row.purpose,
            body.data,
            body.schema,
            body.type,
            body.call_id,
            row.assignee,
            row.expires_at_ms,
        )

    async def _request_fact(self, row: RequestInfo) -> InteractionRequested:
        body = (await self._store.read(row.session_id, row.seq - 1, 1))[0].body
        if not isinstance(body, InteractionRequested):
            raise OwnloopError(f"the row of request {row.request_id!r} does not fit its journal")
        return body

    async def answer(
        self, session_id: str, request_id: str, answer: Any, *, principal: Principal = LOCAL
    ) -> RequestInfo:
        """requests.answer: checked against the request's schema, single-use, durable when it returns.

        The same answer again changes nothing; another one, and one that comes too late, raises ConflictError.
        """
        row = await self._store.request(session_id, request_id)
        # An answer may overtake the fact of the expiry, but not by days: nobody was there to write it.
        if row.state == "open" and row.expires_at_ms is not None and row.expires_at_ms + LATE_MS <= self._now():
            self._host.wake(session_id)
            raise ConflictError(f"request {request_id!r} has expired: it counts as refused")
        body = await self._request_fact(row)
        checked: Answer = read_answer(body.purpose, body.schema, _json(answer, "an answer"))
        await self._post(session_id, AnswerRequest(request_id, checked), principal)
        return await self._store.request(session_id, request_id)

    async def answers(
        self, answers: Sequence[GivenAnswer], *, principal: Principal = LOCAL
    ) -> list[RequestInfo | OwnloopError]:
        """requests.answer for several requests, of any sessions: each is taken or refused by itself, in order."""
        outcomes: list[RequestInfo | OwnloopError] = []
        for given in answers:
            try:
                outcomes.append(
                    await self.answer(given.session_id, given.request_id, given.answer, principal=principal)
                )
            except OwnloopError as error:
                outcomes.append(error)
        return outcomes

    async def rules(self, session_id: str) -> Sequence[Rule]:
        """rules.list"""
        return await self._store.rules(session_id)

    async def revoke_rule(self, session_id: str, rule_id: str, *, principal: Principal = LOCAL) -> None:
        """rules.revoke"""
        if all(rule.rule_id != rule_id for rule in await self._store.rules(session_id)):
            raise NotFoundError(f"session {session_id!r} has no rule {rule_id!r}")
        await self._post(session_id, RevokeRule(rule_id), principal)

    # --- blobs and health ---

    async def put_blob(self, session_id: str, media_type: str, body: bytes) -> BlobBlock:
        """blobs.put"""
        name = hashlib.sha256(body).hexdigest()
        await self._store.put_blob(session_id, name, media_type, body)
        return BlobBlock(name, media_type, len(body))

    async def get_blob(self, blob: str) -> tuple[str, bytes]:
        """blobs.get"""
        return await self._store.get_blob(blob)

    def health(self) -> Json:
        """health: the agents and backends of this process."""
        return {"status": "ok", "agents": sorted(self._host.definitions), "worker": self._env.worker_id}

    def _now(self) -> int:
        return self._env.clock.now_ms()


def _derived_id(kind: str, *parts: str) -> str:
    """Return the id that a repeated request gives again."""
    text = chr(0).join(parts).encode("utf-8", "surrogatepass")
    return f"{kind}_{hashlib.sha256(text).hexdigest()[:26]}"


def _json(value: Any, what: str) -> Any:
    """Return a cleaned copy of what a caller handed over as JSON."""
    try:
        return clean_json(loads(dumps(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{what} must be JSON: {error}") from error


def _clean_blocks(content: str | Sequence[ResultContent]) -> tuple[ResultContent, ...]:
    blocks: tuple[object, ...] = as_blocks(content) if isinstance(content, str | list | tuple) else (content,)
    return tuple(map(_clean_block, blocks))


def _clean_block(block: object) -> ResultContent:
    match block:
        case TextBlock(str(text)):
            return TextBlock(clean_text(text))
        case BlobBlock():
            return block
        case _:
            raise InvalidRequestError(
                f"a message is a string or a list of TextBlock and BlobBlock, not of {type(block).__name__!r}"
            )


def _read_blocks(data: Any) -> tuple[ResultContent, ...]:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(tuple[ResultContent, ...]).validate_python(data, extra="forbid")
    except ValidationError as error:
        where = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_input=False)[:3])
        raise InvalidRequestError(f"a message is a string or a list of text and blob blocks: {where}") from None
