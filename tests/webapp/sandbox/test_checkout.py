"""The sandbox's Stripe, called by Stripe's own package."""

import asyncio
import base64
from datetime import timedelta
from typing import Any, cast

import pytest
import stripe

from tests.support.clock import NOON
from tests.support.sandbox_checkout import BACK, KEY, ServerEnv, order
from tests.support.serving import serving_at
from webapp.http.exchange import ASGIApp

FORM = "mode=payment&success_url=http%3A%2F%2F127.0.0.1%3A1%2F"
ITEM = "&line_items[0][quantity]=1&line_items[0][price_data][currency]=eur"
PRICE = (
    "&line_items[0][price_data][unit_amount]=900"
    "&line_items[0][price_data][product_data][name]=Report"
)


async def test_a_session_is_created_and_fetched(env: ServerEnv) -> None:
    expires_at = int((NOON + timedelta(minutes=30)).timestamp())
    created = await env.begin(expires_at=expires_at)
    fetched = await env.session(created.id)
    assert fetched.to_dict() == created.to_dict()
    assert created.id.startswith("cs_test_")
    assert created.url == f"{env.settings.url}/pay/{created.id}"
    assert (created.object, created.mode, created.livemode) == (
        "checkout.session",
        "payment",
        False,
    )
    assert (created.amount_total, created.currency) == (900, "eur")
    assert (created.status, created.payment_status) == ("open", "unpaid")
    assert created.payment_intent is None
    assert (created.created, created.expires_at) == (int(NOON.timestamp()), expires_at)
    assert created.client_reference_id == "e1"
    assert created.to_dict()["metadata"] == {"elicitation": "e1"}
    assert created.success_url == BACK


async def test_session_is_expanded_with_payment_intent_on_request(env: ServerEnv) -> None:
    wish: Any = {"expand": ["payment_intent"]}
    created = await env.begin(**wish)
    sessions = env.stripe.checkout.sessions
    assert created.payment_intent is None
    assert (await sessions.retrieve_async(created.id, wish)).payment_intent is None
    await env.press(created, "card")
    intent = (await env.session(created.id)).payment_intent
    assert isinstance(intent, str)
    whole = (await sessions.retrieve_async(created.id, wish)).payment_intent
    assert isinstance(whole, stripe.PaymentIntent)
    alone = await env.stripe.payment_intents.retrieve_async(intent)
    assert whole.to_dict() == alone.to_dict()
    ended = await sessions.expire_async((await env.begin()).id, wish)
    assert (ended.status, ended.payment_intent) == ("expired", None)


async def test_unknown_expansion_is_refused(env: ServerEnv) -> None:
    created = await env.begin()
    for names in (["amount_total"], ["payment_intent", "shop"], ["shop", "payment_intent"]):
        with pytest.raises(stripe.InvalidRequestError, match="cannot be expanded") as refused:
            await env.stripe.checkout.sessions.retrieve_async(created.id, {"expand": names})
        assert (refused.value.http_status, refused.value.param) == (400, "expand")


async def test_stripe_client_reaches_sandbox_on_real_connection() -> None:
    stages: list[ServerEnv] = []

    def make(url: str) -> ASGIApp:
        stages.append(ServerEnv(url=url))
        return cast("ASGIApp", stages[0].app)

    async with serving_at(make) as url:
        plain = stripe.StripeClient(KEY, base_addresses={"api": f"{url}/stripe"})
        try:
            sessions = plain.v1.checkout.sessions
            created = await asyncio.to_thread(sessions.create, order())
            ended = await asyncio.to_thread(sessions.expire, created.id)
        finally:
            if (over_network := plain._requestor._client) is not None:
                over_network.close()
        await stages[0].browser.aclose()
    assert ended.status == "expired"
    assert stages[0].shop.types == ["checkout.session.expired"]


@pytest.mark.parametrize(
    ("currency", "amount", "shown"),
    [("EUR", 900, "€9.00"), ("jpy", 500, "JPY\u00a0500"), ("kwd", 1230, "KWD\u00a01.230")],
)
async def test_amount_is_shown_with_digits_of_its_currency(
    currency: str, amount: int, shown: str, env: ServerEnv
) -> None:
    created = await env.begin(currency=currency, amount=amount)
    assert (created.amount_total, created.currency) == (amount, currency.lower())
    assert shown in (await env.browser.get(f"/pay/{created.id}")).text


async def test_line_items_are_added_up(env: ServerEnv) -> None:
    item = order()["line_items"][0]
    created = await env.begin(line_items=[item, {**item, "quantity": 2}])
    assert created.amount_total == 2700


async def test_expired_session_accepts_no_payment_and_sends_single_event(env: ServerEnv) -> None:
    created = await env.begin()
    ended = await env.stripe.checkout.sessions.expire_async(created.id)
    assert (ended.status, ended.url) == ("expired", None)
    with pytest.raises(stripe.InvalidRequestError, match="status of expired"):
        await env.stripe.checkout.sessions.expire_async(created.id)
    await env.press(created, "card", late=True)
    assert (await env.session(created.id)).payment_status == "unpaid"
    assert env.shop.types == ["checkout.session.expired"]


async def test_session_expires_after_a_day(env: ServerEnv) -> None:
    created = await env.begin()
    env.clock.tick(hours=24)
    assert (await env.session(created.id)).status == "expired"
    assert env.shop.types == ["checkout.session.expired"]


async def test_payment_is_refunded_in_parts_up_to_its_amount(env: ServerEnv) -> None:
    created = await env.begin()
    await env.press(created, "card")
    paid = await env.session(created.id)
    intent = str(paid.payment_intent)
    payment = await env.stripe.payment_intents.retrieve_async(intent)
    assert (payment.status, payment.amount_received) == ("succeeded", 900)
    assert payment.to_dict()["metadata"] == {"elicitation": "e1"}

    part = await env.stripe.refunds.create_async(
        {"payment_intent": intent, "amount": 400, "reason": "requested_by_customer"}
    )
    assert (part.amount, part.status, part.charge) == (400, "succeeded", payment.latest_charge)
    assert (await env.stripe.refunds.retrieve_async(part.id)).amount == 400
    with pytest.raises(stripe.InvalidRequestError, match="greater than unrefunded"):
        await env.stripe.refunds.create_async({"payment_intent": intent, "amount": 501})
    rest = await env.stripe.refunds.create_async(
        {"payment_intent": intent, "metadata": {"receipt": "r1"}}
    )
    assert (rest.amount, rest.to_dict()["metadata"]) == (500, {"receipt": "r1"})
    listed = await env.stripe.refunds.list_async({"payment_intent": intent})
    assert [refund.id for refund in listed.data] == [rest.id, part.id]
    assert not (await env.stripe.refunds.list_async({"payment_intent": "pi_0"})).data
    assert (await env.stripe.refunds.list_async({"limit": 1})).has_more
    with pytest.raises(stripe.InvalidRequestError) as refused:
        await env.stripe.refunds.create_async({"payment_intent": intent})
    assert refused.value.code == "charge_already_refunded"

    refunds = [event for event in env.shop.events if event.type == "charge.refunded"]
    charges = [event.data.object for event in refunds]
    assert [charge["amount_refunded"] for charge in charges] == [400, 900]
    assert [charge["refunded"] for charge in charges] == [False, True]
    assert {charge["payment_intent"] for charge in charges} == {intent}


async def test_missing_object_is_reported_as_resource_missing(env: ServerEnv) -> None:
    for call in (
        env.session("cs_test_0"),
        env.stripe.checkout.sessions.expire_async("cs_test_0"),
        env.stripe.payment_intents.retrieve_async("pi_0"),
        env.stripe.refunds.retrieve_async("re_0"),
    ):
        with pytest.raises(stripe.InvalidRequestError) as missing:
            await call
        assert (missing.value.http_status, missing.value.code) == (404, "resource_missing")
    with pytest.raises(stripe.InvalidRequestError) as missing:
        await env.stripe.refunds.create_async({"payment_intent": "pi_0"})
    assert (missing.value.http_status, missing.value.param) == (400, "payment_intent")


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ("", "mode"),
        ("mode=subscription", "mode"),
        (FORM, "line_items[0][price_data][currency]"),
        (FORM + ITEM, "line_items[0][price_data][unit_amount]"),
        (FORM + ITEM + PRICE.replace("900", "9.00"), "line_items[0][price_data][unit_amount]"),
        (FORM + ITEM + PRICE.replace("900", "-1"), "line_items[0][price_data][unit_amount]"),
        (FORM + ITEM + PRICE.replace("900", "999999999"), "line_items[0][price_data][unit_amount]"),
        (FORM + ITEM.replace("=1", "=0") + PRICE, "line_items[0][quantity]"),
        (FORM + ITEM.replace("=1", "=200000") + PRICE, "line_items"),
        (FORM + ITEM.replace("eur", "xxx") + PRICE, "line_items"),
        (FORM.replace("http", "javascript") + ITEM + PRICE, "success_url"),
        (FORM + ITEM + PRICE + "&cancel_url=/relative", "cancel_url"),
        (FORM + ITEM + PRICE + "&expires_at=1", "expires_at"),
        (FORM + ITEM + PRICE + f"&client_reference_id={'x' * 201}", "client_reference_id"),
        (FORM + ITEM + PRICE + "&metadata[a][b]=1", "metadata"),
        (FORM + ITEM + PRICE + f"&metadata[a]={'x' * 501}", "metadata[a]"),
        (FORM + ITEM + PRICE + "&succes_url=x", "succes_url"),
    ],
)
async def test_invalid_parameter_is_named(content: str, param: str, env: ServerEnv) -> None:
    refused = await env.post("/v1/checkout/sessions", content)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize("content", ["{}", "mode=%ff", "mode=ü", "&".join(["a=1"] * 501)])
async def test_body_which_is_no_form_is_refused(content: str, env: ServerEnv) -> None:
    refused = await env.post("/v1/checkout/sessions", content)
    assert refused.status_code == 400
    assert "x-www-form-urlencoded" in refused.json()["error"]["message"]


async def test_too_large_body_is_refused(env: ServerEnv) -> None:
    refused = await env.post("/v1/refunds", "a" * 100_000)
    assert refused.status_code == 413
    assert refused.json()["error"]["type"] == "invalid_request_error"


async def test_request_without_right_key_is_refused(env: ServerEnv) -> None:
    for given in ("", "Bearer ", "Bearer sk_test_other", "Bearer sk_ü", "Basic ?", "Digest x"):
        headers = {"authorization": given.encode()}
        reply = await env.browser.get("/stripe/v1/refunds/re_0", headers=headers)  # type: ignore[arg-type]
        assert reply.status_code == 401, given
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert (await env.browser.post("/stripe/control", headers=headers)).status_code == 401  # type: ignore[arg-type]
    basic = base64.b64encode(f"{KEY}:".encode()).decode()
    reply = await env.browser.get(
        "/stripe/v1/refunds/re_0", headers={"authorization": f"Basic {basic}"}
    )
    assert reply.status_code == 404


async def test_same_idempotency_key_makes_single_session(env: ServerEnv) -> None:
    sessions = env.stripe.checkout.sessions
    first, second = await asyncio.gather(
        *(sessions.create_async(order(), {"idempotency_key": "e1:1"}) for _ in range(2))
    )
    assert first.id == second.id
    await env.press(first, "card")
    again = await sessions.create_async(order(), {"idempotency_key": "e1:1"})
    # The stored reply is sent again. It is from before the payment.
    assert (again.id, again.status) == (first.id, "open")
    assert (await sessions.create_async(order(), {"idempotency_key": "e1:2"})).id != first.id


async def test_lost_reply_is_replayed_for_its_idempotency_key_and_500_is_not(
    env: ServerEnv,
) -> None:
    key = {"idempotency-key": "e1:1"}
    for trouble, status in (("500", 500), ("lost", 504)):
        await env.control(next=trouble)
        reply = await env.post("/v1/checkout/sessions", FORM + ITEM + PRICE, headers=key)
        assert reply.status_code == status
    for _ in range(2):
        reply = await env.post("/v1/checkout/sessions", FORM + ITEM + PRICE, headers=key)
        assert (reply.status_code, reply.headers["idempotent-replayed"]) == (200, "true")


async def test_idempotency_key_with_different_request_is_refused(env: ServerEnv) -> None:
    sessions = env.stripe.checkout.sessions
    first = await sessions.create_async(order(), {"idempotency_key": "e1:1"})
    for call in (
        sessions.create_async(order(amount=901), {"idempotency_key": "e1:1"}),
        sessions.expire_async(first.id, options={"idempotency_key": "e1:1"}),
    ):
        with pytest.raises(stripe.IdempotencyError) as refused:
            await call
        assert refused.value.http_status == 400
    assert (await env.session(first.id)).status == "open"


async def test_a_repeated_refund_refunds_once(env: ServerEnv) -> None:
    created = await env.begin()
    await env.press(created, "card")
    intent = str((await env.session(created.id)).payment_intent)
    first, second = [
        await env.stripe.refunds.create_async(
            {"payment_intent": intent, "amount": 100}, {"idempotency_key": "refund:r1"}
        )
        for _ in range(2)
    ]
    assert first.id == second.id
    assert env.shop.types == ["checkout.session.completed", "charge.refunded"]


async def test_refused_request_does_not_use_up_idempotency_key(env: ServerEnv) -> None:
    sessions = env.stripe.checkout.sessions
    with pytest.raises(stripe.InvalidRequestError):
        await sessions.create_async(order(amount=0), {"idempotency_key": "e1:1"})
    assert (await sessions.create_async(order(), {"idempotency_key": "e1:1"})).status == "open"


async def test_idempotency_key_is_forgotten_after_a_day(env: ServerEnv) -> None:
    sessions = env.stripe.checkout.sessions
    first = await sessions.create_async(order(), {"idempotency_key": "e1:1"})
    env.clock.tick(hours=24)
    assert (await sessions.create_async(order(), {"idempotency_key": "e1:1"})).id != first.id


async def test_too_long_idempotency_key_is_refused(env: ServerEnv) -> None:
    headers = {"idempotency-key": "k" * 256}
    assert (await env.post("/v1/refunds", "a=b", headers=headers)).status_code == 400
