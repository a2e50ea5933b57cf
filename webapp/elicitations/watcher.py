"""Listening: the waiters of this process are woken for what other processes write."""

import asyncio
import logging

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from flows.errors import StoreUnavailable, Unreadable
from webapp.elicitations.service import Elicitations
from webapp.records.owners import DATA_KEY
from webapp.stores import Record

LISTEN_AGAIN_SECONDS = 1.0
_log = logging.getLogger(__name__)


async def listen(elicitations: Elicitations) -> None:
    """Runs until it is cancelled, or the store is closed."""
    while True:
        try:
            async for record in elicitations.store.watch():
                await _hear(elicitations, record)
            return  # the store is closed
        except StoreUnavailable as error:
            _log.warning("store.watch_failed", extra={"why": error.why})
        await asyncio.sleep(LISTEN_AGAIN_SECONDS)
        await _hear(elicitations, None)


async def _hear(elicitations: Elicitations, record: Record | None) -> None:
    elicitations.news.tell(record)
    if record is None or record.kind == DATA_KEY:
        elicitations.owners.forget(None if record is None else record.owner)
    if record is None:
        elicitations.recent.clear()
        elicitations.waiters.wake_all()
        return
    elicitations.recent.forget(record.id)
    for hear in elicitations.hearers:
        await hear(record)
    if elicitations.waiters.has(record.id):
        try:
            await _tell(elicitations, record)
        except Unreadable:
            _log.exception("record.unreadable", extra={"kind": record.kind})


async def _tell(elicitations: Elicitations, record: Record) -> None:
    if record.kind == "elicitation":
        elicitations.waiters.wake(await elicitations.rows.open(record, Elicitation))
    elif record.kind == "run":
        elicitations.waiters.wake(await elicitations.rows.open(record, Run))
