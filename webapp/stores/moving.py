"""A store moves to another place: a fence, copies, a check of each row, and no moment with two.

Both places are fenced while it goes on: the old one, so that nothing is written there that the new
one lacks; the new one, so that nobody serves it half full. The words of the fences say how far it
is, so a move that was cut off goes on when it is run again.

What could go wrong: both are served, and each is paid. So the new place opens only once the old one
says where it has moved to, and what is no copy of the old one is never overwritten. Or two moves
run at once, as the first one goes on after its terminal was lost: one is done, the new place is
served, and the other puts a spent receipt back. So each change of a fence names those in whose
place it may come, and a copy is put in place only while the fence of its own move stands.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from webapp.stores.store import RECORDS_AT_MOST, Conflict, OtherFence, Record, Store

BYTES_AT_MOST = 4 * 1024 * 1024  # of copies that are loaded at once
Scan = Callable[[], AsyncIterator[Sequence[Record]]]


class NotMoved(Exception):
    """A sentence for the operator: why nothing was moved, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """`records` are in the new place; `was_before`: they had been moved already."""

    records: int
    was_before: bool = False


async def move(source: Store, target: Store) -> Moved:
    """Fence both, copy, check, and open the new place. Raises NotMoved, or StoreUnavailable.

    Safe to repeat, whatever it was interrupted by.
    """
    old, new = _address(source), _address(target)
    if old == new:
        raise NotMoved(f"{old} is both where it is and where it is to go: name another place.")
    copied, moving, moved = _words(old, new)
    standing, there = await source.fenced(), await target.fenced()
    if standing == moved and there is None:
        return Moved(records=await count(target.scan), was_before=True)
    if standing not in (None, moving, moved):
        raise NotMoved(f"{old} is fenced for another reason: {standing}.")
    if there not in (None, copied):
        raise NotMoved(f"{new} is fenced: {there}. Name another place.")
    if standing != moved:
        if there is None:
            await fence_empty(target, copied)
        else:  # of a cluster perhaps half
            await _fence(target, copied, instead_of=(None, copied))
        standing = await _fence_source(source, moving, moved)
    if standing != moved:
        await copy(source.scan, target, behind=copied)
    await _fence(source, moved, instead_of=(moving, moved))
    await open_whole(target, copied)
    return Moved(records=await count(target.scan))


async def unfence(store: Store) -> str | None:
    """Let a place be served again; returns why it was not. Raises NotMoved for half a copy."""
    why = await store.fenced()
    if why is not None and is_half(why):
        raise NotMoved(
            f"{_address(store)} is a copy that is not whole, which nobody may serve: run the "
            "command again that made it, or remove it."
        )
    await _fence(store, None, instead_of=(None, why))
    return why


def moved_to(why: str) -> str | None:
    """Where the store is now, by what stands on the place that it has left."""
    if not why.startswith(_MOVED):
        return None
    return why.removeprefix(_MOVED).removesuffix(_TO_SET)


def is_half(why: str) -> bool:
    """Return True for the fence of a place into which copies are being put."""
    return why.startswith(_HALF)


def half(source: str, command: str) -> str:
    """What stands on a place while copies come in."""
    return f"{_HALF}{source}, which is not done: run {command} again"


async def copy(scan: Scan, target: Store, *, behind: str) -> int:
    """Put in place what lacks there, and check that both have the same; how many records that is.

    `behind` is the fence of the target. Raises NotMoved if it holds others, or is in other hands.
    """
    has = {digest_of(each) async for page in target.scan() for each in page}
    async for page in scan():
        await _load(target, [each for each in page if digest_of(each) not in has], behind=behind)
    return await _must_agree(scan, target, behind=behind)


async def open_whole(target: Store, copied: str) -> None:
    """Take the fence of a copy away that is whole. Raises NotMoved if another one stands."""
    await _fence(target, None, instead_of=(None, copied))


async def _must_agree(scan: Scan, target: Store, *, behind: str) -> int:
    """That each row is there as it is, and no other one; how many. Raises NotMoved."""
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
            raise _in_other_hands(target, found)
        raise NotMoved(
            f"Of {total} records {len(expected)} are not in {_address(target)} as they are, and "
            f"{others} are there that should not be. It stays fenced; empty it, and run this again."
        )
    return total


async def fence_empty(store: Store, why: str) -> None:
    """Put a fence around an empty place. Raises NotMoved if it is none, and leaves it as it is."""
    await _must_be_empty(store)
    await _fence(store, why, instead_of=(None,))
    try:
        await _must_be_empty(store)
    except NotMoved:  # somebody has begun to serve it meanwhile
        await _fence(store, None, instead_of=(why,))
        raise


async def _must_be_empty(store: Store) -> None:
    async for page in store.scan():
        if page:
            raise NotMoved(f"{_address(store)} holds records already: name an empty place.")


async def count(scan: Scan) -> int:
    return sum([len(page) async for page in scan()])


def digest_of(record: Record) -> bytes:
    return blake2b(msgspec.msgpack.encode(record), digest_size=32).digest()


async def _fence_source(source: Store, moving: str, moved: str) -> str:
    """Which of the two stands then: another process may have brought the move to its end."""
    try:
        await source.fence(moving, instead_of=(None, moving))
    except OtherFence as other:
        if other.found != moved:
            raise _in_other_hands(source, other.found) from other
        return moved
    return moving


async def _fence(store: Store, why: str | None, *, instead_of: tuple[str | None, ...]) -> None:
    try:
        await store.fence(why, instead_of=instead_of)
    except OtherFence as other:
        raise _in_other_hands(store, other.found) from other


def _in_other_hands(store: Store, found: str | None) -> NotMoved:
    return NotMoved(
        f"Another command was at work on {_address(store)}, which is "
        f"{'open now' if found is None else f'fenced now: {found}'}. Nothing more was changed. See "
        "that no other one runs, and run this again."
    )


async def _load(target: Store, records: Sequence[Record], *, behind: str) -> None:
    try:
        for some in _portions(records):
            await target.load(*some, behind=behind)
    except OtherFence as other:
        raise _in_other_hands(target, other.found) from other
    except Conflict as conflict:
        raise NotMoved(
            f"{_address(target)} holds what is not from there ({conflict}): empty it, and run "
            "this again."
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
        raise NotMoved("memory: ends with its process, so nothing can be moved to it or from it.")
    return store.address


_HALF = "copies are being put here from "
_MOVED, _TO_SET = "this store has moved to ", ": set ELICIT_STORE to that"


def _words(old: str, new: str) -> tuple[str, str, str]:
    """What stands on the new place meanwhile; on the old one meanwhile, and afterwards."""
    moving = (
        f"this store is being moved to {new}; if that was cut off, run elicit move again (or "
        f"elicit move --unfence {old}, and remove the other)"
    )
    moved = f"{_MOVED}{new}{_TO_SET}"
    return half(old, "elicit move"), moving, moved
