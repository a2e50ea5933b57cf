"""The hosted checkout page, used as a browser uses it, without JavaScript."""

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import stripe

from tests.support.sandbox_checkout import SHOP, ServerEnv

EVERY_BUTTON = ("card", "declined", "bank", "cancel", "arrive", "fail", "other")


async def test_checkout_page_shows_price_and_says_nothing_is_real(env: ServerEnv) -> None:
    created = await env.begin(name="Premium <b>report</b>")
    page = await env.browser.get(str(created.url))
    assert page.status_code == 200
    assert "€9.00" in page.text
    assert "Premium &lt;b&gt;report&lt;/b&gt;" in page.text
    assert "No money moves." in page.text
    assert "nothing here is real" in page.text
    assert urlsplit(SHOP).netloc in page.text
    assert "<script" not in page.text
    assert "cc-number" not in page.text
    # No field to type a card number.
    assert page.text.count("<input") == page.text.count('type="hidden"')
    assert page.headers["cache-control"] == "no-store"


async def test_stylesheet_is_served(env: ServerEnv) -> None:
    style = await env.browser.get("/pay.css")
    assert style.status_code == 200
    assert style.headers["content-type"].startswith("text/css")


async def test_opening_page_changes_nothing(env: ServerEnv) -> None:
    created = await env.begin()
    for _ in range(2):
        await env.browser.get(f"/pay/{created.id}")
        await env.browser.head(f"/pay/{created.id}")
        for button in EVERY_BUTTON:
            assert (await env.browser.get(f"/pay/{created.id}/{button}")).status_code == 405
    assert (await env.session(created.id)).status == "open"
    assert env.shop.received == []


async def test_paying_sends_event_and_redirects_with_session_id(env: ServerEnv) -> None:
    created = await env.begin()
    gone = await env.press(created, "card")
    assert gone.status_code == 303
    assert gone.headers["location"] == f"{SHOP}/back?session={created.id}"
    paid = await env.session(created.id)
    assert (paid.status, paid.payment_status, paid.url) == ("complete", "paid", None)
    [event] = env.shop.events
    assert event.type == "checkout.session.completed"
    assert event.to_dict()["data"]["object"] == paid.to_dict()


async def test_declined_card_is_shown_and_page_stays_open(env: ServerEnv) -> None:
    created = await env.begin()
    assert (await env.press(created, "declined")).headers["location"] == f"/pay/{created.id}"
    page = await env.browser.get(f"/pay/{created.id}")
    assert "The card was declined." in page.text
    assert 'role="alert"' in page.text
    assert (await env.session(created.id)).status == "open"
    assert env.shop.received == []
    assert (await env.press(created, "card")).headers["location"].startswith(SHOP)


async def test_cancelling_redirects_back_and_leaves_session_open(env: ServerEnv) -> None:
    created = await env.begin()
    assert (await env.press(created, "cancel")).headers["location"] == f"{SHOP}/cancelled"
    assert (await env.session(created.id)).status == "open"


async def test_session_without_cancel_url_has_no_cancel_button(env: ServerEnv) -> None:
    created = await env.begin(cancel_url="")
    assert "/cancel" not in (await env.browser.get(f"/pay/{created.id}")).text


async def payment_status(env: ServerEnv, session: str) -> str:
    """Return the status of a session's payment from the session's own response."""
    whole = await env.stripe.checkout.sessions.retrieve_async(
        session, {"expand": ["payment_intent"]}
    )
    assert isinstance(whole.payment_intent, stripe.PaymentIntent)
    return whole.payment_intent.status


async def test_bank_transfer_is_processing_and_arrives_later(env: ServerEnv) -> None:
    created = await env.begin()
    assert (await env.press(created, "bank")).headers["location"] == f"/pay/{created.id}"
    promised = await env.session(created.id)
    assert (promised.status, promised.payment_status) == ("complete", "unpaid")
    assert await payment_status(env, created.id) == "processing"
    intent = await env.stripe.payment_intents.retrieve_async(str(promised.payment_intent))
    assert (intent.status, intent.amount_received) == ("processing", 0)
    page = await env.browser.get(f"/pay/{created.id}")
    assert f'href="{SHOP}/back?session={created.id}"' in page.text

    gone = await env.press(created, "arrive")
    assert gone.headers["location"] == f"{SHOP}/back?session={created.id}"
    assert (await env.session(created.id)).payment_status == "paid"
    assert await payment_status(env, created.id) == "succeeded"
    assert env.shop.types == [
        "checkout.session.completed",
        "checkout.session.async_payment_succeeded",
    ]
    assert [event.data.object["payment_status"] for event in env.shop.events] == [
        "unpaid",
        "paid",
    ]


async def test_failed_transfer_stays_unpaid(env: ServerEnv) -> None:
    created = await env.begin()
    await env.press(created, "bank")
    await env.press(created, "fail")
    failed = await env.session(created.id)
    assert (failed.status, failed.payment_status) == ("complete", "unpaid")
    assert await payment_status(env, created.id) == "requires_payment_method"
    assert env.shop.types[1:] == ["checkout.session.async_payment_failed"]
    page = await env.browser.get(f"/pay/{created.id}")
    assert "payment failed" in page.text
    assert "<form" not in page.text


@pytest.mark.parametrize("ending", ["card", "expire", "arrive", "fail"])
async def test_ended_session_cannot_be_changed_by_any_button(ending: str, env: ServerEnv) -> None:
    created = await env.begin()
    page = await env.browser.get(f"/pay/{created.id}")
    mark = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    if ending == "expire":
        await env.stripe.checkout.sessions.expire_async(created.id)
    else:
        if ending in {"arrive", "fail"}:
            await env.press(created, "bank")
        await env.press(created, ending)
    before, received = await env.session(created.id), len(env.shop.received)
    for button in EVERY_BUTTON:
        late = await env.browser.post(f"/pay/{created.id}/{button}", data={"csrf": mark})
        assert late.headers["location"] == f"/pay/{created.id}"
    assert (await env.session(created.id)).to_dict() == before.to_dict()
    assert len(env.shop.received) == received
    over = await env.browser.get(f"/pay/{created.id}")
    assert over.status_code == 200
    ways = re.findall(r'<form[^>]*action="([^"]+)"', over.text)
    is_paid = ending in {"card", "arrive"}  # then only the seller's buttons remain
    afterwards = ("part", "slow", "inquiry", "claim", "claim_part")
    assert ways == ([f"/pay/{created.id}/{way}" for way in afterwards] if is_paid else [])


async def test_later_refunds_and_disputes_are_reported_and_shown(env: ServerEnv) -> None:
    created = await env.begin()
    await env.press(created, "card")
    for button, words in {
        "part": "€4.50 of it was refunded.",
        "claim": "The bank disputes the payment (chargeback).",
        "won": "The seller won the dispute.",
    }.items():
        await env.press(created, button)
        assert words in (await env.browser.get(f"/pay/{created.id}")).text
        await env.press(created, button, late=button != "part")
    assert env.shop.types == [
        "checkout.session.completed",
        *["charge.refunded"] * 2,
        "charge.dispute.created",
        "charge.dispute.closed",
    ]
    wish: Any = {"expand": ["payment_intent.latest_charge"]}
    found = await env.stripe.checkout.sessions.retrieve_async(created.id, wish)
    assert isinstance(found.payment_intent, stripe.PaymentIntent)
    charge = found.payment_intent.latest_charge
    assert isinstance(charge, stripe.Charge)
    assert (charge.amount_refunded, charge.disputed) == (675, True)
    listed = await env.stripe.disputes.list_async({"payment_intent": found.payment_intent.id})
    assert [dispute.status for dispute in listed.data] == ["won"]
    assert (await env.stripe.disputes.list_async({"payment_intent": "pi_2"})).data == []


async def test_unknown_session_has_error_page(env: ServerEnv) -> None:
    for reply in (
        await env.browser.get("/pay/cs_test_0"),
        await env.browser.post("/pay/cs_test_0/card"),
    ):
        assert reply.status_code == 404
        assert "We do not know this checkout" in reply.text


async def test_form_without_valid_csrf_field_pays_nothing(env: ServerEnv) -> None:
    created, other = await env.begin(), await env.begin()
    page = await env.browser.get(f"/pay/{other.id}")
    others_mark = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    for content in (
        "",
        "csrf=",
        "csrf=ü",
        f"csrf={others_mark}",
        f"csrf={others_mark}&csrf={others_mark}",
        "&".join(["csrf=1"] * 20),
    ):
        refused = await env.browser.post(f"/pay/{created.id}/card", content=content)
        assert refused.status_code == 403
    env.browser.cookies.clear()
    refused = await env.browser.post(f"/pay/{other.id}/card", content=f"csrf={others_mark}")
    assert refused.status_code == 403
    too_long = await env.browser.post(f"/pay/{other.id}/card", content="a" * 100_000)
    assert too_long.status_code == 413
    assert env.shop.received == []
