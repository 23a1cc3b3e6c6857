"""Run cases over drivers in interleaved rounds.

Each round visits every driver once, so that a busy spell of the machine falls on all alike, and ratios are taken
inside a round.
"""

import json
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.drivers import load
from bench.environments import ROOT
from bench.worker import Figures, Job
from scripts.measure_install import measure

LIMIT_S = 300
"""For one driver in one round; the slowest needs half a minute for its longest case."""


@dataclass(frozen=True, slots=True)
class Measured:
    case: str
    round: int
    driver: str
    figures: Figures


@contextmanager
def mock_provider() -> Generator[str]:
    """Start the model that everybody talks to; yields its base URL."""
    command = [sys.executable, "-m", "bench.mock_provider"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


def run_rounds(job: Job, rounds: int, environments: Mapping[str, Path]) -> Generator[Measured]:
    """Measure the job's case on each driver that has an environment, and say how it goes."""
    for number in range(1, rounds + 1):
        for driver, environment in environments.items():
            print(f"{job.case} {number}/{rounds}  {load(driver).NAME:<18}", end="  ", flush=True)
            try:
                figures = size(environment) if job.case == "size" else work(job, driver, environment)
            except subprocess.TimeoutExpired:
                print(f"failed: not done after {LIMIT_S} s", flush=True)
            except subprocess.CalledProcessError as error:
                print(f"failed: {(error.stderr or '')[-600:]}", flush=True)
            else:
                print("  ".join(f"{name} {value:.2f}" for name, value in figures.items()), flush=True)
                yield Measured(job.case, number, driver, figures)


def work(job: Job, driver: str, environment: Path) -> Figures:
    command = [str(environment / "bin" / "python"), "-m", "bench.worker", json.dumps({**asdict(job), "driver": driver})]
    # A profile is for a person to see; else stderr is shown only of what fails.
    errors = None if job.profile else subprocess.PIPE
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=LIMIT_S, cwd=ROOT, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def size(environment: Path) -> Figures:
    installed = measure(environment)
    return {"packages n": installed.packages, "installed MB": installed.size_mb}
