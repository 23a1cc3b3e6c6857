"""The public names of ownloop, found lazily (PEP 562): importing the root costs next to nothing.

For users only; nobody inside the package imports from here. The list, the table and the imports for type checkers
name the same things; tests/meta/test_public_names.py holds them together.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ownloop._version import __version__

if TYPE_CHECKING:
    from ownloop.agent import Agent, open_store
    from ownloop.backends.anthropic import ClaudeBackend
    from ownloop.backends.huggingface import QwenHFBackend
    from ownloop.backends.local import LocalBackend
    from ownloop.backends.openai_compatible import LiveQwenBackend, OpenAICompatibleBackend
    from ownloop.backends.openai_responses import OpenAIResponsesBackend
    from ownloop.backends.scripted import ScriptedBackend
    from ownloop.core.agent_base import AgentBase, AgentInteraction, AgentInteractionRequest, EnvVar
    from ownloop.core.backend import AgentTurn, Backend, ModelSettings, ToolCall
    from ownloop.core.events import Limits
    from ownloop.core.operations import RunResult
    from ownloop.core.policy import Policy
    from ownloop.core.ports import Hooks, ToolContext
    from ownloop.errors import OwnloopError
    from ownloop.runtime.agent_loop import AgentLoop
    from ownloop.runtime.host import open_host
    from ownloop.service import Service
    from ownloop.store.memory import MemoryStore
    from ownloop.store.sqlite import SQLiteStore
    from ownloop.tools.decorator import ToolRetry, tool
    from ownloop.tools.image import Image

__all__ = [
    "Agent",
    "AgentBase",
    "AgentInteraction",
    "AgentInteractionRequest",
    "AgentLoop",
    "AgentTurn",
    "Backend",
    "ClaudeBackend",
    "EnvVar",
    "Hooks",
    "Image",
    "Limits",
    "LiveQwenBackend",
    "LocalBackend",
    "MemoryStore",
    "ModelSettings",
    "OpenAICompatibleBackend",
    "OpenAIResponsesBackend",
    "OwnloopError",
    "Policy",
    "QwenHFBackend",
    "RunResult",
    "SQLiteStore",
    "ScriptedBackend",
    "Service",
    "ToolCall",
    "ToolContext",
    "ToolRetry",
    "__version__",
    "open_host",
    "open_store",
    "tool",
]

_MODULE_OF = {
    "Agent": "ownloop.agent",
    "AgentBase": "ownloop.core.agent_base",
    "AgentInteraction": "ownloop.core.agent_base",
    "AgentInteractionRequest": "ownloop.core.agent_base",
    "AgentLoop": "ownloop.runtime.agent_loop",
    "AgentTurn": "ownloop.core.backend",
    "Backend": "ownloop.core.backend",
    "ClaudeBackend": "ownloop.backends.anthropic",
    "EnvVar": "ownloop.core.agent_base",
    "Hooks": "ownloop.core.ports",
    "Image": "ownloop.tools.image",
    "Limits": "ownloop.core.events",
    "LiveQwenBackend": "ownloop.backends.openai_compatible",
    "LocalBackend": "ownloop.backends.local",
    "MemoryStore": "ownloop.store.memory",
    "ModelSettings": "ownloop.core.backend",
    "OpenAICompatibleBackend": "ownloop.backends.openai_compatible",
    "OpenAIResponsesBackend": "ownloop.backends.openai_responses",
    "OwnloopError": "ownloop.errors",
    "Policy": "ownloop.core.policy",
    "QwenHFBackend": "ownloop.backends.huggingface",
    "RunResult": "ownloop.core.operations",
    "SQLiteStore": "ownloop.store.sqlite",
    "ScriptedBackend": "ownloop.backends.scripted",
    "Service": "ownloop.service",
    "ToolCall": "ownloop.core.backend",
    "ToolContext": "ownloop.core.ports",
    "ToolRetry": "ownloop.tools.decorator",
    "open_host": "ownloop.runtime.host",
    "open_store": "ownloop.agent",
    "tool": "ownloop.tools.decorator",
}


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'ownloop' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value  # found once; later look-ups no longer come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
