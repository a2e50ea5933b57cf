"""A store in the memory of this process, for tests and demonstrations.

Nothing survives the process. Risks: each sweep reads a hundred thousand records. Sorted lists
therefore hold the records in each order that is queried, so a query costs only what it returns.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar
from weakref import WeakSet

from flows.errors import StoreUnavailable
from webapp.stores.store import (
    CLAIMS_HELD,
    RECORDS_AT_MOST,
    Conflict,
    Fences,
    OtherFence,
    Record,
    as_written,
    check_copies,
    check_erasure,
    check_limit,
    check_records,
    check_time,
)
from webapp.stores.watch import Watch

_Name = tuple[str, str, str]
_Timed = tuple[datetime, _Name]
_Entry = TypeVar("_Entry", _Name, _Timed)
_LAST = chr(0x10FFFF)  # the highest character: a tuple that ends with it sorts after all others


class MemoryStore:
    """Records in a dict. No method awaits anything, so each is one step of the event loop."""

    address = None

    def __init__(self) -> None:
        self._contents = _Contents()
        self._watches: WeakSet[Watch] = WeakSet()
        self._is_closed = False
        self._contents.openings.append(self)

    def sibling(self) -> "MemoryStore":
        """Return another opening of the same records, like the one of another process."""
        sibling = MemoryStore()
        sibling._contents = self._contents
        self._contents.openings.append(sibling)
        return sibling

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """See Store."""
        check_records(records)
        contents = self._writable_contents()
        contents.refuse_conflicts(records)
        written = as_written(records)
        contents.put(written)
        for opening in contents.openings:
            if opening is not self:
                opening.notify(written)
        return written

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        """See Store."""
        return self._open_contents().records.get((owner, kind, id))

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        """See Store."""
        return self._open_contents().holder(owner, kind, key)

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
        check_limit(limit)
        found = (
            record
            for record in self._open_contents().in_order(kind, owner=owner, after=after)
            if status is None or record.status == status
        )
        return list(islice(found, limit))

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        """See Store."""
        check_time(now)
        check_limit(limit)
        contents = self._writable_contents()
        free = (
            name
            for name in contents.due.until(now)
            if not now < contents.claims.get(name, now) <= now + CLAIMS_HELD * hold
        )
        names = list(islice(free, limit))
        contents.claims.update(dict.fromkeys(names, now + hold))
        return [contents.records[name] for name in names]

    def watch(self) -> Watch:
        """See Store."""
        self._open_contents()
        watch = Watch()
        self._watches.add(watch)
        return watch

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        """See Store."""
        check_erasure(owner, before, limit)
        contents = self._writable_contents()
        there = iter(contents.records) if before is None else contents.erasable.until(before)
        asked = (name for name in there if owner is None or name[0] == owner)
        names = list(islice(asked, limit))
        for name in names:
            contents.drop(name)
        return len(names)

    async def check(self) -> None:
        """See Store."""
        self._writable_contents()

    async def scan(self) -> AsyncIterator[Sequence[Record]]:
        """See Store."""
        records = tuple(self._open_contents().records.values())
        for start in range(0, len(records), RECORDS_AT_MOST):
            yield records[start : start + RECORDS_AT_MOST]

    async def load(self, *records: Record, behind: str) -> None:
        """See Store."""
        check_copies(records)
        contents = self._open_contents()
        contents.must_be_fenced((behind,))
        contents.refuse_used_keys(records)
        contents.put(records)

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        """See Store."""
        contents = self._open_contents()
        if instead_of is not None:
            contents.must_be_fenced(instead_of)
        contents.fence = why

    async def fenced(self) -> str | None:
        """See Store."""
        return self._open_contents().fence

    async def aclose(self) -> None:
        """See Store."""
        if self._is_closed:
            return
        self._is_closed = True
        self._contents.openings.remove(self)
        for watch in tuple(self._watches):
            watch.end()

    def notify(self, records: tuple[Record, ...]) -> None:
        """Notify the watches of this opening about records that a sibling wrote."""
        for watch in tuple(self._watches):
            for record in records:
                if watch.wants(record.kind, record.id):
                    watch.notify(record)

    def _open_contents(self) -> "_Contents":
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        return self._contents

    def _writable_contents(self) -> "_Contents":
        contents = self._open_contents()
        if contents.fence is not None:
            raise StoreUnavailable(contents.fence)
        return contents


class _Ordered(list[_Entry]):
    """A sorted list of entries."""

    def move(self, previous: _Entry | None, entry: _Entry | None) -> None:
        """Remove `previous` and insert `entry`. Each can be None: then skip that step."""
        if previous == entry:
            return
        if previous is not None:
            del self[bisect_left(self, previous)]
        if entry is not None:
            insort(self, entry)


class _Times(_Ordered[_Timed]):
    """The names of records with a time, oldest first."""

    def until(self, moment: datetime) -> Iterator[_Name]:
        for time, name in self:
            if time > moment:
                return
            yield name


class _Contents:
    """The data that all openings of one memory store share."""

    def __init__(self) -> None:
        self.records: dict[_Name, Record] = {}
        self.holders: dict[_Name, _Name] = {}
        self.claims: dict[_Name, datetime] = {}
        self.due, self.erasable = _Times(), _Times()
        self._ids = _Ordered[_Name]()  # each name as kind, id, owner
        self.openings: list[MemoryStore] = []
        self.fence: str | None = None

    def must_be_fenced(self, words: Fences) -> None:
        if self.fence not in words:
            raise OtherFence(self.fence)

    def holder(self, owner: str, kind: str, key: str) -> Record | None:
        name = self.holders.get((owner, kind, key))
        return None if name is None else self.records[name]

    def in_order(self, kind: str, *, owner: str | None, after: str | None) -> Iterator[Record]:
        """Return the records of the kind in the order of their ids, which begin with the owner."""
        start = bisect_left(self._ids, (kind, owner or "", ""))
        if after is not None:
            start = max(start, bisect_right(self._ids, (kind, after, _LAST)))
        for index in range(start, len(self._ids)):
            found, id, its_owner = self._ids[index]
            if found != kind or not id.startswith(owner or ""):
                return
            if owner is None or its_owner == owner:
                yield self.records[its_owner, kind, id]

    def put(self, records: tuple[Record, ...]) -> None:
        for record in records:  # first free all keys: a key may move from one record to another
            self._free_key(self.records.get((record.owner, record.kind, record.id)))
        for record in records:
            name = (record.owner, record.kind, record.id)
            self._index(name, record)
            if record.key is not None:
                self.holders[record.owner, record.kind, record.key] = name

    def drop(self, name: _Name) -> None:
        self._free_key(self.records.get(name))
        self._index(name, None)

    def _index(self, name: _Name, record: Record | None) -> None:
        owner, kind, id = name
        previous = self.records.get(name)
        self.claims.pop(name, None)
        placed = (kind, id, owner)
        self._ids.move(None if previous is None else placed, None if record is None else placed)
        self.due.move(
            None if previous is None else _timed(name, previous.due_at),
            None if record is None else _timed(name, record.due_at),
        )
        self.erasable.move(
            None if previous is None else _timed(name, previous.erase_at),
            None if record is None else _timed(name, record.erase_at),
        )
        self.records.pop(name, None)
        if record is not None:
            self.records[name] = record  # the newest record comes last

    def _free_key(self, record: Record | None) -> None:
        if record is not None and record.key is not None:
            del self.holders[record.owner, record.kind, record.key]

    def refuse_conflicts(self, records: tuple[Record, ...]) -> None:
        for record in records:
            found = self.records.get((record.owner, record.kind, record.id))
            if record.version != (0 if found is None else found.version):
                raise Conflict(found)
        self.refuse_used_keys(records)

    def refuse_used_keys(self, records: tuple[Record, ...]) -> None:
        names = {(record.owner, record.kind, record.id) for record in records}
        for record in records:
            if record.key is not None:
                found = self.holder(record.owner, record.kind, record.key)
                if found is not None and (found.owner, found.kind, found.id) not in names:
                    raise Conflict(found)


def _timed(name: _Name, moment: datetime | None) -> _Timed | None:
    return None if moment is None else (moment, name)
