"""A watch on the changes of other openings, which yields the latest version of each record.

A watch that falls behind must not grow without limit. Past a limit, the watch yields None, which
asks its reader to read all records again.
"""

import asyncio
from collections.abc import Callable

from webapp.stores.store import Look, Record

_PENDING_LIMIT = 10_000


class Watch:
    """An iterator that a store feeds.

    The store has only a weak reference to the watch, so dropping the watch ends it.
    """

    __slots__ = ("__weakref__", "_changes", "_error", "_has_ended", "_pending", "wants")

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str, str] | Look | None, Record | Look | None] = {}
        self._changes = asyncio.Event()
        self._error: Exception | None = None
        self._has_ended = False
        self.wants: Callable[[str, str], bool] = _anything

    def choose(self, wants: Callable[[str, str], bool]) -> None:
        """See Choosing."""
        self.wants = wants

    def notify(self, record: Record | Look | None) -> None:
        """Queue the record in place of its older version.

        None means that changes may be missing.
        """
        if len(self._pending) >= _PENDING_LIMIT:
            self._pending.clear()
            record = None
        if record is None or isinstance(record, Look):
            self._pending[record] = record
        else:
            self._pending[record.owner, record.kind, record.id] = record
        self._changes.set()

    def end(self, error: Exception | None = None) -> None:
        """Yield the queued changes, then stop the iterator or raise the error."""
        self._error = error
        self._has_ended = True
        self._changes.set()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Record | Look | None:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                raise StopAsyncIteration
            self._changes.clear()
            await self._changes.wait()
        return self._pending.pop(next(iter(self._pending)))


def _anything(_kind: str, _id: str) -> bool:
    return True
