"""The sender: each event goes to its address, again by the schedule until it is taken or given up.

Who sends is decided by a claim, a compare-and-set of the event itself: tried once more, and not to
be tried by anybody else for as long as a request may take. Then one request, then a note of how it
went. Killed between the two, it is sent again when the claim is out, under the same id.

What could go wrong: the newer of two arrives first. So whoever is woken for an event, or finds that
it is due, reads what its question has for the address, in order, and sends the first that waits;
then the next, until one has to wait. Or a receiver that takes ten seconds for each keeps all others
waiting: so each address has lanes of its own, and nobody waits for what stands in them.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

import httpx
from msgspec.structs import replace

from flows.errors import Failed, StoreUnavailable, Unreadable
from webapp.elicitations.service import Elicitations
from webapp.events.addresses import EventAddress, EventPlace, place_of
from webapp.events.backlog import KIND, Backlog
from webapp.http.client import Outbound
from webapp.records.owners import SERVICE
from webapp.records.values import EventAddressState, OutgoingEvent
from webapp.stores import Conflict

# After which pause it is tried again: Standard Webhooks, Deliverability. Three days in all.
SCHEDULE: Final = (
    *(timedelta(seconds=5), timedelta(minutes=5), timedelta(minutes=30)),
    *(timedelta(hours=hours) for hours in (2, 5, 10, 14, 20, 24)),
)
JITTER: Final = 0.2  # of a pause at most, so that what failed together does not come back together
RETRY_AFTER_AT_MOST: Final = timedelta(days=1)
CLAIMED: Final = timedelta(seconds=30)  # a request takes ten at most
LANES: Final = 4  # requests to one address at once, from one process
ENDED: Final = "ended"
_READ_AT_ONCE: Final = 10  # a question has fewer to tell
_log = logging.getLogger(__name__)


class _Lanes:
    """What one address may be told now: of each place an event that was woken or is due.

    Beside it are the ids of those that were written here a moment ago, which is left to us.
    """

    def __init__(self, address: EventAddress) -> None:
        self.address = address
        self.places = OrderedDict[EventPlace, tuple[OutgoingEvent, frozenset[str]]]()
        self.has_some = asyncio.Event()


class EventSender:
    """One for a process."""

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
        self._lanes: Mapping[str, _Lanes] = {each.name: _Lanes(each) for each in addresses}

    def wake(self, event: OutgoingEvent) -> None:
        """It was written here a moment ago."""
        self._put(self._lanes[event.address], event, own=frozenset({event.id}))

    async def fall_due(self, event: OutgoingEvent) -> None:
        """Its time has come, or whoever was to send it is gone; returns at once."""
        lanes = self._lanes.get(event.address)
        if lanes is None:
            # Another process may know the address: nobody has it given up before its time.
            why = f"{event.address} is no address here"
            await self._tried(replace(event, tries=event.tries + 1), why=why)
        else:
            self._put(lanes, event)

    async def run(self) -> None:
        """Send; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for lanes in self._lanes.values():
                for _ in range(LANES):
                    group.create_task(self._work(lanes))

    async def send_all(self) -> None:
        """Send what may be sent now, one after another."""
        for lanes in self._lanes.values():
            while lanes.places:
                await self._next(lanes)

    async def send(self, address: EventAddress, event: OutgoingEvent) -> httpx.Response | str:
        """One request: what is answered, its body unread, or why there is no answer."""
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

    def _put(
        self, lanes: _Lanes, event: OutgoingEvent, *, own: frozenset[str] = frozenset()
    ) -> None:
        place = place_of(event.id)
        if place in lanes.places:
            own |= lanes.places[place][1]
        lanes.places[place] = event, own
        lanes.has_some.set()

    async def _work(self, lanes: _Lanes) -> None:
        while True:
            await lanes.has_some.wait()
            try:
                await self._next(lanes)
            except StoreUnavailable as error:
                _log.warning("store.unavailable", extra={"why": error.why})
            except Exception:  # noqa: BLE001 - a task's edge; what was to be sent is due again
                _log.exception("event.failed")

    async def _next(self, lanes: _Lanes) -> None:
        """All that one place has to tell and that need not wait."""
        if not lanes.places:
            lanes.has_some.clear()
            return
        place, (event, own) = lanes.places.popitem(last=False)
        has_told = False
        while (first := await self._first_waiting(event.owner, place)) is not None:
            is_free = first.next_at <= self._elicitations.clock() or first.id in own
            # What waited only for the one before it need not wait any more, whoever wrote it.
            if not (is_free or (has_told and not first.tries)):
                await self._wait_for(first, event)
                return
            # To its end, also when the process is told to end: else it would be sent once more.
            has_told = await self._elicitations.whole(self._attempt(lanes.address, first))
            if not has_told:
                return

    async def _first_waiting(self, owner: str, place: EventPlace) -> OutgoingEvent | None:
        after = str(place)
        store = self._elicitations.store
        while page := await store.list(KIND, owner=owner, after=after, limit=_READ_AT_ONCE):
            for record in page:
                if not record.id.startswith(str(place)):
                    return None
                if record.status == "waiting":
                    try:
                        return await self._elicitations.rows.open(record, OutgoingEvent)
                    except Unreadable:  # nobody can send it, so nobody waits for it
                        _log.exception("record.unreadable", extra={"kind": KIND})
            after = page[-1].id
        return None

    async def _wait_for(self, first: OutgoingEvent, event: OutgoingEvent) -> None:
        """Nobody looks at it again before the one that it waits for."""
        if event.id != first.id and event.next_at < first.next_at:
            with suppress(Conflict):
                await self._elicitations.write(replace(event, next_at=first.next_at))

    async def _attempt(self, address: EventAddress, event: OutgoingEvent) -> bool:
        """Whether it is over with this one, so that the next one may go."""
        if address.name in self._backlog.ended:
            return await self._noted(replace(event, status="given up", why=ENDED))
        if event.tries > len(SCHEDULE):  # nobody lived to note how any of them went
            return await self._noted(replace(event, status="given up"))
        until = self._elicitations.clock() + CLAIMED
        claim = replace(event, tries=event.tries + 1, next_at=until)
        try:
            await self._elicitations.write(claim)
        except Conflict:  # somebody else sends it, or its owner was erased
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
        """It waits for its next try, or there is none left."""
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
        except Conflict:  # it was replayed meanwhile, or its owner was erased
            return False
        match event.status:
            case "sent":
                _log.info("event.sent", extra=about)
            case "given up":
                _log.error("event.given_up", extra={**about, "why": event.why})
            case _:
                _log.warning("event.not_taken", extra={**about, "why": event.why})
        result = "failed" if event.status == "waiting" else event.status.replace(" ", "_")
        self._elicitations.observer.event_sent(event.address, result)
        return event.status != "waiting"

    async def _end(self, address: EventAddress) -> None:
        """It has said that it is gone: nothing more is sent there, nor kept for it."""
        now, id = self._elicitations.clock(), state_id(self._elicitations, address)
        _log.error("events.address_ended", extra={"address": address.name})
        self._backlog.ended |= {address.name}

        async def ended() -> list[EventAddressState]:
            found = await state_of(self._elicitations, address)
            before = found or EventAddressState(id=id, owner=SERVICE)
            return [] if before.ended_at else [replace(before, ended_at=now)]

        await self._elicitations.write_afresh(ended)

    def _retry_after(self, reply: httpx.Response) -> datetime | None:
        """When it is to be asked again, if it says so: RFC 9110, 10.2.3."""
        text, now = reply.headers.get("retry-after", ""), self._elicitations.clock()
        if text.isascii() and text.isdigit():
            pause = timedelta(seconds=min(int(text[:9]), RETRY_AFTER_AT_MOST.total_seconds()))
            return now + pause
        try:
            told = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        told = told if told.tzinfo is not None else told.replace(tzinfo=UTC)
        return min(told, now + RETRY_AFTER_AT_MOST)


def state_id(elicitations: Elicitations, address: EventAddress) -> str:
    """Of another address under the same name nothing is known."""
    tag = elicitations.owners.pepper.tag("event address", address.name, address.url)
    return SERVICE + tag


async def state_of(elicitations: Elicitations, address: EventAddress) -> EventAddressState | None:
    return await elicitations.read(
        EventAddressState, owner=SERVICE, id=state_id(elicitations, address)
    )
