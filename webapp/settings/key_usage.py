"""Record the stores that need a key file's secrets, and check them before a secret is removed.

Risks: a secret is removed that another store needs. A store is therefore recorded before any
of its keys is wrapped with a secret, and `wrapped_in` raises if a recorded store does not open.
"""

import asyncio
from contextlib import AsyncExitStack, aclosing

from flows.errors import StoreUnavailable
from webapp.deadline import Clock
from webapp.records.owners import count_wrapped
from webapp.settings.settings import Settings
from webapp.stores import Clocked, Store, is_gone, open_store
from webapp.stores.moving import moved_to

_APART_SECONDS_AT_MOST = 5.0


async def open_noted(settings: Settings, *, clock: Clock | None = None) -> Store:
    """Open the store of these settings.

    If a key file is used, add the store to the list next to the key file.

    Raises ValueError for a bad address. Raises StoreUnavailable if the store does not open, cannot
    be recorded, or has a clock that differs from ours.
    """
    store = await open_store(settings.store, listen=settings.store_listen)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.aclose)
        if clock is not None and isinstance(store, Clocked):
            await _must_agree(store, clock)
        if settings.key_file is None or store.address is None:
            stack.pop_all()
            return store
        try:
            await asyncio.to_thread(settings.key_file.note, store.address)
        except OSError as error:
            raise StoreUnavailable(
                f"{store.address} cannot be added to the list next to the key file, which protects "
                f"the secrets that this store needs: {error}"
            ) from error
        stack.pop_all()
    return store


async def seconds_ahead(store: Clocked, clock: Clock) -> float:
    """Return how many seconds, at least, the store's clock is ahead of `clock`.

    A negative result means that the store's clock is behind.
    """
    before = clock()
    there = await store.clock()
    behind, ahead = (before - there).total_seconds(), (there - clock()).total_seconds()
    return max(ahead, 0.0) - max(behind, 0.0)


async def _must_agree(store: Clocked, clock: Clock) -> None:
    """Raise StoreUnavailable if the clocks differ: leases would be too short or too long."""
    ahead = await seconds_ahead(store, clock)
    if abs(ahead) > _APART_SECONDS_AT_MOST:
        way = f"{ahead:.0f} seconds ahead of" if ahead > 0 else f"{-ahead:.0f} seconds behind"
        raise StoreUnavailable(
            f"ELICIT_STORE: the clock of the store's server is {way} this machine's; let both "
            "machines set theirs by NTP (timedatectl set-ntp true)"
        )


class HasMoved(Exception):
    """A store was moved to `address`. The old store still has its records."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


async def wrapped_in(address: str, fingerprint: bytes) -> int | None:
    """Count the keys of a recorded store that the secret wraps. Return None if the store is gone.

    Raises StoreUnavailable, or HasMoved if another address now serves the store.
    """
    try:
        if await asyncio.to_thread(is_gone, address):
            return None
        store = await open_store(address, watches=False)
    except (OSError, ValueError) as error:
        raise StoreUnavailable(str(error)) from error
    async with aclosing(store):
        why = await store.fenced()
        if why is not None and (target := moved_to(why)) is not None:
            raise HasMoved(target)
        return (await count_wrapped(store))[fingerprint]
