"""The payment page: the exact requests to its provider, and the meaning of the replies."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flows.elicitation.flow import Redirect, Talk
from flows.elicitation.states import Elicitation
from flows.errors import Failed, InvalidQuestion
from flows.payments.gateway import verify_session
from flows.payments.money import Money
from flows.payments.receipt import Refund, RefundStatus
from flows.payments.session import (
    SessionStatus,
    StoredCheckout,
)
from flows.payments.stripe.gateway import StripeAccount, StripeGateway, sandbox_stripe, stripe
from flows.payments.stripe.messages import charge_amount, charged, provider_session, read_session
from tests.support.checkouts import (
    KEY,
    LIFE,
    SELLER,
    STRIPE,
    asked,
    begun,
    payment,
    prepared,
    session,
)
from tests.support.clock import NOON
from tests.support.gateway_env import BACK, ID, TRIP, reply, run

OPEN, PENDING, PAID, FAILED, CLOSED = SessionStatus


def refusal(code: str, status: int = 400) -> httpx.Response:
    message = f"Your key {KEY} is not good for that"
    return reply({"error": {"code": code, "message": message}}, status)


def begin(elicitation: Elicitation, *replies: httpx.Response) -> Redirect:
    return run(STRIPE.begin(elicitation, TRIP), *replies)[0]


def form_of(elicitation: Elicitation) -> dict[str, str]:
    stored = msgspec.convert(STRIPE.prepare(elicitation, TRIP), StoredCheckout)
    return dict(parse_qsl(stored.request, strict_parsing=True))


def test_complete_request_is_stored_before_sending() -> None:
    back = f"{BACK}?state=s-1"
    assert msgspec.convert(STRIPE.prepare(asked(), TRIP), StoredCheckout) == StoredCheckout(
        request=urlencode(
            {
                "mode": "payment",
                "client_reference_id": ID,
                "metadata[elicitation]": ID,
                "payment_intent_data[metadata][elicitation]": ID,
                "line_items[0][quantity]": "1",
                "line_items[0][price_data][currency]": "eur",
                "line_items[0][price_data][unit_amount]": "900",
                "line_items[0][price_data][product_data][name]": "Premium report & more",
                "success_url": back,
                "cancel_url": f"{back}&cancelled=1",
                "expires_at": str(int((NOON + LIFE).timestamp())),
            }
        ),
        expires_at=int((NOON + LIFE).timestamp()),
    )


@pytest.mark.parametrize(
    ("statement", "sent"), [("ACME* REPORTS", "REPORTS"), ("ACME RESEARCH", None), (None, None)]
)
def test_suffix_of_card_statement_is_sent_without_prefix(
    statement: str | None, sent: str | None
) -> None:
    gateway = StripeGateway(dataclasses.replace(SELLER, statement=statement))
    stored = msgspec.convert(gateway.prepare(asked(), TRIP), StoredCheckout)
    form = dict(parse_qsl(stored.request, strict_parsing=True))
    assert form.get("payment_intent_data[statement_descriptor_suffix]") == sent


@pytest.mark.parametrize(
    "statement", ["ACME*REPORTS", "A* REPORTS", "ACMERESEARCH* X", "ACME* 12", "ACME* ", "A * B* C"]
)
def test_card_statement_that_stripe_cannot_show_is_refused(statement: str) -> None:
    with pytest.raises(ValueError, match="as in ACME"):
        dataclasses.replace(SELLER, statement=statement)


@pytest.mark.parametrize(
    ("price", "amount"),
    [
        (Money("0.29", "USD"), "29"),
        (Money("500", "JPY"), "500"),
        (Money("1.000", "KWD"), "1000"),
        (Money("5.120", "KWD"), "5120"),
        (Money("12345.67", "EUR"), "1234567"),
        (Money("5", "ISK"), "500"),
        (Money("5", "UGX"), "500"),
        (Money("1500.00", "MGA"), "1500"),
    ],
)
def test_amount_is_sent_in_minor_units_of_provider(price: Money, amount: str) -> None:
    # defect: paymcp fractions are cut
    # defect: paymcp yen have no cents
    form = form_of(asked(price))
    assert form["line_items[0][price_data][unit_amount]"] == amount
    assert form["line_items[0][price_data][currency]"] == price.currency.lower()
    paid = session(
        amount_total=int(amount),
        currency=price.currency.lower(),
        status="complete",
        payment_status="paid",
    )
    assert (
        verify_session(begun(asked(price)), provider_session(read_session(paid)), seller=SELLER)
        is PAID
    )


@pytest.mark.parametrize("price", [Money("5.124", "KWD"), Money("10.50", "MGA")])
def test_unchargeable_price_is_refused_before_question(price: Money) -> None:
    with pytest.raises(InvalidQuestion, match=str(price)):
        charge_amount(price)


@given(
    st.integers(min_value=1, max_value=10**9).map(lambda number: number * 100),
    st.sampled_from(["EUR", "JPY", "KWD", "ISK", "UGX", "MGA", "TND"]),
)
def test_charged_amount_converts_back_to_price(number: int, currency: str) -> None:
    price = Money.from_minor_units(number, currency)
    assert charged(charge_amount(price), currency) == price


def test_amount_with_unsupported_fraction_is_refused() -> None:
    with pytest.raises(InvalidQuestion):
        charged(550, "ISK")


@pytest.mark.parametrize(
    ("life", "least", "most"),
    [
        (timedelta(minutes=1), timedelta(minutes=30), timedelta(minutes=35)),
        (timedelta(hours=2), timedelta(hours=2), timedelta(hours=2)),
        (timedelta(days=7), timedelta(hours=23), timedelta(hours=24) - timedelta(seconds=1)),
    ],
)
def test_checkout_lifetime_follows_question_within_provider_limits(
    life: timedelta, least: timedelta, most: timedelta
) -> None:
    expires_at = int(form_of(replace(asked(), expires_at=NOON + life))["expires_at"])
    assert (NOON + least).timestamp() <= expires_at <= (NOON + most).timestamp()


@pytest.mark.parametrize(
    "bad",
    [
        refusal("api_key_expired", 401),
        refusal("amount_too_small", 400),
        refusal("idempotency_key_in_use", 409),
        reply(session(url=None)),
        reply(session(id="../../accounts")),
        reply(session(id="cs_test_1\n")),
        reply(session(amount_total=90)),
        reply(session(amount_total=900.0)),
        reply(session(amount_total="900")),
        reply(session(amount_total=None)),
        reply(session(currency="usd")),
        reply(session(livemode=True)),
        reply(session(livemode=0)),
        reply(session(client_reference_id="another")),
    ],
)
def test_invalid_checkout_reply_fails_with_explanation(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match=r"^Stripe [a-z][^\n]+\.$") as failed:
        begin(prepared(), bad)
    assert KEY not in str(failed.value)


def test_session_is_fetched_by_id() -> None:
    found, [request] = run(
        STRIPE.fetch(begun(), "cs_test_1"),
        reply(session(status="complete", payment_status="paid", payment_intent={"id": "pi_1"})),
    )
    assert (request.method, str(request.url), request.content) == (
        "GET",
        (
            "https://api.stripe.com/v1/checkout/sessions/cs_test_1"
            "?expand%5B%5D=payment_intent.latest_charge"
        ),
        b"",
    )
    assert (found.state, found.payment, found.currency) == (PAID, "pi_1", "EUR")
    assert KEY not in repr(found) + repr(SELLER)


def test_session_id_stays_within_its_path_segment() -> None:
    request = next(STRIPE.fetch(begun(), "../refunds?x=1"))
    path, _, _ = request.url.raw_path.partition(b"?")
    assert path == b"/v1/checkout/sessions/..%2Frefunds%3Fx%3D1"


@pytest.mark.parametrize(
    "bad", [refusal("resource_missing", 404), reply({}, 503), reply(session(id="cs_test_2"))]
)
def test_invalid_fetch_reply_raises_failed(bad: httpx.Response) -> None:
    with pytest.raises(Failed):
        run(STRIPE.fetch(begun(), "cs_test_1"), bad)


def test_checkout_is_expired_at_provider() -> None:
    is_expired, [request] = run(
        STRIPE.close(begun(), "cs_test_1"), reply(session(status="expired", url=None))
    )
    assert is_expired
    assert (request.method, request.url.path) == (
        "POST",
        "/v1/checkout/sessions/cs_test_1/expire",
    )


@pytest.mark.parametrize(("status", "is_expired"), [("expired", True), ("complete", False)])
def test_already_closed_checkout_is_no_error(status: str, is_expired: bool) -> None:
    result, requests = run(
        STRIPE.close(begun(), "cs_test_1"), refusal(""), reply(session(status=status))
    )
    assert result is is_expired
    assert [request.method for request in requests] == ["POST", "GET"]


@pytest.mark.parametrize("second", [reply(session()), reply({}, 500), refusal("gone", 404)])
def test_close_raises_failed_if_the_checkout_stays_open(second: httpx.Response) -> None:
    with pytest.raises(Failed):
        run(STRIPE.close(begun(), "cs_test_1"), refusal("lock_timeout", 429), second)


def refund(**changes: Any) -> dict[str, Any]:
    return {"id": "re_1", "amount": 900, "currency": "eur", "status": "succeeded", **changes}


def refunded(*replies: httpx.Response, reason: str | None = None) -> Refund:
    return run(STRIPE.refund(payment(), reason=reason), *replies)[0]


def test_refund_uses_idempotency_key_of_its_receipt() -> None:
    answered, [request] = run(STRIPE.refund(payment(), reason="No seats left"), reply(refund()))
    assert (request.method, request.url.path) == ("POST", "/v1/refunds")
    assert request.headers["Idempotency-Key"] == "refund:ownertag-r_1"
    assert dict(parse_qsl(request.content.decode())) == {
        "payment_intent": "pi_1",
        "metadata[receipt]": "ownertag-r_1",
        "metadata[elicitation]": ID,
        "metadata[reason]": "No seats left",
    }
    assert answered == Refund(id="re_1", price=Money("9.00", "EUR"), status=RefundStatus.SUCCEEDED)


def test_unfinished_refund_is_pending() -> None:
    for status in ("pending", "requires_action"):
        assert refunded(reply(refund(status=status))).status is RefundStatus.PENDING


@pytest.mark.parametrize(
    "refused",
    [refusal("charge_already_refunded"), reply({"error": {"type": "idempotency_error"}}, 400)],
)
def test_refused_repeat_refund_returns_existing_refund(
    refused: httpx.Response,
) -> None:
    talk = STRIPE.refund(payment(), reason="again")
    listed = reply({"data": [refund(id="re_0", status="failed"), refund()]})
    answered, [_, second] = run(talk, refused, listed)
    assert (second.method, second.url.path) == ("GET", "/v1/refunds")
    assert second.url.params["payment_intent"] == "pi_1"
    assert (answered.id, answered.price) == ("re_1", Money("9.00", "EUR"))


def test_manual_refunds_of_full_amount_count_as_refund() -> None:
    halves = [refund(id="re_1", amount=400), refund(id="re_2", amount=500, status="pending")]
    answered = refunded(refusal("charge_already_refunded"), reply({"data": halves}))
    assert (answered.id, answered.price.minor_units, answered.status) == (
        "re_1",
        900,
        RefundStatus.PENDING,
    )


def test_refund_in_another_currency_is_ignored() -> None:
    listed = reply({"data": [refund(id="re_0", currency="usd", amount=10), refund()]})
    answered = refunded(refusal("charge_already_refunded"), listed)
    assert (answered.id, answered.price) == ("re_1", Money("9.00", "EUR"))


@pytest.mark.parametrize(
    "listed",
    [
        reply({"data": []}),
        reply({"data": [refund(amount=899)]}),
        reply({"data": [refund(currency="usd")]}),
        reply({"data": [refund(status="failed")]}),
        reply({"data": "none"}),
        refusal("rate_limit", 429),
    ],
)
def test_refused_refund_without_existing_refund_raises_failed(listed: httpx.Response) -> None:
    with pytest.raises(Failed, match="refund the payment"):
        refunded(refusal("charge_disputed"), listed)


@pytest.mark.parametrize(
    "bad",
    [
        reply(refund(status="failed")),
        reply(refund(status=None)),
        reply(refund(amount=901)),
        reply(refund(amount=-1)),
        reply(refund(currency="usd")),
        reply(refund(currency="xxx")),
        reply({}),
        httpx.Response(200, text="ok"),
    ],
)
def test_invalid_refund_reply_raises_failed(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match="refund the payment"):
        refunded(bad)


def test_long_refund_reason_is_cut_to_provider_limit() -> None:
    request = next(STRIPE.refund(payment(), reason="x" * 1000))
    assert dict(parse_qsl(request.content.decode()))["metadata[reason]"] == "x" * 500


TALKS: list[Callable[[StripeGateway, Elicitation], Talk[Any]]] = [
    lambda gateway, asked: gateway.begin(prepared(replace(asked, attempt=None)), TRIP),
    lambda gateway, asked: gateway.fetch(asked, "cs_test_1"),
    lambda gateway, asked: gateway.close(asked, "cs_test_1"),
]


def test_checkout_about_to_close_is_not_reused() -> None:
    first = begun()
    assert first.attempt is not None
    until = msgspec.convert(first.attempt.kept, StoredCheckout).expires_at
    late = dataclasses.replace(TRIP, now=datetime.fromtimestamp(until - 120, UTC))
    fresh = msgspec.convert(STRIPE.prepare(first, late), StoredCheckout)
    assert (fresh.session, fresh.url) == (None, None)


def test_secret_key_prefix_determines_live_mode() -> None:
    assert [stripe(f"{kind}_x", []).is_live for kind in ("sk_live", "rk_live")] == [True, True]
    assert [stripe(f"{kind}_x", []).is_live for kind in ("sk_test", "rk_test")] == [False, False]


@pytest.mark.parametrize(
    "key", ["", "pk_live_x", "whsec_x", "sk_live_ä", "sk_live_x\n", "sk_test_ x"]
)
def test_invalid_secret_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="secret key"):
        stripe(key, ["whsec_x"])


@pytest.mark.parametrize("secret", ["", " "])
def test_an_empty_webhook_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        stripe(KEY, ["whsec_x", secret])
    with pytest.raises(ValueError, match="empty"):
        sandbox_stripe("http://127.0.0.1:8766/stripe", KEY, [secret])


def test_sandbox_with_live_key_is_refused() -> None:
    with pytest.raises(ValueError, match="test key"):
        sandbox_stripe("http://127.0.0.1:8766/stripe", "sk_live_x", [])


def test_own_checkout_domain_of_seller_is_accepted() -> None:
    own = stripe(KEY, [], own_checkout_origins=["https://pay.shop.example"])
    there = reply(session(url="https://pay.shop.example/c/pay/cs_test_1"))
    departure, _ = run(StripeGateway(own).begin(prepared(), TRIP), there)
    assert (departure.url, own.checkout_origins[0]) == (
        "https://pay.shop.example/c/pay/cs_test_1",
        "https://pay.shop.example",
    )


def test_connected_account_is_sent_in_every_request() -> None:
    seller: StripeAccount = stripe(KEY, [], account="acct_1")
    for talk in TALKS:
        request = next(talk(StripeGateway(seller), begun()))
        assert request.headers["Stripe-Account"] == "acct_1"
        own = next(talk(STRIPE, begun()))
        assert own.headers["Stripe-Version"]
        assert "Stripe-Account" not in own.headers
