"""A line of the table, computed from rounds of measurements.

Risks: on a shared machine two runs differ more than the two sides. So baseline and elicit alternate
within a round, and the ratio is the median of the ratios of all rounds.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

ROUNDS_AT_LEAST = 3

Round = tuple[float, float]  # baseline, elicit


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    what: str
    baseline: str
    our_side: str
    ratio: float
    target: str  # empty if there is no target
    is_met: bool
    rounds: int = 1


def in_rounds(seconds: float) -> Iterator[int]:
    """Count rounds until the time is spent, at least three."""
    start = perf_counter()
    number = 0
    while number < ROUNDS_AT_LEAST or perf_counter() - start < seconds:
        yield number
        number += 1


async def alternate(
    number: int,
    baseline: Callable[[], Awaitable[float]],
    our_side: Callable[[], Awaitable[float]],
    *,
    times: int = 1,
) -> Round:
    """Run one round: measure each side `times` times. The sides take turns in being the first."""
    bare: list[float] = []
    own: list[float] = []
    for time in range(times):
        if (number + time) % 2:
            own.append(await our_side())
            bare.append(await baseline())
        else:
            bare.append(await baseline())
            own.append(await our_side())
    return median(bare), median(own)


def summary(
    what: str,
    rounds: Sequence[Round],
    *,
    show: Callable[[float], str],
    at_most: float | None = None,
    at_least: float | None = None,
) -> Figure:
    """Return the line for these rounds. `at_most` and `at_least` limit the ratio."""
    ratio = median(our_side / baseline for baseline, our_side in rounds)
    target = "" if at_least is None else f">= {at_least}"
    return Figure(
        what=what,
        baseline=show(median(baseline for baseline, _ in rounds)),
        our_side=show(median(our_side for _, our_side in rounds)),
        ratio=ratio,
        target=target if at_most is None else f"<= {at_most}",
        is_met=(at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least),
        rounds=len(rounds),
    )


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table with aligned columns."""
    rows = [("what", "baseline", "elicit", "ratio", "target", "rounds")]
    rows += [
        (
            figure.what,
            figure.baseline,
            figure.our_side,
            f"{figure.ratio:.2f}",
            figure.target + ("" if figure.is_met else " MISSED"),
            str(figure.rounds),
        )
        for figure in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(map(str.ljust, row, widths)) + " |"  # align the cells
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
