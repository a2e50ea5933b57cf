"""Outgoing events: delivered in order and with ids, also if a receiver is down, slow or wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from standardwebhooks import Webhook, WebhookVerificationError

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import TrustedCode
from tests.support.clock import Clock
from tests.support.event_env import (
    CRM,
    DESK,
    OTHER_SECRET,
    SECRET,
    Receiver,
    events_of,
    pass_time,
    round_of,
    serving_events,
    verified,
)
from tests.support.mcp_server import eventually
from tests.support.samples import FILES
from tests.support.service_env import asked
from tests.support.serving import transport_to
from webapp.connecting import utc_now
from webapp.elicitations.complete import complete_elicitation
from webapp.events.addresses import EventAddress
from webapp.events.sender import CLAIMED, JITTER, LANES, SCHEDULE
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

# A timeout longer than all retries, so that no question expires while events are retried.
WEEK = timedelta(days=7)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def here(store: MemoryStore, clock: Clock, receiver: Receiver) -> AsyncIterator[Service]:
    async with serving_events(store, clock, receiver) as service:
        yield service


@pytest.fixture
async def there(
    store: MemoryStore, clock: Clock, receiver: Receiver, here: Service
) -> AsyncIterator[Service]:
    async with serving_events(store.sibling(), clock, receiver) as service:
        yield service


async def accepted(service: Service, question: Elicitation) -> None:
    await complete_elicitation(service.elicitations, question.id, {"city": "Ghent"}, TrustedCode())


async def test_events_report_question_from_asked_to_accepted_without_answer(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    question = await asked(here, subject="ann@example.com", timeout=WEEK)
    await here.elicitations.open_attempt(question.id, browser="b" * 64)
    await accepted(here, question)
    await here.events.sender.send_all()
    assert receiver.types == ["question.asked", "question.opened", "question.accepted"]
    assert receiver.body_of() == {
        "type": "question.accepted",
        "timestamp": clock().isoformat().replace("+00:00", "Z"),
        "data": {
            "id": question.id,
            "kind": "url",
            "status": "accepted",
            "server": "s",
            "tool": "t",
        },
    }
    for request in receiver.requests:
        assert verified(request, secret=SECRET, clock=clock).id == request.headers["webhook-id"]
        for word in (b"Ghent", b"ann@", b"Please"):
            assert word not in request.content
    assert {event.status for event in await events_of(here)} == {"sent"}


async def test_standard_webhooks_library_verifies_both_secrets_during_rotation(
    store: MemoryStore, receiver: Receiver
) -> None:
    rotating = EventAddress(name="crm", url=CRM.url, secrets=(OTHER_SECRET, SECRET))
    clock = Clock(utc_now())  # the verifying library reads the real clock
    async with serving_events(store, clock, receiver, addresses=[rotating]) as service:
        await asked(service)
        await service.events.sender.send_all()
    (request,) = receiver.requests
    for secret in (SECRET, OTHER_SECRET):
        reported = Webhook(secret).verify(request.content, dict(request.headers))
        assert reported["type"] == "question.asked"
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "eA==" * 8).verify(request.content, dict(request.headers))


async def test_documented_receiver_accepts_our_events_and_refuses_others(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELICIT_EVENTS_CRM_SECRET", f"{SECRET},{OTHER_SECRET}")
    module: dict[str, Any] = {}
    exec(FILES["receiver.py"], module)  # noqa: S102 - ours
    url = "https://crm.example/hooks/elicit"
    receiver = transport_to(module["app"])
    address = EventAddress(name="crm", url=url, secrets=(SECRET,))
    other = EventAddress(name="desk", url=url, secrets=(OTHER_SECRET,))
    async with serving_events(
        store, Clock(utc_now()), receiver.handle_async_request, addresses=[address, other]
    ) as service:
        question = await asked(service)
        await service.events.sender.send_all()
        result = {event.address: event for event in await events_of(service)}
        assert (result["crm"].status, result["desk"].why) == ("sent", "HTTP 401")
        assert await service.events.replay(result["crm"].webhook_id)
        await round_of(service)
    assert capsys.readouterr().out == f"question.asked {question.id}\n"


async def test_event_is_retried_with_same_id_after_two_500_responses(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    receiver.answers = [httpx.Response(500), httpx.Response(500)]
    await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    await pass_time(here, clock, seconds=3)
    assert len(receiver.requests) == 1
    await pass_time(here, clock, seconds=4)
    await pass_time(here, clock, minutes=7)
    await pass_time(here, clock, hours=1)
    assert len(receiver.requests) == 3
    assert len(set(receiver.ids)) == 1
    times = [int(request.headers["webhook-timestamp"]) for request in receiver.requests]
    assert times == sorted(set(times))
    (event,) = await events_of(here)
    assert (event.status, event.tries, event.why) == ("sent", 3, None)


async def test_events_during_outage_are_delivered_in_order_afterwards(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    receiver.is_down = True
    question = await asked(here, timeout=WEEK)
    await here.elicitations.open_attempt(question.id, browser="b" * 64)
    await here.events.sender.send_all()
    await accepted(here, question)
    await here.events.sender.send_all()
    await pass_time(here, clock, seconds=2)
    receiver.is_down = False
    await pass_time(here, clock, seconds=5)
    assert receiver.types == ["question.asked", "question.opened", "question.accepted"]


async def test_event_waits_for_earlier_event_of_same_question_only(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    receiver.answers = [httpx.Response(503)]
    first = await asked(here, join="1")
    await here.events.sender.send_all()
    await here.elicitations.settle(first.id, Status.CANCELLED)
    second = await asked(here, join="2")
    await here.elicitations.settle(second.id, Status.DECLINED)
    await here.events.sender.send_all()
    assert receiver.types[1:] == ["question.asked", "question.declined"]
    await pass_time(here, clock, seconds=7)
    assert receiver.types[3:] == ["question.asked", "question.cancelled"]


async def test_unreachable_address_does_not_delay_others(store: MemoryStore, clock: Clock) -> None:
    received = Receiver()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "crm.example":
            raise httpx.ConnectError("down", request=request)
        return await received(request)

    async with serving_events(store, clock, answer, addresses=[CRM, DESK]) as service:
        question = await asked(service)
        await service.elicitations.settle(question.id, Status.CANCELLED)
        await service.events.sender.send_all()
        assert received.types == ["question.asked", "question.cancelled"]
        waiting = [each for each in await events_of(service) if each.status == "waiting"]
        assert {each.address for each in waiting} == {"crm"}


async def test_hanging_receiver_delays_no_write_and_no_other_address(
    store: MemoryStore, clock: Clock
) -> None:
    received, goes_on = Receiver(), asyncio.Event()
    asking = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asking
        if request.url.host == "crm.example":
            asking += 1
            await goes_on.wait()
        return await received(request)

    async with (
        serving_events(store, clock, answer, addresses=[CRM, DESK]) as service,
        asyncio.TaskGroup() as group,
    ):
        running = group.create_task(service.events.run())
        questions = [await asked(service, join=str(each)) for each in range(LANES + 2)]
        for question in questions:
            await service.elicitations.settle(question.id, Status.CANCELLED)
        await eventually(lambda: len(received.about("desk.example")) == 2 * len(questions))
        assert asking == LANES
        goes_on.set()
        await eventually(lambda: len(received.about("crm.example")) == 2 * len(questions))
        running.cancel()


async def test_due_event_found_by_two_processes_is_sent_once(
    here: Service, there: Service, receiver: Receiver, clock: Clock
) -> None:
    receiver.is_down = True
    await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    receiver.is_down = False
    clock.tick(seconds=7)
    (event,) = await events_of(there)
    for service in (here, there):
        await service.events.sender.fall_due(event)
    await asyncio.gather(here.events.sender.send_all(), there.events.sender.send_all())
    assert len(receiver.requests) == 1


async def test_recent_event_of_other_process_is_left_to_writer_for_a_while(
    here: Service, there: Service, receiver: Receiver, clock: Clock
) -> None:
    await asked(here, timeout=WEEK)  # `here` never sends the event
    await round_of(there)
    assert receiver.requests == []
    await pass_time(there, clock, seconds=6)
    assert receiver.types == ["question.asked"]


async def test_event_is_resent_with_same_id_if_sender_was_killed_after_request(
    store: MemoryStore, clock: Clock, receiver: Receiver
) -> None:
    # The receiver has the event, but the sending process gets no response.
    async def answer(request: httpx.Request) -> httpx.Response:
        await receiver(request)
        raise asyncio.CancelledError

    async with serving_events(store, clock, answer) as killed:
        await asked(killed, timeout=WEEK)
        with pytest.raises(asyncio.CancelledError):
            await killed.events.sender.send_all()
    async with serving_events(store.sibling(), clock, receiver) as service:
        await pass_time(service, clock, seconds=6)
        assert len(receiver.requests) == 1
        await pass_time(service, clock, seconds=CLAIMED.total_seconds())
        await pass_time(service, clock, days=1)
    assert len(receiver.requests) == 2
    assert len(set(receiver.ids)) == 1


async def test_ending_process_waits_for_response_and_records_delivery(
    store: MemoryStore, clock: Clock, receiver: Receiver
) -> None:
    has_arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        has_arrived.set()
        await goes_on.wait()
        return await receiver(request)

    async with serving_events(store, clock, answer) as ending:
        await asked(ending, timeout=WEEK)
        sending = asyncio.create_task(ending.events.sender.send_all())
        await has_arrived.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        goes_on.set()
    async with serving_events(store.sibling(), clock, receiver) as service:
        await pass_time(service, clock, days=1)
        assert [event.status for event in await events_of(service)] == ["sent"]
    assert len(receiver.requests) == 1


async def test_event_which_crashes_sender_is_given_up_after_schedule(
    store: MemoryStore, clock: Clock, receiver: Receiver
) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        await receiver(request)
        raise RuntimeError

    async with serving_events(store, clock, answer) as service:
        await asked(service, timeout=WEEK)
        for _ in range(20):
            with suppress(RuntimeError):
                await pass_time(service, clock, minutes=1)
        assert [event.status for event in await events_of(service)] == ["given up"]
    assert len(receiver.requests) == 1 + len(SCHEDULE)


async def test_unreadable_event_does_not_delay_others(
    here: Service, store: MemoryStore, receiver: Receiver
) -> None:
    question = await asked(here, timeout=WEEK)
    (record,) = await store.list("event")
    await store.write(replace(record, sealed=b"rubbish"))
    await here.elicitations.settle(question.id, Status.CANCELLED)
    await here.events.sender.send_all()
    assert receiver.types == ["question.cancelled"]


async def test_event_whose_process_was_killed_before_request_is_sent_by_another(
    store: MemoryStore, clock: Clock, receiver: Receiver
) -> None:
    async with serving_events(store, clock, receiver) as killed:
        await asked(killed, timeout=WEEK)
    async with serving_events(store.sibling(), clock, receiver) as service:
        await pass_time(service, clock, minutes=1)
    assert receiver.types == ["question.asked"]


async def test_receiver_which_answered_410_gets_no_more_events_until_resumed(
    here: Service, there: Service, receiver: Receiver, clock: Clock
) -> None:
    receiver.answers = [httpx.Response(410)]
    question = await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    await round_of(there)
    await asked(there, join="another", timeout=WEEK)
    await here.elicitations.settle(question.id, Status.CANCELLED)
    for service in (here, there):
        await pass_time(service, clock, days=2)
    assert len(receiver.requests) == 1
    assert [(each.status, each.why) for each in await events_of(here)] == [("given up", "ended")]
    await there.events.resume(CRM)
    await round_of(here)
    await asked(here, join="a third", timeout=WEEK)
    await here.events.sender.send_all()
    assert len(receiver.requests) == 2


async def test_new_url_under_name_of_receiver_which_answered_410_receives_events(
    store: MemoryStore, clock: Clock, receiver: Receiver
) -> None:
    receiver.answers = [httpx.Response(410)]
    async with serving_events(store, clock, receiver) as service:
        await asked(service)
        await service.events.sender.send_all()
    moved = EventAddress(name="crm", url="https://new.example/", secrets=(SECRET,))
    async with serving_events(store.sibling(), clock, receiver, addresses=[moved]) as service:
        await round_of(service)
        await asked(service, join="another")
        await service.events.sender.send_all()
    assert [request.url.host for request in receiver.requests] == ["crm.example", "new.example"]


@pytest.mark.parametrize("is_date", [False, True])
async def test_retry_after_of_receiver_is_respected(
    here: Service, receiver: Receiver, clock: Clock, is_date: bool
) -> None:
    at = format_datetime(clock() + timedelta(seconds=600), usegmt=True) if is_date else "600"
    receiver.answers = [httpx.Response(429, headers={"retry-after": at})]
    await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    await pass_time(here, clock, seconds=590)
    assert len(receiver.requests) == 1
    await pass_time(here, clock, seconds=20)
    assert len(receiver.requests) == 2


async def test_event_is_tried_ten_times_in_three_days_and_given_up(
    here: Service, receiver: Receiver, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [httpx.Response(500) for _ in range(20)]
    began = clock()
    question = await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    for number, pause in enumerate(SCHEDULE, start=2):
        await pass_time(here, clock, seconds=pause.total_seconds() - 1)
        assert len(receiver.requests) == number - 1
        await pass_time(here, clock, seconds=1 + pause.total_seconds() * JITTER)
        assert len(receiver.requests) == number
    assert timedelta(days=3) < clock() - began < timedelta(days=4)
    await here.elicitations.settle(question.id, Status.CANCELLED)
    receiver.answers = []
    await here.events.sender.send_all()
    assert receiver.types[-1] == "question.cancelled"  # not delayed by the failed events
    assert [each.status for each in await events_of(here)] == ["given up", "sent"]
    assert "event.given_up" in caplog.messages


async def test_replay_sends_event_again_with_same_id(here: Service, receiver: Receiver) -> None:
    await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    (event,) = await events_of(here)
    found = await here.events.find(event.webhook_id)
    assert found == event
    assert await here.events.replay(event.webhook_id)
    await round_of(here)
    assert receiver.ids == [event.webhook_id] * 2
    assert json.loads(receiver.requests[0].content) == json.loads(receiver.requests[1].content)


async def test_event_for_unknown_address_is_left_to_process_with_address(
    store: MemoryStore, clock: Clock, receiver: Receiver
) -> None:
    async with serving_events(store, clock, receiver) as configured:
        await asked(configured, timeout=WEEK)
        async with serving_events(store.sibling(), clock, receiver, addresses=()) as other:
            await pass_time(other, clock, minutes=1)
        await pass_time(configured, clock, minutes=1)
        assert receiver.types == ["question.asked"]


async def test_erasing_owner_erases_their_events(
    here: Service, receiver: Receiver, clock: Clock
) -> None:
    receiver.is_down = True
    question = await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    await here.elicitations.store.erase(owner=question.owner)
    receiver.is_down = False
    await pass_time(here, clock, days=1)
    assert receiver.requests == []
    assert await events_of(here) == []


async def test_test_event_is_sent_immediately_and_not_stored(
    here: Service, receiver: Receiver
) -> None:
    assert await here.events.test(CRM) is None
    receiver.answers = [httpx.Response(404)]
    assert await here.events.test(CRM) == "HTTP 404"
    assert receiver.types == ["test", "test"]
    assert await events_of(here) == []
