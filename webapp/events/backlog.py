"""The backlog: how many events wait for each address in the whole store.

Risks: a receiver is down for days and its waiting events fill the store. Each address therefore has
a limit. Events above the limit are not stored. This is reported in the log (at most once a minute),
in the metrics and in the row of the address, which `elicit doctor` reads. Events that already wait
stay, because receivers need the earlier events to understand later ones.

The backlog reads the rows once, and then follows the changes that all processes write. It reads the
rows again every hour, and after changes were missed, because rows may have been erased or lost.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from flows.errors import StoreUnavailable
from webapp.elicitations.service import Elicitations
from webapp.events.addresses import place_of
from webapp.records.values import KINDS, OutgoingEvent
from webapp.stores import Record

WAITING_AT_MOST: Final = 10_000
KIND: Final = KINDS[OutgoingEvent]
BETWEEN_WORDS: Final = timedelta(minutes=1)
_EVERY: Final = timedelta(hours=1)
_AFTER_A_MISS: Final = timedelta(seconds=30)
_PAUSES: Final = 4  # reading uses at most a fifth of the time
_log = logging.getLogger(__name__)


class Backlog:
    """The backlog as this process knows it. `ended` are addresses that want no more events."""

    def __init__(self, elicitations: Elicitations, *, at_most: int = WAITING_AT_MOST) -> None:
        self._elicitations = elicitations
        self._at_most = at_most
        self._waiting = defaultdict[str, set[str]](set)  # the ids of waiting events, by address
        # status changes received while the store is being read
        self._heard: dict[str, str] | None = None
        self._has_missed = asyncio.Event()
        self._logged_at: dict[str, datetime] = {}
        self.ended: frozenset[str] = frozenset()
        self.not_kept = Counter[str]()  # events not stored since these counts were last saved

    def has_room(self, address: str) -> bool:
        """Return True if one more event can be stored for the address."""
        return len(self._waiting[address]) < self._at_most

    def leave_out(self, address: str) -> None:
        """Count an event that is not stored, and log it."""
        self.not_kept[address] += 1
        now, logged_at = self._elicitations.clock(), self._logged_at.get(address)
        if logged_at is None or now - logged_at >= BETWEEN_WORDS:
            self._logged_at[address] = now
            waiting = len(self._waiting[address])
            _log.error("events.not_stored", extra={"address": address, "waiting": waiting})

    def update(self, id: str, *, status: str) -> None:
        """Update the count from an event's status, written by any process."""
        if self._heard is not None:
            self._heard[id] = status
        self._put(id, status)

    def counts(self) -> Mapping[str, int]:
        return {address: len(ids) for address, ids in self._waiting.items()}

    async def follow(self) -> None:
        """Keep the counts current. Runs until cancelled."""
        self._elicitations.subscribers.append(self._hear_record)
        self._elicitations.on_gap.append(self._has_missed.set)
        while True:
            self._has_missed.clear()
            try:
                await self.read_through()
            except StoreUnavailable as error:
                _log.warning("store.unavailable", extra={"why": error.why})
            except Exception:  # noqa: BLE001 - the edge of a task; events are sent anyway
                _log.exception("events.not_counted")
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY.total_seconds()):
                    await self._has_missed.wait()
                await asyncio.sleep(_AFTER_A_MISS.total_seconds())

    async def read_through(self) -> None:
        """Count all waiting events in the store. Changes during the read override the rows read."""
        store, loop = self._elicitations.store, asyncio.get_running_loop()
        self._heard = {}
        waiting, after = list[str](), None
        try:
            began = loop.time()
            while page := await store.list(KIND, after=after):
                waiting += [record.id for record in page if record.status == "waiting"]
                after = page[-1].id
                await asyncio.sleep((loop.time() - began) * _PAUSES)
                began = loop.time()
            self._waiting.clear()
            for id in waiting:
                self._put(id, "waiting")
            for id, status in self._heard.items():
                self._put(id, status)
        finally:
            self._heard = None

    async def _hear_record(self, record: Record) -> None:
        if record.kind == KIND:
            self.update(record.id, status=record.status)

    def _put(self, id: str, status: str) -> None:
        ids = self._waiting[place_of(id).address]
        if status == "waiting":
            ids.add(id)
        else:
            ids.discard(id)
