"""The contract that every store fulfils. A new store is a subclass with one fixture."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from flows.errors import StoreUnavailable
from tests.support.pgbouncer import pooled
from tests.support.postgres_server import fresh_database, shared_server
from tests.support.records import HOLD, NOW, record, scanned
from tests.support.valkey_server import fresh_cluster, fresh_valkey
from webapp.stores import Conflict, Record, Store, open_store
from webapp.stores.observed import observed
from webapp.stores.sqlite import MemoryStore, SqliteStore
from webapp.stores.store import OtherFence
from webapp.telemetry.families import Observer

WHY = "it's moved to postgresql://elsewhere/elicit"


def ids(records: Iterable[Record]) -> list[str]:
    return sorted(each.id for each in records)


class StoreContract:
    """The requirements of every store. `pair` is two connections to the same store."""

    @pytest.fixture
    def store(self, pair: tuple[Store, Store]) -> Store:
        return pair[0]

    @pytest.fixture
    def other(self, pair: tuple[Store, Store]) -> Store:
        return pair[1]

    async def test_written_record_is_read_with_next_version(self, store, other):
        new = record(
            key="k", due_at=NOW, erase_at=NOW + timedelta(days=30), sealed=bytes(range(256))
        )
        (written,) = await store.write(new)
        assert written == replace(new, version=1)
        for opening in (store, other):
            assert await opening.read("a", "elicitation", "a-1") == written
            assert await opening.find("a", "elicitation", "k") == written

    async def test_times_before_1970_and_to_the_microsecond_survive(self, store):
        early = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        await store.write(record(due_at=early, erase_at=NOW))
        found = await store.read("a", "elicitation", "a-1")
        assert (found.due_at, found.erase_at) == (early, NOW)

    async def test_missing_record_is_none(self, store):
        assert await store.read("a", "elicitation", "a-1") is None
        assert await store.find("a", "elicitation", "k") is None
        assert list(await store.list("elicitation")) == []

    async def test_write_without_records_changes_nothing(self, store):
        (written,) = await store.write(record())
        assert await store.write() == ()
        assert list(await store.list("elicitation")) == [written]

    async def test_record_is_not_found_under_other_owner_or_kind(self, store):
        await store.write(record(key="k"))
        assert await store.read("b", "elicitation", "a-1") is None
        assert await store.read("a", "account", "a-1") is None
        assert await store.find("b", "elicitation", "k") is None
        assert await store.find("a", "account", "k") is None

    async def test_each_owner_and_kind_has_its_own_ids_and_keys(self, store):
        await store.write(record(key="k"))
        await store.write(record(key="k", kind="account"))
        await store.write(record(key="k", owner="b"))
        assert (await store.find("b", "elicitation", "k")).owner == "b"
        assert (await store.find("a", "account", "k")).kind == "account"

    async def test_write_with_taken_id_raises_conflict_with_existing_record(self, store, other):
        (first,) = await store.write(record())
        with pytest.raises(Conflict) as conflict:
            await other.write(record(status="mine"))
        assert conflict.value.found == first

    async def test_write_with_taken_key_raises_conflict_with_key_holder(self, store, other):
        (holder,) = await store.write(record(key="k"))
        with pytest.raises(Conflict) as conflict:
            await other.write(record("a-2", key="k"))
        assert conflict.value.found == holder
        (second,) = await store.write(record("a-2"))
        with pytest.raises(Conflict) as conflict:
            await store.write(replace(second, key="k"))
        assert conflict.value.found == holder
        assert await store.read("a", "elicitation", "a-2") == second

    async def test_write_of_old_version_raises_conflict_with_current_record(self, store, other):
        (first,) = await store.write(record())
        (second,) = await other.write(replace(first, status="opened"))
        with pytest.raises(Conflict) as conflict:
            await store.write(replace(first, status="declined"))
        assert conflict.value.found == second
        assert await store.read("a", "elicitation", "a-1") == second

    async def test_update_of_erased_record_raises_conflict_without_record(self, store, other):
        (first,) = await store.write(record())
        assert await other.erase(owner="a") == 1
        with pytest.raises(Conflict) as conflict:
            await store.write(first)
        assert conflict.value.found is None

    async def test_released_key_can_be_reused_and_previous_record_remains(self, store):
        (first,) = await store.write(record(key="k", due_at=NOW))
        (first,) = await store.write(replace(first, key=None, due_at=None, status="accepted"))
        (second,) = await store.write(record("a-2", key="k"))
        assert await store.find("a", "elicitation", "k") == second
        assert await store.read("a", "elicitation", "a-1") == first

    async def test_columns_can_be_updated_separately_and_together(self, store):
        (now,) = await store.write(record())
        for change in (
            {"status": "opened"},
            {"key": "k"},
            {"due_at": NOW},
            {"erase_at": NOW},
            {"sealed": b""},
            {"key": None, "due_at": None, "erase_at": None, "status": "accepted"},
        ):
            expected = replace(now, **change, version=now.version + 1)
            (now,) = await store.write(replace(now, **change))
            assert now == expected
            assert await store.read("a", "elicitation", "a-1") == expected

    async def test_several_records_are_written_together(self, store, other):
        written = await store.write(record(), record("a-2", kind="audit"), record("a-3"))
        assert [item.version for item in written] == [1, 1, 1]
        for item in written:
            assert await other.read(item.owner, item.kind, item.id) == item

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_conflict_on_a_single_record_stores_no_record_of_call(self, store, place):
        (claimed,) = await store.write(record("taken", key="k"))
        (stored,) = await store.write(record("kept", status="before"))
        call = [record("new"), replace(stored, status="after")]
        call.insert(place, record("a-9", key="k"))
        with pytest.raises(Conflict) as conflict:
            await store.write(*call)
        assert conflict.value.found == claimed
        assert await store.read("a", "elicitation", "new") is None
        assert await store.read("a", "elicitation", "kept") == stored

    @pytest.mark.parametrize("is_taker_first", [True, False])
    async def test_a_key_moves_between_records_in_one_write(self, store, is_taker_first):
        (giver,) = await store.write(record("giver", key="k"))
        call = [replace(giver, key=None, status="superseded"), record("taker", key="k")]
        await store.write(*(reversed(call) if is_taker_first else call))
        assert (await store.find("a", "elicitation", "k")).id == "taker"
        assert (await store.read("a", "elicitation", "giver")).key is None

    async def test_two_records_swap_their_keys_in_one_write(self, store):
        one, two = await store.write(record("one", key="k1"), record("two", key="k2"))
        await store.write(replace(one, key="k2"), replace(two, key="k1"))
        assert (await store.find("a", "elicitation", "k1")).id == "two"
        assert (await store.find("a", "elicitation", "k2")).id == "one"

    async def test_failed_key_transfer_leaves_key_with_its_record(self, store):
        (giver,) = await store.write(record("giver", key="k"))
        with pytest.raises(Conflict):
            await store.write(
                record("taker", key="k"), replace(giver, key=None), record("third", version=4)
            )
        assert await store.find("a", "elicitation", "k") == giver
        assert await store.read("a", "elicitation", "taker") is None

    async def test_invalid_record_is_refused_and_no_record_of_call_is_written(self, store):
        good = record("good")
        for bad in (
            [good, record("b-1", owner="b")],
            [good, good],
            [good, record("a-2", key="k"), record("a-3", key="k")],
            [good, record("a-2", sealed=bytes(64 * 1024 + 1))],
            [good, record("a-2", due_at=datetime(2026, 1, 1))],  # noqa: DTZ001 - that is the point
            [good, record("a-2", erase_at=datetime(2026, 1, 1))],  # noqa: DTZ001 - the same
            [good, record("a-2", version=-1)],
            [good, record("a-2", version=2**63 - 1)],
            [good, *(record(f"a-{number}") for number in range(2, 502))],
        ):
            with pytest.raises(ValueError):
                await store.write(*bad)
        assert list(await store.list("elicitation")) == []
        await store.write(record(sealed=bytes(64 * 1024)))

    @pytest.mark.parametrize("about", [{}, {"key": "k"}, {"due_at": NOW}], ids=list)
    async def test_concurrent_writes_of_same_version_have_a_single_winner(
        self, store, other, about
    ):
        (first,) = await store.write(record(**about))
        results = await asyncio.gather(
            *(
                (store, other)[number % 2].write(replace(first, status=f"mine {number}"))
                for number in range(20)
            ),
            return_exceptions=True,
        )
        winners = [result for result in results if not isinstance(result, Exception)]
        assert len(winners) == 1
        for loser in results:
            if isinstance(loser, Exception):
                assert isinstance(loser, Conflict)
                assert (loser.found,) == winners[0]

    async def test_conflict_does_not_undo_concurrent_writes(self, store):
        await store.write(record("taken"))
        names = [f"a-{number}" for number in range(50)]
        results = await asyncio.gather(
            *(store.write(record("taken" if name == "a-25" else name)) for name in names),
            return_exceptions=True,
        )
        assert [
            name
            for name, result in zip(names, results, strict=True)
            if isinstance(result, Conflict)
        ] == ["a-25"]
        assert len(await store.list("elicitation")) == 50

    async def test_cancelled_write_is_atomic_and_does_not_break_other_writes(self, store):
        async def write_two(number):
            return await store.write(record(f"{number}-1"), record(f"{number}-2", kind="audit"))

        tasks = [asyncio.create_task(write_two(number)) for number in range(40)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await store.write(record("after"))
        for number, result in enumerate(results):
            halves = (
                await store.read("a", "elicitation", f"{number}-1"),
                await store.read("a", "audit", f"{number}-2"),
            )
            if isinstance(result, BaseException):
                assert isinstance(result, asyncio.CancelledError)
                assert halves.count(None) in (0, 2)
            else:
                assert halves == result

    async def test_list_is_ordered_by_id_and_continues_after_given_id(self, store):
        for number in (3, 1, 4, 2):
            await store.write(record(f"a-{number}", status="odd" if number % 2 else "even"))
        await store.write(record("b-1", owner="b", status="odd"))
        await store.write(record("a-0", kind="account"))

        async def ids(**conditions):
            return [item.id for item in await store.list("elicitation", **conditions)]

        assert await ids() == ["a-1", "a-2", "a-3", "a-4", "b-1"]
        assert await ids(limit=2) == ["a-1", "a-2"]
        assert await ids(after="a-2", limit=2) == ["a-3", "a-4"]
        assert await ids(owner="a", status="odd") == ["a-1", "a-3"]
        assert await ids(owner="b") == ["b-1"]
        assert await ids(owner="a", after="a-3") == ["a-4"]
        assert await ids(owner="b", after="a-3") == ["b-1"]
        assert await ids(owner="a", after="b-0") == []
        assert await ids(status="odd", after="a-1") == ["a-3", "b-1"]
        with pytest.raises(ValueError):
            await ids(limit=0)

    async def test_due_returns_oldest_records_first_and_no_future_record(self, store):
        for minutes in (3, 1, 2, -1):
            await store.write(record(f"a-{minutes}", due_at=NOW - timedelta(minutes=minutes)))
        await store.write(record("never"))
        first = await store.due(NOW, hold=HOLD, limit=2)
        rest = await store.due(NOW, hold=HOLD)
        assert [item.id for item in (*first, *rest)] == ["a-3", "a-2", "a-1"]
        with pytest.raises(ValueError):
            await store.due(NOW, hold=HOLD, limit=0)

    async def test_claim_made_before_clock_was_set_back_is_ignored(self, store, other):
        # finding: H2
        await store.write(record(due_at=NOW - timedelta(hours=3)))
        assert len(await store.due(NOW, hold=HOLD)) == 1
        assert list(await other.due(NOW - HOLD, hold=HOLD)) == [], (
            "a small difference between clocks does not free a claim"
        )
        assert len(await other.due(NOW - timedelta(hours=2), hold=HOLD)) == 1

    async def test_due_record_is_claimed_by_a_single_caller_until_claim_expires(self, store, other):
        await store.write(record(due_at=NOW))
        assert len(await store.due(NOW, hold=HOLD)) == 1
        assert list(await other.due(NOW, hold=HOLD)) == []
        assert list(await other.due(NOW + HOLD - timedelta(microseconds=1), hold=HOLD)) == []
        assert len(await other.due(NOW + HOLD, hold=HOLD)) == 1

    async def test_claim_does_not_conflict_with_write_and_is_cleared_by_write(self, store, other):
        (first,) = await store.write(record(due_at=NOW))
        assert await store.due(NOW, hold=HOLD) in ([first], (first,))
        (second,) = await other.write(replace(first, status="opened"))
        assert await other.due(NOW, hold=HOLD) in ([second], (second,))
        await store.write(replace(second, due_at=None))
        assert list(await store.due(NOW + HOLD, hold=HOLD)) == []

    async def test_erase_removes_records_which_meet_all_conditions(self, store):
        old, new = NOW - timedelta(days=1), NOW + timedelta(days=1)
        await store.write(record("a-old", erase_at=old), record("a-now", erase_at=NOW))
        await store.write(record("a-new", erase_at=new), record("a-ever", key="k"))
        await store.write(record("b-old", owner="b", erase_at=old))
        assert await store.erase(owner="a", before=NOW) == 2
        assert [item.id for item in await store.list("elicitation")] == ["a-ever", "a-new", "b-old"]
        assert await store.erase(before=NOW) == 1
        assert await store.erase(owner="a") == 2
        assert await store.erase(owner="a") == 0
        await store.write(record("a-again", key="k"))

    async def test_erase_stops_at_limit(self, store):
        await store.write(*(record(f"a-{number}", erase_at=NOW) for number in range(5)))
        assert [await store.erase(before=NOW, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_erase_without_conditions_is_refused(self, store):
        with pytest.raises(ValueError):
            await store.erase()

    async def test_watch_shows_writes_of_other_connection_and_not_own_writes(self, store, other):
        watch = store.watch()
        await store.write(record("ours"))
        (other_record,) = await other.write(record("theirs"))
        async with asyncio.timeout(300):
            assert await anext(watch) == other_record

    async def test_several_watches_see_the_latest_version(self, store, other):
        watches = [store.watch(), store.watch()]
        (first,) = await other.write(record())
        (second,) = await other.write(replace(first, status="accepted"))
        async with asyncio.timeout(300):
            for watch in watches:
                while await anext(watch) != second:
                    pass

    async def test_new_watch_after_ended_watch_sees_later_writes(self, store, other):
        watch = store.watch()
        await other.write(record("first"))
        async with asyncio.timeout(300):
            await anext(watch)
            del watch
            await other.write(record("second"))
            again = store.watch()
            await other.write(record("third"))
            while (await anext(again)).id != "third":
                pass

    async def test_two_connections_see_each_others_writes_in_long_exchange(self, store, other):
        (now,) = await store.write(record("ball", status="0"))

        async def play(opening, watch, parity):
            latest = 0
            async for seen in watch:
                hit = seen or await opening.read("a", "elicitation", "ball")
                # After a gap, the watch can also yield the version that was just read.
                if hit.version <= latest or int(hit.status) % 2 != parity:
                    continue
                (hit,) = await opening.write(replace(hit, status=str(int(hit.status) + 1)))
                latest = hit.version
                if int(hit.status) >= 19:
                    return

        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            group.create_task(play(store, store.watch(), 0))
            group.create_task(play(other, other.watch(), 1))
            await other.write(replace(now, status="0"))
        assert int((await store.read("a", "elicitation", "ball")).status) >= 19

    async def test_close_completes_pending_writes(self, store, other):
        writes = [asyncio.create_task(store.write(record(f"a-{n:02}"))) for n in range(30)]
        await asyncio.sleep(0)
        await store.aclose()
        assert len(await asyncio.gather(*writes)) == 30
        assert len(await other.list("elicitation")) == 30

    async def test_erase_does_not_affect_concurrent_writes_of_other_owner(self, store):
        await store.write(record("a-old"))
        writes = [
            asyncio.create_task(store.write(record(f"b-{n:02}", owner="b"))) for n in range(30)
        ]
        await asyncio.sleep(0)
        assert await store.erase(owner="a") == 1
        await asyncio.gather(*writes)
        assert len(await store.list("elicitation", owner="b")) == 30

    async def test_calls_on_closed_store_raise_and_its_watches_end(self, store, other):
        watch = store.watch()
        waiting = asyncio.create_task(anext(watch, "ended"))
        await asyncio.sleep(0)
        await store.aclose()
        await store.aclose()
        async with asyncio.timeout(300):
            assert await waiting == "ended"
        for call in (
            lambda: store.load(record(version=1), behind=WHY),
            lambda: store.fence(WHY),
            store.fenced,
            lambda: scanned(store),
            lambda: store.write(record()),
            lambda: store.read("a", "elicitation", "a-1"),
            lambda: store.find("a", "elicitation", "k"),
            lambda: store.list("elicitation"),
            lambda: store.due(NOW, hold=HOLD),
            lambda: store.erase(owner="a"),
        ):
            with pytest.raises(StoreUnavailable, match="closed"):
                await call()
        with pytest.raises(StoreUnavailable, match="closed"):
            store.watch()
        await other.write(record())

    async def test_scan_returns_every_record_of_every_owner_once(self, store, other):
        assert await scanned(store) == []
        written = []
        for owner in "abc":
            some = [record(f"{owner}-{n}", owner=owner, due_at=NOW, key=f"{n}") for n in range(400)]
            written += await store.write(*some)
        written += await other.write(record("a-0", kind="account", erase_at=NOW))
        found = await scanned(store)
        assert sorted(found, key=repr) == sorted(written, key=repr)

    async def test_scan_returns_consistent_snapshot_of_owner_during_writes(self, store, other):
        rows = await store.write(*(record(f"a-{number:03}") for number in range(500)))
        rows += await store.write(*(record(f"a-{number:03}") for number in range(500, 999)))
        scan = store.scan()
        found = list(await anext(scan))
        await other.write(*(replace(row, status="later") for row in rows[500:]))
        await other.write(record("a-new"))
        found += [each async for page in scan for each in page]
        assert len({each.status for each in found}) == 1
        assert ids(found) == ids(rows)

    async def test_loaded_copies_are_stored_unchanged(self, store, other):
        copies = [
            record("a-1", key="k", due_at=NOW, erase_at=NOW, version=7, sealed=b"one"),
            record("b-1", owner="b", key="k", version=1),
        ]
        await store.fence(WHY)
        await store.load(*copies, behind=WHY)
        await store.load(behind=WHY)
        await store.fence(None)
        assert sorted(await scanned(other), key=repr) == sorted(copies, key=repr)
        (next_one,) = await other.write(replace(copies[0], status="opened"))
        assert next_one.version == 8

    async def test_loaded_copy_replaces_existing_record_and_clears_its_claim(self, store):
        await store.write(record("one", key="k1", due_at=NOW), record("two", key="k2"))
        assert len(await store.due(NOW, hold=HOLD)) == 1
        copies = [
            record("one", key="k2", due_at=NOW, version=5),
            record("two", key="k1", version=1),
        ]
        await store.fence(WHY)
        await store.load(*copies, behind=WHY)
        await store.fence(None)
        assert await store.find("a", "elicitation", "k1") == copies[1]
        assert await store.find("a", "elicitation", "k2") == copies[0]
        assert ids(await store.due(NOW, hold=HOLD)) == ["one"]

    async def test_copy_with_taken_key_raises_conflict_and_nothing_is_loaded(self, store):
        (holder,) = await store.write(record("holder", key="k"))
        await store.fence(WHY)
        copies = [record("new", version=1), record("taker", key="k", version=3)]
        with pytest.raises(Conflict) as conflict:
            await store.load(*copies, behind=WHY)
        assert conflict.value.found == holder
        assert await scanned(store) == [holder]

    async def test_load_of_invalid_copies_is_refused(self, store):
        good = record("good", version=1)
        for bad in (
            [good, record("a-2")],
            [good, good],
            [good, record("a-2", version=1, sealed=bytes(64 * 1024 + 1))],
            [good, record("a-2", version=1, due_at=datetime(2026, 1, 1))],  # noqa: DTZ001 - the point
            [good, *(record(f"a-{number}", version=1) for number in range(2, 502))],
        ):
            with pytest.raises(ValueError):
                await store.load(*bad, behind=WHY)
        assert await scanned(store) == []

    async def test_fenced_store_refuses_writes_and_allows_reads(self, store, other):
        (first,) = await store.write(record(key="k", due_at=NOW, erase_at=NOW))
        assert await store.fenced() is None
        await store.fence(WHY)
        for opening in (store, other):
            assert await opening.fenced() == WHY
            for call in (
                lambda opening=opening: opening.write(record("a-2")),
                lambda opening=opening: opening.write(replace(first, status="opened")),
                lambda opening=opening: opening.write(
                    replace(first, key=None), record("a-2", key="k")
                ),
                lambda opening=opening: opening.due(NOW, hold=HOLD),
                lambda opening=opening: opening.due(NOW - 2 * HOLD, hold=HOLD),
                lambda opening=opening: opening.erase(owner="a"),
                lambda opening=opening: opening.erase(before=NOW),
                lambda opening=opening: opening.check(),
            ):
                with pytest.raises(StoreUnavailable) as refusal:
                    await call()
                assert refusal.value.why == WHY
            assert await opening.read("a", "elicitation", "a-1") == first
            assert await opening.find("a", "elicitation", "k") == first
            assert ids(await opening.list("elicitation")) == ["a-1"]
            assert await scanned(opening) == [first]

    async def test_writes_are_accepted_after_fence_is_removed(self, store, other):
        (first,) = await store.write(record(due_at=NOW))
        await store.fence(WHY)
        await other.fence(None)
        await other.fence(None)
        assert await store.fenced() is None
        await store.check()
        assert await store.due(NOW, hold=HOLD) in ([first], (first,))
        await store.write(replace(first, status="opened"))
        assert await other.erase(owner="a") == 1

    async def test_second_fence_replaces_first_fence(self, store, other):
        await store.fence("first")
        await other.fence("second")
        with pytest.raises(StoreUnavailable) as refusal:
            await store.write(record())
        assert refusal.value.why == "second"

    async def test_copies_are_loaded_behind_fence_and_fence_remains(self, store, other):
        await store.fence(WHY)
        await store.load(record(version=3), behind=WHY)
        await store.load(record(version=4, key="k"), behind=WHY)
        with pytest.raises(Conflict):
            await store.load(record("a-2", version=1, key="k"), behind=WHY)
        assert await scanned(other) == [record(version=4, key="k")]
        for opening in (store, other):
            with pytest.raises(StoreUnavailable):
                await opening.write(record("a-2"))

    async def test_load_is_refused_if_its_fence_was_removed_or_replaced(self, store, other):
        (row,) = await store.write(record(status="spent"))
        for standing in (None, "another move"):
            await other.fence(standing)
            with pytest.raises(OtherFence) as refusal:
                await store.load(record(status="open", version=1), behind=WHY)
            assert refusal.value.found == standing
        assert await scanned(other) == [row]

    async def test_fence_with_instead_of_replaces_named_fences_and_refuses_others(
        self, store, other
    ):
        await store.fence("first", instead_of=(None,))
        for instead_of in [(None,), ("second", None)]:
            for why in ("third", None):
                with pytest.raises(OtherFence) as refusal:
                    await other.fence(why, instead_of=instead_of)
                assert refusal.value.found == "first"
        await other.fence("second", instead_of=(None, "first"))
        assert await store.fenced() == "second"
        await store.fence(None, instead_of=("second",))
        await store.fence(None, instead_of=("second", None))
        await other.write(record())

    async def test_concurrent_fences_with_instead_of_have_a_single_winner(self, store, other):
        fences = (
            store.fence("first", instead_of=(None,)),
            other.fence("second", instead_of=(None,)),
        )
        results = await asyncio.gather(*fences, return_exceptions=True)
        assert [each for each in results if isinstance(each, OtherFence)]
        assert await store.fenced() in ("first", "second")

    async def test_pending_load_is_stored_before_fence_removal_or_refused(self, store, other):
        await store.fence(WHY)
        loads = [
            asyncio.create_task(store.load(record(f"a-{number:02}", version=1), behind=WHY))
            for number in range(30)
        ]
        await asyncio.sleep(0)
        await other.fence(None)
        there = ids(await scanned(other))
        results = await asyncio.gather(*loads, return_exceptions=True)
        assert all(each is None or isinstance(each, OtherFence) for each in results)
        assert len(there) == results.count(None)

    async def test_pending_write_is_stored_before_fence_or_refused(self, store, other):
        async def write(number):
            opening = (store, other)[number % 2]
            return (await opening.write(record(f"a-{number:03}")))[0].id

        writes = [asyncio.create_task(write(number)) for number in range(60)]
        await asyncio.sleep(0)
        fence = asyncio.create_task(store.fence(WHY))
        writes += [asyncio.create_task(write(number)) for number in range(60, 120)]
        await fence
        there = ids(await scanned(other))
        results = await asyncio.gather(*writes, return_exceptions=True)
        acknowledged = [each for each in results if not isinstance(each, BaseException)]
        assert sorted(acknowledged) == there
        assert {each.why for each in results if isinstance(each, StoreUnavailable)} <= {WHY}
        assert ids(await scanned(store)) == there


class TestMemory(StoreContract):
    @pytest.fixture
    async def pair(self) -> AsyncIterator[tuple[Store, Store]]:
        store = MemoryStore()
        sibling = store.sibling()
        yield store, sibling
        await store.aclose()
        await sibling.aclose()


class TestMemorySibling(StoreContract):
    @pytest.fixture
    async def pair(self) -> AsyncIterator[tuple[Store, Store]]:
        store = MemoryStore()
        sibling = store.sibling()
        yield sibling, store
        await sibling.aclose()
        await store.aclose()


class TestSqlite(StoreContract):
    @pytest.fixture
    async def pair(self, tmp_path: Path) -> AsyncIterator[tuple[Store, Store]]:
        store = await SqliteStore.open(tmp_path / "store.db")
        other = await SqliteStore.open(tmp_path / "store.db")
        yield store, other
        await store.aclose()
        await other.aclose()


class TestPostgres(StoreContract):
    @pytest.fixture
    async def pair(self) -> AsyncIterator[tuple[Store, Store]]:
        async with fresh_database() as url:
            store, other = await open_store(url), await open_store(url)
            yield store, other
            await store.aclose()
            await other.aclose()


class TestPooledPostgres(StoreContract):
    """PostgreSQL through PgBouncer, where another client can get the session at any time."""

    @pytest.fixture
    async def pair(self) -> AsyncIterator[tuple[Store, Store]]:
        async with fresh_database() as url, pooled(shared_server(), url) as address:
            store = await open_store(address, listen=url)
            other = await open_store(address, listen=url)
            yield store, other
            await store.aclose()
            await other.aclose()


class TestValkey(StoreContract):
    @pytest.fixture
    async def pair(self) -> AsyncIterator[tuple[Store, Store]]:
        url = fresh_valkey().url
        store, other = await open_store(url), await open_store(url)
        yield store, other
        await store.aclose()
        await other.aclose()


class TestValkeyCluster(StoreContract):
    @pytest.fixture
    async def pair(self) -> AsyncIterator[tuple[Store, Store]]:
        one, another, _ = fresh_cluster()
        store, other = await open_store(one.url), await open_store(another.url)
        yield store, other
        await store.aclose()
        await other.aclose()


class TestObserved(StoreContract):
    @pytest.fixture
    async def pair(self, tmp_path: Path) -> AsyncIterator[tuple[Store, Store]]:
        received = Observer()
        store = observed(await SqliteStore.open(tmp_path / "store.db"), received)
        other = observed(await SqliteStore.open(tmp_path / "store.db"), received)
        yield store, other
        await store.aclose()
        await other.aclose()
