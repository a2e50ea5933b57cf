"""The PostgreSQL server of a store: its address, what it must be like, and connections to it.

What could go wrong: a server that acknowledges what a power cut takes away, a table of a newer
layout, a password in a log. All of it is refused, or left out, before any use; each refusal says
what to set. And a server that is gone keeps nobody waiting for more than the ten seconds below.
"""

import os
import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from flows.errors import StoreUnavailable
from webapp.stores import postgres_driver as driver
from webapp.stores.opening import may_be_unescaped, without_password
from webapp.stores.postgres_driver import ERRORS, TO_REPEAT, PostgresConnection, PostgresPool, Row
from webapp.stores.store import Fences, OtherFence

SECONDS = 10.0
_LAYOUT_SECONDS = 60.0
_CONNECTIONS_AT_MOST = 4  # and one that listens
_IDLE_SECONDS = 300.0
_LAYOUT = 1
_OLDEST_SERVER = 14
_FENCED = "EL001"
# In which a statement sees what was committed before it began; the second is the first by its name.
_ISOLATIONS = ("read committed", "read uncommitted")
_LIKE = "postgresql://user:password@host:5432/database"


@cache
def statements() -> Mapping[str, str]:
    """Each statement of postgres.sql by its name."""
    text = files("webapp.stores").joinpath("postgres.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


class Server:
    """Connections to one address, given out for a statement or a transaction."""

    def __init__(self, pool: PostgresPool, *, address: str) -> None:
        self.address = address
        self.round_trips = 0
        self._pool = pool

    @classmethod
    async def open(cls, url: str, *, may_be_pooled: bool, seconds: float = SECONDS) -> "Server":
        """Look at the server, lay the tables out if there are none, and connect.

        What takes longer than so many seconds has failed.
        """
        name = "ELICIT_STORE"
        probe = await connect(url, name=name)
        try:
            row = await probe.fetchrow(statements()["server"])
            assert row is not None
            must_be_safe(row)
            _must_be_ours(row)
            is_pooled = row["process"] != probe.get_server_pid()
            if is_pooled and not may_be_pooled:
                raise StoreUnavailable(
                    "ELICIT_STORE leads to a pooler, as PgBouncer is, through which no server "
                    "hears of others: set ELICIT_STORE_LISTEN to an address of the PostgreSQL "
                    "server itself, of the same database"
                )
            if is_pooled and row["isolation"] not in _ISOLATIONS:
                _refuse(
                    f"default_transaction_isolation is {row['isolation']}, and behind a pooler no "
                    "session of ours can set it: set it to 'read committed' (ALTER DATABASE or "
                    "ALTER ROLE ... SET default_transaction_isolation = 'read committed')"
                )
            await _lay_out(probe)
        except ERRORS as error:
            raise unavailable(error, url=url, name=name) from None
        finally:
            probe.terminate()
        try:
            pool = await driver.create_pool(
                url,
                min_size=0,
                max_size=_CONNECTIONS_AT_MOST,
                max_inactive_connection_lifetime=_IDLE_SECONDS,
                timeout=seconds,
                command_timeout=seconds,
                reset=_keep,
                # A pooler gives each transaction another session, which knows no statement of ours.
                statement_cache_size=0 if is_pooled else 100,
                server_settings={} if is_pooled else _SESSION,
            )
        except ERRORS as error:
            raise unavailable(error, url=url, name=name) from None
        return cls(pool, address=without_password(url))

    @staticmethod
    async def holds_something(url: str) -> bool:
        """Whether the tables are there and hold a record. Raises StoreUnavailable."""
        connection = await connect(url, name="ELICIT_STORE")
        try:
            if not await connection.fetchval(statements()["is_laid_out"]):
                return False
            return bool(await connection.fetchval(statements()["any"]))
        except ERRORS as error:
            raise unavailable(error, url=url, name="ELICIT_STORE") from error
        finally:
            connection.terminate()

    async def fetch(self, name: str, *values: object, **words: str) -> Sequence[Row]:
        """Run the statement of that name, with words put in; it is a transaction of its own.

        Raises StoreUnavailable, or one of TO_REPEAT.
        """
        statement = statements()[name]
        async with self.connection() as connection:
            return await connection.fetch(
                statement.format(**words) if words else statement, *values
            )

    async def fetch_again(self, name: str, *values: object, **words: str) -> Sequence[Row]:
        """The same, once more if it was broken off for another's sake."""
        try:
            return await self.fetch(name, *values, **words)
        except TO_REPEAT:
            pass
        try:
            return await self.fetch(name, *values, **words)
        except TO_REPEAT as error:
            raise unavailable(error, url=self.address, name="ELICIT_STORE") from error

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[PostgresConnection]:
        """One for a while; its errors are raised as StoreUnavailable."""
        self.round_trips += 1
        try:
            async with self._pool.acquire(timeout=SECONDS) as connection:
                try:
                    yield connection
                except TimeoutError:
                    connection.terminate()  # nobody waits for it once more
                    raise
                except driver.ReadOnly:
                    # After a failover the address may lead to another server than these do.
                    await self._pool.expire_connections()
                    raise
        except ERRORS as error:
            if isinstance(error, TO_REPEAT):
                raise
            raise unavailable(error, url=self.address, name="ELICIT_STORE") from error

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[PostgresConnection]:
        """A connection that sees everything as of one moment."""
        async with (
            self.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    async def load(self, columns: Sequence[object], *, behind: str) -> None:
        """Put rows in place behind that fence, which stands until they are there."""
        async with self.connection() as connection, connection.transaction():
            found = await connection.fetchval(statements()["loading"])
            if found != behind:
                raise OtherFence(found)
            await connection.execute(statements()["load"], *columns)

    async def fence(self, why: str | None, *, instead_of: Fences | None) -> None:
        """Wait for the writes under way and let none in from then on; None: let them in."""
        async with self.connection() as connection, connection.transaction():
            found = await connection.fetchval(statements()["found_fence"])
            if instead_of is not None and found not in instead_of:
                raise OtherFence(found)
            await connection.execute(statements()["note_fence"], why)
            await connection.execute(statements()["unfence" if why is None else "fence"])

    async def aclose(self) -> None:
        """Close every connection; none may be in use."""
        try:
            await self._pool.close()
        except ERRORS:
            self._pool.terminate()


# A session's own, where it is one. Whoever is gone must hold no lock for long.
_SESSION = {
    "application_name": "elicit",
    "default_transaction_isolation": _ISOLATIONS[0],
    "statement_timeout": f"{SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": "60s",
    # For the plans that are kept of statements, as in the function of postgres.sql.
    "enable_seqscan": "off",
    "jit": "off",
}


_ERRORS_OF_ADDRESS: tuple[type[Exception], ...] = (*ERRORS, ValueError)


async def _keep(_connection: object) -> None:
    """We change no session: to reset it would be a round trip for each statement."""


async def connect(url: str, *, name: str) -> PostgresConnection:
    """One connection of its own; `name` is the setting that has the address."""
    if may_be_unescaped(url):
        raise unavailable(ValueError(), url=url, name=name)
    try:
        return await driver.connect(
            url, timeout=SECONDS, command_timeout=SECONDS, statement_cache_size=0
        )
    except _ERRORS_OF_ADDRESS as error:
        # None of its causes: asyncpg shows what it can't read of an address, with what is in it.
        raise unavailable(error, url=url, name=name) from None


async def listening(url: str, *, name: str) -> PostgresConnection:
    """A connection that hears notifications; refused through a pooler, where it would hear none."""
    connection = await connect(url, name=name)
    try:
        if await connection.fetchval("SELECT pg_backend_pid()") == connection.get_server_pid():
            return connection
    except ERRORS as error:
        connection.terminate()
        raise unavailable(error, url=url, name=name) from None
    connection.terminate()
    raise StoreUnavailable(
        f"{name} leads to a pooler, as PgBouncer is, and nothing is heard through it: give the "
        "address of the PostgreSQL server itself"
    )


def unavailable(error: Exception, *, url: str, name: str) -> StoreUnavailable:
    """The store's own error for the library's or the system's: what to do about it, no password."""
    if isinstance(error, StoreUnavailable):
        return error
    if getattr(error, "sqlstate", None) == _FENCED:
        return StoreUnavailable(str(error))
    if isinstance(error, driver.WrongAddress) or type(error) is ValueError:
        return StoreUnavailable(
            f"{name} is no address that can be read: write {_LIKE}, with %-escapes for what a "
            "password has of : / @ ? # %"
        )
    what = f"the store {without_password(url)} "
    if isinstance(error, TimeoutError):
        what += f"did not answer within {SECONDS:.0f} seconds"
    else:
        # Each loop has words of its own for a refused connection.
        of_system = isinstance(error, ConnectionError) and error.errno
        what += f"is not usable: {os.strerror(of_system) if of_system else error}".rstrip(".")
    advice = next((says for kind, says in _ADVICE if isinstance(error, kind)), None)
    return StoreUnavailable(what if advice is None else f"{what}. {name}: {advice}")


_LOOK_AT_ADDRESS = (
    "see that the server runs, that host and port are its own, and that a file which the address "
    "names is there"
)
# What to do about each, the narrower ones first.
_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (
        driver.WrongLogin,
        "put the right user and password in the address, or into PGPASSWORD or ~/.pgpass",
    ),
    (driver.NoDatabase, "make the database (createdb), or name another"),
    (
        driver.MayNot,
        "make its user the owner of the database, for it has to make tables",
    ),
    (
        driver.TooManyConnections,
        "let the server take more (max_connections), or put PgBouncer before it",
    ),
    (
        driver.NoFunction,
        "a newer version of this program has changed the tables: update this one",
    ),
    (
        driver.ReadOnly,
        "this server only follows another: name the one that takes writes",
    ),
    (
        ssl.SSLError,
        "set sslmode and sslrootcert in the address as the server's certificate asks",
    ),
    (TimeoutError, "look at the load of the server, and whether host and port are its own"),
    (OSError, _LOOK_AT_ADDRESS),
)


def must_be_safe(row: Mapping[str, Any]) -> None:
    """Raises StoreUnavailable for a server that may lose what it has acknowledged."""
    if row["version_number"] < _OLDEST_SERVER * 10_000:
        _refuse(
            f"the server is PostgreSQL {row['version']}, and {_OLDEST_SERVER} or newer is needed"
        )
    if row["is_standby"]:
        _refuse(
            "the server only follows another and takes no writes: name the one that does, or "
            "several hosts and target_session_attrs=read-write"
        )
    if row["encoding"] != "UTF8":
        _refuse(
            f"the database is in {row['encoding']}, and UTF8 is needed: "
            "createdb -E UTF8 -T template0"
        )
    if row["synchronous_commit"] == "off":
        _refuse(
            "synchronous_commit is off, so what was acknowledged is lost with the server: set it "
            "to on (ALTER SYSTEM, ALTER DATABASE or ALTER ROLE ... SET synchronous_commit = on)"
        )
    if row["fsync"] == "off":
        _refuse(
            "fsync is off, so a power cut may destroy everything: set fsync = on in "
            "postgresql.conf, and start the server again"
        )
    if row["full_page_writes"] == "off":
        _refuse(
            "full_page_writes is off, so a power cut may tear pages that nothing mends: set "
            "full_page_writes = on in postgresql.conf, and reload it"
        )


def _must_be_ours(row: Mapping[str, Any]) -> None:
    if row["has_records"] and not row["is_ours"]:
        _refuse(
            "the database has a table elicit_records, and no elicit_store beside it: it is another "
            "program's, or half of a copy; name another database"
        )


async def _lay_out(connection: PostgresConnection) -> None:
    """Make the tables if there are none; of several that begin at once, one does."""
    if not await connection.fetchval(statements()["is_laid_out"]):
        # What others laid out while this waited for the lock has to be seen.
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(statements()["lock"], timeout=_LAYOUT_SECONDS)
            if not await connection.fetchval(statements()["is_laid_out"]):
                await connection.execute(statements()["schema"])
    layout = await connection.fetchrow(statements()["layout"])
    if layout is None:
        _refuse("the table elicit_store is empty: put a copy of before in its place")
    elif layout["oldest_layout"] > _LAYOUT:
        _refuse(
            f"its tables have layout {layout['layout']}, made by a newer version of this program, "
            f"beside which this one ({_LAYOUT}) may not write: update it"
        )


def _refuse(why: str) -> NoReturn:
    raise StoreUnavailable(f"ELICIT_STORE: {why}")
