"""The sweeper: what time alone asks for, once across processes."""

import asyncio
import logging
from datetime import datetime, timedelta

from flows import elicitation as states
from flows.elicitation import Elicitation, Status
from flows.errors import NotPossible, Unreadable
from flows.run import Run, wipe
from webapp.elicitations import Elicitations
from webapp.stores import Conflict, Record

EVERY_SECONDS = 5.0
HOLD = timedelta(seconds=30)
DUE_AT_ONCE = 100
_log = logging.getLogger(__name__)


async def sweep(elicitations: Elicitations) -> None:
    """Look every five seconds; runs until cancelled. After a round that failed comes the next."""
    while True:
        try:
            while await fall_due(elicitations) >= DUE_AT_ONCE:
                _log.info("sweeper.has_more")
        except Exception:  # noqa: BLE001 - a task's edge
            _log.exception("sweeper.failed")
        await asyncio.sleep(EVERY_SECONDS)


async def fall_due(elicitations: Elicitations) -> int:
    """Expire, wipe, erase: one round. Returns how many rows were looked at."""
    now = elicitations.clock()
    records = await elicitations.store.due(now, hold=HOLD, limit=DUE_AT_ONCE)
    for record in records:
        try:
            await _falls_due(elicitations, record, now)
        except Unreadable:
            _log.exception("record.unreadable", extra={"kind": record.kind})
    return len(records) + await elicitations.store.erase(before=now)


async def _falls_due(elicitations: Elicitations, record: Record, now: datetime) -> None:
    if record.kind == "elicitation":
        current = await elicitations.rows.open(record, Elicitation)
        if current.status.is_final or current.status is Status.EXCHANGING:
            await elicitations.change(record.id, lambda e: states.fall_due(e, now=now))
            return
        try:
            await elicitations.settle(record.id, Status.EXPIRED)
        except NotPossible:
            return
    elif record.kind == "run":
        run = await elicitations.rows.open(record, Run)
        try:
            await elicitations.write(wipe(run))
        except Conflict:
            return
