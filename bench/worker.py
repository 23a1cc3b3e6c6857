"""Run one case on one driver, inside that driver's own environment: `python -m bench.worker JOB`, a `Job` as JSON.

Prints its figures as one JSON object on the last line. Standard library only. The name of a figure ends with its unit.
Every cost is CPU time, user and system, of the whole process: so it counts what event loop, HTTP client and kernel
take, and hardly moves when the machine is busy with other things.
"""

import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from bench.drivers import Driver, Run, load
from bench.sampler import Sampler

Figures: TypeAlias = dict[str, float]
Looking: TypeAlias = AbstractContextManager[object]
"""A sampler, or nothing, around what is measured."""

OPENING_S, SETTLING_S = 1.0, 0.5
"""Paced streams are opened one after the other in this time; after that long the last of them has begun."""

cpu_s = time.process_time


@dataclass(frozen=True, slots=True)
class Job:
    case: str
    driver: str
    base_url: str
    deltas: int
    reps: int
    turns: list[int]
    streams: int
    rate: int
    seconds: int
    profile: bool


def resident_mb() -> float:
    """Return the memory that this process has now; 0 where there is no /proc."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def one(run: Run, expected: int, looking: Looking = nullcontext()) -> float:  # noqa: B008  # it holds nothing
    """Do a whole run and return its CPU seconds, having checked that every delta arrived."""
    gc.collect()
    seen = 0

    def on_text(text: str) -> None:
        nonlocal seen
        seen += text.count("T")

    with looking:
        began = cpu_s()
        await run(on_text)
        used = cpu_s() - began
    if seen != expected:
        raise SystemExit(f"{seen} deltas arrived, not {expected}")
    return used


async def burst(driver: Driver, job: Job, looking: Looking) -> Figures:
    """A delta, as the slope between a long and a short answer; and what a run costs beside its deltas."""
    short: list[float] = []
    long: list[float] = []
    async with (
        driver.opened(job.base_url, "text-1") as ask_short,
        driver.opened(job.base_url, f"text-{job.deltas}") as ask_long,
    ):
        await one(ask_long, job.deltas)
        await one(ask_short, 1)
        for _ in range(job.reps):
            short.append(await one(ask_short, 1, looking))
            long.append(await one(ask_long, job.deltas, looking))
    a_delta = (min(long) - min(short)) / (job.deltas - 1)
    return {"burst µs/delta": a_delta * 1e6, "a run ms": min(short) * 1e3}


async def turns(driver: Driver, job: Job, looking: Looking) -> Figures:
    """A turn of a loop that calls a trivial tool on each, at several lengths."""
    async with driver.opened(job.base_url, "tools-3-5") as run:
        await one(run, 5)
    out: Figures = {}
    for count in job.turns:
        async with driver.opened(job.base_url, f"tools-{count}-5") as run:
            used = [await one(run, 5, looking) for _ in range(job.reps if count < 100 else 1)]
        out[f"{count} turns ms/turn"] = min(used) / (count + 1) * 1e3
    if len(out) > 1:
        first, *_, last = out.values()
        out[f"{job.turns[-1]}:{job.turns[0]} ×"] = last / first
    return out


async def paced(driver: Driver, job: Job, looking: Looking) -> Figures:
    """A delta that comes alone, in one of many streams, while all are open; how late it is; what a stream holds."""
    count = job.rate * job.seconds
    late_ns: list[int] = []

    def on_text(text: str) -> None:
        now_ns = time.monotonic_ns()
        for stamp in text.split("T")[1:]:
            late_ns.append(now_ns - int(stamp))

    async with (
        driver.opened(job.base_url, "text-20") as warm_up,
        driver.opened(job.base_url, f"paced-{count}-{job.rate}") as run,
    ):
        await one(warm_up, 20)

        async def stream(number: int) -> None:
            await asyncio.sleep(number / job.streams * OPENING_S)
            await run(on_text)

        before_mb = resident_mb()
        streams = asyncio.gather(*(stream(number) for number in range(job.streams)))
        # From when all are open until the first ends: what a run costs beside its deltas stands elsewhere.
        await asyncio.sleep(OPENING_S + SETTLING_S)
        skipped, began = len(late_ns), cpu_s()
        with looking:
            await asyncio.sleep(job.seconds - OPENING_S - SETTLING_S)
        used, seen = cpu_s() - began, sorted(late_ns[skipped:])
        grown_mb = resident_mb() - before_mb
        await streams
    if len(late_ns) != job.streams * count:
        raise SystemExit(f"{len(late_ns)} deltas arrived, not {job.streams * count}")
    return {
        "paced µs/delta": used / len(seen) * 1e6,
        "late p50 ms": seen[len(seen) // 2] / 1e6,
        "late p99 ms": seen[int(len(seen) * 0.99)] / 1e6,
        "grown MB": grown_mb,
    }


async def cold(driver: Driver, job: Job, looking: Looking) -> Figures:
    """What a new process pays for the imports, and until its first answer is there (some import lazily)."""
    began = cpu_s()
    with looking:
        exec(driver.IMPORTS, {})
        out = {"import ms": (cpu_s() - began) * 1e3, "import MB": resident_mb()}
        async with driver.opened(job.base_url, "text-1") as run:
            await one(run, 1)
            out |= {"answered ms": (cpu_s() - began) * 1e3, "answered MB": resident_mb()}
    return out


CASES: Final[dict[str, Callable[[Driver, Job, Looking], Coroutine[Any, Any, Figures]]]] = {
    "burst": burst,
    "paced": paced,
    "turns": turns,
    "cold": cold,
}


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    job = Job(**given)
    logging.disable(logging.WARNING)
    sampler = Sampler() if job.profile else None
    figures = asyncio.run(CASES[job.case](load(job.driver), job, sampler or nullcontext()))
    if sampler is not None:
        sampler.show()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
