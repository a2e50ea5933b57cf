"""Readiness: whether a call that came now could be kept, as `/ready` tells it.

What could go wrong: a store that reads and cannot write looks well, and whoever asks often enough
keeps the disk busy by asking. So a look writes, and there is one at a time, and one a second.
"""

import asyncio
import logging
from collections.abc import Callable

from flows.errors import StoreUnavailable
from webapp.records.owners import SERVICE
from webapp.stores import Store

PATIENCE_SECONDS = 5.0
_FRESH_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Readiness:
    """Of one store; `now` is in seconds, of a clock that is not set."""

    def __init__(self, store: Store, *, now: Callable[[], float] | None = None) -> None:
        self._store = store
        self._now = now or asyncio.get_running_loop().time
        self._lock = asyncio.Lock()
        self._looked_at: float | None = None
        self._is_ready = False

    async def is_ready(self) -> bool:
        """Whether the store takes a write in time and has room for more; why not is logged."""
        async with self._lock:
            is_fresh = (
                self._looked_at is not None and self._now() - self._looked_at < _FRESH_SECONDS
            )
            if not is_fresh or self._is_ready:
                # A file that is gone, and a fence, are seen by reading, at once.
                self._is_ready = await self._look(writes=not is_fresh)
            if not is_fresh:
                self._looked_at = self._now()
            return self._is_ready

    async def _look(self, *, writes: bool) -> bool:
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
        if why is None:
            return True
        _log.error("store.unavailable", extra={"why": why})
        return False
