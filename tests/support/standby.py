"""A PostgreSQL primary with a streaming standby, behind proxies that simulate failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tests.support.cable import Cable
from tests.support.postgres_server import USER, PostgresServer

DATABASE = "elicit"
LOSSES = ("killed", "silent", "unplugged")
_SETTINGS = {"wal_level": "replica", "max_wal_senders": "8", "max_connections": "60"}
# The standby's settings are a copy of the primary's, but it has no standby of its own.
_OF_STANDBY = {"synchronous_standby_names": "''"}


class Pair:
    """A primary and its standby, behind proxies.

    `cables` are the proxies for clients: first the primary's, then the standby's. The standby
    replicates through the proxy `stream`.
    """

    def __init__(self, primary: PostgresServer, standby: PostgresServer, stream: Cable) -> None:
        self.primary, self.standby, self.stream = primary, standby, stream
        self.cables = [Cable(each.socket) for each in (primary, standby)]

    @property
    def url(self) -> str:
        """The database address. It lists the original primary first, even after a failover."""
        hosts = ",".join(cable.host for cable in self.cables)
        return f"postgresql://{USER}@{hosts}/{DATABASE}"

    async def lose_primary(self, how: str) -> None:
        match how:
            case "killed":
                await asyncio.to_thread(self.primary.kill)
            case "silent":
                self.primary.hang()
            case _:
                await self.cables[0].unplug()

    async def bring_primary_back(self, how: str) -> None:
        match how:
            case "killed":
                await asyncio.to_thread(self.primary.start)
            case "silent":
                self.primary.wake()
            case _:
                await self.cables[0].mend()

    async def promote(self) -> None:
        await asyncio.to_thread(self.standby.promote)

    async def has_everything(self) -> None:
        """Wait until the standby has replayed everything."""
        query = "SELECT pg_current_wal_lsn() = replay_lsn FROM pg_stat_replication"
        while not await fetchval(self.primary, query):
            pass

    async def connections_to(self, server: PostgresServer) -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'elicit'"
        found: int = await fetchval(server, query)
        return found

    async def written_on(self, server: PostgresServer) -> tuple[int, int]:
        """Return the number of records and the sum of their versions."""
        query = "SELECT ARRAY[count(*), coalesce(sum(version), 0)] FROM elicit_records"
        records, versions = await fetchval(server, query)
        return int(records), int(versions)


async def fetchval(server: PostgresServer, query: str) -> Any:
    connection = await asyncpg.connect(server.url(DATABASE))
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@asynccontextmanager
async def replicating(*, is_synchronous: bool = False) -> AsyncIterator[Pair]:
    primary = await asyncio.to_thread(PostgresServer, _SETTINGS)
    standby = None
    try:
        await asyncio.to_thread(primary.start)
        await primary.execute(f"CREATE DATABASE {DATABASE}")
        async with Cable(primary.socket) as stream:
            standby = await asyncio.to_thread(
                PostgresServer, _OF_STANDBY, follows=primary, port=stream.port
            )
            await asyncio.to_thread(standby.start)
            if is_synchronous:  # from now on, each commit waits for the standby
                await primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                await primary.execute("SELECT pg_reload_conf()")
            pair = Pair(primary, standby, stream)
            async with pair.cables[0], pair.cables[1]:
                yield pair
    finally:
        if (primary.data / "postmaster.pid").exists():
            primary.wake()
        primary.remove()
        if standby is not None:
            standby.remove()
