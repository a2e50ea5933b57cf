"""The audit: each owner's chain of entries, written with the change that each tells of.

A chain is a row of blocks. A block has up to 32 entries, each sealed under the owner's data key,
and the link before the first of them: how many there were, until when the last of them is kept, and
a keyed hash over all that was stored till then. So it is held together by what is stored, and also
verifies where nobody can open it any more. The newest block holds the key `head`.

An entry and what it tells of are one write of the store. Two writers at once would both append to
the same block, and the store lets one of them: so the other reads the new head and appends to that,
while its own rows stand as they were. Within a process they need not race: what comes for an owner
while a write of that owner is under way goes with all else that came, in the next one. A hundred
answers at once are two or three commits, with two or three rows more.

What could go wrong: one of those gathered has lost its own race, and the others fail with it. So it
alone is told, and the others are written without it. Whoever can write to the store can take the
end away, and the chain does not know: heads that are kept elsewhere do (`heads`). Where the newest
block is missing and others are there, the chain goes on, and an entry says so.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flows.errors import Unreadable
from webapp.deadline import Clock
from webapp.records.entries import Entry
from webapp.records.ids import Pepper
from webapp.records.owners import Owners
from webapp.records.seal import Locker, Row
from webapp.stores import Conflict, Record
from webapp.stores.lanes import Lanes

AUDIT: Final = "audit"
HEAD: Final = "head"
HASH_BYTES: Final = 32
AUDIT_KEPT: Final = timedelta(days=365)
_FULL: Final = "full"
_FULL_FROM: Final = 16  # entries; what comes at once may go on to the limit
_ENTRIES_AT_MOST: Final = 32
_WRITES_AT_ONCE: Final = 100
_RECORDS_AT_ONCE: Final = 400  # the blocks come besides, and a write holds 500
_OWNERS_AT_MOST: Final = 5_000
_PAGE: Final = 100
_log = logging.getLogger(__name__)


class ChainLink(Struct, frozen=True, array_like=True):
    """How far a chain has come: the hash of `count` entries, kept until then, in Unix seconds."""

    count: int = 0
    until: int = 0
    hash: bytes = b""


class Stored(Struct, frozen=True, array_like=True):
    until: int
    sealed: bytes


class Block(Struct, frozen=True, array_like=True):
    before: ChainLink
    entries: tuple[Stored, ...] = ()
    end: bytes = b""  # the hash after the last of them


class _Job(Struct, eq=False):
    done: "asyncio.Future[None]"
    records: tuple[Record, ...]
    entries: tuple[Entry, ...]


_encode = msgspec.msgpack.Encoder().encode
_block = msgspec.msgpack.Decoder(Block).decode
_entry = msgspec.msgpack.Decoder(Entry).decode


def block_of(record: Record) -> Block:
    """Raises Unreadable for what is none."""
    try:
        return _block(record.sealed)
    except msgspec.MsgspecError:
        raise Unreadable from None


def id_of(owner: str, link: ChainLink) -> str:
    """Of the block that begins after that link: in the order of the chain."""
    return f"{owner}{link.count:012d}"


def linked(pepper: Pepper, owner: str, before: ChainLink, stored: Stored) -> ChainLink:
    """The link after one more entry."""
    count = before.count + 1
    numbers = b"%d %d %d" % (count, before.until, stored.until)
    parts = (b"audit", owner.encode(), before.hash, numbers, stored.sealed)
    return ChainLink(count=count, until=stored.until, hash=pepper.mac(*parts, size=HASH_BYTES))


def end_of(pepper: Pepper, owner: str, block: Block) -> ChainLink:
    """The link after the last entry of a block."""
    link = block.before
    for stored in block.entries:
        link = linked(pepper, owner, link, stored)
    return link


def opened(locker: Locker, owner: str, number: int, sealed: bytes) -> Entry:
    """The entry of that number, from 1. Raises Unreadable."""
    return _entry(locker.open(_row(owner, number), sealed))


class AuditChain:
    """Writes rows together with entries; one for a process."""

    def __init__(self, owners: Owners, *, clock: Clock, kept: timedelta = AUDIT_KEPT) -> None:
        self.owners = owners
        self.clock = clock
        self.kept = kept
        self.by = "service"  # who makes the changes of this process
        self._of = OrderedDict[str, _OwnersChain]()

    async def write(self, owner: str, records: tuple[Record, ...], *entries: Entry) -> None:
        """All or none, of one owner. Raises Conflict, which is about one of these records."""
        chain = self._of.get(owner)
        if chain is None:
            chain = self._of[owner] = _OwnersChain(self, owner)
            if len(self._of) > _OWNERS_AT_MOST:
                self._of.popitem(last=False)  # what it has under way it ends
        else:
            self._of.move_to_end(owner)
        await chain.write(records, entries)


class _OwnersChain:
    def __init__(self, chain: AuditChain, owner: str) -> None:
        self._chain = chain
        self._owner = owner
        self._head: Record | None = None
        self._end = ChainLink()
        self._is_known = False  # what the head is, as far as this process has heard
        self._is_mended = False
        self._lanes: Lanes[_Job] = Lanes(self._write, fit=_fit)

    async def write(self, records: tuple[Record, ...], entries: tuple[Entry, ...]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lanes.put(_Job(done=done, records=records, entries=entries))
        await done

    async def _write(self, jobs: Sequence[_Job]) -> None:
        try:
            await self._write_all(list(jobs))
        except BaseException as error:
            self._is_known = False
            for job in jobs:
                _tell(job, error)
            if not isinstance(error, Exception):
                raise

    async def _write_all(self, jobs: list[_Job]) -> None:
        """Together, but for those that lose a race of their own."""
        while jobs:
            if not self._is_known:
                await self._find_head()
            entries = [entry for job in jobs for entry in job.entries]
            blocks, end = await self._appended(entries)
            try:
                written = await self._chain.owners.store.write(
                    *(record for job in jobs for record in job.records), *blocks
                )
            except Conflict as conflict:
                for job in await self._losers(conflict, jobs):
                    jobs.remove(job)
                    _tell(job, conflict)
            else:
                self._head, self._end, self._is_mended = written[-1], end, False
                for job in jobs:
                    _tell(job, None)
                return

    async def _losers(self, conflict: Conflict, jobs: list[_Job]) -> list[_Job]:
        """Whose own rows somebody was first at; nobody's, where it was only the chain."""
        found = conflict.found
        if found is not None and found.kind == AUDIT:
            self._is_known = False
            if found.key == HEAD:
                self._come_to(found)
            return []
        if found is not None:
            return [job for job in jobs if _is_about(found, job)]
        # A row is gone: of one of them, or the head itself, whose time was over.
        former = self._head
        await self._find_head()
        return [] if self._head != former else await self._gone(jobs)

    async def _gone(self, jobs: list[_Job]) -> list[_Job]:
        """Those of which a row that was read before is there no more."""
        read = self._chain.owners.store.read
        return [
            job
            for job in jobs
            for each in job.records
            if each.version and await read(each.owner, each.kind, each.id) is None
        ][:1]

    async def _find_head(self) -> None:
        store = self._chain.owners.store
        head = await store.find(self._owner, AUDIT, HEAD)
        is_mended = False
        if head is None:
            after = None
            while page := await store.list(AUDIT, owner=self._owner, after=after, limit=_PAGE):
                head = page[-1]
                after = head.id
            if is_mended := head is not None:
                _log.error("audit.end_missing", extra={"owner": self._owner[:6]})
        self._come_to(head, is_mended=is_mended)

    def _come_to(self, head: Record | None, *, is_mended: bool = False) -> None:
        self._head, self._is_mended, self._is_known = head, is_mended, True
        pepper = self._chain.owners.pepper
        self._end = ChainLink() if head is None else end_of(pepper, self._owner, block_of(head))

    async def _appended(self, entries: list[Entry]) -> tuple[list[Record], ChainLink]:
        """The blocks that change, the newest last, and the link after them."""
        owners, owner = self._chain.owners, self._owner
        locker = owners.cached(owner) or await owners.locker(owner)
        now = self._chain.clock()
        if self._is_mended:
            entries = [Entry(kind=AUDIT, what="mended", about=""), *entries]
        link, until = self._end, max(self._end.until, int((now + self._chain.kept).timestamp()))
        record, blocks = self._head, list[Record]()
        block = Block(before=link) if record is None else block_of(record)
        for number, entry in enumerate(entries):
            is_full = len(block.entries) >= (_ENTRIES_AT_MOST if number else _FULL_FROM)
            if record is not None and is_full:
                blocks.append(_put(record, block, status=_FULL))
                record, block = None, Block(before=link)
            told = _encode(replace(entry, at=now, by=entry.by or self._chain.by))
            sealed = locker.seal(_row(owner, link.count + 1), told)
            stored = Stored(until=until, sealed=sealed)
            link = linked(owners.pepper, owner, link, stored)
            block = replace(block, entries=(*block.entries, stored), end=link.hash)
            if record is None:
                record = _fresh(owner, block.before)
        assert record is not None, "there is an entry at least"
        blocks.append(_put(record, block, status=HEAD))
        return blocks, link


def _fresh(owner: str, before: ChainLink) -> Record:
    return Record(
        owner=owner,
        kind=AUDIT,
        id=id_of(owner, before),
        status=HEAD,
        key=HEAD,
        due_at=None,
        erase_at=None,
        version=0,
        sealed=b"",
    )


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


def _tell(job: _Job, error: BaseException | None) -> None:
    if job.done.done():  # its caller has left
        return
    if error is None:
        job.done.set_result(None)
    else:
        job.done.set_exception(error)


def _fit(jobs: Sequence[_Job]) -> tuple[list[_Job], list[_Job]]:
    """What goes together: no two that touch one row or ask for one key, in the order they came."""
    batch, behind, touched, records = list[_Job](), list[_Job](), set[tuple[str, ...]](), 0
    for job in jobs:
        names = {(each.kind, each.id) for each in job.records} | {
            (each.kind, "", each.key) for each in job.records if each.key is not None
        }
        records += len(job.records)
        is_much = len(batch) >= _WRITES_AT_ONCE or (batch and records > _RECORDS_AT_ONCE)
        if is_much or not touched.isdisjoint(names):
            behind.append(job)
        else:
            batch.append(job)
        touched |= names  # also of those behind: their order stays
    return batch, behind
