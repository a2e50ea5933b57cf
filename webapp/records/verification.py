"""Whether the chains are whole, by what is stored alone: also those that nobody can open any more.

What could go wrong: what time has erased is taken for what somebody has, or the other way round. So
each link says until when the entries before it are kept, and only what is past that may be missing.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from flows.errors import Unreadable
from webapp.records.chain import AUDIT, HEAD, ChainLink, block_of, id_of, linked
from webapp.records.heads import OwnersHead
from webapp.records.owners import Owners
from webapp.stores import Record

_PAGE: Final = 100


class ChainFault(Struct, frozen=True, kw_only=True):
    """What is wrong with one owner's chain, as a sentence without a name."""

    owner: str
    says: str


class VerifiedChains(Struct, frozen=True, kw_only=True):
    owners: int
    entries: int
    faults: tuple[ChainFault, ...]


async def verify(
    owners: Owners, *, now: datetime, against: Mapping[str, OwnersHead] | None = None
) -> VerifiedChains:
    """Look at every chain, and at what a head says of each."""
    seconds = int(now.timestamp())
    heads = dict(against or {})
    faults, entries, count = list[ChainFault](), 0, 0
    async for owner, blocks in _chains(owners):
        count += 1
        walk = _Walk(owners, owner, seconds=seconds, head=heads.pop(owner, None))
        entries += walk.over(blocks)
        faults += walk.faults
    for head in heads.values():
        if head.until > seconds:
            says = f"the whole chain is missing, which had {_counted(head.count)}"
            faults.append(ChainFault(owner=head.owner, says=says))
    return VerifiedChains(owners=count, entries=entries, faults=tuple(faults))


async def _chains(owners: Owners) -> AsyncIterator[tuple[str, list[Record]]]:
    """The blocks of each owner, in the order of their ids."""
    owner, blocks, after = "", list[Record](), None
    while page := await owners.store.list(AUDIT, after=after, limit=_PAGE):
        for record in page:
            if record.owner != owner and blocks:
                yield owner, blocks
                blocks = []
            owner = record.owner
            blocks.append(record)
        after = page[-1].id
    if blocks:
        yield owner, blocks


class _Walk:
    """Over one chain, from its first entry that is still kept."""

    def __init__(
        self, owners: Owners, owner: str, *, seconds: int, head: OwnersHead | None
    ) -> None:
        self._pepper = owners.pepper
        self._owner = owner
        self._seconds = seconds
        self._head = head
        self.faults = list[ChainFault]()

    def over(self, blocks: list[Record]) -> int:
        """How many entries there are."""
        link, entries = None, 0
        for record in blocks:
            try:
                block = block_of(record)
            except Unreadable:
                self._find(f"the block after entry {self._after(record)} is damaged")
                link = None
                continue
            link = self._begun(link, block.before, is_first=record is blocks[0])
            if record.id != id_of(self._owner, block.before):
                self._find(f"the block after entry {block.before.count} stands elsewhere")
            for stored in block.entries:
                link = linked(self._pepper, self._owner, link, stored)
                entries += 1
                self._compare(link)
            if link.hash != block.end:
                self._find(f"what is stored up to entry {link.count} is not what was written")
                link = replace(link, hash=block.end)
        if blocks[-1].key != HEAD:
            self._find("its newest block is missing")
        self._end(link)
        return entries

    def _begun(self, link: ChainLink | None, before: ChainLink, *, is_first: bool) -> ChainLink:
        if is_first and before.count and before.until > self._seconds:
            self._find(f"its first {_missing(before.count)}, before their time")
        elif link is not None and link != before:
            missing = before.count - link.count
            self._find(
                f"{_missing(missing)} after entry {link.count}"
                if missing > 0
                else f"what is stored up to entry {before.count} is not what was written"
            )
        return before

    def _compare(self, link: ChainLink) -> None:
        head = self._head
        if head is not None and head.count == link.count:
            self._head = None
            if head.hash != link.hash and head.until > self._seconds:
                self._find(f"entry {link.count} or one before it is not what the head says")

    def _end(self, link: ChainLink | None) -> None:
        head = self._head
        if link is None or head is None or head.until <= self._seconds:
            return
        if head.count > link.count:
            self._find(f"its last {_missing(head.count - link.count)}")

    def _after(self, record: Record) -> int:
        tail = record.id.removeprefix(self._owner)
        return int(tail) if tail.isdecimal() else 0

    def _find(self, says: str) -> None:
        self.faults.append(ChainFault(owner=self._owner, says=says))


def _counted(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def _missing(entries: int) -> str:
    return f"{_counted(entries)} {'is' if entries == 1 else 'are'} missing"
