"""The host: restarts, owners that lose their sessions, stores that fail, and what is left when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ownloop.agent import Agent
from ownloop.backends.scripted import ScriptedBackend, call, gate, hang, say
from ownloop.core.backend import AgentTurn, Backend, ToolCall
from ownloop.core.events import (
    CancelRequested,
    InteractionResolved,
    Limits,
    Note,
    ResponseEnded,
    RunEnded,
    SessionClosed,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from ownloop.core.messages import text_of
from ownloop.core.ports import ToolContext
from ownloop.errors import ConfigError, FencedError, StaleError, StoreFullError
from ownloop.runtime.host import open_host
from ownloop.runtime.system import SystemClock, SystemThreads
from ownloop.service import Service
from ownloop.store.memory import MemoryStore
from ownloop.store.sqlite import SQLiteStore
from ownloop.testing.virtual_time import World
from ownloop.tools.decorator import tool
from tests.runtime.stage import Stage, hosted, play, results_of


class FaultyStore(MemoryStore):
    """A store whose appends may be interfered with."""

    def __init__(self) -> None:
        super().__init__()
        self.before_append: Callable[..., Any] | None = None
        self.beats = 0

    async def append(self, lease: Any, after_seq: int, facts: Any, **options: Any) -> Any:
        if self.before_append is not None:
            await self.before_append(lease, facts)
        return await super().append(lease, after_seq, facts, **options)

    async def heartbeat(self, worker_id: str, *, pid: int, address: str = "") -> None:
        self.beats += 1
        await super().heartbeat(worker_id, pid=pid, address=address)


# --- restart ---------------------------------------------------------------------------------------------------------


def test_a_response_cut_off_by_a_restart_is_abandoned_with_its_text_and_asked_for_again() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[say("Hel") + hang(), say("Hello")]])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(TurnStarted)
            await talk.sleep(100)
        async with stage.open() as talk:
            assert (await talk.service.wait(accepted)).text == "Hello"
            assert [(b.status, text_of(b.blocks)) for b in await talk.of(ResponseEnded)] == [
                ("abandoned", "Hel"),
                ("complete", "Hello"),
            ]

    play(scene)


def test_a_run_is_finished_by_the_next_host_without_anybody_asking_for_it() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[hang(), say("Hello")]])
        async with stage.open() as talk:
            await talk.send("go")
            await talk.until(TurnStarted)
        async with stage.open() as talk:
            await talk.until(RunEnded)

    play(scene)


@pytest.mark.parametrize(
    ("on_unknown", "statuses", "attempts"), [("retry", ["ok"], [1, 2]), ("error", ["unknown"], [1])]
)
def test_a_tool_cut_off_by_a_restart(on_unknown: Any, statuses: list[str], attempts: list[int]) -> None:
    keys: list[str] = []

    async def scene(world: World) -> None:
        @tool(on_unknown=on_unknown)
        async def work(context: ToolContext) -> str:
            keys.append(context.key)
            if context.attempt == 1:
                await asyncio.Event().wait()
            return "worked"

        stage = Stage(world, [call("work"), say("done")], [work])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
        async with stage.open() as talk:
            assert (await talk.service.wait(accepted)).text == "done"
            assert [body.status for body in await talk.of(ToolEnded)] == statuses
            assert [body.attempt for body in await talk.of(ToolStarted)] == attempts
            assert len(set(keys)) == 1

    play(scene)


def test_a_tool_with_effects_cut_off_by_a_restart_is_asked_about() -> None:
    async def scene(world: World) -> None:
        @tool
        async def work() -> str:
            await asyncio.Event().wait()
            return "never"

        stage = Stage(world, [call("work"), say("done")], [work])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
        async with stage.open() as talk:
            result = await talk.service.wait(accepted)
            assert result.state == "interrupted"
            assert [request.purpose for request in result.requests] == ["unknown_outcome"]

    play(scene)


def test_a_tool_that_kills_its_host_again_and_again_is_started_three_times_at_most() -> None:
    async def scene(world: World) -> None:
        @tool(read_only=True)
        async def work() -> str:
            await asyncio.Event().wait()
            return "never"

        stage = Stage(world, [call("work"), say("done")], [work])
        async with stage.open() as talk:
            accepted = await talk.send("go")
            await talk.until(ToolStarted)
        for attempt in (2, 3):
            async with stage.open() as talk:
                await talk.until(lambda facts, n=attempt: any(getattr(f.body, "attempt", 0) == n for f in facts))
        async with stage.open() as talk:
            assert (await talk.service.wait(accepted)).text == "done"
            assert [body.status for body in await talk.of(ToolEnded)] == ["unknown"]

    play(scene)


def test_the_response_is_abandoned_three_times_at_most() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[hang()]])
        for attempt in (1, 2, 3):
            async with stage.open() as talk:
                if attempt == 1:
                    await talk.send("go")
                await talk.until(lambda facts, n=attempt: any(getattr(f.body, "attempt", 0) == n for f in facts))
        async with stage.open() as talk:
            await talk.until(RunEnded)
            [ended] = await talk.of(RunEnded)
            assert ended.outcome == "failed"

    play(scene)


def test_a_session_that_kills_its_owners_without_progress_is_ended() -> None:
    async def scene(world: World) -> None:
        store = MemoryStore()
        stage = Stage(world, [[hang()]], store=store, options={"limits": Limits(abandons=100)})
        async with stage.open() as talk:
            await talk.send("go")
            await talk.until(TurnStarted)
        await store.open()
        now = world.clock.now_ms()
        for number in range(6):  # workers that claim it and die
            await store.heartbeat(f"dead{number}", pid=1)
            await store.claim(f"dead{number}", talk.session_id, now_ms=now)
            await store.kill(f"dead{number}")
        async with stage.open() as talk:
            await talk.until(RunEnded)
            [ended] = await talk.of(RunEnded)
            assert (ended.outcome, ended.error and ended.error.code) == ("failed", "crash_loop")

    play(scene)


def test_a_queued_message_is_not_lost_by_a_restart() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[hang(), say("one")], say("two")])
        async with stage.open() as talk:
            await talk.send("1")
            await talk.until(TurnStarted)
            second = await talk.send("2")
        async with stage.open() as talk:
            assert (await talk.service.wait(second)).text == "two"

    play(scene)


def test_a_host_that_does_not_adopt_leaves_what_others_left() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[hang(), say("one")]])
        async with stage.open() as talk:
            accepted = await talk.send("1")
            await talk.until(TurnStarted)
        async with stage.open(adopt=False) as talk:
            await talk.sleep(10_000)
            assert await talk.of(RunEnded) == []
            talk.host.wake(talk.session_id)
            assert (await talk.service.wait(accepted)).text == "one"

    play(scene)


# --- agents that are not here ----------------------------------------------------------------------------------------


def test_a_session_of_an_agent_that_is_not_served_here_is_left_alone() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [[hang(), say("one")]])
        async with stage.open() as talk:
            await talk.send("1")
            await talk.until(TurnStarted)
        other = Stage(world, [say("other")], store=stage.store, name="other")
        async with other.open() as talk:
            assert (await talk.say("hi")).text == "other"
            await talk.sleep(10_000)
        async with stage.open() as talk:
            await talk.until(RunEnded)
            assert [body.outcome for body in await talk.of(RunEnded)] == ["completed"]

    play(scene)


def test_a_session_of_an_agent_that_is_not_served_here_can_still_be_stopped() -> None:
    @tool(approval="ask")
    def pay() -> None: ...

    async def scene(world: World) -> None:
        stage = Stage(world, lambda r: call("pay") + say("") if len(r.messages) == 1 else hang(), [pay])
        async with stage.open() as talk:
            await talk.say("1")
            await talk.send("2")
        other = Stage(world, [say("other")], store=stage.store, name="other")
        async with other.open() as talk:
            await talk.service.stop(stage.session_id or "")
            await talk.host.rested(stage.session_id or "")
            facts = await talk.host.env.store.read(stage.session_id or "")
            assert isinstance(facts[-1].body, SessionClosed)
            assert len([f for f in facts if isinstance(f.body, RunEnded)]) == 1
            info = await talk.service.session(stage.session_id or "")
            assert (info.owner, info.runnable_at_ms, info.open_requests) == (None, None, 0)

    play(scene)


def test_an_open_response_of_an_agent_that_is_not_served_here_is_closed_by_a_stop() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, [say("Hel") + hang()])
        async with stage.open() as talk:
            await talk.send("1")
            await talk.until(TurnStarted)
            await talk.sleep(100)
        async with Stage(world, [], store=stage.store, name="other").open() as talk:
            await talk.service.stop(stage.session_id or "")
            await talk.host.rested(stage.session_id or "")
            facts = await talk.host.env.store.read(stage.session_id or "")
            assert isinstance(facts[-1].body, SessionClosed)
            assert [f.body.status for f in facts if isinstance(f.body, ResponseEnded)] == ["cancelled"]

    play(scene)


def test_two_agents_of_one_name_are_refused() -> None:
    async def scene(world: World) -> None:
        agent = Agent("a", model=ScriptedBackend([say("x")]))
        with pytest.raises(ConfigError, match="two agents are named 'a'"):
            async with open_host(
                MemoryStore(), [agent, agent], clock=world.clock, ids=world.ids, threads=world.threads
            ):
                pass

    play(scene)


# --- a store that refuses --------------------------------------------------------------------------------------------


def test_an_answer_posted_between_the_plan_and_its_append_is_taken_first() -> None:
    @tool(approval="ask")
    def pay() -> str:
        return "paid"

    async def scene(world: World) -> None:
        store = FaultyStore()
        stage = Stage(world, [call("pay"), say("done")], [pay], {"approval_expires_s": 60}, store=store)
        async with stage.open() as talk:
            result = await talk.say("go")
            stale = 0

            async def before_append(lease: Any, facts: Any) -> None:
                nonlocal stale
                if any(isinstance(d.body, InteractionResolved) and d.body.by == "clock" for d in facts):
                    stale += 1
                    assert stale == 1
                    await talk.answer(result.requests[0], {"approved": True})

            store.before_append = before_append
            await talk.until(RunEnded)
            assert stale == 1
            assert [b.decision for b in await talk.of(InteractionResolved)] == ["approved"]
            assert [text_of(b.blocks) for b in await talk.of(ToolEnded)] == ["paid"]

    play(scene)


def test_an_answer_posted_while_its_tool_takes_the_question_back_is_taken_first() -> None:
    async def scene(world: World) -> None:
        store = FaultyStore()

        @tool
        async def impatient(context: ToolContext) -> str:
            asking = asyncio.ensure_future(context.ask("Well?"))
            await world.clock.sleep_until(world.clock.now_ms() + 500)
            asking.cancel()
            return "gave up"

        stage = Stage(world, [call("impatient"), say("done")], [impatient], store=store)
        async with stage.open() as talk:
            stale = 0

            async def before_append(lease: Any, facts: Any) -> None:
                nonlocal stale
                if any(isinstance(d.body, InteractionResolved) and d.body.by == "system" for d in facts):
                    stale += 1
                    assert stale == 1
                    await talk.answer((await talk.asked())[0], {"value": 7})

            store.before_append = before_append
            assert (await talk.say("go")).text == "done"
            assert [b.decision for b in await talk.of(InteractionResolved)] == ["answered"]
            assert stale == 1

    play(scene)


def test_a_full_store_reaches_the_caller_and_the_host_goes_on_when_there_is_room() -> None:
    async def scene(world: World) -> None:
        store = FaultyStore()
        stage = Stage(world, [say("one")], store=store)

        async def full(lease: Any, facts: Any) -> None:
            if any(isinstance(d.body, ResponseEnded) for d in facts):
                raise StoreFullError

        async with stage.open() as talk:
            store.before_append = full
            accepted = await talk.send("go")
            with pytest.raises(StoreFullError):
                await talk.service.wait(accepted)
            with pytest.raises(StoreFullError):
                async for _ in talk.service.follow(await talk.send("go"), "0"):
                    pass
            store.before_append = None
            assert (await talk.service.wait(accepted)).text == "one"

    play(scene)


def test_a_fenced_owner_publishes_nothing_more_and_cancels_what_it_does() -> None:
    cancelled: list[str] = []

    async def scene(world: World) -> None:
        store = FaultyStore()

        @tool
        async def work() -> str:
            try:
                await world.clock.sleep_until(world.clock.now_ms() + 5000)
            except asyncio.CancelledError:
                cancelled.append("tool")
                raise
            return "worked"

        @tool
        async def quick() -> str:
            await world.clock.sleep_until(world.clock.now_ms() + 1000)
            return "quick"

        stage = Stage(world, [call("work") + call("quick")], [work, quick], store=store)
        async with stage.open() as talk:
            await talk.send("go")
            await talk.until(ToolStarted)
            seen = len(await talk.facts())

            async def fenced(lease: Any, facts: Any) -> None:
                raise FencedError

            store.before_append = fenced
            await talk.rested()
            assert cancelled == ["tool"]
            assert len(await talk.facts()) == seen

    play(scene)


def test_stale_appends_do_not_repeat_effects() -> None:
    ran: list[int] = []

    @tool
    async def work() -> str:
        ran.append(1)
        return "worked"

    async def scene(world: World) -> None:
        store = FaultyStore()
        stage = Stage(world, [call("work"), say("done")], [work], store=store)
        refused: set[str] = set()

        async def once(lease: Any, facts: Any) -> None:
            key = ",".join(draft.body.kind for draft in facts)
            if key not in refused:
                refused.add(key)
                raise StaleError

        store.before_append = once
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"
            assert ran == [1]
            assert len(stage.backend.requests) == 2

    play(scene)


def test_a_host_says_again_and_again_that_it_lives() -> None:
    async def scene(world: World) -> None:
        store = FaultyStore()
        async with Stage(world, [say("one")], store=store).open() as talk:
            await talk.sleep(20_500)
            assert store.beats == 5

    play(scene)


def test_what_a_given_up_tool_comes_to_while_the_segment_is_released_is_not_lost() -> None:
    async def scene(world: World) -> None:
        store = FaultyStore()

        @tool(timeout_s=2, on_unknown="error")
        def work() -> str:
            return "worked after all"

        world.threads._longest_s = 30.0
        world.threads._random.seed(3)

        async def slow_at_the_end(lease: Any, facts: Any) -> None:
            if any(isinstance(draft.body, RunEnded) for draft in facts):
                await talk.sleep(60_000)

        store.before_append = slow_at_the_end
        stage = Stage(world, [call("work"), say("sorry")], [work], store=store)
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "sorry"
            await talk.until(Note)
            [note] = await talk.of(Note)
            assert note.data["text"] == "worked after all"

    play(scene)


def test_a_new_session_of_an_old_id_does_not_inherit_what_was_remembered() -> None:
    async def scene(world: World) -> None:
        stage = Stage(world, lambda request: say(str(len(request.messages))), session_id="fixed")
        async with stage.open() as talk:
            for _ in range(2):
                await talk.service.create_session(session_id="fixed")
                assert (await talk.say("a")).text == "1"
                assert (await talk.say("b")).text == "3"
                await talk.host.env.store.delete("fixed")

    play(scene)


def test_a_session_that_was_deleted_meanwhile_is_forgotten() -> None:
    async def scene(world: World) -> None:
        async with Stage(world, [say("one")]).open() as talk:
            await talk.host.env.store.delete(talk.session_id)
            talk.host.wake(talk.session_id)
            await talk.rested()

    play(scene)


# --- many ------------------------------------------------------------------------------------------------------------


def test_two_hundred_sessions_at_once_do_not_mix_and_leave_no_task() -> None:
    @tool
    async def whoami(context: ToolContext) -> str:
        await asyncio.sleep(0.01)
        return context.session_id

    def script(request: Any) -> Any:
        found = results_of(request.messages)
        return say(f"{text_of(request.messages[0].blocks)}={found[0]}") if found else call("whoami")

    async def scene(world: World) -> None:
        agent = Agent("many", model=ScriptedBackend(script), tools=[whoami])
        async with hosted(world, agent) as talk:
            service = talk.service

            async def one(number: int) -> None:
                session_id = (await service.create_session()).session_id
                result = await service.wait(await service.send(session_id, f"n{number}"))
                assert result.text == f"n{number}={session_id}"

            await asyncio.gather(*(one(number) for number in range(200)))
            assert talk.host._busy == {}
            assert talk.host.env.hub._channels == {}

    play(scene)


async def test_two_hosts_on_one_file_run_nothing_twice(tmp_path: Path) -> None:
    started: list[str] = []

    @tool
    async def work(context: ToolContext) -> str:
        started.append(context.call_id)
        await asyncio.sleep(0)
        return "worked"

    def script(request: Any) -> Any:
        return say("done") if results_of(request.messages) else call("work")

    agent = Agent("a", model=ScriptedBackend(script), tools=[work])
    path = tmp_path / "store.db"
    one = SQLiteStore(path, clock=SystemClock(), threads=SystemThreads(), fast=True)
    two = SQLiteStore(path, clock=SystemClock(), threads=SystemThreads(), fast=True)
    async with open_host(one, [agent]) as first, open_host(two, [agent]) as second:
        services = [Service(first), Service(second)]

        async def talk(number: int) -> None:
            here, there = services[number % 2], services[(number + 1) % 2]
            session_id = (await here.create_session()).session_id
            accepted = await here.send(session_id, "go")
            second.wake(session_id)
            first.wake(session_id)
            assert (await there.wait(accepted)).text == "done"

        await asyncio.gather(*(talk(number) for number in range(10)))
    assert len(started) == len(set(started)) == 10


# --- three-method backends -------------------------------------------------------------------------------------------


class Echo(Backend):
    """Remembers everything it is told."""

    name = "echo"
    made: ClassVar[list[Echo]] = []
    turns: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.heard: list[Any] = []
        Echo.made.append(self)

    def add_user_message(self, content: str) -> None:
        self.heard.append(("user", content))

    async def next_turn(self, tool_schemas: list[dict[str, Any]]) -> AgentTurn:
        turn = Echo.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        self.heard.append(("assistant", turn.text_blocks))
        return turn

    def add_tool_result(self, tool_call_id: str, name: str, content: str, is_error: bool) -> None:
        self.heard.append((tool_call_id, name, content, is_error))


class Loading(Echo):
    def load(self, history: Any) -> None:
        self.heard.append(("loaded", [m.role for m in history]))


@pytest.fixture(autouse=True)
def fresh_echo() -> None:
    Echo.made.clear()
    Echo.turns.clear()


def echo_stage(world: World, kind: type[Echo], *turns: Any) -> Stage:
    @tool
    def double(n: int) -> int:
        return 2 * n

    Echo.turns.extend(turns)
    return Stage(world, [], [double], {"model": kind})


def doubling(*ids: str) -> AgentTurn:
    return AgentTurn(["hm"], [ToolCall(id, "double", {"n": n}) for n, id in enumerate(ids)], "tool_use")


def test_a_three_method_backend_gets_its_own_ids_back_in_call_order() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Echo, doubling("a", "b"), AgentTurn(["done"]))
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"
            [instance] = Echo.made
            assert instance.heard == [
                ("user", "go"),
                ("assistant", ["hm"]),
                ("a", "double", "0", False),
                ("b", "double", "2", False),
                ("assistant", ["done"]),
            ]

    play(scene)


def test_an_instance_serves_one_session_and_all_its_runs() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Echo, AgentTurn(["1"]), AgentTurn(["2"]), AgentTurn(["3"]))
        async with stage.open() as talk:
            await talk.say("a")
            await talk.say("b")
            other = await talk.service.create_session()
            await talk.service.wait(await talk.service.send(other.session_id, "c"))
            assert [[word for _, word in made.heard] for made in Echo.made] == [
                ["a", ["1"], "b", ["2"]],
                ["c", ["3"]],
            ]

    play(scene)


def test_after_a_restart_a_backend_without_load_gets_the_conversation_as_a_transcript() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Echo, doubling("a"), AgentTurn(["done"]), AgentTurn(["again"]))
        async with stage.open() as talk:
            await talk.say("go")
        async with stage.open() as talk:
            assert (await talk.say("and now?")).text == "again"
            (role, text), _ = Echo.made[1].heard
            assert role == "user"
            for words in ("User: go", 'You called double with {"n":0}', "Result of double: 0", "User: and now?"):
                assert words in text

    play(scene)


def test_after_a_restart_a_backend_with_load_is_given_the_history() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Loading, doubling("a"), AgentTurn(["done"]), AgentTurn(["again"]))
        async with stage.open() as talk:
            await talk.say("go")
        async with stage.open() as talk:
            await talk.say("and now?")
            assert Echo.made[1].heard == [
                ("loaded", ["user", "assistant", "tool", "assistant"]),
                ("user", "and now?"),
                ("assistant", ["again"]),
            ]

    play(scene)


def test_a_next_turn_that_raises_fails_the_run_and_a_new_instance_goes_on() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Echo, AgentTurn(["1"]), RuntimeError("broken"), AgentTurn(["3"]))
        async with stage.open() as talk:
            await talk.say("a")
            result = await talk.say("b")
            assert (result.outcome, result.error and result.error.message) == ("failed", "RuntimeError: broken")
            assert (await talk.say("c")).text == "3"
            assert len(Echo.made) == 2
            assert "User: b" in Echo.made[1].heard[0][1]

    play(scene)


def test_a_backend_that_says_other_without_calls_is_asked_again_up_to_max_turns() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Echo, *[AgentTurn(["still"], [], "other")] * 3)
        stage.options["max_turns"] = 3
        async with stage.open() as talk:
            assert (await talk.say("go")).outcome == "max_turns"
            assert len(Echo.made) == 1

    play(scene)


def test_end_turn_with_calls_runs_them_and_goes_on() -> None:
    async def scene(world: World) -> None:
        turn = doubling("a")
        turn.stop_reason = "end_turn"
        stage = echo_stage(world, Echo, turn, AgentTurn(["done"]))
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"
            assert [body.status for body in await talk.of(ToolEnded)] == ["ok"]

    play(scene)


def test_ids_that_repeat_are_given_back_by_position() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Echo, doubling("x", "x"), doubling("x"), AgentTurn(["done"]))
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"
            [instance] = Echo.made
            results = [heard[2] for heard in instance.heard if len(heard) == 4]
            assert results == ["0", "2", "0"]
            assert {heard[0] for heard in instance.heard if len(heard) == 4} == {"x"}

    play(scene)


def test_an_input_that_is_no_json_is_an_error_for_the_model() -> None:
    async def scene(world: World) -> None:
        odd = AgentTurn([], [ToolCall("a", "double", {"n": object()})], "tool_use")  # type: ignore[dict-item]
        stage = echo_stage(world, Echo, odd, AgentTurn(["done"]))
        async with stage.open() as talk:
            assert (await talk.say("go")).text == "done"
            assert [body.status for body in await talk.of(ToolEnded)] == ["invalid"]

    play(scene)


def test_the_instance_of_a_closed_session_is_freed() -> None:
    async def scene(world: World) -> None:
        stage = echo_stage(world, Echo, AgentTurn(["1"]))
        async with stage.open() as talk:
            await talk.say("a")
            [adapter] = talk.host._adapters.values()
            assert adapter._instances  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
            await talk.service.stop(talk.session_id)
            await talk.rested()
            assert not adapter._instances  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    play(scene)


# --- the loop's edge -------------------------------------------------------------------------------------------------


def test_a_cancel_that_is_posted_by_another_process_is_seen_without_a_wake() -> None:
    from ownloop.core.inbox import Cancel, InboxItem

    async def scene(world: World) -> None:
        async with Stage(world, [say("Hel") + hang()]).open() as talk:
            await talk.send("go")
            await talk.until(TurnStarted)
            await talk.host.env.store.post(talk.session_id, InboxItem(Cancel(), world.clock.now_ms()))
            began = world.clock.now_ms()
            await talk.until(RunEnded)
            assert world.clock.now_ms() - began <= 1100
            assert [body.principal for body in await talk.of(CancelRequested)] == ["local"]

    play(scene)


def test_a_slow_reader_never_holds_up_the_loop() -> None:
    async def scene(world: World) -> None:
        opened = asyncio.Event()
        stage = Stage(world, [gate(opened) + say("x" * 2000, chunk=1)])
        async with stage.open() as talk, talk.service.subscribe(talk.session_id) as frames:
            accepted = await talk.send("go")
            first = await frames.batch()
            opened.set()
            assert (await talk.service.wait(accepted)).text == "x" * 2000
            assert first

    play(scene)
