"""Verification: checks that audit chains are complete, from the stored bytes alone.

Chains whose entries can no longer be decrypted are verified as well.

Risks: expired entries are reported as removed, or removed entries as expired. So each link
records until when the entries before it must be stored. An entry that is missing before that time
was removed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from flows.errors import Unreadable
from flows.shown import counted
from webapp.records.chain import AUDIT, HEAD, ChainLink, Linking, begins_after, block_of, id_of
from webapp.records.heads import OwnersHead
from webapp.records.owners import Owners
from webapp.stores import Record

_PAGE: Final = 100


class ChainFault(Struct, frozen=True, kw_only=True):
    """A fault of one owner's chain. `says` is a sentence that does not name the owner."""

    owner: str
    says: str


class VerifiedChains(Struct, frozen=True, kw_only=True):
    owners: int
    entries: int
    faults: tuple[ChainFault, ...]


async def verify(
    owners: Owners, *, now: datetime, against: Iterable[OwnersHead] = ()
) -> VerifiedChains:
    """Check every chain, and compare the chains with the heads `against`.

    Only one page of blocks is in memory at a time.
    """
    seconds = int(now.timestamp())
    heads = defaultdict[str, list[OwnersHead]](list)
    # Several heads often describe the same state of a chain.
    for each in {(each.owner, each.count, each.hash): each for each in against}.values():
        if each.until > seconds:
            heads[each.owner].append(each)
    faults, entries, count, after = list[ChainFault](), 0, 0, None
    walk: _Walk | None = None
    while page := await owners.store.list(AUDIT, after=after, limit=_PAGE):
        for record in page:
            if walk is None or walk.owner != record.owner:
                faults += () if walk is None else walk.finish()
                expected = heads.pop(record.owner, ())
                walk = _Walk(owners, record.owner, seconds=seconds, heads=expected)
                count += 1
            entries += walk.on(record)
        after = page[-1].id
    faults += () if walk is None else walk.finish()
    for owner, expected in heads.items():
        most = max(each.count for each in expected)
        says = f"the whole chain of {counted(most, 'entry', 'entries')} is missing"
        faults.append(ChainFault(owner=owner, says=says))
    return VerifiedChains(owners=count, entries=entries, faults=tuple(faults))


class _Walk:
    """The verification of one chain, block by block, from its first stored entry."""

    def __init__(
        self, owners: Owners, owner: str, *, seconds: int, heads: Sequence[OwnersHead]
    ) -> None:
        self.owner = owner
        self._linking = Linking(owners.pepper, owner)
        self._seconds = seconds
        self._most = max((each.count for each in heads), default=0)
        self._hashes = defaultdict[int, set[bytes]](set)
        for each in heads:
            self._hashes[each.count].add(each.hash)
        self._link: ChainLink | None = None  # None after a damaged block
        self._is_first = True
        self._has_newest = False
        self._faults = list[ChainFault]()

    def on(self, record: Record) -> int:
        """Check the next block. Return the number of its entries."""
        self._has_newest = record.key == HEAD
        is_first, self._is_first = self._is_first, False
        try:
            block = block_of(record)
        except Unreadable:
            self._find(f"the block after entry {begins_after(record)} is damaged")
            self._link = None
            return 0
        link = self._begun(self._link, block.before, is_first=is_first)
        if record.id != id_of(self.owner, block.before):
            self._find(f"the block after entry {block.before.count} is in the wrong place")
        for stored in block.entries:
            link = self._linking.after(link, stored)
            self._compare(link)
        if link.hash != block.end:
            self._find(f"an entry up to entry {link.count} was changed")
            link = replace(link, hash=block.end)
        self._link = link
        return len(block.entries)

    def finish(self) -> list[ChainFault]:
        """End the verification and return all faults."""
        if not self._has_newest:
            self._find("its newest block is missing")
        self._end(self._link)
        return self._faults

    def _begun(self, link: ChainLink | None, before: ChainLink, *, is_first: bool) -> ChainLink:
        if is_first and before.count and before.until > self._seconds:
            self._find(f"its first {_missing(before.count)} and had not expired")
        elif link is not None and link != before:
            missing = before.count - link.count
            self._find(
                f"{_missing(missing)} after entry {link.count}"
                if missing > 0
                else f"an entry up to entry {before.count} was changed"
            )
        return before

    def _compare(self, link: ChainLink) -> None:
        if self._hashes.get(link.count, {link.hash}) != {link.hash}:
            self._find(f"entry {link.count} or an earlier one differs from the head")

    def _end(self, link: ChainLink | None) -> None:
        if link is not None and self._most > link.count:
            self._find(f"its last {_missing(self._most - link.count)}")

    def _find(self, says: str) -> None:
        self._faults.append(ChainFault(owner=self.owner, says=says))


def _missing(entries: int) -> str:
    return f"{counted(entries, 'entry', 'entries')} {'is' if entries == 1 else 'are'} missing"
