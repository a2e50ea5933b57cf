"""Lists of tools that depend on what a person has: who was shown one, and hears when it changes.

What could go wrong: one client that cannot be told keeps the others from hearing. Each is told for
itself, and what goes wrong with it is logged.
"""

import asyncio
import logging
from typing import Protocol
from weakref import WeakSet

from webapp.elicitations.changes import Changes

_log = logging.getLogger(__name__)


class Listing(Protocol):
    """A list as one client was shown it."""

    @property
    def owner(self) -> str: ...
    async def look_again(self) -> None:
        """Tell the client if it would be shown another one now."""
        ...


class ToolLists:
    """The listings are held weakly: each ends with its client's connection."""

    def __init__(self, news: Changes) -> None:
        self._news = news
        self._listings: WeakSet[Listing] = WeakSet()

    def add(self, listing: Listing) -> None:
        self._news.want()
        self._listings.add(listing)

    async def tell_changes(self) -> None:
        """Let each look again whose owner's things have changed; runs until cancelled."""
        while True:
            owners = await self._news.owners()
            told = [one for one in self._listings if one.owner in owners or None in owners]
            await asyncio.gather(*map(_look, told))


async def _look(listing: Listing) -> None:
    try:
        await listing.look_again()
    except Exception:  # noqa: BLE001 - a task's edge
        _log.exception("tools.look_failed")
