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
from flows.payments.refunds import REFUND_TRIES_AT_MOST
from flows.payments.stripe.account import STRIPE_API, stripe
from tests.support.mcp_server import eventually, soon, text_of
from tests.support.paying import paid_in_vain, results_are_noted, two_tabs
from tests.support.shop_env import FETCH, REFUND, Buying, Shop, buying, open_shop
from webapp.payments.refunds import NoRefunds
from webapp.settings.settings import BadSettings, read_settings
from webapp.sweeper import fall_due

LISTED = "GET /stripe/v1/refunds"


# Automatic refunds.


async def test_what_nobody_used_is_given_back_by_itself_after_a_week(shop: Shop) -> None:
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
        assert shop.line.count(REFUND) == 1, "and that was all"
        assert await buy.is_asked_again() != buy.link


async def test_the_row_says_when_so_that_nothing_has_to_look_for_it(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        (row,) = await shop.store.list("payment")
        assert row.due_at == shop.clock() + timedelta(days=7)


async def test_what_was_paid_after_its_time_is_given_back_as_well(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        shop.clock.tick(minutes=30)
        shop.line.is_down = True
        await shop.sweep()
        await buy.result()
        shop.line.is_down = False
        await buy.person.press_there(there, "card")
        await shop.tell_all()
        assert await shop.ledger() == ["open"]
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["refunded"]


async def paid_twice(shop: Shop, buy: Buying) -> None:
    for tab in await two_tabs(shop, buy):
        await buy.person.press_there(tab, "card")
    await shop.tell_all()
    await buy.result()
    await eventually_spent(shop)


async def eventually_spent(shop: Shop) -> None:
    while sorted(await shop.ledger()) != ["open", "spent"]:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_what_was_paid_twice_is_given_back_at_once_and_once(shop: Shop) -> None:
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


async def test_nothing_is_given_back_at_once_before_both_charges_are_shown(shop: Shop) -> None:
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


async def test_where_the_first_charge_is_gone_the_second_is_kept_as_any_other(shop: Shop) -> None:
    # finding: M4
    async with buying(shop) as buy:
        await paid_twice(shop, buy)
        (spent,) = [p for p in await shop.payments() if p.status == "spent"]
        assert spent.payment_intent is not None
        await shop.give_back_there(spent.payment_intent)
        await shop.tell_all()
    await shop.sweep()
    assert sorted(await shop.ledger()) == ["open", "refunded"]
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["refunded", "refunded"]


async def test_it_is_kept_as_long_as_the_operator_says(shop: Shop) -> None:
    await shop.restart(refund_unused=timedelta(hours=12))
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(hours=12)
        await shop.sweep()
        assert await shop.ledger() == ["refunded"]


async def test_it_is_kept_for_ever_where_the_operator_says_so(shop: Shop) -> None:
    await shop.restart(refund_unused=None)
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(days=29)
        await shop.sweep()
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
        assert await buy.again() == "paid 9.00 EUR"


async def test_what_a_call_has_in_hand_is_not_taken_away_from_it(shop: Shop) -> None:
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


async def test_what_a_dead_call_had_in_hand_is_given_back_after_its_lease(shop: Shop) -> None:
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


async def test_a_call_that_comes_while_it_goes_back_is_asked_and_never_given_it(
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
async def test_two_processes_give_it_back_once(tmp_path: Path, is_on_disk: bool) -> None:
    async with open_shop(folder=tmp_path if is_on_disk else None) as shop:
        other = await shop.process()
        async with buying(shop) as buy:
            await paid_in_vain(shop, buy)
        shop.clock.tick(days=7)
        await asyncio.gather(*(fall_due(service) for service in (shop.service, other.service) * 2))
        assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)
        assert shop.line.count(REFUND) == 1
        await other.ended()


async def test_a_provider_that_is_down_is_asked_again_with_growing_pauses(shop: Shop) -> None:
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


async def test_what_can_never_be_given_back_is_left_to_somebody_who_looks(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    shop.line.is_down = True
    for _ in range(REFUND_TRIES_AT_MOST + 8):
        shop.clock.tick(days=2)
        await shop.sweep()
    calls = len(shop.line.calls)
    shop.clock.tick(days=30)
    await shop.sweep()
    assert len(shop.line.calls) == calls, "and asks no more"
    assert await shop.ledger() == ["refunding"]


async def test_a_reply_that_was_lost_is_no_second_refund(shop: Shop) -> None:
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


async def test_what_was_refunded_by_hand_ends_in_refunded(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    await shop.refund_by_hand()
    shop.post.clear()
    shop.clock.tick(days=7)
    await shop.sweep()
    assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)


async def test_a_seller_that_is_gone_costs_nobody_their_receipt(shop: Shop) -> None:
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


async def test_where_its_provider_is_not_set_up_nothing_is_begun(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    await shop.restart(sellers={})
    (payment,) = await shop.payments()
    payments = shop.service.kinds.payments
    await payments.ledger.change(  # as in a live payment
        payment.owner, payment.id, lambda one: replace(one, at=STRIPE_API)
    )
    with pytest.raises(NoRefunds, match="ELICIT_STRIPE_"):
        await payments.refunds.refund(payment.owner, payment.id, reason=None)
    assert await shop.ledger() == ["open"]


@pytest.mark.parametrize("is_begun", [False, True])
async def test_what_was_paid_at_a_sandbox_is_asked_of_nobody_else(
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


async def test_what_is_bought_for_good_and_used_is_not_given_back(shop: Shop) -> None:
    shop.is_for_good = True
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(minutes=45)
        assert text_of(await soon(buy.caller.call("report", topic="coffee"))) == "paid 9.00 EUR"
        shop.clock.tick(days=7)
        await shop.sweep()
        assert (await shop.ledger(), await shop.refunds()) == (["spent"], [])
        assert await buy.again() == "paid 9.00 EUR"


async def test_what_is_bought_for_good_and_never_used_is_given_back(shop: Shop) -> None:
    shop.is_for_good = True
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        shop.clock.tick(days=7)
        await shop.sweep()
        assert await shop.ledger() == ["refunded"]
        await buy.is_asked_again()


# Refunds by the tool.


async def test_a_tool_that_could_not_give_it_back_does_not_use_it_either(shop: Shop) -> None:
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


async def test_a_tool_that_gave_it_back_and_failed_is_paid_anew_by_the_next_call(
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
    ("text", "kept"),
    [
        ("", timedelta(days=7)),
        ("7d", timedelta(days=7)),
        (" 12h ", timedelta(hours=12)),
        ("30m", timedelta(minutes=30)),
        ("60s", timedelta(seconds=60)),  # finding: XV8
        ("0", None),
    ],
)
def test_how_long_is_set_in_days_hours_minutes_or_seconds(
    tmp_path: Path, text: str, kept: timedelta | None
) -> None:
    environment = {"HOME": str(tmp_path), "ELICIT_REFUND_UNUSED": text}
    assert read_settings(environment).refund_unused == kept


@pytest.mark.parametrize("text", ["7", "0d", "-1d", "7 days", "P7D", "1.5h", "99999d", "\u0667d"])
def test_what_is_no_duration_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSettings, match="ELICIT_REFUND_UNUSED"):
        read_settings({"HOME": str(tmp_path), "ELICIT_REFUND_UNUSED": text})
