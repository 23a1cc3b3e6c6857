import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext

import pytest

from bench.drivers import ALL, STANDARD, load
from bench.mock_provider import Provider, Wheel
from bench.report import table
from bench.rounds import Measured
from bench.worker import CASES, Figures, Job

HERE = ["raw_aiohttp", "sdk_bytes", "ownloop", "ownloop_sqlite"]
"""Drivers that find in a developer's environment what they need; the others have only environments of their own."""


@asynccontextmanager
async def provider() -> AsyncGenerator[str]:
    wheels: dict[int, Wheel] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Provider(wheels), "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def measure(case: str, driver: str) -> Figures:
    async with provider() as base_url:
        job = Job(case, driver, base_url, deltas=40, reps=1, turns=[1, 3], streams=4, rate=20, seconds=2, profile=False)
        return await CASES[case](load(driver), job, nullcontext())


@pytest.mark.parametrize("driver", HERE)
@pytest.mark.parametrize(
    ("case", "figures"),
    [("burst", ["burst µs/delta", "a run ms"]), ("turns", ["1 turns ms/turn", "3 turns ms/turn", "3:1 ×"])],
)
async def test_a_driver_runs_the_tool_and_shows_every_delta(driver: str, case: str, figures: list[str]) -> None:
    assert list(await measure(case, driver)) == figures


@pytest.mark.slow
@pytest.mark.parametrize("driver", HERE)
async def test_deltas_that_come_alone_are_all_shown(driver: str) -> None:
    figures = await measure("paced", driver)
    assert figures["late p50 ms"] >= 0


async def test_a_delta_that_is_missing_ends_the_case() -> None:
    async with provider() as base_url:
        job = Job("burst", "", base_url, deltas=40, reps=1, turns=[], streams=1, rate=1, seconds=2, profile=False)
        with pytest.raises(SystemExit, match="20 deltas arrived, not 40"):
            await CASES["burst"](Deaf(), job, nullcontext())


class Deaf:
    """Drops every second delta."""

    NAME: str = "deaf"
    ENVIRONMENT: str = ""
    PACKAGES: Sequence[str] = ()
    IMPORTS: str = ""

    @asynccontextmanager
    async def opened(self, base_url: str, model: str):
        async with load("raw_aiohttp").opened(base_url, model) as run:
            seen = 0

            def half(text: str) -> str:
                nonlocal seen
                seen += 1
                return text if seen % 2 else ""

            yield lambda on_text: run(lambda text: on_text(half(text)))


@pytest.mark.parametrize("name", ALL)
def test_a_driver_says_what_it_needs_without_its_runtime(name: str) -> None:
    driver = load(name)
    assert driver.NAME
    assert driver.ENVIRONMENT
    assert all("==" in package for package in driver.PACKAGES) or name.startswith("ownloop")
    compile(driver.IMPORTS, name, "exec")


def test_the_standard_set_is_of_drivers_that_are_there() -> None:
    assert set(STANDARD) <= set(ALL)


def test_ratios_are_taken_within_a_round() -> None:
    costs = {"raw_aiohttp": [10.0, 20.0], "ownloop": [20.0, 60.0], "agno": [200.0, 480.0]}
    results = [
        Measured("burst", number, driver, {"burst µs/delta": cost, "3:1 ×": 1.5})
        for driver, rounds in costs.items()
        for number, cost in enumerate(rounds, 1)
    ]
    lines = [line.rstrip() for line in table(results, ["burst µs/delta", "3:1 ×", "a run ms"]).splitlines()]
    assert lines == [
        "                         burst       3:1     a run",
        "                      µs/delta         ×        ms",
        "",
        "raw aiohttp               15.0      1.50         -",
        "",
        "ownloop, memory           40.0      1.50         -",
        "  to raw aiohttp     2.5× ±20%",
        "",
        "agno                       340      1.50         -",
        "  to raw aiohttp       22× ±9%",
        "  to ownloop, memory 9.0× ±11%",
    ]
