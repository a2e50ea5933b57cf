"""A store that lost its latest writes: a process detects it from memory or from a copied mark."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from tests.support.records import go_back, record, scanned
from tests.support.service_env import plain_settings
from tests.support.shared_stores import STORES
from webapp.deadline import NOON, HandClock
from webapp.records.high_water import MARK, STEP_BACK, HighWater, StepBack, mark_of
from webapp.records.owners import SERVICE
from webapp.service import ServiceOptions, open_service
from webapp.settings.key_file import KeyFile
from webapp.settings.quotas import PolicySettings
from webapp.stores import open_store
from webapp.stores.sqlite import MemoryStore


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture(params=["memory", *STORES])
async def pair(request, tmp_path):
    """Open one store twice, as two processes do."""
    if request.param == "memory":
        store = MemoryStore()
        yield store, store.sibling()
        return
    async with STORES[request.param](tmp_path) as url:
        stores = await open_store(url), await open_store(url)
        yield stores
        for each in stores:
            await each.aclose()


@pytest.fixture
def store(pair):
    return pair[0]


async def write(high_water, store, wanted):
    (written,) = await store.write(wanted)
    high_water.remember(wanted, are_new=True)
    return written


async def with_marks(high_water, clock, *, number):
    """Make `number` marks, each after a write."""
    for _ in range(number):
        clock.tick(seconds=6)
        high_water.remember(record("a-0"), are_new=True)
        await high_water.make_mark()


async def noted(high_water: HighWater) -> StepBack:
    back = await high_water.step_back()
    assert back is not None
    return back


def logged(caplog, event):
    return [each for each in caplog.records if each.message == event]


# finding: XB4
async def test_missing_mark_reveals_step_back_of_store(store, clock, caplog):
    high_water = HighWater(store, clock=clock)
    await write(high_water, store, record())
    await high_water.make_mark()
    survived = clock()
    copies = await scanned(store)
    await with_marks(high_water, clock, number=2)
    assert not await high_water.look()
    await go_back(store, copies)
    assert await high_water.look()
    (line,) = logged(caplog, "store.stepped_back")
    assert line.levelname == "ERROR"
    assert "mark 3, made at 2026-03-01 12:00:12 UTC, is missing" in line.why
    back = await noted(high_water)
    assert (back.noticed_at, back.survived, back.is_handled) == (clock(), survived, False)
    assert not await high_water.look(), "the step back is reported only once"


# finding: XB4
async def test_later_marks_of_other_process_do_not_hide_step_back(pair, clock, caplog):
    high_water, other = (HighWater(each, clock=clock) for each in pair)
    await with_marks(high_water, clock, number=1)
    copies = await scanned(pair[0])
    await with_marks(high_water, clock, number=2)
    await go_back(pair[0], copies)
    await with_marks(other, clock, number=5)
    assert await high_water.look()
    assert (await noted(high_water)).survived == NOON + timedelta(seconds=6)


# finding: XB4
@pytest.mark.parametrize("lost", ["missing", "older"])
async def test_record_lost_after_last_mark_is_noticed_on_reconnection(store, clock, lost):
    high_water = HighWater(store, clock=clock)
    first = await write(high_water, store, record())
    await high_water.make_mark()
    copies = await scanned(store)
    clock.tick(seconds=3)
    if lost == "older":
        await write(high_water, store, first)
    else:
        await write(high_water, store, record("b-1", owner="b"))
    clock.tick(seconds=1)
    await go_back(store, copies, newer=["b"])
    assert not await high_water.look(), "the last mark still exists, so no step back is found yet"
    high_water.reconnected()
    assert await high_water.look()
    back = await noted(high_water)
    assert back.survived == NOON
    assert "1 of the most recently used records" in back.why


# finding: XB4
async def test_record_read_from_other_process_is_compared_after_reconnection(store, clock):
    high_water = HighWater(store, clock=clock)
    await high_water.look()
    copies = await scanned(store)
    (written,) = await store.write(record())
    high_water.remember(written)
    await go_back(store, copies, newer=["a"])
    high_water.reconnected()
    assert await high_water.look()


async def test_expired_or_changed_record_is_no_step_back(store, clock):
    high_water = HighWater(store, clock=clock)
    await write(high_water, store, record(erase_at=clock() + timedelta(seconds=5)))
    changed = await write(high_water, store, record("a-2"))
    await store.write(changed)
    await high_water.make_mark()
    clock.tick(seconds=10)
    await store.erase(before=clock())
    high_water.reconnected()
    assert not await high_water.look()
    assert await high_water.step_back() is None


async def test_marks_are_made_only_after_writes_and_not_by_each_process(pair, clock):
    high_water, other = (HighWater(each, clock=clock) for each in pair)
    for _ in range(3):
        clock.tick(seconds=6)
        await high_water.make_mark()
    assert await pair[0].read(SERVICE, MARK, SERVICE) is None
    high_water.remember(record(), are_new=True)
    other.remember(record(), are_new=True)
    await high_water.make_mark()
    await other.make_mark()
    assert (await pair[0].read(SERVICE, MARK, SERVICE)).version == 1
    clock.tick(seconds=20)
    await high_water.make_mark()
    clock.tick(seconds=20)
    await high_water.make_mark()
    assert (await pair[0].read(SERVICE, MARK, SERVICE)).version == 2


# finding: XB4
async def test_step_back_noticed_by_two_processes_is_recorded_once(pair, clock, caplog):
    both = [HighWater(each, clock=clock) for each in pair]
    await with_marks(both[0], clock, number=1)
    copies = await scanned(pair[0])
    await with_marks(both[0], clock, number=1)
    await both[1].look()
    await go_back(pair[0], copies)
    clock.tick(seconds=1)
    assert await asyncio.gather(*(each.look() for each in both)) == [True, True]
    assert len(logged(caplog, "store.stepped_back")) == 1
    assert len(logged(caplog, "store.stepped_back_before")) == 1
    assert (await pair[0].read(SERVICE, STEP_BACK, SERVICE)).version == 1


# finding: XB4
async def test_new_process_detects_older_store_from_copy_of_mark(store, clock, tmp_path, caplog):
    folder = tmp_path / "marks"
    former = HighWater(store, clock=clock, folder=folder)
    await with_marks(former, clock, number=1)
    copies = await scanned(store)
    await with_marks(former, clock, number=1)
    assert not await HighWater(store, clock=clock, folder=folder).look()
    await go_back(store, copies)
    newer = HighWater(store, clock=clock, folder=folder)
    assert "mark 2" in (await newer.why_older() or "")
    assert await newer.look()
    assert logged(caplog, "store.stepped_back")
    assert await newer.why_older() is None
    await newer.make_mark()
    assert not await HighWater(store, clock=clock, folder=folder).look()
    (copy,) = folder.iterdir()
    assert oct(folder.stat().st_mode)[-3:] == "700"
    copy.write_text("no mark")
    assert not await HighWater(store, clock=clock, folder=folder).look()


@pytest.mark.parametrize(
    ("store_type", "store_marks", "copies_in"),
    [
        ("sqlite", None, "home/marks"),
        ("sqlite", "elsewhere", "elsewhere"),
        ("memory", None, None),
        ("memory", "elsewhere", "elsewhere"),
    ],
)
async def test_copy_of_mark_is_in_the_folder_of_the_setting_or_next_to_the_key_file(
    tmp_path, clock, store_type, store_marks, copies_in
):
    settings = plain_settings(
        key_file=KeyFile(tmp_path / "home" / "key"),
        policies=PolicySettings(store_marks=tmp_path / store_marks if store_marks else None),
    )
    address = "memory:" if store_type == "memory" else f"sqlite:///{tmp_path}/store.db"
    async with (
        aclosing(await open_store(address)) as store,
        open_service(settings, ServiceOptions(clock=clock), store=store) as service,
    ):
        await with_marks(service.elicitations.high_water, clock, number=1)
    copies = [path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.mark")]
    assert copies == ([] if copies_in is None else [copies_in])


async def test_failed_copy_of_mark_is_logged_and_stops_nothing(clock, tmp_path, caplog):
    (tmp_path / "file").touch()
    high_water = HighWater(MemoryStore(), clock=clock, folder=tmp_path / "file" / "marks")
    await with_marks(high_water, clock, number=1)
    assert logged(caplog, "store.mark_not_copied")


async def test_second_step_back_before_first_is_handled_retains_earlier_time(store, clock):
    high_water = HighWater(store, clock=clock)
    await with_marks(high_water, clock, number=1)
    copies = await scanned(store)
    for _ in range(2):
        await with_marks(high_water, clock, number=1)
        await go_back(store, copies)
        assert await high_water.look()
    back = await noted(high_water)
    assert back.survived == NOON + timedelta(seconds=6)


async def test_mark_of_another_process_is_received(pair, clock):
    high_water, other = (HighWater(each, clock=clock) for each in pair)
    await with_marks(high_water, clock, number=1)
    await other.look()
    copies = await scanned(pair[0])
    await with_marks(high_water, clock, number=1)
    other.receive(await pair[1].read(SERVICE, MARK, SERVICE))
    await go_back(pair[1], copies)
    assert await other.look()
    received = await pair[1].read(SERVICE, MARK, SERVICE)
    other.receive(replace(received, sealed=copies[0].sealed))
    found = mark_of(received)
    assert found is not None
    assert found.number == received.version


@pytest.mark.parametrize("damaged", [b"", b"no mark", msgpack.encode({"number": 1})])
async def test_damaged_mark_is_reported_and_stops_nothing(store, clock, damaged):
    high_water = HighWater(store, clock=clock)
    await with_marks(high_water, clock, number=1)
    for kind in (MARK, STEP_BACK):
        found = await store.read(SERVICE, kind, SERVICE) or record(
            SERVICE, owner=SERVICE, kind=kind
        )
        await store.write(replace(found, sealed=damaged))
    assert await high_water.look()
    assert "is missing" in (await noted(high_water)).why
    await with_marks(high_water, clock, number=1)
    assert not await high_water.look()
