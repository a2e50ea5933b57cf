"""The backlog of events: counted once, then updated, limited, and reported when full."""

import asyncio
from datetime import timedelta

import pytest

from flows.elicitation.states import Status
from tests.support.clock import Clock
from tests.support.event_env import (
    CRM,
    DESK,
    Receiver,
    events_of,
    pass_time,
    round_of,
    serving_events,
)
from tests.support.mcp_server import eventually
from tests.support.service_env import asked
from tests.support.watched import parsed, value
from webapp.collector import Collector
from webapp.elicitations.watcher import listen
from webapp.settings.quotas import PolicySettings
from webapp.stores.sqlite import MemoryStore
from webapp.telemetry.metrics import Metrics
from webapp.telemetry.work import Telemetry

WEEK = timedelta(days=7)
THREE = PolicySettings(events_waiting=3)


async def test_events_above_limit_are_dropped_logged_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver, clock = Receiver(is_down=True), Clock()
    async with serving_events(MemoryStore(), clock, receiver, policies=THREE) as service:
        for number in range(5):
            await asked(service, join=str(number), timeout=WEEK)
        assert len(await events_of(service)) == 3
        assert caplog.messages.count("events.not_stored") == 1
        await round_of(service)
        assert (await service.events.states())["crm"].not_kept == 2
        receiver.is_down = False
        await pass_time(service, clock, seconds=10)
        assert len(receiver.requests) == 3
        question = await asked(service, join="another", timeout=WEEK)
        await service.events.sender.send_all()
        assert receiver.body_of()["data"]["id"] == question.id


async def test_limit_of_waiting_events_applies_to_each_address_separately() -> None:
    receiver, clock = Receiver(is_down=True), Clock()
    async with serving_events(
        MemoryStore(), clock, receiver, policies=THREE, addresses=[CRM, DESK]
    ) as service:
        for number in range(3):
            await asked(service, join=str(number), timeout=WEEK)
        await service.elicitations.store.erase(before=clock() + WEEK, limit=1)
        assert service.events.backlog.counts() == {"crm": 3, "desk": 3}


async def test_backlog_counts_events_of_other_processes() -> None:
    store, clock, receiver = MemoryStore(), Clock(), Receiver(is_down=True)
    async with serving_events(store, clock, receiver) as first:
        question = await asked(first, timeout=WEEK)
        async with serving_events(store.sibling(), clock, receiver) as second:
            backlog = second.events.backlog
            following = asyncio.create_task(backlog.follow())
            hearing = asyncio.create_task(listen(second.elicitations))
            await eventually(lambda: backlog.counts() == {"crm": 1})
            await first.elicitations.settle(question.id, Status.CANCELLED)
            await eventually(lambda: backlog.counts() == {"crm": 2})
            receiver.is_down = False
            await first.events.sender.send_all()
            await eventually(lambda: backlog.counts() == {"crm": 0})
            for task in (following, hearing):
                task.cancel()
            await asyncio.gather(following, hearing, return_exceptions=True)


async def test_metrics_show_waiting_events_and_result_of_each_delivery() -> None:
    receiver, clock = Receiver(is_down=True), Clock()
    watched = Telemetry(metrics=Metrics())
    async with serving_events(MemoryStore(), clock, receiver, telemetry=watched) as service:
        collector = Collector(service)
        await asked(service, timeout=WEEK)
        await service.events.sender.send_all()
        samples = parsed((await collector.page()).decode())
        assert value(samples, "elicit_events_waiting", address="crm") == 1
        receiver.is_down = False
        await pass_time(service, clock, seconds=7)
        samples = parsed((await collector.page()).decode())
        assert value(samples, "elicit_events_waiting", address="crm") == 0
        for result in ("failed", "sent"):
            found = value(samples, "elicit_events_total", address="crm", result=result)
            assert found == 1
        # Events that wait for a failing receiver do not count as the server's lag.
        clock.tick(minutes=5)
        receiver.is_down = True
        await asked(service, join="another", timeout=WEEK)
        await pass_time(service, clock, minutes=10)
        samples = parsed((await collector.page()).decode())
        assert value(samples, "elicit_sweeper_lag_seconds") == 0
