"""How long since: by a clock that nobody sets, as durations are counted.

What could go wrong: the machine's clock is set, or the machine sleeps. A duration that is taken
from the time of day is then too long by the step, or over at once. The time of day is for what is
stored, and for what others are told; what one process measures goes by this.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

Ticks = Callable[[], float]


class Clock(Protocol):
    """The time of day, aware and in UTC."""

    def __call__(self) -> datetime: ...


def ticks_of(clock: Callable[[], datetime]) -> Ticks:
    """Seconds that only go forward: the system's, or those of a test's clock."""
    return getattr(clock, "ticks", time.monotonic)


def sleep_of(clock: Callable[[], datetime]) -> Callable[[float], Awaitable[object]]:
    """Return what waits for so many seconds: the event loop, or a test's clock."""
    return getattr(clock, "sleep", asyncio.sleep)


STEP = timedelta(seconds=10)  # less is what clocks drift, and what a lease of 30 s can bear
UNSURE = timedelta(seconds=15)


class Steps:
    """Whether the time of day was set, or the machine slept, a moment ago.

    A lease that is out by then may be one that its holder, who saw no time pass, renews in seconds.
    A process that has just begun cannot know, and takes it that it is so.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._ticks = ticks_of(clock)
        self._sleep = sleep_of(clock)
        self._between = self._distance()
        self._until = self._ticks() + UNSURE.total_seconds()

    @property
    def is_recent(self) -> bool:
        now = self._ticks()
        if abs((between := self._distance()) - self._between) > STEP.total_seconds():
            self._until = now + UNSURE.total_seconds()
        self._between = between
        return now < self._until

    async def over(self) -> None:
        """Wait until this process is sure again: whoever lives has renewed its lease by then."""
        while self.is_recent:
            await self._sleep(self._until - self._ticks())

    def _distance(self) -> float:
        return self._clock().timestamp() - self._ticks()


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class HandClock:
    """A clock for tests: time passes only when a test says so.

    It may be set, too, as a machine's: what counts durations does not see that.
    """

    def __init__(self, start: datetime = NOON) -> None:
        self.now = start
        self._set_by = timedelta()

    def __call__(self) -> datetime:
        return self.now

    def tick(self, **amount: float) -> datetime:
        """Let time pass, in the words of timedelta: `tick(minutes=5)`."""
        self.now += timedelta(**amount)
        return self.now

    def set(self, **amount: float) -> datetime:
        """Show another time of day from now on: `set(hours=-2)`."""
        self._set_by += timedelta(**amount)
        return self.tick(**amount)

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass at once, for whoever waits."""
        self.tick(seconds=seconds)
        await asyncio.sleep(0)

    def ticks(self) -> float:
        return (self.now - self._set_by - NOON).total_seconds()


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
        # By `left`, which is all that whoever waits goes by: less than that is no time to wait for.
        return self.left <= timedelta()

    def at(self, now: datetime) -> datetime:
        """What time of day that is, as the clock shows it now."""
        return now + self.left
