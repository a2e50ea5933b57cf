"""Turns: when the provider of an open payment page is asked about it by itself.

From Continue on, until the link's time is over, and at the provider's own pace: that is for where
its webhooks do not reach us. A turn stands in the elicitation, as what is due: so one process of
all on a store has it, and one that ends leaves it to the others. Here is besides what this process
has planned, so that it need not wait for the sweeper's next round.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from heapq import heappop, heappush

from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.errors import NotConfigured
from flows.payments.pace import next_turn, turn_after_trouble
from flows.payments.registry import Gateways
from flows.payments.session import terms_of
from webapp.deadline import Clock

_LEAST_SECONDS = 0.05  # of a wait: clocks may differ in what they call now


class Turns:
    def __init__(self, *, flow: Gateways, unreached: Collection[str], clock: Clock) -> None:
        """`unreached` are the names of the providers whose webhooks do not reach us."""
        self._flow = flow
        self._unreached = frozenset(unreached)
        self._clock = clock
        self._planned: list[datetime] = []
        self._is_news = asyncio.Event()

    def plan(self, elicitation: Elicitation, *, is_troubled: bool = False) -> Elicitation:
        """With its next turn, if it has one: Continue was pressed, or it was asked about."""
        return replace(elicitation, ask_at=self._next(elicitation, is_troubled=is_troubled))

    def expect(self, elicitation: Elicitation) -> None:
        """Its turn is written: this process wakes for it."""
        if elicitation.ask_at is not None and not elicitation.status.is_final:
            heappush(self._planned, elicitation.ask_at)
            self._is_news.set()

    async def come(self, *, within: float) -> None:
        """Wait until one that this process expects has come, or so many seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        while (seconds := until - loop.time()) > 0:
            self._is_news.clear()
            if self._planned:
                now = self._clock()
                if self._planned[0] <= now:
                    while self._planned and self._planned[0] <= now:
                        heappop(self._planned)
                    return
                left = (self._planned[0] - now).total_seconds()
                seconds = min(seconds, max(left, _LEAST_SECONDS))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_news.wait()

    def _next(self, elicitation: Elicitation, *, is_troubled: bool) -> datetime | None:
        attempt, seller = elicitation.attempt, terms_of(elicitation).seller
        if attempt is None or seller not in self._unreached or not self._flow.answers(elicitation):
            return None
        try:
            pace = self._flow.of(elicitation).pace
        except NotConfigured:
            return None
        plan = turn_after_trouble if is_troubled else next_turn
        turn = plan(pace, begun_at=attempt.started_at, now=self._clock())
        return turn if turn < elicitation.expires_at else None
