"""`agent.base`: a declarative agent as an `AgentBase` class, for embedding in other people's hosts.

Inside our own host a definition runs without an instance; this class is for hosts that know only the contract. Each
instance has a session of its own, in memory.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, ClassVar

from ownloop.core.agent_base import AgentBase, AgentInteraction, AgentInteractionRequest, OnInteractionRequest, OnLogs
from ownloop.core.cursor import Cursor
from ownloop.core.events import Fact, InteractionRequested, RunEnded
from ownloop.errors import InvalidRequestError
from ownloop.projections.native import encode
from ownloop.runtime.host import AnyDefinition, Host, open_host
from ownloop.service import Service
from ownloop.store.memory import MemoryStore


class EmbeddedAgent(AgentBase):
    """Runs one definition; subclasses made by `base_of` name it."""

    definition: ClassVar[AnyDefinition]

    def __init__(self, on_logs: OnLogs, on_interaction_request: OnInteractionRequest) -> None:
        self._on_logs = on_logs
        self._on_interaction_request = on_interaction_request
        self._stack = AsyncExitStack()
        self._service: Service | None = None
        self._session_id = ""

    @classmethod
    async def create(cls, config: Any, on_logs: OnLogs, on_interaction_request: OnInteractionRequest) -> EmbeddedAgent:
        """Open a session with `config`. Raises ConfigError and InvalidRequestError."""
        agent = cls(on_logs, on_interaction_request)
        hosting: AbstractAsyncContextManager[Host] = open_host(MemoryStore(), [cls.definition])
        try:
            agent._service = Service(await agent._stack.enter_async_context(hosting))
            agent._session_id = (await agent._service.create_session(config=config or {})).session_id
        except BaseException:
            await agent._stack.aclose()
            raise
        return agent

    async def interaction(self, interaction: AgentInteraction) -> Any:
        """Run one message to its end and return the result; with an id, answer a request.

        Facts go to `on_logs` as they happen, requests to `on_interaction_request`; while a request is open, the call
        for its message goes on. Cancelling the call cancels the run. Raises RuntimeError if the run does not end
        completed.
        """
        service = self._opened()
        if interaction.interaction_id is not None:
            await service.answer(self._session_id, interaction.interaction_id, interaction.data)
            return None
        head = (await service.session(self._session_id)).head_seq
        accepted = await service.interact(self._session_id, interaction.type, interaction.data)
        run_id = accepted.run_id or ""
        try:
            ended = await self._follow(service, run_id, head)
        except BaseException:
            # Who gives up on the call, or cannot hear of it, has no other way to end the run.
            if self._service is not None:
                await service.cancel(run_id=run_id, session_id=self._session_id)
            raise
        if ended is None:
            raise RuntimeError("the session was closed before the run ended")
        if ended.outcome != "completed":
            raise RuntimeError(f"the run ended {ended.outcome}" + (f": {ended.error.message}" if ended.error else ""))
        return ended.result

    async def _follow(self, service: Service, run_id: str, head: int) -> RunEnded | None:
        """Tell the other host what happens in a run, and return how it ended."""
        async with service.subscribe(self._session_id, str(Cursor(head)), run_id=run_id) as frames:
            async for frame in frames:
                if not isinstance(frame.event, Fact):
                    continue
                await self._on_logs([encode(frame.event)])
                body = frame.event.body
                if isinstance(body, InteractionRequested):
                    await self._on_interaction_request(
                        AgentInteractionRequest(
                            interaction_id=body.request_id,
                            type=body.purpose,
                            data={"request": body.data, "schema": body.schema},
                        )
                    )
                elif isinstance(body, RunEnded) and frame.event.run_id == run_id:
                    return body
        return None

    async def stop(self) -> None:
        """Close the session and free the model."""
        if self._service is not None:
            await self._service.stop(self._session_id)
            self._service = None
            await self._stack.aclose()

    def _opened(self) -> Service:
        if self._service is None:
            raise InvalidRequestError("this agent was stopped")
        return self._service


def base_of(definition: AnyDefinition) -> type[EmbeddedAgent]:
    """Return the AgentBase class of a definition."""
    name = "".join(part.capitalize() for part in definition.name.replace("-", "_").split("_"))
    return type(name, (EmbeddedAgent,), {"definition": definition, "__doc__": f"The agent {definition.name!r}."})
