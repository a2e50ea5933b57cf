"""A typed interface to asyncpg, which has no type stubs, and the SQL statements of the store."""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - hence this module

from webapp.stores.store import Record

_library: Any = asyncpg

Row = Sequence[Any]
Errors = tuple[type[Exception], ...]


@cache
def statements() -> Mapping[str, str]:
    """Return the statements of postgres.sql by their names."""
    text = files("webapp.stores").joinpath("postgres.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


class PostgresConnection(Protocol):
    """A connection. Each call runs one statement."""

    async def fetch(self, statement: str, *values: object) -> Sequence[Row]: ...
    async def fetchrow(self, statement: str, *values: object) -> Any: ...
    async def fetchval(self, statement: str, *values: object) -> Any: ...
    async def execute(
        self, statement: str, *values: object, timeout: float | None = None
    ) -> str: ...
    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False
    ) -> AbstractAsyncContextManager[object]: ...
    async def add_listener(
        self, channel: str, listener: Callable[[object, int, str, object], None]
    ) -> None: ...
    def add_termination_listener(self, listener: Callable[[object], None]) -> None: ...
    def get_server_pid(self) -> int: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...


class PostgresPool(Protocol):
    """A pool of connections."""

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[PostgresConnection]: ...
    async def expire_connections(self) -> None: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


async def connect(url: str, **options: Any) -> PostgresConnection:
    connection: PostgresConnection = await _library.connect(url, **options)
    return connection


async def create_pool(
    connect: Callable[..., Coroutine[Any, Any, PostgresConnection]], **options: Any
) -> PostgresPool:
    """Create a pool that opens its connections with `connect`. asyncpg gets the options."""

    async def connected(_: None, **given: Any) -> PostgresConnection:
        return await connect(**given)

    pool: PostgresPool = await _library.create_pool(connect=connected, **options)
    return pool


PostgresError: Final[type[Exception]] = _library.PostgresError
UniqueViolation: Final[type[Exception]] = _library.UniqueViolationError
WrongLogin: Final[type[Exception]] = _library.InvalidAuthorizationSpecificationError
NoDatabase: Final[type[Exception]] = _library.InvalidCatalogNameError
MayNot: Final[type[Exception]] = _library.InsufficientPrivilegeError
TooManyConnections: Final[type[Exception]] = _library.TooManyConnectionsError
NoFunction: Final[type[Exception]] = _library.UndefinedFunctionError
ReadOnly: Final[type[Exception]] = _library.ReadOnlySQLTransactionError
WrongAddress: Final[type[Exception]] = _library.ClientConfigurationError
# Errors of a server that lacks a function, or whose administrator does not allow its use.
UNREADABLE: Final[Errors] = (
    MayNot,
    NoFunction,
    _library.FeatureNotSupportedError,
)
# Conflicts with concurrent transactions: the statement was undone and can be repeated.
TO_REPEAT: Final[Errors] = (
    UniqueViolation,
    _library.DeadlockDetectedError,
    _library.SerializationError,
)
# All errors that the library raises for problems with the server or the connection.
ERRORS: Final[Errors] = (
    PostgresError,
    _library.InterfaceError,
    _library.InternalClientError,
    _library.TargetServerAttributeNotMatched,
    OSError,
)


# Rows of PostgreSQL, and the checks for texts that PostgreSQL cannot store.
#
# Risks: one record that the server refuses would fail every write in the same statement. Such a
# record is therefore refused before it is sent.

# The limit for a row in an index is 2,704 bytes.
_NAME_BYTES_AT_MOST = 2_500


_FIELDS = Record.__struct_fields__  # the columns have the same order


def record_of(row: Sequence[Any]) -> Record:
    """Return the record from the first columns of a row."""
    return Record(**dict(zip(_FIELDS, row, strict=False)))


def columns_of(records: Sequence[Record]) -> list[list[Any]]:
    """Return the records as columns, in the order of `record_of`."""
    return [[getattr(record, name) for record in records] for name in _FIELDS]


def is_text(*texts: str) -> bool:
    """Return True if PostgreSQL can store the texts. If not, no stored record contains them."""
    for text in texts:
        if "\0" in text:
            return False
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            return False
    return True


def check_texts(records: Sequence[Record]) -> None:
    """Raise ValueError for records that the server would refuse."""
    for record in records:
        key = record.key or ""
        if not is_text(record.owner, record.kind, record.id, record.status, key):
            raise ValueError("PostgreSQL can't hold a zero byte or half a character in a text")
        name = f"{record.owner}{record.kind}{record.id}"
        if max(len(name), len(key)) > _NAME_BYTES_AT_MOST // 8:
            held = f"{record.owner}{record.kind}{max(record.id, key, key=len)}"
            if len(held.encode()) > _NAME_BYTES_AT_MOST:
                raise ValueError(f"a name or key is over {_NAME_BYTES_AT_MOST} bytes long")
