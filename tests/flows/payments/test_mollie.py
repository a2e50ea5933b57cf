"""Mollie: the requests, the meaning of the replies, and webhooks that only name a payment."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flows.elicitation.flow import Redirect, Talk
from flows.elicitation.states import Elicitation, Json
from flows.errors import Failed, Unverified
from flows.payments.gateway import ProviderSession, UnsignedNotice, verify_session
from flows.payments.mollie.gateway import MollieGateway, mollie, sandbox_mollie
from flows.payments.money import Money
from flows.payments.receipt import Refund, RefundStatus
from flows.payments.session import Mismatch, SessionStatus
from tests.support import gateway_env
from tests.support.anything import JSON
from tests.support.checkout_replies import MOLLIE_API as API
from tests.support.checkout_replies import MOLLIE_HOOKS as HOOKS
from tests.support.checkout_replies import MOLLIE_KEY as KEY
from tests.support.checkout_replies import MOLLIE_PAGE as PAGE
from tests.support.checkout_replies import MOLLIE_SELLER as SELLER
from tests.support.checkout_replies import mollie_payment as payment
from tests.support.clock import NOON
from tests.support.gateway_env import BACK, ID, NINE, TRIP, reply, run, stored_checkout

OPEN, PENDING, PAID, FAILED, CLOSED = SessionStatus

GATEWAY = MollieGateway(SELLER)


def asked(price: Money = NINE, **terms: Any) -> Elicitation:
    return gateway_env.asked("mollie", price, **terms)


def prepared(elicitation: Elicitation | None = None, *, number: int = 1) -> Elicitation:
    return gateway_env.prepared(GATEWAY, elicitation or asked(), number=number)


def begun(elicitation: Elicitation | None = None) -> Elicitation:
    return gateway_env.begun(GATEWAY, elicitation or asked(), session="tr_1", url=PAGE)


def eur(value: str) -> dict[str, str]:
    return {"currency": "EUR", "value": value}


def refund(status: str = "queued", **changes: Any) -> dict[str, Any]:
    return {
        "resource": "refund",
        "id": "re_1",
        "amount": eur("9.00"),
        "status": status,
        "metadata": {"receipt": "ownertag-r_1", "elicitation": ID},
        **changes,
    }


def refunds(*there: dict[str, Any]) -> httpx.Response:
    return reply({"count": len(there), "_embedded": {"refunds": list(there)}, "_links": {}})


def refusal(field: str | None = None, status: int = 422) -> httpx.Response:
    detail = f"Your key {KEY} is not good for that"
    return reply({"status": status, "title": "No", "detail": detail, "field": field}, status)


def begin(elicitation: Elicitation, *replies: httpx.Response) -> Redirect:
    return run(GATEWAY.begin(elicitation, TRIP), *replies)[0]


def fetch(answer: Any, elicitation: Elicitation | None = None) -> ProviderSession:
    return run(GATEWAY.fetch(elicitation or begun(), "tr_1"), reply(answer))[0]


def refunded(
    *replies: httpx.Response,
    reason: str | None = None,
    up_to: int | None = None,
    earlier: int = 0,
) -> tuple[Refund, list[httpx.Request]]:
    paid = gateway_env.payment("mollie", session="tr_1", payment_intent="tr_1")
    paid = replace(paid, refunded=earlier)
    return run(GATEWAY.refund(paid, reason=reason, up_to=up_to), *replies)


def test_complete_request_is_stored_before_sending() -> None:
    stored = stored_checkout(prepared())
    assert (stored.session, stored.url) == (None, None)
    assert msgspec.json.decode(stored.request) == {
        "amount": eur("9.00"),
        "description": "Premium report & more",
        "redirectUrl": f"{BACK}?state=s-1",
        "cancelUrl": f"{BACK}?state=s-1&cancelled=1",
        "webhookUrl": f"{HOOKS}?elicitation={ID}",
        "metadata": {"elicitation": ID},
    }


def test_server_without_public_address_sends_no_webhook_url() -> None:
    stored = msgspec.convert(MollieGateway(mollie(KEY)).prepare(asked(), TRIP), dict[str, Any])
    assert "webhookUrl" not in msgspec.json.decode(stored["request"])


def test_checkout_is_reused_until_mollie_expiry() -> None:
    until = NOON + timedelta(minutes=40)
    stored = begin(prepared(), reply(payment(expiresAt=until.isoformat()), 201)).attempt_data
    before = prepared()
    assert before.attempt is not None
    opened = replace(before, attempt=replace(before.attempt, kept=stored))
    assert stored_checkout(opened).expires_at == until.timestamp()
    assert GATEWAY.prepare(opened, TRIP) == stored
    assert run(GATEWAY.begin(opened, TRIP)) == (Redirect(url=PAGE), [])
    late = dataclasses.replace(TRIP, now=until - timedelta(minutes=1))
    assert GATEWAY.prepare(opened, late) != stored


@pytest.mark.parametrize(
    ("price", "value"),
    [
        (Money("0.29", "USD"), "0.29"),
        (Money("500", "JPY"), "500"),
        (Money("900.50", "HUF"), "900.50"),
        (Money("5", "ISK"), "5"),
        (Money("12345.67", "EUR"), "12345.67"),
    ],
)
def test_amount_is_sent_with_decimals_of_provider(price: Money, value: str) -> None:
    elicitation = begun(asked(price))
    amount = {"currency": price.currency, "value": value}
    assert msgspec.json.decode(stored_checkout(elicitation).request)["amount"] == amount
    paid = fetch(payment("paid", amount=amount), elicitation)
    assert verify_session(elicitation, paid, seller=SELLER) is PAID


@pytest.mark.parametrize(
    "bad",
    [
        refusal("amount"),
        refusal(status=401),
        reply(payment(id="ord_1"), 201),
        reply(payment(id="tr_../x"), 201),
        reply(payment(id="tr_1\n"), 201),
        reply(payment("opened"), 201),
        reply(payment(mode="live"), 201),
        reply(payment(mode="both"), 201),
        reply(payment(amount=eur("9.01")), 201),
        reply(payment(amount=eur("900")), 201),
        reply(payment(amount={"currency": "EUR", "value": 9.0}), 201),
        reply(payment(amount={"currency": "USD", "value": "9.00"}), 201),
        reply(payment(metadata=None), 201),
        reply(payment(metadata=[]), 201),
        reply(payment(metadata=f'{{"elicitation": "{ID}"}}'), 201),
        reply(payment(metadata={"elicitation": "another"}), 201),
        reply(payment(metadata={"elicitation": [ID]}), 201),
        reply(payment(profileId="pfl_2"), 201),
        reply(payment(expiresAt="tomorrow"), 201),
        reply(payment(expiresAt="2026-01-02T12:00:00"), 201),
        reply(payment(_links={}), 201),
        reply(payment("canceled"), 201),
        reply(payment(_links={"checkout": {"href": "https://mollie.com/checkout/1"}}), 201),
    ],
)
def test_invalid_payment_reply_fails_with_explanation(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match=r"^Mollie [a-z][^\n]+\.$") as failed:
        begin(prepared(), bad)
    assert "hidden" not in str(failed.value)


def test_payment_is_fetched_by_id() -> None:
    session, [request] = run(GATEWAY.fetch(begun(), "tr_1"), reply(payment("paid")))
    assert (request.method, str(request.url)) == ("GET", f"{API}/v2/payments/tr_1")
    assert (session.state, session.payment, session.url) == (PAID, "tr_1", None)
    assert next(GATEWAY.collect(begun(), "tr_1")).method == "GET"
    path = next(GATEWAY.fetch(begun(), "../refunds?x=1")).url.raw_path
    assert path == b"/v2/payments/..%2Frefunds%3Fx%3D1"


@pytest.mark.parametrize(
    ("answer", "verified"),
    [
        (payment(), OPEN),
        (payment("pending"), PENDING),
        (payment("authorized"), PENDING),
        (payment("paid"), PAID),
        (payment("canceled"), CLOSED),
        (payment("expired"), CLOSED),
        (payment("failed"), FAILED),
        (payment("paid", amountRefunded=eur("0.00")), PAID),
        (payment("paid", amountRefunded=eur("4.00")), PAID),
        (payment("paid", amountRefunded=eur("9.00")), FAILED),
        (payment("paid", amountRefunded=eur("14.00")), FAILED),
        (payment("paid", amountChargedBack=eur("9.00")), FAILED),
    ],
)
def test_each_mollie_status_is_verified_as_expected(
    answer: dict[str, Any], verified: SessionStatus
) -> None:
    assert verify_session(begun(), fetch(answer), seller=SELLER) is verified


def test_refunds_and_chargebacks_are_counted() -> None:
    back = {"amountRefunded": eur("4.00"), "amountChargedBack": eur("1.00")}
    found = fetch(payment("paid", **back))
    assert (found.refunded, found.charged_back) == (400, 100)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"amount": eur("90.00")}, "amount"),
        ({"amount": {"currency": "USD", "value": "9.00"}}, "currency"),
        ({"metadata": {"elicitation": "another"}}, "reference"),
        ({"mode": "live"}, "mode"),
        ({"profileId": "pfl_2"}, "account"),
    ],
)
def test_payment_of_another_question_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(Mismatch) as mismatch:
        verify_session(begun(), fetch(payment("paid", **changes)), seller=SELLER)
    assert mismatch.value.what == what


def test_payment_without_matching_attempt_is_refused() -> None:
    with pytest.raises(Mismatch, match="session"):
        verify_session(prepared(), fetch(payment("paid")), seller=SELLER)


@pytest.mark.parametrize(
    "bad",
    [
        payment(id="tr_2"),
        payment("paid", amount=eur("9,00")),
        payment("paid", amountRefunded={"currency": "USD", "value": "1.00"}),
        payment("paid", amountRefunded=eur("-1.00")),
    ],
)
def test_invalid_fetch_reply_raises_failed(bad: dict[str, Any]) -> None:
    with pytest.raises(Failed, match="report the status of the payment"):
        fetch(bad)


def test_cancelable_payment_is_canceled() -> None:
    is_closed, requests = run(
        GATEWAY.close(begun(), "tr_1"),
        reply(payment(isCancelable=True)),
        reply(payment("canceled")),
        reply(payment("canceled")),
    )
    assert is_closed
    assert [(one.method, one.url.path) for one in requests] == [
        ("GET", "/v2/payments/tr_1"),
        ("DELETE", "/v2/payments/tr_1"),
        ("GET", "/v2/payments/tr_1"),
    ]


def test_just_paid_payment_is_not_closed() -> None:
    is_closed, _ = run(
        GATEWAY.close(begun(), "tr_1"),
        reply(payment(isCancelable=True)),
        refusal(),
        reply(payment("paid")),
    )
    assert not is_closed


@pytest.mark.parametrize(
    ("status", "is_closed"),
    [
        ("canceled", True),
        ("expired", True),
        ("failed", True),
        ("pending", False),
        ("authorized", False),
        ("paid", False),
    ],
)
def test_ended_payment_is_not_canceled(status: str, is_closed: bool) -> None:
    result, [request] = run(
        GATEWAY.close(begun(), "tr_1"), reply(payment(status, isCancelable=True))
    )
    assert (result, request.method) == (is_closed, "GET")


@pytest.mark.parametrize(
    "replies",
    [
        [reply(payment())],
        [reply(payment(isCancelable=None))],
        [reply(payment(isCancelable=True)), refusal(), reply(payment(isCancelable=True))],
        [reply(payment(isCancelable=True)), reply({}), reply({}, 500)],
    ],
)
def test_payment_remaining_open_raises_failed(replies: list[httpx.Response]) -> None:
    with pytest.raises(Failed):
        run(GATEWAY.close(begun(), "tr_1"), *replies)


def test_refund_first_lists_existing_refunds() -> None:
    answered, [look, request] = refunded(refunds(), reply(refund(), 201), reason="No seats")
    assert (look.method, look.url.path) == ("GET", "/v2/payments/tr_1/refunds")
    assert (request.method, request.url.path) == ("POST", "/v2/payments/tr_1/refunds")
    assert request.headers["Idempotency-Key"] == "refund:ownertag-r_1:900"
    assert msgspec.json.decode(request.content) == {
        "amount": eur("9.00"),
        "metadata": {"receipt": "ownertag-r_1", "elicitation": ID, "reason": "No seats"},
    }
    assert answered == Refund(id="re_1", price=NINE, status=RefundStatus.PENDING)


def test_refund_with_lost_reply_is_not_repeated() -> None:
    answered, [look] = refunded(refunds(refund("refunded")))
    assert look.method == "GET"
    assert answered == Refund(id="re_1", price=NINE, status=RefundStatus.SUCCEEDED)


def test_only_remainder_is_refunded_after_manual_refund() -> None:
    by_hand = refund("refunded", id="re_0", amount=eur("4.00"), metadata=None)
    rest = refund("pending", amount=eur("5.00"))
    answered, [_, request] = refunded(refunds(by_hand), reply(rest, 201))
    assert msgspec.json.decode(request.content)["amount"] == eur("5.00")
    assert request.headers["Idempotency-Key"] == "refund:ownertag-r_1:500"
    assert answered.price == Money("5.00", "EUR")
    again, _ = refunded(refunds(by_hand, rest))
    assert (again.id, again.price, again.status) == ("re_1", NINE, RefundStatus.PENDING)


def test_two_partial_refunds_of_same_size_are_each_made_once() -> None:
    # finding: M8
    first, second = (refund(id=id, amount=eur("3.00")) for id in ("re_1", "re_2"))
    one, [_, request] = refunded(refunds(), reply(first, 201), up_to=300)
    two, [_, other] = refunded(refunds(first), reply(second, 201), up_to=600)
    assert one.price == two.price == Money("3.00", "EUR")
    assert msgspec.json.decode(request.content)["amount"] == eur("3.00")
    assert msgspec.json.decode(other.content)["amount"] == eur("3.00")
    assert request.headers["Idempotency-Key"] != other.headers["Idempotency-Key"]
    for up_to in (300, 600):  # 300 is requested again by a store that has lost both
        there, [_] = refunded(refunds(first, second), up_to=up_to)
        assert there.price == Money("6.00", "EUR")


def test_recorded_refund_that_the_list_lacks_is_not_made_again() -> None:
    first, second = refund(id="re_1", amount=eur("3.00")), refund(id="re_2", amount=eur("3.00"))
    outdated, current = refunds(), refunds(first)
    keys = set()
    for listed in (outdated, current):
        _, [_, request] = refunded(listed, reply(second, 201), up_to=600, earlier=300)
        assert msgspec.json.decode(request.content)["amount"] == eur("3.00")
        keys.add(request.headers["Idempotency-Key"])
    assert len(keys) == 1
    found, [_] = refunded(outdated, up_to=300, earlier=300)
    assert (found.price, found.status) == (Money("3.00", "EUR"), RefundStatus.PENDING)


def test_excess_manual_refund_counts_as_full_refund() -> None:
    more = refund("refunded", id="re_0", amount=eur("14.00"), metadata=None)
    answered, _ = refunded(refunds(more))
    assert (answered.id, answered.price) == ("re_0", NINE)


@pytest.mark.parametrize("status", ["failed", "canceled"])
def test_failed_or_canceled_refund_is_made_again(status: str) -> None:
    answered, requests = refunded(refunds(refund(status, id="re_0")), reply(refund(), 201))
    assert (len(requests), answered.id) == (2, "re_1")


def test_concurrent_refunds_result_in_a_single_refund() -> None:
    answered, requests = refunded(refunds(), refusal(status=409), refunds(refund()))
    assert [one.method for one in requests] == ["GET", "POST", "GET"]
    assert answered.id == "re_1"


@pytest.mark.parametrize(
    "listed",
    [
        refunds(),
        refunds(refund(amount=eur("8.99"))),
        refunds(refund("failed")),
        refunds(refund(amount=eur("nine"))),
        refunds(refund(amount={"currency": "USD", "value": "9.00"})),
        reply({"_embedded": {"refunds": "none"}}),
        refusal(status=429),
    ],
)
def test_refused_refund_without_existing_refund_raises_failed(listed: httpx.Response) -> None:
    with pytest.raises(Failed, match="refund the payment"):
        refunded(refunds(), refusal("amount"), listed)


def test_refund_is_not_sent_if_refunds_cannot_be_listed() -> None:
    with pytest.raises(Failed, match="refund the payment"):
        refunded(reply({}, 503))


@pytest.mark.parametrize(
    "bad",
    [
        reply(refund("failed"), 201),
        reply(refund("canceled"), 201),
        reply(refund("done"), 201),
        reply(refund(amount=eur("9.01")), 201),
        reply(refund(amount=eur("0.00")), 201),
        reply(refund(amount=eur("9.005")), 201),
        reply(refund(amount={"currency": "USD", "value": "9.00"}), 201),
        reply({}, 201),
        httpx.Response(201, text="ok"),
    ],
)
def test_invalid_refund_reply_raises_failed(bad: httpx.Response) -> None:
    with pytest.raises(Failed, match="refund the payment"):
        refunded(refunds(), bad)


def notice(body: bytes, query: str = f"elicitation={ID}") -> UnsignedNotice | None:
    return GATEWAY.read_unsigned(body, query=query)


def test_webhook_names_only_the_payment_to_fetch() -> None:
    assert notice(b"id=tr_1") == UnsignedNotice(type="payment", reference=ID, session="tr_1")
    found = notice(b"id=tr_1&status=paid&amount=9.00")
    assert found == UnsignedNotice(type="payment", reference=ID, session="tr_1")


def test_webhook_url_contains_our_reference() -> None:
    url = msgspec.json.decode(stored_checkout(prepared()).request)["webhookUrl"]
    found = notice(b"id=tr_1", httpx.URL(url).query.decode())
    assert found is not None
    assert found.reference == ID


@pytest.mark.parametrize(
    "query", ["", "elicitation=", "elicitation=..%2Fx", f"elicitation={ID}&elicitation=another"]
)
def test_webhook_without_our_reference_is_ignored(query: str) -> None:
    assert notice(b"id=tr_1", query) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"{}",
        b"id",
        b"id=",
        b"id=tr_1&id=tr_2",
        b"&".join([b"a=1"] * 100),
        b"id=ord_1",
        b"id=..%2Fx",
        b"id=tr_..%2Fx",
        b"id=tr_1%0a",
        b"id=tr_" + b"1" * 200,
    ],
)
def test_malformed_webhook_is_refused(body: bytes) -> None:
    with pytest.raises(Unverified):
        notice(body)


def test_api_key_prefix_determines_live_mode() -> None:
    assert mollie("live_x").is_live
    assert not mollie("test_x").is_live


@pytest.mark.parametrize(
    "key", ["", "live", "access_x", "sk_live_x", "live_ä", "test_x\n", "live_ "]
)
def test_invalid_api_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="Mollie key"):
        mollie(key)


def test_sandbox_with_live_key_is_refused() -> None:
    with pytest.raises(ValueError, match="Mollie key"):
        sandbox_mollie("http://127.0.0.1:8766", "live_x")


def test_additional_checkout_origin_is_accepted() -> None:
    other = mollie(KEY, more_checkout_origins=("https://pay.mollie.example",))
    there = {"checkout": {"href": "https://pay.mollie.example/1"}}
    departure, _ = run(
        MollieGateway(other).begin(prepared(), TRIP), reply(payment(_links=there), 201)
    )
    assert departure.url == "https://pay.mollie.example/1"
    with pytest.raises(ValueError, match="origin"):
        mollie(KEY, more_checkout_origins=("https://pay.mollie.example/x",))


TALKS: list[Callable[[], Talk[Any]]] = [
    lambda: GATEWAY.begin(prepared(), TRIP),
    lambda: GATEWAY.fetch(begun(), "tr_1"),
    lambda: GATEWAY.close(begun(), "tr_1"),
]


@given(st.sampled_from(TALKS), JSON)
def test_random_reply_raises_only_failed(talk: Callable[[], Talk[Any]], data: Json) -> None:
    with pytest.raises(Failed):
        run(talk(), reply(data))


@given(st.binary(), st.text())
def test_random_webhook_is_ignored_or_raises_unverified(body: bytes, query: str) -> None:
    with suppress(Unverified):
        assert notice(body, query) is None
