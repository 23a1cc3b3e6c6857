"""examples/custom_agent.py: drafts, asks a person, changes, until the person is content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ownloop import MemoryStore, Service, open_host
from ownloop.core.events import Fact, InteractionRequested, InteractionResolved, Note
from ownloop.core.operations import RunResult
from ownloop.core.ports import Filter
from tests.cli.conftest import Program
from tests.cli.terminal import Terminal
from tests.examples.conftest import EXAMPLES, MODEL_S, Loader, Model, say, served

FILE = str(EXAMPLES / "custom_agent.py")
ANSWER = "your answer"
DRAFTS = (say("Paris is big and old."), say("Paris is old."), say("Rome is older."))


class Desk:
    """One session with the writer, and the person it asks."""

    def __init__(self, service: Service, session_id: str) -> None:
        self.service = service
        self.session_id = session_id
        self._cursor = "0"

    async def says(self, message: str) -> asyncio.Task[RunResult]:
        accepted = await self.service.send(self.session_id, message)
        return asyncio.create_task(self.service.wait(accepted))

    async def until(self, kind: type[Any]) -> Any:
        """Return the next fact's body of a kind."""
        async with self.service.subscribe(self.session_id, self._cursor) as frames:
            async for frame in frames:
                self._cursor = frame.cursor
                if isinstance(frame.event, Fact) and isinstance(frame.event.body, kind):
                    return frame.event.body
        raise AssertionError(f"no {kind.__name__} came")

    async def answers(self, words: str | int | None) -> Any:
        """Answer the next question, and return what was asked."""
        asked = await self.until(InteractionRequested)
        answer = {"declined": True} if words is None else {"value": words}
        await self.service.answer(self.session_id, asked.request_id, answer)
        return asked

    async def logs(self) -> list[str]:
        facts, _ = await self.service.read_events(self.session_id, "0")
        return [line for fact in facts if isinstance(fact.body, Note) for line in fact.body.data["log"]]


@asynccontextmanager
async def writer(example: Loader, model: Model) -> AsyncGenerator[Service]:
    async with open_host(MemoryStore(), [example("custom_agent", MODEL=model.string).Writer]) as host:
        yield Service(host)


async def new_desk(service: Service) -> Desk:
    return Desk(service, (await service.create_session("Writer")).session_id)


async def test_it_changes_its_draft_until_the_person_is_content(example: Loader) -> None:
    with served(*DRAFTS) as model:
        async with writer(example, model) as service:
            desk = await new_desk(service)
            run = await desk.says("Write one sentence about Paris.")
            asked = await desk.answers("Shorter, please.")
            assert (asked.type, asked.data) == (
                "review",
                {"question": "What shall I change?", "draft": "Paris is big and old."},
            )
            assert (await desk.answers(None)).data["draft"] == "Paris is old."
            result = await run
            assert (result.outcome, result.text) == ("completed", "Paris is old.")
            assert await desk.logs() == ["writing a draft …", "writing a draft …", "done, 3 words"]
        said = [(message["role"], message["content"]) for message in model.asked[-1]]
        assert said == [
            ("system", "You write short texts."),
            ("user", "Write one sentence about Paris."),
            ("assistant", "Paris is big and old."),
            ("user", "Shorter, please."),
        ]


async def test_a_number_is_an_answer_too(example: Loader) -> None:
    with served(*DRAFTS) as model:
        async with writer(example, model) as service:
            desk = await new_desk(service)
            run = await desk.says("How many hills has Rome?")
            await desk.answers(7)
            await desk.answers(None)
            assert (await run).outcome == "completed"
        assert model.heard == "7"


async def test_a_cancel_takes_the_question_back_and_the_agent_lives_on(example: Loader) -> None:
    with served(*DRAFTS) as model:
        async with writer(example, model) as service:
            desk = await new_desk(service)
            run = await desk.says("Write one sentence about Paris.")
            await desk.until(InteractionRequested)
            await service.cancel(session_id=desk.session_id)
            assert (await run).outcome == "cancelled"
            assert (await desk.until(InteractionResolved)).decision == "withdrawn"
            run = await desk.says("Write it anew.")
            assert (await desk.answers(None)).data["draft"] == "Paris is old."
            assert (await run).text == "Paris is old."
            assert await service.requests(Filter(session_id=desk.session_id, state="open")) == []
        assert [message["role"] for message in model.asked[-1]] == ["system", "user", "assistant", "user"]


async def test_each_session_has_a_writer_of_its_own(example: Loader) -> None:
    with served(*DRAFTS) as model:
        async with writer(example, model) as service:
            one, other = await new_desk(service), await new_desk(service)
            runs = [await one.says("About Paris."), await other.says("About Rome.")]
            await other.answers(None)
            await one.answers(None)
            assert {(await run).outcome for run in runs} == {"completed"}
        assert [[m["content"] for m in asked if m["role"] == "user"] for asked in model.asked] in (
            [["About Paris."], ["About Rome."]],
            [["About Rome."], ["About Paris."]],
        )


async def test_a_model_that_fails_fails_the_run_and_says_why(example: Loader) -> None:
    module = example("custom_agent", MODEL="gpt-5")
    async with open_host(MemoryStore(), [module.Writer]) as host:
        desk = await new_desk(Service(host))
        result = await (await desk.says("Write."))
        assert result.outcome == "failed"
        assert result.error is not None
        assert "model 'gpt-5' is not known" in result.error.message


@pytest.mark.slow
def test_without_a_person_its_question_waits_and_the_command_says_so(ownloop: Program) -> None:
    with served(*DRAFTS) as model:
        done = ownloop("run", FILE, "Write one sentence about Paris.", MODEL=model.string)
    assert done.returncode == 3
    assert "writing a draft …" in done.stderr
    assert "Paris is big and old." in done.stderr


@pytest.mark.slow
def test_a_person_answers_it_in_the_terminal(tmp_path: Path) -> None:
    with served(*DRAFTS) as model, Terminal(["chat", FILE], tmp_path, env={"MODEL": model.string}) as chat:
        chat.prompt()
        chat.enter("Write one sentence about Paris.")
        chat.prompt(ANSWER)
        for shown in ("writing a draft …", "? What shall I change?", "draft = Paris is big and old."):
            assert shown in chat.text
        chat.enter("Shorter, please.")
        chat.prompt(ANSWER)
        assert "draft = Paris is old." in chat.text
        chat.enter("")
        chat.until("done, 3 words")
        chat.prompt()
        assert chat.text.count("Paris is old.") == 2, "as a draft, and as the answer"
        chat.enter("/quit")
        assert chat.end() == 0


@pytest.mark.slow
def test_ctrl_c_in_its_question_cancels_and_the_next_message_is_taken(tmp_path: Path) -> None:
    with served(*DRAFTS) as model, Terminal(["chat", FILE], tmp_path, env={"MODEL": model.string}) as chat:
        chat.prompt()
        chat.enter("Write one sentence about Paris.")
        chat.prompt(ANSWER)
        chat.interrupt()
        chat.until("(cancelled)")
        chat.prompt()
        chat.enter("Write it anew.")
        chat.prompt(ANSWER)
        assert "draft = Paris is old." in chat.text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_local_model_writes_and_changes(tmp_path: Path) -> None:
    with Terminal(["chat", FILE], tmp_path) as chat:
        chat.prompt()
        chat.enter("Write one sentence about Paris.")
        chat.prompt(ANSWER, limit_s=MODEL_S)
        assert "draft = Paris" in chat.text
        chat.enter("Make it shorter.")
        chat.prompt(ANSWER, limit_s=MODEL_S)
        chat.enter("")
        chat.until("done, ")
        chat.prompt()
        chat.enter("/quit")
        assert chat.end() == 0
