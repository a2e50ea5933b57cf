"""Changes of data that outlives a call: accounts, purchases and named secrets.

Risks: a change goes unnoticed. So the writes of this process, and the writes of other processes
that this process sees, are reported here. If a write may have been missed, the data of every owner
counts as changed. A tool list that depends on such data is checked again after a change.
"""

import asyncio
import logging
from typing import Final, Protocol
from weakref import WeakSet

from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.records.values import Approval, KeptSecret
from webapp.records.waiting import InboxItem

OWNER_DATA: Final = (Connection, Payment, KeptSecret)
# The kinds of rows on a person's own pages. Open pages wait for changes of an owner's rows.
LISTED: Final = (Connection, Payment, InboxItem, Approval)


_log = logging.getLogger(__name__)


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
