"""Tries all positions of a scenario, several at a time, and gathers what was found."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from ownloop.testing.crash.check import Evidence, tail_of, violations
from ownloop.testing.crash.process import Fault, Processes, fork
from ownloop.testing.crash.report import Position, Report
from ownloop.testing.crash.scenario import Scenario

T = TypeVar("T")
Progress: TypeAlias = Callable[[int, int], None]
"""Positions done, and of how many."""
WORK_LIMIT_S = 600
"""Real seconds for the processes of one position together; see `process.LIMIT_S`."""


def crash_test(
    scenario: str, *, fault: str | None = None, at: str | None = None, twice: bool = True, folder: Path | None = None
) -> Report:
    """Kill the scenario `module:NAME` at every position, or only `at` one, and report what was violated.

    `twice` tries each position once more, with a second kill while the session is recovered. `fault`, also a
    `module:NAME`, is planted in every process. `folder` keeps the stores, as `store.db` in each position's `folder`.

    Raises `RuntimeError` if the kit itself failed, with what it said.
    """
    command = [sys.executable, "-m", "ownloop.testing.crash", scenario, "--json", *([] if twice else ["--once"])]
    for option, value in (("--fault", fault), ("--at", at), ("--keep", folder)):
        command += [option, str(value)] if value is not None else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # A process of its own, for it forks: this one may have threads, whose locks a fork would copy as they are.
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if not done.stdout:
        raise RuntimeError(f"the crash kit failed: {done.stderr.strip()}")
    raw = json.loads(done.stdout.splitlines()[-1])
    return Report(raw["scenario"], [Position(**position) for position in raw["positions"]], raw["elapsed_s"])


def try_positions(
    name: str,
    *,
    fault: Fault | None = None,
    at: str | None = None,
    twice: bool = True,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Do what `crash_test` does, in this process, which must have no threads.

    Raises ValueError for names that lead nowhere and for a scenario that fails by itself, RuntimeError as `crash_test`.
    """
    if threading.active_count() > 1:
        raise RuntimeError("the crash kit forks, and this process has threads; crash_test starts a process of its own")
    scenario = load(name, Scenario)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ownloop-crash-") as temporary:
        trial = Trial(scenario, fault, (folder or Path(temporary)) / name.partition(":")[2], folder is not None, twice)
        places = _places(scenario, Path(temporary))
        works = [partial(trial.killed, index, place) for index, place in enumerate(places) if at in (None, place)]
        if not works:
            raise ValueError(f"{name} passes no place {at!r}; it passes: {', '.join(map(repr, places))}")
        tried = _in_parallel([trial.uninterrupted, *works], Path(temporary), progress)
    positions = [position for some in tried for position in some]
    return Report(name, positions, time.monotonic() - began_s)


def _places(scenario: Scenario, folder: Path) -> list[str]:
    """Return what a run without kill and fault passes.

    It runs in this very process: what it imports and caches on the way is there in all that are forked, which halves
    their time. Raises ValueError if the scenario fails by itself.
    """
    processes = Processes(scenario, folder / "places")
    processes.folder.mkdir()
    try:
        processes.run_here()
    except Exception as error:
        raise ValueError(f"the scenario fails without any kill: {type(error).__name__}: {error}") from error
    return processes.passed(0)


def load(name: str, kind: type[T]) -> T:
    """Return what `module:NAME` names. Raises ValueError if there is nothing, or nothing of this kind."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} names nothing: {error}; expected 'module:NAME'") from error
    if not isinstance(found, kind):
        raise ValueError(f"{name!r} is a {type(found).__name__}, expected a {kind.__name__}")
    return found


@dataclass(frozen=True, slots=True)
class Trial:
    """Tries single positions, each in a folder of its own."""

    scenario: Scenario
    fault: Fault | None
    folder: Path
    keep: bool
    twice: bool

    def uninterrupted(self) -> list[Position]:
        return [self._try("000-no-kill", [])[0]]

    def killed(self, index: int, place: str) -> list[Position]:
        """Die at a place; and then once more there, and at another place while it is recovered: each time another."""
        folder = f"{index + 1:03}-{re.sub('[^a-z0-9]+', '-', place)}"
        once, passed = self._try(folder, [place])
        if not self.twice or not once.reached or not passed:
            return [once]
        return [once, self._try(f"{folder}-twice", [place, index % len(passed) + 1])[0]]

    def _try(self, name: str, kills: list[str | int]) -> tuple[Position, list[str]]:
        """Return what was found, and the places that the last process passed."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        processes = Processes(self.scenario, folder, self.fault)
        wrong: list[str] = []
        died: list[str] = []
        number = -1
        for number, kill_at in enumerate([*kills, None]):
            code = processes.run(number, kill_at)
            if code == 0:
                break
            if code == -signal.SIGKILL and kill_at is not None:
                died.append(processes.passed(number)[-1])
            else:
                how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
                wrong.append(f"process {number + 1} ended {how}: {processes.last_words(number)}")
        evidence: Evidence | None = None
        try:
            evidence = processes.evidence()
        except Exception as error:  # noqa: BLE001 - whatever a fault left of the store is a finding
            wrong.append(f"the store cannot be read: {type(error).__name__}: {error}")
        else:
            wrong += violations(evidence, self.scenario.ends)
        passed = processes.passed(number)
        if not self.keep:
            shutil.rmtree(folder)
        position = Position(
            *[*died, "", ""][:2],
            reached=len(died) == len(kills),
            violations=wrong,
            journal=tail_of(evidence.facts) if wrong and evidence is not None else (),
            folder=str(folder) if self.keep else "",
        )
        return position, passed


def _in_parallel(
    works: Sequence[Callable[[], list[Position]]], folder: Path, progress: Progress | None
) -> list[list[Position]]:
    """Do each work in a process of its own, one for each core at a time; return their results in order."""
    results: list[list[Position]] = [[] for _ in works]
    running: dict[int, int] = {}
    waiting = list(range(len(works)))[::-1]
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            index = waiting.pop()
            result = folder / f"result-{index}"
            running[fork(partial(_report, works[index], result), folder / f"log-{index}", WORK_LIMIT_S)] = index
        pid, status = os.wait()
        index = running.pop(pid)
        if status != 0:
            log = (folder / f"log-{index}").read_text()
            raise RuntimeError(f"the crash kit failed: {log.strip() or os.waitstatus_to_exitcode(status)}")
        raw = json.loads((folder / f"result-{index}").read_text())
        results[index] = [Position(**one) for one in raw]
        if progress is not None:
            progress(len(works) - len(waiting) - len(running), len(works))
    return results


def _report(work: Callable[[], list[Position]], result: Path) -> None:
    result.write_text(json.dumps([asdict(position) for position in work()]))
