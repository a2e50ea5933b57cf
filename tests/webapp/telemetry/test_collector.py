"""The metrics collector: it reads open questions and payments at its start, then each change."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.errors import StoreUnavailable
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.session import UnresolvedPayment, UnresolvedStatus
from tests.support.clock import Clock
from tests.support.gateway_env import payment
from tests.support.hand_loop import HandLoop
from tests.support.service_env import plain_settings, question_in_store
from tests.support.watched import Samples, parsed, value
from webapp.collector import Collector
from webapp.elicitations.watcher import listen
from webapp.records.values import KINDS
from webapp.service import Service, ServiceOptions, open_service
from webapp.stores import Record, Store, WatchHint
from webapp.stores.sqlite import MemoryStore, SqliteStore
from webapp.stores.store import Watch
from webapp.telemetry.metrics import Metrics
from webapp.telemetry.work import Telemetry


@asynccontextmanager
async def process(store: Store, clock: Clock) -> AsyncIterator[tuple[Service, Collector]]:
    """Open a process with a collector that receives the writes of other processes."""
    async with open_service(
        plain_settings(),
        ServiceOptions(clock=clock, telemetry=Telemetry(metrics=Metrics())),
        store=store,
    ) as service:
        collector = Collector(service)
        hearing = asyncio.create_task(listen(service.elicitations))
        await asyncio.sleep(0)
        try:
            yield service, collector
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            await store.aclose()


async def counted(collector: Collector, clock: Clock, name: str, **labels: str) -> float | None:
    clock.tick(seconds=6)  # a sum is cached for five seconds
    return value(await page(collector), name, **labels)


async def page(collector: Collector) -> Samples:
    return parsed((await collector.page()).decode())


async def asked(service: Service, kind: str = "url", *, join: str = "a") -> Elicitation:
    fresh = question_in_store(service, kind=kind, join=join, timeout=timedelta(days=3))
    await service.elicitations.write(fresh)
    found = await service.elicitations.get(fresh.id)
    assert found is not None
    return found


async def test_open_questions_are_counted_by_kind_and_age() -> None:
    clock, name = Clock(), "elicit_questions_open"
    async with process(MemoryStore(), clock) as (service, collector):
        await asked(service, "form", join="old")
        clock.tick(hours=2)
        await asked(service, "url", join="young")
        await asked(service, "url", join="another")
        await collector.read_through()
        assert await counted(collector, clock, name, kind="form", age="1d") == 1
        assert await counted(collector, clock, name, kind="url", age="1m") == 2
        clock.tick(minutes=30)
        assert await counted(collector, clock, name, kind="url", age="1h") == 2
        clock.tick(days=2)
        assert await counted(collector, clock, name, kind="form", age="older") == 1


async def test_ended_question_is_no_longer_counted() -> None:
    clock = Clock()
    async with process(MemoryStore(), clock) as (service, collector):
        one = await asked(service)
        await collector.read_through()
        labels = {"kind": "url", "age": "1m"}
        assert await counted(collector, clock, "elicit_questions_open", **labels) == 1
        await service.elicitations.settle(one.id, Status.DECLINED)
        assert await counted(collector, clock, "elicit_questions_open", **labels) is None


async def test_changes_of_another_process_are_counted() -> None:
    clock, store = Clock(), MemoryStore()
    async with process(store, clock) as (_, collector):
        await collector.read_through()
        async with process(store.sibling(), clock) as (other, _):
            one = await asked(other)
            for _ in range(20):
                await asyncio.sleep(0)
            labels = {"kind": "url", "age": "1m"}
            assert await counted(collector, clock, "elicit_questions_open", **labels) == 1
            await other.elicitations.settle(one.id, Status.CANCELLED)
            for _ in range(20):
                await asyncio.sleep(0)
            assert await counted(collector, clock, "elicit_questions_open", **labels) is None


async def test_erased_question_is_counted_until_expiry_at_most() -> None:
    clock = Clock()
    async with process(MemoryStore(), clock) as (service, collector):
        one = await asked(service)
        await collector.read_through()
        await service.elicitations.store.erase(owner=one.owner)
        clock.tick(days=4)
        assert "elicit_questions_open{" not in (await collector.page()).decode()


async def test_receipts_and_unresolved_payments_are_counted_with_age_of_oldest() -> None:
    clock = Clock()
    async with process(MemoryStore(), clock) as (service, collector):
        one = await asked(service)
        write, ids = service.elicitations.write, service.elicitations.rows.ids
        receipt = payment(
            "stripe",
            id=ids.payment(one.id, provider="stripe", session="s"),
            owner=one.owner,
            session="s",
            dedupe_key="j",
            payment_intent=None,
        )
        loose = UnresolvedPayment(
            id=ids.unresolved(one.id, owner=one.owner, provider="stripe", session="s"),
            owner=one.owner,
            elicitation_id=one.id,
            tool="t",
            seller="stripe",
            what="tea",
            amount=900,
            currency="EUR",
            is_live=False,
            session="s",
            found_at=clock(),
            until=clock() + timedelta(days=3),
            next_check_at=clock() + timedelta(minutes=10),
        )
        await write(receipt)
        await write(loose)
        await collector.read_through()
        clock.tick(hours=2)
        samples = await page(collector)
        assert value(samples, "elicit_receipts_unspent") == 1
        assert value(samples, "elicit_payments_unresolved", status="waiting") == 1
        assert value(samples, "elicit_payments_unresolved_oldest_seconds") == 2 * 3600
        found = await service.elicitations.read(Payment, owner=one.owner, id=receipt.id)
        left = await service.elicitations.read(UnresolvedPayment, owner=one.owner, id=loose.id)
        assert found is not None
        assert left is not None
        await write(replace(found, status=ReceiptStatus.SPENT))
        await write(
            replace(left, status=UnresolvedStatus.OVER, next_check_at=None, ended_at=clock())
        )
        assert await counted(collector, clock, "elicit_receipts_unspent") == 0
        assert await counted(collector, clock, "elicit_payments_unresolved", status="waiting") == 0
        assert await counted(collector, clock, "elicit_payments_unresolved_oldest_seconds") == 0


class Slow(MemoryStore):
    """A store whose `list` returns only while `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.is_at_it = asyncio.Event()

    async def list(self, kind: str, **about: Any) -> Sequence[Record]:
        page = await super().list(kind, **about)
        self.is_at_it.set()
        await self.goes_on.wait()
        return page


async def test_changes_during_initial_scan_are_counted_as_last_written() -> None:
    clock, store = Clock(), Slow()
    async with process(store, clock) as (service, collector):
        before = await asked(service, join="before")
        store.goes_on.clear()
        store.is_at_it.clear()
        reading = asyncio.create_task(collector.read_through())
        await store.is_at_it.wait()  # the collector has read the page with the old question
        await service.elicitations.settle(before.id, Status.DECLINED)
        await asked(service, "form", join="later")
        store.goes_on.set()
        await reading
        samples, name = await page(collector), "elicit_questions_open"
        assert value(samples, name, kind="form", age="1m") == 1
        assert value(samples, name, kind="url", age="1m") is None


class Watched(MemoryStore):
    """A store with one watch, which a test can notify as the store's server would."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = asyncio.Queue[float]()  # when a reader began with the first elicitation

    def watch(self) -> Watch:
        self.its_watch = super().watch()
        return self.its_watch

    async def list(self, kind: str, **about: Any) -> Sequence[Record]:
        if kind == KINDS[Elicitation] and about.get("after") is None:
            self.scans.put_nowait(asyncio.get_running_loop().time())
        return await super().list(kind, **about)


def test_store_is_scanned_again_half_a_minute_after_possibly_missed_changes() -> None:
    clock = Clock()

    async def play() -> None:
        async with process(store := Watched(), clock) as (_, collector):
            collecting = asyncio.create_task(collector.collect())
            first = await store.scans.get()
            store.its_watch.notify(None)
            second = await store.scans.get()
            collecting.cancel()
            assert 30 <= second - first < 31

    with asyncio.Runner(loop_factory=lambda: HandLoop(clock)) as runner:
        runner.run(play())


async def test_periodic_recheck_does_not_scan_whole_store() -> None:
    clock, store = Clock(), Watched()
    async with process(store, clock) as (service, collector), asyncio.timeout(300):
        one = await asked(service)
        with service.elicitations.waiters.waiter(one.id) as waiter:
            store.its_watch.notify(WatchHint.READ_AGAIN)
            assert None in await waiter.changes(until=one.expires_at, now=clock())
        assert not collector.has_missed.is_set()


class Down(MemoryStore):
    """A store whose check fails."""

    async def check(self) -> None:
        raise StoreUnavailable("full")


async def test_broken_store_or_ending_process_is_not_ready() -> None:
    clock = Clock()
    async with process(Down(), clock) as (_, collector):
        assert value(await page(collector), "elicit_ready") == 0
    async with process(MemoryStore(), clock) as (service, collector):
        assert value(await page(collector), "elicit_ready") == 1
        service.elicitations.waiters.drain()
        assert value(await page(collector), "elicit_ready") == 0


async def test_collector_does_not_run_without_metrics_reader() -> None:
    async with open_service(
        plain_settings(), ServiceOptions(clock=Clock()), store=MemoryStore()
    ) as service:
        collecting = asyncio.create_task(Collector(service).collect())
        await asyncio.sleep(0)
        has_ended = collecting.done()
        collecting.cancel()
        assert has_ended


async def test_free_disk_space_of_store_is_reported(tmp_path: Path) -> None:
    clock, store = Clock(), await SqliteStore.open(tmp_path / "elicit.db")
    async with process(store, clock) as (_, collector):
        free_bytes = value(await page(collector), "elicit_store_disk_free_bytes")
    assert free_bytes is not None
    assert free_bytes > 0
