"""From the address in the settings to an open store.

An address may hold a password, so a refusal names its scheme and nothing more of it.
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
from webapp.stores.memory import MemoryStore
from webapp.stores.sqlite import SqliteStore
from webapp.stores.store import Store

SQLITE = "sqlite:///"
_POSSIBLE = (
    "sqlite:///relative.db, sqlite:////absolute.db, postgresql://, redis://, rediss://, "
    "valkey://, valkeys:// or memory:"
)
# What several machines share: the module, which is loaded where it is asked for, and its extra.
_SHARED = {
    "postgresql": ("webapp.stores.postgres", "postgres"),
    "postgres": ("webapp.stores.postgres", "postgres"),  # as platforms write it
    "redis": ("webapp.stores.valkey", "redis"),
    "rediss": ("webapp.stores.valkey", "redis"),
    "valkey": ("webapp.stores.valkey", "redis"),
    "valkeys": ("webapp.stores.valkey", "redis"),
}


PASSWORDS = ("password", "sslpassword")


class _Module(Protocol):
    """What a module of a shared store has."""

    async def open_store(self, url: str, **options: Any) -> Store: ...
    async def holds_something(self, url: str) -> bool: ...


def is_shared(url: str) -> bool:
    """Whether processes of several machines can have the store at the address open."""
    return _scheme_of(url) in _SHARED


def is_postgres(url: str) -> bool:
    return _scheme_of(url).startswith("postgres")


def may_be_unescaped(url: str) -> bool:
    """Whether a password in it may have what ends an authority, so that nobody knows its end."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return "#" in url or bool(parts.netloc and "@" in parts.path + parts.query)


def without_password(url: str) -> str:
    """The address as it may be shown and noted; its scheme where a password may be all over it."""
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
    """Whether records are kept at the address, or a file there cannot be read. Blocks.

    Raises StoreUnavailable if a server cannot be asked, ValueError if none can be at that address.
    """
    if is_shared(url):
        return _in_a_thread(url)
    if url == "memory:":
        return False
    path = _file_of(url)
    try:
        if path.stat().st_size == 0:
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
    if is_shared(address):
        return False  # a server that does not answer may be back
    try:
        Path(address.removeprefix(SQLITE)).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def why_not_opened(error: StoreUnavailable | ValueError) -> str:
    """The sentence for an operator whose store does not open, whichever command found out."""
    if isinstance(error, StoreUnavailable):
        return f"The store cannot be opened: {error.why}"
    return f"ELICIT_STORE: {error}"


async def open_store(
    url: str, *, listen: str = "", watches: bool = True, accepts_server: bool = False
) -> Store:
    """Open the store at the address; ValueError says which addresses are possible.

    `listen` is another address of the same store, for what it tells by itself. Who never watches
    needs none, also where the address is a pooler's. With `accepts_server`, a PostgreSQL server may
    serve it that is not the one that has served it, nor its successor.
    """
    if listen and not is_postgres(url):
        raise ValueError("an address to listen at (ELICIT_STORE_LISTEN) is for PostgreSQL alone")
    if url == "memory:":
        return MemoryStore()
    if is_shared(url):
        options = {"listen": listen, "watches": watches, "accepts_server": accepts_server}
        return await _module_of(url).open_store(url, **(options if is_postgres(url) else {}))
    return await SqliteStore.open(_file_of(url))


def _file_of(url: str) -> Path:
    """Raises ValueError."""
    if _scheme_of(url) != "sqlite":
        scheme = url.partition(":")[0]
        raise ValueError(f"no store is reached by {scheme!r}; possible are {_POSSIBLE}")
    path = url.removeprefix(SQLITE)
    if path in (url, "", "/", ":memory:"):
        raise ValueError(f"this address names no file; possible are {_POSSIBLE}")
    if "?" in path:
        raise ValueError("the store sets SQLite's options itself: no '?' in its address")
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
            f"a store at {_scheme_of(url)}:// needs more to be installed: "
            f"pip install 'elicit-url[{extra}]'"
        ) from error


def _in_a_thread(url: str) -> bool:
    """Asked while settings are read, where a loop may run already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_module_of(url).holds_something(url))).result()
