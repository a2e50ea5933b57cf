"""The sweeper: what time alone asks for, once across processes."""

import asyncio
import logging
from datetime import timedelta

from webapp.elicitations import DUE_AT_ONCE, Elicitations

EVERY_SECONDS = 5.0
HOLD = timedelta(seconds=30)
_log = logging.getLogger(__name__)


async def sweep(elicitations: Elicitations) -> None:
    """Look every five seconds; runs until cancelled. After a round that failed comes the next."""
    while True:
        try:
            while await elicitations.fall_due(hold=HOLD) >= DUE_AT_ONCE:
                _log.info("sweeper.has_more")
        except Exception:  # noqa: BLE001 - a task's edge
            _log.exception("sweeper.failed")
        await asyncio.sleep(EVERY_SECONDS)
