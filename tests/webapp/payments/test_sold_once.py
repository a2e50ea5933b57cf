"""A permanent purchase is sold once: one question, one payment, one receipt for all calls."""

import asyncio
from typing import Any

import pytest

from flows import Receipt, elicit
from flows.payments.money import Money
from tests.support.disputes import CLOSED, claimed, unused_payment
from tests.support.mcp_server import LEGACY, MODERN, eventually, soon, text_of
from tests.support.paying import two_tabs
from tests.support.shop_env import Shop, buying

PRICE = Money("9.00", "EUR")


@pytest.fixture
def shop(shop: Shop) -> Shop:
    shop.is_for_good = True
    return shop


async def charges(shop: Shop) -> int:
    """Return the number of paid checkouts that are not refunded."""
    paid = await shop.payments()
    given = {refund["payment_intent"] for refund in await shop.refunds()}
    return sum(payment.payment_intent not in given for payment in paid)


# Open questions.


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_call_with_other_arguments_joins_the_open_question(shop: Shop, revision: str) -> None:
    # finding: XM1
    async with buying(shop, revision=revision) as buy:
        other = buy.caller.call("report", topic="coffee")
        (asked,) = await shop.asked()
        await eventually(lambda: _waits(shop, asked.id) > 1)
        await buy.pay()
        assert await buy.result() == "paid 9.00 EUR"
        assert text_of(await soon(other)) == "paid 9.00 EUR"
        assert len({receipt.id for receipt in shop.given}) == 1
        assert (len(await shop.payments()), len(await shop.asked())) == (1, 1)


async def test_repeated_call_asks_nobody_if_the_shared_question_is_delivered_meanwhile(
    shop: Shop,
) -> None:
    # finding: XM1
    started, goes_on = asyncio.Event(), asyncio.Event()

    async def wait(receipt: Receipt) -> str:
        started.set()
        await goes_on.wait()
        return f"paid {receipt.price}"

    shop.body = wait
    async with buying(shop) as buy:
        other = buy.caller.call("report", topic="coffee")
        (asked,) = await shop.asked()
        await eventually(lambda: _waits(shop, asked.id) > 1)
        other.cancel()
        await eventually(lambda: _waits(shop, asked.id) == 1)
        await buy.pay()
        await soon(started.wait())
        async with shop.service.kinds.quotas.turn(asked.owner):
            again = buy.caller.call("report", topic="coffee")
            await eventually(lambda: bool(shop.service.kinds.quotas.turn(asked.owner)._waiters))
            goes_on.set()
            assert await buy.result() == "paid 9.00 EUR"
            await results_are_noted_of(shop, {"spent"})
        assert text_of(await soon(again)) == "paid 9.00 EUR"
        assert (len(await shop.payments()), len(await shop.asked())) == (1, 1)


async def test_call_of_another_client_joins_the_open_question(shop: Shop) -> None:
    # finding: XM1
    async with buying(shop) as buy, shop.env.caller(LEGACY, name="another") as caller:
        other = caller.call("report", topic="coffee")
        assert shop.env.id_of(await caller.link()) == shop.env.id_of(buy.link)
        await buy.pay()
        assert await buy.result() == text_of(await soon(other)) == "paid 9.00 EUR"
        assert len(await shop.payments()) == 1


async def test_result_of_a_shared_question_tells_each_model_to_repeat_its_own_call(
    shop: Shop,
) -> None:
    # finding: XM1
    async with (
        shop.env.caller(LEGACY, declares=None) as caller,
        shop.env.caller(LEGACY, declares=None, name="another") as another,
    ):
        links = [await one.link_in_result("report", topic="tea") for one in (caller, another)]
        assert shop.env.id_of(links[0]) == shop.env.id_of(links[1])
        await (await shop.person()).pay(links[0])
        await shop.send_all()
        for one in (caller, another):
            text = await one.text("elicitation_result", elicitId=shop.env.id_of(links[0]))
            assert "with the same arguments" in text
            assert await one.text("report", topic="tea") == "paid 9.00 EUR"


async def test_repeated_call_on_a_shared_question_replaces_only_the_earlier_same_call(
    shop: Shop,
) -> None:
    # finding: XM1
    async with buying(shop) as buy:
        other = buy.caller.call("report", topic="coffee")
        (asked,) = await shop.asked()
        await eventually(lambda: _waits(shop, asked.id) > 1)
        again = buy.caller.call("report")
        assert "Another call is waiting" in await buy.result()
        await buy.pay()
        assert text_of(await soon(other)) == text_of(await soon(again)) == "paid 9.00 EUR"
        assert len(await shop.payments()) == 1


async def test_same_product_asked_twice_together_is_paid_once(shop: Shop) -> None:
    # finding: XM1
    async def both(_: Receipt) -> str:
        first, second = await elicit.together(_question(shop), _question(shop))
        return f"{first == second}"

    shop.body = both
    async with buying(shop) as buy:
        assert await buy.paid() == "True"
        assert len(await shop.payments()) == 1


async def test_needed_product_joins_the_question_of_a_call_of_the_same_tool(shop: Shop) -> None:
    # finding: XM1
    server = shop.server
    member = elicit.payment(PRICE, "Membership", once=True)

    @server.tool(structured_output=False)
    @elicit.needs(member)
    async def visit(day: str) -> str:
        receipt = await elicit.payment(PRICE, "Membership", once=True)
        return f"{day} {receipt.price}"

    async with shop.env.caller(LEGACY) as caller:
        calls = [caller.call("visit", day="monday")]
        link = await caller.link()
        await shop.env.waited_for_by_another(link, None)
        calls.append(caller.call("visit", day="tuesday"))
        (asked,) = await shop.asked()
        await eventually(lambda: _waits(shop, asked.id) > 1)
        await (await shop.person()).pay(link)
        await shop.send_all()
        text = [text_of(await soon(call)) for call in calls]
        assert text == ["monday 9.00 EUR", "tuesday 9.00 EUR"]
        assert len(await shop.payments()) == 1


# Bought products.


async def test_late_payment_answers_the_open_question_with_its_receipt(shop: Shop) -> None:
    # finding: XM1
    async with buying(shop) as buy:
        _, newer = await _paid_late(shop, buy)
        other = await buy.person.go_on(await buy.caller.link())
        await shop.send_all()
        assert text_of(await soon(newer)) == "paid 9.00 EUR"
        assert await shop.statuses() == ["accepted", "accepted"]
        await shop.sweep()
        assert (await shop.session(other.rsplit("/", 1)[1]))["status"] == "expired"
        assert await shop.ledger() == ["spent"]


async def test_continue_opens_no_checkout_after_the_product_was_bought(shop: Shop) -> None:
    # finding: XM1
    async with buying(shop) as buy:
        _, newer = await _paid_late(shop, buy)
        link = await buy.caller.link()
        page = await buy.person.visit(link)
        await shop.send_all()
        assert text_of(await soon(newer)) == "paid 9.00 EUR"
        pressed = await buy.person.browser.post(link, data={"csrf": page.csrf or ""})
        assert pressed.headers["location"].startswith("/e/")
        assert (await buy.person.visit(link)).heading == "Paid 9.00 €"


@pytest.mark.parametrize("first", ["earlier", "later"])
async def test_second_payment_for_the_same_product_is_refunded_at_once(
    shop: Shop, first: str
) -> None:
    # finding: XM1
    async with buying(shop) as buy:
        there, newer = await _paid_late(shop, buy, is_paid=False)
        other = await buy.person.go_on(await buy.caller.link())
        for page in (there, other) if first == "earlier" else (other, there):
            await buy.person.press_there(page, "card")
        await shop.send_all()
        assert text_of(await soon(newer)) == "paid 9.00 EUR"
        await results_are_noted_of(shop, {"spent"})
        await shop.sweep()
        assert sorted(await shop.ledger()) == ["refunded", "spent"]
        assert await charges(shop) == 1
        (stored,) = [one for one in await shop.payments() if one.status == "spent"]
        assert {receipt.id for receipt in shop.given} == {stored.id}


async def test_transfer_for_a_product_already_bought_by_card_is_refunded(shop: Shop) -> None:
    # finding: XM1
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await buy.person.press_there(earlier, "bank")
        await buy.person.press_there(latest, "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        await results_are_noted_of(shop, {"spent"})
        await buy.person.press_there(earlier, "arrive")
        await shop.send_all()
        await shop.sweep()
        assert sorted(await shop.ledger()) == ["refunded", "spent"]


async def test_second_of_two_payments_arriving_in_two_processes_is_refunded(shop: Shop) -> None:
    # finding: XM1
    async with buying(shop) as buy:
        there, newer = await _paid_late(shop, buy, is_paid=False)
        other = await buy.person.go_on(await buy.caller.link())
        for page in (there, other):
            await buy.person.press_there(page, "card")
        process = await shop.process()
        bodies = list(shop.post)
        shop.post.clear()
        await asyncio.gather(
            *(shop.send(body, to=to) for body, to in zip(bodies, (None, process), strict=True))
        )
        assert text_of(await soon(newer)) == "paid 9.00 EUR"
        await results_are_noted_of(shop, {"spent"})
        await process.ended()
        await shop.sweep()
        assert sorted(await shop.ledger()) == ["refunded", "spent"]


async def test_won_dispute_of_a_product_bought_again_refunds_the_extra_payment(
    shop: Shop,
) -> None:
    # finding: XM1
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        await claimed(shop, payment)
        assert "disputed at the person's bank" in text_of(await buy.caller.result("report"))
        link = await buy.is_asked_again()
        await buy.person.pay(link)
        await shop.send_all()
        await results_are_noted_of(shop, {"spent", "disputed"})
        await claimed(shop, payment, CLOSED, status="won")
        await shop.sweep()
        assert sorted(await shop.ledger()) == ["refunded", "spent"]
        assert await buy.again() == "paid 9.00 EUR"


# Payments that do not share a question.


async def test_same_product_name_in_two_tools_is_two_questions(shop: Shop) -> None:
    @shop.server.tool(structured_output=False)
    async def other() -> str:
        return str((await _question(shop)).price)

    async with buying(shop) as buy:
        second = buy.caller.call("other")
        assert shop.env.id_of(await buy.caller.link()) != shop.env.id_of(buy.link)
        second.cancel()


async def test_single_use_payment_is_asked_for_by_each_call(shop: Shop) -> None:
    shop.is_for_good = False
    async with buying(shop) as buy:
        _ = buy.caller.call("report", topic="coffee")
        assert shop.env.id_of(await buy.caller.link()) != shop.env.id_of(buy.link)


def _question(shop: Shop) -> Any:
    return elicit.payment(shop.price, "Premium report", once=True)


def _waits(shop: Shop, id: str) -> int:
    return len(shop.service.elicitations.waiters._by_id.get(id, ()))


async def results_are_noted_of(shop: Shop, wanted: set[str]) -> None:
    while not wanted <= set(await shop.ledger()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def _paid_late(
    shop: Shop, buy: Any, *, is_paid: bool = True
) -> tuple[str, asyncio.Task[Any]]:
    """Let the question expire, and call again. Return the still payable page and the new call."""
    there = await buy.person.go_on(buy.link)
    shop.clock.tick(minutes=30)
    if is_paid:
        await buy.person.press_there(there, "card")
    shop.line.is_down = True
    await shop.sweep()
    await buy.result()
    shop.line.is_down = False
    return there, buy.caller.call("report", topic="coffee")
