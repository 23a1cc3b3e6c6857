"""Where the terminal keeps its sessions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ownloop.agent import open_store
from ownloop.core.ports import Store
from ownloop.errors import ConfigError


def data_folder() -> Path:
    """Return the user's data folder for ownloop, by the platform's custom."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "ownloop"
    # The XDG rules want an absolute path and call anything else void.
    named = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".local" / "share") / "ownloop"


def store_place(named: str | None) -> str:
    """Return where sessions are kept: `--store`, else OWNLOOP_STORE, else a file in the user's data folder."""
    return named or os.environ.get("OWNLOOP_STORE") or str(data_folder() / "sessions.db")


def store_at(place: str) -> Store:
    """Return the store at a place, closed. Raises ConfigError for what cannot be a file."""
    if not Path(place).name:
        raise ConfigError(f"the store {place!r} is a folder; give the path of a file in it")
    return open_store(place)


def is_there(place: str) -> bool:
    """Whether anything was ever kept at a place. Raises ConfigError if that cannot be seen."""
    try:
        return Path(place).expanduser().exists()
    except OSError as error:
        raise ConfigError(f"the store {place!r} cannot be opened ({error.strerror}); use another") from error


def shown(place: str) -> str:
    """Return a place as a person reads it: `~` for the home folder."""
    path = Path(place)
    if path.is_relative_to(Path.home()):
        return str(Path("~") / path.relative_to(Path.home()))
    return "memory, as long as this program runs" if place == "memory" else place
