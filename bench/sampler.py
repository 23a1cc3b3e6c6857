"""A profile by samples of CPU time, printed to stderr. It hardly slows down what it looks at, unlike cProfile.

Standard library only. Where another thread works, its time is told as that of what the main thread does at that moment.
"""

import signal
import sys
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Self

EVERY_S = 0.001
"""Kernels round it up to a tick of theirs, often 4 ms: let the work go on for some seconds."""
SHOWN = 30

STDLIB = sysconfig.get_path("stdlib")


class Sampler:
    """Look what runs, each time that the context is open: by itself per package and function, and with all it calls."""

    def __init__(self) -> None:
        self.samples = 0
        self.packages: Counter[str] = Counter()
        self.alone: Counter[str] = Counter()
        self.inclusive: Counter[str] = Counter()

    def __enter__(self) -> Self:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def show(self) -> None:
        for title, counts in (
            ("by package, alone", self.packages),
            ("by function, alone", self.alone),
            ("by function of a package, with what it calls", self.inclusive),
        ):
            print(f"\n{title} ({self.samples} samples of CPU time)", file=sys.stderr)
            for name, count in counts.most_common(SHOWN):
                print(f"  {count / self.samples:6.1%}  {name}", file=sys.stderr)

    def _look(self, _: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename.startswith("<"):
            frame = frame.f_back  # what is generated, a dataclass's __init__, is its caller's
        if frame is None:
            return
        self.samples += 1
        self.packages[package_of(frame.f_code)[0]] += 1
        self.alone[name_of(frame.f_code)] += 1
        seen: set[CodeType] = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        self.inclusive.update({name_of(code) for code in seen if package_of(code)[1]})


@cache
def package_of(code: CodeType) -> tuple[str, bool]:
    """Return the package that code is of, ours to the second level (`ownloop.core`), and whether it was installed."""
    _, installed, within = code.co_filename.rpartition("site-packages/")
    if not installed:
        within = code.co_filename.removeprefix(f"{STDLIB}/")
    parts = Path(within).with_suffix("").parts
    return ".".join(parts[:2] if parts[0] == "ownloop" else parts[:1]), bool(installed)


@cache
def name_of(code: CodeType) -> str:
    return f"{code.co_qualname}  {package_of(code)[0]}/{Path(code.co_filename).name}:{code.co_firstlineno}"
