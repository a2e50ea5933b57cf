"""Addresses with several PostgreSQL hosts: the writable host is used, never an older server."""

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import pytest

from flows.errors import StoreUnavailable
from tests.support.cable import Cable
from tests.support.postgres_server import USER, PostgresServer, fresh_database, shared_server
from tests.support.records import record
from webapp.stores import holds_something
from webapp.stores.postgres import open_store
from webapp.stores.postgres_address import Host, parse_address
from webapp.stores.postgres_hosts import Connector, Servers


@pytest.fixture
async def database():
    """Create a fresh database and return its name."""
    async with fresh_database() as url:
        yield url.partition("@/")[2].partition("?")[0]


@pytest.fixture
async def url():
    async with fresh_database() as url:
        yield url


async def execute(url, *statements):
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
async def good():
    """Open a proxy to the tests' server, whose connections a test can cut."""
    server = await asyncio.to_thread(shared_server)
    async with Cable(server.folder / f".s.PGSQL.{server.port}") as cable:
        yield cable


@asynccontextmanager
async def broken(how):
    async with Cable(shared_server().folder / ".s.PGSQL.5432") as cable:
        if how == "silent":
            cable.freeze()
        elif how == "unplugged":
            await cable.unplug()
        else:
            await cable.cut()
        yield cable


def address(database, *cables, options="connect_timeout=1"):
    hosts = ",".join(cable.host for cable in cables)
    return f"postgresql://{USER}@{hosts}/{database}?{options}"


# finding: XB1
@pytest.mark.parametrize("how", ["refusing", "silent", "unplugged"])
async def test_store_connects_to_second_host_if_first_host_fails(good, database, how):
    async with broken(how) as first:
        url = address(database, first, good)
        store = await open_store(url)
        watched = await open_store(url)
        watch = watched.watch()
        (written,) = await store.write(record())
        assert await anext(watch) == written, "the listening connection uses the second host too"
        assert await asyncio.to_thread(holds_something, url)
        await store.aclose()
        await watched.aclose()


# finding: XB1
async def test_silent_first_host_does_not_use_up_default_connect_timeout(good, database):
    async with broken("silent") as first:
        store = await open_store(address(database, first, good, options=""))
        await store.check()
        await store.aclose()


# finding: XB1
@pytest.mark.parametrize("how", ["silent", "unplugged"])
async def test_error_names_silent_host_and_its_timeout(database, how):
    async with broken(how) as silent, broken("refusing") as refusing:
        with pytest.raises(StoreUnavailable) as refused:
            await open_store(address(database, silent, refusing))
        assert f"{silent.host} did not answer within 1 second" in refused.value.why
        assert f"{refusing.host} is not usable: Connection refused" in refused.value.why
        with pytest.raises(StoreUnavailable, match="did not answer within 1 second"):
            await open_store(address(database, silent))


# finding: XB1
async def test_later_connections_try_only_the_host_that_was_used_before(good, database):
    async with broken("silent") as first:
        url = address(database, first, good)
        connector = Connector(url, name="ELICIT_STORE", servers=Servers())
        (await connector.connect()).terminate()
        before = first.accepted
        for _ in range(3):
            (await connector.connect()).terminate()
        assert first.accepted == before


# finding: XB2
async def test_error_names_hosts_of_two_different_database_clusters(good, database):
    other = await asyncio.to_thread(PostgresServer)
    try:
        await asyncio.to_thread(other.start)
        await other.execute(f"CREATE DATABASE {database}")
        async with Cable(other.folder / ".s.PGSQL.5432") as elsewhere:
            with pytest.raises(StoreUnavailable, match="different database clusters") as refused:
                await open_store(address(database, good, elsewhere))
            assert good.host in refused.value.why
            assert elsewhere.host in refused.value.why
            store = await open_store(address(database, good))
            (written,) = await store.write(record())
            good.leads_to = elsewhere.leads_to
            await good.cut_connections()
            why = ""
            while "different database cluster" not in why:
                with pytest.raises(StoreUnavailable) as refused:
                    await store.read("a", "elicitation", "a-1")
                why = refused.value.why
            good.leads_to = shared_server().folder / ".s.PGSQL.5432"
            assert await store.read("a", "elicitation", "a-1") == written
            await store.aclose()
    finally:
        other.remove()


# finding: XB2
async def test_database_copied_to_another_cluster_is_refused_until_operator_accepts(url):
    await (await open_store(url)).aclose()
    await execute(url, "UPDATE elicit_store SET system_identifier = '1'")
    with pytest.raises(StoreUnavailable, match="elicit move --unfence") as refused:
        await open_store(url)
    assert "different database cluster" in refused.value.why
    await (await open_store(url, watches=False, accepts_server=True)).aclose()
    await (await open_store(url)).aclose()


# finding: XB2
async def test_server_on_older_timeline_than_stored_timeline_is_refused(url):
    await (await open_store(url)).aclose()
    await execute(url, "UPDATE elicit_store SET timeline = 7")
    with pytest.raises(StoreUnavailable, match=r"on timeline 1, .* on timeline 7"):
        await open_store(url)


@pytest.mark.parametrize("is_pooled", [True, False])
async def test_refusing_a_server_closes_the_connections_only_behind_a_pooler(url, is_pooled):
    servers = Servers()
    connection = await Connector(url, name="ELICIT_STORE", servers=servers).connect()
    servers.is_pooled = is_pooled
    servers.refuse(Host("127.0.0.1", "5432"), "it is on an older timeline")
    assert connection.is_closed() == is_pooled
    connection.terminate()


async def test_store_of_layout_1_gets_the_columns_that_it_lacks(url):
    await (await open_store(url)).aclose()
    await execute(
        url,
        "ALTER TABLE elicit_store DROP COLUMN timeline, DROP COLUMN system_identifier",
        "UPDATE elicit_store SET layout = 1",
    )
    stores = await asyncio.gather(*(open_store(url) for _ in range(3)))
    for store in stores:
        await store.check()
        await store.aclose()
    await execute(url, "UPDATE elicit_store SET timeline = 7")
    with pytest.raises(StoreUnavailable, match="on timeline 1"):
        await open_store(url)


# finding: XB2
async def test_role_without_right_to_read_timeline_can_use_store(url):
    forbidden = ("pg_control_system()", "pg_current_wal_lsn()")
    name = url.partition("@/")[2].partition("?")[0]
    await execute(
        url,
        "CREATE ROLE plain LOGIN",
        f"ALTER DATABASE {name} OWNER TO plain",
        "ALTER SCHEMA public OWNER TO plain",
        *(f"REVOKE EXECUTE ON FUNCTION {each} FROM public" for each in forbidden),
    )
    try:
        store = await open_store(url.replace(USER, "plain", 1))
        await store.write(record())
        await store.aclose()
    finally:
        await execute(url, "REASSIGN OWNED BY plain TO CURRENT_USER", "DROP ROLE plain")


def test_hosts_and_connect_timeout_are_parsed_from_address():
    several = parse_address(
        "postgresql://u:p@one,two:5433,[::1]:5434/d?sslmode=require&connect_timeout=4"
        "&target_session_attrs=read-write"
    )
    assert [str(host) for host in several.hosts] == ["one:5432", "two:5433", "[::1]:5434"]
    assert several.hosts[2].options == {"host": "::1", "port": 5434}
    assert several.url == "postgresql://u:p@one,two:5433,[::1]:5434/d?sslmode=require"
    assert several.seconds == 4
    sockets = parse_address("postgresql://u@/d?host=/run/one,/run/two&port=5433")
    assert sockets.hosts == (Host("/run/one", "5433"), Host("/run/two", "5433"))
    three = parse_address("postgresql://u@one,two,three/d?port=5433").hosts
    assert [str(host) for host in three] == ["one:5433", "two:5433", "three:5433"]
    each = parse_address("postgresql://u@one,two/d?port=5433,5434").hosts
    assert [str(host) for host in each] == ["one:5433", "two:5434"]
    assert parse_address("postgresql://u@one/d?connect_timeout=0").seconds == 10
    assert parse_address("postgresql://u@one/d").hosts == (Host(),)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@one,,two/d",
        "postgresql://u@one,two:x/d",
        "postgresql://u@one,two/d?port=1,2,3",
        "postgresql://u@one/d?connect_timeout=soon",
    ],
)
def test_invalid_address_is_refused_with_advice_on_escapes(url):
    with pytest.raises(StoreUnavailable, match="%-encode"):
        Connector(url, name="ELICIT_STORE", servers=Servers())
