"""Readiness: whether a call that arrived now could be stored, as `/ready` answers it.

A store that is slow is not gone. If every instance left the proxy while the store is slow, a slow
service would be down. So an instance stays ready while its last acknowledged write is recent, and
`/ready` answers within two seconds, before the probe itself gives up. A store that refuses at once
(its disk is full, it is fenced, its file was deleted, nobody listens) makes it unready at once.

Risks: a store that reads and cannot write looks healthy, and probes keep the disk busy. So a check
writes, only one runs at a time, and one a second writes.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from flows.errors import StoreUnavailable
from webapp.records.owners import SERVICE
from webapp.stores import Store

ANSWER_SECONDS = 2.0  # a check that fails later than this is one of a slow or a silent store
PATIENCE_SECONDS = 20.0
GONE_SECONDS = 30.0
_FRESH_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Readiness:
    """The readiness of one store; `now` is in seconds, of a monotonic clock."""

    def __init__(self, store: Store, *, now: Callable[[], float] | None = None) -> None:
        self._store = store
        self._now = now or asyncio.get_running_loop().time
        self._check: asyncio.Task[None] | None = None
        self._checked_at = self._written_at = -math.inf
        self._is_ready = False

    async def is_ready(self) -> bool:
        """Return whether the store takes writes and has room for more; the log says why not."""
        if self._check is None or self._check.done():
            is_fresh = self._now() - self._checked_at < _FRESH_SECONDS
            if is_fresh and not self._is_ready:
                return False
            # A deleted file and a fence are noticed by a read, at once.
            self._check = asyncio.create_task(self._look(writes=not is_fresh))
        check = self._check
        done, _ = await asyncio.wait([check], timeout=ANSWER_SECONDS)
        if not done:
            return self._wrote_lately()
        check.result()  # it raises what is no answer of the store
        return self._is_ready

    async def aclose(self) -> None:
        """End the check that is under way."""
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
            why = f"it did not take a write within {PATIENCE_SECONDS:g} seconds"
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
