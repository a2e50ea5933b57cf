"""The sender: sends each event to its address and retries until it is delivered or given up.

A process claims an event by compare-and-set: the try is counted, and no other process sends the
event for as long as a request may take. Then it makes one request and notes the result. If the
process is killed in between, the event is sent again under the same id when the claim expires.

Risks: a newer event arrives before an older one. The sender therefore reads all events of the same
question and address in order, and sends the first waiting event, then the next, until one has to
wait. A slow receiver could also delay the other addresses. Each address therefore has its own
lanes.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import httpx
from msgspec.structs import replace

from flows.errors import Failed, StoreUnavailable, Unreadable
from webapp.elicitations.service import Elicitations
from webapp.events.addresses import EventAddress, EventPlace, place_of
from webapp.events.outbox import KIND, Backlog
from webapp.http.client import Outbound
from webapp.records.owners import SERVICE
from webapp.records.values import EventAddressState, OutgoingEvent
from webapp.stores import Conflict

# Pauses between tries: Standard Webhooks, Deliverability. Three days in total.
SCHEDULE: Final = (
    *(timedelta(seconds=5), timedelta(minutes=5), timedelta(minutes=30)),
    *(timedelta(hours=hours) for hours in (2, 5, 10, 14, 20, 24)),
)
# Each pause is extended by a random fraction of its length, at most this fraction, so that events
# that failed together are not retried at the same moment.
JITTER: Final = 0.2
RETRY_AFTER_AT_MOST: Final = timedelta(days=1)
CLAIMED: Final = timedelta(seconds=30)  # a request takes at most ten seconds
LANES: Final = 4  # concurrent requests to one address from one process
ENDED: Final = "ended"
_READ_AT_ONCE: Final = 10  # more than most questions have
K = TypeVar("K")
V = TypeVar("V")
_log = logging.getLogger(__name__)


class SendQueue(Generic[K, V]):
    """A queue of rows to send to one address now, by key. `send` receives and sends each row."""

    def __init__(self, send: Callable[[K, V], Awaitable[object]], *, on_error: str) -> None:
        """`on_error` is the log event for an unexpected error; the row becomes due again."""
        self.rows = OrderedDict[K, V]()
        self._send = send
        self._on_error = on_error
        self._has_some = asyncio.Event()

    def put(self, key: K, row: V) -> None:
        self.rows[key] = row
        self._has_some.set()

    async def work(self, log: logging.Logger) -> None:
        """Send rows, one after another. Runs until cancelled."""
        while True:
            await self._has_some.wait()
            try:
                await self._next()
            except StoreUnavailable as error:
                log.warning("store.unavailable", extra={"why": error.why})
            except Exception:  # the edge of a task; the row becomes due again
                log.exception(self._on_error)

    async def send_all(self) -> None:
        """Send all rows that can be sent now, one after another."""
        while self.rows:
            await self._next()

    async def _next(self) -> None:
        if self.rows:
            await self._send(*self.rows.popitem(last=False))
        else:
            self._has_some.clear()


class EventSender:
    """The sender of a process."""

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        outbound: Outbound,
        addresses: Iterable[EventAddress],
        backlog: Backlog,
        random: Callable[[int], bytes],
    ) -> None:
        self._elicitations = elicitations
        self._outbound = outbound
        self._backlog = backlog
        self._random = random
        # By address: the queue maps an ordering key to an event that is new or due, and to the ids
        # of events that this process has just written, which it may send before they are due.
        self._queues: Mapping[str, SendQueue[EventPlace, tuple[OutgoingEvent, frozenset[str]]]] = {
            each.name: SendQueue(partial(self._send_in_order, each), on_error="event.failed")
            for each in addresses
        }

    def wake(self, event: OutgoingEvent) -> None:
        """Queue an event that this process has just written."""
        self._put(event, own=frozenset({event.id}))

    async def fall_due(self, event: OutgoingEvent) -> None:
        """Queue an event that is due."""
        if event.address in self._queues:
            self._put(event)
        else:  # another process may know the address, so schedule another try
            why = f"{event.address} is not configured in this process"
            await self._tried(replace(event, tries=event.tries + 1), why=why)

    async def run(self) -> None:
        """Send events. Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in self._queues.values():
                for _ in range(LANES):
                    group.create_task(queue.work(_log))

    async def send_all(self) -> None:
        """Send all events that can be sent now, one after another."""
        for queue in self._queues.values():
            await queue.send_all()

    async def send(self, address: EventAddress, event: OutgoingEvent) -> httpx.Response | str:
        """Make one request. Return the response without its body, or the reason for no response."""
        request = address.request(event, now=self._elicitations.clock())
        try:
            return await self._outbound.send(
                request, bytes_at_most=0, operation="event", provider="events"
            )
        except httpx.TimeoutException:
            return "no answer in time"
        except Failed as error:
            return str(error)
        except httpx.HTTPError as error:
            return type(error).__name__

    def _put(self, event: OutgoingEvent, *, own: frozenset[str] = frozenset()) -> None:
        queue, ordering_key = self._queues[event.address], place_of(event.id)
        if ordering_key in queue.rows:
            own |= queue.rows[ordering_key][1]
        queue.put(ordering_key, (event, own))

    async def _send_in_order(
        self,
        address: EventAddress,
        ordering_key: EventPlace,
        woken: tuple[OutgoingEvent, frozenset[str]],
    ) -> None:
        """Send all events of one ordering key that need not wait."""
        event, own = woken
        was_sent = False
        while (first := await self._first_waiting(event.owner, ordering_key)) is not None:
            is_free = first.next_at <= self._elicitations.clock() or first.id in own
            # An untried event only waited for its predecessor: send it, even if it is not due yet.
            if not (is_free or (was_sent and not first.tries)):
                await self._wait_for(first, event)
                return
            # Run to completion even during shutdown; otherwise the event would be sent twice.
            was_sent = await self._elicitations.run_to_completion(self._attempt(address, first))
            if not was_sent:
                return

    async def _first_waiting(self, owner: str, ordering_key: EventPlace) -> OutgoingEvent | None:
        after = str(ordering_key)
        store = self._elicitations.store
        while page := await store.list(KIND, owner=owner, after=after, limit=_READ_AT_ONCE):
            for record in page:
                if not record.id.startswith(str(ordering_key)):
                    return None
                if record.status == "waiting":
                    try:
                        return await self._elicitations.rows.open(record, OutgoingEvent)
                    except Unreadable:  # later events do not wait for an event that cannot be sent
                        _log.exception("record.unreadable", extra={"kind": KIND})
            after = page[-1].id
        return None

    async def _wait_for(self, first: OutgoingEvent, event: OutgoingEvent) -> None:
        """Postpone `event` to the next try of `first`, the event that it waits for."""
        if event.id != first.id and event.next_at < first.next_at:
            with suppress(Conflict):
                await self._elicitations.write(replace(event, next_at=first.next_at))

    async def _attempt(self, address: EventAddress, event: OutgoingEvent) -> bool:
        """Try to send the event. Return True if it was sent or given up: the next may follow."""
        if address.name in self._backlog.ended:
            return await self._noted(replace(event, status="given up", why=ENDED))
        # No try is left: after the last claim, the process ended before it noted the result.
        if event.tries > len(SCHEDULE):
            return await self._noted(replace(event, status="given up"))
        until = self._elicitations.clock() + CLAIMED
        claim = replace(event, tries=event.tries + 1, next_at=until)
        try:
            await self._elicitations.write(claim)
        except Conflict:  # another process sends the event, or its owner was erased
            return False
        claimed = replace(claim, version=claim.version + 1)
        reply = await self.send(address, claimed)
        if isinstance(reply, str):
            return await self._tried(claimed, why=reply)
        if reply.is_success:
            sent_at = self._elicitations.clock()
            return await self._noted(replace(claimed, status="sent", why=None, sent_at=sent_at))
        if reply.status_code == HTTPStatus.GONE:
            await self._end(address)
            return await self._noted(replace(claimed, status="given up", why=ENDED))
        why = f"HTTP {reply.status_code}"
        return await self._tried(claimed, why=why, not_before=self._retry_after(reply))

    async def _tried(
        self, event: OutgoingEvent, *, why: str, not_before: datetime | None = None
    ) -> bool:
        """Schedule the next try, or give up if no try is left. Return True if given up."""
        if event.tries > len(SCHEDULE):
            return await self._noted(replace(event, status="given up", why=why))
        now, chance = self._elicitations.clock(), self._random(1)[0] / 255
        again = now + SCHEDULE[event.tries - 1] * (1 + JITTER * chance)
        if not_before is not None:
            again = max(again, not_before)
        return await self._noted(replace(event, next_at=again, why=why))

    async def _noted(self, event: OutgoingEvent) -> bool:
        about = {"webhook_id": event.webhook_id, "address": event.address, "type": event.type}
        try:
            await self._elicitations.write(event)
        except Conflict:  # the event was replayed in the meantime, or its owner was erased
            return False
        match event.status:
            case "sent":
                _log.info("event.sent", extra=about)
            case "given up":
                _log.error("event.given_up", extra={**about, "why": event.why})
            case _:
                _log.warning("event.not_accepted", extra={**about, "why": event.why})
        result = "failed" if event.status == "waiting" else event.status.replace(" ", "_")
        self._elicitations.observer.event_sent(event.address, result)
        return event.status != "waiting"

    async def _end(self, address: EventAddress) -> None:
        """Stop sending to the address and storing events for it: the receiver said 410 Gone."""
        now, id = self._elicitations.clock(), state_id(self._elicitations, address)
        _log.error("events.address_ended", extra={"address": address.name})
        self._backlog.ended |= {address.name}

        async def ended() -> list[EventAddressState]:
            found = await state_of(self._elicitations, address)
            before = found or EventAddressState(id=id, owner=SERVICE)
            return [] if before.ended_at else [replace(before, ended_at=now)]

        await self._elicitations.write_rebuilt(ended)

    def _retry_after(self, reply: httpx.Response) -> datetime | None:
        """Return the time in the Retry-After header (RFC 9110, 10.2.3), or None."""
        text, now = reply.headers.get("retry-after", ""), self._elicitations.clock()
        if text.isascii() and text.isdigit():
            pause = timedelta(seconds=min(int(text[:9]), RETRY_AFTER_AT_MOST.total_seconds()))
            return now + pause
        try:
            retry_at = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        retry_at = retry_at if retry_at.tzinfo is not None else retry_at.replace(tzinfo=UTC)
        return min(retry_at, now + RETRY_AFTER_AT_MOST)


def state_id(elicitations: Elicitations, address: EventAddress) -> str:
    """Return the id of the address's state row. A changed URL gets a new row."""
    tag = elicitations.owners.pepper.tag("event address", address.name, address.url)
    return SERVICE + tag


async def state_of(elicitations: Elicitations, address: EventAddress) -> EventAddressState | None:
    return await elicitations.read(
        EventAddressState, owner=SERVICE, id=state_id(elicitations, address)
    )
