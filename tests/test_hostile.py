"""What careless or hostile users, providers, files and machines do: a clear error, and no harm beyond the one call."""

from __future__ import annotations

import asyncio
import re
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ownloop.agent import Agent
from ownloop.backends.scripted import ScriptedBackend, call, say
from ownloop.core.backend import (
    AgentTurn,
    Backend,
    Finish,
    ModelRequest,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    UsageSeen,
)
from ownloop.core.events import Limits
from ownloop.core.messages import TextBlock, ToolCallBlock
from ownloop.core.ports import Hooks, SessionInfo, ToolContext, ToolResult
from ownloop.core.usage import Usage
from ownloop.errors import (
    BadRequestError,
    ConfigError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    OwnloopError,
    RateLimitedError,
    StoreError,
    ToolDefinitionError,
)
from ownloop.runtime.foreign import ForeignAgent
from ownloop.store.memory import MemoryStore
from ownloop.testing.virtual_time import World
from ownloop.tools.decorator import tool
from tests.runtime.stage import Stage, hosted, play, results_of


def shown(value: object) -> str:
    """Name a parameter, the same in every process: those that run tests at once compare the names."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def wrong(value: Any) -> Any:
    """Return a value that is of the wrong type on purpose."""
    return value


TEXT: list[Part] = [PartStart(0, "text"), PartDelta(0, "hi"), PartEnd(0)]


class Sloppy:
    """An adapter that says these parts once, whatever its contract asks for, and then answers as it should."""

    name, provider, model = "sloppy", "sloppy", "sloppy"

    def __init__(self, *parts: Any) -> None:
        self._parts: Sequence[Any] | None = parts

    async def start(self, request: ModelRequest) -> AsyncIterator[Sequence[Part]]:
        parts, self._parts = self._parts, None
        if parts is None:
            yield [*TEXT, Finish("end_turn")]
            return
        for part in parts:
            if isinstance(part, Exception):
                raise part
            yield [part]

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    "parts",
    [
        [*TEXT, Finish(wrong("stop"))],
        [*TEXT, Finish("end_turn", wrong(5))],
        [*TEXT, Finish("end_turn", None, wrong(5))],
        [*TEXT, UsageSeen(Usage(input=wrong("5"))), Finish("end_turn")],
        [*TEXT, UsageSeen(Usage(input=wrong(5.5))), Finish("end_turn")],
        [*TEXT, UsageSeen(Usage(raw={"a": object()})), Finish("end_turn")],
        [PartStart(0, "provider"), PartEnd(0, wrong([1])), Finish("end_turn")],
        [PartStart(0, "text"), PartEnd(0, {"a": object()}), Finish("end_turn")],
        [PartStart(0, "text"), PartEnd(0, {"a": float("nan")}), Finish("end_turn")],
        [PartStart(0, "tool_call", "t"), PartEnd(0, None, wrong(ValueError())), Finish("end_turn")],
        [PartStart(0, wrong("txt")), PartEnd(0), Finish("end_turn")],
        ["no part", Finish("end_turn")],
        [BadRequestError("no", request_id="\ud800", detail="\0", status=wrong("500"))],
    ],
    ids=shown,
)
async def test_an_adapter_that_breaks_its_contract_fails_one_response_and_never_the_session(
    parts: Sequence[Any], tmp_path: Path
):
    agent = Agent("a", model=Sloppy(*parts))
    async with agent.open(store=tmp_path / "a.db") as opened:
        first = await opened.run("hi")
        assert first.outcome == "failed"
        assert first.error is not None
    async with agent.open(store=tmp_path / "a.db") as opened:
        again = await opened.run("again", session_id=first.session_id)
        assert (again.outcome, again.text) == ("completed", "hi")
        await opened.service.export(first.session_id)


@pytest.mark.parametrize("label", ["name", "provider", "model"])
async def test_an_adapter_without_a_proper_label_fails_the_run_and_says_so(label: str):
    adapter = Sloppy(*TEXT)
    setattr(adapter, label, None)
    result = await Agent("a", model=adapter).run("hi")
    assert result.error is not None
    assert f"has {label} None" in result.error.message


@pytest.mark.parametrize("wait_s", [float("nan"), float("inf"), -5.0])
def test_an_advised_wait_that_is_no_time_is_no_advice(wait_s: float):
    async def scene(world: World) -> None:
        stage = Stage(world, [say("hi")], options={"model": Sloppy(RateLimitedError("slow", retry_after_s=wait_s))})
        async with stage.open() as talk:
            assert (await talk.say("hi")).text == "hi"

    play(scene)


async def test_a_three_method_backend_with_a_stop_reason_of_its_own_fails_its_turn_in_clear_words(tmp_path: Path):
    class OpenAIWords(Backend):
        name = "words"

        def add_user_message(self, content: str) -> None: ...

        async def next_turn(self, tool_schemas: list[dict[str, Any]]) -> AgentTurn:
            return AgentTurn(["hi"], stop_reason=wrong("stop"))

        def add_tool_result(self, tool_call_id: str, name: str, content: str, is_error: bool) -> None: ...

    agent = Agent("a", model=OpenAIWords)
    async with agent.open(store=tmp_path / "a.db") as opened:
        result = await opened.run("hi")
        assert result.error is not None
        assert "'end_turn'" in result.error.message
        await opened.service.export(result.session_id)


@pytest.mark.parametrize(
    "changed",
    [
        ToolResult("ok", wrong("text")),
        ToolResult("ok", (TextBlock(wrong(5)),)),
        ToolResult("ok", (TextBlock("\ud800"),)),
        5,
    ],
    ids=shown,
)
async def test_a_hook_that_returns_what_cannot_be_kept_fails_the_run_and_the_tools_own_result_stands(changed: Any):
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    async def after_tool(*_: Any) -> Any:
        return changed

    model = ScriptedBackend([call("look"), say("end")])
    agent = Agent("a", model=model, tools=[look], hooks=Hooks(after_tool=after_tool))
    async with agent.open() as opened:
        result = await opened.run("hi")
        assert result.outcome == "failed"
        facts, _ = await opened.service.read_events(result.session_id)
        assert [f.body.blocks for f in facts if f.body.kind == "tool_ended"] == [(TextBlock("seen"),)]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_number_beyond_every_float_is_the_models_mistake_and_not_the_runs_end():
    async def scene(world: World) -> None:
        @tool
        def look(x: float) -> str:
            """Look."""
            return str(x)

        stage = Stage(world, [call("look", '{"x": 1e400}'), say("end")], tools=[look])
        async with stage.open() as talk:
            assert (await talk.say("hi")).text == "end"
        [told] = results_of(stage.backend.requests[-1].messages)
        assert "1e400 is too large a number" in told

    play(scene)


@pytest.mark.parametrize("schema", [5, {"type": "objekt"}, {"default": object()}], ids=shown)
def test_a_question_with_a_schema_that_is_none_is_the_tools_error(schema: Any):
    async def scene(world: World) -> None:
        @tool
        async def asks(context: ToolContext) -> str:
            """Ask."""
            return str(await context.ask("which?", schema))

        stage = Stage(world, [call("asks"), say("end")], tools=[asks])
        async with stage.open() as talk:
            assert (await talk.say("hi")).text == "end"
            assert await talk.asked() == []

    play(scene)


def test_what_a_tool_shows_and_asks_has_no_secret_in_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("BANK_PASSWORD", "hunter2-hunter2")

    async def scene(world: World) -> None:
        @tool
        async def asks(context: ToolContext) -> str:
            """Ask."""
            secret = context.secrets.get("BANK_PASSWORD")
            await context.progress({secret: [secret]})
            await context.ask(f"is {secret} right?")
            raise ValueError(secret)

        stage = Stage(world, [call("asks"), say("end")], tools=[asks], options={"secrets": ["BANK_PASSWORD"]})
        async with stage.open() as talk:
            shown: list[str] = []
            accepted = await talk.send("hi")
            async with talk.service.subscribe(talk.session_id, run_id=accepted.run_id) as frames:
                async for frame in frames:
                    shown.append(frame.encoded.decode())
                    if "interaction_requested" in shown[-1]:
                        [asked] = await talk.asked()
                        await talk.answer(asked, {"value": "yes"})
            assert any("is [BANK_PASSWORD] right?" in line for line in shown)
            assert any('"[BANK_PASSWORD]":["[BANK_PASSWORD]"]' in line for line in shown)
            assert not any("hunter2" in line for line in shown)
        assert "tool raised" in caplog.text
        assert "hunter2" not in caplog.text

    play(scene)


# --- foreign agents --------------------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Duck:
    """A request that is none of ours."""

    def __init__(self, interaction_id: Any, data: Any = None) -> None:
        self.interaction_id, self.type, self.data = interaction_id, "t", data


@pytest.mark.parametrize("said", [Duck(5), Duck("\ud800"), Duck("q", deep(300))], ids=["number", "surrogate", "deep"])
def test_what_a_foreign_agent_asks_and_cannot_be_kept_is_its_own_error(said: Any):
    class Careless:
        def __init__(self, ask: Any) -> None:
            self.ask = ask

        @classmethod
        async def create(cls, config: Any, on_logs: Any, on_interaction_request: Any) -> Careless:
            return cls(on_interaction_request)

        async def interaction(self, interaction: Any) -> Any:
            if interaction.data == "return":
                return deep(300)
            try:
                await self.ask(said)
            except OwnloopError as error:
                return f"refused: {error.code}"

        async def stop(self) -> None: ...

    async def scene(world: World) -> None:
        async with hosted(world, ForeignAgent("careless", wrong(Careless))) as talk:
            assert (await talk.say("ask")).text == "refused: illegal_fact"
            assert (await talk.say("return")).outcome == "failed"
            assert (await talk.say("ask")).text == "refused: illegal_fact"

    play(scene)


# --- what is handed to the service and to Agent ----------------------------------------------------------------------


async def test_a_post_of_the_wrong_type_is_refused_and_does_not_block_the_session():
    agent = Agent("a", model=ScriptedBackend([say("hi")]))
    async with agent.open() as opened:
        service = opened.service
        session_id = (await service.create_session()).session_id
        refused: list[Callable[[], Any]] = [
            lambda: service.send(session_id, "x", deny_open=wrong("yes")),
            lambda: service.send(session_id, "x", on_busy=wrong("quee")),
            lambda: service.send(session_id, wrong(5)),
            lambda: service.send(session_id, wrong(["x"])),
            lambda: service.send(session_id, [TextBlock(wrong(5))]),
            lambda: service.send(session_id, wrong([ToolCallBlock("a", "b", {})])),
            lambda: service.send("\ud800", "x"),
            lambda: service.send(session_id, "x", idem_key="\ud800"),
            lambda: service.withdraw(session_id, wrong(5)),
            lambda: service.withdraw(session_id, "\ud800"),
            lambda: service.cancel(run_id=wrong(5), session_id=session_id),
            lambda: service.configure(session_id, {"x": deep(5000)}),
            lambda: service.create_session(session_id=""),
            lambda: service.create_session(session_id="a\0b"),
            lambda: service.create_session(config={"x": object()}),
            lambda: service.create_session(config={"x": float("nan")}),
            lambda: service.session("\ud800"),
            lambda: service.fork(session_id, wrong("1")),
            lambda: service.fork(session_id, wrong(1.5)),
            lambda: service.read_events(session_id, limit=-1),
            lambda: service.read_events(session_id, limit=10**30),
        ]
        for operation in refused:
            with pytest.raises(InvalidRequestError):
                await operation()
        assert (await opened.run("hi", session_id=session_id)).text == "hi"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": 5}, "agent name 5"),
        ({"model": 5}, "model is 5"),
        ({"model": None}, "model is of type 'NoneType'"),
        ({"tools": "abc"}, "tools is 'abc'"),
        ({"tools": len}, "tools is of type"),
        ({"max_turns": -1}, "max_turns is -1"),
        ({"max_turns": "5"}, "max_turns is '5'"),
        ({"max_turns": 2.5}, "max_turns is 2.5"),
        ({"limits": {"max_turns": 3}}, "limits is of type 'dict'"),
        ({"limits": Limits(max_turns=wrong("3"))}, "limits is of type 'Limits'"),
        ({"settings": {"max_token": 5}}, "not 'max_token'"),
        ({"settings": "x"}, "settings is 'x'"),
        ({"hooks": {}}, "hooks is of type 'dict'"),
        ({"secrets": "MY_KEY"}, "a list of names"),
        ({"config": {"type": "objekt"}}, "the JSON schema of an object"),
        ({"config": {"type": "array"}}, "the JSON schema of an object"),
        ({"approval_expires_s": "x"}, "approval_expires_s is 'x'"),
        ({"approval_expires_s": float("nan")}, "approval_expires_s is nan"),
        ({"instructions": 5}, "instructions is 5"),
        ({"policy": "deny"}, "policy is 'deny'"),
        ({"suggestions": "abc"}, "suggestions is 'abc'"),
    ],
    ids=str,
)
def test_an_agent_of_wrong_parts_is_refused_where_it_is_defined(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as caught:
        wrong(Agent)(**{"name": "a", "model": "local", **options})
    assert words in str(caught.value)


async def test_run_sync_inside_an_event_loop_says_what_to_do():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="await agent.run"):
            Agent("a", model=ScriptedBackend([say("hi")])).run_sync("hi")


def test_threads_that_share_an_agent_in_memory_are_told_to_share_a_file():
    barrier = threading.Barrier(2)

    class Meet:
        async def wait(self) -> None:
            await asyncio.get_running_loop().run_in_executor(None, barrier.wait)

    inside = threading.Event()

    def answer(_: ModelRequest) -> Any:
        inside.set()
        from ownloop.backends.scripted import gate

        return gate(Meet()) + say("hi")

    agent = Agent("a", model=ScriptedBackend(answer))
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(agent.run_sync("hi").outcome))
    thread.start()
    inside.wait()
    with pytest.raises(ConfigError, match="pass store="):
        agent.run_sync("hi")
    barrier.wait()
    thread.join()
    assert outcomes == ["completed"]


async def test_another_agent_cannot_resume_a_run_and_does_not_wait_for_ever(tmp_path: Path):
    @tool(approval="ask")
    def refund() -> str:
        """Refund."""
        return "ok"

    model = ScriptedBackend([call("refund"), say("end")])
    result = await Agent("a", model=model, tools=[refund]).run("hi", store=tmp_path / "a.db")
    [request] = result.requests
    with pytest.raises(NotFoundError, match="is one of agent 'a', not of 'b'"):
        await Agent("b", model=model, tools=[refund]).resume(
            result, {request.request_id: True}, store=tmp_path / "a.db"
        )


# --- exported documents ----------------------------------------------------------------------------------------------


async def test_an_import_cannot_choose_what_a_session_may_not_be_created_with():
    agent = Agent("a", model=ScriptedBackend([say("hi")]))
    async with agent.open() as opened:
        result = await opened.run("hi")
        document = await opened.service.export(result.session_id)
        evil = deepcopy(document)
        evil["facts"][0]["body"]["config"] = {"model": "http://elsewhere.example/v1#m"}
        with pytest.raises(InvalidRequestError, match="does not fit agent 'a'.*'model'"):
            await opened.service.import_("a", evil)
        for field, value in (("at_ms", 10**30), ("epoch", 10**30), ("v", 0)):
            evil = deepcopy(document)
            evil["facts"][-1][field] = value
            with pytest.raises(InvalidRequestError):
                await opened.service.import_("a", evil)
        evil = deepcopy(document)
        evil["facts"][0]["body"]["config"] = {"k": deep(5000)}
        with pytest.raises(InvalidRequestError):
            await opened.service.import_("a", evil)


async def test_an_import_brings_every_blob_that_its_facts_name():
    agent = Agent("a", model=ScriptedBackend(lambda _: say("hi")))
    async with agent.open() as opened:
        session_id = (await opened.service.create_session()).session_id
        blob = await opened.service.put_blob(session_id, "text/plain", b"hello")
        await opened.run([blob], session_id=session_id)
        document = await opened.service.export(session_id)
        del document["blobs"][blob.digest]
        with pytest.raises(InvalidRequestError, match=blob.digest):
            await opened.service.import_("a", document)


# --- the machine -----------------------------------------------------------------------------------------------------


async def test_a_store_that_was_removed_under_it_accepts_nothing_more(tmp_path: Path):
    agent = Agent("a", model=ScriptedBackend(lambda _: say("hi")))
    async with agent.open(store=tmp_path / "a.db") as opened:
        first = await opened.run("hi")
        (tmp_path / "a.db").rename(tmp_path / "b.db")
        with pytest.raises(StoreError, match="was removed or replaced"):
            await opened.run("hi", session_id=first.session_id)
        (tmp_path / "b.db").rename(tmp_path / "a.db")
        assert (await opened.run("hi", session_id=first.session_id)).text == "hi"


async def test_a_program_that_changes_its_folder_keeps_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    agent = Agent("a", model=ScriptedBackend(lambda _: say("hi")))
    async with agent.open(store="a.db") as opened:
        first = await opened.run("hi")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert all(
            result.outcome == "completed" for result in await asyncio.gather(*(opened.run("hi") for _ in range(20)))
        )
        assert (await opened.run("hi", session_id=first.session_id)).outcome == "completed"
    assert list((tmp_path / "elsewhere").iterdir()) == []


class Deleting(MemoryStore):
    """A store whose session is deleted right after it was looked at."""

    gone = False

    async def session(self, session_id: str) -> SessionInfo:
        info = await super().session(session_id)
        if self.gone:
            await self.delete(session_id)
        return info


def test_a_session_that_is_deleted_while_its_segment_begins_is_no_failure(caplog: pytest.LogCaptureFixture):
    async def scene(world: World) -> None:
        store = Deleting()
        stage = Stage(world, [say("hi")], store=store)
        async with stage.open() as talk:
            store.gone = True
            talk.host.wake(talk.session_id)
            await talk.rested()
        assert "failed" not in caplog.text

    play(scene)


@pytest.mark.parametrize(
    "turn", [None, {"text_blocks": ["x"]}, AgentTurn([wrong(None)]), AgentTurn(["x"], wrong(None))]
)
async def test_a_backend_that_returns_no_turn_is_told_what_to_return(turn: Any):
    class Careless(Backend):
        name = "careless"

        def add_user_message(self, content: str) -> None: ...

        async def next_turn(self, tool_schemas: list[dict[str, Any]]) -> AgentTurn:
            return turn

        def add_tool_result(self, tool_call_id: str, name: str, content: str, is_error: bool) -> None: ...

    result = await Agent("a", model=Careless).run("hi")
    assert result.error is not None
    assert "next_turn of backend 'careless' returned" in result.error.message
    assert "it must return AgentTurn(" in result.error.message


def test_an_answer_after_the_time_is_refused_though_nobody_was_there_when_it_ended():
    async def scene(world: World) -> None:
        ran: list[int] = []

        @tool(approval="ask")
        async def refund() -> str:
            """Refund."""
            ran.append(1)
            return "ok"

        stage = Stage(world, [call("refund"), say("end")], tools=[refund], options={"approval_expires_s": 60})
        async with stage.open() as talk:
            interrupted = await talk.say("hi")
        await world.clock.sleep_until(world.clock.now_ms() + 3_600_000)
        async with stage.agent.open(
            store=stage.store, clock=world.clock, ids=world.ids, threads=world.threads, adopt=False
        ) as opened:
            [request] = interrupted.requests
            with pytest.raises(ConflictError, match="has expired"):
                await opened.resume(interrupted, {request.request_id: True})
            assert (await opened.resume(interrupted, {})).text == "end"
        assert ran == []

    play(scene)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout_s": "5"}, "timeout_s is '5'"),
        ({"timeout_s": float("inf")}, "timeout_s is inf"),
        ({"read_only": "no"}, "read_only is 'no'"),
        ({"version": 5}, "version is 5"),
        ({"description": 5}, "description is 5"),
        ({"schema": 5}, "schema is 5"),
    ],
    ids=str,
)
def test_a_tool_of_wrong_settings_is_refused_where_it_is_defined(options: dict[str, Any], words: str):
    def look() -> str:
        return "seen"

    with pytest.raises(ToolDefinitionError, match="tool 'look'") as caught:
        wrong(tool)(**options)(look)
    assert words in str(caught.value)


def test_a_description_that_no_provider_takes_is_cleaned():
    def look() -> str:
        return "seen"

    assert tool(look, description="look\ud800 up").spec.description == "look\N{REPLACEMENT CHARACTER} up"
