"""A store moves to another place: a fence, copies, a check of each row, and no moment with two.

Both places are fenced while it goes on: the old one, so that nothing is written there that the new
one lacks; the new one, so that nobody serves it half full. The words of the fences say how far it
is, so a move that was cut off goes on when it is run again.

What could go wrong: both are served, and each is paid. So the new place opens only once the old one
says where it has moved to, and what is no copy of the old one is never overwritten.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from webapp.stores.store import RECORDS_AT_MOST, Conflict, Record, Store

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
    if there != copied:
        if there is not None:
            raise NotMoved(f"{new} is fenced: {there}. Name another place.")
        await fence_empty(target, copied)
    if standing != moved:
        await source.fence(moving)
    records = await copy(source.scan, target)
    await source.fence(moved)
    await target.fence(None)
    return Moved(records=records)


async def unfence(store: Store) -> str | None:
    """Let a place be served again; returns why it was not. Raises NotMoved for half a copy."""
    why = await store.fenced()
    if why is not None and why.startswith(_HALF):
        raise NotMoved(
            f"{_address(store)} is a copy that is not whole, which nobody may serve: run the "
            "command again that made it, or remove it."
        )
    await store.fence(None)
    return why


def moved_to(why: str) -> str | None:
    """Where the store is now, by what stands on the place that it has left."""
    if not why.startswith(_MOVED):
        return None
    return why.removeprefix(_MOVED).removesuffix(_TO_SET)


def half(source: str, command: str) -> str:
    """What stands on a place while copies come in."""
    return f"{_HALF}{source}, which is not done: run {command} again"


async def copy(scan: Scan, target: Store) -> int:
    """Put in place what lacks there, and check that both have the same; how many records that is.

    For a target that is fenced, so that nobody writes there. Raises NotMoved if it holds others.
    """
    has = {digest_of(each) async for page in target.scan() for each in page}
    async for page in scan():
        await _load(target, [each for each in page if digest_of(each) not in has])
    return await must_agree(scan, target)


async def must_agree(scan: Scan, target: Store) -> int:
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
        raise NotMoved(
            f"Of {total} records {len(expected)} are not in {_address(target)} as they are, and "
            f"{others} are there that should not be. It stays fenced; empty it, and run this again."
        )
    return total


async def fence_empty(store: Store, why: str) -> None:
    """Put a fence around an empty place. Raises NotMoved if it is none, and leaves it as it is."""
    await _must_be_empty(store)
    await store.fence(why)
    try:
        await _must_be_empty(store)
    except NotMoved:  # somebody has begun to serve it meanwhile
        await store.fence(None)
        raise


async def _must_be_empty(store: Store) -> None:
    async for page in store.scan():
        if page:
            raise NotMoved(f"{_address(store)} holds records already: name an empty place.")


async def count(scan: Scan) -> int:
    return sum([len(page) async for page in scan()])


def digest_of(record: Record) -> bytes:
    return blake2b(msgspec.msgpack.encode(record), digest_size=32).digest()


async def _load(target: Store, records: Sequence[Record]) -> None:
    try:
        for some in _portions(records):
            await target.load(*some)
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
