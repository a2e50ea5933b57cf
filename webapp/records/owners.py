"""Owners: the tags that assign rows to people, and the data key that seals each owner's rows.

A record is encrypted under its owner's data key and bound to its row.

An owner is a keyed hash of issuer and subject, so owners cannot be enumerated. The hash key (the
pepper) and each owner's data key are random, made once, and stored wrapped under the ring.

Risks: a secret that wraps a data key is lost, and with it the key and all of the owner's data. So a
rotation wraps each key again under the newest secret, by compare-and-set. A key that cannot be
unwrapped is never replaced by a new key.

Another risk: an attacker copies sealed bytes to another row, to another owner, or from an older
version to a newer one. Row, owner and version are associated data, so copied bytes cannot be
decrypted. An attacker who can write the store's file can still restore a complete old row together
with its old version. That row can be decrypted, because its version is recorded nowhere else.

Another risk: two rows are sealed with the same nonce. A forked child would use its parent's nonces,
so the child starts with a new pool.
"""

import asyncio
import os
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct
from msgspec.structs import astuple, replace

from flows.crypto.tokens import NONCE_BYTES, Ring, wrapped_under
from flows.errors import StoreUnavailable, Unreadable
from webapp.records.ids import Pepper
from webapp.stores import Conflict, Record, Store
from webapp.stores.store import plain_record

_POOL_BYTES = 12 * 1024


class Row(Struct, frozen=True, kw_only=True):
    """The row that sealed bytes belong to. The bytes can be decrypted for no other row."""

    owner: str
    kind: str
    id: str
    version: int


# The associated data of a row, from its fields in their order.
_about = "row\x1f{}\x1f{}\x1f{}\x1f{}".format


class Locker:
    """A cipher for one owner's records. It seals with the newest data key and opens with any.

    There are several keys only after a possible leak, until all rows are sealed with the newest.
    """

    __slots__ = ("_ciphers", "_random")

    def __init__(
        self, *data_keys_newest_first: bytes, random: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._ciphers = [AESGCM(data_key) for data_key in data_keys_newest_first]
        self._random = random

    def seal(self, row: Row, plain: bytes) -> bytes:
        nonce = self._random(NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, plain, _about(*astuple(row)).encode())

    def open(self, row: Row, sealed: bytes) -> bytes:
        return self._open(row, sealed)[0]

    def resealed(self, row: Row, sealed: bytes) -> bytes | None:
        """Return the bytes sealed with the newest key, for the row's next version.

        Return None if `sealed` is already sealed with the newest key.
        """
        plain, is_newest = self._open(row, sealed)
        return None if is_newest else self.seal(replace(row, version=row.version + 1), plain)

    def _open(self, row: Row, sealed: bytes) -> tuple[bytes, bool]:
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        about = _about(*astuple(row)).encode()
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(nonce, rest, about), cipher is self._ciphers[0]
            except (InvalidTag, ValueError):
                continue
        raise Unreadable


class Randomness:
    """Random bytes like `secrets.token_bytes`, from a pool. Use it in one thread only.

    Without the pool, each seal would make a system call, during which other threads run and the
    event loop waits for them.
    """

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, size: int) -> bytes:
        end = self._used + size
        if end > len(self._pool):
            self._pool, self._used, end = secrets.token_bytes(max(size, _POOL_BYTES)), 0, size
        piece = self._pool[self._used : end]
        self._used = end
        return piece

    def _forget(self) -> None:
        self._pool = b""
        self._used = 0


SERVICE = "~"  # the owner of rows that belong to no person: the pepper, aliases
CACHED_AT_MOST = 10_000
DATA_KEY = "data key"
_PEPPER, _SERVED, _BACKUP = "pepper", "served secret", "backup"
_DATA_KEY_BYTES = 32
_PAGE = 100


class DataKeys(Struct, frozen=True, kw_only=True):
    """An owner's data keys, newest first. Older keys only open rows.

    `made_under` names the secret that was the newest when the keys were made. From `since` on, a
    process seals with an older key only if it has not read the new key yet. `is_purged`: the rows
    sealed under the older keys are being erased.
    """

    keys: tuple[bytes, ...]
    made_under: bytes = b""
    since: datetime | None = None
    is_purged: bool = False
    # these keys open older audit entries, which are never sealed again
    former: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"DataKeys({len(self.keys)} ***)"


def fresh_data_keys(ring: Ring) -> DataKeys:
    newest = ring.newest
    return DataKeys(keys=(secrets.token_bytes(_DATA_KEY_BYTES),), made_under=newest)


def unwrapped(ring: Ring, record: Record) -> DataKeys:
    """Unwrap the data keys of a record. Raises Unreadable."""
    return _decoded(ring.unwrap(_name(record), record.sealed))


def wrapped(ring: Ring, record: Record, data_keys: DataKeys) -> Record:
    return replace(record, sealed=ring.wrap(_name(record), msgspec.msgpack.encode(data_keys)))


class Owners:
    """The owners of one store and ring; made by `open_owners`."""

    def __init__(self, *, store: Store, ring: Ring, pepper: Pepper) -> None:
        self.store = store
        self.ring = ring
        self.pepper = pepper
        self.lockers: OrderedDict[str, Locker] = OrderedDict()  # a cache; see `locker`
        self.random = Randomness()
        self._forgotten = 0  # a counter: keys read before an increment are not cached

    def tag(self, *, issuer: str, subject: str) -> str:
        return self.pepper.tag("owner", issuer, subject)

    def tag_of_user(self, user: str, *, application: str) -> str:
        """Return the tag of an application's own user. No issuer's subject can have this tag."""
        return self.pepper.tag("user", application, user)

    def tag_of_service_accounts(self) -> str:
        """Return the tag of this server's own accounts at providers, which no person can have."""
        return self.pepper.tag("service accounts")

    def tag_of_team(self, name: str) -> str:
        """Return the tag of a team, which no person can have."""
        return self.pepper.tag("team", name)

    async def locker(self, owner: str) -> Locker:
        """Return the owner's locker. The data key is made at first use.

        Raises Unreadable if the data key was wrapped under a secret that the ring lacks.
        """
        found = self.lockers.get(owner)
        while found is None:
            forgotten = self._forgotten
            read = await _secret(
                self.store,
                self.ring,
                owner=owner,
                kind=DATA_KEY,
                fresh=lambda: msgspec.msgpack.encode(fresh_data_keys(self.ring)),
            )
            if forgotten != self._forgotten:
                continue
            found = Locker(*_decoded(read).keys, random=self.random)
            self.lockers[owner] = found
            if len(self.lockers) > CACHED_AT_MOST:
                self.lockers.popitem(last=False)
        return found

    async def cache(self, owners: Collection[str], *, at_most: int) -> None:
        """Read the data keys of these owners at once, for a list of their rows.

        One read returns at most `at_most` keys. Any other key is read later, when it is needed.
        """
        missing = {owner for owner in owners if owner not in self.lockers} - {SERVICE}
        if len(missing) < 2:
            return
        forgotten, first = self._forgotten, min(missing)
        # The id of a record is its owner's tag. `after` sorts just before the first missing tag.
        records = await self.store.list(DATA_KEY, after=first[:-1], limit=at_most)
        for number, record in enumerate(records):
            if number % _PAGE == 0:
                await asyncio.sleep(0)  # let other requests run
            if record.owner in missing and forgotten == self._forgotten:
                with suppress(Unreadable):  # opening the owner's rows reports the error
                    keys = _decoded(self.ring.unwrap(_name(record), record.sealed)).keys
                    self.lockers[record.owner] = Locker(*keys, random=self.random)
        while len(self.lockers) > CACHED_AT_MOST:
            self.lockers.popitem(last=False)

    async def reader(self, owner: str) -> Locker | None:
        """Return the locker for the owner's audit log, or None if the owner's keys are erased.

        The locker also has the keys from before a leak, which seal only old audit entries.
        """
        found = await self.store.read(owner, DATA_KEY, owner)
        if found is None:
            return None
        data_keys = unwrapped(self.ring, found)
        return Locker(*data_keys.keys, *data_keys.former)

    def forget(self, owner: str | None) -> None:
        """Forget the owner's cached data keys, or those of all owners if `owner` is None.

        Call this when another process may have made new keys.
        """
        self._forgotten += 1
        if owner is None:
            self.lockers.clear()
        else:
            self.lockers.pop(owner, None)

    async def has(self, owner: str) -> bool:
        """Return True if data was ever stored for this owner."""
        if owner in self.lockers:
            return True
        return await self.store.read(owner, DATA_KEY, owner) is not None


async def open_owners(*, store: Store, ring: Ring) -> Owners:
    """Open the owners of a store. Raises Unreadable if the ring lacks the store's secrets."""
    fresh = partial(secrets.token_bytes, _DATA_KEY_BYTES)
    pepper = Pepper(await _secret(store, ring, owner=SERVICE, kind=_PEPPER, fresh=fresh))
    await _note_served(store, ring)
    return Owners(store=store, ring=ring, pepper=pepper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrapped:
    """The result of a rotation: the number of keys wrapped again, and of keys that are lost."""

    done: int
    lost: int


async def rewrap(*, store: Store, ring: Ring) -> Rewrapped:
    """Wrap the pepper and every data key under the newest secret.

    A rotation can be interrupted and restarted, and several processes can run one.

    Raises:
        Unreadable: The ring has no secret that unwraps the pepper. Nothing was changed.
    """
    done = 0
    while True:
        newest = ring.newest
        lost = 0
        async for page in pages(store, _PEPPER, DATA_KEY):
            # All at once, so that the store combines the writes in one commit.
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
    """Check that the ring opens the pepper in these records. Raises Unreadable if it does not."""
    async for page in pages:
        for record in page:
            if record.kind == _PEPPER:
                ring.unwrap(_name(record), record.sealed)


async def count_wrapped(store: Store) -> Counter[bytes]:
    """Return the number of keys that are wrapped under each secret, by the secret's fingerprint."""
    counted = Counter[bytes]()
    async for page in pages(store, _PEPPER, DATA_KEY):
        counted.update(wrapped_under(record.sealed) for record in page)
    return counted


async def must_be_servable(store: Store, ring: Ring) -> None:
    """Check that this process may serve the store.

    Raises:
        Unreadable: A secret that was removed from the ring still wraps a key.
        StoreUnavailable: The store was moved elsewhere and accepts no writes.
    """
    if (why := await store.fenced()) is not None:
        raise StoreUnavailable(why)
    for fingerprint in set(await count_wrapped(store)) - set(ring.fingerprints):
        if await was_served(store, fingerprint):  # an unknown secret means a damaged record
            raise Unreadable


async def was_served(store: Store, fingerprint: bytes) -> bool:
    """Return True if a process that opened this store ever had that secret in its ring."""
    pepper = await store.read(SERVICE, _PEPPER, SERVICE)
    return (
        pepper is None
        or wrapped_under(pepper.sealed) == fingerprint
        or await store.read(SERVICE, _SERVED, fingerprint.hex()) is not None
    )


async def note_backup(store: Store, now: datetime) -> None:
    """Store the time of a complete backup."""
    found = await store.read(SERVICE, _BACKUP, SERVICE)
    version, sealed = 0 if found is None else found.version, now.isoformat().encode()
    note = plain_record(SERVICE, _BACKUP, SERVICE, status="made", version=version, sealed=sealed)
    with suppress(Conflict):  # another backup was recorded at the same time
        await store.write(note)


async def last_backup(store: Store) -> datetime | None:
    """Return the time of the last backup, or None."""
    found = await store.read(SERVICE, _BACKUP, SERVICE)
    return None if found is None else datetime.fromisoformat(found.sealed.decode())


async def _note_served(store: Store, ring: Ring) -> None:
    """Record the ring's secrets as served, if there are several.

    If the ring has a single secret, the pepper is wrapped under it, so no record is needed.
    """
    if len(ring.fingerprints) == 1:
        return
    for fingerprint in ring.fingerprints:
        if await store.read(SERVICE, _SERVED, fingerprint.hex()) is None:
            with suppress(Conflict):  # another process has just recorded the secret
                await store.write(plain_record(SERVICE, _SERVED, fingerprint.hex(), status="kept"))


async def pages(store: Store, *kinds: str) -> AsyncIterator[Sequence[Record]]:
    """Yield the records of these kinds, a hundred at a time."""
    for kind in kinds:
        after = None
        while page := await store.list(kind, after=after, limit=_PAGE):
            yield page
            after = page[-1].id


async def _rewrap(store: Store, ring: Ring, record: Record) -> int:
    """Wrap the record again. Return 1, or 0 if that is not needed. Raises Unreadable."""
    while wrapped_under(record.sealed) != ring.newest:
        name = _name(record)
        fresh = ring.wrap(name, ring.unwrap(name, record.sealed))
        try:
            await store.write(replace(record, sealed=fresh))
        except Conflict as conflict:
            if conflict.found is None:  # the owner was erased in the meantime
                return 0
            record = conflict.found
        else:
            return 1
    return 0


def _name(record: Record) -> str:
    return f"{record.owner} {record.kind}"


def _decoded(plain: bytes) -> DataKeys:
    if len(plain) == _DATA_KEY_BYTES:  # an older format, with a single key
        return DataKeys(keys=(plain,))
    return msgspec.msgpack.decode(plain, type=DataKeys)


async def _secret(
    store: Store, ring: Ring, *, owner: str, kind: str, fresh: Callable[[], bytes]
) -> bytes:
    """Read the key, or make and store it. If several processes make it, the first one wins."""
    found = await store.read(owner, kind, owner)
    if found is None:
        plain = fresh()
        empty = plain_record(owner, kind, owner, status="kept")
        record = replace(empty, sealed=ring.wrap(_name(empty), plain))
        try:
            (stored,) = await store.write(record)
        except Conflict as conflict:
            if conflict.found is None:
                raise
            found = conflict.found
        else:
            # A rotation may have run between the wrapping and the write, and missed this record.
            await _rewrap(store, ring, stored)
            return plain
    return ring.unwrap(_name(found), found.sealed)
