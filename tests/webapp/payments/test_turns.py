"""Open payment pages that the server polls, because no webhook can reach it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flows.elicitation.states import Status
from flows.payments.checkout_page import PACE, TROUBLED_AT_MOST
from flows.payments.gateway import MerchantAccount
from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import paypal
from flows.payments.stripe.gateway import stripe
from tests.support.acme import DECLARED, KEY, Acme, begun, declared, ledger
from tests.support.mcp_server import RING
from tests.support.payment_env import Mollie, PaymentEnv, PayPal, selling
from tests.support.shop_env import FETCH, buying, open_shop
from webapp.payments.checkouts import FETCHES_AT_ONCE
from webapp.settings.sandboxed import with_sandbox
from webapp.settings.settings import BadSettings, Settings, read_settings
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import HOLD, fall_due

FETCHED = "GET /checkouts/"


@pytest.fixture
def acme() -> Acme:
    return Acme()


@pytest.fixture
async def payment_env(acme: Acme, tmp_path: Path) -> AsyncIterator[PaymentEnv]:
    seller = declared(DECLARED, folder=tmp_path)
    async with selling(seller, acme, is_unreached=True) as payment_env:
        yield payment_env


async def asked_at(
    payment_env: PaymentEnv, calls: list[str], *, seconds: int, words: str
) -> list[int]:
    """Sweep each second. Return the seconds in which a request to the provider contains `words`."""
    moments: list[int] = []
    for second in range(1, seconds + 1):
        before = sum(words in call for call in calls)
        payment_env.clock.tick(seconds=1)
        await fall_due(payment_env.service)
        moments += [second] * (sum(words in call for call in calls) - before)
    return moments


async def test_open_checkout_is_polled_with_growing_intervals_until_the_question_expires(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    # finding: M3
    asked = await begun(payment_env)
    moments = await asked_at(payment_env, acme.calls, seconds=29 * 60, words=FETCHED)
    assert [after - before for before, after in pairwise([0, *moments])][:9] == [
        *(2, 3, 5, 8, 13, 21),
        *(30, 30, 30),
    ]
    assert max(after - before for before, after in pairwise(moments)) == 30
    assert (await payment_env.now(asked)).status is Status.OPENED
    await payment_env.sweep(minutes=31)
    assert (await payment_env.now(asked)).status is Status.EXPIRED
    calls = len(acme.calls)
    assert await asked_at(payment_env, acme.calls, seconds=300, words=FETCHED) == []
    assert len(acme.calls) == calls


async def test_provider_is_not_polled_before_the_first_interval_has_passed(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await begun(payment_env)
    for _ in range(5):
        await fall_due(payment_env.service)
    assert not any(FETCHED in call for call in acme.calls)


async def test_pressing_continue_restarts_the_polling_intervals(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    await asked_at(payment_env, acme.calls, seconds=90, words=FETCHED)
    await payment_env.go_on(asked)
    moments = await asked_at(payment_env, acme.calls, seconds=20, words=FETCHED)
    assert moments == [2, 5, 10, 18]


def approve(provider: Any) -> None:
    provider.approve("O1")


def arrive(provider: Any) -> None:
    provider.payments["tr_1"]["status"] = "paid"


@pytest.mark.parametrize(
    ("seller", "played", "pay"),
    [
        (lambda: paypal("id", "secret", is_live=False), PayPal, approve),
        (lambda: mollie("test_abc"), Mollie, arrive),
    ],
    ids=["paypal", "mollie"],
)
async def test_payment_without_webhooks_is_found_by_polling_at_each_provider(
    seller: Callable[[], MerchantAccount],
    played: Callable[[], Any],
    pay: Callable[[Any], None],
) -> None:
    # finding: M3
    provider = played()
    async with selling(seller(), provider, is_unreached=True) as payment_env:
        asked = await payment_env.begun()
        pay(provider)
        payment_env.clock.tick(seconds=2)
        await fall_due(payment_env.service)
        assert (await payment_env.now(asked)).status is Status.ACCEPTED
        calls = len(provider.calls)
        await asked_at(payment_env, provider.calls, seconds=120, words="/")
        assert len(provider.calls) == calls


async def test_payment_is_found_by_polling_without_return_and_webhook() -> None:
    # finding: M3
    async with open_shop() as shop:
        await shop.restart(asks=True)
        async with buying(shop) as buy:
            await buy.person.pay(buy.link)
            shop.post.clear()
            shop.clock.tick(seconds=2)
            await fall_due(shop.service)
            assert await buy.result() == "paid 9.00 EUR"


async def test_two_processes_poll_a_checkout_once_per_interval() -> None:
    # finding: M3
    async with open_shop() as shop:
        await shop.restart(asks=True)
        async with buying(shop) as buy:
            await buy.person.go_on(buy.link)
            other = await shop.process()
            for turn in range(1, 4):
                shop.clock.tick(seconds=31)
                await asyncio.gather(fall_due(shop.service), fall_due(other.service))
                assert shop.line.count(FETCH) == turn
            await other.ended()


async def test_another_process_polls_the_checkouts_of_a_dead_process(
    acme: Acme, tmp_path: Path
) -> None:
    # finding: M3
    seller, store = declared(DECLARED, folder=tmp_path), MemoryStore()
    async with selling(seller, acme, store=store, is_unreached=True) as payment_env:
        await begun(payment_env)
        acme.pay()
        async with selling(seller, acme, store=store.sibling(), is_unreached=True) as other:
            other.clock.tick(seconds=2)
            await fall_due(other.service)
            assert len(await ledger(other)) == 1


async def test_provider_is_not_polled_if_webhooks_reach_the_server(
    acme: Acme, tmp_path: Path
) -> None:
    # finding: M3
    async with selling(declared(DECLARED, folder=tmp_path), acme) as payment_env:
        await begun(payment_env)
        assert await asked_at(payment_env, acme.calls, seconds=300, words=FETCHED) == []


async def test_unreachable_provider_is_polled_with_growing_intervals_until_reachable(
    payment_env: PaymentEnv, acme: Acme, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: M3
    asked = await begun(payment_env)
    acme.is_down = True
    moments = await asked_at(payment_env, acme.calls, seconds=1200, words=FETCHED)
    pauses = [after - before for before, after in pairwise(moments)]
    assert pauses[0] == 30
    assert pauses == sorted(pauses)
    assert timedelta(seconds=pauses[-1]) == TROUBLED_AT_MOST
    assert KEY not in caplog.text
    acme.is_down = False
    acme.pay()
    await asked_at(payment_env, acme.calls, seconds=300, words=FETCHED)
    assert (await payment_env.now(asked)).status is Status.ACCEPTED


async def test_polling_is_rate_limited_per_account_and_resumes_later(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    # finding: M3
    many = [await payment_env.asked(f"question {number}") for number in range(FETCHES_AT_ONCE + 5)]
    for asked in many:
        await payment_env.go_on(asked)
    payment_env.clock.tick(seconds=2)
    await fall_due(payment_env.service)
    assert sum(FETCHED in call for call in acme.calls) == FETCHES_AT_ONCE
    payment_env.clock.tick(seconds=HOLD.total_seconds())
    await fall_due(payment_env.service)
    assert len({call for call in acme.calls if FETCHED in call}) > FETCHES_AT_ONCE


async def test_declared_provider_can_set_its_polling_intervals(acme: Acme, tmp_path: Path) -> None:
    # finding: M3
    slowly = f"{DECLARED}pace = [10, 60]\n"
    async with selling(declared(slowly, folder=tmp_path), acme, is_unreached=True) as payment_env:
        await begun(payment_env)
        moments = await asked_at(payment_env, acme.calls, seconds=200, words=FETCHED)
        assert moments == [10, 70, 130, 190]


def test_zero_or_empty_pace_setting_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="pace"):
        declared(f"{DECLARED}pace = [0]\n", folder=tmp_path)
    with pytest.raises(BadSettings, match="pace"):
        declared(f"{DECLARED}pace = []\n", folder=tmp_path)


async def test_provider_without_fetch_is_not_polled(acme: Acme, tmp_path: Path) -> None:
    silent = f"{DECLARED}fetch = false\n"
    async with selling(declared(silent, folder=tmp_path), acme, is_unreached=True) as payment_env:
        asked = await begun(payment_env)
        assert (await payment_env.now(asked)).ask_at is None


# When polling is on.


def test_local_server_polls_remote_providers_unless_configured_otherwise(tmp_path: Path) -> None:
    # finding: M3
    environment = {
        "HOME": str(tmp_path),
        "ELICIT_STRIPE_KEY": "sk_test_1",
        "ELICIT_STRIPE_WEBHOOK_SECRET": "whsec_1",
    }
    assert read_settings(environment).unreached == {"stripe"}
    assert read_settings({**environment, "ELICIT_ASK": "0"}).unreached == set()
    with pytest.raises(BadSettings, match="ELICIT_ASK"):
        read_settings({**environment, "ELICIT_ASK": "often"})
    public = Settings(
        url="https://mcp.example.org",
        ring=RING,
        store="memory:",
        uid=os.getuid(),
        sellers={"stripe": stripe("sk_test_1", ["whsec_1"])},
    )
    assert public.unreached == set()
    assert replace(public, asks=True).unreached == {"stripe"}


async def test_sandbox_is_not_polled() -> None:
    async with open_shop() as shop:
        assert with_sandbox(shop.settings, shop.sandbox).unreached == set()


# Waking up to poll.


async def test_poller_wakes_when_a_checkout_becomes_due(payment_env: PaymentEnv) -> None:
    # finding: M3
    asked = await payment_env.asked()
    expecting = payment_env.service.kinds.payments.checkouts
    waiting = asyncio.create_task(expecting.wait_for_turn(within=3600))
    await asyncio.sleep(0)
    expecting.expect_turn(structs.replace(asked, ask_at=payment_env.clock() + timedelta(hours=1)))
    await asyncio.sleep(0)
    assert not waiting.done()
    expecting.expect_turn(structs.replace(asked, ask_at=payment_env.clock()))
    await asyncio.wait_for(waiting, 300)
    payment_env.clock.tick(hours=1)
    await asyncio.wait_for(expecting.wait_for_turn(within=3600), 300)


async def test_overdue_checkout_wakes_the_poller_once_and_later_checkouts_remain(
    payment_env: PaymentEnv,
) -> None:
    asked = await payment_env.asked()
    expecting = payment_env.service.kinds.payments.checkouts
    expecting.expect_turn(structs.replace(asked, ask_at=payment_env.clock() - timedelta(seconds=1)))
    expecting.expect_turn(structs.replace(asked, ask_at=payment_env.clock() + timedelta(hours=1)))
    await asyncio.wait_for(expecting.wait_for_turn(within=3600), 300)
    waiting = asyncio.create_task(expecting.wait_for_turn(within=3600))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    payment_env.clock.tick(hours=1)
    await asyncio.wait_for(expecting.wait_for_turn(within=3600), 300)


async def test_pressing_continue_and_each_poll_schedule_the_next_poll(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    # finding: M3
    await begun(payment_env)
    expecting = payment_env.service.kinds.payments.checkouts
    for pause in PACE:
        payment_env.clock.tick(seconds=pause.total_seconds())
        await asyncio.wait_for(expecting.wait_for_turn(within=3600), 300)
        before = sum(FETCHED in call for call in acme.calls)
        await fall_due(payment_env.service)
        assert sum(FETCHED in call for call in acme.calls) == before + 1
