"""Deliveries of the sandbox's events: signed, immediate and once, or with the requested faults."""

import asyncio
from typing import Any, cast

import httpx
import pytest
import stripe

from flows.payments.stripe.gateway import STRIPE
from flows.webhooks.signatures import verify
from tests.support.clock import NOON
from tests.support.sandbox_checkout import KEY, SECRET, SHOP, ServerEnv
from tests.support.serving import serving_at
from webapp.http.exchange import ASGIApp
from webapp.sandbox.checkout.deliveries import RETRY_AFTER_SECONDS

COMPLETED, ENDED = "checkout.session.completed", "checkout.session.expired"


async def pay(env: ServerEnv) -> str:
    created = await env.begin()
    await env.press(created, "card")
    return created.id


async def end(env: ServerEnv) -> str:
    created = await env.begin()
    await env.stripe.checkout.sessions.expire_async(created.id)
    return created.id


async def test_event_has_format_and_signature_of_stripe(env: ServerEnv) -> None:
    await pay(env)
    [request] = env.shop.received
    assert str(request.url) == f"{SHOP}/webhooks/stripe"
    assert request.headers["content-type"].startswith("application/json")
    [event] = env.shop.events
    assert event.id.startswith("evt_")
    assert (event.object, event.livemode) == ("event", False)
    assert event.created == int(NOON.timestamp())
    assert event.api_version == "2026-10-28.endive"
    headers = request.headers.multi_items()
    delivery = verify(STRIPE, body=request.content, headers=headers, secrets=[SECRET], now=NOON)
    assert delivery.sent_at == NOON


async def test_event_does_not_verify_with_other_secret(env: ServerEnv) -> None:
    await pay(env)
    [request] = env.shop.received
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(
            request.content, request.headers["stripe-signature"], "whsec_other", tolerance=0
        )


@pytest.mark.parametrize("answer", [500, 302, httpx.ConnectError("nobody there")])
async def test_refused_event_is_sent_again_later(answer: Any, env: ServerEnv) -> None:
    env.shop.answers = [answer, answer]
    await pay(env)
    assert len(env.shop.received) == 3
    assert len({event.id for event in env.shop.events}) == 1
    assert env.shop.pauses == list(RETRY_AFTER_SECONDS[:2])


async def test_event_is_given_up_after_last_retry(env: ServerEnv) -> None:
    env.shop.answers = [500] * 100
    assert (await env.session(await pay(env))).payment_status == "paid"
    assert env.shop.pauses == list(RETRY_AFTER_SECONDS)
    assert len(env.shop.received) == 1 + len(RETRY_AFTER_SECONDS)


async def test_exception_in_delivery_does_not_break_checkout(env: ServerEnv) -> None:
    env.shop.answers = [RuntimeError("our bug")]
    await pay(env)
    await end(env)
    assert env.shop.types == [COMPLETED, ENDED]


async def test_held_event_is_signed_when_sent(env: ServerEnv) -> None:
    await env.control(hold=True)
    await pay(env)
    later = env.clock.tick(hours=1)
    await env.control(release=True)
    [request] = env.shop.received
    assert request.headers["stripe-signature"].startswith(f"t={int(later.timestamp())},v1=")
    assert env.shop.events[0].created == int(NOON.timestamp())


async def test_duplicate_deliveries_have_same_event_id(env: ServerEnv) -> None:
    assert await env.control(duplicates=2) == {
        "duplicates": 2,
        "reorder": False,
        "hold": False,
        "drop": False,
        "held": 0,
    }
    await pay(env)
    assert env.shop.types == [COMPLETED] * 3
    assert len({event.id for event in env.shop.events}) == 1
    await env.control(duplicates=0)
    await pay(env)
    assert len(env.shop.received) == 4


async def test_reordering_sends_next_event_first(env: ServerEnv) -> None:
    await env.control(reorder=True)
    await pay(env)
    assert env.shop.received == []
    await end(env)
    assert env.shop.types == [ENDED, COMPLETED]


async def test_last_reordered_event_can_be_released(env: ServerEnv) -> None:
    await env.control(reorder=True)
    await pay(env)
    assert (await env.control(release=True, reorder=False))["held"] == 0
    assert env.shop.types == [COMPLETED]


async def test_held_events_arrive_when_released(env: ServerEnv) -> None:
    await env.control(hold=True)
    await pay(env)
    await end(env)
    assert env.shop.received == []
    assert (await env.control())["held"] == 2
    state = await env.control(release=True)
    assert (state["hold"], state["held"]) == (False, 0)
    assert env.shop.types == [COMPLETED, ENDED]
    await pay(env)
    assert env.shop.types == [COMPLETED, ENDED, COMPLETED]


async def test_held_and_reordered_events_are_released_backwards_with_duplicates(
    env: ServerEnv,
) -> None:
    await env.control(hold=True, reorder=True, duplicates=1)
    await pay(env)
    await end(env)
    await env.control(release=True)
    assert env.shop.types == [ENDED, ENDED, COMPLETED, COMPLETED]


async def test_dropped_event_never_arrives(env: ServerEnv) -> None:
    await env.control(drop=True)
    await pay(env)
    await env.control(drop=False)
    await end(env)
    assert env.shop.types == [ENDED]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"\xff", b'{"duplicate": 1}', b'{"duplicates": -1}', b'{"hold": "yes"}'],
)
async def test_invalid_control_request_changes_nothing(body: bytes, env: ServerEnv) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    refused = await env.browser.post("/stripe/control", content=body, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert await env.control() == {
        "duplicates": 0,
        "reorder": False,
        "hold": False,
        "drop": False,
        "held": 0,
    }


async def test_response_does_not_wait_for_delivery_and_shutdown_cancels_delivery() -> None:
    stages: list[ServerEnv] = []
    reported, given_up = asyncio.Event(), asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        reported.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            given_up.set()
        raise AssertionError

    def make(url: str) -> ASGIApp:
        stages.append(ServerEnv(url=url, deliver=never))
        return cast("ASGIApp", stages[0].app)

    async with serving_at(make) as url, httpx.AsyncClient(base_url=url) as browser:
        [env] = stages
        await env.browser.aclose()
        env.browser = browser
        created = await env.begin()
        assert (await env.press(created, "card")).status_code == 303
        await reported.wait()
        assert (await env.session(created.id)).payment_status == "paid"
        assert not given_up.is_set()
    assert given_up.is_set()
