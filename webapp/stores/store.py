"""The protocol of every store: sealed records that change by compare-and-set, and are watched.

Risks: two writers both believe that they won, an acknowledged write is lost, or a write changes
another owner's record. The contract suite tests every store for all three.

A watch that falls behind must not grow without limit. Past a limit, the watch yields None, which
asks its reader to read all records again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable
from weakref import WeakSet

from msgspec import Struct
from msgspec.structs import replace

SEALED_LIMIT_BYTES = 64 * 1024
RECORDS_AT_MOST = 500
VERSION_AT_MOST = 2**63 - 1
Fences: TypeAlias = Collection[str | None]  # the reasons of fences; None means no fence


class Record(Struct, frozen=True, kw_only=True):
    """A row: the fields that the store needs to find the record, and its sealed content.

    The store cannot read `sealed`. Owner, kind and id together identify a record. `key` is unique
    among the records of one owner and kind; a record without a key has None. `version` is 0 until
    the record is stored. `Store.list` relies on ids that begin with their owner's tag: ids of
    different owners then never collide, and each owner's records are next to each other.
    """

    owner: str
    kind: str
    id: str
    status: str
    key: str | None
    due_at: datetime | None
    erase_at: datetime | None
    version: int
    sealed: bytes


def plain_record(
    owner: str,
    kind: str,
    id: str,
    *,
    status: str,
    key: str | None = None,
    due_at: datetime | None = None,
    erase_at: datetime | None = None,
    version: int = 0,
    sealed: bytes = b"",
) -> Record:
    """Return a record that is new and never due or erased, unless the arguments say otherwise."""
    return Record(
        owner=owner,
        kind=kind,
        id=id,
        status=status,
        key=key,
        due_at=due_at,
        erase_at=erase_at,
        version=version,
        sealed=sealed,
    )


class WatchHint(Enum):
    """A request of a watch to read again, although no change was reported.

    If the store's server can lose a message without an error, the watch yields this value every 15
    seconds.
    """

    READ_AGAIN = "again"


class Conflict(Exception):
    """Another writer was first. `found` is the record that conflicts.

    `found` is the record with the same id, or else the record that holds the key. It is None if the
    expected record no longer exists.
    """

    def __init__(self, found: Record | None) -> None:
        self.found = found
        super().__init__(
            "the record no longer exists"
            if found is None
            else f"{found.kind} {found.id} already exists at version {found.version}"
        )


class OtherFence(Exception):
    """Another fence than expected is set. `found` is that fence's reason, or None for no fence."""

    def __init__(self, found: str | None) -> None:
        self.found = found
        super().__init__("there is no fence" if found is None else f"it is fenced: {found}")


# `due` ignores a claim that ends later than this many times `hold` from now: the clock was set back
# after the claim was made. More than 1, because the clocks of machines differ a little.
CLAIMS_HELD = 2


class Store(Protocol):
    """A place for records. Every method raises StoreUnavailable if the place is not usable."""

    @property
    def address(self) -> str | None:
        """The address, independent of the working directory. None for a store in memory."""
        ...

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """Write all records or none, durably, and return them with their next version.

        `version` is the version that the caller read. With 0, no record may have this id or key
        yet. A key may move from one record to another in one call.

        Raises:
            Conflict: Another writer was first.
            ValueError: The records have several owners, a record occurs twice, more than 64 KiB are
                sealed, a time has no zone, or there are more than 500 records.
        """
        ...

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        """Return the latest version of the record."""
        ...

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        """Return the record that holds the key."""
        ...

    async def list(
        self,
        kind: str,
        *,
        owner: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """Return a page of records ordered by id. `after` is the last id that the caller has seen.

        With `owner`, return only that owner's records (their ids start with the owner's tag). Other
        owners' records do not slow the query down.
        """
        ...

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        """Return records that were due at `now`, oldest first, and claim them for `hold`.

        No other caller receives them until the claim ends. A claim does not change the version, and
        any write of the record clears it. Ignore a claim that ends more than 2 x `hold` from now:
        the clock was set back after the claim was made.
        """
        ...

    def watch(self) -> AsyncIterator[Record | WatchHint | None]:
        """Yield records that other openings of this store write after this call.

        Each record comes at least once in its latest version; earlier versions may be left out.
        None means that changes may have been missed, so read the records again. Writes of this
        opening are not included. The iterator ends when the store is closed.
        """
        ...

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        """Erase at most `limit` records of `owner` whose `erase_at` is not later than `before`.

        If `owner` or `before` is None, that condition is not applied. Raises ValueError if both are
        None. Return the number of erased records.
        """
        ...

    async def check(self) -> None:
        """Make a durable write that changes no record.

        Raises StoreUnavailable if the store is not usable, or if its disk or memory is almost full.
        """
        ...

    def scan(self) -> AsyncIterator[Sequence[Record]]:
        """Yield pages of every record of all owners and kinds, each record once, in any order.

        Others may write during the scan, but the records of one owner are all as of one moment.
        """
        ...

    async def load(self, *records: Record, behind: str) -> None:
        """Store copies as they are, including their version. The copies are durable on return.

        A copy replaces the record with the same owner, kind and id. The records may have several
        owners, and there may be at most 500. Watches are not notified. The load succeeds only while
        the fence with the reason `behind` is set, so that a served store never receives an older
        copy.

        Raises:
            OtherFence: Another fence is set, or none.
            Conflict: Another record holds the key of a copy.
            ValueError: A version is 0, a record occurs twice, more than 64 KiB are sealed, a time
                has no zone, or there are more than 500 records.
        """
        ...

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        """Block writes by every opening, in any process or version, once this method has returned.

        None removes the fence. While it is set, `write`, `due`, `erase` and `check` raise
        StoreUnavailable(why); reads continue. A write that is in progress completes before the
        fence or is refused. `instead_of`: replace the fence only if the current one is in this
        collection (None means no fence), else raise OtherFence. In a cluster, each server compares
        its own fence: if OtherFence is raised, some servers may already have the new fence.
        """
        ...

    async def fenced(self) -> str | None:
        """Return the reason why writes are blocked, or None."""
        ...

    async def aclose(self) -> None:
        """Finish the writes in progress, end the watches and close. A second call does nothing."""
        ...


@runtime_checkable
class Choosing(Protocol):
    """A watch with a filter, for stores where reading a record is expensive."""

    def choose(self, wants: Callable[[str, str], bool]) -> None:
        """Limit the watch to records with `wants(kind, id)`. Other records may still come."""
        ...


@runtime_checkable
class Clocked(Protocol):
    """A store on a server that has its own clock."""

    async def clock(self) -> datetime:
        """Return the server's current time."""
        ...


@runtime_checkable
class Replicated(Protocol):
    """A store on a server that can have replicas."""

    async def replication(self, *, asks_hosts: bool = True) -> Sequence[tuple[str, str | None]]:
        """Return sentences for an operator, each with the fix, or None if nothing is wrong.

        If `asks_hosts` is False, query only the server in use.
        """
        ...


@runtime_checkable
class Networked(Protocol):
    """A store on a server, reached over a network and open to other programs."""

    async def access(self) -> Sequence[tuple[str, str | None]]:
        """Return who else can write to the store, and whether the connection is encrypted.

        Each sentence comes with its fix, or None if nothing is wrong.
        """
        ...


@runtime_checkable
class Vacuums(Protocol):
    """A store whose file keeps its size after records are erased, until `vacuum`."""

    async def vacuum(self) -> None:
        """Shrink the store while others read and write. Raises StoreUnavailable."""
        ...


def check_records(records: tuple[Record, ...]) -> None:
    """Raise ValueError for records that no store may write."""
    _check_each(records)
    if len(records) > 1:
        _check_together(records)
        if len({record.owner for record in records}) > 1:
            raise ValueError("the records of a write must have the same owner")


def check_copies(records: tuple[Record, ...]) -> None:
    """Raise ValueError for records that no store may load."""
    _check_each(records)
    _check_together(records)
    if not all(record.version for record in records):
        raise ValueError("a copied record must have its original's version, which is 1 or more")


def _check_each(records: tuple[Record, ...]) -> None:
    for record in records:
        if len(record.sealed) > SEALED_LIMIT_BYTES:
            raise ValueError(f"{len(record.sealed)} sealed bytes, {SEALED_LIMIT_BYTES} at most")
        if not 0 <= record.version < VERSION_AT_MOST:
            raise ValueError("a record's version must be 0, or the version that was read")
        check_time(record.due_at, record.erase_at)


def _check_together(records: tuple[Record, ...]) -> None:
    if len(records) > RECORDS_AT_MOST:
        raise ValueError(f"a write has {len(records)} records, {RECORDS_AT_MOST} at most")
    if len({(record.owner, record.kind, record.id) for record in records}) < len(records):
        raise ValueError("a write contains the same record twice")
    keys = [(record.owner, record.kind, record.key) for record in records if record.key is not None]
    if len(set(keys)) < len(keys):
        raise ValueError("two records of a write have the same key")


def check_time(*moments: datetime | None) -> None:
    """Raise ValueError for a time without a zone, which means another moment on another machine."""
    for moment in moments:
        if moment is not None and moment.tzinfo is None:
            raise ValueError("a time needs its zone")


# The beginnings of the conditions of `Store.list` in SQL, by the names of `list` and `bounds`.
CONDITIONS = {
    "kind": "kind =",
    "owner": "owner =",
    "status": "status =",
    "after": "id >",
    "least": "id >=",
    "below": "id <",
}


def bounds(owner: str | None, after: str | None) -> dict[str, str | None]:
    """Return the limits of the ids on a page.

    Ids are greater than `after` or at least `least`, and less than `below`. With an owner, the
    limits include only ids that begin with the owner's tag.
    """
    if owner is None:
        return {"after": after}
    below = owner + chr(0x10FFFF)
    if after is not None and after >= owner:
        return {"after": after, "below": below}
    return {"least": owner, "below": below}


def check_limit(limit: int) -> None:
    """Raise ValueError for a limit below 1. SQLite would read a negative limit as "all"."""
    if limit < 1:
        raise ValueError("limit is 1 or more")


def check_erasure(owner: str | None, before: datetime | None, limit: int) -> None:
    """Raise ValueError for an erasure without a condition, which would erase every record."""
    if owner is None and before is None:
        raise ValueError("erase needs an owner, a time or both")
    check_time(before)
    check_limit(limit)


def as_written(records: Iterable[Record]) -> tuple[Record, ...]:
    """Return the records with their next versions."""
    return tuple([replace(record, version=record.version + 1) for record in records])


_PENDING_LIMIT = 10_000


class Watch:
    """An iterator that a store feeds.

    The store has only a weak reference to the watch, so dropping the watch ends it.
    """

    __slots__ = ("__weakref__", "_changes", "_error", "_has_ended", "_pending", "wants")

    def __init__(self) -> None:
        self._pending: dict[tuple[str, str, str] | WatchHint | None, Record | WatchHint | None] = {}
        self._changes = asyncio.Event()
        self._error: Exception | None = None
        self._has_ended = False
        self.wants: Callable[[str, str], bool] = lambda _kind, _id: True

    def choose(self, wants: Callable[[str, str], bool]) -> None:
        """See Choosing."""
        self.wants = wants

    def notify(self, record: Record | WatchHint | None) -> None:
        """Queue the record in place of its older version.

        None means that changes may be missing.
        """
        if len(self._pending) >= _PENDING_LIMIT:
            self._pending.clear()
            record = None
        if record is None or isinstance(record, WatchHint):
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

    async def __anext__(self) -> Record | WatchHint | None:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                raise StopAsyncIteration
            self._changes.clear()
            await self._changes.wait()
        return self._pending.pop(next(iter(self._pending)))


class Watches(WeakSet[Watch]):
    """The watches of one opening of a store. A watch that no code uses any more is forgotten."""

    def open(self) -> Watch:
        watch = Watch()
        self.add(watch)
        return watch

    def notify(self, *changes: Record | WatchHint | None) -> None:
        for watch in tuple(self):
            for change in changes:
                watch.notify(change)

    def end(self, error: Exception | None = None) -> None:
        for watch in tuple(self):
            self.discard(watch)
            watch.end(error)
