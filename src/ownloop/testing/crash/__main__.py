"""`python -m ownloop.testing.crash module[:NAME] …`: try scenarios, print what was found; exit 1 if it is wrong."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import FunctionType
from typing import Any

from ownloop.testing.crash.run import load, try_positions
from ownloop.testing.crash.scenario import Scenario


def main() -> int:
    """Return the exit code: 0, 1 for violations, 2 if something could not be tried."""
    parser = argparse.ArgumentParser(prog="python -m ownloop.testing.crash", description=__doc__)
    parser.add_argument("scenarios", nargs="+", metavar="module[:NAME]", help="one scenario, or all of a module")
    parser.add_argument("--at", metavar="PLACE", help="try this position only")
    parser.add_argument("--once", action="store_true", help="no second kill while the session is recovered")
    parser.add_argument("--fault", metavar="module:NAME", help="plant this fault, a function of the store, everywhere")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep the stores of all positions there")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each scenario")
    options = parser.parse_args()
    try:
        return _try_all(options)
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _try_all(options: argparse.Namespace) -> int:
    fault: Any = load(options.fault, FunctionType) if options.fault else None
    wrong = False
    for name in [name for given in options.scenarios for name in _names(given)]:
        report = try_positions(
            name,
            fault=fault,
            at=options.at,
            twice=not options.once,
            folder=options.keep,
            progress=_show if sys.stderr.isatty() else None,
        )
        sys.stdout.write((json.dumps(asdict(report)) if options.json else str(report)) + "\n")
        sys.stdout.flush()
        wrong = wrong or bool(report.violations)
    return 1 if wrong else 0


def _names(given: str) -> list[str]:
    if ":" in given:
        return [given]
    found = [name for name, value in vars(importlib.import_module(given)).items() if isinstance(value, Scenario)]
    return [f"{given}:{name}" for name in found]


def _show(done: int, of: int) -> None:
    sys.stderr.write(f"\r{done}/{of}" + ("\r\x1b[K" if done == of else ""))
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
