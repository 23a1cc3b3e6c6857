"""From what a user names on the command line to the definitions it holds."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ownloop.agent import Agent
from ownloop.core.agent_base import AgentBase
from ownloop.errors import ConfigError, OwnloopError
from ownloop.runtime.foreign import ForeignAgent
from ownloop.runtime.host import AnyDefinition


def load_agent(where: str) -> AnyDefinition:
    """Return the agent that `where` names: `path.py`, `path.py:name`, `module` or `module:name`.

    Raises:
        ConfigError: there is no such file, it does not run, or it holds no agent; or several, and no name was given.
    """
    place, _, name = where.partition(":")
    module = _load_file(Path(place)) if place.endswith(".py") or "/" in place else _load_module(place)
    if name:
        if not hasattr(module, name):
            raise ConfigError(f"{place} has no {name!r}; it has: {_listed(module) or 'no agent'}")
        found = _definition(getattr(module, name))
        if found is None:
            raise ConfigError(f"{where} is a {type(getattr(module, name)).__name__}, not an Agent or an AgentBase class")
        return found
    agents = _agents(module)
    if not agents:
        raise ConfigError(f"{place} holds no agent: define one at its top level, agent = Agent(…)")
    if len(agents) > 1:
        raise ConfigError(f"{place} holds several agents; name one: {_listed(module)}")
    return next(iter(agents.values()))


def _load_file(path: Path) -> ModuleType:
    if not path.exists():
        raise ConfigError(f"there is no file {str(path)!r}")
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder; name the Python file with the agent in it")
    spec = importlib.util.spec_from_file_location(f"ownloop_agent_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is no Python file (it should end in .py)")
    module = importlib.util.module_from_spec(spec)
    # Annotations of its tools are looked up by the module's name, and its neighbours are imported as in `python file.py`.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise _not_loaded(str(path), error) from error
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise _not_loaded(name, error) from error
        raise ConfigError(f"there is no module {name!r}, and no file {name + '.py'!r} was named") from error
    except BaseException as error:
        raise _not_loaded(name, error) from error


def _not_loaded(place: str, error: BaseException) -> Exception:
    if isinstance(error, OwnloopError):
        return ConfigError(f"{place}: {error}")
    if isinstance(error, SyntaxError):
        return ConfigError(f"{place}, line {error.lineno}: {error.msg}")
    if isinstance(error, KeyboardInterrupt):
        raise error
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    at = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else place
    return ConfigError(f"{place} could not be run: {type(error).__name__}: {error} ({at})")


def _agents(module: ModuleType) -> dict[str, AnyDefinition]:
    found: dict[str, AnyDefinition] = {}
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ != module.__name__:
            continue  # a class that was only imported
        definition = _definition(value)
        if definition is not None and not name.startswith("_"):
            found[name] = definition
    return found


def _definition(value: object) -> AnyDefinition | None:
    if isinstance(value, Agent):
        return value
    if isinstance(value, type) and issubclass(value, AgentBase) and not value.__abstractmethods__:
        return ForeignAgent(value.__name__, value)
    return None


def _listed(module: ModuleType) -> str:
    return ", ".join(_agents(module))
