"""A PostgreSQL primary that is lost and comes back, with a streaming standby that takes over."""

import asyncio
from contextlib import suppress

import pytest

from flows.errors import StoreUnavailable
from tests.support.mcp_server import new_server
from tests.support.postgres_server import USER
from tests.support.records import record
from tests.support.standby import LOSSES, fetchval, replicating
from webapp.app import open_app
from webapp.deadline import HandClock
from webapp.records.high_water import HighWater
from webapp.settings.settings import read_settings
from webapp.stores import Conflict
from webapp.stores.postgres import open_store
from webapp.stores.postgres_server import _of_replication

DEADLINE_SECONDS = 300.0
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def written(store, id: str) -> None:
    """Repeat the write until the store acknowledges it, as a retrying caller does."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                await store.write(record(id))
            except StoreUnavailable:
                await asyncio.sleep(0.01)
            except Conflict:
                return  # an earlier attempt was written, and its answer was lost
            else:
                return


async def of_replication(url: str) -> list[str]:
    store = await open_store(url)
    reported = await store.replication()
    await store.aclose()
    return [f"{says}: {fix}" if fix else says for says, fix in reported]


async def test_replication_report_lists_standbys_synchronous_commit_and_archiving(tmp_path, caplog):
    # finding: XB6
    async with replicating() as pair:
        await pair.has_everything()
        hosts = [f"{cable.host}" for cable in pair.cables]
        reported = await of_replication(pair.url)
        assert "accepts writes, on timeline 1" in reported[0]
        assert hosts[0] in reported[0]
        assert reported[1] == f"{hosts[1]}: it is a standby"
        lost = (
            "1 standby is connected but no commit waits for it: a failover loses the writes of the "
            "last seconds"
        )
        logs = "its WAL is not archived (archive_mode is off)"
        assert reported[2].startswith(f"{lost}: set synchronous_standby_names to two standbys")
        assert reported[3].startswith(f"{logs}: set archive_mode and archive_command")
        # The app logs the same two warnings at its start.
        secret = {"ELICIT_SECRET": "a" * 32, "HOME": f"{tmp_path}"}
        settings = read_settings({"ELICIT_STORE": pair.url, **secret})
        async with open_app(settings, new_server("mcp")):
            pass
        warned = [vars(each) for each in caplog.records if each.message == "store.replication"]
        assert [each["why"] for each in warned] == [lost, logs]
        assert all(each["fix"] for each in warned)
    async with replicating(is_synchronous=True) as pair:
        reported = await of_replication(pair.url)
        assert reported[2].startswith("1 standby is connected and commits wait for ")
        assert "writes are blocked while it is disconnected: connect two standbys" in reported[2]


# finding: XB6
def test_replication_report_says_writes_block_without_synchronous_standby() -> None:
    row = {
        "standbys": 0,
        "synchronous_standby_names": "ANY 1 (one)",
        "synchronous_commit": "on",
        "archive_mode": "on",
    }
    found, fix = _of_replication(row)[0]
    assert "commits wait for ANY 1 (one): every write is blocked" in found
    assert "remove the missing ones from synchronous_standby_names" in str(fix)


# finding: XB1
# finding: XB2
@pytest.mark.parametrize("how", LOSSES)
async def test_writes_move_to_new_primary_and_lost_primary_gets_no_more_writes(how, caplog):
    async with replicating() as pair:
        instances = [await open_store(pair.url) for _ in range(2)]
        await instances[0].write(record("before"))
        await pair.has_everything()
        await pair.lose_primary(how)
        await pair.promote()
        for number, store in enumerate(instances):
            await written(store, f"a-{number}")
        await pair.bring_primary_back(how)
        for store in instances:
            await store._server.look()
        instances.append(await open_store(pair.url))
        before = await pair.written_on(pair.primary)
        for number, store in enumerate(instances):
            await asyncio.gather(*(store.list("elicitation") for _ in range(8)))
            await written(store, f"b-{number}")
        assert await pair.written_on(pair.primary) == before
        for store in instances:
            assert len(await store.list("elicitation")) == 1 + 2 + 3
            await store.aclose()
        refused = [each for each in caplog.records if each.message == "store.older_server"]
        assert {each.host for each in refused} == {pair.cables[0].host}
        assert "on timeline 1" in refused[0].why


# finding: XB2
async def test_old_primary_is_refused_by_store_which_saw_new_timeline():
    async with replicating() as pair:
        store = await open_store(pair.url)
        await pair.has_everything()
        await pair.promote()
        await store._server.look()
        await store.write(record())
        await pair.cables[1].cut()
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as refused:
                await store.write(record("a-2"))
            why = refused.value.why
            assert "on timeline 1, but the store has since been on timeline 2" in why
            assert pair.cables[1].host in why
        assert await pair.written_on(pair.primary) == (0, 0)
        await store.aclose()


# finding: XB2
async def test_hanging_statement_switches_to_new_primary_before_timeout():
    async with replicating() as pair:
        store = await open_store(pair.url)
        await store.write(record())
        await pair.has_everything()
        await pair.promote()
        pair.primary.hang()
        with pytest.raises(StoreUnavailable) as refused:
            await store.read("a", "elicitation", "a-1")
        assert "did not answer" not in refused.value.why
        assert await store.read("a", "elicitation", "a-1") is not None
        await store.aclose()


# finding: XB2
async def test_connections_to_old_server_are_closed_after_address_changes():
    async with replicating() as pair:
        cable = pair.cables[0]
        url = f"postgresql://{USER}@{cable.host}/elicit"
        store = await open_store(url)
        await asyncio.gather(*(store.list("elicitation") for _ in range(8)))
        await pair.has_everything()
        await pair.promote()
        cable.leads_to = pair.standby.socket
        await store._server.look()
        await asyncio.gather(*(store.list("elicitation") for _ in range(8)))
        await store.write(record())
        while await pair.connections_to(pair.primary):
            pass
        assert await pair.written_on(pair.primary) == (0, 0)
        cable.leads_to = pair.primary.socket
        await cable.cut_connections()
        with pytest.raises(StoreUnavailable, match="on timeline 1"):
            await store.write(record("a-2"))
        await store.aclose()


# finding: XB4
async def test_writer_and_reader_detect_standby_without_recent_writes():
    clock = HandClock()
    async with replicating() as pair:
        stores = [await open_store(pair.url) for _ in range(2)]
        writer, reader = (HighWater(each, clock=clock) for each in stores)
        await stores[0].write(record("kept"))
        writer.remember(record("kept"), are_new=True)
        await writer.make_mark()
        await reader.look()
        await pair.has_everything()
        survived = clock()
        clock.tick(seconds=2)
        pair.stream.freeze()
        await stores[0].write(record("lost"))
        writer.remember(record("lost"), are_new=True)
        found = await stores[1].read("a", "elicitation", "lost")
        assert found is not None
        reader.remember(found)
        await pair.lose_primary("killed")
        await pair.promote()
        for store, high_water in zip(stores, (writer, reader), strict=True):
            await written(store, f"after-{id(store)}")
            assert not await high_water.look(), (
                "the last mark still exists, so no step back is found yet"
            )
            high_water.reconnected()
            assert await high_water.look()
        back = await writer.step_back()
        assert back is not None
        assert back.survived == survived
        for store in stores:
            await store.aclose()


# finding: XB3
@pytest.mark.parametrize("how", LOSSES)
async def test_synchronous_standby_has_all_acknowledged_writes_of_two_instances(how):
    async with replicating(is_synchronous=True) as pair:
        stores = [await open_store(pair.url) for _ in range(2)]
        acknowledged, are_many = set[str](), asyncio.Event()

        async def write(store, number: int) -> None:
            with suppress(StoreUnavailable):
                await store.write(record(f"a-{number:03}"))
                acknowledged.add(f"a-{number:03}")
                if len(acknowledged) == 50:
                    are_many.set()

        writing = [asyncio.create_task(write(stores[number % 2], number)) for number in range(200)]
        await are_many.wait()
        await pair.lose_primary(how)
        await pair.promote()
        await asyncio.gather(*writing)
        for store in stores:
            await written(store, f"b-{id(store)}")
            found = {each.id for each in await store.list("elicitation", limit=1000)}
            assert acknowledged <= found
            await store.aclose()


# finding: XB7
async def test_writes_fail_fast_with_reason_while_synchronous_standby_is_away():
    async with replicating(is_synchronous=True) as pair:
        store = await open_store(pair.url)
        await store.write(record())
        pair.stream.freeze()
        first = asyncio.create_task(store.write(record("a-1", owner="b")))
        checking = asyncio.create_task(store.check())
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await fetchval(pair.primary, _WAITING) < 2:
                pass  # until both statements wait for the standby
        checking.cancel()
        why = ""
        while "synchronous standby" not in why:
            with pytest.raises(StoreUnavailable) as refused:
                await store.write(record("a-2", owner="c"))
            why = refused.value.why
        assert "canceling wait for synchronous replication" not in pair.primary.log
        stuck = await fetchval(pair.primary, _WAITING)
        for _ in range(20):
            with pytest.raises(StoreUnavailable, match="synchronous standby"):
                await store.check()
        assert await fetchval(pair.primary, _WAITING) == stuck, (
            "no further backend waits for the standby"
        )
        await pair.stream.mend()
        with suppress(StoreUnavailable):
            await first
        await written(store, "a-3")
        await store.aclose()
