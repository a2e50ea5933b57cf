"""Opening a store on PostgreSQL: refused servers and databases, and supported table layouts."""

import asyncio
import re
from urllib.parse import quote

import asyncpg
import pytest

from flows.errors import StoreUnavailable
from tests.support.pgbouncer import pooled
from tests.support.postgres_server import GUARDED_USER, USER, fresh_database, shared_server
from tests.support.records import HOLD, NOW, record
from webapp.stores import Conflict, holds_something, without_password
from webapp.stores.postgres import open_store
from webapp.stores.postgres_driver import columns_of
from webapp.stores.postgres_server import must_be_safe

SAFE = {
    "version_number": 150000,
    "version": "15.0",
    "encoding": "UTF8",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
}


@pytest.fixture
async def url():
    async with fresh_database() as url:
        yield url


@pytest.fixture
async def store(url):
    store = await open_store(url)
    yield store
    await store.aclose()


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def refusal(url: str) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(url)
    return refused.value.why


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version_number": 130013, "version": "13.13"}, "14 or newer"),
        ({"encoding": "LATIN1"}, "createdb -E UTF8"),
        ({"synchronous_commit": "off"}, "SET synchronous_commit = on"),
        ({"fsync": "off"}, "set fsync = on"),
        ({"full_page_writes": "off"}, "full_page_writes = on"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsafe_server_configuration_is_refused_with_setting_to_change(change, words):
    must_be_safe(SAFE)
    with pytest.raises(StoreUnavailable) as refused:
        must_be_safe({**SAFE, **change})
    assert refused.value.why.startswith("ELICIT_STORE: ")
    assert words in refused.value.why


@pytest.mark.parametrize("whose", ["DATABASE {database}", f"ROLE {USER} IN DATABASE {{database}}"])
async def test_synchronous_commit_off_for_database_or_role_is_refused(url, whose):
    database = url.partition("@/")[2].partition("?")[0]
    whose = whose.format(database=database)
    await execute(url, f"ALTER {whose} SET synchronous_commit = off")
    assert "synchronous_commit is off" in await refusal(url)
    await execute(url, f"ALTER {whose} SET synchronous_commit = local")
    await (await open_store(url)).aclose()


async def test_database_with_other_encoding_is_refused():
    options = "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
    async with fresh_database(options) as url:
        assert "SQL_ASCII" in await refusal(url)


async def test_password_with_special_characters_works_and_wrong_password_is_not_shown(url):
    password = "a:b/c@d?e#f%g"
    database = url.partition("@/")[2]
    name = database.partition("?")[0]
    await execute(
        url,
        f"DROP ROLE IF EXISTS {GUARDED_USER}",
        f"CREATE ROLE {GUARDED_USER} LOGIN PASSWORD '{password}'",
        f"ALTER DATABASE {name} OWNER TO {GUARDED_USER}",
    )
    escaped = quote(password, safe="")
    opened = await open_store(f"postgresql://{GUARDED_USER}:{escaped}@/{database}")
    assert opened.address == f"postgresql://{GUARDED_USER}@/{database}"
    await opened.aclose()
    opened = await open_store(f"postgresql://{GUARDED_USER}@/{database}&password={escaped}")
    assert password not in opened.address
    assert escaped not in opened.address
    await opened.aclose()
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(f"postgresql://{GUARDED_USER}:not-{escaped}@/{database}")
    error: BaseException | None = refused.value
    assert "put the correct user and password in the address" in refused.value.why
    while error is not None:
        assert "not-" not in f"{error!r} {error}"
        error = None if error.__suppress_context__ else error.__cause__ or error.__context__
    await execute(url, f"ALTER DATABASE {name} OWNER TO {USER}")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql://somebody@/postgres?host={folder}", "put the correct user and password"),
        ("postgresql://tester@/nowhere?host={folder}", "createdb"),
        ("postgresql://tester@/nowhere?host=/nonexistent", "check that the server runs"),
        ("postgresql://tester:p4ss@127.0.0.1:1/nowhere", "check that the server runs"),
        ("postgresql://tester:p4ss/word@127.0.0.1:1/nowhere", "%-encode"),
        ("postgresql://tester:1/p4ss@127.0.0.1:1/nowhere", "%-encode"),
        ("postgresql://tester:1#p4ss@127.0.0.1:1/nowhere", "%-encode"),
        ("postgresql://tester:1?a=p4ss@127.0.0.1:1/nowhere", "%-encode"),
        ("postgresql://tester:1@p4ss/@127.0.0.1:1/nowhere", "%-encode"),
        ("postgresql://tester:[p4ss@127.0.0.1:1/nowhere", "%-encode"),
        ("postgresql://tester:p4ss@127.0.0.1:port/nowhere", "%-encode"),
        ("postgresql://tester@/postgres?host={folder}&sslmode=wrong", "`sslmode` parameter must"),
        (
            "postgresql://t@127.0.0.1:1/n?sslmode=verify-full&sslrootcert=/none.pem",
            "each file named in the address exists",
        ),
    ],
)
async def test_wrong_address_is_refused_with_fix_and_without_password(address, words):
    server = await asyncio.to_thread(shared_server)
    why = await refusal(address.format(folder=server.folder))
    assert "ELICIT_STORE" in why
    assert words in why
    assert "p4ss" not in why
    assert "p4ss" not in without_password(address)


async def test_empty_database_can_be_opened_concurrently(url):
    stores = await asyncio.gather(*(open_store(url) for _ in range(5)))
    await stores[0].write(record())
    for store in stores:
        assert await store.read("a", "elicitation", "a-1") is not None
        await store.aclose()


async def isolated(url: str, isolation: str) -> None:
    database = url.partition("@/")[2].partition("?")[0]
    await execute(
        url, f"ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'"
    )


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_default_transaction_isolation_of_database_does_not_affect_store(url, isolation):
    await isolated(url, isolation)
    stores = await asyncio.gather(*(open_store(url) for _ in range(3)))
    await asyncio.gather(
        *(each.check() for _ in range(40) for each in stores),
        *(each.write(record(f"{place}")) for place, each in enumerate(stores)),
        *(each.fence(None) for each in stores),
    )
    (row,) = await stores[0].write(record())
    results = await asyncio.gather(
        *(each.write(row) for each in stores for _ in range(5)), return_exceptions=True
    )
    assert [type(each) for each in results].count(Conflict) == 14
    for store in stores:
        await store.aclose()


async def test_serializable_isolation_behind_pooler_is_refused(url):
    await isolated(url, "serializable")
    async with pooled(shared_server(), url) as address:
        with pytest.raises(StoreUnavailable, match="default_transaction_isolation is serializable"):
            await open_store(address, listen=url)


async def test_user_without_create_right_is_refused_with_reason(url):
    await execute(url, "REVOKE CREATE ON SCHEMA public FROM public", "CREATE ROLE reader LOGIN")
    try:
        assert "owner of the database" in await refusal(url.replace(USER, "reader", 1))
    finally:
        await execute(url, "DROP ROLE reader")


async def test_table_of_another_program_is_refused(url):
    await execute(url, "CREATE TABLE elicit_records (mine text)")
    assert "belongs to another program" in await refusal(url)


async def test_unsupported_newer_layout_is_refused(url):
    await (await open_store(url)).aclose()
    await execute(url, "UPDATE elicit_store SET layout = 3, oldest_layout = 3")
    why = await refusal(url)
    assert "layout 3" in why
    assert "update elicit" in why


async def test_compatible_newer_layout_works_with_this_version(url, store):
    (first,) = await store.write(record(key="k", due_at=NOW))
    await execute(
        url,
        "ALTER TABLE elicit_records ADD COLUMN added text NOT NULL DEFAULT 'x'",
        "UPDATE elicit_store SET layout = 3, oldest_layout = 1",
    )
    later = await open_store(url)
    assert await later.find("a", "elicitation", "k") == first
    with pytest.raises(Conflict) as conflict:
        await later.write(record())
    assert conflict.value.found == first
    (second,) = await store.write(first)
    assert list(await later.due(NOW, hold=HOLD)) == [second]
    assert [page async for page in later.scan()] == [(second,)]
    await later.fence("moved")
    await later.load(first, behind="moved")
    await later.aclose()


async def test_missing_write_function_raises_error_with_advice_to_update(url, store):
    await store.write(record())
    await execute(url, "DROP FUNCTION elicit_write_1")
    with pytest.raises(StoreUnavailable) as refused:
        await store.write(record("a-2"))
    assert "update elicit on this machine" in refused.value.why


@pytest.mark.parametrize("code", ["40P01", "40001", "55P03"], ids=["deadlock", "order", "lock"])
async def test_call_that_server_aborts_for_concurrent_change_raises_store_unavailable(
    url, store, code
):
    """The codes are of a deadlock, a serialization failure and a lock timeout."""
    await store.write(record())
    await store.fence("copied")
    await execute(
        url,
        "CREATE FUNCTION aborts() RETURNS boolean LANGUAGE plpgsql AS "
        f"$$BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'aborted'; END$$",
        "CREATE FUNCTION abort() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN PERFORM aborts(); END$$",
        "CREATE TRIGGER a BEFORE UPDATE ON elicit_store EXECUTE FUNCTION abort()",
        "CREATE TRIGGER a BEFORE INSERT OR UPDATE OR DELETE ON elicit_records "
        "EXECUTE FUNCTION abort()",
    )
    writes = {
        "write": lambda: store.write(record("a-2")),
        "due": lambda: store.due(NOW, hold=HOLD),
        "erase": lambda: store.erase(owner="a"),
        "load": lambda: store.load(record("a-3", version=1), behind="copied"),
        "fence": lambda: store.fence("moved"),
        "unfence": lambda: store.fence(None),
    }
    reads = {
        "read": lambda: store.read("a", "elicitation", "a-1"),
        "list": lambda: store.list("elicitation"),
        "scan": lambda: anext(store.scan()),
    }
    await fail_for_abort(writes)
    await execute(
        url,
        "ALTER TABLE elicit_records RENAME TO renamed",
        "CREATE VIEW elicit_records AS SELECT * FROM renamed WHERE aborts()",
    )
    await fail_for_abort(reads)


async def fail_for_abort(calls):
    for name, call in calls.items():
        with pytest.raises(StoreUnavailable) as refused:
            await call()
        assert re.search("aborted|cancelled the same write 8 times", refused.value.why), name


async def test_holds_something_checks_database_without_creating_tables(url):
    assert not await holds_something_at(url)
    store = await open_store(url)
    assert not await holds_something_at(url)
    await store.write(record())
    await store.aclose()
    assert await holds_something_at(url)
    with pytest.raises(StoreUnavailable, match="check that the server runs"):
        await holds_something_at("postgresql://tester@127.0.0.1:1/nowhere")


async def holds_something_at(url: str) -> bool:
    return await asyncio.to_thread(holds_something, url)


@pytest.mark.parametrize("text", ["zero\0byte", "half\ud800"])
async def test_text_invalid_in_postgres_is_refused_without_affecting_other_writes(store, text):
    results = await asyncio.gather(
        store.write(record("good")), store.write(record(text)), return_exceptions=True
    )
    assert isinstance(results[1], ValueError)
    assert await store.read("a", "elicitation", "good") is not None
    for odd in (record(status=text), record(key=text), record(owner=text), record(kind=text)):
        with pytest.raises(ValueError):
            await store.write(odd)
    assert await store.read("a", "elicitation", text) is None
    assert await store.find("a", "elicitation", text) is None
    assert list(await store.list("elicitation", after=text)) == []
    assert await store.erase(owner=text) == 0


@pytest.mark.parametrize("character", ["x", "\u20ac"])
async def test_long_id_or_key_is_stored_or_refused_with_value_error(store, character):
    for length in (200, 500, 800, 1200, 2400, 2490, 2700, 9000):
        for odd in (record(character * length), record(key=character * length)):
            try:
                (written,) = await store.write(odd)
            except ValueError:
                assert len(character.encode()) * length > 2400
            else:
                assert await store.read("a", "elicitation", odd.id) == written
                await store.erase(owner="a")


async def test_abandoned_scan_releases_its_connection(store):
    await store.write(record())
    for _ in range(10):
        scan = store.scan()
        await anext(scan)
        await scan.aclose()
    await store.write(record("a-2"))


async def test_write_uses_index_even_if_plan_was_cached_for_empty_table(url, store):
    connection = await asyncpg.connect(url)
    asked = "SELECT FROM elicit_write_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
    one = [[0], *columns_of([record(key="k")])]
    for _ in range(10):  # PostgreSQL caches a plan after a few executions
        await connection.execute(asked, *one)
        await connection.execute("DELETE FROM elicit_records")
    for start in range(0, 3000, 500):
        await store.write(
            *(record(f"a-{number}", key=f"{number}") for number in range(start, start + 500))
        )
    several = [record(f"a-{number}", key=f"{number}", version=1) for number in range(0, 3000, 60)]
    plan = await connection.fetch(
        f"EXPLAIN (ANALYZE, BUFFERS) {asked}", list(range(50)), *columns_of(several)
    )
    pages = sum(int(number) for line in plan for number in re.findall(r"hit=(\d+)", line[0]))
    await connection.close()
    assert 50 < pages < 50 * 60, "the plan for an empty table would read more than 3,000 pages"


async def test_clock_returns_server_time_with_time_zone(store):
    assert (await store.clock()).tzinfo is not None


async def test_pooled_address_is_refused_without_direct_listen_address(url):
    async with pooled(shared_server(), url) as address:
        assert "set ELICIT_STORE_LISTEN" in await refusal(address)
        with pytest.raises(StoreUnavailable) as refused:
            await open_store(address, listen=address)
    assert refused.value.why.startswith("ELICIT_STORE_LISTEN is the address of a connection pooler")
