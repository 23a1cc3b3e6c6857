"""Agent in code: run, run_sync, stream, resume, and what is kept between the calls."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from ownloop.agent import Agent, open_store
from ownloop.backends.scripted import ScriptedBackend, call, fail, hang, say
from ownloop.core.events import Delta, Fact, RunEnded
from ownloop.core.messages import BlobBlock, ToolResultBlock
from ownloop.core.operations import RunResult
from ownloop.core.ports import ToolContext
from ownloop.errors import AuthError, ConfigError, InvalidRequestError, NotFoundError
from ownloop.store.memory import MemoryStore
from ownloop.store.sqlite import SQLiteStore
from ownloop.tools.decorator import tool
from ownloop.tools.image import Image


@pytest.fixture(autouse=True)
def no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OWNLOOP_STORE", raising=False)


@tool(approval="ask")
def pay(eur: int) -> str:
    return f"paid {eur}"


def counting() -> ScriptedBackend:
    """Says how many messages it was shown."""
    return ScriptedBackend(lambda request: say(str(len(request.messages))))


def test_run_sync_needs_no_event_loop_and_the_session_goes_on_in_the_next_call() -> None:
    agent = Agent("a", model=counting())
    first = agent.run_sync("hi")
    assert (first.state, first.outcome, first.text) == ("ended", "completed", "1")
    assert agent.run_sync("hi", session_id=first.session_id).text == "3"
    assert agent.run_sync("hi").text == "1"


def test_the_sessions_in_memory_are_those_of_one_agent_object() -> None:
    first = Agent("a", model=counting()).run_sync("hi")
    with pytest.raises(NotFoundError):
        Agent("a", model=counting()).run_sync("hi", session_id=first.session_id)


async def test_runs_of_one_agent_at_the_same_time_do_not_disturb_each_other() -> None:
    @tool
    async def nap(context: ToolContext, ms: int) -> str:
        await asyncio.sleep(ms / 1000)
        return context.session_id

    def script(request: Any) -> Any:
        last = request.messages[-1]
        return say("done") if last.role == "tool" else call("nap", {"ms": int(last.blocks[0].text)})

    agent = Agent("a", model=ScriptedBackend(script), tools=[nap])
    results = await asyncio.gather(*(agent.run(str(ms)) for ms in (1, 30, 5, 60, 0, 15)))
    assert [result.text for result in results] == ["done"] * 6
    assert len({result.session_id for result in results}) == 6
    assert (await agent.run("0", session_id=results[0].session_id)).text == "done"


async def test_memory_in_use_in_another_loop_is_refused_with_what_to_do() -> None:
    agent = Agent("a", model=ScriptedBackend(lambda _: hang()))
    running = asyncio.create_task(agent.run("x"))
    await asyncio.sleep(0.01)
    seen: list[BaseException] = []

    def elsewhere() -> None:
        try:
            agent.run_sync("y")
        except ConfigError as error:
            seen.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.005)
    assert "pass store=" in str(seen[0])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_interrupted_run_comes_back_and_is_resumed_by_its_request_ids() -> None:
    agent = Agent("a", model=ScriptedBackend([call("pay", {"eur": 5}), say("done")]), tools=[pay])
    result = await agent.run("pay")
    assert result.state == "interrupted"
    [request] = result.requests
    done = await agent.resume(result, {request.request_id: True})
    assert (done.outcome, done.text) == ("completed", "done")


@pytest.mark.parametrize("answer", [False, {"approved": False}, {"approved": True, "edited_input": {"eur": 1}}])
async def test_resume_takes_plain_and_full_answers(answer: Any) -> None:
    backend = ScriptedBackend([call("pay", {"eur": 5}), say("done")])
    agent = Agent("a", model=backend, tools=[pay])
    result = await agent.run("pay")
    assert (await agent.resume(result, {result.requests[0].request_id: answer})).text == "done"
    told = [b for m in backend.requests[1].messages for b in m.blocks if isinstance(b, ToolResultBlock)]
    assert told[0].is_error == (answer in (False, {"approved": False}))


async def test_resume_of_some_requests_waits_for_the_others() -> None:
    agent = Agent(
        "a", model=ScriptedBackend([call("pay", {"eur": 1}) + call("pay", {"eur": 2}), say("done")]), tools=[pay]
    )
    result = await agent.run("pay")
    one, two = result.requests
    again = await agent.resume(result, {one.request_id: True})
    assert again.state == "interrupted"
    assert [request.request_id for request in again.requests] == [two.request_id]
    assert (await agent.resume(again, {two.request_id: True})).text == "done"


async def test_stream_yields_facts_and_deltas_and_ends_with_the_run() -> None:
    agent = Agent("a", model=ScriptedBackend([say("Hello there", chunk=3)]))
    events = [event async for event in agent.stream("hi")]
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "Hello there"
    last = events[-1]
    assert isinstance(last, Fact)
    assert isinstance(last.body, RunEnded)


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_stream_ends_where_a_person_is_asked_and_has_shown_everything(where: str, tmp_path: Path) -> None:
    agent = Agent("a", model=ScriptedBackend([say("I pay.") + call("pay", {"eur": 5}), say("done")]), tools=[pay])
    store = None if where == "memory" else tmp_path / "s.db"
    for _ in range(5):
        events = [event async for event in agent.stream("pay", store=store)]
        last = events[-1]
        assert isinstance(last, Fact)
        assert last.body.kind == "interaction_requested"


async def test_a_stream_that_is_left_leaves_no_task_behind() -> None:
    agent = Agent("a", model=ScriptedBackend([say("Hello there", chunk=1) + hang()]))
    stream = agent.stream("hi")
    async for event in stream:
        if isinstance(event, Delta):
            break
    await stream.aclose()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_run_given_up_by_its_caller_goes_on_with_the_next_message() -> None:
    backend = ScriptedBackend([[say("Hel") + hang(), say("Hello")], say("two")])
    agent = Agent("a", model=backend)
    async with agent.open() as opened:
        session = await opened.service.create_session()
        running = asyncio.create_task(agent.run("1", session_id=session.session_id))
        while not backend.requests:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (await agent.run("2", session_id=session.session_id)).text == "two"


async def test_the_environment_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLOOP_STORE", str(tmp_path / "s.db"))
    first = await Agent("a", model=counting()).run("hi")
    assert (tmp_path / "s.db").exists()
    assert (await Agent("a", model=counting()).run("hi", session_id=first.session_id)).text == "3"


async def test_a_path_or_a_store_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLOOP_STORE", str(tmp_path / "no.db"))
    agent = Agent("a", model=counting())
    first = await agent.run("hi", store=tmp_path / "yes.db")
    store = MemoryStore()
    await agent.run("hi", store=store)
    assert not (tmp_path / "no.db").exists()
    assert (await agent.run("hi", store=str(tmp_path / "yes.db"), session_id=first.session_id)).text == "3"
    assert isinstance(open_store("memory"), MemoryStore)
    assert isinstance(open_store(tmp_path / "x.db"), SQLiteStore)


async def test_runs_at_the_same_time_on_one_file_do_not_take_each_others_sessions(tmp_path: Path) -> None:
    started: list[str] = []

    @tool
    async def work(context: ToolContext, ms: int) -> str:
        started.append(context.call_id)
        await asyncio.sleep(ms / 1000)
        return "worked"

    def script(request: Any) -> Any:
        last = request.messages[-1]
        return say("done") if last.role == "tool" else call("work", {"ms": int(last.blocks[0].text)})

    agents = [Agent("a", model=ScriptedBackend(script), tools=[work]) for _ in range(4)]
    results = await asyncio.gather(
        *(agent.run(str(ms), store=tmp_path / "s.db") for agent, ms in zip(agents, (1, 50, 5, 100), strict=True))
    )
    assert [result.text for result in results] == ["done"] * 4
    assert len(started) == 4


async def test_a_run_in_code_leaves_alone_what_others_have_left_in_the_store(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    backend = ScriptedBackend([[hang(), say("one")]])
    agent = Agent("a", model=backend)
    async with agent.open(store=store) as opened:
        session = await opened.service.create_session()
        await opened.service.send(session.session_id, "1")
        while not backend.requests:
            await asyncio.sleep(0.001)
    assert (await Agent("a", model=counting()).run("x", store=store)).text == "1"
    async with agent.open(store=store, adopt=False) as opened:
        assert (await opened.service.read_events(session.session_id))[0][-1].body.kind == "turn_started"
    async with agent.open(store=store) as opened:
        while (await opened.service.session(session.session_id)).live_run_id is not None:
            await asyncio.sleep(0.001)


async def test_a_plain_tool_runs_in_a_thread_and_does_not_hold_up_the_loop() -> None:
    inside, leave = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        inside.set()
        leave.wait(30)
        return threading.current_thread().name

    agent = Agent("a", model=ScriptedBackend([call("block"), say("done")]), tools=[block])
    running = asyncio.create_task(agent.run("x"))
    while not inside.is_set():
        await asyncio.sleep(0.001)
    assert not running.done()
    leave.set()
    assert (await running).text == "done"


async def test_an_image_in_a_result_reaches_the_next_request() -> None:
    pixel = b"\x89PNG\r\n\x1a\n" + b"0" * 20

    @tool
    def look() -> Image:
        return Image(data=pixel, media_type="image/png")

    backend = ScriptedBackend([call("look"), say("a pixel")])
    result = await Agent("a", model=backend, tools=[look]).run("x")
    assert result.text == "a pixel"
    [block] = [
        item
        for message in backend.requests[1].messages
        for result_block in message.blocks
        if isinstance(result_block, ToolResultBlock)
        for item in result_block.content
        if isinstance(item, BlobBlock)
    ]
    assert backend.requests[1].blobs[block.digest] == pixel


async def test_the_answer_in_code_is_the_last_text_and_a_failure_is_told() -> None:
    result = await Agent("a", model=ScriptedBackend([fail(AuthError("no"))])).run("x")
    assert (result.outcome, result.text) == ("failed", "")
    assert result.error is not None
    assert result.error.code == "auth"


@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b"])
def test_a_name_that_no_store_and_no_address_takes_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="use letters"):
        Agent(name, model=counting())


def test_max_turns_may_be_called_max_steps() -> None:
    backend = ScriptedBackend(lambda _: call("look"))
    assert Agent("a", model=backend, MAX_STEPS=2).limits.max_turns == 2
    assert Agent("a", model=backend).limits.max_turns == 50
    assert Agent("a", model=backend, max_turns=0).limits.max_turns is None
    result: RunResult = Agent("a", model=backend, MAX_STEPS=2).run_sync("x")
    assert result.outcome == "max_turns"


async def test_a_run_is_resumed_by_its_id_from_the_store(tmp_path: Path) -> None:
    @tool(approval="ask")
    def pay() -> str:
        return "paid"

    def fresh() -> Agent:
        return Agent("desk", model=ScriptedBackend([call("pay"), say("done")]), tools=[pay])

    first = await fresh().run("go", store=tmp_path / "agents.db")
    [asked] = first.requests
    result = await fresh().resume(first.run_id, {asked.request_id: True}, store=tmp_path / "agents.db")
    assert (result.outcome, result.text) == ("completed", "done")


async def test_resume_says_what_it_takes() -> None:
    agent = Agent("desk", model=ScriptedBackend([say("hi")]))
    result = await agent.run("go")
    wrong: Any = ["req_1"]
    with pytest.raises(InvalidRequestError, match="request id to answer; this is 'list'"):
        await agent.resume(result, wrong)
    nobody: Any = 7
    with pytest.raises(InvalidRequestError, match="a RunResult or a run's id, not 'int'"):
        await agent.resume(nobody, {})


@pytest.mark.parametrize("model", ["gpt-4o", "nonsense", "http://localhost:8000/v1", "anthropic:"])
def test_a_model_string_of_no_known_form_is_refused_at_the_definition(model: str) -> None:
    with pytest.raises(ConfigError, match=r"model '"):
        Agent("desk", model=model)
