"""From the address in the settings to an open store.

An address may hold a password one day, so a refusal names its scheme and nothing more of it.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from webapp.stores.memory import MemoryStore
from webapp.stores.sqlite import SqliteStore
from webapp.stores.store import Store

_POSSIBLE = "sqlite:///relative.db, sqlite:////absolute.db or memory:"


def holds_something(url: str) -> bool:
    """Whether records are kept at the address; also if that cannot be seen. Blocks on the disk."""
    path = Path(url.removeprefix("sqlite:///"))
    try:
        if not url.startswith("sqlite:///") or path.stat().st_size == 0:
            return False
        address = f"{path.absolute().as_uri()}?mode=rw"  # not ro: its log may be all there is
        with closing(sqlite3.connect(address, uri=True)) as connection:
            tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'")
            if tables.fetchone() is None:
                return False
            return connection.execute("SELECT 1 FROM records LIMIT 1").fetchone() is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, sqlite3.Error):
        return True


def is_gone(address: str) -> bool:
    """Whether a store that had this address is there no more. Raises OSError if nobody may look."""
    try:
        Path(address.removeprefix("sqlite:///")).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


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
