"""The systems under test, one module each. All do the same: streaming runs with a tool, on the OpenAI wire.

A driver is imported twice: by who runs the rounds, for its constants, and by the worker inside the driver's own
environment. So it imports its runtime only in `opened`.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast

OnText: TypeAlias = Callable[[str], object]
Run: TypeAlias = Callable[[OnText], Awaitable[object]]
"""Do one fresh conversation that begins with a person's "go", and hand over the answer's text piece by piece."""

STANDARD: Final = ("raw_aiohttp", "sdk_bytes", "ownloop", "ownloop_sqlite", "agno", "openai_agents", "pydantic_ai")
"""Shown in this order; the first is what the ratios are to."""
ALL: Final = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))

CHECKOUT: Final = "ownloop[openai]"
"""The package that is installed from this checkout."""

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
"""Of the one tool, `add`, for drivers that write it by hand."""


class Driver(Protocol):
    """What the module of a driver holds."""

    NAME: str
    """As it stands in the tables."""
    ENVIRONMENT: str
    """Name of its virtual environment; drivers may share one."""
    PACKAGES: Sequence[str]
    """What pip installs into it, pinned."""
    IMPORTS: str
    """The imports that a user writes."""

    def opened(self, base_url: str, model: str) -> AbstractAsyncContextManager[Run]:
        """Make an agent with one async tool, `add(a, b)`, as a server would keep it, and close it in the end."""
        ...


def load(name: str) -> Driver:
    """Raises ImportError for a name that is not in `ALL`."""
    return cast(Driver, import_module(f"bench.drivers.{name}"))
