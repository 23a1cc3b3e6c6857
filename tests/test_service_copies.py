"""Fork, export and import through the service."""

import asyncio
import json
from typing import Any

import pytest

from ownloop.agent import Agent
from ownloop.backends.scripted import ScriptedBackend, call, say
from ownloop.core.events import InteractionResolved, ToolStarted
from ownloop.core.operations import Accepted
from ownloop.core.ports import Filter
from ownloop.errors import InvalidRequestError
from ownloop.tools.decorator import tool
from ownloop.tools.image import Image

PIXEL = b"\x89PNG\r\n\x1a\n" + b"\0" * 24


def an_agent(name: str = "desk", effects: list[str] | None = None) -> Agent:
    @tool(approval="ask")
    def send(text: str) -> str:
        """Send it."""
        if effects is not None:
            effects.append(text)
        return f"Sent {text}."

    @tool
    def picture() -> Image:
        """Show a picture."""
        return Image(PIXEL, media_type="image/png")

    script = [call("picture", {}), call("send", {"text": "one"}), say("Done."), say("And again.")]
    return Agent(name, model=ScriptedBackend(script), tools=[send, picture])


async def test_a_fork_asks_anew_and_leaves_the_original_alone() -> None:
    effects: list[str] = []
    async with an_agent(effects=effects).open() as agent:
        first = await agent.run("Send one.")
        [asked] = first.requests
        child = await agent.service.fork(first.session_id)
        await agent.host.rested(child.session_id)
        [again] = await agent.service.requests(Filter(session_id=child.session_id, state="open"))
        assert again.request_id != asked.request_id
        assert again.data == asked.data

        done = await agent.resume(first, {asked.request_id: True})
        assert (done.outcome, effects) == ("completed", ["one"])
        [still] = await agent.service.requests(Filter(session_id=child.session_id, state="open"))
        assert still.request_id == again.request_id

        await agent.service.answer(child.session_id, again.request_id, {"approved": True})
        live = (await agent.service.session(child.session_id)).live_run_id
        forked = await agent.service.wait(Accepted(child.session_id, "", live or again.run_id or ""))
        assert (forked.outcome, effects) == ("completed", ["one", "one"])  # a new effect, by a new answer


async def test_a_fork_at_an_earlier_fact_goes_another_way() -> None:
    async with an_agent().open() as agent:
        first = await agent.run("Send one.")
        [asked] = first.requests
        done = await agent.resume(first, {asked.request_id: {"approved": False}})
        assert done.outcome == "completed"
        facts, _ = await agent.service.read_events(first.session_id)
        denial = next(f.seq for f in facts if isinstance(f.body, InteractionResolved))
        child = await agent.service.fork(first.session_id, denial - 1)
        await agent.host.rested(child.session_id)
        [again] = await agent.service.requests(Filter(session_id=child.session_id, state="open"))
        await agent.service.answer(child.session_id, again.request_id, {"approved": True})
        await agent.host.rested(child.session_id)
        branch, _ = await agent.service.read_events(child.session_id)
        assert [f.seq for f in branch] == list(range(1, len(branch) + 1))
        assert sum(isinstance(f.body, ToolStarted) for f in branch) == 2
        assert (await agent.service.read_events(first.session_id))[0] == facts


async def an_export() -> dict[str, Any]:
    async with an_agent().open() as agent:
        first = await agent.run("Send one.")
        await agent.service.set_title(first.session_id, "Parcels")
        return json.loads(json.dumps(await agent.service.export(first.session_id)))


async def test_an_import_reads_on_and_starts_nothing() -> None:
    exported = await an_export()
    effects: list[str] = []
    async with an_agent("other", effects).open() as agent:
        copy = await agent.service.import_("other", exported)
        assert (copy.agent, copy.title, copy.live_run_id) == ("other", "Parcels", None)
        assert await agent.service.requests(Filter(session_id=copy.session_id, state="open")) == []
        assert effects == []
        [digest] = exported["blobs"]
        assert await agent.service.get_blob(digest) == ("image/png", PIXEL)
        result = await agent.run("Go on.", session_id=copy.session_id)
        assert (result.outcome, result.text) == ("completed", "Done.")  # the script goes on after two responses
        assert effects == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda e: e.pop("format"), "'format' is a required property"),
        (lambda e: e.update(version=9), "version"),
        (lambda e: e["facts"].pop(2), "gap"),
        (lambda e: e["facts"][3].update(kind="spell"), "newer ownloop"),
        (lambda e: e["facts"][0]["body"].update(agent=7), "does not fit its schema"),
        (lambda e: e["blobs"].update({"0" * 64: {"media_type": "image/png", "base64": "AAAA"}}), "digest"),
    ],
)
def test_a_damaged_export_is_refused(damage: Any, words: str) -> None:
    async def scene() -> None:
        exported = await an_export()
        damage(exported)
        async with an_agent().open() as agent:
            with pytest.raises(InvalidRequestError, match=words):
                await agent.service.import_("desk", exported)
            assert await agent.service.sessions() == [] or len(await agent.service.sessions()) == 0

    asyncio.run(scene())
