"""Where the terminal keeps its sessions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ownloop.agent import open_store
from ownloop.core.ports import Store


def data_folder() -> Path:
    """Return the user's data folder for ownloop, by the platform's custom."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "ownloop"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "ownloop"


def store_place(named: str | None) -> str:
    """Return where sessions are kept: `--store`, else OWNLOOP_STORE, else a file in the user's data folder."""
    return named or os.environ.get("OWNLOOP_STORE") or str(data_folder() / "sessions.db")


def store_at(place: str) -> Store:
    return open_store(place)
