"""A line of the table, and the rounds that it comes from.

What could go wrong: on a shared machine two runs differ more than what is compared. So baseline
and ours alternate within a round, and the ratio is the median of the rounds' own ratios.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

ROUNDS_AT_LEAST = 3

Round = tuple[float, float]  # baseline, ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    what: str
    baseline: str
    ours: str
    ratio: float
    target: str  # none, where it is only told
    is_met: bool
    rounds: int = 1


def in_rounds(seconds: float) -> Iterator[int]:
    """Count rounds until the time is spent, three at least."""
    start = perf_counter()
    number = 0
    while number < ROUNDS_AT_LEAST or perf_counter() - start < seconds:
        yield number
        number += 1


async def alternate(
    number: int,
    baseline: Callable[[], Awaitable[float]],
    ours: Callable[[], Awaitable[float]],
    *,
    times: int = 1,
) -> Round:
    """One round: each side `times` times in turn, the other one first in every second round."""
    bare: list[float] = []
    own: list[float] = []
    for time in range(times):
        if (number + time) % 2:
            own.append(await ours())
            bare.append(await baseline())
        else:
            bare.append(await baseline())
            own.append(await ours())
    return median(bare), median(own)


def summary(
    what: str,
    rounds: Sequence[Round],
    *,
    show: Callable[[float], str],
    at_most: float | None = None,
    at_least: float | None = None,
) -> Figure:
    """The line for these rounds; the target is a bound of the ratio of ours to the baseline."""
    ratio = median(ours / baseline for baseline, ours in rounds)
    target = "" if at_least is None else f">= {at_least}"
    return Figure(
        what=what,
        baseline=show(median(baseline for baseline, _ in rounds)),
        ours=show(median(ours for _, ours in rounds)),
        ratio=ratio,
        target=target if at_most is None else f"<= {at_most}",
        is_met=(at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least),
        rounds=len(rounds),
    )


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table that is readable as it stands."""
    rows = [("what", "baseline", "ours", "ratio", "target", "rounds")]
    rows += [
        (
            figure.what,
            figure.baseline,
            figure.ours,
            f"{figure.ratio:.2f}",
            figure.target + ("" if figure.is_met else " MISSED"),
            str(figure.rounds),
        )
        for figure in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(map(str.ljust, row, widths)) + " |"  # cells line up
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
