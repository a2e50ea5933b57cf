"""Owners: whose rows are whose, and the key that each owner's rows are sealed under.

An owner is a keyed hash of issuer and subject that nobody can enumerate. The key of that hash (the
pepper) and each owner's data key are random, made once, and kept wrapped under the ring.
"""

import secrets
from collections import OrderedDict

from flows.vault import Locker, Pepper, Ring
from webapp.randomness import Randomness
from webapp.stores import Conflict, Record, Store

SERVICE = "~"  # owner of what belongs to nobody in particular: the pepper, aliases
CACHED_AT_MOST = 10_000
_DATA_KEY_BYTES = 32


class Owners:
    """Made by `open_owners`; one for a store and a ring."""

    def __init__(self, *, store: Store, ring: Ring, pepper: Pepper) -> None:
        self._store = store
        self._ring = ring
        self.pepper = pepper
        self._lockers: OrderedDict[str, Locker] = OrderedDict()
        self._random = Randomness()

    def tag(self, *, issuer: str, subject: str) -> str:
        return self.pepper.tag("owner", issuer, subject)

    def cached(self, owner: str) -> Locker | None:
        return self._lockers.get(owner)

    async def locker(self, owner: str) -> Locker:
        """The owner's locker; the owner's data key is made at first use.

        Raises Unreadable if the data key was wrapped under a secret that the ring lacks.
        """
        found = self._lockers.get(owner)
        if found is None:
            data_key = await _secret(self._store, self._ring, owner=owner, kind="data key")
            found = Locker(data_key, random=self._random)
            self._lockers[owner] = found
            if len(self._lockers) > CACHED_AT_MOST:
                self._lockers.popitem(last=False)
        return found


async def open_owners(*, store: Store, ring: Ring) -> Owners:
    """Raises Unreadable if the store was made under secrets that the ring lacks."""
    pepper = Pepper(await _secret(store, ring, owner=SERVICE, kind="pepper"))
    return Owners(store=store, ring=ring, pepper=pepper)


async def _secret(store: Store, ring: Ring, *, owner: str, kind: str) -> bytes:
    """Read it, or make it; of several processes that make it at once, one is first."""
    found = await store.read(owner, kind, owner)
    if found is None:
        fresh = Record(
            owner=owner,
            kind=kind,
            id=owner,
            status="kept",
            key=None,
            due_at=None,
            erase_at=None,
            version=0,
            sealed=ring.wrap(f"{owner} {kind}", secrets.token_bytes(_DATA_KEY_BYTES)),
        )
        try:
            (found,) = await store.write(fresh)
        except Conflict as conflict:
            found = conflict.found
            if found is None:
                raise
    return ring.unwrap(f"{owner} {kind}", found.sealed)
