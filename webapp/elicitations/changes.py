"""Changes of data that outlives a call: accounts, purchases and named secrets.

Risks: a change goes unnoticed. So the writes of this process, and the writes of other processes
that this process sees, are reported here. If a write may have been missed, the data of every owner
counts as changed.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.records.values import Approval, InboxItem, KeptSecret

OWNER_DATA: Final = (Connection, Payment, KeptSecret)
# What a person's own pages list. Open pages wait for changes of an owner's rows.
LISTED: Final = (Connection, Payment, InboxItem, Approval)


class Changes:
    """The owners whose accounts, purchases or named secrets changed since `owners` was called."""

    def __init__(self) -> None:
        self._owners: set[str | None] = set()  # None: the data of any owner may have changed
        self._arrived = asyncio.Event()
        self._is_wanted = False

    def report(self, owner: str | None) -> None:
        """Report a change of this owner's data; None means that a change may have been missed."""
        if self._is_wanted:
            self._owners.add(owner)
            self._arrived.set()

    def want(self) -> None:
        """Start recording changes. Before the first call, `report` does nothing."""
        self._is_wanted = True

    async def owners(self) -> Collection[str | None]:
        """Wait for changes and return their owners."""
        await self._arrived.wait()
        self._arrived.clear()
        owners, self._owners = self._owners, set()
        return owners
