"""The sandbox's Mollie, called by our own gateway: each way to pay, and each failure."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from flows.errors import Failed
from flows.payments import gateway
from flows.payments.gateway import UnsignedNotice
from flows.payments.mollie.gateway import MollieGateway
from flows.payments.receipt import Dispute, RefundStatus
from flows.payments.session import SessionStatus
from tests.support.gateway_env import ID
from tests.support.sandbox_checkout import SHOP
from tests.support.sandbox_payments import WENT_BACK, Paying, session_of

PROVIDER = "mollie"


def hints(paying: Paying) -> list[UnsignedNotice]:
    """Return what the server reads from the received webhooks."""
    found: list[UnsignedNotice] = []
    for received in paying.env.shop.received:
        assert str(received.url.copy_with(query=None)) == f"{SHOP}/webhooks/mollie"
        assert received.headers["content-type"] == "application/x-www-form-urlencoded"
        assert list(parse_qs(received.content.decode())) == ["id"]
        seller = paying.env.settings.mollie()
        hint = MollieGateway(seller).read_unsigned(
            received.content, query=received.url.query.decode()
        )
        assert hint is not None
        found.append(hint)
    return found


def count_hints(paying: Paying, session: str) -> int:
    reported = hints(paying)
    assert all((hint.reference, hint.session) == (ID, session) for hint in reported)
    return len(reported)


async def call(
    paying: Paying, path: str, body: Any = None, *, key: str | None = None
) -> httpx.Response:
    """Send a request that our own gateway would not send."""
    headers = {"authorization": f"Bearer {paying.secret}"}
    if key is not None:
        headers["idempotency-key"] = key
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await paying.env.browser.post(f"/mollie/v2/{path}", content=content, headers=headers)


def wish(**changes: Any) -> dict[str, Any]:
    return {
        "amount": {"currency": "EUR", "value": "9.00"},
        "description": "Premium report",
        "redirectUrl": f"{SHOP}/back",
        **changes,
    }


@pytest.mark.parametrize(
    ("button", "leads", "verified"),
    [
        ("paid", WENT_BACK, SessionStatus.PAID),
        ("failed", WENT_BACK, SessionStatus.FAILED),
        ("expired", WENT_BACK, SessionStatus.CLOSED),
        ("cancel", f"{WENT_BACK}&cancelled=1", SessionStatus.CLOSED),
    ],
)
async def test_button_ends_payment_once_and_late_press_changes_nothing(
    button: str, leads: str, verified: SessionStatus, paying: Paying
) -> None:
    begun = await paying.begun()
    assert await paying.press(begun, button) == leads
    assert await paying.verified_status(begun) is verified
    for late in ("paid", "failed", "open", "pending", "expired", "cancel", "arrive", "other"):
        assert await paying.press(begun, late, late=True) == f"/pay/{session_of(begun)}"
    assert await paying.verified_status(begun) is verified
    assert count_hints(paying, session_of(begun)) == 1
    page = await paying.page(begun)
    assert ("This is paid" in page.text) is (verified is SessionStatus.PAID)


async def test_open_payment_can_be_paid_days_later(paying: Paying) -> None:
    begun = await paying.begun()
    assert await paying.press(begun, "open") == WENT_BACK
    assert await paying.verified_status(begun) is SessionStatus.OPEN
    assert paying.env.shop.received == []
    assert "The payment is open" in (await paying.page(begun)).text
    paying.env.clock.tick(days=11)
    assert await paying.press(begun, "paid") == WENT_BACK
    assert await paying.verified_status(begun) is SessionStatus.PAID
    assert count_hints(paying, session_of(begun)) == 1


async def test_unstarted_payment_expires(paying: Paying) -> None:
    begun = await paying.begun()
    paying.env.clock.tick(minutes=15)
    assert await paying.verified_status(begun) is SessionStatus.CLOSED
    assert "checkout is over" in (await paying.page(begun)).text
    assert count_hints(paying, session_of(begun)) == 1


async def test_non_cancelable_payment_cannot_be_cancelled_by_merchant(paying: Paying) -> None:
    begun = await paying.begun()
    with pytest.raises(Failed, match="did not close"):
        await paying.run(paying.gateway.close(begun, session_of(begun)))
    await paying.press(begun, "open")
    assert await paying.run(paying.gateway.close(begun, session_of(begun)))
    assert await paying.verified_status(begun) is SessionStatus.CLOSED
    assert await paying.run(paying.gateway.close(begun, session_of(begun)))
    assert count_hints(paying, session_of(begun)) == 1


async def test_payments_started_in_two_tabs_can_both_be_paid(paying: Paying) -> None:
    first, second = await paying.begun(number=1), await paying.begun(number=2)
    for begun in (first, second):
        await paying.press(begun, "paid")
        assert await paying.verified_status(begun) is SessionStatus.PAID
    assert {hint.session for hint in hints(paying)} == {session_of(first), session_of(second)}


async def test_repeated_request_creates_new_payment_after_an_hour(paying: Paying) -> None:
    before = paying.prepared()
    session = await paying.repeated(before)
    paying.env.clock.tick(hours=1)
    assert await paying.repeated(before) != session


async def test_pending_payment_is_not_closed(paying: Paying) -> None:
    begun = await paying.begun()
    await paying.press(begun, "pending")
    assert await paying.verified_status(begun) is SessionStatus.PENDING
    assert not await paying.run(paying.gateway.close(begun, session_of(begun)))
    assert count_hints(paying, session_of(begun)) == 1


async def test_refund_is_pending_for_a_day(paying: Paying) -> None:
    begun, payment = await paying.paid()
    first = await paying.run(paying.gateway.refund(payment, reason="sold out"))
    assert first.status == RefundStatus.PENDING
    paying.env.clock.tick(days=1)
    done = await paying.run(paying.gateway.refund(payment, reason=None))
    assert (done.id, done.status) == (first.id, RefundStatus.SUCCEEDED)
    assert count_hints(paying, session_of(begun)) == 2


async def test_sandbox_allows_refunds_above_paid_amount_like_mollie(
    paying: Paying,
) -> None:
    begun = await paying.begun()
    await paying.press(begun, "paid")
    path = f"payments/{session_of(begun)}/refunds"
    amount = {"amount": {"currency": "EUR", "value": "9.00"}}
    for key in ("1", "1", "2"):
        assert (await call(paying, path, amount, key=key)).status_code == 201
    assert (await paying.fetched(begun)).refunded == 1800
    refused = await call(paying, path, {"amount": {"currency": "EUR", "value": "16.01"}})
    assert (refused.status_code, refused.json()["field"]) == (422, "amount")


async def test_chargeback_fails_payment_and_won_dispute_restores_payment(paying: Paying) -> None:
    begun, payment = await paying.paid()
    now = paying.env.clock()
    await paying.press(begun, "chargeback")
    result = await paying.fetched(begun)
    assert (result.charged_back, await paying.verified_status(begun)) == (900, SessionStatus.FAILED)
    assert "The bank has taken it back." in (await paying.page(begun)).text
    lost = gateway.with_returns(payment, result, now=now)
    assert lost.disputes == {session_of(begun): Dispute.LOST}
    await paying.press(begun, "won")
    won = gateway.with_returns(lost, await paying.fetched(begun), now=now)
    assert won.disputes == {session_of(begun): Dispute.WON}
    assert await paying.verified_status(begun) is SessionStatus.PAID
    assert count_hints(paying, session_of(begun)) == 3


async def test_request_with_other_key_is_refused(paying: Paying) -> None:
    seller = replace(paying.env.settings.mollie(), key="test_another")
    stranger = replace(paying, gateway=MollieGateway(seller), secret="test_another")
    with pytest.raises(Failed, match="HTTP 401"):
        await stranger.begun()
    for path in ("/mollie/control", "/mollie/v2/payments"):
        refused = await paying.env.browser.post(path, json={})
        assert (refused.status_code, refused.json()["status"]) == (401, 401)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"amount": {"currency": "EUR", "value": "9.0"}}, "amount"),
        ({"amount": {"currency": "EUR", "value": "0.00"}}, "amount"),
        ({"amount": {"currency": "XXX", "value": "9.00"}}, "amount"),
        ({"webhookUrl": "https://evil.example/webhooks/mollie"}, "webhookUrl"),
        ({"webhookUrl": f"{SHOP}.evil.example/webhooks/mollie"}, "webhookUrl"),
        ({"redirectUrl": "javascript:alert(1)"}, None),
        ({"descriptoin": "Premium report"}, None),
        ({"description": ""}, None),
    ],
)
async def test_invalid_payment_is_refused(
    changes: dict[str, Any], field: str | None, paying: Paying
) -> None:
    refused = await call(paying, "payments", wish(**changes))
    assert (refused.status_code, refused.json().get("field")) == (422, field)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"id=tr_1"])
async def test_body_which_is_no_json_is_refused(body: bytes, paying: Paying) -> None:
    assert (await call(paying, "payments", body)).status_code == 400


async def test_unpaid_payment_cannot_be_refunded(paying: Paying) -> None:
    begun = await paying.begun()
    amount = {"amount": {"currency": "EUR", "value": "9.00"}}
    assert (await call(paying, f"payments/{session_of(begun)}/refunds", amount)).status_code == 422
    assert (await call(paying, "payments/tr_0/refunds", amount)).status_code == 404
    await paying.press(begun, "paid")
    dollars = {"amount": {"currency": "USD", "value": "9.00"}}
    refused = await call(paying, f"payments/{session_of(begun)}/refunds", dollars)
    assert (refused.status_code, refused.json()["field"]) == (422, "amount")


@pytest.mark.parametrize("limit", ["0", "251", "many"])
async def test_invalid_list_limit_is_refused(limit: str, paying: Paying) -> None:
    begun = await paying.begun()
    headers = {"authorization": f"Bearer {paying.secret}"}
    path = f"/mollie/v2/payments/{session_of(begun)}/refunds"
    reply = await paying.env.browser.get(path, params={"limit": limit}, headers=headers)
    assert reply.status_code == 400
    listed = await paying.env.browser.get(path, headers=headers)
    assert listed.json()["count"] == 0


async def test_idempotency_key_is_valid_for_single_request(paying: Paying) -> None:
    first = await call(paying, "payments", wish(), key="1")
    assert (await call(paying, "payments", wish(), key="1")).json() == first.json()
    refused = await call(paying, "payments", wish(description="Tea"), key="1")
    assert refused.status_code == 422


async def test_payment_without_webhook_sends_no_event(paying: Paying) -> None:
    made = (await call(paying, "payments", wish())).json()
    await paying.env.press_at(made["id"], "paid")
    assert paying.env.shop.received == []
