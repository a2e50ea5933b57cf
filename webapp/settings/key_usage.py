"""The stores that a key file's secrets are for: noted when one is opened, asked before one goes.

What could go wrong: a secret is thrown away that another store needs than the one at hand. So a
store is noted before anything in it is wrapped, and none is passed over because it does not open.
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
    """Open the store of these settings, and note it beside the key file if that is used.

    Raises ValueError, or StoreUnavailable, also where it cannot be noted, or its clock is another.
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
                f"{store.address} cannot be noted beside the key file, so that its secrets would "
                f"be kept for it: {error}"
            ) from error
        stack.pop_all()
    return store


async def seconds_ahead(store: Clocked, clock: Clock) -> float:
    """How far the store's clock is ahead of ours, below 0 for behind, and at least so far."""
    before = clock()
    there = await store.clock()
    behind, ahead = (before - there).total_seconds(), (there - clock()).total_seconds()
    return max(ahead, 0.0) - max(behind, 0.0)


async def _must_agree(store: Clocked, clock: Clock) -> None:
    """A lease that one machine takes would be over on another, or last too long."""
    ahead = await seconds_ahead(store, clock)
    if abs(ahead) > _APART_SECONDS_AT_MOST:
        way = f"{ahead:.0f} seconds ahead of" if ahead > 0 else f"{-ahead:.0f} seconds behind"
        raise StoreUnavailable(
            f"ELICIT_STORE: the clock of the store's server is {way} this machine's; let both "
            "machines set theirs by NTP (timedatectl set-ntp true)"
        )


class HasMoved(Exception):
    """A store is at another `address` now, and what it had was left behind."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


async def wrapped_in(address: str, fingerprint: bytes) -> int | None:
    """How many keys of a noted store that secret wraps; None if the store is gone.

    Raises StoreUnavailable, or HasMoved: nobody is served from there any more.
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
