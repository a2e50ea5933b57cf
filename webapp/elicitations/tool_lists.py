"""Tool lists that depend on the person's data: notify each client when its list changes.

Risks: a client that cannot be notified delays the others. So clients are notified concurrently, and
errors are logged.
"""

import asyncio
import logging
from typing import Protocol
from weakref import WeakSet

from webapp.elicitations.changes import Changes

_log = logging.getLogger(__name__)


class Listing(Protocol):
    """A tool list as it was shown to one client."""

    @property
    def owner(self) -> str: ...
    async def look_again(self) -> None:
        """Notify the client if its list would be different now."""
        ...


class ToolLists:
    """The listings shown to clients, in a weak set: each ends with its client's connection."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._listings: WeakSet[Listing] = WeakSet()

    def add(self, listing: Listing) -> None:
        self._changes.want()
        self._listings.add(listing)

    async def notify_changes(self) -> None:
        """Check the listings whose owner's data has changed. Runs until cancelled."""
        while True:
            owners = await self._changes.owners()
            changed = [one for one in self._listings if one.owner in owners or None in owners]
            await asyncio.gather(*map(_look, changed))


async def _look(listing: Listing) -> None:
    try:
        await listing.look_again()
    except Exception:  # noqa: BLE001 - one listing must not stop the others
        _log.exception("tools.check_failed")
