"""Webhooks that are long, early or very late: an acknowledged webhook is not lost."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows import Money, Receipt, elicit
from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed
from flows.payments.mollie.gateway import mollie
from flows.payments.receipt import ReceiptStatus
from flows.question import asking
from flows.webhooks.signatures import verify
from tests.support import signing
from tests.support.acme import (
    DECLARED,
    SIGNS,
    Acme,
    begun,
    declared,
    ledger,
    note_of_open_payment,
    paid,
    send,
    still_open,
    webhook_statuses,
)
from tests.support.disputes import CLOSED, claim, claimed
from tests.support.disputes import unused_payment as unused
from tests.support.payment_env import Mollie, PaymentEnv, selling
from tests.support.service_env import Holding, call_of
from tests.support.shop_env import Shop, buying
from tests.support.webhooks import only, replayed
from webapp.calls.verbs import Verbs
from webapp.cli.payments import end_payment
from webapp.cli.webhooks import list_hooks
from webapp.payments.events import BODY_BYTES_STORED, Webhooks
from webapp.records.ids import fresh_id
from webapp.sweeper import fall_due

EVIDENCE: dict[str, Any] = {"evidence": {"uncategorized_text": "x" * (BODY_BYTES_STORED + 1)}}


async def erased(payment_env: PaymentEnv, asked: Elicitation) -> None:
    """Let two months pass in a running process, so that the question is erased."""
    payment_env.clock.tick(days=62)
    await payment_env.sweep()
    assert await payment_env.service.elicitations.get(asked.id) is None


async def received(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["received"])


# Bodies longer than the stored part.


@pytest.mark.parametrize(("ends", "stands"), [("won", "open"), ("lost", "disputed")])
async def test_dispute_ends_even_if_its_evidence_is_longer_than_the_stored_body(
    shop: Shop, ends: str, stands: str
) -> None:
    async with buying(shop) as buy:
        payment = await unused(shop, buy)
        if ends == "won":
            assert await claimed(shop, payment) == "disputed"
        assert await claimed(shop, payment, CLOSED, status=ends, **EVIDENCE) == stands
        hook = next(hook for hook in await shop.webhooks() if hook.type == CLOSED)
        assert (hook.is_whole, hook.status, len(hook.body)) == (False, "applied", BODY_BYTES_STORED)
        assert (await replayed(shop, hook)).endswith("  applied")
        assert await shop.ledger() == [stands]


async def test_replayed_long_dispute_of_an_unknown_payment_stays_unknown(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        payment = await unused(shop, buy)
        foreign = claim(payment, payment_intent="pi_of_another_sale", **EVIDENCE)
        await shop.send(foreign)
        await shop.sweep()
        unknown = await only(shop, "unknown")
        assert (await replayed(shop, unknown)).endswith("  unknown")
        assert await shop.ledger() == ["open"]


async def test_long_event_that_arrives_before_the_checkout_reply_waits_for_the_reply(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    async def overtake(checkout: dict[str, Any]) -> None:
        acme.before_it_answers = None
        event = acme.pay(checkout["id"], note="x" * BODY_BYTES_STORED)
        assert await received(await send(payment_env, event)) == "waiting"

    acme.before_it_answers = overtake
    asked = await payment_env.begun()
    await payment_env.sweep()
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    [hook] = await payment_env.webhooks()
    assert (hook.status, hook.is_whole) == ("applied", False)
    assert hook.said is not None
    assert hook.said.session is not None
    assert hook.said.session.url is None


async def test_event_waiting_for_its_session_polls_the_provider_with_backoff(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await payment_env.asked()
    acme.loses = "/checkouts"
    with pytest.raises(Failed):
        await payment_env.go_on(asked)  # the lost reply contained the page's id
    event = acme.pay().replace(b"co-1", b"co-77")
    acme.is_down = True
    assert await received(await send(payment_env, event)) == "waiting"
    since, asked_at = payment_env.clock(), list[float]()
    while payment_env.clock() - since < timedelta(minutes=29):
        calls = len(acme.calls)
        payment_env.clock.tick(seconds=31)
        await fall_due(payment_env.service)
        if len(acme.calls) > calls:
            asked_at.append((payment_env.clock() - since) / timedelta(seconds=31))
    assert asked_at == [1, 2, 4, 8, 16, 32]
    assert await webhook_statuses(payment_env) == [("waiting", "session")]


# Events before the payment that they are about.


@pytest.fixture
async def claims_env(acme: Acme, tmp_path: Path) -> AsyncIterator[PaymentEnv]:
    news = '[sellers.acme.news]\n"claim.lost" = "lost"\n'
    async with selling(declared(DECLARED + news, folder=tmp_path), acme) as payment_env:
        yield payment_env


def lost(acme: Acme) -> bytes:
    """Return the event that reports a lost dispute of the first payment."""
    event = acme.event(payment="pay-co-1")
    return event.replace(b"checkout.updated", b"claim.lost")


async def test_dispute_that_arrives_before_its_payment_is_applied_to_the_payment(
    claims_env: PaymentEnv, acme: Acme
) -> None:
    await begun(claims_env)
    assert await received(await send(claims_env, lost(acme))) == "waiting"
    await claims_env.sweep()
    assert await webhook_statuses(claims_env) == [("waiting", "payment")]
    await send(claims_env, acme.pay(), id="msg_2")
    assert await ledger(claims_env) == [ReceiptStatus.DISPUTED]
    assert sorted(await webhook_statuses(claims_env)) == [("applied", None), ("applied", None)]
    claims_env.clock.tick(days=8)
    await claims_env.sweep()
    assert acme.refunds == {}


async def test_early_dispute_received_by_another_process_is_applied_to_the_payment(
    claims_env: PaymentEnv, acme: Acme
) -> None:
    await begun(claims_env)
    service = claims_env.service
    payments = service.kinds.payments
    other = Webhooks(
        elicitations=service.elicitations, payments=payments, outbound=service.outbound
    )
    gateway, now = payments.flow.signing["acme"], claims_env.clock()
    headers = signing.standard_webhooks(lost(acme), secret=SIGNS, now=now, id="msg_1")
    reported = verify(gateway.scheme, body=lost(acme), headers=headers, secrets=[SIGNS], now=now)
    assert await other.receive(gateway, reported) == "waiting"
    await send(claims_env, acme.pay(), id="msg_2")
    assert await ledger(claims_env) == [ReceiptStatus.DISPUTED]


async def test_payment_arriving_days_after_its_dispute_is_disputed_at_once(
    claims_env: PaymentEnv, acme: Acme
) -> None:
    await begun(claims_env)
    await send(claims_env, lost(acme))
    acme.checkouts["co-1"]["state"] = "closed"
    for _ in range(4):
        claims_env.clock.tick(days=1)
        await claims_env.sweep()
        assert await webhook_statuses(claims_env) == [("waiting", "payment")]
    await send(claims_env, acme.pay(), id="msg_2")
    assert await ledger(claims_env) == [ReceiptStatus.DISPUTED]


async def test_waiting_dispute_of_a_payment_that_differs_from_the_request_is_refused(
    claims_env: PaymentEnv, acme: Acme
) -> None:
    await begun(claims_env)
    await send(claims_env, lost(acme))
    acme.pay()
    acme.checkouts["co-1"]["amount"] = 400
    claims_env.clock.tick(minutes=1)
    await claims_env.sweep()
    assert await webhook_statuses(claims_env) == [("refused", "amount")]
    assert "paid 4.00 EUR, requested 9.00 EUR" in await note_of_open_payment(claims_env)
    assert await ledger(claims_env) == []


async def test_waiting_dispute_event_polls_with_backoff_and_is_finally_erased(
    claims_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(claims_env)
    await send(claims_env, lost(acme))
    before = len(acme.calls)
    for _ in range(50):
        await claims_env.sweep()
    assert len(acme.calls) - before < 10
    acme.checkouts["co-1"]["state"] = "closed"
    claims_env.clock.tick(minutes=31)
    await claims_env.sweep()
    await erased(claims_env, asked)
    assert await webhook_statuses(claims_env) == []


# Events after the question was erased, long after the payment.


async def used(payment_env: PaymentEnv, acme: Acme) -> Elicitation:
    asked = await paid(payment_env, acme)
    payment = await payment_env.receipt(asked)
    await payment_env.service.kinds.payments.ledger.spend(payment.owner, payment.id, run=None)
    return asked


async def test_dispute_after_the_question_was_erased_is_applied(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await erased(payment_env, await used(payment_env, acme))
    found = acme.event(charged_back=900)
    assert await received(await send(payment_env, found, id="msg_2")) == "disputed"
    assert await ledger(payment_env) == [ReceiptStatus.DISPUTED]
    assert await webhook_statuses(payment_env) == [("applied", None)]
    for id in ("msg_2", "msg_3"):
        await received(await send(payment_env, found, id=id))
    assert await ledger(payment_env) == [ReceiptStatus.DISPUTED]


async def test_refund_after_the_question_was_erased_is_applied(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await erased(payment_env, await used(payment_env, acme))
    assert await received(await send(payment_env, acme.event(refunded=300), id="msg_2")) == "spent"
    [payment] = await payment_env.service.kinds.payments.ledger.all()
    assert payment.refunded == 300


async def test_disputed_permanent_purchase_is_not_reusable_after_its_question_was_erased(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    async def buy() -> Receipt:
        call = call_of(payment_env.service, presenter=Holding())
        call.begin()
        with asking(Verbs(call)):
            price = Money("9.00", "EUR")
            return await elicit.payment(price, "Report", provider="acme", once=True)

    buying_it = asyncio.ensure_future(buy())
    while not (rows := await payment_env.store.list("elicitation")):  # noqa: ASYNC110
        await asyncio.sleep(0)
    asked = await payment_env.service.elicitations.get(rows[0].id)
    assert asked is not None
    await payment_env.go_on(asked)
    await send(payment_env, acme.pay())
    await (await buying_it).spend()
    # This process remembers the payment, because no result was noted.
    await erased(payment_env, asked)
    assert (
        await received(await send(payment_env, acme.event(charged_back=900), id="m2")) == "disputed"
    )
    payments = payment_env.service.kinds.payments
    assert [one.holds_key for one in await payments.ledger.all()] == [False]


@pytest.mark.parametrize(
    "says",
    [{"charged_back": 900}, {"refunded": 100}, {"state": "failed"}, {"state": "closed"}, {}],
)
async def test_event_after_the_question_was_erased_is_stored_and_the_refund_stays(
    payment_env: PaymentEnv, acme: Acme, says: dict[str, Any]
) -> None:
    asked = await paid(payment_env, acme)
    await erased(payment_env, asked)
    for _ in range(2):
        assert (await send(payment_env, acme.event(**says), id="msg_2")).status_code == 200
    [hook] = await payment_env.webhooks()
    assert hook.status in ("applied", "repeated")
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]  # the payment was unused


@pytest.mark.parametrize(
    ("says", "why"),
    [({"amount": 90}, "amount"), ({"currency": "USD"}, "currency"), ({"live": True}, "mode")],
)
async def test_event_that_contradicts_the_payment_of_an_erased_question_is_refused(
    payment_env: PaymentEnv, acme: Acme, says: dict[str, Any], why: str
) -> None:
    await erased(payment_env, await used(payment_env, acme))
    event = acme.event(charged_back=900, **says)
    assert await received(await send(payment_env, event, id="msg_2")) == "refused"
    assert await webhook_statuses(payment_env) == [("refused", why)]
    assert await ledger(payment_env) == [ReceiptStatus.SPENT]


async def test_payment_for_an_erased_question_is_listed_for_the_operator(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    payment_env.clock.tick(minutes=31)
    await payment_env.sweep()
    await erased(payment_env, asked)
    for number in range(2):
        assert await received(await send(payment_env, acme.pay(n=number))) == "refused"
    assert await webhook_statuses(payment_env) == [("refused", "erased")] * 2
    for row in (await list_hooks(payment_env.service)).rows:
        reported = (row.provider, row.event, row.status, row.why)
        assert reported == ("acme", "checkout.updated", "refused", "erased")
    assert await ledger(payment_env) == []
    (paid,) = await still_open(payment_env)
    assert "paid 9.00 EUR" in str(paid.note)
    assert "check co-1 at the provider" in str(paid.note)
    assert paid.what == "a payment whose question is erased"


async def test_signed_event_with_a_different_amount_is_listed_for_the_operator(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await begun(payment_env)
    assert await received(await send(payment_env, acme.pay(amount=400))) == "refused"
    assert await webhook_statuses(payment_env) == [("refused", "amount")]
    assert "paid 4.00 EUR, requested 9.00 EUR" in await note_of_open_payment(payment_env)


async def test_refunded_or_failed_payment_for_an_erased_question_is_not_listed(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    payment_env.clock.tick(minutes=31)
    await payment_env.sweep()
    await erased(payment_env, asked)
    for event in (acme.pay(refunded=900), acme.pay(state="failed")):
        assert await received(await send(payment_env, event)) == "unknown"
    assert await still_open(payment_env) == []


@pytest.mark.parametrize("days", [0, 29, 69])
@pytest.mark.parametrize("is_known", [True, False])
async def test_payment_for_a_question_missing_from_the_store_is_listed_for_the_operator(
    payment_env: PaymentEnv, acme: Acme, *, is_known: bool, days: int
) -> None:
    """The store was restored from a backup that is older than the question or its owner."""
    # finding: M9
    asked = await begun(payment_env)
    owner = asked.owner if is_known else "n" * 20
    lost = fresh_id(owner, now=payment_env.clock(), random=b"r" * 12)
    payment_env.clock.tick(days=days)
    for _ in range(2):
        assert await received(await send(payment_env, acme.pay(reference=lost))) in (
            "refused",
            "duplicate",
        )
    rows = await still_open(payment_env)
    paid = rows[-1] if days == 0 else rows[0]
    assert "paid 9.00 EUR" in str(paid.note)
    assert "check co-1 at the provider" in str(paid.note)
    why = "erased" if days > 30 else "not in this store"
    assert paid.what == f"a payment whose question is {why}"
    await end_payment(payment_env.service, paid.id)
    assert "check co-1 at the provider" not in str(await still_open(payment_env))


async def test_payment_for_another_product_in_our_account_is_unknown(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    for reference in (asked.owner, f"{asked.owner}x", "order-8"):
        assert await received(await send(payment_env, acme.pay(reference=reference))) == "unknown"
    assert await still_open(payment_env) == []


# Mollie, whose hint names the payment and its owner.


async def test_mollie_chargeback_after_the_question_was_erased_is_applied() -> None:
    provider = Mollie()
    seller = mollie("test_x", webhook_url="https://shop.example/webhooks/mollie")
    async with selling(seller, provider) as payment_env:
        asked = await payment_env.begun()
        there, query = provider.payments["tr_1"], provider.query("tr_1")
        there["status"] = "paid"
        await payment_env.post(b"id=tr_1", query=query)
        await payment_env.store.erase(before=payment_env.clock.tick(days=120))
        assert await payment_env.service.elicitations.get(asked.id) is None
        for about, stands in (
            ({}, ReceiptStatus.OPEN),
            ({"amount": {"currency": "EUR", "value": "0.09"}}, ReceiptStatus.OPEN),
            (
                {
                    "amount": {"currency": "EUR", "value": "9.00"},
                    "amountChargedBack": {"currency": "EUR", "value": "9.00"},
                },
                ReceiptStatus.DISPUTED,
            ),
        ):
            there.update(about)
            assert (await payment_env.post(b"id=tr_1", query=query)).status_code == 200
            assert await ledger(payment_env) == [stands]
        assert await payment_env.counts() == {"other_amount": 1}
        before, another = len(provider.calls), query[:-1] + ("A" if query[-1] != "A" else "B")
        for body, named in ((b"id=tr_2", query), (b"id=tr_1", another)):
            await payment_env.post(body, query=named)
        assert len(provider.calls) == before, (
            "an unknown payment is not requested from the provider"
        )
