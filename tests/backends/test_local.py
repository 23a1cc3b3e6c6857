import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ownloop.backends.llama_server import LlamaServer, LocalServerPool
from ownloop.backends.local import TINY_MAX_TOKENS, TINY_MODEL_NOTE, LocalAdapter, LocalBackend
from ownloop.core.backend import Finish, ModelRequest, ModelSettings, Part, PartDelta, UsageSeen
from ownloop.core.messages import Message, TextBlock, ToolCallBlock, ToolResultBlock
from ownloop.core.toolspec import ToolSpec
from ownloop.core.turn import TurnBuilder
from ownloop.errors import BackendUnavailableError, ConfigError

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def ask(text: str, *more: Message, tools: Sequence[ToolSpec] = (), **settings: Any) -> ModelRequest:
    return ModelRequest("", (Message("user", (TextBlock(text),)), *more), tools, ModelSettings(**settings))


def words(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, PartDelta))


# --- without a model ---


def test_the_tiny_model_is_tuned_and_no_forced_tool_choice_reaches_any_local_server() -> None:
    request = ask("Hi", extra={"tool_choice": "required", "seed": 1})
    tiny = LocalAdapter()._tuned(request).settings
    assert (tiny.temperature, tiny.max_tokens, tiny.extra) == (0.0, TINY_MAX_TOKENS, {"seed": 1})
    own = LocalAdapter("/models/big.gguf")._tuned(request).settings
    assert (own.temperature, own.max_tokens, own.extra) == (None, None, {"seed": 1})
    chosen = LocalAdapter()._tuned(ask("Hi", temperature=0.7, max_tokens=9)).settings
    assert (chosen.temperature, chosen.max_tokens) == (0.7, 9)


async def test_a_file_that_is_not_there_is_named_and_nothing_starts(tmp_path: Path) -> None:
    adapter = LocalAdapter(str(tmp_path / "no.gguf"))
    with pytest.raises(ConfigError, match=r"no\.gguf"):
        await adapter.warm_up()
    await adapter.aclose()


def test_a_person_is_told_how_small_the_model_is_and_what_to_write_for_another() -> None:
    assert "135-million" in TINY_MODEL_NOTE
    assert 'model="' in TINY_MODEL_NOTE


# --- with the tiny model ---


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalServerPool]:
    servers = LocalServerPool()
    yield servers
    asyncio.run(servers.aclose())


@asynccontextmanager
async def local(pool: LocalServerPool) -> AsyncGenerator[LocalAdapter]:
    adapter = LocalAdapter(servers=pool)
    try:
        yield adapter
    finally:
        await adapter.aclose()


async def parts_of(adapter: LocalAdapter, request: ModelRequest) -> list[Part]:
    return [part for batch in [b async for b in adapter.start(request)] for part in batch]


async def server_of(adapter: LocalAdapter) -> LlamaServer:
    return await adapter._server()


@pytest.mark.slow
async def test_it_answers_and_counts(pool: LocalServerPool) -> None:
    async with local(pool) as adapter:
        parts = await parts_of(adapter, ask("What is the capital of France?"))
    assert "Paris" in words(parts)
    assert len([part for part in parts if isinstance(part, PartDelta)]) > 3, "it streams"
    (usage,) = [part.usage for part in parts if isinstance(part, UsageSeen)]
    assert usage.output
    assert parts[-1] == Finish("end_turn", "stop")


@pytest.mark.slow
async def test_it_calls_a_tool_and_tells_the_result(pool: LocalServerPool) -> None:
    async with local(pool) as adapter:
        builder = TurnBuilder(1, lambda: "call_1")
        question = ask("What is the weather in Paris?", tools=[WEATHER])
        async for batch in adapter.start(question):
            builder.feed(batch)
        _, fact = builder.end(1)
        (call,) = [block for block in fact.blocks if isinstance(block, ToolCallBlock)]
        assert (call.name, call.input, fact.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")
        sentence = TextBlock("It is 18 degrees and sunny in Paris.")
        history = (
            *question.messages,
            Message("assistant", fact.blocks, provider=adapter.provider, model=adapter.model),
            Message("tool", (ToolResultBlock(call.call_id, call.name, (sentence,)),)),
        )
        answer = words(await parts_of(adapter, replace(question, messages=history)))
    assert "18 degrees" in answer


@pytest.mark.slow
async def test_the_output_limit_cuts_it(pool: LocalServerPool) -> None:
    async with local(pool) as adapter:
        parts = await parts_of(adapter, ask("Tell me a story.", max_tokens=5))
    assert parts[-1] == Finish("max_tokens", "length")


@pytest.mark.slow
async def test_a_forced_tool_choice_does_not_kill_it(pool: LocalServerPool) -> None:
    async with local(pool) as adapter:
        request = ask("Hello!", tools=[WEATHER], extra={"tool_choice": "required"})
        assert isinstance((await parts_of(adapter, request))[-1], Finish)


@pytest.mark.slow
async def test_cancelling_it_frees_its_slot(pool: LocalServerPool) -> None:
    async with local(pool) as adapter:
        long = ask("Tell me a long story.", max_tokens=3000)
        for _ in range(4):  # twice as many as there are slots: one that is not freed would hold up the rest
            stream = cast("Any", adapter.start(long))
            task = asyncio.create_task(anext(stream))
            await task
            await stream.aclose()
        assert words(await parts_of(adapter, ask("What is the capital of France?")))


@pytest.mark.slow
async def test_a_server_that_is_killed_in_mid_answer_gives_one_error_and_is_there_again(pool: LocalServerPool) -> None:
    async with local(pool) as adapter:
        server = await server_of(adapter)
        seen: list[Part] = []

        async def read() -> None:
            async for batch in adapter.start(ask("Tell me a long story.", max_tokens=3000)):
                if not seen:
                    os.kill(server.pid, signal.SIGKILL)
                seen.extend(batch)

        with pytest.raises(BackendUnavailableError, match="the local model server died"):
            await read()
        assert words(seen)
        assert "Paris" in words(await parts_of(adapter, ask("What is the capital of France?")))


@pytest.mark.slow
async def test_sessions_share_one_server(pool: LocalServerPool) -> None:
    async with local(pool) as first, local(pool) as second:
        assert (await server_of(first)).pid == (await server_of(second)).pid


@pytest.mark.slow
async def test_closing_an_adapter_stops_its_own_server_and_the_next_use_starts_one() -> None:
    backend = LocalBackend()
    adapter = backend.adapter
    assert isinstance(adapter, LocalAdapter)
    pids: list[int] = []
    for _ in range(2):
        await adapter.warm_up()
        pids.append((await server_of(adapter)).pid)
        await backend.aclose()
        with pytest.raises(ProcessLookupError):
            os.kill(pids[-1], 0)
    assert pids[0] != pids[1]
