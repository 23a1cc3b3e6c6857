"""Any class that implements AgentBase, as the host serves it. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from ownloop.core.agent_base import AgentBase, AgentInteraction, AgentInteractionRequest
from ownloop.core.events import InteractionRequested, InteractionResolved, Note, RunEnded, RunStarted, SessionClosed
from ownloop.errors import ConflictError, SessionClosedError, StoreFullError
from ownloop.runtime.foreign import ForeignAgent
from ownloop.runtime.host import open_host
from ownloop.service import Service
from ownloop.store.memory import MemoryStore
from ownloop.testing.virtual_time import World
from tests.runtime.stage import Talk, hosted, play


class Scripted(AgentBase):
    """Does what its `act` says; its life is in `lives`."""

    lives: ClassVar[list[Scripted]] = []
    act: ClassVar[Any] = None

    def __init__(self, config: Any, on_logs: Any, on_request: Any, notes: Any = None) -> None:
        self.config = config
        self.log = on_logs
        self.ask_host = on_request
        self.notes = notes
        self.stopped = 0
        self.answers: dict[str, asyncio.Future[Any]] = {}
        Scripted.lives.append(self)

    @classmethod
    async def create(cls, config: Any, on_logs: Any, on_interaction_request: Any) -> Scripted:
        return cls(config, on_logs, on_interaction_request)

    async def stop(self) -> None:
        self.stopped += 1

    async def interaction(self, interaction: AgentInteraction) -> Any:
        if interaction.interaction_id is not None:
            self.answers[interaction.interaction_id].set_result((interaction.type, interaction.data))
            return None
        return await type(self).act(self, interaction)

    async def ask(self, interaction_id: str, data: Any = None) -> Any:
        self.answers[interaction_id] = asyncio.get_running_loop().create_future()
        await self.ask_host(AgentInteractionRequest(interaction_id=interaction_id, type="choice", data=data))
        return await self.answers[interaction_id]


class Restorable(Scripted):
    @classmethod
    async def restore(cls, config: Any, on_logs: Any, on_interaction_request: Any, notes: Any) -> Restorable:
        return cls(config, on_logs, on_interaction_request, notes)


@pytest.fixture(autouse=True)
def no_lives() -> None:
    Scripted.lives.clear()


def acting(act: Any, kind: type[Scripted] = Scripted, **options: Any) -> ForeignAgent:
    kind.act = staticmethod(act)
    return ForeignAgent("alien", kind, **options)


async def echo(agent: Scripted, interaction: AgentInteraction) -> Any:
    return {"type": interaction.type, "data": interaction.data}


def test_a_message_is_one_interaction_and_its_return_value_the_result() -> None:
    async def scene(world: World) -> None:
        async with hosted(world, acting(echo)) as talk:
            result = await talk.say("hi")
            assert (result.outcome, result.result) == ("completed", {"type": "message", "data": "hi"})
            assert await talk.kinds() == ["session_started", "input_accepted", "run_started", "run_ended"]
            await talk.say("again")
            [life] = Scripted.lives
            assert life.stopped == 0
            assert (await talk.service.session(talk.session_id)).owner is not None
        assert life.stopped == 1

    play(scene)


def test_the_config_of_the_session_reaches_create() -> None:
    async def scene(world: World) -> None:
        async with hosted(world, acting(echo)) as talk:
            session = await talk.service.create_session(config={"tone": "dry"})
            await talk.service.wait(await talk.service.send(session.session_id, "hi"))
            assert Scripted.lives[0].config == {"tone": "dry"}

    play(scene)


def test_another_type_and_its_data_go_verbatim_to_the_agent() -> None:
    async def scene(world: World) -> None:
        async with hosted(world, acting(echo)) as talk:
            accepted = await talk.service.interact(talk.session_id, "resize", {"w": [1, None]})
            result = await talk.service.wait(accepted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            assert result.result == {"type": "resize", "data": {"w": [1, None]}}

    play(scene)


def test_what_is_logged_is_a_fact_before_the_await_returns() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            entry = {"step": 1}
            await agent.log([entry, "two"])
            entry["step"] = 99
            return [body.data for body in await talk.of(Note)]

        async with hosted(world, acting(act)) as talk:
            result = await talk.say("hi")
            assert result.result == [{"log": [{"step": 1}, "two"]}]
            [note] = [fact for fact in await talk.facts() if isinstance(fact.body, Note)]
            assert note.run_id == result.run_id

    play(scene)


def test_many_logs_at_once_are_all_written() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            await asyncio.gather(*(agent.log([n]) for n in range(50)))
            for n in range(50):
                await agent.log([n])
            return None

        async with hosted(world, acting(act)) as talk:
            assert (await talk.say("hi")).outcome == "completed"
            assert [body.data["log"][0] for body in await talk.of(Note)] == [*range(50)] * 2

    play(scene)


def test_what_is_said_while_facts_are_written_comes_with_the_next_ones() -> None:
    class Slow(MemoryStore):
        async def append(self, lease: Any, after_seq: int, facts: Any, **options: Any) -> Any:
            await asyncio.sleep(0.02)
            return await super().append(lease, after_seq, facts, **options)

    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            async def say(number: int) -> None:
                await asyncio.sleep(0.005 * number)
                await agent.log([number])

            await asyncio.gather(*(say(number) for number in range(20)))

        async with hosted(world, acting(act), store=Slow()) as talk:
            assert (await talk.say("hi")).outcome == "completed"
            assert [body.data["log"][0] for body in await talk.of(Note)] == list(range(20))

    play(scene)


def test_a_request_is_listed_and_its_answer_delivered_beside_the_run() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            return await agent.ask("q1", {"options": ["a", "b"]})

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            [request] = await talk.until_asked()
            assert (request.request_id, request.purpose, request.type) == ("q1", "custom", "choice")
            assert request.data == {"options": ["a", "b"]}
            await talk.sleep(100_000)
            await talk.answer("q1", {"value": "a"})
            assert (await talk.service.wait(accepted)).result == ["choice", "a"]
            assert [b.decision for b in await talk.of(InteractionResolved)] == ["answered"]

    play(scene)


def test_a_declined_request_is_delivered_as_none() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            return await agent.ask("q1")

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            await talk.until_asked()
            await talk.answer("q1", {"declined": True})
            assert (await talk.service.wait(accepted)).result == ["choice", None]

    play(scene)


def test_a_request_id_may_be_used_once_in_a_session() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            await agent.ask("q1")
            with pytest.raises(ConflictError, match="'q1'"):
                await agent.ask("q1")
            return "fine"

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            await talk.until_asked()
            await talk.answer("q1", {"value": 1})
            assert (await talk.service.wait(accepted)).result == "fine"
            assert len(await talk.of(InteractionRequested)) == 1

    play(scene)


def test_a_question_outlives_the_run_it_was_asked_in_and_its_answer_is_delivered() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            agent.answers["q1"] = asyncio.get_running_loop().create_future()
            await agent.ask_host(AgentInteractionRequest(interaction_id="q1", type="choice"))
            return "not waiting"

        async with hosted(world, acting(act)) as talk:
            assert (await talk.say("hi")).result == "not waiting"
            assert [asked.request_id for asked in await talk.asked()] == ["q1"]
            await talk.answer("q1", {"value": "sea"})
            assert await Scripted.lives[0].answers["q1"] == ("choice", "sea")
            assert await talk.asked() == []

    play(scene)


def test_a_cancelled_run_takes_its_questions_back() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            return await agent.ask("q1")

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            await talk.until_asked()
            await talk.service.cancel(session_id=talk.session_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            assert await talk.asked() == []
            assert [b.decision for b in await talk.of(InteractionResolved)] == ["withdrawn"]

    play(scene)


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {"a": object()}])
def test_a_result_that_is_no_json_fails_the_run_and_says_so(value: Any) -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            return value

        async with hosted(world, acting(act)) as talk:
            result = await talk.say("hi")
            if isinstance(value, set):  # pydantic knows how to write it
                assert sorted(result.result) == [1, 2]
            else:
                assert result.outcome == "failed"
                assert "must be JSON" in (result.error.message if result.error else "")

    play(scene)


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit("bye"), asyncio.CancelledError()])
def test_an_agent_that_raises_fails_its_run_and_the_session_goes_on(error: BaseException) -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            if interaction.data == "break":
                raise error
            return "fine"

        async with hosted(world, acting(act)) as talk:
            result = await talk.say("break")
            assert result.outcome == "failed"
            assert result.error is not None
            assert (await talk.say("on")).result == "fine"
            assert len(Scripted.lives) == 1

    play(scene)


def test_a_create_that_raises_fails_the_run_and_is_tried_again_by_the_next() -> None:
    class Picky(Scripted):
        tries: ClassVar[int] = 0

        @classmethod
        async def create(cls, config: Any, on_logs: Any, on_interaction_request: Any) -> Scripted:
            cls.tries += 1
            if cls.tries == 1:
                raise RuntimeError("not yet")
            return cls(config, on_logs, on_interaction_request)

    async def scene(world: World) -> None:
        async with hosted(world, acting(echo, Picky)) as talk:
            result = await talk.say("hi")
            assert (result.outcome, result.error and result.error.message) == ("failed", "RuntimeError: not yet")
            assert (await talk.say("hi")).outcome == "completed"

    play(scene)


def test_a_cancel_ends_the_interaction_and_takes_back_what_it_asked() -> None:
    ended: list[str] = []

    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            if interaction.data == "next":
                return "fine"
            try:
                return await agent.ask("q1")
            finally:
                ended.append("interaction")

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            await talk.until_asked()
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            await talk.sleep(10)
            assert ended == ["interaction"]
            assert await talk.asked() == []
            assert (await talk.say("next")).result == "fine"

    play(scene)


def test_what_a_cancelled_interaction_still_logs_is_kept_and_what_it_asks_refused() -> None:
    seen: list[Any] = []

    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await agent.log(["goodbye"])
                seen.append("logged")
                raise

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            await talk.until(RunStarted)
            await talk.sleep(10)
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            await talk.until(Note)
            assert seen == ["logged"]
            assert (await talk.service.run(accepted.run_id)).outcome == "cancelled"

    play(scene)


def test_an_interaction_that_ignores_its_cancel_cannot_hold_up_the_host() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            for _ in range(2):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass
            return "late"

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            await talk.until(RunStarted)
            await talk.sleep(10)
            await talk.service.cancel(run_id=accepted.run_id)
            assert (await talk.service.wait(accepted)).outcome == "cancelled"
            await talk.sleep(5000)
            assert [body.outcome for body in await talk.of(RunEnded)] == ["cancelled"]

    play(scene)


def test_messages_are_handled_one_after_the_other() -> None:
    async def scene(world: World) -> None:
        running: list[str] = []

        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            running.append(interaction.data)
            await world.clock.sleep_until(world.clock.now_ms() + 100)
            return len(running)

        async with hosted(world, acting(act)) as talk:
            first, second = await talk.send("1"), await talk.send("2")
            assert (await talk.service.wait(second)).result == 2
            assert (await talk.service.run(first.run_id)).result == 1

    play(scene)


def test_stop_cancels_frees_the_instance_and_closes_the_session() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            return await agent.ask("q1")

        async with hosted(world, acting(act)) as talk:
            accepted = await talk.send("hi")
            await talk.send("queued")
            await talk.until_asked()
            await talk.service.stop(talk.session_id)
            await talk.until(SessionClosed)
            await talk.rested()
            assert (await talk.service.run(accepted.run_id)).outcome == "cancelled"
            assert [life.stopped for life in Scripted.lives] == [1]
            with pytest.raises(SessionClosedError):
                await talk.send("more")

    play(scene)


def test_the_last_words_of_a_stopping_instance_are_written() -> None:
    class Talkative(Scripted):
        async def stop(self) -> None:
            await self.log(["bye"])
            await super().stop()

    async def scene(world: World) -> None:
        async with hosted(world, acting(echo, Talkative)) as talk:
            await talk.say("hi")
            await talk.service.stop(talk.session_id)
            await talk.rested()
            assert [body.data for body in await talk.of(Note)] == [{"log": ["bye"]}]
            assert (await talk.kinds())[-1] == "session_closed"
            assert Scripted.lives[0].stopped == 1

    play(scene)


def test_an_instance_that_never_stops_is_given_up() -> None:
    class Hanging(Scripted):
        async def stop(self) -> None:
            await asyncio.Event().wait()

    async def scene(world: World) -> None:
        async with hosted(world, acting(echo, Hanging)) as talk:
            await talk.say("hi")
            await talk.service.stop(talk.session_id)
            await talk.rested()
            assert (await talk.kinds())[-1] == "session_closed"

    play(scene)


def test_a_host_that_closes_stops_an_instance_that_still_talks() -> None:
    class Talkative(Scripted):
        async def stop(self) -> None:
            with pytest.raises(SessionClosedError):
                await self.log(["bye"])
            await super().stop()

    async def scene(world: World) -> None:
        async with hosted(world, acting(echo, Talkative)) as talk:
            await talk.say("hi")
        assert Scripted.lives[0].stopped == 1

    play(scene)


async def again(world: World, definition: ForeignAgent, store: MemoryStore, session_id: str, scene: Any) -> None:
    async with hosted(world, definition, store=store) as talk:
        await scene(Talk(talk.host, talk.service, session_id, world))


def test_after_a_restart_the_lost_run_fails_its_requests_are_withdrawn_and_a_new_instance_is_made() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            if interaction.data == "ask":
                return await agent.ask("q1")
            return f"instance {len(Scripted.lives)}"

        store = MemoryStore()
        definition = acting(act)
        async with hosted(world, definition, store=store) as talk:
            lost = await talk.send("ask")
            await talk.until_asked()
            session_id = talk.session_id

        async def after(talk: Talk) -> None:
            result = await talk.service.wait(lost)
            assert (result.outcome, result.error and result.error.code) == ("failed", "agent_lost")
            assert await talk.asked() == []
            assert (await talk.say("on")).result == "instance 2"

        await again(world, definition, store, session_id, after)

    play(scene)


def test_an_answer_posted_while_the_agent_was_lost_is_taken_and_not_delivered() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            return await agent.ask("q1")

        from ownloop.core.inbox import AnswerRequest, InboxItem
        from ownloop.core.interactions import Answer

        store = MemoryStore()
        definition = acting(act)
        async with hosted(world, definition, store=store) as talk:
            lost = await talk.send("ask")
            await talk.until_asked()
            session_id = talk.session_id
        await store.open()
        await store.post(session_id, InboxItem(AnswerRequest("q1", Answer("answered", 1)), world.clock.now_ms()))

        async def after(talk: Talk) -> None:
            assert (await talk.service.wait(lost)).outcome == "failed"
            assert [b.decision for b in await talk.of(InteractionResolved)] == ["answered"]

        await again(world, definition, store, session_id, after)

    play(scene)


def test_an_idle_instance_that_can_be_restored_is_evicted_and_made_again_from_its_notes() -> None:
    async def scene(world: World) -> None:
        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            await agent.log([interaction.data])
            return agent.notes

        async with hosted(world, acting(act, Restorable)) as talk:
            assert (await talk.say("one")).result is None
            await talk.rested()
            assert (await talk.service.session(talk.session_id)).owner is None
            assert Scripted.lives[0].stopped == 1
            assert (await talk.say("two")).result == ["one"]
            await talk.rested()
            assert (await talk.say("three")).result == ["one", "two"]

    play(scene)


def test_get_envs_hands_over_the_declared_variables_and_names_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIEN_KEY", "sk-alien")
    monkeypatch.delenv("ALIEN_OTHER", raising=False)

    class Wanting(Scripted):
        @classmethod
        async def create(
            cls, config: Any, on_logs: Any, on_interaction_request: Any, *, get_envs: Any = None
        ) -> Scripted:
            agent = cls(config, on_logs, on_interaction_request)
            agent.notes = [(env.name, env.value) for env in await get_envs()]
            return agent

    async def scene(world: World) -> None:
        async with hosted(world, acting(echo, Wanting, env_names=["ALIEN_KEY"])) as talk:
            assert (await talk.say("hi")).outcome == "completed"
            assert Scripted.lives[0].notes == [("ALIEN_KEY", "sk-alien")]
        async with hosted(world, acting(echo, Wanting, env_names=["ALIEN_OTHER"])) as talk:
            result = await talk.say("hi")
            assert "ALIEN_OTHER" in (result.error.message if result.error else "")

    play(scene)


def test_a_question_outside_of_a_run_is_the_sessions_own() -> None:
    async def scene(world: World) -> None:
        later: list[asyncio.Task[Any]] = []

        async def act(agent: Scripted, interaction: AgentInteraction) -> Any:
            async def ask() -> Any:
                await world.clock.sleep_until(world.clock.now_ms() + 1000)
                return await agent.ask("q1")

            later.append(asyncio.create_task(ask()))
            return "later"

        async with hosted(world, acting(act)) as talk:
            assert (await talk.say("hi")).result == "later"
            [request] = await talk.until_asked()
            assert request.run_id is None
            await talk.answer("q1", {"value": 5})
            assert await later[0] == ("choice", 5)

    play(scene)


def test_live_instances_take_no_place_from_the_segments_of_others() -> None:
    async def scene(world: World) -> None:
        store = MemoryStore()
        definition = acting(echo)
        async with open_host(
            store, [definition], clock=world.clock, ids=world.ids, threads=world.threads, limit=2
        ) as host:
            service = Service(host)
            for _ in range(5):
                session = await service.create_session()
                assert (await service.wait(await service.send(session.session_id, "hi"))).outcome == "completed"
            assert [life.stopped for life in Scripted.lives] == [0] * 5
        assert [life.stopped for life in Scripted.lives] == [1] * 5

    play(scene)


def test_a_pinned_session_goes_on_after_its_store_was_full() -> None:
    class Full(MemoryStore):
        full = False

        async def append(self, lease: Any, after_seq: int, facts: Any, **options: Any) -> Any:
            if self.full:
                raise StoreFullError
            return await super().append(lease, after_seq, facts, **options)

    async def scene(world: World) -> None:
        store = Full()
        async with hosted(world, acting(echo), store=store) as talk:
            await talk.say("hi")
            store.full = True
            with pytest.raises(StoreFullError):
                await talk.say("more")
            await talk.sleep(5000)
            store.full = False
            await talk.until(lambda facts: sum(isinstance(f.body, RunEnded) for f in facts) == 2)
            assert [life.stopped for life in Scripted.lives] == [1, 0]

    play(scene)
