"""Which file each agent was loaded from last, so that a session can be gone on with by its id alone.

A small JSON file beside the store. It is a convenience: what cannot be written is not remembered, and what is no longer
as it was is said, with what to type instead.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from ownloop.cli.load import split


@dataclass(frozen=True, slots=True)
class AgentFile:
    """Where an agent is, as a user named it in a folder."""

    where: str
    folder: str

    @property
    def file(self) -> Path | None:
        """The file; None if a module is named."""
        place, _ = split(self.where)
        return Path(self.folder, place) if place.endswith(".py") or "/" in place else None

    @property
    def from_here(self) -> str:
        """How to name it in the folder that the program runs in."""
        if self.file is None or Path(self.folder) == Path.cwd():
            return self.where
        _, name = split(self.where)
        return f"{self.file}:{name}" if name else str(self.file)


def remember(store: str, agent: str, where: str) -> None:
    """Note that an agent of the sessions in `store` was loaded from `where`."""
    if store == "memory":
        return
    known = _read(store)
    known[agent] = asdict(AgentFile(where, str(Path.cwd())))
    file = _file(store)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        new.touch(mode=0o600)
        new.write_text(json.dumps(known, indent=1))
        new.replace(file)
    except OSError:
        new.unlink(missing_ok=True)


def remembered(store: str, agent: str) -> AgentFile | None:
    """Return where an agent was loaded from last, if that is known."""
    entry = _read(store).get(agent)
    try:
        return AgentFile(str(entry["where"]), str(entry["folder"])) if entry is not None else None
    except (KeyError, TypeError):
        return None


def _read(store: str) -> dict[str, Any]:
    try:
        found = json.loads(_file(store).read_bytes())
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _file(store: str) -> Path:
    path = Path(store).expanduser()
    return path.with_name(path.name + ".agents.json")
