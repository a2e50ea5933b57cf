"""A PostgreSQL primary that is lost and comes back, with a streaming standby that takes over."""

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import pytest

from flows.errors import StoreUnavailable
from tests.support.cable import Cable
from tests.support.postgres_server import USER, PostgresServer
from tests.support.records import record
from webapp.stores import Conflict
from webapp.stores.postgres import open_store

DEADLINE_SECONDS = 300.0
_REPLICATES = {"wal_level": "replica", "max_wal_senders": "8", "max_connections": "60"}


class Pair:
    """A primary and its standby, each at the end of a cable."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary, self.standby = primary, standby
        self.cables = [Cable(each.folder / ".s.PGSQL.5432") for each in (primary, standby)]

    @property
    def url(self) -> str:
        """The primary first, as an address that was written before the failover has it."""
        hosts = ",".join(cable.host for cable in self.cables)
        return f"postgresql://{USER}@{hosts}/elicit"

    async def lose_primary(self, how: str) -> None:
        match how:
            case "killed":
                await asyncio.to_thread(self.primary.kill)
            case "silent":
                self.primary.hang()
            case "unplugged":
                await self.cables[0].unplug()

    async def bring_primary_back(self, how: str) -> None:
        match how:
            case "killed":
                await asyncio.to_thread(self.primary.start)
            case "silent":
                self.primary.wake()
            case "unplugged":
                await self.cables[0].mend()

    async def has_everything(self) -> None:
        """Return when the standby has all that the primary has."""
        query = "SELECT pg_current_wal_lsn() = replay_lsn FROM pg_stat_replication"
        while not await self.fetchval(self.primary, query):
            pass

    async def records_on(self, server: PostgresServer) -> int:
        found: int = await self.fetchval(server, "SELECT count(*) FROM elicit_records")
        return found

    async def fetchval(self, server: PostgresServer, query: str):
        connection = await asyncpg.connect(server.url("elicit"))
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()


@asynccontextmanager
async def replicating():
    primary = await asyncio.to_thread(PostgresServer, _REPLICATES)
    standby = None
    try:
        await asyncio.to_thread(primary.start)
        await primary.execute("CREATE DATABASE elicit")
        standby = await asyncio.to_thread(PostgresServer, follows=primary)
        await asyncio.to_thread(standby.start)
        pair = Pair(primary, standby)
        async with pair.cables[0], pair.cables[1]:
            yield pair
    finally:
        if (primary.data / "postmaster.pid").exists():
            primary.wake()
        primary.remove()
        if standby is not None:
            standby.remove()


async def written(store, id: str) -> None:
    """Write until it is acknowledged, as a caller does who is told to try again."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                await store.write(record(id))
            except StoreUnavailable:
                await asyncio.sleep(0.01)
            except Conflict:
                return  # it was written, and the answer was lost
            else:
                return


# finding: XB1
# finding: XB2
@pytest.mark.parametrize("how", ["killed", "silent", "unplugged"])
async def test_lost_primary_is_left_and_never_written_again(how, caplog):
    async with replicating() as pair:
        instances = [await open_store(pair.url) for _ in range(2)]
        await instances[0].write(record("before"))
        await pair.has_everything()
        await pair.lose_primary(how)
        await asyncio.to_thread(pair.standby.promote)
        for number, store in enumerate(instances):
            await written(store, f"a-{number}")
        await pair.bring_primary_back(how)
        for store in instances:
            await store._server.look()
        instances.append(await open_store(pair.url))
        at_first = await pair.records_on(pair.primary)
        for number, store in enumerate(instances):
            await asyncio.gather(*(store.list("elicitation") for _ in range(8)))
            await written(store, f"b-{number}")
        assert await pair.records_on(pair.primary) == at_first
        for store in instances:
            assert len(await store.list("elicitation")) == 1 + 2 + 3
            await store.aclose()
        refused = [each for each in caplog.records if each.message == "store.older_server"]
        assert {each.host for each in refused} == {pair.cables[0].host}
        assert "on timeline 1" in refused[0].why


# finding: XB2
async def test_old_primary_alone_is_refused_by_whoever_has_seen_its_successor():
    async with replicating() as pair:
        store = await open_store(pair.url)
        await pair.has_everything()
        await asyncio.to_thread(pair.standby.promote)
        await store._server.look()
        await store.write(record())
        await pair.cables[1].cut()
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as refused:
                await store.write(record("a-2"))
            why = refused.value.why
            assert "on timeline 1, and the store has been served from timeline 2" in why
            assert pair.cables[1].host in why
        assert await pair.records_on(pair.primary) == 0
        await store.aclose()


# finding: XB2
async def test_statement_without_an_answer_leads_to_the_successor_before_its_time_is_over():
    async with replicating() as pair:
        store = await open_store(pair.url)
        await store.write(record())
        await pair.has_everything()
        await asyncio.to_thread(pair.standby.promote)
        pair.primary.hang()
        with pytest.raises(StoreUnavailable) as refused:
            await store.read("a", "elicitation", "a-1")
        assert "did not answer" not in refused.value.why
        assert await store.read("a", "elicitation", "a-1") is not None
        await store.aclose()


# finding: XB2
async def test_address_that_leads_elsewhere_leaves_no_connection_at_the_server_before():
    async with replicating() as pair:
        cable = pair.cables[0]
        url = f"postgresql://{USER}@{cable.host}/elicit"
        store = await open_store(url)
        await asyncio.gather(*(store.list("elicitation") for _ in range(8)))
        await pair.has_everything()
        await asyncio.to_thread(pair.standby.promote)
        cable.leads_to = pair.standby.folder / ".s.PGSQL.5432"
        await store._server.look()
        await asyncio.gather(*(store.list("elicitation") for _ in range(8)))
        await store.write(record())
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'elicit'"
        while await pair.fetchval(pair.primary, asked):
            pass
        assert await pair.records_on(pair.primary) == 0
        cable.leads_to = pair.primary.folder / ".s.PGSQL.5432"
        await cable.cut_connections()
        with pytest.raises(StoreUnavailable, match="on timeline 1"):
            await store.write(record("a-2"))
        await store.aclose()
