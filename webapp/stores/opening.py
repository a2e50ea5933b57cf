"""The choice of a store by its address.

An address may contain a password, so an error shows only its scheme.
"""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from flows.errors import StoreUnavailable
from webapp.stores.sqlite import MemoryStore, SqliteStore
from webapp.stores.store import Store

SQLITE = "sqlite:///"
_POSSIBLE = (
    "sqlite:///relative.db, sqlite:////absolute.db, postgresql://, redis://, rediss://, "
    "valkey://, valkeys:// or memory:"
)
# The shared stores by scheme: the module, imported on first use, and the pip extra it needs.
_SHARED = {
    "postgresql": ("webapp.stores.postgres", "postgres"),
    "postgres": ("webapp.stores.postgres", "postgres"),  # hosting platforms write this scheme
    "redis": ("webapp.stores.valkey", "redis"),
    "rediss": ("webapp.stores.valkey", "redis"),
    "valkey": ("webapp.stores.valkey", "redis"),
    "valkeys": ("webapp.stores.valkey", "redis"),
}


PASSWORDS = ("password", "sslpassword")


class _Module(Protocol):
    """The functions that the module of a shared store has."""

    async def open_store(self, url: str, **options: Any) -> Store: ...
    async def holds_something(self, url: str) -> bool: ...


def is_shared(url: str) -> bool:
    """Return True if processes of several machines can open the store at the address."""
    return _scheme_of(url) in _SHARED


def is_postgres(url: str) -> bool:
    return _scheme_of(url).startswith("postgres")


def may_be_unescaped(url: str) -> bool:
    """Return True if the password may contain an unescaped `#`, `/`, `?` or `@`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return "#" in url or bool(parts.netloc and "@" in parts.path + parts.query)


def without_password(url: str) -> str:
    """Return the address without its password, or only its scheme if parsing is ambiguous."""
    if not is_shared(url):
        return url
    if may_be_unescaped(url):
        return f"{_scheme_of(url)}://..."
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in PASSWORDS]
    return urlunsplit(
        parts._replace(
            netloc=f"{user.partition(':')[0]}{at}{hosts}", query=urlencode(query, safe="/:")
        )
    )


def holds_something(url: str) -> bool:
    """Return True if the address holds records, or an unreadable file. Blocks the thread.

    Raises StoreUnavailable if a server cannot be reached, ValueError for a bad address.
    """
    if is_shared(url):
        with ThreadPoolExecutor(1) as thread:  # the caller may run an event loop of its own
            return thread.submit(lambda: asyncio.run(_module_of(url).holds_something(url))).result()
    if url == "memory:":
        return False
    path = _file_of(url)
    try:
        if path.stat().st_size == 0:
            return False
        # not mode=ro: a read-only connection may be unable to read the write-ahead log, and
        # the log may contain all records
        address = f"{path.absolute().as_uri()}?mode=rw"
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
    """Return True if the store's file no longer exists. Raises OSError if access is denied."""
    if is_shared(address):
        return False  # a server that does not answer may come back
    try:
        Path(address.removeprefix(SQLITE)).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def why_not_opened(error: StoreUnavailable | ValueError) -> str:
    """Return the sentence for an operator whose store does not open, the same in every command."""
    if isinstance(error, StoreUnavailable):
        return f"The store cannot be opened: {error.why}"
    return f"ELICIT_STORE: {error}"


async def open_store(
    url: str, *, listen: str = "", watches: bool = True, accepts_server: bool = False
) -> Store:
    """Open the store at the address. Raises ValueError, which lists the possible addresses.

    `listen` is another address of the same store, for its notifications. A caller that never
    watches needs no such address, even if `url` leads to a pooler. With `accepts_server`, a
    PostgreSQL server is accepted even if it is older than the last server of this store, or belongs
    to a different database cluster.
    """
    if listen and not is_postgres(url):
        raise ValueError("ELICIT_STORE_LISTEN works only with a PostgreSQL store")
    if url == "memory:":
        return MemoryStore()
    if is_shared(url):
        options = {"listen": listen, "watches": watches, "accepts_server": accepts_server}
        return await _module_of(url).open_store(url, **(options if is_postgres(url) else {}))
    return await SqliteStore.open(_file_of(url))


def _file_of(url: str) -> Path:
    """Return the path of a SQLite address. Raises ValueError."""
    if _scheme_of(url) != "sqlite":
        scheme = url.partition(":")[0]
        raise ValueError(f"there is no store type {scheme!r}: use {_POSSIBLE}")
    path = url.removeprefix(SQLITE)
    if path in (url, "", "/", ":memory:"):
        raise ValueError(f"this address does not name a file: use {_POSSIBLE}")
    if "?" in path:
        raise ValueError(
            "the address of a SQLite store cannot have options: remove the '?' and the text after "
            "it"
        )
    return Path(path)


def _scheme_of(url: str) -> str:
    scheme, colon, _ = url.partition(":")
    return scheme if colon else ""


def _module_of(url: str) -> _Module:
    module, extra = _SHARED[_scheme_of(url)]
    try:
        return cast("_Module", import_module(module))
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a store at {_scheme_of(url)}:// needs more packages: pip install "
            f"'elicit-url[{extra}]'"
        ) from error
