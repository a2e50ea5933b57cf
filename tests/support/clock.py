"""A hand clock: time passes only when a test says so."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    """It may be set, too, as a machine's: what counts durations does not see that."""

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

    def ticks(self) -> float:
        return (self.now - self._set_by - NOON).total_seconds()
