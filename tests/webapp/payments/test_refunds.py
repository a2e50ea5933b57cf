"""Refunds: automatic for unused payments, once, and never while a call uses the payment."""

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from flows import Receipt
from flows.elicitation.run import Run
from flows.errors import Failed
from flows.payments.refunds import REFUND_TRIES_AT_MOST, NoRefunds
from flows.payments.stripe.gateway import STRIPE_API, stripe
from tests.support.mcp_server import eventually, soon, text_of
from tests.support.paying import paid_in_vain, results_are_noted, two_tabs
from tests.support.shop_env import FETCH, REFUND, Buying, Shop, buying, open_shop
from webapp.settings.settings import BadSettings, read_settings
from webapp.sweeper import fall_due

LISTED = "GET /stripe/v1/refunds"


# Automatic refunds.


async def test_unused_payment_is_refunded_automatically_after_a_week(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(days=7, seconds=-40)
        await shop.sweep()
        assert (await shop.ledger(), await shop.refunds()) == (["open"], [])
        await shop.sweep()
        (payment,) = await shop.payments()
        assert (payment.status, payment.reason) == ("refunded", "nobody used it")
        assert payment.refunded_at == shop.clock()
        (refund,) = await shop.refunds()
        assert (refund["amount"], refund["id"]) == (900, payment.refund_id)
        assert f"refund:{payment.id}" in shop.line.keys
        await shop.sweep()
        assert shop.line.count(REFUND) == 1, "the second sweep requests no further refund"
        assert await buy.is_asked_again() != buy.link


async def test_unused_payment_row_is_due_when_the_automatic_refund_is_due(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        (row,) = await shop.store.list("payment")
        assert row.due_at == shop.clock() + timedelta(days=7)


async def test_unused_payment_made_after_expiry_is_refunded_automatically(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        shop.clock.tick(minutes=30)
        shop.line.is_down = True
        await shop.sweep()
        await buy.result()
        shop.line.is_down = False
        await buy.person.press_there(there, "card")
        await shop.send_all()
        assert await shop.ledger() == ["open"]
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["refunded"]


async def paid_twice(shop: Shop, buy: Buying) -> None:
    for tab in await two_tabs(shop, buy):
        await buy.person.press_there(tab, "card")
    await shop.send_all()
    await buy.result()
    await eventually_spent(shop)


async def eventually_spent(shop: Shop) -> None:
    while sorted(await shop.ledger()) != ["open", "spent"]:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_second_payment_of_a_question_is_refunded_at_once_and_only_once(shop: Shop) -> None:
    # finding: M4
    async with buying(shop) as buy:
        await paid_twice(shop, buy)
    (surplus,) = [p for p in await shop.payments() if p.status == "open"]
    assert await fall_due(shop.service)
    assert sorted(await shop.ledger()) == ["refunded", "spent"]
    (refund,) = await shop.refunds()
    assert (refund["amount"], refund["metadata"]["reason"]) == (900, "paid twice")
    assert shop.line.keys[-1] == f"refund:{surplus.id}"
    await shop.sweep()
    assert len(await shop.refunds()) == 1


async def test_double_payment_is_not_refunded_until_the_provider_confirms_both_charges(
    shop: Shop,
) -> None:
    # finding: M4
    async with buying(shop) as buy:
        await paid_twice(shop, buy)
    shop.line.broken.append(FETCH)
    await shop.sweep()
    assert (await shop.refunds(), sorted(await shop.ledger())) == ([], ["open", "spent"])
    shop.line.broken.clear()
    shop.clock.tick(minutes=5)
    await shop.sweep()
    assert sorted(await shop.ledger()) == ["refunded", "spent"]


async def test_second_payment_is_not_refunded_at_once_if_the_first_was_refunded(shop: Shop) -> None:
    # finding: M4
    async with buying(shop) as buy:
        await paid_twice(shop, buy)
        (spent,) = [p for p in await shop.payments() if p.status == "spent"]
        assert spent.payment_intent is not None
        await shop.refund_at_provider(spent.payment_intent)
        await shop.send_all()
    await shop.sweep()
    assert sorted(await shop.ledger()) == ["open", "refunded"]
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["refunded", "refunded"]


async def test_unused_payment_is_refunded_after_the_configured_time(shop: Shop) -> None:
    await shop.restart(refund_unused=timedelta(hours=12))
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(hours=12)
        await shop.sweep()
        assert await shop.ledger() == ["refunded"]


async def test_unused_payment_is_never_refunded_if_automatic_refunds_are_disabled(
    shop: Shop,
) -> None:
    await shop.restart(refund_unused=None)
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(days=29)
        await shop.sweep()
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
        assert await buy.again() == "paid 9.00 EUR"


async def test_payment_that_a_call_is_using_is_not_refunded_automatically(shop: Shop) -> None:
    gate = asyncio.Event()

    async def slowly(receipt: Receipt) -> str:
        await gate.wait()
        return f"report for {receipt.price}"

    shop.body = slowly
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(days=7, seconds=-10)
        call = buy.caller.call("report")
        await eventually(lambda: shop.bodies)
        shop.clock.tick(seconds=20)
        assert await fall_due(shop.service)
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
        gate.set()
        assert text_of(await soon(call)) == "report for 9.00 EUR"
        await results_are_noted(shop)
        await shop.sweep()
        assert (await shop.ledger(), await shop.refunds()) == (["spent"], [])


async def test_payment_of_a_dead_call_is_refunded_automatically_after_its_lease(shop: Shop) -> None:
    stuck = asyncio.Event()

    async def never(_: Receipt) -> str:
        await stuck.wait()
        return "never"

    shop.body = never
    async with buying(shop) as buy:
        await buy.pay()
        await eventually(lambda: shop.bodies)
        await shop.restart()
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["refunded"]


async def test_call_during_a_running_refund_asks_for_payment_again(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        gate = shop.line.held[REFUND] = asyncio.Event()
        shop.clock.tick(days=7)
        sweeping = asyncio.create_task(fall_due(shop.service))
        await eventually(lambda: shop.line.count(REFUND))
        assert await shop.ledger() == ["refunding"]
        await buy.is_asked_again()
        gate.set()
        await sweeping
        assert (await shop.ledger(), shop.bodies) == (["refunded"], 0)


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_two_processes_refund_an_unused_payment_once(
    tmp_path: Path, is_on_disk: bool
) -> None:
    async with open_shop(folder=tmp_path if is_on_disk else None) as shop:
        other = await shop.process()
        async with buying(shop) as buy:
            await paid_in_vain(shop, buy)
        shop.clock.tick(days=7)
        await asyncio.gather(*(fall_due(service) for service in (shop.service, other.service) * 2))
        assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)
        assert shop.line.count(REFUND) == 1
        await other.ended()


async def test_refund_is_retried_with_growing_delays_while_the_provider_is_down(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    shop.clock.tick(days=7)
    shop.line.is_down = True
    asked_at = []
    for _ in range(60):
        before = len(shop.line.calls)
        await shop.sweep()
        if len(shop.line.calls) > before:
            asked_at.append(shop.clock())
        shop.clock.tick(minutes=1)
    pauses = [later - sooner for sooner, later in itertools.pairwise(asked_at)]
    assert 2 <= len(pauses) <= 4
    assert pauses == sorted(pauses)
    assert await shop.ledger() == ["refunding"]
    shop.line.is_down = False
    shop.clock.tick(hours=2)
    await shop.sweep()
    assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)


async def test_refund_that_always_fails_is_not_retried_after_the_maximum_of_tries(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    shop.line.is_down = True
    for _ in range(REFUND_TRIES_AT_MOST + 8):
        shop.clock.tick(days=2)
        await shop.sweep()
    calls = len(shop.line.calls)
    shop.clock.tick(days=30)
    await shop.sweep()
    assert len(shop.line.calls) == calls, "the sweeper sends no request after the last try"
    assert await shop.ledger() == ["refunding"]


async def test_automatic_refund_whose_reply_was_lost_is_not_made_twice(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    shop.clock.tick(days=7)
    shop.line.lost.append(REFUND)
    shop.line.broken += [LISTED, FETCH]  # the provider cannot confirm the refund
    await shop.sweep()
    assert (await shop.ledger(), len(await shop.refunds())) == (["refunding"], 1)
    await shop.restart()
    shop.line.broken.clear()
    shop.clock.tick(hours=1)
    await shop.sweep()
    assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)


async def test_payment_already_refunded_at_the_provider_is_not_refunded_again(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    await shop.refund_by_hand()
    shop.post.clear()
    shop.clock.tick(days=7)
    await shop.sweep()
    assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)


async def test_payment_of_a_removed_provider_stays_open_until_the_provider_returns(
    shop: Shop,
) -> None:
    sellers = shop.settings.sellers
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    await shop.restart(sellers={})
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["open"]
    await shop.restart(sellers=sellers)
    shop.clock.tick(days=1)
    await shop.sweep()
    assert await shop.ledger() == ["refunded"]


async def test_refund_without_provider_settings_is_not_started(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    await shop.restart(sellers={})
    (payment,) = await shop.payments()
    payments = shop.service.kinds.payments
    await payments.ledger.change(  # the real Stripe's address, as in a live payment
        payment.owner, payment.id, lambda one: replace(one, at=STRIPE_API)
    )
    with pytest.raises(NoRefunds, match="ELICIT_STRIPE_"):
        await payments.refunds.refund(payment.owner, payment.id, reason=None)
    assert await shop.ledger() == ["open"]


@pytest.mark.parametrize("is_begun", [False, True])
async def test_sandbox_payment_is_not_refunded_at_the_real_provider(
    shop: Shop, is_begun: bool
) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    (payment,) = await shop.payments()
    if is_begun:
        shop.line.is_down = True
        with pytest.raises(Failed):
            await shop.service.kinds.payments.refunds.refund(payment.owner, payment.id, reason=None)
        shop.line.is_down = False
    was, asked = await shop.ledger(), len(shop.line.keys)
    await shop.restart(sellers={"stripe": stripe("sk_test_of_the_operator", ["whsec_x"])})
    with pytest.raises(NoRefunds, match=r"sandbox, http://.*can refund it, on its page /payments"):
        await shop.service.kinds.payments.refunds.refund(payment.owner, payment.id, reason=None)
    shop.clock.tick(days=8)
    await shop.sweep()
    assert await shop.ledger() == was == ["refunding" if is_begun else "open"]
    assert len(shop.line.keys) == asked


async def test_used_permanent_purchase_is_not_refunded_automatically(shop: Shop) -> None:
    shop.is_for_good = True
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(minutes=45)
        assert text_of(await soon(buy.caller.call("report", topic="coffee"))) == "paid 9.00 EUR"
        shop.clock.tick(days=7)
        await shop.sweep()
        assert (await shop.ledger(), await shop.refunds()) == (["spent"], [])
        assert await buy.again() == "paid 9.00 EUR"


async def test_unused_permanent_purchase_is_refunded_automatically(shop: Shop) -> None:
    shop.is_for_good = True
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(days=7)
        await shop.sweep()
        assert await shop.ledger() == ["refunded"]
        await buy.is_asked_again()


# Refunds by the tool.


async def test_failed_refund_by_a_tool_is_retried_and_the_payment_is_not_used(shop: Shop) -> None:
    async def refund(receipt: Receipt) -> str:
        await receipt.refund(reason="out of paper")
        return "never"

    shop.body = refund
    async with buying(shop) as buy:
        shop.line.broken.append("/refunds")
        assert "could not refund the payment" in await buy.paid()
        assert await shop.ledger() == ["refunding"]
        await soon(runs_are_delivered(shop))
        await buy.is_asked_again()
        assert shop.bodies == 1
    shop.line.broken.clear()
    shop.clock.tick(minutes=5)
    await shop.sweep()
    (payment,) = await shop.payments()
    assert (payment.status, payment.reason) == ("refunded", "out of paper")


async def test_call_after_a_tool_refunded_and_failed_asks_for_payment_again(
    shop: Shop,
) -> None:
    # finding: R17
    async def refund(receipt: Receipt) -> str:
        await receipt.refund(reason="out of paper")
        raise RuntimeError("no paper")

    shop.body = refund
    async with buying(shop) as buy:
        assert "report" in await buy.paid()
        assert await shop.ledger() == ["refunded"]
        await soon(runs_are_delivered(shop))
        assert await buy.is_asked_again() != buy.link
        assert shop.bodies == 1


async def runs_are_delivered(shop: Shop) -> None:
    """Wait until every result is known to have arrived."""
    elicitations = shop.service.elicitations
    while not all(run.is_delivered for run in await elicitations.all(Run)):  # noqa: ASYNC110
        await asyncio.sleep(0)


# The setting.


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("", timedelta(days=7)),
        ("7d", timedelta(days=7)),
        (" 12h ", timedelta(hours=12)),
        ("30m", timedelta(minutes=30)),
        ("60s", timedelta(seconds=60)),  # finding: XV8
        ("0", None),
    ],
)
def test_refund_unused_setting_accepts_days_hours_minutes_and_seconds(
    tmp_path: Path, text: str, duration: timedelta | None
) -> None:
    environment = {"HOME": str(tmp_path), "ELICIT_REFUND_UNUSED": text}
    assert read_settings(environment).refund_unused == duration


@pytest.mark.parametrize("text", ["7", "0d", "-1d", "7 days", "P7D", "1.5h", "99999d", "\u0667d"])
def test_invalid_refund_unused_setting_is_rejected_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSettings, match="ELICIT_REFUND_UNUSED"):
        read_settings({"HOME": str(tmp_path), "ELICIT_REFUND_UNUSED": text})
