"""Turns: the schedule for polling a provider about an open payment page.

Providers whose webhooks do not reach this server are polled from Continue until the link expires,
at the provider's own pace. The next turn is stored in the elicitation as its due time, so one of
the processes on the store does the poll, and another process does it if the first one ends. This
module also remembers the turns that this process planned, so that the process polls on time and
does not wait for the sweeper's next round.
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
        """Plan turns for the providers in `unreached`, whose webhooks do not reach this server."""
        self._flow = flow
        self._unreached = frozenset(unreached)
        self._clock = clock
        self._planned: list[datetime] = []
        self._is_news = asyncio.Event()

    def plan(self, elicitation: Elicitation, *, is_troubled: bool = False) -> Elicitation:
        """Return the elicitation with its next turn. Call this after Continue or a poll."""
        return replace(elicitation, ask_at=self._next(elicitation, is_troubled=is_troubled))

    def expect(self, elicitation: Elicitation) -> None:
        """Let `come` return at the elicitation's turn. Call this after the turn was stored."""
        if elicitation.ask_at is not None and not elicitation.status.is_final:
            heappush(self._planned, elicitation.ask_at)
            self._is_news.set()

    async def come(self, *, within: float) -> None:
        """Wait until the next turn that this process expects, but at most `within` seconds."""
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
                remaining = (self._planned[0] - now).total_seconds()
                seconds = min(seconds, max(remaining, _LEAST_SECONDS))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_news.wait()

    def _next(self, elicitation: Elicitation, *, is_troubled: bool) -> datetime | None:
        attempt, provider = elicitation.attempt, terms_of(elicitation).seller
        if (
            attempt is None
            or provider not in self._unreached
            or not self._flow.answers(elicitation)
        ):
            return None
        try:
            pace = self._flow.of(elicitation).pace
        except NotConfigured:
            return None
        plan = turn_after_trouble if is_troubled else next_turn
        turn = plan(pace, begun_at=attempt.started_at, now=self._clock())
        return turn if turn < elicitation.expires_at else None
