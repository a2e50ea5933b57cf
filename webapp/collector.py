"""The collector: metrics about open questions, unused payments and unresolved payments.

The kind of a question is encrypted, so reading a hundred thousand open questions for each request
for metrics would take too long. The store is therefore read once, in small pages with pauses that
leave time for other work. After that, the collector receives every write, including those of other
processes, and a request only adds up the entries in memory.

Risks: a write is missed, or rows are erased, which causes no notification. The store is therefore
read again after a miss (a lost connection, or more changes than are buffered), and every hour.
"""

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

from flows.elicitation.states import Elicitation, Status
from flows.errors import StoreUnavailable, Unreadable
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.session import UnresolvedPayment, UnresolvedStatus
from webapp.records.values import KINDS
from webapp.service import Service
from webapp.stores import Record
from webapp.telemetry import families
from webapp.telemetry.families import MetricFamily, Samples

_log = logging.getLogger(__name__)
EVERY: Final = timedelta(hours=1)
AFTER_A_MISS: Final = timedelta(seconds=30)
# Reading takes at most a fifth of the time.
PAUSES: Final = 4
AT_ONCE: Final = 1000  # entries that are added up in one step
ADDED_UP_AFTER: Final = timedelta(seconds=5)
AGES: Final = (
    (timedelta(minutes=1), "1m"),
    (timedelta(minutes=10), "10m"),
    (timedelta(hours=1), "1h"),
    (timedelta(days=1), "1d"),
)
OLDER: Final = "older"
Counted: TypeAlias = Elicitation | Payment | UnresolvedPayment
_OPEN: Final = tuple(status for status in Status if not status.is_final)
_UNRESOLVED: Final = (
    *(UnresolvedStatus.WAITING, UnresolvedStatus.UNANSWERED, UnresolvedStatus.OTHERWISE),
)
_FILE: Final = "sqlite:///"
_COUNTED: Final[Mapping[str, type[Counted]]] = {
    KINDS[kind]: kind for kind in (Elicitation, Payment, UnresolvedPayment)
}
# An entry: the kind of the row, the question's kind or the payment's status, the time when the
# question or payment began, and the time until which the entry counts.
_Entry = tuple[str, str, datetime, datetime | None]


class Collector:
    """The collector of one service. Its metrics also receive the service's own writes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._entries: dict[str, _Entry] | None = None
        self._received: dict[str, _Entry | None] | None = None  # received while reading
        self._read_at: datetime | None = None
        self.has_missed = asyncio.Event()
        self._added: tuple[datetime, Mapping[MetricFamily, Samples]] | None = None
        self._stepped_back_at = 0.0
        self._metrics = service.elicitations.telemetry.metrics
        if self._metrics is not None:
            self._metrics.follow = self.after_write
            service.elicitations.subscribers.append(self._on_change)
            service.elicitations.subscribed_kinds.add(KINDS[Elicitation])
            service.elicitations.on_gap.append(self.has_missed.set)

    def after_write(self, values: Sequence[object]) -> None:
        """Apply writes of this process."""
        for value in values:
            if isinstance(value, Elicitation | Payment | UnresolvedPayment):
                self._take(value.id, _entry_of(value))

    async def collect(self) -> None:
        """Read the store at once, after each miss and every hour, until cancelled.

        Returns immediately if the server has no metrics.
        """
        if self._metrics is None:
            return
        while True:
            self.has_missed.clear()
            try:
                await self.read_through()
            except StoreUnavailable as error:
                _log.warning("store.unavailable", extra={"why": error.why})
            except Exception:  # noqa: BLE001 - end of a task, and no request depends on it
                _log.exception("metrics.not_counted")
            pause = AFTER_A_MISS if self._entries is None else EVERY
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self.has_missed.wait()
            if self.has_missed.is_set():
                await asyncio.sleep(AFTER_A_MISS.total_seconds())

    async def page(self) -> bytes:
        """Return all metrics in the Prometheus format."""
        assert self._metrics is not None
        return self._metrics.page(await self._samples())

    async def _samples(self) -> Mapping[MetricFamily, Samples]:
        """Return the current metrics of the store, and whether the server is ready."""
        service = self._service
        is_ready = not service.is_draining and await service.readiness.is_ready()
        found: dict[MetricFamily, Samples] = {families.READY: {(): float(is_ready)}}
        if (free := _free_bytes(service.elicitations.store.address)) is not None:
            found[families.DISK] = {(): float(free)}
        found[families.EVENTS_WAITING] = {
            (address,): float(count)
            for address, count in service.events.backlog.counts().items()
            if address in service.events.addresses
        }
        found[families.STEPPED_BACK] = {(): await self._stepped_back()}
        now = service.clock()
        if self._added is None or now - self._added[0] >= ADDED_UP_AFTER:
            self._added = now, await self._add_up(now)
        return {**found, **self._added[1]}

    async def _stepped_back(self) -> float:
        with suppress(StoreUnavailable):
            back = await self._service.elicitations.high_water.step_back()
            if back is not None and not back.was_restored:
                self._stepped_back_at = back.noticed_at.timestamp()
        return self._stepped_back_at

    async def _add_up(self, now: datetime) -> Mapping[MetricFamily, Samples]:
        if self._entries is None or self._read_at is None:
            return {}
        counts: Counter[tuple[str, ...]] = Counter()
        oldest, unspent = now, 0
        unresolved: Counter[tuple[str, ...]] = Counter({(each.value,): 0 for each in _UNRESOLVED})
        for number, (row, what, since, until) in enumerate(tuple(self._entries.values())):
            if not number % AT_ONCE:
                await asyncio.sleep(0)  # let other tasks run
            if until is not None and until <= now:
                continue  # expired: the sweeper will change the status or erase it
            if row == KINDS[Elicitation]:
                counts[what, _age(now - since)] += 1
            elif row == KINDS[Payment]:
                unspent += 1
            else:
                unresolved[(what,)] += 1
                oldest = min(oldest, since)
        return {
            families.OPEN: dict(counts),
            families.UNSPENT: {(): unspent},
            families.UNRESOLVED: dict(unresolved),
            families.UNRESOLVED_AGE: {(): (now - oldest).total_seconds()},
            families.LOOKED_UP: {(): self._read_at.timestamp()},
        }

    async def read_through(self) -> None:
        """Read all entries of the store, and then apply the changes received during the reading."""
        service, found = self._service, dict[str, _Entry]()
        received: dict[str, _Entry | None] = {}
        self._received = received
        loop = asyncio.get_running_loop()
        try:
            for kind in _COUNTED:
                after: str | None = None
                while True:
                    began = loop.time()
                    page = await service.elicitations.store.list(kind, after=after)
                    for record in page:
                        if (entry := await self._read(record)) is not None:
                            found[record.id] = entry
                    if not page:
                        break
                    after = page[-1].id
                    await asyncio.sleep((loop.time() - began) * PAUSES)
        finally:
            self._received = None
        for id, entry in received.items():
            _put(found, id, entry)
        self._entries, self._read_at, self._added = found, service.clock(), None

    async def _on_change(self, record: Record) -> None:
        if record.kind in _COUNTED:
            self._take(record.id, await self._read(record))

    async def _read(self, record: Record) -> _Entry | None:
        """Return the entry of a record, or None for an ended record, which is not decrypted."""
        if not _may_count(record.kind, record.status):
            return None
        try:
            return _entry_of(
                await self._service.elicitations.rows.open(record, _COUNTED[record.kind])
            )
        except Unreadable:
            return None

    def _take(self, id: str, entry: _Entry | None) -> None:
        if self._received is not None:
            self._received[id] = entry
        if self._entries is not None:
            _put(self._entries, id, entry)


def _entry_of(value: Counted) -> _Entry | None:
    if not _may_count(KINDS[type(value)], value.status):
        return None
    match value:
        case Elicitation():
            return KINDS[Elicitation], value.kind, value.created_at, value.expires_at
        case Payment():
            return KINDS[Payment], value.status, value.paid_at, None
        case UnresolvedPayment():
            return KINDS[UnresolvedPayment], value.status, value.found_at, None


def _put(entries: dict[str, _Entry], id: str, entry: _Entry | None) -> None:
    if entry is None:
        entries.pop(id, None)
    else:
        entries[id] = entry


def _may_count(kind: str, status: str) -> bool:
    if kind == KINDS[Elicitation]:
        return status in _OPEN
    if kind == KINDS[Payment]:
        return status == ReceiptStatus.OPEN
    return status in _UNRESOLVED


def _free_bytes(address: str | None) -> int | None:
    """Return the free space on the disk of a store that is a file."""
    if address is None or not address.startswith(_FILE):
        return None
    with suppress(OSError):
        return shutil.disk_usage(Path(address.removeprefix(_FILE)).parent).free
    return None


def _age(age: timedelta) -> str:
    return next((name for limit, name in AGES if age <= limit), OLDER)
