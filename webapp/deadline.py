"""How long since: by a clock that nobody sets, as durations are counted.

What could go wrong: the machine's clock is set, or the machine sleeps. A duration that is taken
from the time of day is then too long by the step, or over at once. The time of day is for what is
stored, and for what others are told; what one process measures goes by this.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

Ticks = Callable[[], float]


def ticks_of(clock: Callable[[], datetime]) -> Ticks:
    """Seconds that only go forward: the system's, or those of a test's clock."""
    return getattr(clock, "ticks", time.monotonic)


class Deadline:
    """So long from now."""

    def __init__(self, after: timedelta, *, ticks: Ticks) -> None:
        self._ticks = ticks
        self._at = ticks() + after.total_seconds()

    @property
    def left(self) -> timedelta:
        return timedelta(seconds=self._at - self._ticks())

    @property
    def is_over(self) -> bool:
        return self._ticks() >= self._at

    def at(self, now: datetime) -> datetime:
        """What time of day that is, as the clock shows it now."""
        return now + self.left
