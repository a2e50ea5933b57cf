"""What every store promises: sealed records, changed by compare-and-set.

What could go wrong: two writers both believe that they won, a write is acknowledged and lost, or
one owner's write touches another's record. The contract suite asks every store for all three.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

SEALED_LIMIT_BYTES = 64 * 1024
RECORDS_AT_MOST = 500
VERSION_AT_MOST = 2**63 - 1
Fences: TypeAlias = Collection[str | None]  # their words; None: no fence


class Record(Struct, frozen=True, kw_only=True):
    """One row: what the store must know to find it, and the sealed rest that it cannot read.

    A record is known by owner, kind and id. `key` is unique among the records of its owner and
    kind that hold one. `version` is 0 until it is stored. `list` counts on an id that begins with
    its owner's tag, so that no two owners share one, and each one's stand together.
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


class Look(Enum):
    """What a watch yields every 15 seconds where a server may lose a message and say nothing."""

    AGAIN = "again"


class Conflict(Exception):
    """Somebody else was first; `found` is the record that stands in the way.

    That is the record of the same id, else the holder of the key; None if the expected one is gone.
    """

    def __init__(self, found: Record | None) -> None:
        self.found = found
        super().__init__(
            "the record is gone"
            if found is None
            else f"{found.kind} {found.id} stands in the way at version {found.version}"
        )


class OtherFence(Exception):
    """Another fence stands than the caller counts on; `found` are its words, None if none does."""

    def __init__(self, found: str | None) -> None:
        self.found = found
        super().__init__("there is no fence" if found is None else f"it is fenced: {found}")


# How many times the hold a claim may be ahead, as clocks of several machines differ a little.
CLAIMS_HELD = 2


class Store(Protocol):
    """A place for records; every method raises StoreUnavailable when the place is not usable."""

    @property
    def address(self) -> str | None:
        """Where it is found again, from any working directory; None if it ends with its process."""
        ...

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """Write all or none, durably, and return them with their next version.

        `version` is the one that the caller read; 0 asks that neither id nor key is taken. A key
        may move from one record to another in one call. Raises Conflict, or ValueError for records
        of several owners, one record twice, more than 64 KiB sealed, a time without a zone, or more
        than 500 records.
        """
        ...

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        """Return the record as last written."""
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
        """Return a page ordered by id; `after` is the last id that the caller has seen.

        Of an owner those whose id begins with the owner, which costs nothing for what others have.
        """
        ...

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        """Return what was due at `now`, oldest first, for this caller alone until `hold` is over.

        The claim changes no version; any write of the record clears it. One that would last for
        more than twice as long was made before the clock was set back, and holds nobody up.
        """
        ...

    def watch(self) -> AsyncIterator[Record | Look | None]:
        """Yield records that other openings of this store write, from this call on.

        Each at least once in its latest version, so not every version; None: something may have
        been missed, look again. What this opening writes is not repeated. Ends when it is closed.
        """
        ...

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        """Erase at most `limit` records of that owner, with erase_at <= before, or both at once.

        Returns how many; ValueError if neither condition is given.
        """
        ...

    async def check(self) -> None:
        """Write something that changes nothing; raises StoreUnavailable also if room gets short."""
        ...

    def scan(self) -> AsyncIterator[Sequence[Record]]:
        """Yield pages of every record, of any owner and kind, each once, in no promised order.

        All records of one owner are as of one moment, while others write.
        """
        ...

    async def load(self, *records: Record, behind: str) -> None:
        """Put copies in place as they are, version included; durable when it returns.

        In place of what has that owner, kind and id; of any owners; at most 500; no watch is told.
        Only while the fence of these words stands, so that nothing that is served gets an older
        copy: else it raises OtherFence. Raises Conflict if another record holds a key, and
        ValueError as `write` does, or for a version of 0.
        """
        ...

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        """Let no opening of any process or version write from the return on; None ends that.

        `write`, `due`, `erase` and `check` raise StoreUnavailable(why); who reads goes on. A write
        that is under way comes before the fence, or is refused. With `instead_of` it takes the
        place of one of these fences alone, None being none, and else raises OtherFence; a cluster
        compares server by server.
        """
        ...

    async def fenced(self) -> str | None:
        """Return why nobody may write, if that is so."""
        ...

    async def aclose(self) -> None:
        """Finish the writes under way, end the watches and let go; again does nothing."""
        ...


@runtime_checkable
class Choosing(Protocol):
    """A watch that can be told what it is for, where a record costs something to be read."""

    def choose(self, wants: Callable[[str, str], bool]) -> None:
        """Let it yield records of which this holds, by kind and id; it may yield others, too."""
        ...


@runtime_checkable
class Clocked(Protocol):
    """A store on a server, which has a clock of its own."""

    async def clock(self) -> datetime:
        """Return what it says."""
        ...


@runtime_checkable
class Replicated(Protocol):
    """A store on a server that other servers can follow."""

    async def replication(self, *, asks_hosts: bool = True) -> Sequence[tuple[str, str | None]]:
        """Return sentences for an operator, each with what to do, or None if nothing is wrong.

        Without `asks_hosts` only the server in use is asked.
        """
        ...


@runtime_checkable
class Networked(Protocol):
    """A store on a server, which other programs can reach, and which is reached by a network."""

    async def access(self) -> Sequence[tuple[str, str | None]]:
        """Return who else can write to the store, and whether the connection is encrypted.

        Each sentence has what to do, or None if nothing is wrong.
        """
        ...


@runtime_checkable
class Vacuums(Protocol):
    """A store that keeps the room of what was erased until it is told to let it go."""

    async def vacuum(self) -> None:
        """Let it go, while others read and write. Raises StoreUnavailable."""
        ...


def check_records(records: tuple[Record, ...]) -> None:
    """Refuse with ValueError what no store may write."""
    _check_each(records)
    if len(records) > 1:
        _check_together(records)
        if len({record.owner for record in records}) > 1:
            raise ValueError("one write holds records of one owner")


def check_copies(records: tuple[Record, ...]) -> None:
    """Refuse with ValueError what no store may load."""
    _check_each(records)
    _check_together(records)
    if not all(record.version for record in records):
        raise ValueError("a copy has the version of what it is a copy of, 1 or more")


def _check_each(records: tuple[Record, ...]) -> None:
    for record in records:
        if len(record.sealed) > SEALED_LIMIT_BYTES:
            raise ValueError(f"{len(record.sealed)} bytes are sealed in a record, 65536 at most")
        if not 0 <= record.version < VERSION_AT_MOST:
            raise ValueError("a record's version is 0 or the one that was read")
        if record.due_at is not None:
            check_time(record.due_at)
        if record.erase_at is not None:
            check_time(record.erase_at)


def _check_together(records: tuple[Record, ...]) -> None:
    if len(records) > RECORDS_AT_MOST:
        raise ValueError(f"one write holds {len(records)} records, {RECORDS_AT_MOST} at most")
    if len({(record.owner, record.kind, record.id) for record in records}) < len(records):
        raise ValueError("one write holds each record once")
    keys = [(record.owner, record.kind, record.key) for record in records if record.key is not None]
    if len(set(keys)) < len(keys):
        raise ValueError("one write gives a key to one record")


def check_time(moment: datetime) -> None:
    """Refuse with ValueError a time without a zone: it would mean another one elsewhere."""
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone")


def bounds(owner: str | None, after: str | None) -> dict[str, str | None]:
    """Return between which ids a page stands: `after` or at `least`, and `below`."""
    if owner is None:
        return {"after": after}
    below = owner + chr(0x10FFFF)
    if after is not None and after >= owner:
        return {"after": after, "below": below}
    return {"least": owner, "below": below}


def check_limit(limit: int) -> None:
    """Refuse with ValueError a page of nothing; a negative one would mean "all" to SQLite."""
    if limit < 1:
        raise ValueError("limit is 1 or more")


def check_erasure(owner: str | None, before: datetime | None, limit: int) -> None:
    """Refuse with ValueError to erase everything, which nobody can mean."""
    if owner is None and before is None:
        raise ValueError("erase needs an owner, a time or both")
    if before is not None:
        check_time(before)
    check_limit(limit)


def as_written(record: Record) -> Record:
    """Return the record with its next version."""
    return replace(record, version=record.version + 1)
