"""A store wrapper that reports the duration and result of each operation to an observer."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import datetime, timedelta
from time import perf_counter
from typing import TypeVar

from flows.errors import StoreUnavailable
from webapp.stores.store import Conflict, Fences, Look, OtherFence, Record, Store
from webapp.telemetry.families import UNOBSERVED, Observer

T = TypeVar("T")


def observed(store: Store, observer: Observer) -> Store:
    """Wrap the store so that `observer` receives each operation.

    Return the store unchanged if no observer is set.
    """
    return store if observer is UNOBSERVED else ObservedStore(store, observer)


class ObservedStore:
    """A store that forwards each operation to another store and reports it to an observer."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer

    @property
    def address(self) -> str | None:
        """See Store."""
        return self._store.address

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """See Store."""
        return await self._timed("write", self._store.write(*records))

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        """See Store."""
        return await self._timed("read", self._store.read(owner, kind, id))

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        """See Store."""
        return await self._timed("find", self._store.find(owner, kind, key))

    async def list(
        self,
        kind: str,
        *,
        owner: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """See Store."""
        page = self._store.list(kind, owner=owner, status=status, after=after, limit=limit)
        return await self._timed("list", page)

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        """See Store."""
        return await self._timed("due", self._store.due(now, hold=hold, limit=limit))

    def watch(self) -> AsyncIterator[Record | Look | None]:
        """See Store."""
        return self._store.watch()

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        """See Store."""
        erasure = self._store.erase(owner=owner, before=before, limit=limit)
        return await self._timed("erase", erasure)

    async def check(self) -> None:
        """See Store."""
        await self._timed("check", self._store.check())

    def scan(self) -> AsyncIterator[Sequence[Record]]:
        """See Store."""
        return self._store.scan()

    async def load(self, *records: Record, behind: str) -> None:
        """See Store."""
        await self._timed("load", self._store.load(*records, behind=behind))

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        """See Store."""
        await self._timed("fence", self._store.fence(why, instead_of=instead_of))

    async def fenced(self) -> str | None:
        """See Store."""
        return await self._timed("fenced", self._store.fenced())

    async def aclose(self) -> None:
        """See Store."""
        await self._store.aclose()

    async def _timed(self, operation: str, answer: Awaitable[T]) -> T:
        began, result = perf_counter(), "failed"
        try:
            found = await answer
            result = "ok"
        except (Conflict, OtherFence):
            result = "conflict"
            raise
        except StoreUnavailable:
            result = "unavailable"
            raise
        else:
            return found
        finally:
            seconds = perf_counter() - began
            self._observer.store_answered(operation, seconds=seconds, result=result)
