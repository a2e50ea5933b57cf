"""PayPal and Mollie end to end: from Continue to the ledger and back."""

import json
from collections.abc import AsyncIterator
from functools import partial

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from flows import Money, elicit
from flows.elicitation.states import Status
from flows.errors import Failed, InvalidQuestion, NotConfigured
from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import paypal
from flows.payments.receipt import ReceiptStatus
from flows.payments.refunds import NoRefunds
from flows.question import asking
from tests.support.gateway_env import stored_checkout
from tests.support.payment_env import Mollie, PaymentEnv, PayPal, approved, selling
from tests.support.service_env import call_of
from webapp.calls.verbs import Verbs
from webapp.payments.events import BETWEEN_TRACES, TRACES_AT_ONCE

PAYPAL_SELLER = paypal("an-id", "a-secret", is_live=False)
MOLLIE_SELLER = mollie("test_x", webhook_url="https://shop.example/webhooks/mollie")


@pytest.fixture
def at_paypal() -> PayPal:
    return PayPal()


@pytest.fixture
async def paypal_env(at_paypal: PayPal) -> AsyncIterator[PaymentEnv]:
    async with selling(PAYPAL_SELLER, at_paypal) as payment_env:
        yield payment_env


@pytest.fixture
async def mollie_env(at_mollie: Mollie) -> AsyncIterator[PaymentEnv]:
    async with selling(MOLLIE_SELLER, at_mollie) as payment_env:
        yield payment_env


# PayPal


async def test_pressing_continue_twice_leads_to_one_order(
    paypal_env: PaymentEnv, at_paypal: PayPal
) -> None:
    asked = await paypal_env.asked()
    url = await paypal_env.go_on(asked)
    assert url.endswith("token=O1")
    assert await paypal_env.go_on(asked) == url
    assert list(at_paypal.orders) == ["O1"]


async def test_approved_paypal_order_is_captured_once_despite_repeated_webhooks(
    paypal_env: PaymentEnv, at_paypal: PayPal
) -> None:
    asked = await paypal_env.begun()
    at_paypal.approve("O1")
    for _ in range(3):
        assert (await paypal_env.post(approved(asked, "O1"))).status_code == 200
    assert at_paypal.captured == 1
    assert (await paypal_env.now(asked)).status is Status.ACCEPTED
    payment = await paypal_env.receipt(asked)
    assert (payment.payment_intent, payment.amount, payment.status) == (
        "CO1",
        900,
        ReceiptStatus.OPEN,
    )
    assert await paypal_env.webhooks() == []
    assert await paypal_env.counts() == {}


async def test_approved_paypal_order_is_captured_on_return_without_a_webhook(
    paypal_env: PaymentEnv, at_paypal: PayPal
) -> None:
    asked = await paypal_env.begun()
    at_paypal.approve("O1")
    checkouts = paypal_env.service.kinds.payments.checkouts
    await checkouts.ask_provider(await paypal_env.now(asked))
    assert (await paypal_env.now(asked)).status is Status.ACCEPTED
    assert at_paypal.captured == 1


async def test_approved_paypal_order_of_an_ended_question_is_not_captured(
    paypal_env: PaymentEnv, at_paypal: PayPal
) -> None:
    asked = await paypal_env.begun()
    at_paypal.approve("O1")
    checkouts = paypal_env.service.kinds.payments.checkouts
    await checkouts.decline_if_unpaid(await paypal_env.now(asked), number=1)
    assert (await paypal_env.now(asked)).status is Status.DENIED
    assert (await paypal_env.post(approved(asked, "O1"))).status_code == 200
    await checkouts.close(await paypal_env.now(asked))
    assert at_paypal.captured == 0
    assert await paypal_env.paid(asked) is None


async def test_paypal_order_with_a_different_amount_is_not_captured(
    paypal_env: PaymentEnv, at_paypal: PayPal
) -> None:
    asked = await paypal_env.begun()
    at_paypal.unit("O1")["amount"] = {"currency_code": "EUR", "value": "0.09"}
    at_paypal.approve("O1")
    assert (await paypal_env.post(approved(asked, "O1"))).status_code == 200
    assert at_paypal.captured == 0
    assert await paypal_env.counts() == {"other_amount": 1}
    assert not (await paypal_env.now(asked)).status.is_final


async def test_refund_made_at_paypal_is_applied_at_the_next_webhook(
    paypal_env: PaymentEnv, at_paypal: PayPal
) -> None:
    asked = await paypal_env.begun()
    at_paypal.approve("O1")
    await paypal_env.post(approved(asked, "O1"))
    part = {"currency_code": "EUR", "value": "4.00"}
    payments = at_paypal.unit("O1")["payments"]
    payments["refunds"] = [{"id": "R0", "status": "COMPLETED", "amount": part}]
    await paypal_env.post(approved(asked, "O1"))
    noted = await paypal_env.receipt(asked)
    assert (noted.refunded, noted.status) == (400, ReceiptStatus.OPEN)
    payments["captures"][0]["status"] = "REFUNDED"
    await paypal_env.post(approved(asked, "O1"))
    gone = await paypal_env.receipt(asked)
    assert gone.status is ReceiptStatus.REFUNDED


def by_hand(kind: str, capture: str) -> bytes:
    """Return an event as in PayPal's samples, about a refund that was made outside this server."""
    links = [
        {"rel": "self", "href": "https://api.paypal.com/v2/payments/refunds/R9"},
        {"rel": "up", "href": f"https://api.paypal.com/v2/payments/captures/{capture}"},
    ]
    about = {"id": "R9", "status": "COMPLETED", "links": links}
    event = {"id": "WH-9", "event_type": kind, "resource": about}
    return json.dumps(event).encode()


class Telling(PayPal):
    """A simulated PayPal that also has captures, and an order that no longer exists."""

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        start = "/v2/payments/captures/"
        if request.url.path == "/v2/checkout/orders/GONE":
            return httpx.Response(404, headers={"date": "Mon, 02 Mar 2026 12:00:00 GMT"})
        if request.method != "GET" or not request.url.path.startswith(start):
            return await super().__call__(request)
        self.calls.append(f"GET {request.url.path}")
        capture = request.url.path.removeprefix(start)
        order = self.orders.get(capture.removeprefix("C"))
        if order is None:
            return httpx.Response(404)
        custom_id = order["purchase_units"][0]["custom_id"]
        return httpx.Response(200, json={"id": capture, "custom_id": custom_id})


@pytest.mark.parametrize(
    ("kind", "status", "becomes"),
    [
        ("PAYMENT.CAPTURE.REFUNDED", "REFUNDED", ReceiptStatus.REFUNDED),
        ("PAYMENT.CAPTURE.REVERSED", "REVERSED", ReceiptStatus.DISPUTED),
    ],
)
async def test_paypal_refund_or_reversal_event_with_only_a_capture_link_is_applied(
    kind: str, status: str, becomes: ReceiptStatus
) -> None:
    provider = Telling()
    async with selling(PAYPAL_SELLER, provider) as payment_env:
        asked = await payment_env.begun()
        provider.approve("O1")
        await payment_env.post(approved(asked, "O1"))
        provider.unit("O1")["payments"]["captures"][0]["status"] = status
        assert (await payment_env.post(by_hand(kind, "CO1"))).status_code == 200
        payment = await payment_env.receipt(asked)
        assert payment.status is becomes
        assert await payment_env.counts() == {}


async def test_paypal_reversal_after_the_question_was_erased_is_applied() -> None:
    provider = Telling()
    async with selling(PAYPAL_SELLER, provider) as payment_env:
        asked = await payment_env.begun()
        provider.approve("O1")
        await payment_env.post(approved(asked, "O1"))
        await payment_env.store.erase(before=payment_env.clock.tick(days=120))
        assert await payment_env.service.elicitations.get(asked.id) is None
        [capture] = provider.unit("O1")["payments"]["captures"]
        hint = by_hand("PAYMENT.CAPTURE.REVERSED", "CO1")

        async def standing() -> ReceiptStatus:
            assert (await payment_env.post(hint)).status_code == 200
            [payment] = await payment_env.service.kinds.payments.ledger.all()
            return payment.status

        assert await standing() is ReceiptStatus.OPEN
        capture["amount"] = {"currency_code": "EUR", "value": "0.09"}
        assert await standing() is ReceiptStatus.OPEN
        assert await payment_env.counts() == {"other_amount": 1}
        capture.update(amount={"currency_code": "EUR", "value": "9.00"}, status="REVERSED")
        assert await standing() is ReceiptStatus.DISPUTED


async def test_paypal_refund_of_another_sale_is_looked_up_and_counted_as_unknown() -> None:
    provider = Telling()
    async with selling(PAYPAL_SELLER, provider) as payment_env:
        await payment_env.begun()
        provider.orders["O2"] = {"purchase_units": [{"custom_id": "Order #12"}]}
        before = len(provider.calls)
        for capture in ("CO2", "NOBODYS"):
            hint = by_hand("PAYMENT.CAPTURE.REFUNDED", capture)
            assert (await payment_env.post(hint)).status_code == 200
        assert provider.calls[before:] == [
            "GET /v2/payments/captures/CO2",
            "GET /v2/payments/captures/NOBODYS",
        ]
        assert await payment_env.counts() == {"unknown": 2}


async def test_lookups_of_unknown_paypal_captures_are_rate_limited() -> None:
    provider = Telling()
    async with selling(PAYPAL_SELLER, provider) as payment_env:
        for number in range(TRACES_AT_ONCE):
            hint = by_hand("PAYMENT.CAPTURE.REFUNDED", f"C{number}")
            sent = await payment_env.post(hint, sender=f"198.51.100.{number}")
            assert sent.status_code == 200
        before = [*provider.calls]
        hint = by_hand("PAYMENT.CAPTURE.REFUNDED", "CO1")
        assert (await payment_env.post(hint)).status_code == 429  # so PayPal will resend it
        assert provider.calls == before
        payment_env.clock.now += BETWEEN_TRACES
        assert (await payment_env.post(hint)).status_code == 200


async def test_refund_event_is_answered_with_503_while_paypal_is_down() -> None:
    provider = Telling()
    async with selling(PAYPAL_SELLER, provider) as payment_env:
        provider.is_down = True
        hint = by_hand("PAYMENT.CAPTURE.REFUNDED", "CO1")
        assert (await payment_env.post(hint)).status_code == 503


async def test_missing_paypal_order_does_not_block_other_orders_of_the_question() -> None:
    """A hint lets the server ask about all orders of a question, one of which no longer exists."""
    provider = Telling()
    async with selling(PAYPAL_SELLER, provider) as payment_env:
        asked = await payment_env.begun()
        attempt = (await payment_env.now(asked)).attempt
        assert attempt is not None
        stored = msgspec.to_builtins(
            replace(stored_checkout(await payment_env.now(asked)), session="GONE")
        )
        lapsed = replace(attempt, number=0, kept=stored)
        await payment_env.service.elicitations.change(
            asked.id, lambda current: replace(current, earlier_attempts=(lapsed,))
        )
        provider.approve("O1")
        assert (await payment_env.post(approved(asked, "O1"))).status_code == 200
        assert (await payment_env.now(asked)).status is Status.ACCEPTED
        provider.unit("O1")["payments"]["captures"][0]["status"] = "REFUNDED"
        hint = by_hand("PAYMENT.CAPTURE.REFUNDED", "CO1")
        assert (await payment_env.post(hint)).status_code == 200
        back = await payment_env.receipt(asked)
        assert back.status is ReceiptStatus.REFUNDED


async def test_paypal_payment_is_refunded(paypal_env: PaymentEnv, at_paypal: PayPal) -> None:
    asked = await paypal_env.begun()
    at_paypal.approve("O1")
    await paypal_env.post(approved(asked, "O1"))
    payment = await paypal_env.receipt(asked)
    refunds = paypal_env.service.kinds.payments.refunds
    refund = await refunds.refund(payment.owner, payment.id, reason=None)
    assert (refund.id, str(refund.price)) == ("R1", "9.00 EUR")
    back = await paypal_env.receipt(asked)
    assert back.status is ReceiptStatus.REFUNDED


async def test_part_refund_with_decimals_that_paypal_lacks_blocks_no_other_refund(
    paypal_env: PaymentEnv, at_paypal: PayPal
) -> None:
    asked = await paypal_env.begun()
    at_paypal.approve("O1")
    await paypal_env.post(approved(asked, "O1"))
    payment, payments = await paypal_env.receipt(asked), paypal_env.service.kinds.payments
    in_forints = partial(replace, currency="HUF", amount=90000)  # PayPal has no decimals of HUF
    await payments.ledger.change(payment.owner, payment.id, in_forints)
    at_paypal.unit("O1")["amount"] = {"currency_code": "HUF", "value": "900"}
    with pytest.raises(NoRefunds, match="more decimals than can be charged in this currency"):
        await payments.refunds.refund(payment.owner, payment.id, reason=None, up_to=150)
    assert (await paypal_env.receipt(asked)).part is None
    await payments.refunds.refund(payment.owner, payment.id, reason=None, up_to=90000)
    assert (await paypal_env.receipt(asked)).status is ReceiptStatus.REFUNDED


# Mollie


async def test_mollie_payment_status_comes_from_the_api_and_not_from_the_webhook(
    mollie_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await mollie_env.begun()
    query = at_mollie.query("tr_1")
    await mollie_env.post(b"id=tr_1&status=paid", query=query)
    assert not (await mollie_env.now(asked)).status.is_final
    at_mollie.payments["tr_1"]["status"] = "paid"
    await mollie_env.post(b"id=tr_1", query=query)
    assert (await mollie_env.now(asked)).status is Status.ACCEPTED
    payment = await mollie_env.receipt(asked)
    assert (payment.payment_intent, payment.status) == ("tr_1", ReceiptStatus.OPEN)


async def test_mollie_payment_whose_creation_reply_was_lost_is_found_by_its_webhook(
    mollie_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await mollie_env.asked()
    at_mollie.loses_replies = True
    with pytest.raises(Failed):
        await mollie_env.go_on(asked)
    at_mollie.loses_replies = False
    at_mollie.payments["tr_1"]["status"] = "paid"
    await mollie_env.post(b"id=tr_1", query=at_mollie.query("tr_1"))
    assert (await mollie_env.now(asked)).status is Status.ACCEPTED
    assert list(at_mollie.payments) == ["tr_1"]


async def test_canceled_mollie_payment_is_replaced_by_a_new_checkout(
    mollie_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await mollie_env.asked()
    first = await mollie_env.go_on(asked)
    assert await mollie_env.go_on(asked) == first
    at_mollie.payments["tr_1"]["status"] = "canceled"
    await mollie_env.post(b"id=tr_1", query=at_mollie.query("tr_1"))
    assert await mollie_env.go_on(asked) != first
    at_mollie.payments["tr_2"]["status"] = "paid"
    await mollie_env.post(b"id=tr_2", query=at_mollie.query("tr_2"))
    payment = await mollie_env.receipt(asked)
    assert payment.payment_intent == "tr_2"


async def test_mollie_chargeback_disputes_the_payment_until_the_reversal(
    mollie_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await mollie_env.begun()
    query, payment = at_mollie.query("tr_1"), at_mollie.payments["tr_1"]
    payment["status"] = "paid"
    await mollie_env.post(b"id=tr_1", query=query)
    payment["amountChargedBack"] = {"currency": "EUR", "value": "9.00"}
    await mollie_env.post(b"id=tr_1", query=query)
    lost = await mollie_env.receipt(asked)
    assert lost.status is ReceiptStatus.DISPUTED
    payment["amountChargedBack"] = {"currency": "EUR", "value": "0.00"}
    await mollie_env.post(b"id=tr_1", query=query)
    won = await mollie_env.receipt(asked)
    assert won.status is ReceiptStatus.OPEN


async def test_mollie_payment_is_refunded_once(mollie_env: PaymentEnv, at_mollie: Mollie) -> None:
    asked = await mollie_env.begun()
    at_mollie.payments["tr_1"]["status"] = "paid"
    await mollie_env.post(b"id=tr_1", query=at_mollie.query("tr_1"))
    payment = await mollie_env.receipt(asked)
    refunds = mollie_env.service.kinds.payments.refunds
    for _ in range(2):
        refund = await refunds.refund(payment.owner, payment.id, reason="a mistake")
        assert refund.id == "re_1"
    assert len(at_mollie.refunds) == 1


async def test_refund_that_is_canceled_at_mollie_is_owed_to_the_person(
    mollie_env: PaymentEnv, at_mollie: Mollie
) -> None:
    asked = await mollie_env.begun()
    query, payment = at_mollie.query("tr_1"), at_mollie.payments["tr_1"]
    nine = {"currency": "EUR", "value": "9.00"}
    payment["status"] = "paid"
    await mollie_env.post(b"id=tr_1", query=query)
    payment["amountRefunded"] = nine  # a refund that somebody made at Mollie's dashboard
    at_mollie.refunds = [{"id": "re_1", "amount": nine, "status": "queued"}]
    await mollie_env.post(b"id=tr_1", query=query)
    before = await mollie_env.receipt(asked)
    del payment["amountRefunded"]
    at_mollie.refunds[0]["status"] = "canceled"
    await mollie_env.post(b"id=tr_1", query=query)
    await mollie_env.sweep()
    after = await mollie_env.receipt(asked)
    assert (before.status, before.owed) == (ReceiptStatus.REFUNDED, 0)
    assert (after.status, after.refunded, after.owed) == (ReceiptStatus.REFUNDING, 0, 900)


# Parameters that a tool passes.


@pytest.mark.parametrize(
    "price", [Money("9.00", "AED"), Money("1.234", "KWD"), Money("90.50", "HUF")]
)
async def test_price_that_paypal_does_not_support_is_refused_before_a_link_exists(
    paypal_env: PaymentEnv, at_paypal: PayPal, price: Money
) -> None:
    call = call_of(paypal_env.service)
    call.begin()
    with asking(Verbs(call)), pytest.raises(InvalidQuestion):
        await elicit.payment(price, "Report", provider="paypal")
    assert not await paypal_env.store.list("elicitation")
    assert at_paypal.calls == []


@pytest.mark.parametrize(
    ("provider", "names"),
    [
        ("paypal", {"ELICIT_PAYPAL_CLIENT_ID", "ELICIT_PAYPAL_CLIENT_SECRET"}),
        ("stripe", {"ELICIT_STRIPE_KEY", "ELICIT_STRIPE_WEBHOOK_SECRET"}),
        ("acme", {"[sellers.acme] in elicit.toml", "ELICIT_ACME_KEY"}),
    ],
)
async def test_error_for_an_unconfigured_provider_names_the_missing_settings(
    mollie_env: PaymentEnv, provider: str, names: set[str]
) -> None:
    call = call_of(mollie_env.service)
    call.begin()
    with asking(Verbs(call)), pytest.raises(NotConfigured) as refused:
        await elicit.payment(Money("9.00", "EUR"), "Report", provider=provider)
    assert set(refused.value.missing) == names
