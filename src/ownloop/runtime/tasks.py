"""The end of tasks that may not want to end: a tool or an agent that swallows its cancellation. For the runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from ownloop.core.ports import Clock

logger = logging.getLogger(__name__)

TRIES = 5
TRY_MS = 1000


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], clock: Clock) -> None:
    """Cancel tasks and wait for their end; who swallows it is cancelled again, and in the end left and named."""
    left = {task for task in tasks if not task.done()}
    for _ in range(TRIES):
        if not left:
            return
        for task in left:
            task.cancel()
        limit = asyncio.create_task(clock.sleep_until(clock.now_ms() + TRY_MS))
        try:
            while left and not limit.done():
                done, _ = await asyncio.wait({limit, *left}, return_when=asyncio.FIRST_COMPLETED)
                left -= done
        finally:
            limit.cancel()
            await asyncio.gather(limit, return_exceptions=True)
    for task in left:
        logger.error("task %r does not end when it is cancelled; it is left alone", task.get_name())
