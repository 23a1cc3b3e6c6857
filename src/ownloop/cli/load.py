"""From what a user names on the command line to the definitions it holds."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import cast

from ownloop.agent import Agent
from ownloop.core.agent_base import AgentBase
from ownloop.core.backend import Backend
from ownloop.errors import ConfigError, OwnloopError
from ownloop.runtime.foreign import ForeignAgent
from ownloop.runtime.host import AnyDefinition


def load_agent(where: str) -> AnyDefinition:
    """Return the agent that `where` names: `path.py`, `path.py:name`, `module` or `module:name`.

    `name` is a variable or class at the top level, or else the name of an agent there.

    Raises:
        ConfigError: there is no such file, it does not run, or it holds no agent; or several, and no name was given.
    """
    place, name = split(where)
    module = _load_file(Path(place)) if place.endswith(".py") or "/" in place else _load_module(place)
    agents = _agents(module)
    if name:
        return _named(module, agents, place, name)
    if not agents:
        raise ConfigError(f"{place} {_no_agent(module)}")
    if len(agents) > 1:
        names = ", ".join(f"{place}:{name}" for name in agents)
        raise ConfigError(f"{place} holds several agents; name one: {names}")
    return next(iter(agents.values()))


def split(where: str) -> tuple[str, str]:
    """Return the file or module, and the name of the agent in it ("": none was given). Paths may hold colons."""
    place, colon, name = where.rpartition(":")
    return (place, name) if colon and "/" not in name and not Path(where).exists() else (where, "")


def _named(module: ModuleType, agents: dict[str, AnyDefinition], place: str, name: str) -> AnyDefinition:
    there = f"; the agents in it: {', '.join(agents)}" if agents else ""
    if hasattr(module, name):
        value = getattr(module, name)
        definition = _definition(value)
        if definition is None:
            raise ConfigError(f"{place}:{name} is {_what_it_is(value)}{there}")
        return definition
    called_so = [agent for agent in agents.values() if agent.name == name]
    if len(called_so) != 1:
        raise ConfigError(f"{place} has no {name!r}{there or f'; it {_no_agent(module)}'}")
    return called_so[0]


def _no_agent(module: ModuleType) -> str:
    """Say that there is none, and what there is that could become one."""
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__ and issubclass(value, AgentBase | Backend):
            return f"holds no agent; {name} in it is {_what_class_it_is(value)}"
    return 'holds no agent; define one at its top level: agent = Agent("name", model="local")'


def _what_it_is(value: object) -> str:
    """Say what something is that is no agent, and how an agent is made of it."""
    if isinstance(value, type):
        return _what_class_it_is(cast("type[object]", value))
    kind = type(value).__name__
    if isinstance(value, AgentBase):
        return f"an instance of {kind}; name the class: each session gets an instance of its own"
    if isinstance(value, Backend) or hasattr(value, "provider"):
        return f'a model ({kind}), not an agent; give it to one: agent = Agent("name", model=…)'
    if callable(value):
        return "a function, not an agent; if it makes one, call it at the top level: agent = make()"
    return f"of type {kind!r}, not an Agent or an AgentBase class"


def _what_class_it_is(value: type[object]) -> str:
    if issubclass(value, AgentBase):
        missing = ", ".join(sorted(value.__abstractmethods__))
        return f"an AgentBase class without {missing}; define what is missing"
    if issubclass(value, Backend):
        return f'a Backend class, which is a model; give it to an agent: agent = Agent("name", model={value.__name__})'
    return f"a class ({value.__name__}), not an Agent; let it inherit from ownloop.AgentBase, if it has its methods"


def _load_file(path: Path) -> ModuleType:
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; name the Python file with the agent in it")
    if not path.exists():
        raise ConfigError(f"there is no file {str(path)!r}{_meant(path)}")
    spec = importlib.util.spec_from_file_location(f"ownloop_agent_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is no Python file; its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    # Annotations of its tools are looked up by the module's name; its neighbours are imported as in `python file.py`.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # the user's code may raise anything, SystemExit too
        raise _not_loaded(str(path), error) from error
    return module


def _meant(path: Path) -> str:
    """Return a hint at the file that may be meant."""
    try:
        near = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=1)
    except OSError:
        near = []
    return f"; did you mean {str(path.with_name(near[0]))!r}?" if near else ""


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _not_loaded(name, error) from error
        file = f"{name}.py"
        raise ConfigError(f"there is no module {name!r} here, and no file {file!r}{_meant(Path(file))}") from error
    except BaseException as error:  # the user's code may raise anything, SystemExit too
        raise _not_loaded(name, error) from error


def _not_loaded(place: str, error: BaseException) -> Exception:
    """Return what to say of an error in the user's own file: what, and in which line of it."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, SyntaxError):
        return ConfigError(f"{error.filename or place}, line {error.lineno}: {error.msg}")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    own = [frame for frame in frames if Path(frame.filename).name == Path(place).name] or frames
    line = f", line {own[-1].lineno}" if own else ""
    if isinstance(error, OwnloopError):
        return ConfigError(f"{place}{line}: {error}")
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = _GUARD if isinstance(error, RuntimeError) and "event loop" in str(error) else ""
    return ConfigError(f"{place}{line}: it could not be run, {words}{hint}")


_GUARD = '; what only a program of its own should do belongs under: if __name__ == "__main__":'


def _agents(module: ModuleType) -> dict[str, AnyDefinition]:
    """Return the agents at a module's top level by their names there, each once."""
    found: dict[str, AnyDefinition] = {}
    seen: list[object] = []
    for name, value in vars(module).items():
        if name.startswith("_") or any(value is other for other in seen):
            continue
        if isinstance(value, type) and value.__module__ != module.__name__:
            continue  # a class that was only imported
        definition = _definition(value)
        if definition is not None:
            found[name] = definition
            seen.append(value)
    return found


def _definition(value: object) -> AnyDefinition | None:
    if isinstance(value, Agent):
        return value
    if isinstance(value, type) and issubclass(value, AgentBase) and not value.__abstractmethods__:
        return ForeignAgent(value.__name__, value)
    return None
