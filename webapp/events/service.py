"""The interface of outgoing webhooks for the rest of the project: list, replay, test, resume.

Risks: processes disagree about the state of an address. The state is therefore stored in a row,
which each process reads every few seconds.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import httpx
from msgspec.structs import replace

from flows.errors import Unreadable
from webapp.deadline import ticks_of
from webapp.elicitations.service import Elicitations
from webapp.events.addresses import TEST_TYPE, EventAddress, place_of
from webapp.events.outbox import (
    BETWEEN_WORDS,
    EVENT_RETENTION,
    ID_PREFIX,
    KIND,
    WAITING_AT_MOST,
    Backlog,
    EventOutbox,
)
from webapp.events.sender import EventSender, state_id, state_of
from webapp.http.client import Outbound
from webapp.records.ids import RANDOM_BYTES
from webapp.records.owners import SERVICE
from webapp.records.values import KINDS, EventAddressState, OutgoingEvent

_WEBHOOK_ID: Final = re.compile(rf"{ID_PREFIX}[A-Za-z0-9_-]{{16}}(?P<owner>[A-Za-z0-9_-]{{20}}|~)")
_READ_AT_ONCE: Final = 100
_READ_AT_MOST: Final = 1000  # rows per page request, whether they match or not
_log = logging.getLogger(__name__)


class EventsOut:
    """Outgoing webhooks of a process. Without addresses, nothing is written."""

    def __init__(
        self,
        elicitations: Elicitations,
        *,
        outbound: Outbound,
        addresses: Sequence[EventAddress] = (),
        retention: timedelta = EVENT_RETENTION,
        waiting_at_most: int = WAITING_AT_MOST,
    ) -> None:
        self.addresses = {each.name: each for each in addresses}
        self._elicitations = elicitations
        self._ticks = ticks_of(elicitations.clock)
        self._counted_at: float | None = None
        random = elicitations.owners.random
        self.backlog = Backlog(elicitations, at_most=waiting_at_most)
        self.sender = EventSender(
            elicitations=elicitations,
            outbound=outbound,
            addresses=addresses,
            backlog=self.backlog,
            random=random,
        )
        self._outbox = EventOutbox(
            addresses=addresses,
            backlog=self.backlog,
            clock=elicitations.clock,
            random=random,
            observer=elicitations.observer,
            retention=retention,
        )
        if addresses:
            elicitations.rows.outbox = self._outbox

    async def run(self) -> None:
        """Send events written here at once, and due events. Runs until cancelled."""
        if not self.addresses:
            return
        self.send_from_here()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sender.run())
            group.create_task(self.backlog.follow())

    def send_from_here(self) -> None:
        """Let this process send the events that it writes."""
        self._outbox.wake = self.sender.wake

    async def look(self) -> None:
        """Read the address states that other processes wrote, and write this process's counts."""
        try:
            states = await self.states()
        except Unreadable:  # an error here must not stop the sweeper's other work
            _log.exception("record.unreadable", extra={"kind": KINDS[EventAddressState]})
        else:
            ended = (name for name, state in states.items() if state.ended_at is not None)
            self.backlog.ended = frozenset(ended)
        between = BETWEEN_WORDS.total_seconds()
        is_soon = self._counted_at is not None and self._ticks() - self._counted_at < between
        if self.backlog.not_stored and not is_soon:
            self._counted_at = self._ticks()
            for name, count in tuple(self.backlog.not_stored.items()):
                del self.backlog.not_stored[name]
                await self._add_not_stored(self.addresses[name], count)

    async def states(self) -> dict[str, EventAddressState]:
        """Return the state of each address."""
        return {
            address.name: await state_of(self._elicitations, address) or self._fresh(address)
            for address in self.addresses.values()
        }

    async def all(self) -> list[OutgoingEvent]:
        """Return the stored events, the latest first."""
        found = await self._elicitations.all(OutgoingEvent)
        return sorted(found, key=lambda event: event.happened_at, reverse=True)

    async def page(
        self, *, after: str | None, address: str | None, status: str | None, limit: int
    ) -> tuple[Sequence[OutgoingEvent], str | None]:
        """Return some events in store order, and the cursor for the next page (None at the end).

        A page may contain fewer than `limit` events although there are more.
        """
        store, rows = self._elicitations.store, self._elicitations.rows
        found = list[OutgoingEvent]()
        for _ in range(_READ_AT_MOST // _READ_AT_ONCE):
            page = await store.list(KIND, after=after, limit=_READ_AT_ONCE)
            for record in page:
                after = record.id
                is_at = address is None or place_of(record.id).address == address
                if is_at and (status is None or record.status == status):
                    try:
                        found.append(await rows.open(record, OutgoingEvent))
                    except Unreadable:
                        _log.exception("record.unreadable", extra={"kind": KIND})
                if len(found) == limit:
                    return found, after
            if len(page) < _READ_AT_ONCE:
                return found, None
        return found, after

    async def find(self, webhook_id: str) -> OutgoingEvent | None:
        """Return the event with this webhook id, which ends with its owner's tag."""
        if (found := _WEBHOOK_ID.fullmatch(webhook_id)) is None:
            return None
        owner = found["owner"]
        return await self._elicitations.holder(OutgoingEvent, owner=owner, key=webhook_id)

    async def replay(self, webhook_id: str) -> OutgoingEvent | None:
        """Make the event due now, even if it was sent before. Return None if the id is unknown."""
        again: OutgoingEvent | None = None

        async def replayed() -> list[OutgoingEvent]:
            nonlocal again
            event, now = await self.find(webhook_id), self._elicitations.clock()
            if event is None:
                return []
            again = replace(event, status="waiting", tries=0, next_at=now, why=None, sent_at=None)
            return [again]

        await self._elicitations.write_rebuilt(replayed)
        return again

    async def test(self, address: EventAddress) -> str | None:
        """Send an event of type `test` without storing it. Return why that failed, or None."""
        now = self._elicitations.clock()
        chance = self._elicitations.owners.random(RANDOM_BYTES).hex()
        event = OutgoingEvent(
            id=f"{SERVICE}.{address.name}.{TEST_TYPE}.{chance}",
            owner=SERVICE,
            address=address.name,
            webhook_id=f"{ID_PREFIX}{TEST_TYPE}_{chance}",
            type=TEST_TYPE,
            facts={"id": TEST_TYPE},
            happened_at=now,
            erase_at=now,
            next_at=now,
        )
        reply = await self.sender.send(address, event)
        if isinstance(reply, httpx.Response):
            return None if reply.is_success else f"HTTP {reply.status_code}"
        return reply

    async def resume(self, address: EventAddress) -> None:
        """Send new events to an ended address again. Events since its end were not stored."""

        async def resumed() -> list[EventAddressState]:
            found = await state_of(self._elicitations, address)
            return [] if found is None else [replace(found, ended_at=None, not_kept=0)]

        await self._elicitations.write_rebuilt(resumed)
        self.backlog.ended -= {address.name}

    async def _add_not_stored(self, address: EventAddress, count: int) -> None:
        now = self._elicitations.clock()

        async def added() -> list[EventAddressState]:
            before = await state_of(self._elicitations, address) or self._fresh(address)
            return [replace(before, not_kept=before.not_kept + count, not_kept_at=now)]

        await self._elicitations.write_rebuilt(added)

    def _fresh(self, address: EventAddress) -> EventAddressState:
        return EventAddressState(id=state_id(self._elicitations, address), owner=SERVICE)
