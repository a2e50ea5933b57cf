"""The audit log: each owner's chain of entries, written together with the changes it records.

A chain is a sequence of blocks. A block has up to 32 entries, each sealed under the owner's data
key, and the link to the entries before the block: their number, the time until which the last of
them is stored, and a keyed hash of everything stored so far. The hash covers the stored bytes, so a
chain can be verified even if its entries can no longer be decrypted. The newest block has the key
`head`.

An entry and the change that it records are one write of the store. If two processes append to the
same block, the store accepts one write. The other process reads the new head and appends to that,
with its own rows unchanged. Within a process there is no such race: writes for an owner that arrive
during a write of that owner are combined in the next one. For example, a hundred answers at the
same moment need two or three commits, and two or three rows for the audit.

Risks: one of the combined writes has lost a race, and the other writes fail with it. So only the
write that lost gets the error, and the others are repeated without it. An attacker with write
access to the store can remove the end of a chain, and the chain alone does not show that; heads
stored elsewhere do (`heads`). If the newest block is missing and earlier blocks exist, the chain
continues, and an entry records the gap.
"""

import asyncio
import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from flows.errors import Unreadable
from webapp.deadline import Clock
from webapp.records.entries import Entry
from webapp.records.ids import Pepper
from webapp.records.owners import Locker, Owners, Row
from webapp.stores import Conflict, Record
from webapp.stores.lanes import Lanes, answer
from webapp.stores.store import plain_record

AUDIT: Final = "audit"
HEAD: Final = "head"
HASH_BYTES: Final = 32
COUNT_DIGITS: Final = 12
AUDIT_RETENTION: Final = timedelta(days=365)
_FULL: Final = "full"
_FULL_FROM: Final = 16  # a write begins a new block after a block with this many entries
_ENTRIES_AT_MOST: Final = 32
_FULL_BYTES: Final = 32 * 1024  # leaves room for one more entry below the store's limit
_DAY_SECONDS: Final = 24 * 60 * 60
_MISSING, _DAMAGED = "its newest block was missing", "its newest block was damaged"
_WRITES_AT_ONCE: Final = 100
_RECORDS_AT_ONCE: Final = 400  # audit blocks not counted; a write can have 500 records
_OWNERS_AT_MOST: Final = 5_000
_PAGE: Final = 100
_TRIES_AT_MOST: Final = 1_000  # attempts of one write; only a bug can cause so many conflicts
_log = logging.getLogger(__name__)
_Until: TypeAlias = Annotated[int, Meta(ge=0, lt=2**37)]  # the range of a datetime


class ChainLink(Struct, frozen=True, array_like=True):
    """A position in a chain: the hash of `count` entries, stored until `until` (Unix seconds)."""

    count: Annotated[int, Meta(ge=0, lt=10**COUNT_DIGITS)] = 0
    until: _Until = 0
    hash: Annotated[bytes, Meta(max_length=HASH_BYTES)] = b""


class Stored(Struct, frozen=True, array_like=True):
    until: _Until
    sealed: bytes


class Block(Struct, frozen=True, array_like=True):
    before: ChainLink
    entries: tuple[Stored, ...] = ()
    end: bytes = b""  # the hash after the last entry


class _Job(Struct, eq=False):
    records: tuple[Record, ...]
    entries: tuple[Entry, ...]
    done: "asyncio.Future[None] | None" = None  # None if the caller writes without the queue
    error: BaseException | None = None


_numbers = struct.Struct(">3q").pack
_encode = msgspec.msgpack.Encoder().encode
_block = msgspec.msgpack.Decoder(Block).decode
_entry = msgspec.msgpack.Decoder(Entry).decode


def block_of(record: Record) -> Block:
    """Decode the block of a record. Raises Unreadable."""
    try:
        return _block(record.sealed)
    except msgspec.MsgspecError:
        raise Unreadable from None


def id_of(owner: str, link: ChainLink) -> str:
    """Return the id of the block that begins after this link. Ids sort in the chain's order."""
    return f"{owner}{link.count:0{COUNT_DIGITS}d}"


def begins_after(record: Record) -> int:
    """Return the number of entries before a block, from its id alone."""
    tail = record.id.removeprefix(record.owner)
    return int(tail) if tail.isascii() and tail.isdecimal() else 0


class Linking:
    """The links between one owner's entries: keyed hashes of the previous link and an entry."""

    def __init__(self, pepper: Pepper, owner: str) -> None:
        self._begun = pepper.hashing(b"audit", owner.encode(), size=HASH_BYTES)

    def after(self, before: ChainLink, stored: Stored) -> ChainLink:
        """Return the link after one more entry."""
        count, until = before.count + 1, stored.until
        hashing = self._begun.copy()
        hashing.update(before.hash.ljust(HASH_BYTES, b"\0"))
        hashing.update(_numbers(count, before.until, until))
        hashing.update(stored.sealed)
        return ChainLink(count=count, until=until, hash=hashing.digest())

    def end_of(self, block: Block) -> ChainLink:
        """Return the link after the last entry. Raises Unreadable if the block was altered."""
        link = block.before
        for stored in block.entries:
            link = self.after(link, stored)
        if link.hash != block.end:
            raise Unreadable
        return link


def opened(locker: Locker, owner: str, number: int, sealed: bytes) -> Entry:
    """Decrypt the entry with this number; the first is 1. Raises Unreadable."""
    return _entry(locker.open(_row(owner, number), sealed))


class AuditChain:
    """A writer of rows together with audit entries; one per process."""

    def __init__(
        self, owners: Owners, *, clock: Clock, retention: timedelta = AUDIT_RETENTION
    ) -> None:
        self.owners = owners
        self.clock = clock
        self.retention = retention
        self.by = "service"  # the author of this process's changes, for the audit log
        # Called with an owner and the fault at the end of the owner's chain.
        self.mended: Callable[[str, str], None] = _log_repaired
        self._of = OrderedDict[str, _OwnersChain]()

    async def write(self, owner: str, records: tuple[Record, ...], *entries: Entry) -> None:
        """Write all rows of one owner and their entries, or none.

        Raises Conflict if another write of one of these rows was first.
        """
        chain = self._of.get(owner)
        if chain is None:
            chain = self._of[owner] = _OwnersChain(self, owner)
            if len(self._of) > _OWNERS_AT_MOST:
                self._of.popitem(last=False)  # the removed chain still finishes its writes
        else:
            self._of.move_to_end(owner)
        await chain.write(records, entries)

    def forget(self) -> None:
        """Forget the end of each chain, so that the next write reads it from the store.

        If the store has lost its latest writes, the ends in the store are older than those in
        memory.
        """
        self._of.clear()


def _log_repaired(owner: str, why: str) -> None:
    _log.error("audit.repaired", extra={"owner": owner[:6], "why": why})


class _OwnersChain:
    def __init__(self, chain: AuditChain, owner: str) -> None:
        self._chain = chain
        self._owner = owner
        self._linking = Linking(chain.owners.pepper, owner)
        self._head: Record | None = None
        self._block = Block(before=ChainLink())  # the content of the head
        self._end = self._block.before
        self._is_known = False  # whether the head's state is known
        self._fault: str | None = None  # the fault at the end of the chain
        self._is_busy = False  # True if several writes came at once: the next one is queued too
        self._lanes: Lanes[_Job] = Lanes(self._write, fit=_fit)

    async def write(self, records: tuple[Record, ...], entries: tuple[Entry, ...]) -> None:
        job = _Job(records=records, entries=entries)
        if self._is_busy or not self._lanes.is_idle:
            job.done = asyncio.get_running_loop().create_future()
            self._lanes.put(job)
            await job.done
            return
        self._lanes.hold()  # write here: a single write needs no task of its own
        try:
            await self._write_all([job])
        except BaseException:
            self._is_known = False
            raise
        finally:
            self._lanes.release()
        if job.error is not None:
            raise job.error

    async def _write(self, jobs: Sequence[_Job]) -> None:
        self._is_busy = len(jobs) > 1
        try:
            await self._write_all(list(jobs))
        except BaseException as error:
            self._is_known = False
            for job in jobs:
                _finish(job, error)
            if not isinstance(error, Exception):
                raise

    async def _write_all(self, jobs: list[_Job]) -> None:
        """Write the jobs together. A job fails if another write has changed its own rows."""
        tries = _TRIES_AT_MOST
        while jobs:
            if not tries:
                raise RuntimeError(
                    f"the entry could not be added to the audit of {self._owner[:6]}: "
                    f"other writers changed it {_TRIES_AT_MOST} times in a row"
                )
            tries -= 1
            if not self._is_known:
                await self._find_head()
            records = [record for job in jobs for record in job.records]
            entries = [entry for job in jobs for entry in job.entries]
            blocks, block, end = await self._appended(entries)
            try:
                written = await self._chain.owners.store.write(*records, *blocks)
            except Conflict as conflict:
                for job in await self._conflicting_jobs(conflict, jobs):
                    jobs.remove(job)
                    _finish(job, conflict)
            else:
                if self._fault is not None:
                    self._chain.mended(self._owner, self._fault)
                self._head, self._block, self._end, self._fault = written[-1], block, end, None
                for job in jobs:
                    _finish(job, None)
                return

    async def _conflicting_jobs(self, conflict: Conflict, jobs: list[_Job]) -> list[_Job]:
        """Return the jobs that fail because another write has changed one of their own rows.

        If the other write has changed only the chain, return no jobs: all jobs can be repeated.
        """
        found = conflict.found
        if found is not None and found.kind == AUDIT:
            if found.key == HEAD:
                self._set_head(found)
            else:
                await self._find_head(has_id_conflict=True)
            return []
        if found is not None:
            return [job for job in jobs if _is_about(found, job)]
        # A row no longer exists: a row of one of the jobs, or the head, which may have expired.
        head_before = self._head
        await self._find_head()
        return [] if self._head != head_before else await self._gone(jobs)

    async def _gone(self, jobs: list[_Job]) -> list[_Job]:
        """Return the first job with a row that no longer exists."""
        read = self._chain.owners.store.read
        return [
            job
            for job in jobs
            for each in job.records
            if each.version and await read(each.owner, each.kind, each.id) is None
        ][:1]

    async def _find_head(self, *, has_id_conflict: bool = False) -> None:
        """Read the head, and find the block after which to continue.

        Continue after the last block in two cases: the head is missing, or another block already
        has the id of the next block (`has_id_conflict`). Otherwise continue after the head.
        """
        store = self._chain.owners.store
        head = await store.find(self._owner, AUDIT, HEAD)
        last = head
        if head is None or has_id_conflict:
            while page := await store.list(
                AUDIT, owner=self._owner, after=None if last is None else last.id, limit=_PAGE
            ):
                last = page[-1]
        if head is not None and last is not None and last.id != head.id:
            self._set_head(head)
            self._go_on_after(last)
        else:
            self._set_head(last, fault=_MISSING if head is None and last is not None else None)

    def _set_head(self, head: Record | None, *, fault: str | None = None) -> None:
        self._head, self._fault, self._is_known = head, fault, True
        self._block = Block(before=ChainLink())
        self._end = self._block.before
        if head is not None:
            try:
                self._block = block_of(head)
                self._end = self._linking.end_of(self._block)
            except Unreadable:
                self._go_on_after(head)

    def _go_on_after(self, damaged: Record) -> None:
        """Continue in a new block, numbered above all entries that the damaged block can have."""
        count = begins_after(damaged) + _ENTRIES_AT_MOST
        until = 0 if damaged.erase_at is None else int(damaged.erase_at.timestamp())
        parts = (b"audit damaged", damaged.id.encode(), damaged.sealed)
        mac = self._chain.owners.pepper.mac(*parts, size=HASH_BYTES)
        self._fault = _DAMAGED
        self._end = ChainLink(count=count, until=until, hash=mac)

    async def _appended(self, entries: list[Entry]) -> tuple[list[Record], Block, ChainLink]:
        """Return the changed blocks, newest last, with the newest block and the link after it."""
        owners, owner = self._chain.owners, self._owner
        locker = owners.lockers.get(owner) or await owners.locker(owner)
        now = self._chain.clock()
        link, until = self._end, max(self._end.until, _expiry(now + self._chain.retention))
        record, blocks = self._head, list[Record]()
        if self._fault is not None:
            entries = [Entry(kind=AUDIT, what="mended", about="", why=self._fault), *entries]
        before, in_block = self._block.before, list(self._block.entries)
        if record is not None and self._fault == _DAMAGED:
            # the content of this block is unchanged
            blocks.append(replace(record, status=_FULL, key=None))
            record, before, in_block = None, link, []
        size = 0 if record is None else len(record.sealed)
        for number, entry in enumerate(entries):
            most = _ENTRIES_AT_MOST if number else _FULL_FROM
            if record is not None and (len(in_block) >= most or size > _FULL_BYTES):
                block = Block(before=before, entries=tuple(in_block), end=link.hash)
                blocks.append(_put(record, block, status=_FULL))
                record, before, in_block, size = None, link, [], 0
            encoded = _encode(replace(entry, at=now, by=entry.by or self._chain.by))
            stored = Stored(until=until, sealed=locker.seal(_row(owner, link.count + 1), encoded))
            link = self._linking.after(link, stored)
            in_block.append(stored)
            size += len(stored.sealed)
            if record is None:
                record = plain_record(owner, AUDIT, id_of(owner, before), status=HEAD, key=HEAD)
        assert record is not None, "a write has at least one entry"
        block = Block(before=before, entries=tuple(in_block), end=link.hash)
        blocks.append(_put(record, block, status=HEAD))
        return blocks, block, link


def _expiry(until: datetime) -> int:
    """Round up to the end of the day, so that most writes do not change the expiry's index."""
    return ceil(until.timestamp() / _DAY_SECONDS) * _DAY_SECONDS


def _put(record: Record, block: Block, *, status: str) -> Record:
    return replace(
        record,
        status=status,
        key=HEAD if status == HEAD else None,
        erase_at=datetime.fromtimestamp(block.entries[-1].until, UTC),
        sealed=_encode(block),
    )


def _row(owner: str, number: int) -> Row:
    return Row(owner=owner, kind=AUDIT, id=owner, version=number)


def _is_about(found: Record, job: _Job) -> bool:
    return any(
        found.kind == each.kind
        and (found.id == each.id or (each.key is not None and found.key == each.key))
        for each in job.records
    )


def _finish(job: _Job, error: BaseException | None) -> None:
    job.error = error
    if job.done is not None:
        answer([(job.done, error)])


def _fit(jobs: Sequence[_Job]) -> tuple[list[_Job], list[_Job]]:
    """Split the jobs into those to write now and the rest.

    No two jobs of a write touch the same row or key, and the order is preserved.
    """
    batch, behind, touched, records = list[_Job](), list[_Job](), set[tuple[str, ...]](), 0
    for job in jobs:
        names = {(each.kind, each.id) for each in job.records} | {
            (each.kind, "", each.key) for each in job.records if each.key is not None
        }
        total = records + len(job.records)
        is_much = len(batch) >= _WRITES_AT_ONCE or (batch and total > _RECORDS_AT_ONCE)
        if is_much or not touched.isdisjoint(names):
            behind.append(job)
        else:
            batch.append(job)
            records = total
        # A later job that touches the same rows as a waiting job must not be written first.
        touched |= names
    return batch, behind
