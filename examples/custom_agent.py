"""An agent written by hand: it writes a text, and changes it until the person who reads it is content.

    ownloop chat examples/custom_agent.py                              # say: Write one sentence about Paris.
    MODEL=openai:gpt-5 ownloop chat examples/custom_agent.py           # a real model, by one word

`AgentBase` is all that a host asks of an agent: it is created, it is told something, it is stopped. What it logs is
shown and kept; what it asks is put to a person. When and how often it calls a model is its own affair: there is no loop
of ours in it. One instance serves one session and lives in one process: if that dies, the text is begun anew.
"""

import asyncio
import os
from typing import Any
from uuid import uuid4

from ownloop import AgentBase, AgentInteraction, AgentInteractionRequest
from ownloop.backends.base import AdapterBackend
from ownloop.backends.models import open_model
from ownloop.core.agent_base import OnInteractionRequest, OnLogs


class Writer(AgentBase):
    """Writes what it is told to write. Each message is a new text; earlier ones are remembered."""

    def __init__(self, on_logs: OnLogs, on_interaction_request: OnInteractionRequest) -> None:
        self.log = on_logs
        self.request = on_interaction_request
        self.model = AdapterBackend(
            open_model(os.environ.get("MODEL", "local")), system_prompt="You write short texts."
        )
        self.answers: dict[str, asyncio.Future[Any]] = {}

    @classmethod
    async def create(cls, config: Any, on_logs: OnLogs, on_interaction_request: OnInteractionRequest) -> "Writer":
        return cls(on_logs, on_interaction_request)

    async def interaction(self, interaction: AgentInteraction) -> Any:
        """Take a message, or with an id the answer to a question of ours; that one arrives while `write` waits."""
        if interaction.interaction_id is None:
            return await self.write(interaction.data)
        self.answers.pop(interaction.interaction_id).set_result(interaction.data)
        return None

    async def write(self, order: str) -> str:
        """Return a text that the person is content with."""
        self.model.add_user_message(order)
        while True:
            await self.log(["writing a draft …"])
            draft = "\n".join((await self.model.next_turn([])).text_blocks)
            change = await self.ask("What shall I change?", draft)
            if not change:
                await self.log([f"done, {len(draft.split())} words"])
                return draft
            self.model.add_user_message(change)

    async def ask(self, question: str, draft: str) -> str | None:
        """Return a person's answer, None for none. However long it takes: nothing here counts the time."""
        id = f"review-{uuid4().hex}"
        self.answers[id] = answer = asyncio.get_running_loop().create_future()
        data = {"question": question, "draft": draft}
        await self.request(AgentInteractionRequest(interaction_id=id, type="review", data=data))
        said = await answer
        return None if said is None else str(said)  # what is typed may be JSON, a number say

    async def stop(self) -> None:
        await self.model.aclose()
