"""Reads what an adapter says, for tests."""

from collections.abc import Sequence

import pytest

from ownloop.backends.transport import HttpAdapter
from ownloop.core.backend import ModelRequest, ModelSettings, Part, PartDelta
from ownloop.core.messages import Message, TextBlock
from ownloop.errors import ProviderError

ASK = ModelRequest("Be brief.", (Message("user", (TextBlock("Hi"),)),), (), ModelSettings())


async def parts_of(opened: HttpAdapter, request: ModelRequest = ASK) -> list[Part]:
    return [part for batch in await batches_of(opened, request) for part in batch]


async def batches_of(opened: HttpAdapter, request: ModelRequest = ASK) -> list[Sequence[Part]]:
    return [batch async for batch in opened.start(request)]


def words(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, PartDelta))


async def failure(opened: HttpAdapter, request: ModelRequest = ASK) -> tuple[ProviderError, str]:
    """Return how a response failed, and the text that was shown before."""
    seen: list[Part] = []

    async def read() -> None:
        async for batch in opened.start(request):
            seen.extend(batch)

    with pytest.raises(ProviderError) as caught:
        await read()
    return caught.value, words(seen)
