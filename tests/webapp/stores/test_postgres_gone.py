"""A PostgreSQL server that disappears, hangs or restarts under an open store."""

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import pytest
from msgspec.structs import replace

from flows.errors import StoreUnavailable
from tests.support.postgres_server import PostgresServer
from tests.support.records import HOLD, NOW, record
from webapp.stores import Conflict
from webapp.stores.postgres import PostgresStore, open_store
from webapp.stores.postgres_changes import PostgresChanges
from webapp.stores.postgres_server import Server
from webapp.stores.store import as_written

STATUSES = ("pending", "opened", "accepted", "taken")


@pytest.fixture(scope="module")
def server():
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def url(server):
    async with server.database() as url:
        yield url


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.aclose()


@asynccontextmanager
async def locked(url):
    """Lock the rows against all other connections."""
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("LOCK TABLE elicit_records")
        yield connection
    finally:
        connection.terminate()


async def waiting(url: str, *, queries: int) -> None:
    """Wait until `queries` statements wait for a lock."""
    connection = await asyncpg.connect(url)
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    found = 0
    while found < queries:
        found = await connection.fetchval(asked)
    await connection.close()


async def back(store) -> None:
    """Wait until the store answers again."""
    async with asyncio.timeout(300):
        while True:
            try:
                await store.check()
            except StoreUnavailable:
                await asyncio.sleep(0)
            else:
                return


async def written_again(store, wanted):
    """Repeat a write, check that one of the attempts was stored, and return the stored record."""
    try:
        (now,) = await store.write(wanted)
    except Conflict as conflict:
        now = conflict.found
    assert (now,) == as_written([wanted])
    return now


async def test_killed_server_fails_pending_calls_and_store_recovers_after_restart(
    server, url, store
):
    (first,) = await store.write(record(due_at=NOW))
    async with locked(url):
        calls = [
            asyncio.ensure_future(call)
            for call in (
                store.write(replace(first, status="opened")),
                store.read("a", "elicitation", "a-1"),
                store.due(NOW, hold=HOLD),
            )
        ]
        await waiting(url, queries=3)
        server.kill()
        for under_way in calls:
            with pytest.raises(StoreUnavailable) as refused:
                await under_way
            assert store.address in refused.value.why
    for call in (store.check, lambda: store.erase(owner="a"), lambda: store.list("elicitation")):
        with pytest.raises(StoreUnavailable) as refused:
            await call()
        assert "check that the server runs" in refused.value.why
    await asyncio.to_thread(server.start)
    await back(store)
    assert await store.read("a", "elicitation", "a-1") == first


@pytest.mark.parametrize("place", range(4))
async def test_server_killed_during_any_write_loses_no_acknowledged_write(server, store, place):
    now = record(key="k", due_at=NOW)
    for number, status in enumerate(STATUSES):
        wanted = replace(now, status=status)
        if number < place:
            (now,) = await store.write(wanted)
            continue
        if number == place:
            result: object
            writing = asyncio.create_task(store.write(wanted))
            await asyncio.sleep(0)
            server.kill()
            (result,) = await asyncio.gather(writing, return_exceptions=True)
            await asyncio.to_thread(server.start)
            await back(store)
            found = await store.read("a", "elicitation", "a-1")
            before = now if now.version else None
            if isinstance(result, StoreUnavailable):
                assert found in (before, *as_written([wanted])), (
                    "a failed write is stored completely or not at all"
                )
            else:
                assert result == (found,)
        now = await written_again(store, wanted)
    assert now.status == "taken"
    assert now.version == 4


async def test_hanging_statement_times_out_and_does_not_block_later_calls(url):
    server = await Server.open(url, may_be_pooled=False, seconds=0.2)
    changes = PostgresChanges(server)
    await changes.listen()
    store = PostgresStore(server, changes=changes)
    await store.write(record())
    async with locked(url):
        results = await asyncio.gather(
            store.write(record("a-2")),
            *(store.list("elicitation") for _ in range(8)),
            return_exceptions=True,
        )
        for result in results:
            assert isinstance(result, StoreUnavailable)
            assert "did not answer" in result.why
    await back(store)
    await store.write(record("a-3"))
    await store.aclose()


async def test_store_leaves_read_only_server_once_address_leads_to_writable_server(url, store):
    database = url.partition("@/")[2].partition("?")[0]
    operator = await asyncpg.connect(url)
    await operator.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    await operator.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    why = ""
    while "read-only" not in why:
        with pytest.raises(StoreUnavailable) as refused:
            await store.write(record())
        why = refused.value.why
    await asyncio.gather(*(store.list("elicitation") for _ in range(8)))
    await operator.execute("SET default_transaction_read_only = off")
    await operator.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    await operator.close()
    await back(store)
    await asyncio.gather(*(store.check() for _ in range(8)))
    await store.write(record())


async def test_watch_receives_look_again_and_new_changes_after_server_restart(server, url, store):
    other = await open_store(url)
    watch = store.watch()
    (written,) = await other.write(record())
    async with asyncio.timeout(300):
        assert await anext(watch) == written
        server.kill()
        await asyncio.to_thread(server.start)
        assert await anext(watch) is None
        await back(other)
        (again,) = await other.write(written)
        while await anext(watch) != again:
            pass
    await other.aclose()


async def test_watch_reconnects_after_its_connection_is_terminated(url, store):
    other = await open_store(url)
    watch = store.watch()
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(300):
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
        assert await anext(watch) is None
        (written,) = await other.write(record())
        while await anext(watch) != written:
            pass
    await connection.close()
    await other.aclose()


@pytest.mark.parametrize("payload", ["", "*", "[]", '["x",[["a"]]]', '["x","*"]', "\u20ac" * 999])
async def test_unreadable_notification_makes_watch_look_again(url, store, payload):
    watch = store.watch()
    connection = await asyncpg.connect(url)
    await connection.execute("SELECT pg_notify('elicit', $1)", payload)
    async with asyncio.timeout(300):
        assert await anext(watch) is None
    await connection.close()


async def test_watch_reports_many_records_or_looks_again_for_long_ids(url, store):
    other = await open_store(url)
    watch = store.watch()
    names = {f"{number:04}-{'x' * 200}" for number in range(400)}
    for start in range(0, 400, 100):
        await other.write(*(record(name) for name in sorted(names)[start : start + 100]))
    async with asyncio.timeout(300):
        while names:
            seen = await anext(watch)
            assert seen is not None
            names.discard(seen.id)
    await other.write(*(record(f"{number:04}-{'y' * 2000}") for number in range(400)))
    async with asyncio.timeout(300):
        while await anext(watch) is not None:
            pass
    await other.aclose()


async def test_watch_with_filter_receives_matching_records_only(url, store):
    other = await open_store(url)
    watch = store.watch()
    watch.choose(lambda kind, id: kind == "account" or id == "a-2")
    for wanted in (record("a-1"), record("a-2"), record("a-3"), record("a-4", kind="account")):
        await other.write(wanted)
    async with asyncio.timeout(300):
        assert [(await anext(watch)).id for _ in range(2)] == ["a-2", "a-4"]
    await other.aclose()


async def test_store_closes_while_server_is_down(server, url):
    store = await open_store(url)
    server.kill()
    async with asyncio.timeout(300):
        await store.aclose()
    await asyncio.to_thread(server.start)
