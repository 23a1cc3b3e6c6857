"""One table of what was measured: medians over the rounds, with ratios that were taken inside each round."""

import statistics
from collections.abc import Sequence

from bench.drivers import ALL, STANDARD, load
from bench.rounds import Measured

RAW, OURS = STANDARD[0], "ownloop"
WIDTH = 10


def table(results: Sequence[Measured], figures: Sequence[str]) -> str:
    """Return a column for each figure and a block of rows for each driver, as far as there are results."""
    heads = [figure.rpartition(" ") for figure in figures]
    lines = [
        "".join([" " * 20, *(what.rjust(WIDTH) for what, _, _ in heads)]),
        "".join([" " * 20, *(unit.rjust(WIDTH) for _, _, unit in heads)]),
    ]
    measured = {result.driver for result in results}
    for driver in [*STANDARD, *(other for other in ALL if other not in STANDARD)]:
        if driver in measured:
            lines += ["", *_rows(results, figures, driver)]
    return "\n".join(lines)


def _rows(results: Sequence[Measured], figures: Sequence[str], driver: str) -> list[str]:
    values = [_by_round(results, figure, driver) for figure in figures]
    cells = [number(statistics.median(found.values())) if found else "-" for found in values]
    rows = [_row(load(driver).NAME, cells)]
    bases = [] if driver == RAW else [RAW] if driver.startswith((OURS, "sdk")) else [RAW, OURS]
    for base in bases:
        cells = [_ratio(results, figure, driver, base) for figure in figures]
        if any(cells):
            rows.append(_row(f"  to {load(base).NAME}", cells))
    return rows


def _row(name: str, cells: Sequence[str]) -> str:
    return "".join([name.ljust(20), *(cell.rjust(WIDTH) for cell in cells)])


def _by_round(results: Sequence[Measured], figure: str, driver: str) -> dict[int, float]:
    return {
        result.round: result.figures[figure]
        for result in results
        if result.driver == driver and figure in result.figures
    }


def _ratio(results: Sequence[Measured], figure: str, driver: str, base: str) -> str:
    """Return the median of the ratios within the rounds, and half of their range in percent of it."""
    bases = _by_round(results, figure, base)
    found = _by_round(results, figure, driver)
    ratios = [found[round] / bases[round] for round in found if bases.get(round, 0) > 0]
    if not ratios or figure.endswith("×"):  # that is a ratio already
        return ""
    median = statistics.median(ratios)
    shown = f"{median:.1f}×" if median < 9.95 else f"{median:.0f}×"
    if len(set(ratios)) > 1:
        shown += f" ±{(max(ratios) - min(ratios)) / 2 / median:.0%}"
    return shown


def number(value: float) -> str:
    """Return three digits, or all of a larger number's."""
    if value >= 99.5:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"
