"""The sandbox's PayPal, called by our own gateway: each way to pay, and each failure."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from flows.errors import Failed, Unverified
from flows.payments.gateway import UnsignedNotice
from flows.payments.paypal.gateway import PayPalGateway
from flows.payments.receipt import RefundStatus
from flows.payments.session import SessionStatus
from flows.webhooks.certificates import certificate_url, roots_of, verify_certified
from tests.support.gateway_env import ID, NINE
from tests.support.sandbox_checkout import SHOP, checkout_env
from tests.support.sandbox_payments import WENT_BACK, Paying, page_of, session_of
from webapp.http.client import Outbound
from webapp.sandbox.paypal.certificates import sandbox_scheme

APPROVED, CAPTURED = "CHECKOUT.ORDER.APPROVED", "PAYMENT.CAPTURE.COMPLETED"
REFUNDED = "PAYMENT.CAPTURE.REFUNDED"
PROVIDER = "paypal"


async def hints(paying: Paying) -> list[UnsignedNotice]:
    """Verify the received webhooks, and return what the server reads from them."""
    settings, browser, now = paying.env.settings, paying.env.browser, paying.env.clock()
    scheme = sandbox_scheme(settings.url)
    roots = roots_of(scheme, bundle=(await browser.get("/paypal/root.pem")).content)
    found: list[UnsignedNotice] = []
    for received in paying.env.shop.received:
        assert str(received.url) == f"{SHOP}/webhooks/paypal"
        headers, body = received.headers.multi_items(), received.content
        url = certificate_url(scheme, body=body, headers=headers, now=now)
        delivery = verify_certified(
            scheme,
            body=body,
            headers=headers,
            webhook_ids=[settings.paypal_webhook_id],
            certificate=(await browser.get(url)).content,
            roots=roots,
            now=now,
        )
        hint = PayPalGateway(settings.paypal()).read_unsigned(delivery.body, query="")
        assert hint is not None
        found.append(hint)
    return found


async def types(paying: Paying) -> list[str]:
    return [hint.type for hint in await hints(paying)]


async def traced(paying: Paying, hint: UnsignedNotice) -> str | None:
    assert hint.payment is not None
    return await paying.run(PayPalGateway(paying.env.settings.paypal()).trace(hint.payment))


async def call(
    paying: Paying, path: str, body: Any = None, *, key: str | None = None
) -> httpx.Response:
    """Send a request that our own gateway would not send, with a valid token."""
    settings, browser = paying.env.settings, paying.env.browser
    granted = await browser.post(
        "/paypal/v1/oauth2/token",
        auth=(settings.client_id, settings.paypal_secret),
        data={"grant_type": "client_credentials"},
    )
    headers = {"authorization": f"Bearer {granted.json()['access_token']}"}
    if key is not None:
        headers["paypal-request-id"] = key
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await browser.post(f"/paypal/{path}", content=content, headers=headers)


async def test_approved_order_is_captured_once_by_gateway(paying: Paying) -> None:
    begun = await paying.begun()
    back = await paying.press(begun, "balance")
    assert back.startswith(f"{WENT_BACK}&")
    assert parse_qs(urlsplit(back).query)["token"] == [session_of(begun)]
    approved = await paying.fetched(begun)
    assert (approved.state, approved.payment) == (SessionStatus.OPEN, None)
    assert "Nothing was paid yet" in (await paying.page(begun)).text

    assert await paying.verified_status(begun) is SessionStatus.PAID
    claimed = await paying.collected(begun)
    assert (claimed.state, claimed.amount, claimed.currency) == (SessionStatus.PAID, 900, "EUR")
    assert "This is paid" in (await paying.page(begun)).text
    named = [(hint.type, hint.reference, hint.session) for hint in await hints(paying)]
    assert named == [(kind, ID, session_of(begun)) for kind in (APPROVED, CAPTURED)]


async def test_second_tab_cannot_approve_and_second_capture_is_refused(
    paying: Paying,
) -> None:
    begun = await paying.begun()
    await paying.press(begun, "balance")
    assert await paying.press(begun, "bank", late=True) == f"/pay/{session_of(begun)}"
    assert await paying.verified_status(begun) is SessionStatus.PAID
    path = f"v2/checkout/orders/{session_of(begun)}/capture"
    again = await call(paying, path, {}, key="another")
    assert (again.status_code, again.json()["details"][0]["issue"]) == (
        422,
        "ORDER_ALREADY_CAPTURED",
    )
    assert await types(paying) == [APPROVED, CAPTURED]


async def test_second_order_for_same_question_is_not_captured(paying: Paying) -> None:
    first, second = await paying.begun(number=1), await paying.begun(number=2)
    assert session_of(first) != session_of(second)
    for begun in (first, second):
        await paying.press(begun, "balance")
    assert await paying.verified_status(first) is SessionStatus.PAID
    assert await paying.verified_status(second) is SessionStatus.OPEN
    assert (await types(paying)).count(CAPTURED) == 1
    with pytest.raises(Failed, match="DUPLICATE_INVOICE_ID"):
        await paying.begun(number=3)


async def test_repeated_request_returns_current_state_of_order(paying: Paying) -> None:
    begun = await paying.begun()
    await paying.press(begun, "balance")
    await paying.verified_status(begun)
    assert begun.attempt is not None
    stored = await paying.run(paying.gateway.repeat(paying.prepared(), begun.attempt))
    assert (stored.session, stored.url) == (session_of(begun), None)


async def test_order_expires_after_three_hours_and_request_id_after_six(
    paying: Paying,
) -> None:
    begun, before = await paying.begun(), paying.prepared()
    assert before.attempt is not None
    paying.env.clock.tick(hours=3)
    assert await paying.verified_status(begun) is SessionStatus.CLOSED
    assert await paying.run(paying.gateway.close(begun, session_of(begun)))
    lapsed = await paying.run(paying.gateway.repeat(before, before.attempt))
    assert (lapsed.session, lapsed.url) == (None, None)
    assert (await paying.page(begun)).status_code == 404
    paying.env.clock.tick(hours=3)
    assert await paying.repeated(paying.prepared()) != session_of(begun)


async def test_order_unknown_to_another_account_is_not_reported_as_closed(paying: Paying) -> None:
    begun = await paying.begun()
    async with checkout_env() as elsewhere, elsewhere.client() as client:
        settings = replace(paying.env.settings.paypal(), client_id=elsewhere.settings.client_id)
        seller = replace(settings, client_secret=elsewhere.settings.paypal_secret)
        other = replace(
            paying,
            gateway=PayPalGateway(seller),
            outbound=Outbound(client, allow_loopback=True),
        )
        with pytest.raises(Failed, match=r"HTTP 404, INVALID_RESOURCE_ID"):
            await other.fetched(begun)


async def test_capture_which_got_500_is_retried(paying: Paying) -> None:
    begun = await paying.begun()
    await paying.press(begun, "balance")
    await paying.control(next="500")
    assert await paying.verified_status(begun) is SessionStatus.OPEN
    assert await paying.verified_status(begun) is SessionStatus.PAID


async def test_capture_with_lost_response_is_found_and_not_repeated(
    paying: Paying,
) -> None:
    begun = await paying.begun()
    await paying.press(begun, "balance")
    await paying.control(next="lost")
    assert await paying.verified_status(begun) is SessionStatus.PAID
    assert await types(paying) == [APPROVED, CAPTURED]


async def test_another_payment_method_can_be_chosen_after_decline(paying: Paying) -> None:
    begun = await paying.begun()
    await paying.press(begun, "declined")
    declined = await paying.collected(begun)
    assert (declined.state, declined.url) == (SessionStatus.OPEN, page_of(begun))
    assert "The card was declined." in (await paying.page(begun)).text
    assert (await paying.press(begun, "balance")).startswith(WENT_BACK)
    assert await paying.verified_status(begun) is SessionStatus.PAID


@pytest.mark.parametrize(
    ("button", "event"), [("arrive", CAPTURED), ("fail", "PAYMENT.CAPTURE.DENIED")]
)
async def test_later_result_of_pending_capture_sends_event(
    button: str, event: str, paying: Paying
) -> None:
    begun = await paying.begun()
    await paying.press(begun, "bank")
    await paying.collected(begun)
    await paying.press(begun, button)
    assert await types(paying) == [APPROVED, "PAYMENT.CAPTURE.PENDING", event]


async def test_unapproved_order_cannot_be_captured(paying: Paying) -> None:
    begun = await paying.begun()
    assert await paying.press(begun, "cancel") == (
        f"{WENT_BACK}&cancelled=1&token={session_of(begun)}"
    )
    assert await paying.verified_status(begun) is SessionStatus.OPEN
    refused = await call(paying, f"v2/checkout/orders/{session_of(begun)}/capture", {})
    assert refused.json()["details"][0]["issue"] == "ORDER_NOT_APPROVED"
    assert await paying.run(paying.gateway.close(begun, session_of(begun)))


async def test_event_of_manual_refund_names_capture_only_in_link(paying: Paying) -> None:
    begun, payment = await paying.paid()
    await paying.press(begun, "part")
    await paying.run(paying.gateway.refund(payment, reason=None))
    by_hand, by_server = (await hints(paying))[2:]
    assert by_server.reference == ID
    # As in PayPal's published sample, the event names only its capture, and only in a link.
    assert (by_hand.type, by_hand.reference, by_hand.session) == (REFUNDED, None, None)
    assert by_hand.payment == payment.payment_intent
    assert await traced(paying, by_hand) == ID


async def test_manual_refunds_of_whole_amount_count_as_refund(paying: Paying) -> None:
    _, payment = await paying.paid()
    for _ in range(2):
        await call(
            paying,
            f"v2/payments/captures/{payment.payment_intent}/refund",
            {"amount": {"currency_code": "EUR", "value": "4.50"}},
        )
    standing = await paying.run(paying.gateway.refund(payment, reason=None))
    assert (standing.price, standing.status) == (NINE, RefundStatus.SUCCEEDED)


async def test_lost_dispute_fails_payment(paying: Paying) -> None:
    begun, payment = await paying.paid()
    await paying.press(begun, "reverse")
    assert (await paying.fetched(begun)).charged_back == 900
    assert await paying.verified_status(begun) is SessionStatus.FAILED
    reported = (await hints(paying))[-1]
    assert (reported.type, reported.reference) == ("PAYMENT.CAPTURE.REVERSED", None)
    assert await traced(paying, reported) == ID
    revisited = await paying.run(PayPalGateway(paying.env.settings.paypal()).revisit(payment))
    assert revisited == await paying.fetched(begun)
    page = await paying.page(begun)
    assert "the bank took the money back" in page.text
    assert "<form" not in page.text
    with pytest.raises(Failed, match="REFUND_NOT_ALLOWED"):
        await paying.run(paying.gateway.refund(payment, reason=None))


async def test_expired_token_is_replaced_and_wrong_secret_is_refused(paying: Paying) -> None:
    begun = await paying.begun()
    await paying.press(begun, "balance")
    assert await paying.verified_status(begun) is SessionStatus.PAID
    paying.env.clock.tick(hours=9)
    assert (await paying.fetched(begun)).state is SessionStatus.PAID
    seller = replace(paying.env.settings.paypal(), client_secret="another")
    stranger = replace(paying, gateway=PayPalGateway(seller))
    with pytest.raises(Failed, match=r"issue an access token \(HTTP 401, invalid_client\)"):
        await stranger.begun()
    control = await paying.env.browser.post(
        "/paypal/control", json={}, headers={"authorization": "Bearer another"}
    )
    assert control.status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 10_000,
        b"\xff",
        b"{}",
        b'{"intent": "AUTHORIZE"}',
        b'{"intent": "CAPTURE", "purchase_units": [], "payment_source": {}}',
    ],
)
async def test_invalid_order_is_refused(body: bytes, paying: Paying) -> None:
    refused = await call(paying, "v2/checkout/orders", body)
    assert (refused.status_code, refused.json()["name"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("amount", "issue"),
    [
        ({"currency_code": "KWD", "value": "9.000"}, "CURRENCY_NOT_SUPPORTED"),
        ({"currency_code": "HUF", "value": "9.50"}, "INVALID_PARAMETER_VALUE"),
        ({"currency_code": "EUR", "value": "9,00"}, "INVALID_PARAMETER_VALUE"),
        ({"currency_code": "EUR", "value": "0.00"}, "INVALID_PARAMETER_VALUE"),
        ({"currency_code": "EUR", "value": "99.00"}, "REFUND_AMOUNT_EXCEEDED"),
        ({"currency_code": "USD", "value": "1.00"}, "REFUND_CAPTURE_CURRENCY_MISMATCH"),
    ],
)
async def test_invalid_refund_amount_is_refused(
    amount: dict[str, str], issue: str, paying: Paying
) -> None:
    begun, payment = await paying.paid()
    path = f"v2/payments/captures/{payment.payment_intent}/refund"
    refused = await call(paying, path, {"amount": amount})
    assert refused.json()["details"][0]["issue"] == issue
    assert (await paying.fetched(begun)).refunded == 0


async def test_pending_or_unknown_capture_cannot_be_refunded(paying: Paying) -> None:
    begun = await paying.begun()
    await paying.press(begun, "bank")
    await paying.collected(begun)
    order = await paying.env.browser.get(f"/pay/{session_of(begun)}")
    assert "/part" not in order.text
    assert (await call(paying, "v2/payments/captures/NOBODY/refund", {})).status_code == 404
    nobodys = UnsignedNotice(type=REFUNDED, reference=None, session=None, payment="NOBODY")
    assert await traced(paying, nobodys) is None


async def test_request_id_is_valid_for_single_request(paying: Paying) -> None:
    begun = await paying.begun()
    path = f"v2/checkout/orders/{session_of(begun)}/capture"
    await paying.press(begun, "balance")
    assert (await call(paying, path, {}, key="1")).status_code == 201
    assert (await call(paying, path, {}, key="1")).status_code == 200
    other = await call(paying, path, {"a": 1}, key="1")
    assert other.json()["details"][0]["issue"] == "DUPLICATE_REQUEST_ID"
    assert (await call(paying, path, {}, key="x" * 109)).status_code == 400


async def test_event_does_not_verify_with_other_root_or_webhook_id(paying: Paying) -> None:
    begun = await paying.begun()
    await paying.press(begun, "balance")
    [received] = paying.env.shop.received
    settings, browser = paying.env.settings, paying.env.browser
    scheme = sandbox_scheme(settings.url)
    root = (await browser.get("/paypal/root.pem")).content
    async with checkout_env() as elsewhere:
        other = (await elsewhere.browser.get("/paypal/root.pem")).content
    url = received.headers["paypal-cert-url"]
    certificate = (await browser.get(url)).content
    assert (await browser.get(f"{url}0")).status_code == 404
    for trusted, webhook, reason in (
        (other, settings.paypal_webhook_id, "bad_certificate"),
        (root, "0000", "bad_signature"),
    ):
        with pytest.raises(Unverified) as refused:
            verify_certified(
                scheme,
                body=received.content,
                headers=received.headers.multi_items(),
                webhook_ids=[webhook],
                certificate=certificate,
                roots=roots_of(scheme, bundle=trusted),
                now=paying.env.clock(),
            )
        assert refused.value.reason == reason
