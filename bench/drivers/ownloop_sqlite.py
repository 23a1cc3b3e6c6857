"""ownloop with its sessions in a SQLite file: every fact is on the disk before anything follows from it."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.drivers import Run, ownloop

NAME = "ownloop, SQLite"
ENVIRONMENT = ownloop.ENVIRONMENT
PACKAGES = ownloop.PACKAGES
IMPORTS = ownloop.IMPORTS


@asynccontextmanager
async def opened(base_url: str, model: str) -> AsyncGenerator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        async with ownloop.opened(base_url, model, Path(folder) / "bench.db") as run:
            yield run
