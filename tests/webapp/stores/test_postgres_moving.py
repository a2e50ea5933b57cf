"""A PostgreSQL store that moves: a scan as of one moment, copies put in place, a fence."""

import asyncio

import pytest
from msgspec.structs import replace

from flows.errors import StoreUnavailable
from tests.support.postgres_server import fresh_database
from tests.support.records import HOLD, NOW, record
from webapp.stores import Conflict
from webapp.stores.postgres import open_store


@pytest.fixture
async def stores():
    async with fresh_database() as url:
        store, other = await open_store(url), await open_store(url)
        yield store, other
        await store.aclose()
        await other.aclose()


async def scanned(store):
    return [item async for page in store.scan() for item in page]


async def test_a_scan_shows_every_record_once_as_of_its_first_page(stores):
    store, other = stores
    for owner in "ab":
        for kind in ("elicitation", "account"):
            await store.write(
                *(record(f"{owner}-{n:03}", owner=owner, kind=kind) for n in range(400))
            )
    before = await scanned(store)
    scan = store.scan()
    pages = [await anext(scan)]
    await other.write(*(replace(item, status="later") for item in before[-400:]))
    await other.write(record("new"))
    await other.erase(owner="a", limit=10)
    pages += [page async for page in scan]
    assert [item for page in pages for item in page] == before
    assert len({(item.owner, item.kind, item.id) for item in before}) == len(before) == 1600


async def test_a_scan_that_is_left_gives_its_connection_back(stores):
    store, _ = stores
    await store.write(record())
    for _ in range(10):
        scan = store.scan()
        await anext(scan)
        await scan.aclose()
    await store.write(record("a-2"))


async def test_copies_take_the_place_of_what_stands_there_with_their_own_versions(stores):
    store, other = stores
    (mine,) = await store.write(record(key="k", due_at=NOW))
    copies = (replace(mine, version=7, status="accepted"), record("b-1", owner="b", version=3))
    await other.load(*copies)
    await other.load(*copies)
    assert sorted(await scanned(store), key=lambda item: item.id) == list(copies)
    (later,) = await store.write(copies[0])
    assert later.version == 8


async def test_a_copy_whose_key_another_record_holds_is_a_conflict_and_none_is_loaded(stores):
    store, _ = stores
    (holder,) = await store.write(record(key="k"))
    with pytest.raises(Conflict) as conflict:
        await store.load(record("a-2", version=1), record("a-3", version=1, key="k"))
    assert conflict.value.found == holder
    assert await scanned(store) == [holder]
    moved = (replace(holder, key=None), record("a-3", version=1, key="k"))
    await store.load(*moved)
    assert await scanned(store) == list(moved)


async def test_what_no_store_may_hold_is_not_loaded(stores):
    store, _ = stores
    for bad in (
        [record("a-1", version=1, sealed=bytes(64 * 1024 + 1))],
        [record("zero\0byte", version=1)],
        [record(f"a-{number}", version=1) for number in range(501)],
    ):
        with pytest.raises(ValueError):
            await store.load(*bad)
    assert await scanned(store) == []


async def test_a_fenced_store_is_read_and_loaded_and_written_by_nobody(stores):
    store, other = stores
    (first,) = await store.write(record(key="k", due_at=NOW, erase_at=NOW))
    assert await other.fenced() is None
    await store.fence("it has moved to another address")
    assert await other.fenced() == "it has moved to another address"
    late = await open_store(store.address)
    for opening in (store, other, late):
        for call in (
            lambda opening=opening: opening.write(record("a-2")),
            lambda opening=opening: opening.write(first),
            lambda opening=opening: opening.due(NOW, hold=HOLD),
            lambda opening=opening: opening.erase(owner="a"),
            lambda opening=opening: opening.check(),
        ):
            with pytest.raises(StoreUnavailable) as refused:
                await call()
            assert refused.value.why == "it has moved to another address"
        assert await opening.read("a", "elicitation", "a-1") == first
        assert await opening.find("a", "elicitation", "k") == first
        assert list(await opening.list("elicitation")) == [first]
    copy = record("a-3", version=5)
    await late.load(copy)
    await store.fence("said otherwise")
    assert await scanned(late) == [first, copy]
    await late.fence(None)
    await late.fence(None)
    assert await store.fenced() is None
    await other.check()
    await other.write(first)
    await late.aclose()


async def test_no_write_is_acknowledged_once_the_fence_has_returned(stores):
    store, other = stores
    acknowledged: list[str] = []
    are_many = asyncio.Event()

    async def write_on(task):
        for number in range(10_000):
            try:
                (written,) = await other.write(record(f"{task}-{number}"))
            except StoreUnavailable:
                return
            acknowledged.append(written.id)
            if len(acknowledged) > 100:
                are_many.set()

    async with asyncio.TaskGroup() as group:
        for task in range(10):
            group.create_task(write_on(task))
        await are_many.wait()
        await store.fence("it moves")
        kept = {item.id for item in await scanned(store)}
    assert kept == {item.id for item in await scanned(store)}
    assert kept >= set(acknowledged)
