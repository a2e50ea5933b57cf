"""News of what stays with people beyond a call: accounts, purchases, named secrets.

What could go wrong: a change that nobody hears of. What this process writes comes by here, and what
it sees others write; where something may have been missed, everybody's may have changed.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.records.values import KeptSecret

KEPT: Final = (Connection, Payment, KeptSecret)


class Changes:
    """Whose accounts, purchases or named secrets have changed since somebody asked."""

    def __init__(self) -> None:
        self._owners: set[str | None] = set()  # None: anybody's
        self._arrived = asyncio.Event()
        self._is_wanted = False

    def tell(self, owner: str | None) -> None:
        """Something of this owner's has changed; None: something may have been missed."""
        if self._is_wanted:
            self._owners.add(owner)
            self._arrived.set()

    def want(self) -> None:
        """From now on it is noted."""
        self._is_wanted = True

    async def owners(self) -> Collection[str | None]:
        """Wait until there is news."""
        await self._arrived.wait()
        self._arrived.clear()
        owners, self._owners = self._owners, set()
        return owners
