"""The outbox: the events of a write, stored as rows of the same write.

Risks: an event about something that was never written, or a change without an event. Both are
therefore one atomic write. An event's id consists of the id of the record that it reports, the
address, and the record's new version, which only increases. The events of one question for one
address are therefore next to each other in the store, in order, and are found without reading other
records.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from flows.elicitation.states import Elicitation
from flows.kinds.form import approver_of
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.deadline import Clock
from webapp.events.addresses import TYPES, EventAddress, EventPlace
from webapp.events.backlog import Backlog
from webapp.records.entries import Move
from webapp.records.ids import RANDOM_BYTES, owner_of
from webapp.records.values import KINDS, OutgoingEvent, RefusedRegistration, Value
from webapp.telemetry.observer import Observer

EVENTS_KEPT: Final = timedelta(days=30)
ID_PREFIX: Final = "evt_"
OWN: Final = timedelta(seconds=5)  # time in which only the process that wrote the event sends it
_LETTERS_AT_MOST: Final = 100  # of a name that an author chose
# A payment's events sort after those of its question.
_OF_QUESTIONS, _OF_PAYMENTS = "0", "1"
# statuses to which a disputed payment can return
_STANDS: Final = frozenset({"paid", "spent", "refunded in part"})
_CLAIMED: Final = frozenset({"disputed", "disputed in part", "dispute lost", "dispute appealed"})
_INQUIRY: Final = "inquiry"
# statuses that send no second event while they stay the same
_TOLD_ONCE: Final = frozenset({_INQUIRY, "disputed in part"})


class EventOutbox:
    """The outbox of a process. `wake` receives the written events if this process sends events."""

    def __init__(
        self,
        addresses: Sequence[EventAddress],
        *,
        backlog: Backlog,
        clock: Clock,
        random: Callable[[int], bytes],
        observer: Observer,
        retention: timedelta = EVENTS_KEPT,
    ) -> None:
        self._addresses = addresses
        self._backlog = backlog
        self._clock = clock
        self._random = random
        self._observer = observer
        self._retention = retention
        self.wake: Callable[[OutgoingEvent], None] | None = None

    def events(self, moved: Sequence[Move[Value]], *, at_most: int) -> list[OutgoingEvent]:
        """Return the events for these changes; see Outbox."""
        wanted = (
            (move.value, event_type, address)
            for move in moved
            if (event_type := _type_of(move)) is not None
            for address in self._addresses
            if address.wants(event_type) and address.name not in self._backlog.ended
        )
        found = list[OutgoingEvent]()
        for value, event_type, address in wanted:
            if len(found) < at_most and self._backlog.has_room(address.name):
                found.append(self._event(value, event_type, address))
            else:
                self._backlog.leave_out(address.name)
                self._observer.event_sent(address.name, "not_kept")
        return found

    def wrote(self, values: Sequence[Value]) -> None:
        """Count the written events and wake the sender; see Outbox."""
        for value in values:
            if isinstance(value, OutgoingEvent):
                self._backlog.update(value.id, status=value.status)
                if self.wake is not None and value.version == 1:
                    self.wake(value)

    def _event(self, value: Value, event_type: str, address: EventAddress) -> OutgoingEvent:
        now, chance = self._clock(), base64.urlsafe_b64encode(self._random(RANDOM_BYTES)).decode()
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
            erase_at=now + self._retention,
            next_at=now if self.wake is None else now + OWN,
        )


def _type_of(move: Move[Value]) -> str | None:
    """Return the event type of a change, or None if no event is sent for it."""
    kind, word = move.entry.kind, move.entry.what.partition(":")[0]
    previous = (move.former or "").partition(":")[0]
    if kind != KINDS[Payment]:
        return TYPES.get((kind, word))
    if word == previous and word in _TOLD_ONCE:
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
            yield from _named(server=value.asked.server, tool=value.asked.tool, approver=approver)
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
            raise AssertionError(f"nothing is told of {type(value)}")


def _named(**names: str) -> Iterator[tuple[str, str]]:
    """Yield the names that are not empty. Questions from the API or from code have no tool."""
    yield from ((key, name[:_LETTERS_AT_MOST]) for key, name in names.items() if name)
