"""The outbox: the events of a write, stored as rows of the same write, and how many events wait.

Risks: an event about something that was never written, or a change without an event. A change and
its events are therefore one atomic write. An event's id consists of the id of the record that it
reports, the address, and the record's new version, which only increases. The events of one question
for one address are therefore next to each other in the store, in order, and are found without
reading other records.

Risks: a receiver is down for days and its waiting events fill the store. Each address therefore has
a limit. Events above the limit are not stored. This loss is reported in the log (at most once a
minute), in the metrics and in the row of the address, which `elicit doctor` reads. Events that
already wait are not removed, because receivers need the earlier events to understand later ones.

The backlog reads the rows once, and then follows the changes that all processes write. It reads the
rows again every hour, and after changes were missed, because rows may have been erased or lost.
"""

import asyncio
import base64
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from flows.elicitation.states import Elicitation
from flows.errors import StoreUnavailable
from flows.kinds.form import approver_of
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.deadline import Clock
from webapp.elicitations.service import Elicitations
from webapp.events.addresses import TYPES, EventAddress, EventPlace, place_of
from webapp.records.entries import StateChange
from webapp.records.ids import RANDOM_BYTES, owner_of
from webapp.records.values import KINDS, OutgoingEvent, RefusedRegistration, Value
from webapp.stores import Record
from webapp.telemetry.families import Observer

WAITING_AT_MOST: Final = 10_000
KIND: Final = KINDS[OutgoingEvent]
BETWEEN_WORDS: Final = timedelta(minutes=1)
_EVERY: Final = timedelta(hours=1)
_AFTER_A_MISS: Final = timedelta(seconds=30)
_PAUSES: Final = 4  # reading uses at most a fifth of the time
_log = logging.getLogger("webapp.events.backlog")  # the name in the log lines of earlier versions


class Backlog:
    """The waiting events of each address. `ended` are addresses that want no more events."""

    def __init__(self, elicitations: Elicitations, *, at_most: int = WAITING_AT_MOST) -> None:
        self._elicitations = elicitations
        self._at_most = at_most
        self._waiting = defaultdict[str, set[str]](set)  # the ids of waiting events, by address
        # status changes received while the store is being read
        self._received: dict[str, str] | None = None
        self._has_missed = asyncio.Event()
        self._logged_at: dict[str, datetime] = {}
        self.ended: frozenset[str] = frozenset()
        self.not_stored = Counter[str]()  # events not stored since these counts were last saved

    def can_add(self, address: str) -> bool:
        """Return True if one more event can be stored for the address."""
        return len(self._waiting[address]) < self._at_most

    def leave_out(self, address: str) -> None:
        """Count an event that is not stored, and log it."""
        self.not_stored[address] += 1
        now, logged_at = self._elicitations.clock(), self._logged_at.get(address)
        if logged_at is None or now - logged_at >= BETWEEN_WORDS:
            self._logged_at[address] = now
            waiting = len(self._waiting[address])
            _log.error("events.not_stored", extra={"address": address, "waiting": waiting})

    def update(self, id: str, *, status: str) -> None:
        """Update the count from an event's status, written by any process."""
        if self._received is not None:
            self._received[id] = status
        self._put(id, status)

    def counts(self) -> Mapping[str, int]:
        return {address: len(ids) for address, ids in self._waiting.items()}

    async def follow(self) -> None:
        """Keep the counts current. Runs until cancelled."""
        self._elicitations.subscribers.append(self._on_change)
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
        self._received = {}
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
            for id, status in self._received.items():
                self._put(id, status)
        finally:
            self._received = None

    async def _on_change(self, record: Record) -> None:
        if record.kind == KIND:
            self.update(record.id, status=record.status)

    def _put(self, id: str, status: str) -> None:
        ids = self._waiting[place_of(id).address]
        if status == "waiting":
            ids.add(id)
        else:
            ids.discard(id)


EVENT_RETENTION: Final = timedelta(days=30)
ID_PREFIX: Final = "evt_"
OWN: Final = timedelta(seconds=5)  # for this time, only the process that wrote the event sends it
_CHARACTERS_AT_MOST: Final = 100  # characters of a name that an author chose
# A payment's events sort after those of its question.
_OF_QUESTIONS, _OF_PAYMENTS = "0", "1"
# statuses to which a disputed payment can return
_STANDS: Final = frozenset({"paid", "spent", "refunded in part"})
_CLAIMED: Final = frozenset({"disputed", "disputed in part", "dispute lost", "dispute appealed"})
_INQUIRY: Final = "inquiry"
# statuses for which a record sends no second event until its status changes
_REPORTED_ONCE: Final = _CLAIMED | {_INQUIRY}


@dataclass(slots=True, kw_only=True, eq=False)
class EventOutbox:
    """The outbox of a process. `wake` receives the written events if this process sends events."""

    addresses: Sequence[EventAddress]
    backlog: Backlog
    clock: Clock
    random: Callable[[int], bytes]
    observer: Observer
    retention: timedelta
    wake: Callable[[OutgoingEvent], None] | None = None

    def events(self, changes: Sequence[StateChange[Value]], *, at_most: int) -> list[OutgoingEvent]:
        """Return the events for these changes; see Outbox."""
        wanted = (
            (change.value, event_type, address)
            for change in changes
            if (event_type := _type_of(change)) is not None
            for address in self.addresses
            if address.wants(event_type) and address.name not in self.backlog.ended
        )
        found = list[OutgoingEvent]()
        for value, event_type, address in wanted:
            if len(found) < at_most and self.backlog.can_add(address.name):
                found.append(self._event(value, event_type, address))
            else:
                self.backlog.leave_out(address.name)
                self.observer.event_sent(address.name, "not_kept")
        return found

    def after_write(self, values: Sequence[Value]) -> None:
        """Count the written events and wake the sender; see Outbox."""
        for value in values:
            if isinstance(value, OutgoingEvent):
                self.backlog.update(value.id, status=value.status)
                if self.wake is not None and value.version == 1:
                    self.wake(value)

    def _event(self, value: Value, event_type: str, address: EventAddress) -> OutgoingEvent:
        now, chance = self.clock(), base64.urlsafe_b64encode(self.random(RANDOM_BYTES)).decode()
        about, rank = value.id, _OF_QUESTIONS
        if isinstance(value, Payment) and owner_of(value.elicitation_id) == value.owner:
            about, rank = value.elicitation_id, _OF_PAYMENTS
        ordering_key = EventPlace(about, address.name)
        return OutgoingEvent(
            id=f"{ordering_key}{rank}{value.version + 1:010d}.{chance}",
            owner=value.owner,
            address=address.name,
            webhook_id=f"{ID_PREFIX}{chance}{value.owner}",
            type=event_type,
            facts=dict(_facts(value)),
            happened_at=now,
            erase_at=now + self.retention,
            next_at=now if self.wake is None else now + OWN,
        )


def _type_of(change: StateChange[Value]) -> str | None:
    """Return the event type of a change, or None if no event is sent for it."""
    kind, word = change.entry.kind, change.entry.what.partition(":")[0]
    previous = (change.former or "").partition(":")[0]
    if kind != KINDS[Payment]:
        return TYPES.get((kind, word))
    if word == previous and word in _REPORTED_ONCE:
        return None
    is_back = word in _STANDS
    if is_back and previous in _CLAIMED:
        word = "dispute won"
    elif is_back and previous == _INQUIRY:
        word = "inquiry closed"
    return TYPES.get((kind, word))


def _facts(value: Value) -> Iterator[tuple[str, str | bool]]:
    """Yield the event's data: nothing about the person, the question's text or the answer."""
    yield "id", value.id
    match value:
        case Elicitation():
            yield "kind", value.kind
            yield "status", value.status.value
            approver = approver_of(value) or ""
            yield from _named(
                server=value.request.server, tool=value.request.tool, approver=approver
            )
        case Payment():
            yield "question", value.elicitation_id
            yield "provider", value.seller
            yield "status", value.status.value
            yield "is_live", value.is_live
            yield from _named(server=value.server, tool=value.tool)
        case Connection():
            yield "provider", value.provider
            yield "status", value.status
            end = value.ends_at if value.warned_at is not None and value.is_connected else None
            ends_at = "" if end is None else f"{end:%Y-%m-%dT%H:%M:%SZ}"
            yield from _named(server=value.server, ends_at=ends_at)
        case RefusedRegistration():
            yield "provider", value.provider
            yield "status", value.status
            yield from _named(fault=value.fault, error=value.error or "")
        case _:
            raise AssertionError(f"no event is sent about a {type(value)}")


def _named(**names: str) -> Iterator[tuple[str, str]]:
    """Yield the names that are not empty. Questions from the API or from code have no tool."""
    yield from ((key, name[:_CHARACTERS_AT_MOST]) for key, name in names.items() if name)
