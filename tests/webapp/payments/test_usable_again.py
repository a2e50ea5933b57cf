"""A payment whose dispute was won is usable again, and answers the next identical request."""

import asyncio
from datetime import timedelta

import pytest

from flows.payments.receipt import Payment
from tests.support.disputes import CLOSED, claim, claimed, unused_payment
from tests.support.mcp_server import PATIENCE_SECONDS, soon, text_of
from tests.support.shop_env import Buying, Shop, buying

WON = {"status": "won"}


async def claimed_and_asked_again(shop: Shop, buy: Buying) -> tuple[Payment, str]:
    """Let a bank dispute the unused payment. Return it and the link of the next question."""
    payment = await unused_payment(shop, buy)
    assert await claimed(shop, payment) == "disputed"
    assert "disputed at the person's bank" in text_of(await buy.caller.result("report"))
    return payment, await buy.is_asked_again()


@pytest.mark.parametrize("is_for_good", [False, True])
async def test_won_dispute_answers_the_open_question_with_its_payment(
    shop: Shop, is_for_good: bool
) -> None:
    # finding: XM5
    shop.is_for_good = is_for_good
    async with buying(shop) as buy:
        payment, link = await claimed_and_asked_again(shop, buy)
        (call,) = [call for call in buy.caller._calls if not call.done()]
        there = await buy.person.go_on(link)
        await claimed(shop, payment, CLOSED, **WON)
        assert text_of(await soon(call)) == "paid 9.00 EUR"
        assert (await buy.person.visit(link)).heading == "Paid 9.00 €"
        assert (await shop.session(there.rsplit("/", 1)[1]))["status"] == "expired"
        await wait_for_ledger(shop, ["spent"])
        assert {receipt.id for receipt in shop.given} == {payment.id}


async def test_continue_opens_no_checkout_after_the_dispute_was_won(shop: Shop) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment, link = await claimed_and_asked_again(shop, buy)
        page = await buy.person.visit(link)
        await claimed(shop, payment, CLOSED, **WON)
        pressed = await buy.person.browser.post(link, data={"csrf": page.csrf or ""})
        assert pressed.headers["location"].startswith("/e/")
        assert len(await shop.payments()) == 1


@pytest.mark.parametrize("button", ["card", "bank"])
@pytest.mark.parametrize("is_for_good", [False, True])
async def test_payment_made_after_the_dispute_was_won_is_refunded_at_once(
    shop: Shop, is_for_good: bool, button: str
) -> None:
    # finding: XM5
    shop.is_for_good = is_for_good
    async with buying(shop) as buy:
        payment, link = await claimed_and_asked_again(shop, buy)
        (call,) = [call for call in buy.caller._calls if not call.done()]
        there = await buy.person.go_on(link)
        await shop.send(claim(payment, CLOSED, **WON))
        await buy.person.press_there(there, button)
        await shop.sweep()
        assert text_of(await soon(call)) == "paid 9.00 EUR"
        if button == "bank":
            await buy.person.press_there(there, "arrive")
        await shop.send_all()
        await shop.sweep()
        await wait_for_ledger(shop, ["refunded", "spent"])
        (refund,) = await shop.refunds()
        assert refund["metadata"]["reason"] == "paid twice"
        assert {receipt.id for receipt in shop.given} == {payment.id}


async def test_payment_and_won_dispute_in_two_processes_leave_a_single_used_payment(
    shop: Shop,
) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment, link = await claimed_and_asked_again(shop, buy)
        (call,) = [call for call in buy.caller._calls if not call.done()]
        await buy.person.press_there(await buy.person.go_on(link), "card")
        process = await shop.process()
        (body,) = shop.post
        shop.post.clear()
        won = {**claim(payment, CLOSED, **WON)}
        won["data"]["object"]["metadata"] = {"elicitation": payment.elicitation_id}
        await asyncio.gather(shop.send(body, to=process), shop.send(won))
        assert text_of(await soon(call)) == "paid 9.00 EUR"
        await process.ended()
        await shop.sweep()
        await wait_for_ledger(shop, ["refunded", "spent"])
        (used,) = [one for one in await shop.payments() if one.status == "spent"]
        assert {receipt.id for receipt in shop.given} == {used.id}


@pytest.mark.parametrize("ends", ["unasked", "declined", "expired"])
async def test_next_call_uses_the_payment_of_a_won_dispute(shop: Shop, ends: str) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        await claimed(shop, payment)
        assert "disputed at the person's bank" in text_of(await buy.caller.result("report"))
        if ends != "unasked":
            link = await buy.is_asked_again()
            await (buy.person.decline(link) if ends == "declined" else shop.expire())
            await asyncio.gather(*buy.caller._calls, return_exceptions=True)
        await claimed(shop, payment, CLOSED, **WON)
        assert await buy.again() == "paid 9.00 EUR"
        await wait_for_ledger(shop, ["spent"])


async def test_payment_of_a_won_dispute_stays_usable_for_another_week(shop: Shop) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        await claimed(shop, payment)
        assert "disputed at the person's bank" in text_of(await buy.caller.result("report"))
        shop.clock.tick(days=20)
        await claimed(shop, payment, CLOSED, **WON)
        (row,) = await shop.payments()
        assert row.refund_at is not None
        assert row.refund_at - shop.clock() > timedelta(days=6)
        assert await buy.again() == "paid 9.00 EUR"


async def test_payment_of_a_won_dispute_without_a_question_is_refunded(shop: Shop) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        await claimed(shop, payment)
        shop.clock.tick(days=61)
        await shop.sweep()
        assert await shop.asked() == []
        await claimed(shop, payment, CLOSED, **WON)
        assert await shop.ledger() == ["refunded"]


async def test_won_dispute_of_an_erased_question_answers_the_new_question(shop: Shop) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        await claimed(shop, payment)
        shop.clock.tick(days=61)
        await shop.sweep()
        link = await buy.is_asked_again()
        (call,) = [call for call in buy.caller._calls if not call.done()]
        await claimed(shop, payment, CLOSED, **WON)
        assert text_of(await soon(call)) == "paid 9.00 EUR"
        assert (await buy.person.visit(link)).heading == "Paid 9.00 €"


async def test_payment_of_a_won_dispute_is_refunded_if_the_same_was_paid_again(shop: Shop) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment, link = await claimed_and_asked_again(shop, buy)
        (call,) = [call for call in buy.caller._calls if not call.done()]
        call.cancel()
        await buy.person.pay(link)
        await shop.send_all()
        await claimed(shop, payment, CLOSED, **WON)
        await shop.sweep()
        assert sorted(await shop.ledger()) == ["open", "refunded"]
        assert await buy.again() == "paid 9.00 EUR"
        (used,) = shop.given
        assert used.id != payment.id


async def test_next_call_after_a_second_payment_uses_the_payment_of_the_won_dispute(
    shop: Shop,
) -> None:
    # finding: XM5
    async with buying(shop) as buy:
        payment, link = await claimed_and_asked_again(shop, buy)
        (call,) = [call for call in buy.caller._calls if not call.done()]
        await buy.person.pay(link)
        await shop.send_all()
        assert text_of(await soon(call)) == "paid 9.00 EUR"
        await wait_for_ledger(shop, ["disputed", "spent"])
        await claimed(shop, payment, CLOSED, **WON)
        shop.clock.tick(minutes=3)
        assert await buy.again() == "paid 9.00 EUR"
        await wait_for_ledger(shop, ["spent", "spent"])


async def wait_for_ledger(shop: Shop, statuses: list[str]) -> None:
    """Wait until the ledger has these statuses: it changes only after the result was delivered."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sorted(await shop.ledger()) != statuses:  # noqa: ASYNC110
            await asyncio.sleep(0)
