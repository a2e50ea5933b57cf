"""The stores that a key file's secrets are for: noted when one is opened, asked before one goes.

What could go wrong: a secret is thrown away that another store needs than the one at hand. So a
store is noted before anything in it is wrapped, and none is passed over because it does not open.
"""

import asyncio
from contextlib import AsyncExitStack, aclosing

from flows.errors import StoreUnavailable
from webapp.records.owners import count_wrapped
from webapp.settings.settings import Settings
from webapp.stores import Store, is_gone, open_store


async def open_noted(settings: Settings) -> Store:
    """Open the store of these settings, and note it beside the key file if that is used.

    Raises ValueError, or StoreUnavailable, also where it cannot be noted.
    """
    store = await open_store(settings.store)
    if settings.key_file is None or store.address is None:
        return store
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.aclose)
        try:
            await asyncio.to_thread(settings.key_file.note, store.address)
        except OSError as error:
            raise StoreUnavailable(
                f"{store.address} cannot be noted beside the key file, so that its secrets would "
                f"be kept for it: {error}"
            ) from error
        stack.pop_all()
    return store


async def wrapped_in(address: str, fingerprint: bytes) -> int | None:
    """How many keys of a noted store that secret wraps; None if the store is gone.

    Raises StoreUnavailable.
    """
    try:
        if await asyncio.to_thread(is_gone, address):
            return None
        store = await open_store(address)
    except (OSError, ValueError) as error:
        raise StoreUnavailable(str(error)) from error
    async with aclosing(store):
        return (await count_wrapped(store))[fingerprint]
