"""News of what stays with people beyond a call: accounts, purchases, named secrets.

What could go wrong: a change that nobody hears of. What this process writes comes by here, and what
it sees others write; where something may have been missed, everybody's may have changed.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.records.rows import KINDS, KeptSecret
from webapp.stores import Record

KEPT: Final = frozenset({KINDS[Connection], KINDS[Payment], KINDS[KeptSecret]})


class Changes:
    """Whose accounts, purchases or named secrets have changed since somebody asked."""

    def __init__(self) -> None:
        self._owners: set[str | None] = set()  # None: anybody's
        self._arrived = asyncio.Event()
        self._is_wanted = False

    def tell(self, *records: Record | None) -> None:
        """None: something may have been missed."""
        if not self._is_wanted:
            return
        for record in records:
            if record is None or record.kind in KEPT:
                self._owners.add(None if record is None else record.owner)
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
