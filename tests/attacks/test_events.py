"""Attacks on outgoing events by their receivers, and by the owner of an address's DNS name."""

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from flows.elicitation.traits import TrustedCode
from flows.errors import Unverified
from tests.support.clock import Clock
from tests.support.event_env import (
    CRM,
    DESK,
    SECRET,
    Receiver,
    events_of,
    pass_time,
    serving_events,
    verified,
)
from tests.support.service_env import asked
from webapp.elicitations.complete import complete_elicitation
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

WEEK = timedelta(days=7)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def here(clock: Clock, receiver: Receiver) -> AsyncIterator[Service]:
    async with serving_events(MemoryStore(), clock, receiver) as service:
        yield service


async def test_event_contains_no_names_questions_or_answers(
    here: Service, receiver: Receiver
) -> None:
    question = await asked(here, subject="ann@example.com", issuer="https://login.example")
    answer = {"city": "Ghent"}
    await complete_elicitation(here.elicitations, question.id, answer, TrustedCode())
    await here.events.sender.send_all()
    reported = b"".join(
        request.content + str(request.headers).encode() for request in receiver.requests
    )
    assert len(receiver.requests) == 2
    for word in (b"ann@", b"login.example", b"Ghent", b"Please go there", b"example.com"):
        assert word not in reported


async def test_receiver_of_one_address_cannot_sign_for_another(clock: Clock) -> None:
    receiver = Receiver()
    async with serving_events(MemoryStore(), clock, receiver, addresses=[CRM, DESK]) as service:
        await asked(service)
        await service.events.sender.send_all()
    (desk,) = [request for request in receiver.requests if request.url.host == "desk.example"]
    with pytest.raises(Unverified):
        verified(desk, secret=SECRET, clock=clock)


async def test_event_is_not_sent_to_address_in_private_network(
    clock: Clock, receiver: Receiver
) -> None:
    async with serving_events(MemoryStore(), clock, receiver, resolved="10.0.0.7") as service:
        await asked(service)
        await service.events.sender.send_all()
        (event,) = await events_of(service)
    assert receiver.requests == []
    assert "ELICIT_TRUSTED_HOSTS" in str(event.why)


async def test_redirect_is_not_followed_and_counts_as_failure(
    here: Service, receiver: Receiver
) -> None:
    receiver.answers = [httpx.Response(307, headers={"location": "http://169.254.169.254/"})]
    await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    (event,) = await events_of(here)
    assert (len(receiver.requests), event.status, event.why) == (1, "waiting", "HTTP 307")


async def test_response_body_of_receiver_is_not_read(here: Service, receiver: Receiver) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1_000_000):
            yield b"x" * 1_000_000
        raise AssertionError("somebody reads it")

    packed = {"content-encoding": "gzip"}
    receiver.answers = [httpx.Response(200, content=endless(), headers=packed)]
    await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    (event,) = await events_of(here)
    assert event.status == "sent"


@pytest.mark.parametrize("text", ["9" * 400, "soon", "Sun, 01 Mar 2099 12:00:00 GMT"])
async def test_retry_after_of_receiver_is_limited_to_one_day(
    here: Service, receiver: Receiver, clock: Clock, text: str
) -> None:
    receiver.answers = [httpx.Response(503, headers={"retry-after": text})]
    await asked(here, timeout=WEEK)
    await here.events.sender.send_all()
    await pass_time(here, clock, days=1)
    assert len(receiver.requests) == 2
