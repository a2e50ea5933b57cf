"""Waiters and tool lists: each waits for changes of rows, and is woken when such a row changes.

A wake-up is only a hint: the store decides. Register a waiter, then read the store, then wait. A
write between the read and the wait is not lost, because it reaches the registered waiter.

Risks: a change goes unnoticed. So the writes of this process, and the writes of other processes
that this process sees, are reported here. If a write may have been missed, the data of every owner
counts as changed. A tool list that depends on an owner's data is checked again after that data
changes.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias
from weakref import WeakSet

from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.records.ids import InboxItem
from webapp.records.values import Approval, StoredSecret

Changed: TypeAlias = Elicitation | Run | None


class Taker(Protocol):
    """The request behind a waiter. A settling write can claim the outcome for the request."""

    @property
    def has_ended(self) -> bool: ...

    def record_prefetch(self, settled: Elicitation) -> bool:
        """Record that the settling write claimed the outcome for this request.

        Return False if the request has ended without the outcome.
        """
        ...


class Waiter:
    """The wait of one request for one or more rows.

    The waiter is registered until its `with` block ends. Many waiters exist at once, so each must
    use little memory. Therefore a waiter stores tuples: sets need four times as much memory. The
    waiter itself is the context manager, because a generator would need memory too.
    """

    __slots__ = (
        "_arrived",
        "_future",
        "_standing",
        "ids",
        "request_id",
        "run",
        "sees_all",
        "taker",
    )

    def __init__(
        self,
        standing: "Waiters",
        *,
        request_id: str,
        run: str,
        taker: Taker | None,
        sees_all: bool,
    ) -> None:
        self.request_id = request_id
        self.run = run
        self.taker = taker
        self.sees_all = sees_all
        self.ids: tuple[str, ...] = ()
        self._standing = standing
        self._future: asyncio.Future[None] | None = None
        self._arrived: tuple[Changed, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._standing.remove(self)

    def wake(self, changed: Changed) -> None:
        self._arrived += (changed,)
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def changes(self, *, until: datetime, now: datetime) -> list[Changed]:
        """Wait for changes, and return those since the last call. Return [] when the time is up.

        None in the list means that a change may have been missed: read the store.
        """
        if not self._arrived:
            seconds = (until - now).total_seconds()
            if seconds <= 0:
                return []
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(seconds, _end, self._future)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        arrived, self._arrived = self._arrived, ()
        return list(arrived)


class Waiters:
    """The waiters of this process, by the id of the row that each waits for."""

    def __init__(self) -> None:
        self.is_draining = False  # the process is ending, so no call may wait any longer
        self.at_drain = list[Callable[[], object]]()
        self._by_id: dict[str, tuple[Waiter, ...]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    def waiter(
        self,
        *ids: str,
        request_id: str = "",
        run: str = "",
        taker: Taker | None = None,
        sees_all: bool = False,
    ) -> Waiter:
        """Register and return a waiter. Use it in a `with` block, which removes the waiter."""
        waiter = Waiter(self, request_id=request_id, run=run, taker=taker, sees_all=sees_all)
        if ids:
            self.add(waiter, *ids)
        return waiter

    def add(self, waiter: Waiter, *ids: str) -> None:
        for id in ids:
            if id not in waiter.ids:
                waiter.ids = (*waiter.ids, id)
                self._by_id[id] = (*self._by_id.get(id, ()), waiter)

    def remove(self, waiter: Waiter) -> None:
        for id in waiter.ids:
            others = tuple([other for other in self._by_id[id] if other is not waiter])
            if others:
                self._by_id[id] = others
            else:
                del self._by_id[id]
        waiter.ids = ()

    def has(self, id: str) -> bool:
        return id in self._by_id

    def of_request(self, id: str, request_id: str | None) -> Waiter | None:
        """Return the waiter of this request, if a settling write may claim the outcome."""
        for waiter in self._by_id.get(id, ()):
            if (
                waiter.request_id == request_id
                and waiter.taker is not None
                and not waiter.taker.has_ended
            ):
                return waiter
        return None

    def wake(self, changed: Elicitation | Run) -> None:
        # A change to `opened` wakes no waiter. The waiter is woken when the question or run ends,
        # or when another request takes over the wait.
        if isinstance(changed, Run):
            has_ended, question = changed.finished_at is not None, None
        else:
            has_ended, question = changed.status.is_final, changed
        for waiter in self._by_id.get(changed.id, ()):
            is_taken_over = question is not None and question.waiter != waiter.request_id
            if waiter.sees_all or has_ended or is_taken_over:
                waiter.wake(changed)

    def wake_lists(self, owner: str) -> None:
        """Wake the pages that list this owner's rows: they wait for the owner instead of a row."""
        for waiter in self._by_id.get(owner, ()):
            waiter.wake(None)

    def drain(self) -> None:
        """Wake all waiters because the process ends. No call waits after this."""
        self.is_draining = True
        self.wake_all()
        for also in self.at_drain:
            also()

    def wake_all(self) -> None:
        """Wake all waiters to read the store again, because a change may have been missed."""
        for standing in tuple(self._by_id.values()):
            for waiter in standing:
                waiter.wake(None)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


OWNER_DATA: Final = (Connection, Payment, StoredSecret)
# The kinds of rows on a person's own pages. Open pages wait for changes of an owner's rows.
LISTED: Final = (Connection, Payment, InboxItem, Approval, Elicitation)


# The log lines of earlier versions have this name.
_log = logging.getLogger("webapp.elicitations.changes")


class Listing(Protocol):
    """A tool list as it was shown to one client."""

    @property
    def owner(self) -> str: ...
    async def look_again(self) -> None:
        """Notify the client if its list would be different now."""
        ...


class ToolLists:
    """The tool lists that depend on an owner's data, and the owners whose data has changed.

    The lists are in a weak set: each ends with its client's connection.
    """

    def __init__(self) -> None:
        self._listings: WeakSet[Listing] = WeakSet()
        self._owners: set[str | None] = set()  # None: the data of any owner may have changed
        self._changed = asyncio.Event()
        self._is_wanted = False  # nothing is recorded before the first list is shown

    def add(self, listing: Listing) -> None:
        self._is_wanted = True
        self._listings.add(listing)

    def report(self, owner: str | None) -> None:
        """Report a change of this owner's data; None means that a change may have been missed."""
        if self._is_wanted:
            self._owners.add(owner)
            self._changed.set()

    async def notify_changes(self) -> None:
        """Check the listings whose owner's data has changed. Runs until cancelled.

        Clients are notified concurrently, so that an unreachable client does not delay the others.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            owners, self._owners = self._owners, set()
            changed = [one for one in self._listings if one.owner in owners or None in owners]
            await asyncio.gather(*map(_look, changed))


async def _look(listing: Listing) -> None:
    try:
        await listing.look_again()
    except Exception:  # noqa: BLE001 - one listing must not stop the others
        _log.exception("tools.check_failed")
