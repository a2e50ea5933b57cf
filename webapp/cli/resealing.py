"""New data keys: for all owners after a leak, or for one owner whose data is purged.

Risks: a running process seals a record under a data key that was removed, and the record can never
be opened. The older data keys therefore stay stored for decryption until every process has had
time to load the new keys. Records that a process wrote under the older keys in that time are sealed
again. Each step is one compare-and-set of one record, so an interrupted command can be run again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from flows.crypto.tokens import Ring
from flows.errors import Unreadable
from webapp.records.owners import (
    DATA_KEY,
    Locker,
    Owners,
    Row,
    fresh_data_keys,
    pages,
    unwrapped,
    wrapped,
)
from webapp.records.values import KINDS
from webapp.stores import Conflict, Record, Store

PROCESSES_NOTIFIED_AFTER = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resealed:
    """The counts of data keys made and dropped, and of records sealed and lost.

    `until` is when the last older data key may be removed, or None if none is left.
    """

    made: int
    sealed: int
    lost: int
    dropped: int
    until: datetime | None


async def is_under_way(store: Store, ring: Ring) -> bool:
    """Return True if older data keys are left, so that an earlier rotation is not complete."""
    async for page in pages(store, DATA_KEY):
        for record in page:
            try:
                if len(unwrapped(ring, record).keys) > 1:
                    return True
            except Unreadable:
                continue  # the rotation counts unreadable records
    return False


async def reseal(store: Store, ring: Ring, *, now: datetime) -> Resealed:
    """Renew each data key that is older than the newest secret, and seal all records again."""
    renewed = sealed = lost = dropped = 0
    until: datetime | None = None
    async for page in pages(store, DATA_KEY):
        renewed += sum(await asyncio.gather(*(_renew(store, ring, one, now=now) for one in page)))
    async for page in pages(store, *KINDS.values()):
        outcomes = await asyncio.gather(*(_seal(store, ring, record) for record in page))
        sealed += outcomes.count(True)
        lost += outcomes.count(None)
    async for page in pages(store, DATA_KEY):
        for result in await asyncio.gather(*(_drop(store, ring, one, now=now) for one in page)):
            dropped += result is True
            if isinstance(result, datetime):
                until = result if until is None else max(until, result)
    return Resealed(made=renewed, sealed=sealed, lost=lost, dropped=dropped, until=until)


async def renew_purged(owners: Owners, owner: str, *, now: datetime) -> None:
    """Create a new data key for the owner's new records: the current key will be destroyed."""
    found = await owners.store.read(owner, DATA_KEY, owner)
    while found is not None:
        current = unwrapped(owners.ring, found)
        if current.is_purged:
            return
        fresh = fresh_data_keys(owners.ring)
        fresh = replace(fresh, keys=fresh.keys + current.keys, since=now, is_purged=True)
        try:
            await owners.store.write(wrapped(owners.ring, found, fresh))
        except Conflict as conflict:
            found = conflict.found
        else:
            owners.forget(owner)
            return


async def destroy_purged(
    owners: Owners, owner: str, remaining: Sequence[Record], *, now: datetime
) -> datetime | None:
    """Seal the remaining records under the new key, and destroy the older keys.

    If it is too early to destroy the older keys, return the time when they can be destroyed.
    Otherwise return None. The new key is never destroyed: a process that has loaded the new key
    could otherwise seal records that nothing can open.
    """
    for record in remaining:
        await _seal(owners.store, owners.ring, record)
    found = await owners.store.read(owner, DATA_KEY, owner)
    if found is None:
        return None
    result = await _drop(owners.store, owners.ring, found, now=now)
    owners.forget(owner)
    return result if isinstance(result, datetime) else None


async def _renew(store: Store, ring: Ring, record: Record, *, now: datetime) -> bool:
    found: Record | None = record
    while found is not None:
        try:
            current = unwrapped(ring, found)
        except Unreadable:
            return False
        fresh = fresh_data_keys(ring)
        if current.made_under == fresh.made_under:
            return False
        fresh = replace(
            fresh,
            keys=fresh.keys + current.keys,
            former=current.former,
            since=now,
            is_purged=current.is_purged,
        )
        try:
            await store.write(wrapped(ring, found, fresh))
        except Conflict as conflict:
            found = conflict.found
        else:
            return True
    return False


async def _seal(store: Store, ring: Ring, record: Record) -> bool | None:
    """Seal a record under the newest data key.

    Return True if the record was sealed again, None if no key opens it, and False if the record is
    already sealed under that key or no longer exists.
    """
    found: Record | None = record
    while found is not None:
        stored = await store.read(found.owner, DATA_KEY, found.owner)
        if stored is None:  # the owner was erased in the meantime
            return False
        row = Row(owner=found.owner, kind=found.kind, id=found.id, version=found.version)
        try:
            fresh = Locker(*unwrapped(ring, stored).keys).resealed(row, found.sealed)
        except Unreadable:
            return None
        if fresh is None:
            return False
        try:
            await store.write(replace(found, sealed=fresh))
        except Conflict as conflict:
            found = conflict.found
        else:
            return True
    return False


async def _drop(store: Store, ring: Ring, record: Record, *, now: datetime) -> bool | datetime:
    """Remove the older keys.

    Return True if they are removed, the time to try again if it is too early, or False if another
    process changed the record.
    """
    try:
        current = unwrapped(ring, record)
    except Unreadable:
        return False
    if len(current.keys) == 1 or current.since is None:
        return False
    if now < current.since + PROCESSES_NOTIFIED_AFTER:
        return current.since + PROCESSES_NOTIFIED_AFTER
    try:
        await store.write(
            wrapped(
                ring,
                record,
                replace(
                    current,
                    keys=current.keys[:1],
                    former=() if current.is_purged else current.keys[1:] + current.former,
                    since=None,
                    is_purged=False,
                ),
            )
        )
    except Conflict:
        return False  # another process changed the record
    return True
