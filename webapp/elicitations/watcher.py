"""The watcher: wakes the waiters of this process when other processes write."""

import asyncio
import logging
from contextlib import suppress
from functools import partial

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from flows.errors import StoreUnavailable, Unreadable
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import LISTED, OWNER_DATA
from webapp.records.chain import AUDIT
from webapp.records.high_water import MARK
from webapp.records.ids import owner_of
from webapp.records.owners import DATA_KEY
from webapp.records.values import KINDS
from webapp.stores import Choosing, Record, WatchHint

LISTEN_AGAIN_SECONDS = 1.0
_OWNER_DATA_KINDS = frozenset(KINDS[kind] for kind in OWNER_DATA)
_LISTED_KINDS = frozenset(KINDS[kind] for kind in LISTED)
_MANY = frozenset({"elicitation", "run"})
_log = logging.getLogger(__name__)


async def listen(elicitations: Elicitations) -> None:
    """Process the writes of other processes until cancelled, or until the store is closed."""
    while True:
        try:
            watch = elicitations.store.watch()
            if isinstance(watch, Choosing):
                watch.choose(partial(_is_wanted, elicitations))
            async for record in watch:
                await _apply(elicitations, record)
            return  # the store is closed
        except StoreUnavailable as error:
            _log.warning("store.watch_failed", extra={"why": error.why})
        await asyncio.sleep(LISTEN_AGAIN_SECONDS)
        await _apply(elicitations, None)


def _is_wanted(elicitations: Elicitations, kind: str, id: str) -> bool:
    """Return True if this process needs writes of this row.

    Other processes write many questions and runs. Unless a subscriber receives every write of that
    kind, this process needs only the rows that it waits for or has in its cache, and the rows of a
    person whose lists are open. It never needs audit records. A caller registers its waiter before
    it reads the row: the row contains all earlier writes, and later writes wake the waiter.
    """
    if kind == AUDIT:
        return False
    if kind not in _MANY or kind in elicitations.subscribed_kinds or elicitations.waiters.has(id):
        return True
    return elicitations.rows.recent.get(id) is not None or elicitations.waiters.has(owner_of(id))


async def _apply(elicitations: Elicitations, record: Record | WatchHint | None) -> None:
    if not isinstance(record, Record):
        # After a missed message no waiter may wait forever, and no row may be sealed under a
        # destroyed data key. Other caches can stay: a write that is based on a stale copy is
        # refused by its version check.
        elicitations.tool_lists.report(None)
        elicitations.owners.forget(None)
        elicitations.waiters.wake_all()
        if record is None:
            for on_gap in elicitations.on_gap:
                on_gap()
            with suppress(StoreUnavailable):  # the sweeper compares the marks again later
                await elicitations.high_water.look()
        return
    if record.kind == MARK:
        elicitations.high_water.receive(record)
    if record.kind in _OWNER_DATA_KINDS:
        elicitations.tool_lists.report(record.owner)
    elif record.kind == DATA_KEY:
        elicitations.owners.forget(record.owner)
    elicitations.rows.recent.forget(record.id)
    for subscriber in elicitations.subscribers:
        await subscriber(record)
    if elicitations.waiters.has(record.id) or elicitations.waiters.has(record.owner):
        try:
            await _wake_waiters(elicitations, record)
        except Unreadable:
            _log.exception("record.unreadable", extra={"kind": record.kind})


async def _wake_waiters(elicitations: Elicitations, record: Record) -> None:
    if record.kind in _LISTED_KINDS:
        elicitations.waiters.wake_lists(record.owner)
    if record.kind == "elicitation":
        elicitations.waiters.wake(await elicitations.rows.open(record, Elicitation))
    elif record.kind == "run":
        elicitations.waiters.wake(await elicitations.rows.open(record, Run))
