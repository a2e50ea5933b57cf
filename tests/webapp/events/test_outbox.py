"""The outbox: a change and its event are written together or not at all, in every store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace as with_fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flows.elicitation import states
from flows.elicitation.states import Lease, Status
from flows.elicitation.traits import TrustedCode
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment, ReceiptStatus
from tests.support.clock import Clock
from tests.support.event_env import CRM, DESK, Receiver, events_of, pass_time, serving_events
from tests.support.gateway_env import payment
from tests.support.service_env import asked, process, question_in_store
from tests.support.shared_stores import STORES
from webapp.elicitations.complete import complete_elicitation
from webapp.records.chain import AUDIT
from webapp.records.values import KINDS, OutgoingEvent
from webapp.service import Service
from webapp.settings.quotas import PolicySettings
from webapp.stores import Conflict, open_store
from webapp.stores.sqlite import MemoryStore

EVENT = KINDS[OutgoingEvent]


@pytest.fixture
async def here() -> AsyncIterator[Service]:
    async with serving_events(MemoryStore(), Clock(), Receiver()) as service:
        yield service


async def types_of(service: Service) -> list[str]:
    return [event.type for event in await events_of(service)]


async def test_event_of_decision_names_approver_and_no_asker(here: Service) -> None:
    fresh = question_in_store(here, kind="decision")
    terms = {"approver": "finance", "asker": "alice", "arguments": {"order": "o8"}}
    await here.elicitations.write(replace(fresh, request=replace(fresh.request, terms=terms)))
    (event,) = await events_of(here)
    assert event.facts["approver"] == "finance"
    assert not {"alice", "o8"} & {str(fact) for fact in event.facts.values()}


async def paid(service: Service, **about: Any) -> Payment:
    """Store a payment for a new question, and return the payment."""
    question = await asked(service, kind="payment")
    row = payment(
        "shop",
        id=f"{question.id}paid",
        owner=question.owner,
        elicitation_id=question.id,
        session="cs_1",
        payment_intent="pi_1",
        **about,
    )
    (written,) = await service.elicitations.write(row)
    assert isinstance(written, Payment)
    return written


async def changed(service: Service, row: Payment, **about: Any) -> Payment:
    (written,) = await service.elicitations.write(replace(row, **about))
    assert isinstance(written, Payment)
    return written


async def test_without_addresses_no_event_is_stored() -> None:
    store = MemoryStore()
    async with process(store, Clock()) as service:
        question = await asked(service)
        await service.elicitations.settle(question.id, Status.CANCELLED)
        assert service.elicitations.rows.outbox is None
    assert list(await store.list(EVENT)) == []


async def test_write_which_lost_race_stores_no_event(here: Service) -> None:
    question = await asked(here)
    await here.elicitations.settle(question.id, Status.CANCELLED)
    with pytest.raises(Conflict):
        await here.elicitations.write(replace(question, status=Status.DECLINED))
    assert await types_of(here) == ["question.asked", "question.cancelled"]


async def test_lease_or_delivery_stores_no_event(here: Service) -> None:
    question = await asked(here)
    await complete_elicitation(here.elicitations, question.id, {}, TrustedCode())
    lease = Lease(run="r", leg="l", until=here.clock())
    await here.elicitations.change(
        question.id, lambda e: states.deliver(replace(e, take=lease), run="r", now=here.clock())
    )
    assert await types_of(here) == ["question.asked", "question.accepted"]


async def test_address_receives_only_its_event_types() -> None:
    picky = with_fields(CRM, types=("question.expired", "payment.*"))
    async with serving_events(
        MemoryStore(), Clock(), Receiver(), addresses=[picky, DESK]
    ) as service:
        await paid(service)
        reported = {(event.address, event.type) for event in await events_of(service)}
    assert reported == {
        ("crm", "payment.paid"),
        ("desk", "payment.paid"),
        ("desk", "question.asked"),
    }


async def test_payment_events_report_payment_refunds_and_disputes_in_order(
    here: Service,
) -> None:
    row = await paid(here)
    row = await changed(here, row, refunded=300)
    row = await changed(here, row, status=ReceiptStatus.DISPUTED)
    row = await changed(here, row, refunded=400)  # during the dispute: no event
    row = await changed(here, row, status=ReceiptStatus.OPEN)
    row = await changed(here, row, status=ReceiptStatus.REFUNDING)
    await changed(here, row, status=ReceiptStatus.REFUNDED)
    events = await events_of(here)
    assert [event.type.partition(".")[2] for event in events] == [
        *("asked", "paid", "refunded_in_part", "disputed", "dispute_won", "refunded"),
    ]
    assert events[-1].facts == {
        "id": row.id,
        "question": row.elicitation_id,
        "provider": "shop",
        "status": "refunded",
        "is_live": False,
        "server": "shop",
        "tool": "buy",
    }


async def test_account_events_report_connection_and_disconnection(
    here: Service,
) -> None:
    owner = here.elicitations.owners.tag(issuer="tests", subject="ann")
    fresh = Connection(
        id=here.elicitations.new_id(owner),
        owner=owner,
        lookup_key="k",
        server="s",
        provider="acme",
        person_id="4711",
        label="ann@example.com",
        connected_at=here.clock(),
        scopes=("repo",),
        tools=("t",),
        access_token="hush",
    )
    (written,) = await here.elicitations.write(fresh)
    assert isinstance(written, Connection)
    await here.elicitations.write(replace(written, ended_at=here.clock()))
    events = await events_of(here)
    assert [event.type for event in events] == ["account.connected", "account.disconnected"]
    assert events[0].facts == {
        "id": fresh.id,
        "provider": "acme",
        "status": "connected",
        "server": "s",
    }


@pytest.mark.parametrize("audit", [False, True])
@pytest.mark.parametrize("kind", ["memory", *STORES])
async def test_each_store_saves_events_of_concurrent_writes_but_not_of_conflicting_writes(
    tmp_path: Path, kind: str, audit: bool
) -> None:
    clock, receiver = Clock(), Receiver()
    async with AsyncExitStack() as stack:
        if kind == "memory":
            store: Any = MemoryStore()
        else:
            url = await stack.enter_async_context(STORES[kind](tmp_path))
            store = await open_store(url)
            stack.push_async_callback(store.aclose)
        policies = PolicySettings(audit=audit)
        service = await stack.enter_async_context(
            serving_events(store, clock, receiver, policies=policies)
        )
        questions = [await asked(service, join=str(each)) for each in range(25)]
        stale = [replace(each, status=Status.DECLINED) for each in questions[:5]]
        await asyncio.gather(
            *(service.elicitations.settle(each.id, Status.CANCELLED) for each in questions),
            *(
                service.elicitations.write(question_in_store(service, join=f"n{n}"))
                for n in range(50)
            ),
        )
        lost = await asyncio.gather(
            *(service.elicitations.write(each) for each in stale), return_exceptions=True
        )
        assert {type(each) for each in lost} == {Conflict}
        assert len(await store.list(EVENT, limit=1000)) == 25 + 25 + 50
        assert bool(await store.list(AUDIT)) == audit
        await service.events.sender.send_all()
        for question in questions:
            bodies = [
                request.content
                for request in receiver.requests
                if question.id.encode() in request.content
            ]
            assert [b"asked" in each for each in bodies] == [True, False]
        assert {each.status for each in await store.list(EVENT, limit=1000)} == {"sent"}


async def test_very_large_write_succeeds_and_events_above_limit_are_counted(
    here: Service, caplog: pytest.LogCaptureFixture
) -> None:
    many = [question_in_store(here, join=str(number)) for number in range(300)]
    await here.elicitations.write(*many)
    assert len(await events_of(here)) == 100
    assert here.events.backlog.not_stored == {"crm": 200}
    assert "events.not_stored" in caplog.messages


async def test_sent_events_are_erased_after_retention_time() -> None:
    store, clock = MemoryStore(), Clock()
    policies = PolicySettings(keep_events=timedelta(days=7))
    async with serving_events(store, clock, Receiver(), policies=policies) as service:
        await asked(service, timeout=timedelta(days=6))
        await service.events.sender.send_all()
        await pass_time(service, clock, days=5)
        assert "question.asked" in await types_of(service)
        await pass_time(service, clock, days=2, seconds=1)
        assert "question.asked" not in await types_of(service)
