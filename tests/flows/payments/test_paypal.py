"""PayPal: the requests, the time of the capture, and the meaning of the replies."""

import base64
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flows.elicitation.flow import Redirect, Talk
from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed, InvalidQuestion
from flows.payments.claims import disputed
from flows.payments.gateway import ProviderSession, UnsignedNotice, verify_session, with_returns
from flows.payments.money import Money
from flows.payments.paypal.gateway import (
    ORDER_LIFE,
    PAYPAL,
    PAYPAL_SANDBOX,
    PayPalGateway,
    paypal,
    sandbox_paypal,
)
from flows.payments.paypal.responses import has_lapsed
from flows.payments.receipt import Dispute, Refund, RefundStatus
from flows.payments.session import Malformed, Mismatch, SessionStatus
from tests.support import gateway_env
from tests.support.anything import JSON
from tests.support.checkout_replies import PAYPAL_API as API
from tests.support.checkout_replies import PAYPAL_PAGE as PAGE
from tests.support.checkout_replies import PAYPAL_SELLER as SELLER
from tests.support.checkout_replies import PAYPAL_TOKEN as TOKEN
from tests.support.checkout_replies import paypal_order as order
from tests.support.clock import NOON
from tests.support.gateway_env import BACK, ID, NINE, TRIP, T, reply, stored_checkout

OPEN, PENDING, PAID, FAILED, CLOSED = SessionStatus


def asked(price: Money = NINE, **terms: Any) -> Elicitation:
    return gateway_env.asked("paypal", price, **terms)


def prepared(elicitation: Elicitation | None = None, *, number: int = 1) -> Elicitation:
    return gateway_env.prepared(PayPalGateway(SELLER), elicitation or asked(), number=number)


def begun(elicitation: Elicitation | None = None, *, number: int = 1) -> Elicitation:
    return gateway_env.begun(
        PayPalGateway(SELLER), elicitation or asked(), session="ORDER1", url=PAGE, number=number
    )


def eur(value: str) -> dict[str, str]:
    return {"currency_code": "EUR", "value": value}


def capture(status: str = "COMPLETED", **changes: Any) -> dict[str, Any]:
    return {"id": "CAPTURE1", "status": status, "amount": eur("9.00"), "custom_id": ID, **changes}


def refund(status: str = "COMPLETED", **changes: Any) -> dict[str, Any]:
    return {"id": "REFUND1", "status": status, "amount": eur("9.00"), **changes}


def refusal(issue: str, status: int = 422) -> httpx.Response:
    detail = {"issue": issue, "description": "Your secret hidden-1 is not good for that"}
    return reply({"name": "UNPROCESSABLE_ENTITY", "details": [detail]}, status)


def run(
    talk_of: Callable[[PayPalGateway], Talk[T]], *replies: httpx.Response
) -> tuple[T, list[httpx.Request]]:
    """Run the talk. Return its result, and its requests without the first, which gets a token."""
    result, requests = gateway_env.run(talk_of(PayPalGateway(SELLER)), reply(TOKEN), *replies)
    return result, requests[1:]


def begin(elicitation: Elicitation, *replies: httpx.Response) -> Redirect:
    return run(lambda gateway: gateway.begin(elicitation, TRIP), *replies)[0]


def fetch(answer: dict[str, Any], elicitation: Elicitation | None = None) -> ProviderSession:
    return run(lambda g: g.fetch(elicitation or begun(), "ORDER1"), reply(answer))[0]


def collect(
    elicitation: Elicitation, *replies: httpx.Response
) -> tuple[ProviderSession, list[httpx.Request]]:
    return run(lambda gateway: gateway.collect(elicitation, "ORDER1"), *replies)


def refunded(
    *replies: httpx.Response,
    reason: str | None = None,
    up_to: int | None = None,
    earlier: int = 0,
) -> tuple[Refund, list[httpx.Request]]:
    paid = gateway_env.payment("paypal", session="ORDER1", payment_intent="CAPTURE1")
    paid = replace(paid, refunded=earlier)
    return run(lambda gateway: gateway.refund(paid, reason=reason, up_to=up_to), *replies)


def test_complete_request_is_stored_before_sending() -> None:
    stored = stored_checkout(prepared())
    assert (stored.session, stored.url) == (None, None)
    assert msgspec.json.decode(stored.request) == {
        "intent": "CAPTURE",
        "purchase_units": [
            {
                "reference_id": ID,
                "custom_id": ID,
                "invoice_id": ID,
                "description": "Premium report & more",
                "amount": eur("9.00"),
            }
        ],
        "payment_source": {
            "paypal": {
                "experience_context": {
                    "user_action": "PAY_NOW",
                    "shipping_preference": "NO_SHIPPING",
                    "return_url": f"{BACK}?state=s-1",
                    "cancel_url": f"{BACK}?state=s-1&cancelled=1",
                }
            }
        },
    }


def test_access_token_is_requested_first() -> None:
    _, [request, _] = gateway_env.run(
        PayPalGateway(SELLER).fetch(begun(), "ORDER1"), reply(TOKEN), reply(order())
    )
    pair = base64.b64encode(b"client-1:hidden-1").decode()
    assert (request.method, str(request.url)) == ("POST", f"{API}/v1/oauth2/token")
    assert request.headers["Authorization"] == f"Basic {pair}"
    assert request.content == b"grant_type=client_credentials"


def test_already_paid_order_is_recorded_without_checkout_url() -> None:
    before = prepared()
    assert before.attempt is not None
    attempt = before.attempt
    stored, _ = run(lambda g: g.repeat(before, attempt), reply(order("COMPLETED", capture())))
    assert (stored.session, stored.url) == ("ORDER1", None)
    with pytest.raises(Failed, match="no payment page"):
        begin(before, reply(order("COMPLETED", capture())))


def test_access_token_is_reused_until_refused() -> None:
    gateway = PayPalGateway(SELLER)
    gateway_env.run(gateway.fetch(begun(), "ORDER1"), reply(TOKEN), reply(order()))
    _, requests = gateway_env.run(gateway.fetch(begun(), "ORDER1"), reply(order()))
    assert [request.url.path for request in requests] == ["/v2/checkout/orders/ORDER1"]
    _, requests = gateway_env.run(
        gateway.collect(begun(), "ORDER1"),
        reply(order("APPROVED")),
        refusal("invalid_token", 401),
        reply({**TOKEN, "access_token": "A22"}),
        reply(order("COMPLETED", capture()), 201),
        reply(order("COMPLETED", capture())),
    )
    first, again = requests[1], requests[3]
    assert (first.url, first.content) == (again.url, again.content)
    assert first.headers["PayPal-Request-Id"] == again.headers["PayPal-Request-Id"]
    assert again.headers["Authorization"] == "Bearer A22"


@pytest.mark.parametrize(
    "bad",
    [
        *gateway_env.NO_ANSWERS,
        reply({"error": "invalid_client", "error_description": "hidden-1"}, 401),
        reply({"access_token": ""}),
        reply({"access_token": "a b"}),
        reply({"access_token": "a\r\nX: y"}),
        reply({"access_token": 7}),
    ],
)
def test_no_request_is_sent_without_access_token(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match=r"^PayPal could not issue an access token") as failed:
        gateway_env.run(PayPalGateway(SELLER).begin(prepared(), TRIP), bad)
    assert "hidden" not in str(failed.value)


def test_refused_new_access_token_is_requested_only_once() -> None:
    with pytest.raises(Failed, match="HTTP 401"):
        run(lambda g: g.fetch(begun(), "ORDER1"), refusal("denied", 401))


@pytest.mark.parametrize(
    ("price", "value"),
    [
        (Money("0.29", "USD"), "0.29"),
        (Money("500", "JPY"), "500"),
        (Money("900.00", "HUF"), "900"),
        (Money("900.00", "TWD"), "900"),
        (Money("12345.67", "EUR"), "12345.67"),
    ],
)
def test_amount_is_sent_with_decimals_of_provider(price: Money, value: str) -> None:
    elicitation = begun(asked(price))
    amount = {"currency_code": price.currency, "value": value}
    request = msgspec.json.decode(stored_checkout(elicitation).request)
    assert request["purchase_units"][0]["amount"] == amount
    paid = order("COMPLETED", capture(amount=amount), unit={"amount": amount})
    assert verify_session(elicitation, fetch(paid, elicitation), seller=SELLER) is PAID


@pytest.mark.parametrize(
    "price",
    [Money("900.50", "HUF"), Money("1.50", "TWD"), Money("9.000", "KWD"), Money("9", "ISK")],
)
def test_unchargeable_price_is_refused_before_question(price: Money) -> None:
    gateway = PayPalGateway(SELLER)
    with pytest.raises(InvalidQuestion, match=price.currency):
        gateway.check(price)
    with pytest.raises(InvalidQuestion, match=price.currency):
        gateway.prepare(asked(price), TRIP)
    gateway.check(NINE)


def test_long_description_is_cut_to_provider_limit() -> None:
    request = msgspec.json.decode(stored_checkout(prepared(asked(what="ä" * 100))).request)
    assert request["purchase_units"][0]["description"] == "ä" * 63


@pytest.mark.parametrize(
    "bad",
    [
        refusal("DUPLICATE_INVOICE_ID"),
        reply(order(id="../../payments")),
        reply(order(id="ORDER1\n")),
        reply(order("APPROVING")),
        reply(order(purchase_units=[])),
        reply(order(purchase_units=order()["purchase_units"] * 2)),
        reply(order(unit={"amount": eur("9.01")})),
        reply(order(unit={"amount": eur("900")})),
        reply(order(unit={"amount": eur("9.000000001")})),
        reply(order(unit={"amount": {"currency_code": "EUR", "value": 9.0}})),
        reply(order(unit={"amount": {"currency_code": "USD", "value": "9.00"}})),
        reply(order(unit={"amount": {"currency_code": "eur", "value": "9.00"}})),
        reply(order(unit={"custom_id": "another"})),
        reply(order(unit={"custom_id": None})),
        reply(order(unit={"payee": {"merchant_id": "MERCHANT2"}})),
        reply(order(links=[])),
        reply(order(links=[{"rel": "approve", "href": "https://www.paypal.com/checkoutnow"}])),
    ],
)
def test_invalid_order_reply_fails_with_explanation(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match=r"^PayPal [a-z][^\n]+\.$") as failed:
        begin(prepared(), bad)
    assert "hidden" not in str(failed.value)


def test_order_id_stays_within_its_path_segment() -> None:
    gateway = PayPalGateway(SELLER)
    talk = gateway.fetch(begun(), "../captures?x=1")
    next(talk)
    assert talk.send(reply(TOKEN)).url.raw_path == b"/v2/checkout/orders/..%2Fcaptures%3Fx%3D1"


def test_approved_order_is_captured_once_and_then_fetched() -> None:
    paid = order("COMPLETED", capture())
    session, [asked_first, claimed, asked_again] = collect(
        begun(number=2), reply(order("APPROVED")), reply(paid, 201), reply(paid)
    )
    assert (asked_first.method, asked_again.method) == ("GET", "GET")
    assert (claimed.method, claimed.url.path) == ("POST", "/v2/checkout/orders/ORDER1/capture")
    assert claimed.headers["PayPal-Request-Id"] == f"{ID}:2:ORDER1"
    assert (claimed.content, claimed.headers["Content-Type"]) == (b"{}", "application/json")
    assert "Content-Type" not in asked_first.headers
    assert (session.state, session.payment, session.amount) == (PAID, "CAPTURE1", 900)
    assert verify_session(begun(), session, seller=SELLER) is PAID


def test_capture_with_lost_reply_is_repeated_with_same_key() -> None:
    gateway = PayPalGateway(SELLER)
    talk = gateway.collect(begun(), "ORDER1")
    next(talk)
    talk.send(reply(TOKEN))
    lost = talk.send(reply(order("APPROVED")))
    with pytest.raises(httpx.ReadTimeout):
        talk.throw(httpx.ReadTimeout("lost"))
    _, [_, again, _] = gateway_env.run(
        gateway.collect(begun(), "ORDER1"),
        reply(order("APPROVED")),
        reply(order("COMPLETED", capture())),
        reply(order("COMPLETED", capture())),
    )
    assert (again.content, again.headers) == (lost.content, lost.headers)


@pytest.mark.parametrize(
    ("refused", "afterwards", "state"),
    [
        (refusal("ORDER_ALREADY_CAPTURED"), order("COMPLETED", capture()), PAID),
        (refusal("INSTRUMENT_DECLINED"), order("APPROVED"), OPEN),
        (
            refusal("INSTRUMENT_DECLINED"),
            order("APPROVED", capture("DECLINED")),
            OPEN,
        ),
        (refusal("PAYER_ACTION_REQUIRED"), order(), OPEN),
        (reply({}, 500), order("COMPLETED", capture()), PAID),
        (reply({}, 201), order("COMPLETED", capture("PENDING")), PENDING),
        (httpx.Response(200, text="ok"), order("APPROVED"), OPEN),
    ],
)
def test_order_decides_state_after_failed_capture(
    refused: httpx.Response, afterwards: dict[str, Any], state: SessionStatus
) -> None:
    session, _ = collect(begun(), reply(order("APPROVED")), refused, reply(afterwards))
    assert session.state is state


@pytest.mark.parametrize("status", [status for status in Status if status.is_final])
def test_order_of_ended_question_is_not_captured(status: Status) -> None:
    over = replace(begun(), status=status)
    session, [request] = collect(over, reply(order("APPROVED")))
    assert (request.method, session.state) == ("GET", OPEN)


@pytest.mark.parametrize(
    ("unit", "what"),
    [
        ({"amount": eur("90.00")}, "amount"),
        ({"amount": {"currency_code": "USD", "value": "9.00"}}, "currency"),
        ({"custom_id": "another"}, "reference"),
        ({"payee": {"merchant_id": "MERCHANT2"}}, "account"),
    ],
)
def test_order_with_different_terms_is_not_captured(unit: dict[str, Any], what: str) -> None:
    with pytest.raises(Mismatch) as mismatch:
        collect(begun(), reply(order("APPROVED", unit=unit)))
    assert mismatch.value.what == what


def test_order_without_matching_attempt_is_not_captured() -> None:
    with pytest.raises(Mismatch, match="session"):
        collect(prepared(), reply(order("APPROVED")))


@pytest.mark.parametrize("status", ["CREATED", "PAYER_ACTION_REQUIRED", "VOIDED"])
def test_unapproved_order_is_not_captured(status: str) -> None:
    assert len(collect(begun(), reply(order(status)))[1]) == 1


CLOSES_AT = NOON + ORDER_LIFE
GONE = {"name": "RESOURCE_NOT_FOUND", "details": [{"issue": "INVALID_RESOURCE_ID"}]}


def missing(*dates_sent: datetime | str, status: int = 404) -> httpx.Response:
    """Return PayPal's reply for a missing order, with these Date headers."""
    dates = [at if isinstance(at, str) else format_datetime(at, usegmt=True) for at in dates_sent]
    return httpx.Response(status, json=GONE, headers=[("date", date) for date in dates])


def test_missing_order_counts_as_closed_after_its_expiry() -> None:
    for talk_of in (PayPalGateway.fetch, PayPalGateway.collect):
        session, [request] = run(
            lambda gateway, talk_of=talk_of: talk_of(gateway, begun(), "ORDER1"),  # type: ignore[misc]
            missing(CLOSES_AT),
        )
        assert (request.method, session.state, session.url) == ("GET", CLOSED, None)
        assert verify_session(begun(), session, seller=SELLER) is CLOSED
    assert run(lambda g: g.close(begun(), "ORDER1"), missing(CLOSES_AT))[0] is True


@pytest.mark.parametrize(
    "answer",
    [
        missing(CLOSES_AT - timedelta(seconds=1)),
        missing(CLOSES_AT, CLOSES_AT - timedelta(seconds=1)),
        missing(CLOSES_AT - timedelta(seconds=1), CLOSES_AT),
        missing(),
        missing("noon"),
        missing(CLOSES_AT, "noon"),
        missing(CLOSES_AT, status=503),
        missing(CLOSES_AT, status=400),
    ],
)
def test_missing_order_before_its_expiry_raises_failed(answer: httpx.Response) -> None:
    for talk_of in (PayPalGateway.fetch, PayPalGateway.collect, PayPalGateway.close):
        with pytest.raises(Failed, match="INVALID_RESOURCE_ID"):
            run(lambda gateway, talk_of=talk_of: talk_of(gateway, begun(), "ORDER1"), answer)  # type: ignore[misc]
    with pytest.raises(Failed, match="INVALID_RESOURCE_ID"):
        begin(prepared(), answer)


def test_order_of_earlier_attempt_expires_at_its_own_time() -> None:
    first = begun().attempt
    assert first is not None
    stored = replace(
        stored_checkout(begun()),
        session="ORDER2",
        expires_at=stored_checkout(begun()).expires_at + 60,
    )
    latest = replace(first, number=2, kept=msgspec.to_builtins(stored))
    both = replace(begun(), attempt=latest, earlier_attempts=(first,))
    session, _ = run(lambda g: g.fetch(both, "ORDER1"), missing(CLOSES_AT))
    assert session.state is CLOSED
    with pytest.raises(Failed):
        run(lambda g: g.fetch(both, "ORDER2"), missing(CLOSES_AT))


def test_order_expired_before_its_id_was_known_opens_no_checkout() -> None:
    before = prepared()
    assert before.attempt is not None
    attempt = before.attempt
    stored, _ = run(lambda g: g.repeat(before, attempt), missing(CLOSES_AT))
    assert stored == stored_checkout(before)
    with pytest.raises(Failed, match="no payment page"):
        begin(before, missing(CLOSES_AT))


def test_missing_order_does_not_change_its_disputed_payment() -> None:
    """A lost dispute stays lost, even if PayPal no longer knows the payment's order."""
    session, _ = run(lambda g: g.fetch(begun(), "ORDER1"), missing(CLOSES_AT))
    paid = gateway_env.payment("paypal", session="ORDER1", payment_intent="CAPTURE1")
    lost = disputed(paid, "ORDER1", Dispute.LOST)
    assert with_returns(lost, session, now=CLOSES_AT) == lost


def test_fetch_does_not_capture() -> None:
    _, requests = run(lambda g: g.fetch(begun(), "ORDER1"), reply(order("APPROVED")))
    assert [request.method for request in requests] == ["GET"]


@pytest.mark.parametrize(
    ("answer", "verified"),
    [
        (order("CREATED"), OPEN),
        (order("SAVED"), OPEN),
        (order("APPROVED"), OPEN),
        (order("VOIDED"), CLOSED),
        (order("COMPLETED", capture("PENDING")), PENDING),
        (order("COMPLETED", capture()), PAID),
        (order("COMPLETED", capture("DECLINED")), FAILED),
        (order("COMPLETED", capture("FAILED")), FAILED),
        (order("COMPLETED", capture("DECLINED", id="C0"), capture()), PAID),
        (
            order(
                "COMPLETED",
                capture("PARTIALLY_REFUNDED"),
                refunds=[refund(amount=eur("4.00")), refund("CANCELLED")],
            ),
            PAID,
        ),
        (order("COMPLETED", capture("REFUNDED")), FAILED),
        (order("COMPLETED", capture("REVERSED")), FAILED),
        (order("COMPLETED", capture("REFUNDED"), refunds=[refund("PENDING")]), FAILED),
    ],
)
def test_each_order_status_is_verified_as_expected(
    answer: dict[str, Any], verified: SessionStatus
) -> None:
    assert verify_session(begun(), fetch(answer), seller=SELLER) is verified


def test_pending_capture_counts_as_paid_when_completed() -> None:
    pending = fetch(order("COMPLETED", capture("PENDING")))
    assert (pending.state, pending.payment) == (PENDING, None)
    paid = fetch(order("COMPLETED", capture()))
    assert (paid.state, paid.payment) == (PAID, "CAPTURE1")


def test_refunds_of_capture_are_counted() -> None:
    refunds = [refund(amount=eur("4.00")), refund("FAILED"), refund("PENDING", amount=eur("1"))]
    assert fetch(order("COMPLETED", capture(), refunds=refunds)).refunded == 500


@pytest.mark.parametrize(
    "captures",
    [
        [capture(amount=eur("8.99"))],
        [capture(amount=eur("4.50")), capture(amount=eur("4.51"))],
        [capture(amount={"currency_code": "USD", "value": "9.00"})],
    ],
)
def test_capture_of_another_amount_settles_nothing(captures: list[dict[str, Any]]) -> None:
    with pytest.raises(Mismatch):
        verify_session(begun(), fetch(order("COMPLETED", *captures)), seller=SELLER)


@pytest.mark.parametrize(
    "bad",
    [
        order(id="ORDER2"),
        order("COMPLETED"),
        order("COMPLETED", capture(amount=eur("9,00"))),
        order("COMPLETED", capture(), capture(amount={"currency_code": "USD", "value": "1.00"})),
        order("COMPLETED", capture(), refunds=[refund(amount=eur("-4.00"))]),
    ],
)
def test_invalid_fetch_reply_raises_failed(bad: dict[str, Any]) -> None:
    with pytest.raises(Failed, match="report the status of the payment"):
        fetch(bad)


@pytest.mark.parametrize(
    ("answer", "is_closed"),
    [
        (order(), True),
        (order("APPROVED"), True),
        (order("VOIDED"), True),
        (order("COMPLETED", capture("DECLINED")), True),
        (order("COMPLETED", capture("PENDING")), False),
        (order("COMPLETED", capture()), False),
    ],
)
def test_closing_an_order_sends_no_capture_request(answer: dict[str, Any], is_closed: bool) -> None:
    result, [request] = run(lambda g: g.close(begun(), "ORDER1"), reply(answer))
    assert (result, request.method) == (is_closed, "GET")


def test_refund_uses_idempotency_key_of_its_receipt() -> None:
    answered, [request] = refunded(reply(refund(), 201), reason="No seats left")
    assert (request.method, request.url.path) == ("POST", "/v2/payments/captures/CAPTURE1/refund")
    assert request.headers["PayPal-Request-Id"] == "refund:ownertag-r_1"
    assert msgspec.json.decode(request.content) == {"custom_id": ID}
    assert answered == Refund(id="REFUND1", price=NINE, status=RefundStatus.SUCCEEDED)
    _, [again] = refunded(reply(refund()), reason="another reason")
    assert (again.content, again.headers) == (request.content, request.headers)


def test_two_partial_refunds_of_same_size_are_each_made_once() -> None:
    # finding: M8
    first, second = (refund(id=id, amount=eur("3.00")) for id in ("REFUND1", "REFUND2"))
    before = reply(order("COMPLETED", capture()))
    between = reply(order("COMPLETED", capture(), refunds=[first]))
    after = reply(order("COMPLETED", capture(), refunds=[first, second]))
    one, [_, request] = refunded(before, reply(first, 201), up_to=300)
    two, [_, other] = refunded(between, reply(second, 201), up_to=600)
    assert one.price == two.price == Money("3.00", "EUR")
    assert msgspec.json.decode(request.content) == {"custom_id": ID, "amount": eur("3.00")}
    assert msgspec.json.decode(other.content) == msgspec.json.decode(request.content)
    assert request.headers["PayPal-Request-Id"] != other.headers["PayPal-Request-Id"]
    for up_to in (300, 600):  # 300 is requested again by a store that has lost both
        there, [_] = refunded(after, up_to=up_to)
        assert there.price == Money("6.00", "EUR")


def test_recorded_refund_that_the_list_lacks_is_not_made_again() -> None:
    first, second = (
        refund(id="REFUND1", amount=eur("3.00")),
        refund(id="REFUND2", amount=eur("3.00")),
    )
    outdated, current = (
        reply(order("COMPLETED", capture(), refunds=[])),
        reply(order("COMPLETED", capture(), refunds=[first])),
    )
    keys = set()
    for listed in (outdated, current):
        _, [_, request] = refunded(listed, reply(second, 201), up_to=600, earlier=300)
        assert msgspec.json.decode(request.content)["amount"] == eur("3.00")
        keys.add(request.headers["PayPal-Request-Id"])
    assert len(keys) == 1
    found, [_] = refunded(outdated, up_to=300, earlier=300)
    assert (found.price, found.status) == (Money("3.00", "EUR"), RefundStatus.PENDING)


def test_part_refund_after_a_failed_one_of_the_same_amount_is_another_request() -> None:
    lost = refund("FAILED", id="REFUND1", amount=eur("3.00"))
    second = refund(id="REFUND2", amount=eur("3.00"))
    keys = set()
    for listed in ([], [lost]):
        found = reply(order("COMPLETED", capture(), refunds=listed))
        _, [_, request] = refunded(found, reply(second, 201), up_to=300)
        keys.add(request.headers["PayPal-Request-Id"])
    assert len(keys) == 2


def test_pending_refund_reports_remaining_amount() -> None:
    answered, _ = refunded(reply(refund("PENDING", amount=eur("5.00")), 201))
    assert (answered.status, answered.price) == (RefundStatus.PENDING, Money("5.00", "EUR"))


@pytest.mark.parametrize("issue", ["CAPTURE_FULLY_REFUNDED", "REFUND_AMOUNT_EXCEEDED"])
def test_refused_repeat_refund_returns_existing_refund(issue: str) -> None:
    there = order("COMPLETED", capture("REFUNDED"), refunds=[refund("FAILED", id="R0"), refund()])
    answered, [_, second] = refunded(refusal(issue), reply(there))
    assert (second.method, second.url.path) == ("GET", "/v2/checkout/orders/ORDER1")
    assert (answered.id, answered.price) == ("REFUND1", NINE)


def test_refund_in_another_currency_is_ignored() -> None:
    other = refund(id="R0", amount={"currency_code": "USD", "value": "0.10"})
    there = order("COMPLETED", capture("REFUNDED"), refunds=[other, refund()])
    answered, _ = refunded(refusal("CAPTURE_FULLY_REFUNDED"), reply(there))
    assert (answered.id, answered.price) == ("REFUND1", NINE)


def test_manual_refunds_of_full_amount_count_as_refund() -> None:
    halves = [
        refund(amount=eur("4.00")),
        refund("PENDING", id="REFUND2", amount=eur("5.00")),
    ]
    there = order("COMPLETED", capture("REFUNDED"), refunds=halves)
    answered, _ = refunded(refusal("CAPTURE_FULLY_REFUNDED"), reply(there))
    assert (answered.price, answered.status) == (NINE, RefundStatus.PENDING)


@pytest.mark.parametrize(
    "there",
    [
        reply(order("COMPLETED", capture())),
        reply(order("COMPLETED", capture(), refunds=[refund(amount=eur("8.99"))])),
        reply(order("COMPLETED", capture(), refunds=[refund("FAILED")])),
        reply(order("COMPLETED", capture(), refunds=[refund(amount=eur("nine"))])),
        reply(
            order(
                "COMPLETED",
                capture(),
                refunds=[refund(amount={"currency_code": "USD", "value": "9.00"})],
            )
        ),
        reply(order("COMPLETED", capture("REFUNDED"), refunds=[refund()], id="ORDER2")),
        refusal("RESOURCE_NOT_FOUND", 404),
    ],
)
def test_refused_refund_without_existing_refund_raises_failed(there: httpx.Response) -> None:
    with pytest.raises(Failed, match="refund the payment"):
        refunded(refusal("TRANSACTION_DISPUTED"), there)


@pytest.mark.parametrize(
    "bad",
    [
        reply(refund("FAILED"), 201),
        reply(refund("CANCELLED"), 201),
        reply(refund(amount=eur("9.01")), 201),
        reply(refund(amount=eur("0.00")), 201),
        reply(refund(amount=eur("9.005")), 201),
        reply(refund(amount={"currency_code": "USD", "value": "9.00"}), 201),
        reply({}),
        httpx.Response(200, text="ok"),
    ],
)
def test_invalid_refund_reply_raises_failed(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match="refund the payment"):
        refunded(bad)


def webhook(kind: str = "PAYMENT.CAPTURE.COMPLETED", **resource: Any) -> bytes:
    return msgspec.json.encode(
        {
            "id": "WH-1",
            "event_type": kind,
            "resource": resource
            or {
                "id": "CAPTURE1",
                "custom_id": ID,
                "status": "COMPLETED",
                "supplementary_data": {"related_ids": {"order_id": "ORDER1"}},
            },
        }
    )


def notice(body: bytes) -> UnsignedNotice | None:
    return PayPalGateway(SELLER).read_unsigned(body, query="")


@pytest.mark.parametrize(
    "kind",
    [f"PAYMENT.CAPTURE.{what}" for what in ("COMPLETED", "DENIED", "PENDING", "REVERSED")],
)
def test_capture_event_names_order_to_fetch(kind: str) -> None:
    assert notice(webhook(kind)) == UnsignedNotice(
        id="WH-1", type=kind, reference=ID, session="ORDER1"
    )


def test_approved_order_event_names_order_to_fetch() -> None:
    body = webhook("CHECKOUT.ORDER.APPROVED", id="ORDER1", purchase_units=[{"custom_id": ID}])
    found = notice(body)
    assert found is not None
    assert (found.reference, found.session) == (ID, "ORDER1")


def test_refund_event_without_order_still_names_our_reference() -> None:
    found = notice(webhook("PAYMENT.CAPTURE.REFUNDED", id="REFUND1", custom_id=ID))
    assert found is not None
    assert (found.reference, found.session) == (ID, None)


def above(href: str, *, rel: str = "up", **resource: Any) -> UnsignedNotice | None:
    """Return the notice read from PayPal's published refund sample, with a link to `href`."""
    links = [
        {"rel": "self", "href": f"{API}/v2/payments/refunds/REFUND1", "method": "GET"},
        {"rel": rel, "href": href, "method": "GET"},
    ]
    sample = {"status": "COMPLETED", "amount": eur("0.99"), "links": links, "id": "REFUND1"}
    return notice(webhook("PAYMENT.CAPTURE.REFUNDED", **sample, **resource))


@pytest.mark.parametrize("place", [API, "https://api.paypal.com", "http://127.0.0.1:8766/paypal"])
def test_manual_refund_event_names_its_capture_by_link(place: str) -> None:
    found = above(f"{place}/v2/payments/captures/0JF852973C016714D")
    assert found is not None
    assert (found.reference, found.session) == (None, None)
    assert found.payment == "0JF852973C016714D"


@pytest.mark.parametrize(
    "href",
    [
        "",
        f"{API}/v2/payments/captures/",
        f"{API}/v2/payments/captures/../refunds",
        f"{API}/v2/payments/captures/C1/refund",
        f"{API}/v2/payments/captures/C1?x=1",
        f"{API}/v2/payments/captures/C1\n",
        f"{API}/v2/payments/captures/C%2F1",
        f"{API}/v2/payments/captures/{'C' * 256}",
        f"{API}/v2/payments/authorizations/C1",
        f"{API}/?x=/v2/payments/captures/C1",
        "javascript:/v2/payments/captures/C1",
    ],
)
def test_link_without_capture_id_is_ignored(href: str) -> None:
    found = above(href)
    assert found is not None
    assert found.payment is None


def test_link_with_another_relation_is_ignored() -> None:
    found = above(f"{API}/v2/payments/captures/C1", rel="next")
    assert found is not None
    assert found.payment is None


def traced(answer: httpx.Response, payment: str = "CAPTURE1") -> str | None:
    return run(lambda gateway: gateway.trace(payment), answer)[0]


def test_capture_is_traced_to_its_question() -> None:
    found, [request] = run(lambda g: g.trace("CAPTURE1"), reply(capture("REFUNDED")))
    assert (found, request.method) == (ID, "GET")
    assert str(request.url) == f"{API}/v2/payments/captures/CAPTURE1"


@pytest.mark.parametrize(
    "answer",
    [
        refusal("INVALID_RESOURCE_ID", 404),
        reply(capture(custom_id=None)),
        reply({"id": "CAPTURE1"}),
        *(
            reply(capture(custom_id=words))
            for words in ("Order #12", "", "../x", "x\n", "a" * 201, "ä")
        ),
    ],
)
def test_capture_of_another_shop_is_traced_to_no_question(answer: httpx.Response) -> None:
    assert traced(answer) is None


@pytest.mark.parametrize(
    "bad",
    [
        *gateway_env.NO_ANSWERS,
        refusal("INTERNAL_SERVER_ERROR", 500),
        reply(capture(id="CAPTURE2")),
        reply(capture(custom_id=7)),
    ],
)
def test_invalid_capture_reply_raises_failed(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match="PayPal could not report the purpose of a payment"):
        traced(bad)


def test_event_of_another_kind_is_ignored() -> None:
    assert notice(webhook("BILLING.PLAN.CREATED")) is None
    assert notice(b'{"id": "WH-1", "event_type": "X.Y", "resource": 7}') is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        webhook(id="../x", custom_id=ID),
        webhook(id="C", custom_id="../x"),
        webhook(id="C", custom_id=7),
        webhook(id="C", supplementary_data={"related_ids": {"order_id": "a/b"}}),
        webhook("CHECKOUT.ORDER.APPROVED", id="ORDER1", purchase_units=7),
        webhook("PAYMENT.CAPTURE.REFUNDED", id="REFUND1", links=7),
        webhook("PAYMENT.CAPTURE.REFUNDED", id="REFUND1", links=[{"rel": "up"}]),
    ],
)
def test_malformed_event_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        notice(body)


def test_live_and_test_mode_use_different_addresses() -> None:
    live = paypal("id", "secret", is_live=True)
    assert (live.api, live.checkout_origins[0]) == (
        "https://api-m.paypal.com",
        "https://www.paypal.com",
    )
    assert fetch(order()).is_live is False
    assert (live.certificates, SELLER.certificates) == (PAYPAL, PAYPAL_SANDBOX)


@pytest.mark.parametrize("bad", ["", "a:b", "a b", "ä", "a\n"])
def test_invalid_client_credentials_are_refused(bad: str) -> None:
    for pair in ((bad, "secret"), ("id", bad)):
        with pytest.raises(ValueError, match="client id and secret"):
            paypal(*pair, is_live=False)
        with pytest.raises(ValueError, match="client id and secret"):
            sandbox_paypal("http://127.0.0.1:8766", *pair)


@pytest.mark.parametrize("bad", ["", "a-b", "a b", "ä", "a" * 65])
def test_invalid_webhook_id_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="id of a PayPal webhook"):
        paypal("id", "secret", is_live=False, webhook_ids=("1JE", bad))
    with pytest.raises(ValueError, match="id of a PayPal webhook"):
        sandbox_paypal("http://127.0.0.1:8766", "id", "secret", webhook_ids=(bad,))


@given(st.text())
def test_random_date_header_raises_nothing(text: str) -> None:
    dated = httpx.Response(404, headers=[(b"date", text.encode())])
    assert has_lapsed(dated, until=0) in (True, False)


@given(st.dictionaries(st.sampled_from(["amount", "custom_id", "payee", "payments"]), JSON))
def test_random_order_content_is_verified_or_raises_our_errors(
    unit: dict[str, Any],
) -> None:
    with suppress(Failed, Mismatch):
        session = fetch(order("COMPLETED", unit=unit))
        assert verify_session(begun(), session, seller=SELLER) in SessionStatus


@given(st.binary() | JSON.map(msgspec.json.encode))
def test_random_webhook_is_read_or_raises_malformed(body: bytes) -> None:
    with suppress(Malformed):
        assert notice(body) is None
