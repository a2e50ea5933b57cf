"""The log of webhooks: verified webhooks, and counts of rejected webhooks by reason.

Risks: a sender of junk fills the store or the log. So webhooks that could not be verified, or that
concern no payment of this server, are only counted: one row for each day, provider and reason,
written at most once a minute.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from webapp.elicitations.service import Elicitations
from webapp.http.rate_limit import Rates
from webapp.records.owners import SERVICE
from webapp.records.values import StoredWebhook, TurnedAway

WEBHOOK_RETENTION = timedelta(days=30)
BETWEEN_WORDS = timedelta(minutes=1)
# The limit of unsigned notices from one address. A provider sends from few addresses, and repeats
# a notice that was refused.
HINTS_AT_ONCE = 100
BETWEEN_HINTS = timedelta(seconds=0.2)
_log = logging.getLogger(__name__)


class WebhookLog:
    """The log in the store. Counts of the last minute are still only in this process's memory."""

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations
        self.hint_limit = Rates(burst=HINTS_AT_ONCE, every=BETWEEN_HINTS, clock=elicitations.clock)
        self._counts = Counter[tuple[str, str, str]]()  # counts to write, by (day, seller, reason)
        self._logged: dict[tuple[str, str], datetime] = {}
        self._written_at: datetime | None = None

    def count_rejected(self, provider: str, reason: str) -> None:
        """Count a rejected delivery in memory; `write_counts` writes it."""
        now = self._elicitations.clock()
        self._counts[now.date().isoformat(), provider, reason] += 1
        logged = self._logged.get((provider, reason))
        if logged is None or now - logged >= BETWEEN_WORDS:
            self._logged[provider, reason] = now
            _log.warning("webhook.unverified", extra={"seller": provider, "reason": reason})

    async def write_counts(self) -> None:
        """Add the counts in memory to the rows of their days, at most once a minute."""
        now = self._elicitations.clock()
        is_soon = self._written_at is not None and now - self._written_at < BETWEEN_WORDS
        if is_soon or not self._counts:
            return
        self._written_at = now
        for key, count in tuple(self._counts.items()):
            await self._add(*key, count=count, now=now)
            self._counts[key] -= count
            if not self._counts[key]:
                del self._counts[key]

    async def webhooks(self) -> list[StoredWebhook]:
        """Return all verified webhooks, the latest first."""
        found = await self._elicitations.all(StoredWebhook)
        return sorted(found, key=lambda hook: hook.received_at, reverse=True)

    async def unverified(self) -> list[TurnedAway]:
        """Return the counts of rejected deliveries, the latest day first."""
        rows = await self._elicitations.all(TurnedAway)
        found = sorted(rows, key=lambda row: (row.seller, row.reason))
        return sorted(found, key=lambda row: row.day, reverse=True)

    async def _add(
        self, day: str, provider: str, reason: str, *, count: int, now: datetime
    ) -> None:
        fresh = TurnedAway(
            id=f"{SERVICE}{day}:{provider}:{reason}",
            owner=SERVICE,
            day=day,
            seller=provider,
            reason=reason,
            erase_at=now + WEBHOOK_RETENTION,
        )

        async def added() -> Sequence[TurnedAway]:
            found = await self._elicitations.read(TurnedAway, owner=SERVICE, id=fresh.id)
            before = found or fresh
            return [replace(before, count=before.count + count, last_at=now)]

        await self._elicitations.write_rebuilt(added)
