"""How the sandbox's events arrive: signed, once and at once, or as badly as a test asks for."""

import asyncio
from typing import Any, cast

import httpx
import pytest
import stripe

from flows.payments.stripe.account import STRIPE
from flows.webhooks.signatures import verify
from tests.support.clock import NOON
from tests.support.sandbox_checkout import KEY, SECRET, SHOP, ServerEnv
from tests.support.serving import serving_at
from webapp.http.connection import ASGIApp
from webapp.sandbox.checkout.deliveries import RETRY_AFTER_SECONDS

COMPLETED, ENDED = "checkout.session.completed", "checkout.session.expired"


async def pay(stage: ServerEnv) -> str:
    created = await stage.begin()
    await stage.press(created, "card")
    return created.id


async def end(stage: ServerEnv) -> str:
    created = await stage.begin()
    await stage.stripe.checkout.sessions.expire_async(created.id)
    return created.id


async def test_an_event_has_stripes_shape_and_signature(stage: ServerEnv) -> None:
    await pay(stage)
    [request] = stage.shop.heard
    assert str(request.url) == f"{SHOP}/webhooks/stripe"
    assert request.headers["content-type"].startswith("application/json")
    [event] = stage.shop.events
    assert event.id.startswith("evt_")
    assert (event.object, event.livemode) == ("event", False)
    assert event.created == int(NOON.timestamp())
    assert event.api_version == "2026-10-28.endive"
    headers = request.headers.multi_items()
    delivery = verify(STRIPE, body=request.content, headers=headers, secrets=[SECRET], now=NOON)
    assert delivery.sent_at == NOON


async def test_another_secret_does_not_fit(stage: ServerEnv) -> None:
    await pay(stage)
    [request] = stage.shop.heard
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(
            request.content, request.headers["stripe-signature"], "whsec_other", tolerance=0
        )


@pytest.mark.parametrize("answer", [500, 302, httpx.ConnectError("nobody there")])
async def test_what_is_not_taken_is_sent_again_later(answer: Any, stage: ServerEnv) -> None:
    stage.shop.answers = [answer, answer]
    await pay(stage)
    assert len(stage.shop.heard) == 3
    assert len({event.id for event in stage.shop.events}) == 1
    assert stage.shop.pauses == list(RETRY_AFTER_SECONDS[:2])


async def test_a_shop_that_never_takes_it_is_left_alone_in_the_end(stage: ServerEnv) -> None:
    stage.shop.answers = [500] * 100
    assert (await stage.session(await pay(stage))).payment_status == "paid"
    assert stage.shop.pauses == list(RETRY_AFTER_SECONDS)
    assert len(stage.shop.heard) == 1 + len(RETRY_AFTER_SECONDS)


async def test_a_broken_way_to_the_shop_does_not_break_the_checkout(stage: ServerEnv) -> None:
    stage.shop.answers = [RuntimeError("a bug of ours")]
    await pay(stage)
    await end(stage)
    assert stage.shop.types == [COMPLETED, ENDED]


async def test_a_try_is_signed_when_it_is_sent(stage: ServerEnv) -> None:
    await stage.control(hold=True)
    await pay(stage)
    later = stage.clock.tick(hours=1)
    await stage.control(release=True)
    [request] = stage.shop.heard
    assert request.headers["stripe-signature"].startswith(f"t={int(later.timestamp())},v1=")
    assert stage.shop.events[0].created == int(NOON.timestamp())


async def test_duplicates_are_the_same_event(stage: ServerEnv) -> None:
    assert await stage.control(duplicates=2) == {
        "duplicates": 2,
        "reorder": False,
        "hold": False,
        "drop": False,
        "held": 0,
    }
    await pay(stage)
    assert stage.shop.types == [COMPLETED] * 3
    assert len({event.id for event in stage.shop.events}) == 1
    await stage.control(duplicates=0)
    await pay(stage)
    assert len(stage.shop.heard) == 4


async def test_reordering_sends_the_next_event_first(stage: ServerEnv) -> None:
    await stage.control(reorder=True)
    await pay(stage)
    assert stage.shop.heard == []
    await end(stage)
    assert stage.shop.types == [ENDED, COMPLETED]


async def test_the_last_of_a_reordered_row_can_be_released(stage: ServerEnv) -> None:
    await stage.control(reorder=True)
    await pay(stage)
    assert (await stage.control(release=True, reorder=False))["held"] == 0
    assert stage.shop.types == [COMPLETED]


async def test_what_is_held_arrives_when_it_is_released(stage: ServerEnv) -> None:
    await stage.control(hold=True)
    await pay(stage)
    await end(stage)
    assert stage.shop.heard == []
    assert (await stage.control())["held"] == 2
    state = await stage.control(release=True)
    assert (state["hold"], state["held"]) == (False, 0)
    assert stage.shop.types == [COMPLETED, ENDED]
    await pay(stage)
    assert stage.shop.types == [COMPLETED, ENDED, COMPLETED]


async def test_held_and_reordered_is_released_backwards_and_as_often_as_asked(
    stage: ServerEnv,
) -> None:
    await stage.control(hold=True, reorder=True, duplicates=1)
    await pay(stage)
    await end(stage)
    await stage.control(release=True)
    assert stage.shop.types == [ENDED, ENDED, COMPLETED, COMPLETED]


async def test_what_is_dropped_never_arrives(stage: ServerEnv) -> None:
    await stage.control(drop=True)
    await pay(stage)
    await stage.control(drop=False)
    await end(stage)
    assert stage.shop.types == [ENDED]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"\xff", b'{"duplicate": 1}', b'{"duplicates": -1}', b'{"hold": "yes"}'],
)
async def test_a_wish_that_is_none_changes_nothing(body: bytes, stage: ServerEnv) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    refused = await stage.browser.post("/stripe/control", content=body, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert await stage.control() == {
        "duplicates": 0,
        "reorder": False,
        "hold": False,
        "drop": False,
        "held": 0,
    }


async def test_an_answer_does_not_wait_for_the_shop_and_a_stop_ends_the_delivery() -> None:
    stages: list[ServerEnv] = []
    told, given_up = asyncio.Event(), asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        told.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            given_up.set()
        raise AssertionError

    def make(url: str) -> ASGIApp:
        stages.append(ServerEnv(url=url, deliver=never))
        return cast("ASGIApp", stages[0].app)

    async with serving_at(make) as url, httpx.AsyncClient(base_url=url) as browser:
        [stage] = stages
        await stage.browser.aclose()
        stage.browser = browser
        created = await stage.begin()
        assert (await stage.press(created, "card")).status_code == 303
        await told.wait()
        assert (await stage.session(created.id)).payment_status == "paid"
        assert not given_up.is_set()
    assert given_up.is_set()
