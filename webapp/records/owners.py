"""Owners: whose rows are whose, and the key that each owner's rows are sealed under.

An owner is a keyed hash of issuer and subject that nobody can enumerate. The key of that hash (the
pepper) and each owner's data key are random, made once, and kept wrapped under the ring.

What could go wrong: a data key is lost with the secret that it was wrapped under, and with it all
that its owner has. So a rotation wraps each anew, by compare-and-set, and nothing is ever made up
in place of a key that does not open.
"""

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flows.crypto.vault import Ring, wrapped_under
from flows.errors import StoreUnavailable, Unreadable
from webapp.records.ids import Pepper
from webapp.records.seal import Locker, Randomness
from webapp.stores import Conflict, Record, Store

SERVICE = "~"  # owner of what belongs to nobody in particular: the pepper, aliases
CACHED_AT_MOST = 10_000
DATA_KEY = "data key"
_PEPPER, _SERVED, _BACKUP = "pepper", "served secret", "backup"
_DATA_KEY_BYTES = 32
_PAGE = 100


class DataKeys(Struct, frozen=True, kw_only=True):
    """What an owner's rows are sealed under, the newest first; the older ones only open.

    `made_under` names the secret of which it is known that it was the newest then. `since` is from
    when the older ones seal nothing any more, but for a process that has not heard of it yet.
    `is_purged`: what they sealed is being erased.
    """

    keys: tuple[bytes, ...]
    made_under: bytes = b""
    since: datetime | None = None
    is_purged: bool = False
    former: tuple[bytes, ...] = ()  # what the audit of before is sealed under, not sealed anew

    def __repr__(self) -> str:
        return f"DataKeys({len(self.keys)} ***)"


def fresh_data_keys(ring: Ring) -> DataKeys:
    newest = ring.newest
    return DataKeys(keys=(secrets.token_bytes(_DATA_KEY_BYTES),), made_under=newest)


def unwrapped(ring: Ring, record: Record) -> DataKeys:
    """Raises Unreadable."""
    return _decoded(ring.unwrap(_name(record), record.sealed))


def wrapped(ring: Ring, record: Record, data_keys: DataKeys) -> Record:
    return replace(record, sealed=ring.wrap(_name(record), _encode(data_keys)))


class Owners:
    """Made by `open_owners`; one for a store and a ring."""

    def __init__(self, *, store: Store, ring: Ring, pepper: Pepper) -> None:
        self.store = store
        self.ring = ring
        self.pepper = pepper
        self._lockers: OrderedDict[str, Locker] = OrderedDict()
        self.random = Randomness()
        self._forgotten = 0  # how often: what was read before is not kept after

    def tag(self, *, issuer: str, subject: str) -> str:
        return self.pepper.tag("owner", issuer, subject)

    def tag_of_user(self, user: str, *, application: str) -> str:
        """Of an application's own user, who is nobody of any issuer's, whatever that says."""
        return self.pepper.tag("user", application, user)

    def cached(self, owner: str) -> Locker | None:
        return self._lockers.get(owner)

    async def locker(self, owner: str) -> Locker:
        """The owner's locker; the owner's data key is made at first use.

        Raises Unreadable if the data key was wrapped under a secret that the ring lacks.
        """
        found = self._lockers.get(owner)
        while found is None:
            forgotten = self._forgotten
            read = await _secret(
                self.store,
                self.ring,
                owner=owner,
                kind=DATA_KEY,
                fresh=lambda: _encode(fresh_data_keys(self.ring)),
            )
            if forgotten != self._forgotten:
                continue
            found = Locker(*_decoded(read).keys, random=self.random)
            self._lockers[owner] = found
            if len(self._lockers) > CACHED_AT_MOST:
                self._lockers.popitem(last=False)
        return found

    async def reader(self, owner: str) -> Locker | None:
        """What opens the owner's audit, also that of before a leak; None for who was erased."""
        found = await self.store.read(owner, DATA_KEY, owner)
        if found is None:
            return None
        data_keys = unwrapped(self.ring, found)
        return Locker(*data_keys.keys, *data_keys.former)

    def forget(self, owner: str | None) -> None:
        """Another process may have made new data keys, for this owner or for anybody (None)."""
        self._forgotten += 1
        if owner is None:
            self._lockers.clear()
        else:
            self._lockers.pop(owner, None)

    async def knows(self, owner: str) -> bool:
        """Whether anything was ever kept for this owner."""
        if owner in self._lockers:
            return True
        return await self.store.read(owner, DATA_KEY, owner) is not None


async def open_owners(*, store: Store, ring: Ring) -> Owners:
    """Raises Unreadable if the store was made under secrets that the ring lacks."""
    fresh = partial(secrets.token_bytes, _DATA_KEY_BYTES)
    pepper = Pepper(await _secret(store, ring, owner=SERVICE, kind=_PEPPER, fresh=fresh))
    await _note_served(store, ring)
    return Owners(store=store, ring=ring, pepper=pepper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrapped:
    """What a rotation did: keys wrapped anew, and keys that no secret here opens."""

    done: int
    lost: int


async def rewrap(*, store: Store, ring: Ring) -> Rewrapped:
    """Wrap the pepper and every data key under the newest secret.

    It may be interrupted and begun again, and several may do it at once. Raises Unreadable, before
    anything is changed, if the pepper does not open: it is the store of other secrets.
    """
    done = 0
    while True:
        newest = ring.newest
        lost = 0
        async for page in pages(store, _PEPPER, DATA_KEY):
            # All at once: the store gathers them in one commit.
            outcomes = await asyncio.gather(
                *(_rewrap(store, ring, record) for record in page), return_exceptions=True
            )
            for record, outcome in zip(page, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    if record.kind == _PEPPER or not isinstance(outcome, Unreadable):
                        raise outcome
                    lost += 1
                else:
                    done += outcome
        if ring.newest == newest:
            return Rewrapped(done=done, lost=lost)


async def must_be_opened(pages: AsyncIterator[Sequence[Record]], ring: Ring) -> None:
    """Raises Unreadable if these are the records of a store of other secrets."""
    async for page in pages:
        for record in page:
            if record.kind == _PEPPER:
                ring.unwrap(_name(record), record.sealed)


async def count_wrapped(store: Store) -> Counter[bytes]:
    """How many keys are wrapped under each secret, by its fingerprint."""
    counted = Counter[bytes]()
    async for page in pages(store, _PEPPER, DATA_KEY):
        counted.update(wrapped_under(record.sealed) for record in page)
    return counted


async def must_be_servable(store: Store, ring: Ring) -> None:
    """Raises Unreadable if a secret that was taken out of the ring still wraps somebody's key.

    Raises StoreUnavailable if nobody may write, as it has moved elsewhere.
    """
    if (why := await store.fenced()) is not None:
        raise StoreUnavailable(why)
    for fingerprint in set(await count_wrapped(store)) - set(ring.fingerprints):
        if await was_served(store, fingerprint):  # else it is damage, which no secret mends
            raise Unreadable


async def was_served(store: Store, fingerprint: bytes) -> bool:
    """Whether a process that opened this store has ever had that secret in its ring."""
    pepper = await store.read(SERVICE, _PEPPER, SERVICE)
    return (
        pepper is None
        or wrapped_under(pepper.sealed) == fingerprint
        or await store.read(SERVICE, _SERVED, fingerprint.hex()) is not None
    )


async def note_backup(store: Store, now: datetime) -> None:
    """Keep when all that was there then was copied."""
    found = await store.read(SERVICE, _BACKUP, SERVICE)
    made = Record(
        owner=SERVICE,
        kind=_BACKUP,
        id=SERVICE,
        status="made",
        key=None,
        due_at=None,
        erase_at=None,
        version=0 if found is None else found.version,
        sealed=now.isoformat().encode(),
    )
    with suppress(Conflict):  # of another backup, a moment ago
        await store.write(made)


async def last_backup(store: Store) -> datetime | None:
    """When that was; None for never."""
    found = await store.read(SERVICE, _BACKUP, SERVICE)
    return None if found is None else datetime.fromisoformat(found.sealed.decode())


async def _note_served(store: Store, ring: Ring) -> None:
    """Once there are several: what is known of the pepper's secret is gone when that is wrapped."""
    if len(ring.fingerprints) == 1:
        return
    for fingerprint in ring.fingerprints:
        if await store.read(SERVICE, _SERVED, fingerprint.hex()) is None:
            with suppress(Conflict):  # another process has just noted it
                await store.write(_record(SERVICE, _SERVED, fingerprint.hex(), sealed=b""))


async def pages(store: Store, *kinds: str) -> AsyncIterator[Sequence[Record]]:
    """Every record of these kinds, a hundred at a time."""
    for kind in kinds:
        after = None
        while page := await store.list(kind, after=after, limit=_PAGE):
            yield page
            after = page[-1].id


async def _rewrap(store: Store, ring: Ring, record: Record) -> int:
    """1 if this call wrapped the record anew, 0 if there was nothing to do. Raises Unreadable."""
    while wrapped_under(record.sealed) != ring.newest:
        name = _name(record)
        fresh = ring.wrap(name, ring.unwrap(name, record.sealed))
        try:
            await store.write(replace(record, sealed=fresh))
        except Conflict as conflict:
            if conflict.found is None:  # the owner was erased meanwhile
                return 0
            record = conflict.found
        else:
            return 1
    return 0


def _record(owner: str, kind: str, id: str, *, sealed: bytes) -> Record:
    return Record(
        owner=owner,
        kind=kind,
        id=id,
        status="kept",
        key=None,
        due_at=None,
        erase_at=None,
        version=0,
        sealed=sealed,
    )


def _name(record: Record) -> str:
    return f"{record.owner} {record.kind}"


def _encode(data_keys: DataKeys) -> bytes:
    return msgspec.msgpack.encode(data_keys)


def _decoded(plain: bytes) -> DataKeys:
    if len(plain) == _DATA_KEY_BYTES:  # as they were kept before there could be several
        return DataKeys(keys=(plain,))
    return msgspec.msgpack.decode(plain, type=DataKeys)


async def _secret(
    store: Store, ring: Ring, *, owner: str, kind: str, fresh: Callable[[], bytes]
) -> bytes:
    """Read it, or make it; of several processes that make it at once, one is first."""
    found = await store.read(owner, kind, owner)
    if found is None:
        plain = fresh()
        empty = _record(owner, kind, owner, sealed=b"")
        record = replace(empty, sealed=ring.wrap(_name(empty), plain))
        try:
            (made,) = await store.write(record)
        except Conflict as conflict:
            if conflict.found is None:
                raise
            found = conflict.found
        else:
            # A rotation may have passed by between the wrapping and the write, without seeing it.
            await _rewrap(store, ring, made)
            return plain
    return ring.unwrap(_name(found), found.sealed)
