"""Readiness: whether a new call could be stored now, for the response of `/ready`.

A slow store is not an unavailable store. If every instance left the load balancer while the store
is slow, a slow service would become an outage. So an instance stays ready while its last successful
write is recent, and `/ready` responds within two seconds, before the probe itself times out. A
store that refuses at once (full disk, fenced, deleted file, connection refused) makes the instance
unready at once.

Risks: a store that can read but not write looks healthy. So a check writes. Another risk is that
probes keep the disk busy. So only one check runs at a time, and at most one check per second
writes.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from flows.errors import StoreUnavailable
from webapp.records.owners import SERVICE
from webapp.stores import Store

ANSWER_SECONDS = 2.0  # a store that does not reply by then is slow, but not yet unavailable
PATIENCE_SECONDS = 20.0
GONE_SECONDS = 30.0
_FRESH_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Readiness:
    """The readiness of one store. `now` returns the seconds of a monotonic clock."""

    def __init__(self, store: Store, *, now: Callable[[], float] | None = None) -> None:
        self._store = store
        self._now = now or asyncio.get_running_loop().time
        self._check: asyncio.Task[None] | None = None
        self._checked_at = self._written_at = -math.inf
        self._is_ready = False

    async def is_ready(self) -> bool:
        """Return True if the store accepts writes. If not, the reason is logged."""
        if self._check is None or self._check.done():
            is_fresh = self._now() - self._checked_at < _FRESH_SECONDS
            if is_fresh and not self._is_ready:
                return False
            # After a recent write check, only read: a read notices a deleted file or a fence.
            self._check = asyncio.create_task(self._look(writes=not is_fresh))
        check = self._check
        done, _ = await asyncio.wait([check], timeout=ANSWER_SECONDS)
        if not done:
            return self._wrote_lately()
        check.result()  # raises unexpected errors
        return self._is_ready

    async def aclose(self) -> None:
        """Cancel the running check."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.wait([self._check])

    def _wrote_lately(self) -> bool:
        return self._now() - self._written_at < GONE_SECONDS

    async def _look(self, *, writes: bool) -> None:
        why, began = None, self._now()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._store.read(SERVICE, "pepper", SERVICE)
                why = await self._store.fenced()
                if writes and why is None:
                    await self._store.check()
        except StoreUnavailable as error:
            why = error.why
        except TimeoutError:
            why = f"it did not complete a write within {PATIENCE_SECONDS:g} seconds"
        now = self._now()
        if writes:
            self._checked_at = now
            if why is None:
                self._written_at = now
        is_slow = now - began >= ANSWER_SECONDS
        self._is_ready = why is None or (is_slow and self._wrote_lately())
        if why is not None and self._is_ready:
            _log.warning("store.slow", extra={"why": why})
        elif why is not None:
            _log.error("store.unavailable", extra={"why": why})
