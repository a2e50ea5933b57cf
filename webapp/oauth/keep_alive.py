"""The sweeper's work on accounts: refresh in time, warn before the end, and record the end.

Risks: two processes refresh an account at once, or one refreshes it again after a crash. So the
time of the next step is written before the provider is asked, and the refresh itself needs the
claim of `AccessTokens`. A sweep with many due accounts does not flood a provider: only a few are
refreshed at once, and the others stay due.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from flows.oauth.connection import TRIED_AGAIN_AFTER, Connection, lapse, planned, warned
from webapp.elicitations.service import Elicitations
from webapp.oauth.access_tokens import AccessTokens
from webapp.oauth.connections import Connections
from webapp.records.values import Value

REFRESHED_AT_ONCE = 20  # accounts that this process refreshes at the same time
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeepAlive:
    elicitations: Elicitations
    connections: Connections
    keys: AccessTokens
    _slots: asyncio.Semaphore = field(
        init=False, default_factory=lambda: asyncio.Semaphore(REFRESHED_AT_ONCE)
    )

    async def fall_due(self, found: Connection) -> None:
        """Refresh an account before it expires unused, or retry after a refusal without proof."""
        second = found.second_refresh_at
        if second is not None and second <= self.elicitations.clock():
            await self.keys.refresh_again(found)
        elif not self._slots.locked():  # otherwise the row stays due
            async with self._slots:
                await self._refresh_or_end(found)

    async def _refresh_or_end(self, found: Connection) -> None:
        """Use the refresh token before it expires unused, warn of the end, or record the end.

        The time of the next try is written before the provider is asked. So if this process dies
        before it stores the reply, no sweep sends the old refresh token again before that time.
        """
        now = self.elicitations.clock()
        current = await self.connections.read(found.owner, found.id)
        is_due = current is not None and current.keep_at is not None and current.keep_at <= now
        if current is None or not is_due or not current.is_connected:
            return
        end = current.ends_at
        if current.refresh_token is None and not current.works(now=now):
            about = {"id": current.id, "provider": current.provider}
            _log.info("account.lapsed", extra={**about, "reason": None, "proof": "the clock"})
            await self.elicitations.write(lapse(current, now=now))
            return
        has_ended = end is None or now >= end
        if current.refresh_token is None or (current.has_fixed_end and not has_ended):
            await self.elicitations.write(self._warned(current))
            return
        if current.is_claimed(now=now):  # another process refreshes the account for a tool
            return
        postponed = replace(current, keep_at=now + TRIED_AGAIN_AFTER)
        await self.elicitations.write(postponed)
        await self.keys.refresh_again(postponed)
        await self.elicitations.write_rebuilt(partial(self._warning, postponed))

    async def _warning(self, before: Connection) -> list[Value]:
        """Return the row with its warning, if the refresh failed and the end is near."""
        current = await self.connections.read(before.owner, before.id)
        if current is None or not current.is_connected or current.keep_at != before.keep_at:
            return []
        after = replace(self._warned(current), keep_at=current.keep_at)  # try again until the end
        return [] if after == current else [after]

    def _warned(self, current: Connection) -> Connection:
        now = self.elicitations.clock()
        after = warned(current, now=now)
        if after.warned_at != current.warned_at:
            about = {"id": after.id, "provider": after.provider}
            _log.info("account.expiring", extra=about)
        return planned(after, now=now)
