"""From the address in the settings to an open store.

An address may hold a password one day, so a refusal names its scheme and nothing more of it.
"""

from pathlib import Path

from webapp.stores.memory import MemoryStore
from webapp.stores.sqlite import SqliteStore
from webapp.stores.store import Store

_POSSIBLE = "sqlite:///relative.db, sqlite:////absolute.db or memory:"


async def open_store(url: str) -> Store:
    """Open the store at the address; ValueError says which addresses are possible."""
    if url == "memory:":
        return MemoryStore()
    scheme, colon, _ = url.partition(":")
    if scheme != "sqlite" or not colon:
        raise ValueError(f"no store is reached by {scheme!r}; possible are {_POSSIBLE}")
    path = url.removeprefix("sqlite:///")
    if path in (url, "", "/", ":memory:"):
        raise ValueError(f"this address names no file; possible are {_POSSIBLE}")
    if "?" in path:
        raise ValueError("the store sets SQLite's options itself: no '?' in its address")
    return await SqliteStore.open(Path(path))
