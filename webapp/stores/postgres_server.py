"""The PostgreSQL server of a store: its required settings, and the connections to it.

Risks: the server acknowledges writes that a power cut loses, or its tables have a newer layout.
Such a server is refused before the first use, and the error says what to set.

A server that does not answer blocks a caller for at most ten seconds. After two seconds the address
is checked for another server that has taken over. A statement that writes is never cancelled:
PostgreSQL would stop waiting for a synchronous standby, and other sessions would see data that a
failover then loses. While a write waits like this, further writes are refused at once, because each
of them would hold locks without end.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from flows.errors import StoreUnavailable
from webapp.stores import postgres_driver as driver
from webapp.stores.opening import without_password
from webapp.stores.postgres_address import SECONDS, unavailable
from webapp.stores.postgres_driver import (
    ERRORS,
    TO_REPEAT,
    PostgresConnection,
    PostgresPool,
    Row,
    UniqueViolation,
    statements,
)
from webapp.stores.postgres_hosts import Connector, Servers
from webapp.stores.store import Fences, OtherFence

T = TypeVar("T")
_LAYOUT_SECONDS = 60.0
_CONNECTIONS_AT_MOST = 4  # one more connection listens
_IDLE_SECONDS = 300.0
_SILENT_SECONDS = 2.0
# The interval for checking the server behind the address: an older server may accept writes.
_LOOK_SECONDS = 15.0
_LOOK_SECONDS_OF_SEVERAL = 5.0
_BETWEEN_LOOKS_SECONDS = 1.0
_WRITES = frozenset({"write", "due", "erase", "check"})
_STALLED = (
    "commits wait for a synchronous standby, but none is connected: start one, or remove the "
    "missing ones from synchronous_standby_names and reload the server. See docs/how-to/stores.md"
)
_THREATS = "read in docs/explanation/threats.md what these roles can do"
_LAYOUT = 2
_OLDEST_SERVER = 14
_NAME, _LISTEN_NAME = "ELICIT_STORE", "ELICIT_STORE_LISTEN"
# In these levels a statement sees everything that was committed before it began. PostgreSQL treats
# "read uncommitted" like "read committed".
_ISOLATIONS = ("read committed", "read uncommitted")


class Server:
    """A pool of connections to one address. Each use is one statement or one transaction."""

    def __init__(
        self,
        pool: PostgresPool,
        *,
        address: str,
        servers: Servers,
        pooled: Connector,
        own: Connector,
    ) -> None:
        self.address = address
        self.round_trips = 0
        self._pool = pool
        self._servers = servers
        self._pooled = pooled
        self._own = own
        self._is_silent = asyncio.Event()
        self._is_stalled = False
        self._running: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._watching = self._loop.create_task(self._watch())

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        listen: str = "",
        may_be_pooled: bool,
        accepts_server: bool = False,
        seconds: float = SECONDS,
    ) -> "Server":
        """Connect, check the server, and create the tables if there are none.

        `listen` is the server's direct address if `url` leads to a pooler. With `accepts_server`,
        the server is accepted even if it is older than the last server of this store, or belongs to
        a different database cluster. A statement that takes longer than `seconds` fails.
        """
        servers = Servers()
        connector = Connector(url, name=_NAME, servers=servers)
        own = Connector(listen, name=_LISTEN_NAME, servers=servers) if listen else connector
        probe = await connector.connect(statement_cache_size=0, command_timeout=SECONDS)
        try:
            row = await probe.fetchrow(statements()["server"])
            assert row is not None
            must_be_safe(row)
            _must_be_elicits(row)
            servers.is_pooled = is_pooled = row["process"] != probe.get_server_pid()
            if is_pooled and not may_be_pooled:
                raise StoreUnavailable(
                    "ELICIT_STORE is the address of a connection pooler such as PgBouncer, and "
                    "LISTEN does not work through it: set ELICIT_STORE_LISTEN to the direct "
                    "address of the PostgreSQL server, with the same database"
                )
            if is_pooled and row["isolation"] not in _ISOLATIONS:
                _refuse(
                    f"default_transaction_isolation is {row['isolation']}, and behind a pooler "
                    "this server cannot change it for its own sessions: set it to 'read "
                    "committed' (ALTER DATABASE or ALTER ROLE ... SET "
                    "default_transaction_isolation = 'read committed')"
                )
            await _lay_out(probe)
            await _note_server(probe, servers, accepts=accepts_server)
            pool = await driver.create_pool(
                partial(_connect_for_pool, connector, servers),
                min_size=0,
                max_size=_CONNECTIONS_AT_MOST,
                max_inactive_connection_lifetime=_IDLE_SECONDS,
                command_timeout=seconds,
                reset=_skip_reset,
                # A pooler gives each transaction another session, which lacks our prepared
                # statements.
                statement_cache_size=0 if is_pooled else 100,
                server_settings={} if is_pooled else _SESSION,
            )
        except ERRORS as error:
            raise unavailable(error, url=url, name=_NAME) from None
        finally:
            probe.terminate()
        address = without_password(url)
        return cls(pool, address=address, servers=servers, pooled=connector, own=own)

    @staticmethod
    async def holds_something(url: str) -> bool:
        """Return True if the tables exist and hold a record. Raises StoreUnavailable."""
        connector = Connector(url, name=_NAME, servers=Servers())
        connection = await connector.connect(statement_cache_size=0, command_timeout=SECONDS)
        try:
            if not await connection.fetchval(statements()["is_laid_out"]):
                return False
            return bool(await connection.fetchval(statements()["any"]))
        except ERRORS as error:
            raise unavailable(error, url=url, name=_NAME) from error
        finally:
            connection.terminate()

    async def listening(self) -> PostgresConnection:
        """Return a connection to the server in use that receives notifications.

        Raises StoreUnavailable, also for a connection through a pooler, which delivers no
        notifications.
        """
        connection = await self._own.connect(statement_cache_size=0, command_timeout=SECONDS)
        try:
            if await connection.fetchval("SELECT pg_backend_pid()") == connection.get_server_pid():
                return connection
        except ERRORS as error:
            connection.terminate()
            raise self.unavailable(error) from None
        connection.terminate()
        raise StoreUnavailable(
            f"{self._own.name} is the address of a connection pooler such as PgBouncer, and LISTEN "
            "does not work through it: set the direct address of the PostgreSQL server"
        )

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """Return a StoreUnavailable for an error on the connection that listens."""
        return self._own.unavailable(error)

    async def replication(self, *, asks_hosts: bool) -> Sequence[tuple[str, str | None]]:
        """Return facts about the servers for an operator, each with its fix."""
        (row,) = await self.fetch_again("replication")
        states = await self._pooled.states() if asks_hosts else []
        return [*states, *_of_replication(row)]

    async def access(self) -> Sequence[tuple[str, str | None]]:
        """Return who else can write to the tables, and whether the connection is encrypted."""
        (row,) = await self.fetch_again("access")
        is_pooled = self._servers.is_pooled
        return [of_writers(row), of_encryption(row, url=self.address, is_pooled=is_pooled)]

    async def look(self) -> None:
        """Check which server the addresses lead to, and switch to a successor if there is one."""
        for connector in dict.fromkeys((self._pooled, self._own)):
            if (connection := await connector.look()) is None:
                continue
            with suppress(*ERRORS):
                self._is_stalled = await connection.fetchval(statements()["is_stalled"])
            connection.terminate()

    async def _watch(self) -> None:
        """Check the server at intervals, and whenever a statement gets no answer."""
        several = self._pooled.has_several_hosts or self._own.has_several_hosts
        while True:
            pause = _LOOK_SECONDS_OF_SEVERAL if several else _LOOK_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(_BETWEEN_LOOKS_SECONDS if self._is_stalled else pause):
                    await self._is_silent.wait()
            self._is_silent.clear()
            await self.look()
            await asyncio.sleep(_BETWEEN_LOOKS_SECONDS)

    async def fetch(self, name: str, *values: object, **words: str) -> Sequence[Row]:
        """Run the named statement in its own transaction, with `words` formatted into its text.

        Raises StoreUnavailable, or one of TO_REPEAT.
        """
        statement = statements()[name].format(**words) if words else statements()[name]
        if name not in _WRITES:
            return await self._fetch(statement, values)
        if self._is_stalled:
            raise self._stalled()
        return await self._run_to_completion(self._fetch(statement, values))

    def _stalled(self) -> StoreUnavailable:
        return StoreUnavailable(f"the store {self.address} is not usable: {_STALLED}")

    async def _fetch(self, statement: str, values: Sequence[object]) -> Sequence[Row]:
        async with self.connection(passes=TO_REPEAT) as connection:
            return await connection.fetch(statement, *values)

    async def _run_to_completion(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to completion, even if its caller is cancelled."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # mark the error as retrieved: perhaps no caller waits any more

    async def fetch_again(self, name: str, *values: object, **words: str) -> Sequence[Row]:
        """Run `fetch`, and repeat it once if the server aborted it for a concurrent change."""
        try:
            return await self.fetch(name, *values, **words)
        except TO_REPEAT:
            pass
        try:
            return await self.fetch(name, *values, **words)
        except TO_REPEAT as error:
            raise unavailable(error, url=self.address, name=_NAME) from error

    @asynccontextmanager
    async def connection(self, passes: driver.Errors = ()) -> AsyncGenerator[PostgresConnection]:
        """Yield a connection. Raise its errors as StoreUnavailable, except those in `passes`."""
        self.round_trips += 1
        silence = self._loop.call_later(_SILENT_SECONDS, self._is_silent.set)
        try:
            async with self._pool.acquire(timeout=SECONDS) as connection:
                try:
                    yield connection
                except TimeoutError:
                    with suppress(*ERRORS):  # the connection may be closed already
                        connection.terminate()  # a graceful close could block
                    raise
                except driver.ReadOnly:
                    # After a failover the address may lead to another server than these
                    # connections.
                    await self._pool.expire_connections()
                    raise
        except ERRORS as error:
            if isinstance(error, passes):
                raise
            if isinstance(error, TimeoutError) and self._is_stalled:
                raise self._stalled() from error
            raise unavailable(error, url=self.address, name=_NAME) from error
        finally:
            silence.cancel()

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[PostgresConnection]:
        """Yield a connection whose transaction sees all data as of one moment."""
        async with (
            self.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    async def load(self, columns: Sequence[object], *, behind: str) -> None:
        """Store rows while the fence is `behind`. Raises UniqueViolation if a key is not free."""

        async def loaded() -> None:
            async with self.connection((UniqueViolation,)) as connection, connection.transaction():
                found = await connection.fetchval(statements()["loading"])
                if found != behind:
                    raise OtherFence(found)
                await connection.execute(statements()["load"], *columns)

        await self._run_to_completion(loaded())

    async def fence(self, why: str | None, *, instead_of: Fences | None) -> None:
        """Wait for the writes in progress, then block new ones. If `why` is None, unblock."""

        async def fenced() -> None:
            async with self.connection() as connection, connection.transaction():
                found = await connection.fetchval(statements()["found_fence"])
                if instead_of is not None and found not in instead_of:
                    raise OtherFence(found)
                await connection.execute(statements()["note_fence"], why)
                await connection.execute(statements()["unfence" if why is None else "fence"])

        await self._run_to_completion(fenced())

    async def aclose(self) -> None:
        """Close all connections, none of which may be in use."""
        self._watching.cancel()
        await asyncio.wait([self._watching, *self._running])
        try:
            await self._pool.close()
        except ERRORS:
            self._pool.terminate()


# Settings of each session. The timeouts end the locks of a client that is gone.
_SESSION = {
    "application_name": "elicit",
    "default_transaction_isolation": _ISOLATIONS[0],
    "statement_timeout": f"{SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": "60s",
    # A plan that was cached while a table was empty must use the index; see postgres.sql.
    "enable_seqscan": "off",
    "jit": "off",
}


async def _skip_reset(_connection: object) -> None:
    """Skip the pool's reset: no session is ever changed, and a reset would cost a round trip."""


async def _connect_for_pool(
    connector: Connector, servers: Servers, **options: Any
) -> PostgresConnection:
    connection = await connector.connect(**options)
    if servers.noted != servers.used:
        try:
            await _note_server(connection, servers, accepts=False)
        except BaseException:
            connection.terminate()
            raise
    return connection


async def _note_server(connection: PostgresConnection, servers: Servers, *, accepts: bool) -> None:
    """Compare the server with the last one in the table elicit_store, and update that table.

    Raises StoreUnavailable for an older server, unless `accepts` is set.
    """
    used = servers.used
    assert used is not None
    row = await connection.fetchrow(statements()["seen_server"])
    system, timeline = (row["system_identifier"], row["timeline"]) if row else (None, None)
    why = None if accepts else used.why_older(system=system, timeline=timeline)
    if why is not None:
        raise StoreUnavailable(
            f"{_NAME} is the address of a server that may not serve this store: {why}. If you want "
            "to use this copy from now on, or if you upgraded the server (pg_upgrade), run elicit "
            "move --unfence with this address"
        )
    if used.timeline is not None and (system, timeline) != (used.system, used.timeline):
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(statements()["note_server"], used.system, used.timeline)
    servers.noted = used


def of_writers(row: Any) -> tuple[str, str | None]:
    """Return who can write to the tables, and the fix if other roles can."""
    role, writers = row["role"], row["writers"]
    if row["is_superuser"]:
        fix = (
            "create a role that only this server uses, without SUPERUSER, and make it the owner "
            "of the database"
        )
        return f"its role {role} is a superuser of the database server", fix
    if writers:
        fix = f"revoke their privileges on the tables elicit_*, or {_THREATS}"
        return f"other roles can write to the store too: {', '.join(writers)}", fix
    return f"only its role {role} and superusers can write to the store", None


def of_encryption(row: Any, *, url: str, is_pooled: bool) -> tuple[str, str | None]:
    """Return whether the connection is encrypted, and the fix if others can read or change it."""
    fix = "set sslmode=verify-full and sslrootcert in ELICIT_STORE"
    if is_pooled:
        if "sslmode=require" in url or "sslmode=verify" in url:
            return "the connection to the pooler is encrypted", None
        return "the pooler hides whether the connection to it is encrypted", fix
    if row["is_encrypted"]:
        return "the connection is encrypted", None
    client = row["client"]
    if client is None or client == "::1" or client.startswith("127."):
        return "the connection does not leave this machine", None
    return "the connection is not encrypted, and it leaves this machine", fix


def _of_replication(row: Any) -> list[tuple[str, str | None]]:
    standbys, names = row["standbys"], row["synchronous_standby_names"]
    waits = bool(names) and row["synchronous_commit"] != "local"
    follow = "1 standby is connected" if standbys == 1 else f"{standbys} standbys are connected"
    fix = "see docs/how-to/stores.md"
    if not standbys and not waits:
        found = "no standby is connected to this server: if its disk fails, stored data is lost"
        state: tuple[str, str | None] = (found, f"connect a standby; {fix}")
    elif not waits:
        found = (
            f"{follow} but no commit waits for it: a failover loses the writes of the last seconds"
        )
        state = (found, f"set synchronous_standby_names to two standbys; {fix}")
    elif not standbys:
        found = f"no standby is connected, and commits wait for {names}: every write is blocked"
        remedy = "connect one, or remove the missing ones from synchronous_standby_names"
        state = (found, f"{remedy} and reload the server; {fix}")
    elif standbys < 2:
        found = (
            f"{follow} and commits wait for {names}: writes are blocked while it is disconnected"
        )
        state = (found, f"connect two standbys; {fix}")
    else:
        state = (f"{follow}, and commits wait for {names}", None)
    archives = row["archive_mode"] != "off"
    archive = (
        "its WAL is archived" if archives else "its WAL is not archived (archive_mode is off)",
        None if archives else "set archive_mode and archive_command, or make a backup each night",
    )
    return [state, archive]


def must_be_safe(row: Mapping[str, Any]) -> None:
    """Check the server's settings. Raises StoreUnavailable if acknowledged data can be lost."""
    if row["version_number"] < _OLDEST_SERVER * 10_000:
        _refuse(
            f"the server is PostgreSQL {row['version']}, and {_OLDEST_SERVER} or newer is needed"
        )
    if row["encoding"] != "UTF8":
        _refuse(
            f"the database is in {row['encoding']}, and UTF8 is needed: "
            "createdb -E UTF8 -T template0"
        )
    if row["synchronous_commit"] == "off":
        _refuse(
            "synchronous_commit is off, so saved data is lost if the server crashes: set it to on "
            "(ALTER SYSTEM, ALTER DATABASE or ALTER ROLE ... SET synchronous_commit = on)"
        )
    if row["fsync"] == "off":
        _refuse(
            "fsync is off, so a power cut may destroy everything: set fsync = on in "
            "postgresql.conf, and restart the server"
        )
    if row["full_page_writes"] == "off":
        _refuse(
            "full_page_writes is off, so a power cut may leave half-written pages that cannot be "
            "repaired: set full_page_writes = on in postgresql.conf, and reload it"
        )


def _must_be_elicits(row: Mapping[str, Any]) -> None:
    if row["has_records"] and not row["is_ours"]:
        _refuse(
            "the database has a table elicit_records, but no table elicit_store: it belongs to "
            "another program, or it is an incomplete copy. Name another database"
        )


async def _lay_out(connection: PostgresConnection) -> None:
    """Create the tables if there are none.

    If several processes start at once, one of them creates the tables.
    """
    if not await connection.fetchval(statements()["is_laid_out"]):
        # This transaction has to see the tables that others created while it waited for the lock.
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(statements()["lock"], timeout=_LAYOUT_SECONDS)
            if not await connection.fetchval(statements()["is_laid_out"]):
                await connection.execute(statements()["schema"])
    layout = await connection.fetchrow(statements()["layout"])
    if layout is not None and layout["layout"] < _LAYOUT:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(statements()["lock"], timeout=_LAYOUT_SECONDS)
            await connection.execute(statements()["layout_2"])
    if layout is None:
        _refuse("the table elicit_store is empty: restore the database from a backup")
    elif layout["oldest_layout"] > _LAYOUT:
        _refuse(
            f"its tables have layout {layout['layout']}, made by a newer version of elicit, and "
            f"this version (layout {_LAYOUT}) cannot write to them: update elicit on this machine"
        )


def _refuse(why: str) -> NoReturn:
    raise StoreUnavailable(f"ELICIT_STORE: {why}")
