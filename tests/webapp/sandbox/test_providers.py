"""The common behavior of the sandbox's Mollie and PayPal, called by our own gateways."""

from typing import Any

import pytest

from flows.errors import Failed
from flows.payments.money import Money
from flows.payments.session import SessionStatus
from tests.support.gateway_env import NINE
from tests.support.sandbox_payments import Paying, page_of, session_of

BOTH = pytest.mark.parametrize("paying", ["mollie", "paypal"], indirect=True)


@BOTH
async def test_page_is_on_sandbox_and_says_nothing_is_real(paying: Paying) -> None:
    begun = await paying.begun()
    assert page_of(begun) == f"{paying.env.settings.url}/pay/{session_of(begun)}"
    page = await paying.page(begun)
    named = {"mollie": "for Mollie,", "paypal": "for PayPal,"}[paying.name]
    for words in ("€9.00", "Premium report &amp; more", "No money moves.", named):
        assert words in page.text
    assert "nothing here is real" in page.text
    assert (await paying.fetched(begun)).state is SessionStatus.OPEN
    assert paying.env.shop.received == []


@pytest.mark.parametrize(
    ("paying", "price"),
    [
        ("mollie", NINE),
        ("mollie", Money("500", "JPY")),
        ("mollie", Money("9.000", "KWD")),
        ("paypal", NINE),
        ("paypal", Money("500", "JPY")),
        ("paypal", Money("900.00", "HUF")),
    ],
    indirect=["paying"],
)
async def test_amount_is_returned_as_sent(price: Money, paying: Paying) -> None:
    begun = await paying.begun(paying.asked(price))
    await paying.press(begun, paying.pays)
    assert await paying.verified_status(begun) is SessionStatus.PAID


@BOTH
async def test_session_whose_reply_was_lost_is_found_by_repeated_request(paying: Paying) -> None:
    await paying.control(next="lost")
    with pytest.raises(Failed, match="HTTP 504"):
        await paying.begun()
    before = paying.prepared()
    session = await paying.repeated(before)
    paying.env.clock.tick(minutes=59)
    assert await paying.repeated(before) == session
    assert session_of(await paying.begun()) == session


@BOTH
async def test_failed_request_does_nothing_and_retry_works(paying: Paying) -> None:
    await paying.control(next="500")
    with pytest.raises(Failed, match="HTTP 500"):
        await paying.begun()
    begun = await paying.begun()
    await paying.press(begun, paying.pays)
    assert await paying.verified_status(begun) is SessionStatus.PAID


@BOTH
@pytest.mark.parametrize(
    ("button", "verified"), [("arrive", SessionStatus.PAID), ("fail", SessionStatus.FAILED)]
)
async def test_pending_payment_is_reported_until_result_arrives(
    button: str, verified: SessionStatus, paying: Paying
) -> None:
    begun = await paying.begun()
    await paying.press(begun, paying.pays_later)
    assert await paying.verified_status(begun) is SessionStatus.PENDING
    assert "under way" in (await paying.page(begun)).text
    reported = len(paying.env.shop.received)
    await paying.press(begun, button)
    assert await paying.verified_status(begun) is verified
    assert await paying.press(begun, button, late=True) == f"/pay/{session_of(begun)}"
    assert len(paying.env.shop.received) == reported + 1


@BOTH
async def test_refund_after_manual_partial_refund_refunds_rest(paying: Paying) -> None:
    begun, payment = await paying.paid()
    reported = len(paying.env.shop.received)
    await paying.press(begun, "part")
    assert (await paying.fetched(begun)).refunded == 450
    assert "€4.50 of it was refunded." in (await paying.page(begun)).text
    rest = await paying.run(paying.gateway.refund(payment, reason=None))
    assert rest.price == Money("4.50", "EUR")
    assert len(paying.env.shop.received) == reported + 2


@BOTH
async def test_refund_with_lost_response_is_made_once(paying: Paying) -> None:
    begun, payment = await paying.paid()
    reported = len(paying.env.shop.received)
    await paying.control(next="lost")
    first = await paying.run(paying.gateway.refund(payment, reason="sold out"))
    assert await paying.run(paying.gateway.refund(payment, reason="sold out")) == first
    assert first.price == NINE
    assert (await paying.fetched(begun)).refunded == 900
    assert await paying.verified_status(begun) is SessionStatus.FAILED
    assert len(paying.env.shop.received) == reported + 1


@pytest.mark.parametrize(
    ("paying", "path", "member"),
    [
        ("mollie", "mollie/v2/payments", "status"),
        ("paypal", "paypal/v2/checkout/orders", "debug_id"),
    ],
    indirect=["paying"],
)
async def test_framework_errors_have_format_of_provider(
    path: str, member: str, paying: Paying
) -> None:
    refused = await paying.env.browser.post(f"/{path}", content=b"a" * 100_000)
    assert refused.status_code == 413
    assert refused.json()[member]


@BOTH
async def test_events_are_held_duplicated_and_dropped_on_request(paying: Paying) -> None:
    await paying.control(hold=True, duplicates=2)
    begun = await paying.begun()
    await paying.press(begun, paying.pays)
    assert paying.env.shop.received == []
    state: dict[str, Any] = await paying.control(release=True)
    assert state["held"] == 0
    assert len({event.content for event in paying.env.shop.received}) == 1
    assert len(paying.env.shop.received) == 3
    await paying.control(drop=True)
    await paying.verified_status(begun)
    assert len(paying.env.shop.received) == 3
