"""Move a store to another address: fence both stores, copy the records, and check each row.

Both places are fenced during the move. The fence on the old place stops writes that the new place
would lack. The fence on the new place stops servers from using half a copy. The texts of the fences
say how far the move has got, so a move that was interrupted continues when it is run again.

Risks: both places are served, and each accepts a payment. The new place therefore opens only after
the old place says where it has moved to, and data that is no copy of the old place is never
overwritten. Or two moves run at once, because the first move continues after its terminal was lost.
If one of the moves ends and servers use the new place, the other move could overwrite newer
records, for example a spent receipt with an unspent one. Each change of a fence therefore names the
fences that it may replace, and a copy is stored only while the fence of its own move is set.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from flows.shown import counted
from webapp.stores.store import RECORDS_AT_MOST, Conflict, OtherFence, Record, Store

BYTES_AT_MOST = 4 * 1024 * 1024  # the size of copies that are loaded at once
Scan = Callable[[], AsyncIterator[Sequence[Record]]]


class NotMoved(Exception):
    """The move did not happen. The message says why, and what the operator can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of a move.

    `was_before` is True if an earlier run had moved the `records` already.
    """

    records: int
    was_before: bool = False


async def move(source: Store, target: Store) -> Moved:
    """Fence both places, copy, check, and open the new place. Raises NotMoved, or StoreUnavailable.

    This function is safe to repeat after any interruption.
    """
    old, new = _address(source), _address(target)
    if old == new:
        raise NotMoved(f"The source and the target are both {old}. Name another target.")
    copied, moving, moved = _words(old, new)
    standing, there = await source.fenced(), await target.fenced()
    if standing == moved and there is None:
        return Moved(records=await count(target.scan), was_before=True)
    if standing not in (None, moving, moved):
        raise NotMoved(f"{old} is fenced for another reason: {standing}.")
    if there not in (None, copied):
        raise NotMoved(f"{new} is fenced: {there}. Name another target.")
    if standing != moved:
        if there is None:
            await fence_empty(target, copied)
        else:  # set the fence again, because some servers of a cluster may lack it
            await _fence(target, copied, instead_of=(None, copied))
        standing = await _fence_source(source, moving, moved)
    if standing != moved:
        await copy(source.scan, target, behind=copied)
    await _fence(source, moved, instead_of=(moving, moved))
    await open_whole(target, copied)
    return Moved(records=await count(target.scan))


async def unfence(store: Store) -> str | None:
    """Remove the fence of a place and return its reason. Raises NotMoved for a partial copy."""
    why = await store.fenced()
    if why is not None and is_half(why):
        raise NotMoved(
            f"{_address(store)} is an incomplete copy and cannot be served. Run the command that "
            "made it again, or delete it."
        )
    await _fence(store, None, instead_of=(None, why))
    return why


def moved_to(why: str) -> str | None:
    """Return the store's new address if `why` is the fence of a moved store, else None."""
    if not why.startswith(_MOVED):
        return None
    return why.removeprefix(_MOVED).removesuffix(_TO_SET)


def is_half(why: str) -> bool:
    """Return True if `why` is the fence of a new place that does not have all copies yet."""
    return why.startswith(_HALF)


def half(source: str, command: str) -> str:
    """Return the text of the fence on a new place while records are copied to it."""
    return f"{_HALF}{source}, which is not done: run {command} again"


async def copy(scan: Scan, target: Store, *, behind: str) -> int:
    """Store the records that the target lacks, and return the number of records in the target.

    Afterwards, check that the target has exactly the records of the source.

    `behind` is the fence of the target. Raises NotMoved if the target has other records or another
    fence.
    """
    has = {digest_of(each) async for page in target.scan() for each in page}
    async for page in scan():
        await _load(target, [each for each in page if digest_of(each) not in has], behind=behind)
    return await _must_agree(scan, target, behind=behind)


async def open_whole(target: Store, copied: str) -> None:
    """Remove the fence of a complete copy. Raises NotMoved if another fence is set."""
    await _fence(target, None, instead_of=(None, copied))


async def _must_agree(scan: Scan, target: Store, *, behind: str) -> int:
    """Check that the target has exactly these rows, and return their count. Raises NotMoved."""
    expected = {digest_of(each) async for page in scan() for each in page}
    total, others = len(expected), 0
    async for page in target.scan():
        for each in page:
            digest = digest_of(each)
            if digest in expected:
                expected.remove(digest)
            else:
                others += 1
    if expected or others:
        if (found := await target.fenced()) != behind:
            raise _changed_by_other_command(target, found)
        raise NotMoved(
            f"The copy in {_address(target)} is not complete: it lacks {len(expected)} of "
            f"{counted(total, 'record')}, or has them with other contents, and it has "
            f"{counted(others, 'other record')}. The target stays fenced. Empty it, then run this "
            "command again."
        )
    return total


async def fence_empty(store: Store, why: str) -> None:
    """Fence an empty place. Raises NotMoved, and changes nothing, if the place is not empty."""
    await _must_be_empty(store)
    await _fence(store, why, instead_of=(None,))
    try:
        await _must_be_empty(store)
    except NotMoved:  # a server began to use the place in the meantime
        await _fence(store, None, instead_of=(why,))
        raise


async def _must_be_empty(store: Store) -> None:
    async for page in store.scan():
        if page:
            raise NotMoved(f"{_address(store)} already has records. Name an empty target.")


async def count(scan: Scan) -> int:
    return sum([len(page) async for page in scan()])


def digest_of(record: Record) -> bytes:
    return blake2b(msgspec.msgpack.encode(record), digest_size=32).digest()


async def _fence_source(source: Store, moving: str, moved: str) -> str:
    """Set the fence `moving`, and return the fence that is set now.

    The result is `moved` if another process has completed the move.
    """
    try:
        await source.fence(moving, instead_of=(None, moving))
    except OtherFence as other:
        if other.found != moved:
            raise _changed_by_other_command(source, other.found) from other
        return moved
    return moving


async def _fence(store: Store, why: str | None, *, instead_of: tuple[str | None, ...]) -> None:
    try:
        await store.fence(why, instead_of=instead_of)
    except OtherFence as other:
        raise _changed_by_other_command(store, other.found) from other


def _changed_by_other_command(store: Store, found: str | None) -> NotMoved:
    return NotMoved(
        f"Another command changed {_address(store)}, which is now "
        f"{'open' if found is None else f'fenced: {found}'}. This command has stopped. Check that "
        "no other command runs, then run this one again."
    )


async def _load(target: Store, records: Sequence[Record], *, behind: str) -> None:
    try:
        for some in _portions(records):
            await target.load(*some, behind=behind)
    except OtherFence as other:
        raise _changed_by_other_command(target, other.found) from other
    except Conflict as conflict:
        raise NotMoved(
            f"{_address(target)} has records that are not from the source ({conflict}). Empty it, "
            "then run this command again."
        ) from conflict


def _portions(records: Sequence[Record]) -> list[list[Record]]:
    portions, size = [list[Record]()], 0
    for record in records:
        size += len(record.sealed)
        if len(portions[-1]) >= RECORDS_AT_MOST or size > BYTES_AT_MOST:
            portions.append([])
            size = len(record.sealed)
        portions[-1].append(record)
    return [portion for portion in portions if portion]


def _address(store: Store) -> str:
    if store.address is None:
        raise NotMoved(
            "The store memory: is lost when its process ends, so you cannot move a store to it or "
            "from it."
        )
    return store.address


_HALF = "copies are being put here from "
_MOVED, _TO_SET = "this store has moved to ", ": set ELICIT_STORE to that"


def _words(old: str, new: str) -> tuple[str, str, str]:
    """Return the fence texts of the new place, and of the old place during and after the move."""
    moving = (
        f"this store is being moved to {new}; if that was cut off, run elicit move again (or "
        f"elicit move --unfence {old}, and remove the other)"
    )
    moved = f"{_MOVED}{new}{_TO_SET}"
    return half(old, "elicit move"), moving, moved
