"""Durations and deadlines, measured by a monotonic clock, which no user or program can set.

Risks: the machine's clock is set, or the machine sleeps. A duration that is measured by the time of
day is then too long, or ends at once. The time of day is used for stored values and for values that
others receive. Durations within one process use a monotonic clock.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

Ticks = Callable[[], float]


class Clock(Protocol):
    """A function that returns the time of day, timezone-aware and in UTC."""

    def __call__(self) -> datetime: ...


def ticks_of(clock: Callable[[], datetime]) -> Ticks:
    """Return a function that returns monotonic seconds, from the system or from a test's clock."""
    return getattr(clock, "ticks", time.monotonic)


def sleep_of(clock: Callable[[], datetime]) -> Callable[[float], Awaitable[object]]:
    """Return a function that sleeps for some seconds: the event loop's, or a test's."""
    return getattr(clock, "sleep", asyncio.sleep)


STEP = timedelta(seconds=10)  # smaller steps are normal drift, and harmless for a lease of 30 s
UNSURE = timedelta(seconds=15)


class Steps:
    """A detector of recent steps of the time of day: the clock was set, or the machine slept.

    After such a step, a lease can look expired although its holder is alive and will renew the
    lease in a few seconds. A process that has just started assumes that there was a step a moment
    ago.
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
        """Wait until no step is recent. Every live holder of a lease has then renewed the lease."""
        while self.is_recent:
            await self._sleep(self._until - self._ticks())

    def _distance(self) -> float:
        return self._clock().timestamp() - self._ticks()


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class HandClock:
    """A clock for tests, whose time passes only when a test says so.

    A test can also set the time of day, as on a real machine. Durations are not affected.
    """

    def __init__(self, start: datetime = NOON) -> None:
        self.now: datetime = start
        self._set_by = timedelta()

    def __call__(self) -> datetime:
        return self.now

    def tick(self, **amount: float) -> datetime:
        """Let time pass, with the arguments of timedelta: `tick(minutes=5)`."""
        self.now += timedelta(**amount)
        return self.now

    def set(self, **amount: float) -> datetime:
        """Change the time of day: `set(hours=-2)`. Durations are not affected."""
        self._set_by += timedelta(**amount)
        return self.tick(**amount)

    async def sleep(self, seconds: float) -> None:
        """Let this much time pass at once."""
        self.tick(seconds=seconds)
        await asyncio.sleep(0)

    def ticks(self) -> float:
        return (self.now - self._set_by - NOON).total_seconds()


class Deadline:
    """A point in time at a fixed distance from now."""

    def __init__(self, after: timedelta, *, ticks: Ticks) -> None:
        self._ticks = ticks
        self._at = ticks() + after.total_seconds()

    @property
    def has_ended(self) -> bool:
        # Round to microseconds as `at` does: otherwise `at` could return the current time although
        # the deadline has not ended, and a caller that waits until then would loop without a pause.
        return timedelta(seconds=self._at - self._ticks()) <= timedelta()

    def at(self, now: datetime) -> datetime:
        """Return the deadline as a time of day, if `now` is the current time of day."""
        return now + timedelta(seconds=self._at - self._ticks())
