"""AgentBase: the contract of a deployable agent. The host serves any class that implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict


class EnvVar(BaseModel):
    """One variable of the environment an agent asked for with `get_envs`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    value: str


class AgentInteraction(BaseModel):
    """What reaches an agent from outside: a message, or with `interaction_id` the answer to one of its requests."""

    interaction_id: str | None = None
    type: str
    data: Any


class AgentInteractionRequest(BaseModel):
    """What an agent asks of a person."""

    interaction_id: str
    type: str
    data: Any = None


OnLogs: TypeAlias = Callable[[list[Any]], Coroutine[Any, Any, None]]
OnInteractionRequest: TypeAlias = Callable[[AgentInteractionRequest], Coroutine[Any, Any, None]]
GetEnvs: TypeAlias = Callable[[], Coroutine[Any, Any, list[EnvVar]]]


class AgentBase(ABC):
    """An agent that a host creates, talks to and stops.

    The host awaits the callbacks' journaling: when `await on_logs(...)` or `await on_interaction_request(...)` returns,
    what was said is committed. One instance serves one session. `interaction` without an id is one run, and its return
    value, which must be JSON, the run's result; with an id it delivers the answer to an earlier request, possibly while
    another `interaction` is still awaited. A class may also define `restore(config, on_logs, on_interaction_request,
    notes)` (a classmethod coroutine): then an idle instance may be evicted and made again from its notes.
    """

    @classmethod
    @abstractmethod
    async def create(cls, config: Any, on_logs: OnLogs, on_interaction_request: OnInteractionRequest) -> AgentBase:
        """Create an agent without starting work; gets `get_envs=` too if the signature has it."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop and free what the instance holds. Called once."""

    @abstractmethod
    async def interaction(self, interaction: AgentInteraction) -> Any:
        """Handle one interaction."""
