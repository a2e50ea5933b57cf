"""An event loop without sockets, on a manual clock.

When nothing is ready, the loop calls `on_idle` and then moves the clock to the next timer, so a
test of minutes takes no time and never sleeps.
"""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.support.clock import NOON, Clock

if TYPE_CHECKING:
    from collections.abc import Callable


class HandLoop(asyncio.BaseEventLoop):
    _scheduled: list[asyncio.TimerHandle]  # an attribute of BaseEventLoop

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.on_idle: Callable[[], bool] = lambda: False
        self._selector = self  # the loop is its own selector, whose `select` it calls

    def time(self) -> float:
        return (self.clock.now - NOON).total_seconds()

    def select(self, timeout: float | None) -> list[Any]:
        """Move the clock to the next timer.

        The loop passes a timeout of 0 while callbacks are ready.
        """
        if timeout != 0 and not self.on_idle():
            if timeout is None:
                raise RuntimeError("everything sleeps, and no timer is set")
            self.clock.now += timedelta(seconds=timeout, microseconds=1)
        return []

    def forget_timers(self) -> None:
        """Remove the timers of ended work, so that none fires after the clock is set back."""
        self._scheduled.clear()

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
