"""A payment provider that the author declared, and that signs its events with Standard Webhooks."""

import asyncio
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from flows import Money, Receipt, elicit
from flows.elicitation.states import Status
from flows.errors import Failed, InvalidQuestion
from flows.payments.events import ON_ITS_WAY
from flows.payments.receipt import ReceiptStatus
from flows.payments.refunds import NoRefunds
from flows.payments.session import Mismatch
from flows.question import asking
from tests.support.acme import (
    DECLARED,
    SIGNS,
    Acme,
    begun,
    declared,
    ledger,
    paid,
    send,
    webhook_statuses,
)
from tests.support.own_provider import Orchard, say
from tests.support.payment_env import Body, PaymentEnv, selling
from tests.support.service_env import Holding, call_of
from webapp.calls.verbs import Verbs
from webapp.cli.payments import list_payments, refund_payment
from webapp.sweeper import fall_due

# Payment.


async def test_tool_receives_a_receipt_and_refunds_the_payment(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    call = call_of(payment_env.service, presenter=Holding())
    call.begin()

    async def sell() -> Receipt:
        with asking(Verbs(call)):
            receipt = await elicit.payment(Money("9.00", "EUR"), "Report", provider="acme")
            refund = await receipt.refund(reason="no seats")
            assert (refund.id, str(refund.price)) == ("re-1", "9.00 EUR")
            return receipt

    selling_it = asyncio.ensure_future(sell())
    while not (rows := await payment_env.store.list("elicitation")):  # noqa: ASYNC110 - it is at work
        await asyncio.sleep(0)
    asked = await payment_env.service.elicitations.get(rows[0].id)
    assert asked is not None
    assert asked.request.origins == ("https://pay-test.acme.example",)
    await payment_env.go_on(asked)
    await send(payment_env, acme.pay())
    receipt = await selling_it
    assert (receipt.provider, receipt.is_test, str(receipt.price)) == ("acme", True, "9.00 EUR")
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]
    (refund,) = acme.refunds.values()
    assert refund == {"id": "re-1", "amount": 900, "currency": "EUR", "reason": "no seats"}


async def test_checkout_request_has_the_questions_amount_currency_and_reference(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    made: list[Body] = []

    async def note(checkout: Body) -> None:
        made.append(checkout)

    acme.before_it_answers = note
    asked = await begun(payment_env)
    assert acme.calls == ["POST /checkouts"]
    assert (made[0]["amount"], made[0]["currency"]) == (900, "EUR")
    assert made[0]["reference"] == asked.id


async def test_signed_event_settles_the_payment_without_polling_the_provider(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    payment = await payment_env.receipt(asked)
    assert (payment.session, payment.payment_intent) == ("co-1", "pay-co-1")
    assert (payment.amount, payment.status) == (900, ReceiptStatus.OPEN)
    assert acme.calls == ["POST /checkouts"]


async def test_payment_whose_webhook_was_lost_is_found_by_polling(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    acme.pay()
    await payment_env.service.kinds.payments.checkouts.ask_provider(await payment_env.now(asked))
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert await payment_env.paid(asked) is not None
    assert await payment_env.webhooks() == []


async def test_payment_whose_webhook_was_lost_is_found_by_polling_at_expiry(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    acme.pay()
    payment_env.clock.tick(minutes=31)
    while await fall_due(payment_env.service):
        payment_env.clock.tick(minutes=1)
    assert await payment_env.paid(asked) is not None
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_repeated_events_change_nothing(payment_env: PaymentEnv, acme: Acme) -> None:
    asked = await paid(payment_env, acme)
    before = await payment_env.paid(asked)
    for event, id in ((acme.event(), "msg_1"), (acme.event(), "msg_2"), (acme.pay(n=1), "msg_3")):
        assert (await send(payment_env, event, id=id)).status_code == 200
    assert await payment_env.paid(asked) == before
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]
    assert sorted(await webhook_statuses(payment_env)) == [("applied", None), ("repeated", None)]


async def test_pressing_continue_twice_makes_one_checkout(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    assert await payment_env.go_on(asked) == "https://pay-test.acme.example/co-1"
    assert [*acme.checkouts] == ["co-1"]


# Events that arrive before the server knows the payment.


async def test_event_that_arrives_before_the_checkout_reply_waits_for_the_reply(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    async def overtake(checkout: Body) -> None:
        acme.before_it_answers = None
        answer = await send(payment_env, acme.pay(checkout["id"]))
        assert answer.json() == {"received": "waiting"}
        assert await webhook_statuses(payment_env) == [("waiting", "session")]

    acme.before_it_answers = overtake
    asked = await payment_env.begun()
    payment_env.clock.tick(seconds=31)
    await fall_due(payment_env.service)
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert await webhook_statuses(payment_env) == [("applied", None)]
    assert [*acme.checkouts] == ["co-1"]


async def test_checkout_whose_reply_was_lost_is_requested_again_and_not_duplicated(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await payment_env.asked()
    acme.loses = "/checkouts"
    with pytest.raises(Failed):
        await payment_env.go_on(asked)
    assert (await send(payment_env, acme.pay())).json() == {"received": "waiting"}
    acme.loses = None
    payment_env.clock.tick(seconds=31)
    await fall_due(payment_env.service)
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]
    assert [*acme.checkouts] == ["co-1"]


# Events that settle nothing.


@pytest.mark.parametrize(
    ("minutes_ago", "secret", "reason"),
    [
        (0, "whsec_bm90IHRoZSBzZWNyZXQgYXQgYWxs", "bad_signature"),
        (6, SIGNS, "too_old"),
        (-6, SIGNS, "too_new"),
    ],
)
async def test_webhook_with_a_bad_signature_or_timestamp_is_refused(
    payment_env: PaymentEnv, acme: Acme, minutes_ago: int, secret: str, reason: str
) -> None:
    asked = await begun(payment_env)
    answer = await send(payment_env, acme.pay(), secret=secret, minutes_ago=minutes_ago)
    assert answer.status_code == 400
    assert not (await payment_env.now(asked)).status.is_final
    assert (await payment_env.webhooks(), await payment_env.counts()) == ([], {reason: 1})


async def test_webhook_without_a_signature_or_with_another_messages_signature_is_refused(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    at = str(int(payment_env.clock().timestamp()))
    signature = Webhook(SIGNS).sign("msg_1", payment_env.clock(), acme.event().decode())
    for headers in (
        [],
        [("webhook-id", "msg_1"), ("webhook-timestamp", at)],
        [("webhook-id", "msg_1"), ("webhook-timestamp", at), ("webhook-signature", signature)],
        [("webhook-id", "msg_2"), ("webhook-timestamp", at), ("webhook-signature", signature)],
    ):
        assert (await payment_env.post(acme.pay(), headers=headers)).status_code == 400
    assert not (await payment_env.now(asked)).status.is_final
    assert await payment_env.webhooks() == []


@pytest.mark.parametrize("body", ["{}", "[]", "7", "null", "\xff", "[" * 9000, '{"type": true, '])
async def test_signed_webhook_with_an_unreadable_body_is_refused_and_counted(
    payment_env: PaymentEnv, body: str
) -> None:
    await begun(payment_env)
    assert (await send(payment_env, body.encode())).status_code == 400
    assert (await payment_env.webhooks(), await payment_env.counts()) == ([], {"malformed": 1})


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"amount": 90}, "amount"),
        ({"amount": 9000}, "amount"),
        ({"amount": None}, "amount"),
        ({"currency": "USD"}, "currency"),
        ({"live": True}, "mode"),
    ],
)
async def test_event_that_contradicts_the_question_is_stored_as_refused_with_its_reason(
    payment_env: PaymentEnv, acme: Acme, says: Body, why: str
) -> None:
    asked = await begun(payment_env)
    assert (await send(payment_env, acme.pay(**says))).json() == {"received": "refused"}
    assert await webhook_statuses(payment_env) == [("refused", why)]
    assert not (await payment_env.now(asked)).status.is_final
    assert await ledger(payment_env) == []


async def test_checkout_event_that_names_another_question_settles_neither_question(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    other = await payment_env.asked("another question")
    assert (await send(payment_env, acme.pay(reference=other.id))).json() == {"received": "waiting"}
    payment_env.clock.tick(seconds=31)
    await fall_due(payment_env.service)
    assert await webhook_statuses(payment_env) == [("refused", "session")]
    assert not (await payment_env.now(other)).status.is_final
    assert not (await payment_env.now(asked)).status.is_final
    assert await ledger(payment_env) == []


@pytest.mark.parametrize(
    ("reference", "status"),
    [
        ("nobody", "unknown"),
        (None, "ignored"),
        ("", "ignored"),
        ("../x", "ignored"),
        ("x" * 300, "ignored"),
    ],
)
async def test_checkout_event_with_an_unknown_reference_is_stored_and_settles_nothing(
    payment_env: PaymentEnv, acme: Acme, reference: str | None, status: str
) -> None:
    asked = await begun(payment_env)
    assert (await send(payment_env, acme.pay(reference=reference))).status_code == 200
    assert [stored for stored, _ in await webhook_statuses(payment_env)] == [status]
    assert not (await payment_env.now(asked)).status.is_final


async def test_event_of_another_type_is_stored_and_ignored(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    event = acme.pay().replace(b"checkout.updated", b"customer.created")
    assert (await send(payment_env, event)).json() == {"received": "ignored"}
    assert await webhook_statuses(payment_env) == [("ignored", None)]
    assert not (await payment_env.now(asked)).status.is_final


@pytest.mark.parametrize(
    "says",
    [
        {"amount": 9000},
        {"currency": "USD"},
        {"reference": "another"},
        {"live": True},
        {"live": "no"},
        {"state": "mystery"},
        {"id": ".."},
        {"id": None},
        {"url": None},
        {"url": "https://evil.example/co-1"},
        {"url": "http://pay-test.acme.example/co-1"},
        {"url": "https://pay-test.acme.example@evil.example/"},
        {"closes_at": "tomorrow"},
    ],
)
async def test_invalid_or_mismatched_checkout_reply_opens_no_page(
    payment_env: PaymentEnv, acme: Acme, says: Body
) -> None:
    asked = await payment_env.asked()
    acme.says = says
    with pytest.raises(Failed) as failed:
        await payment_env.go_on(asked)
    assert "evil" not in str(failed.value)
    assert not (await payment_env.now(asked)).status.is_final


@pytest.mark.parametrize("says", [{"id": "co-2"}, {"state": "mystery"}, {"amount": "9.00"}])
async def test_invalid_or_mismatched_status_reply_settles_nothing(
    payment_env: PaymentEnv, acme: Acme, says: Body
) -> None:
    asked = await begun(payment_env)
    acme.pay()
    acme.checkouts["co-1"] |= says
    with pytest.raises(Failed):
        await payment_env.service.kinds.payments.checkouts.ask_provider(
            await payment_env.now(asked)
        )
    assert not (await payment_env.now(asked)).status.is_final


async def test_zero_price_is_refused_before_a_checkout_is_created(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    call = call_of(payment_env.service)
    call.begin()
    with asking(Verbs(call)), pytest.raises(InvalidQuestion):
        await elicit.payment(Money("0.00", "EUR"), "Report", provider="acme")
    assert acme.calls == []


# Ways to end a question.


async def test_declining_closes_the_checkout(payment_env: PaymentEnv, acme: Acme) -> None:
    asked = await begun(payment_env)
    checkouts = payment_env.service.kinds.payments.checkouts
    await checkouts.decline_if_unpaid(await payment_env.now(asked), number=1)
    assert (await payment_env.now(asked)).status is Status.DENIED
    assert acme.checkouts["co-1"]["state"] == "closed"
    assert acme.calls.count("POST /checkouts/co-1/close") == 1


async def test_payment_made_just_before_the_decline_is_stored(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    settled = await payment_env.service.elicitations.settle(asked.id, Status.DENIED)
    acme.pay()
    await payment_env.service.kinds.payments.checkouts.close(settled)
    assert acme.checkouts["co-1"]["state"] == "paid"
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_question_expiry_closes_the_checkout(payment_env: PaymentEnv, acme: Acme) -> None:
    asked = await begun(payment_env)
    payment_env.clock.tick(minutes=31)
    await fall_due(payment_env.service)
    payment_env.clock.tick(minutes=1)
    await fall_due(payment_env.service)
    assert (await payment_env.now(asked)).status is Status.EXPIRED
    assert acme.checkouts["co-1"]["state"] == "closed"


async def test_checkout_closed_by_the_provider_is_replaced_by_a_new_checkout(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    acme.checkouts["co-1"]["state"] = "closed"
    await send(payment_env, acme.event())
    assert await payment_env.go_on(asked) == "https://pay-test.acme.example/co-2"
    await send(payment_env, acme.pay("co-2"), id="msg_2")
    payment = await payment_env.receipt(asked)
    assert payment.session == "co-2"


# Payments that take time.


async def test_pending_payment_that_arrives_is_accepted(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    await send(payment_env, acme.pay(state="pending"))
    now = await payment_env.now(asked)
    assert (now.status.is_final, now.progress) == (False, ON_ITS_WAY)
    assert await ledger(payment_env) == []
    await send(payment_env, acme.pay(), id="msg_2")
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_pending_payment_that_fails_ends_the_question_as_failed(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    await send(payment_env, acme.pay(state="pending"))
    await send(payment_env, acme.pay(state="failed"), id="msg_2")
    now = await payment_env.now(asked)
    assert (now.status, now.why) == (Status.FAILED, "the payment did not arrive")
    assert await ledger(payment_env) == []


async def test_older_event_after_a_newer_event_changes_nothing(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    before = acme.event(state="pending")
    await send(payment_env, acme.pay(), id="msg_2")
    assert (await send(payment_env, before)).status_code == 200
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


# Refunds and disputes.


async def test_repeated_refund_by_the_operator_refunds_once(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await paid(payment_env, acme)
    (row,) = (await list_payments(payment_env.service, only_open=True)).rows
    assert row.price == "9.00 EUR"
    (payment,) = await payment_env.service.kinds.payments.ledger.all()
    id = payment.id.removeprefix(payment.owner)
    for _ in range(2):
        (line,) = await refund_payment(
            payment_env.service, id, reason="a mistake", also_spent=False
        )
        assert "9.00 EUR" in line
    assert acme.checkouts["co-1"]["refunded"] == 900
    assert len(acme.refunds) == 1
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]


async def test_partial_refund_amount_is_a_total_and_each_part_is_refunded_once(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    # finding: M8
    await paid(payment_env, acme)
    (payment,) = await payment_env.service.kinds.payments.ledger.all()
    id = payment.id.removeprefix(payment.owner)
    for amount in ("3.00", "3.00", "6.00", "6.00"):
        await refund_payment(payment_env.service, id, reason=None, also_spent=False, amount=amount)
    assert [one["amount"] for one in acme.refunds.values()] == [300, 300]
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_refund_whose_reply_was_lost_is_not_made_twice(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    payment = await payment_env.receipt(asked)
    refunds = payment_env.service.kinds.payments.refunds
    acme.loses = "/refunds"
    with pytest.raises(Failed):
        await refunds.refund(payment.owner, payment.id, reason=None)
    acme.loses = None
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDING]
    refund = await refunds.refund(payment.owner, payment.id, reason=None)
    assert str(refund.price) == "9.00 EUR"
    assert acme.checkouts["co-1"]["refunded"] == 900
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]


async def test_provider_without_refunds_is_not_asked_and_the_payment_stays_open(
    acme: Acme, tmp_path: Path
) -> None:
    text = DECLARED.replace("[sellers.acme]", "[sellers.acme]\nrefund = false")
    seller = declared(text, folder=tmp_path)
    async with selling(seller, acme) as payment_env:
        payment = await payment_env.paid(await paid(payment_env, acme))
        assert payment is not None
        assert payment.refund_at is None
        refunds = payment_env.service.kinds.payments.refunds
        with pytest.raises(NoRefunds, match="Acme cannot make refunds for this server"):
            await refunds.refund(payment.owner, payment.id, reason=None)
        payment_env.clock.tick(days=8)
        await fall_due(payment_env.service)
        assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_unused_payment_is_refunded_automatically(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await paid(payment_env, acme)
    payment_env.clock.tick(days=7, seconds=1)
    await fall_due(payment_env.service)
    assert acme.checkouts["co-1"]["refunded"] == 900
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]


async def test_refund_made_at_the_provider_is_found_by_polling(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    acme.checkouts["co-1"]["refunded"] = 400
    checkouts = payment_env.service.kinds.payments.checkouts
    await checkouts.ask_provider(await payment_env.now(asked))
    part = await payment_env.receipt(asked)
    assert (part.refunded, part.status) == (400, ReceiptStatus.OPEN)
    acme.checkouts["co-1"]["refunded"] = 900
    await checkouts.ask_provider(await payment_env.now(asked))
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]


async def test_refund_after_a_partial_refund_refunds_only_the_rest(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    acme.checkouts["co-1"]["refunded"] = 400
    payment = await payment_env.receipt(asked)
    refunds = payment_env.service.kinds.payments.refunds
    refund = await refunds.refund(payment.owner, payment.id, reason=None)
    assert str(refund.price) == "5.00 EUR"
    assert acme.checkouts["co-1"]["refunded"] == 900


async def test_automatic_refund_is_retried_when_the_provider_was_down(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await paid(payment_env, acme)
    acme.is_down = True
    payment_env.clock.tick(days=7, seconds=1)
    await fall_due(payment_env.service)
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDING]
    acme.is_down = False
    payment_env.clock.tick(days=1)
    await fall_due(payment_env.service)
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]
    assert len(acme.refunds) == 1


async def test_refund_made_at_the_provider_is_applied_by_a_signed_event(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    await send(payment_env, acme.event(refunded=400), id="msg_2")
    part = await payment_env.receipt(asked)
    assert (part.refunded, part.status) == (400, ReceiptStatus.OPEN)
    await send(payment_env, acme.event(refunded=900), id="msg_3")
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]
    await send(payment_env, acme.event(refunded=400), id="msg_4")
    assert await ledger(payment_env) == [ReceiptStatus.REFUNDED]


async def test_dispute_ends_when_polling_finds_no_chargeback(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    await send(payment_env, acme.event(charged_back=900), id="msg_2")
    assert await ledger(payment_env) == [ReceiptStatus.DISPUTED]
    await send(payment_env, acme.event(), id="msg_3")  # the event may be an old one
    assert await ledger(payment_env) == [ReceiptStatus.DISPUTED]
    await payment_env.service.kinds.payments.checkouts.ask_provider(await payment_env.now(asked))
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_declared_event_types_of_a_provider_are_applied(acme: Acme, tmp_path: Path) -> None:
    news = (
        '[sellers.acme.news]\n"claim.opened" = "open"\n"claim.won" = "won"\n"back" = "returned"\n'
    )
    async with selling(declared(DECLARED + news, folder=tmp_path), acme) as payment_env:
        await paid(payment_env, acme)
        event = acme.event(refunded=900)
        for kind, status in (
            (b"claim.opened", ReceiptStatus.DISPUTED),
            (b"claim.won", ReceiptStatus.OPEN),
            (b"back", ReceiptStatus.REFUNDED),
        ):
            reported = event.replace(b"checkout.updated", kind)
            assert (
                await send(payment_env, reported, id=kind.decode().replace(".", "_"))
            ).status_code == 200
            assert await ledger(payment_env) == [status]


async def test_payment_refunded_before_its_first_event_fails_the_question(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    await send(payment_env, acme.pay(refunded=900))
    assert (await payment_env.now(asked)).status is Status.FAILED
    assert ReceiptStatus.OPEN not in await ledger(payment_env)


# A provider with a different API, declared as in the documentation.


async def test_declared_provider_with_another_api_sells_and_refunds(
    other: PaymentEnv, orchard: Orchard
) -> None:
    asked = await other.asked()
    assert await other.go_on(asked) == "https://pay.sandbox.orchard.example/or/1"
    assert orchard.order["price"] == {"value": "9.00", "unit": "EUR"}
    assert orchard.order["valid_until"] == "2026-03-01T13:00:00+00:00"
    orchard.pay()
    assert await say(other, orchard.event()) == "accepted"
    payment = await other.receipt(asked)
    assert (payment.session, payment.payment_intent) == ("or/1", "ch-1")
    assert await say(other, orchard.event("claim.opened", "e-2")) == "disputed"
    assert await say(other, orchard.event("claim.won", "e-3")) == "open"
    refunds = other.service.kinds.payments.refunds
    for _ in range(2):
        refund = await refunds.refund(payment.owner, payment.id, reason="no seats")
        assert str(refund.price) == "9.00 EUR"
    assert orchard.refunded == [{"charge": "ch-1", "price": {"value": "9.00", "unit": "EUR"}}]
    assert await ledger(other) == [ReceiptStatus.REFUNDED]


async def test_declared_provider_with_another_api_is_polled_and_its_checkout_closed(
    other: PaymentEnv, orchard: Orchard
) -> None:
    asked = await other.begun()
    checkouts = other.service.kinds.payments.checkouts
    orchard.order["price"]["value"] = "0.90"
    orchard.pay()
    with pytest.raises(Mismatch):
        await checkouts.ask_provider(await other.now(asked))
    assert await say(other, orchard.event()) == "refused"
    orchard.order |= {"price": {"value": "9.00", "unit": "EUR"}, "shop": "s-2"}
    assert await say(other, orchard.event(id="e-2")) == "refused"
    assert sorted(await webhook_statuses(other)) == [("refused", "account"), ("refused", "amount")]
    orchard.order |= {"state": "new", "shop": "s-1"}
    await checkouts.decline_if_unpaid(await other.now(asked), number=1)
    assert orchard.order["state"] == "void"
    assert (await other.now(asked)).status is Status.DENIED
    assert await ledger(other) == []
