"""What every part of the runtime works with: the ports of one process, in one value."""

from __future__ import annotations

from dataclasses import dataclass

from ownloop.core.ports import Clock, Ids, Secrets, Store, Threads
from ownloop.runtime.hub import Hub


@dataclass(frozen=True, slots=True)
class Environment:
    store: Store
    hub: Hub
    clock: Clock
    ids: Ids
    threads: Threads
    secrets: Secrets
    worker_id: str
