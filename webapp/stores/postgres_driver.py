"""A typed interface to asyncpg, which has no type stubs, and the SQL statements of the store."""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

import asyncpg  # pyright: ignore[reportMissingTypeStubs] - hence this module

_library: Any = asyncpg

Row = Sequence[Any]


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
        self, channel: str, hear: Callable[[object, int, str, object], None]
    ) -> None: ...
    def add_termination_listener(self, hear: Callable[[object], None]) -> None: ...
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
    """Create a pool whose connections `connect` opens. The options are for the library's pool."""

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
UNREADABLE: Final[tuple[type[Exception], ...]] = (
    MayNot,
    NoFunction,
    _library.FeatureNotSupportedError,
)
# Conflicts with concurrent transactions: the statement was undone and can be repeated.
TO_REPEAT: Final[tuple[type[Exception], ...]] = (
    UniqueViolation,
    _library.DeadlockDetectedError,
    _library.SerializationError,
)
# All errors that the library raises for problems with the server or the connection.
ERRORS: Final[tuple[type[Exception], ...]] = (
    PostgresError,
    _library.InterfaceError,
    _library.InternalClientError,
    _library.TargetServerAttributeNotMatched,
    OSError,
)
