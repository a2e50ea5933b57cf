"""The stores that a key file's secrets are for: noted when one is opened, asked before one goes.

What could go wrong: a secret is thrown away that another store needs than the one at hand. So a
store is noted before anything in it is wrapped, and none is passed over because it does not open.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from flows.errors import StoreUnavailable
from webapp.records.owners import count_wrapped
from webapp.settings.settings import Settings
from webapp.stores import Store, open_store

_SQLITE = "sqlite:///"


async def open_noted(settings: Settings) -> Store:
    """Open the store of these settings, and note it beside the key file if that is used.

    Raises ValueError, or StoreUnavailable, also where it cannot be noted.
    """
    store = await open_store(settings.store)
    address = noted_as(settings.store)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.aclose)
        if settings.key_file is not None and address is not None:
            try:
                await asyncio.to_thread(settings.key_file.note, address)
            except OSError as error:
                raise StoreUnavailable(
                    f"{address} cannot be noted beside the key file, so that its secrets would be "
                    f"kept for it: {error}"
                ) from error
        stack.pop_all()
    return store


def noted_as(url: str) -> str | None:
    """The address from wherever it is read; None for a store that ends with its process."""
    if not url.startswith(_SQLITE):
        return None
    return f"{_SQLITE}{Path(url.removeprefix(_SQLITE)).resolve()}"


async def wrapped_in(address: str, fingerprint: bytes) -> int | None:
    """How many keys of a noted store that secret wraps; None if its file is gone.

    Raises StoreUnavailable.
    """
    try:
        await asyncio.to_thread(Path(address.removeprefix(_SQLITE)).stat)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(str(error)) from error
    try:
        store = await open_store(address)
    except ValueError as error:
        raise StoreUnavailable(str(error)) from error
    try:
        return (await count_wrapped(store))[fingerprint]
    finally:
        await store.aclose()
