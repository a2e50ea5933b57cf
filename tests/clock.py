"""A hand clock: time passes only when a test says so."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self, start: datetime = NOON) -> None:
        self.now = start

    def __call__(self) -> datetime:
        return self.now

    def tick(self, **amount: float) -> datetime:
        """Let time pass, in the words of timedelta: `tick(minutes=5)`."""
        self.now += timedelta(**amount)
        return self.now
