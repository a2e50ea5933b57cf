"""Payments from the checkout to the tool: in time, late, declined, paid twice, and refunded.

The whole application runs with the sandbox's checkout on another port. The test delivers the
provider's events.
"""

import asyncio

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from flows import Money, Receipt
from flows.errors import Failed, NotPossible
from flows.payments.events import ON_ITS_WAY
from tests.support.mcp_server import LEGACY, MODERN, cut, eventually, soon, text_of
from tests.support.paying import give_up, results_are_noted, two_tabs
from tests.support.shop_env import (
    CREATE,
    EXPIRE,
    FETCH,
    REFUND,
    Shop,
    buying,
)
from webapp.routes.redirect import depart


async def bodies_are_over(shop: Shop) -> None:
    await eventually(lambda: not len(shop.service.running_tools))


# Payments in time.


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_tool_continues_when_the_webhook_reports_the_payment(
    shop: Shop, revision: str
) -> None:
    # defect: paymcp no webhooks
    async with buying(shop, revision=revision) as buy:
        back = await buy.person.pay(buy.link)
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        page = await buy.person.come_back(back)
        assert (page.status, page.heading) == (200, "Paid 9.00 €")
        assert await shop.statuses() == ["accepted"]
        await results_are_noted(shop)
        assert await shop.ledger() == ["spent"]


async def test_return_from_checkout_polls_the_provider_and_needs_no_webhook(shop: Shop) -> None:
    async with buying(shop) as buy:
        page = await buy.person.come_back(await buy.person.pay(buy.link))
        assert page.heading == "Paid 9.00 €"
        assert await buy.result() == "paid 9.00 EUR"
        await shop.send_all()
        assert len(await shop.payments()) == 1


async def test_return_from_checkout_with_the_provider_down_waits_for_the_webhook(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        shop.line.is_down = True
        page = await buy.person.come_back(back)
        assert page.status == 200
        assert not buy.call.done()
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        assert (await buy.person.come_back(back)).heading == "Paid 9.00 €"


async def test_return_from_an_unpaid_checkout_settles_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        session = await shop.session(there.rsplit("/", 1)[1])
        for _ in range(2):
            await buy.person.come_back(session["success_url"])
        assert (await shop.statuses(), await shop.ledger()) == (["opened"], [])
        assert not buy.call.done()


async def test_declined_card_leaves_the_question_open_for_another_card(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        assert await buy.person.press_there(there, "declined") == there
        assert (await shop.statuses(), await shop.ledger()) == (["opened"], [])
        await buy.person.press_there(there, "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        assert len(await shop.payments()) == 1


async def test_lost_checkout_reply_charges_nothing_and_pressing_again_reuses_the_checkout(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        shop.line.lost.append(CREATE)
        page = await buy.person.press(buy.link)
        assert page.status == 502
        assert not buy.call.done()
        await shop.send_all()
        assert await buy.paid() == "paid 9.00 EUR"
        id = (await shop.asked())[0].id
        assert shop.line.keys == [f"{id}:1"] * 2, (
            "both presses use one idempotency key, so they share a checkout"
        )
        assert len(await shop.payments()) == 1


# Declined and cancelled payments.


async def test_canceling_the_checkout_ends_the_tools_wait_at_once(shop: Shop) -> None:
    # defect: lynq cancelled payment releases nobody
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        page = await buy.person.come_back(await buy.person.press_there(there, "cancel"))
        assert page.status == 200
        assert "ELICITATION_DENIED" in await buy.result()
        assert (await shop.statuses(), await shop.ledger()) == (["denied"], [])
        assert (await shop.session(there.rsplit("/", 1)[1]))["status"] == "expired"


async def test_canceling_the_checkout_after_paying_counts_as_paid(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        away = (await shop.session(there.rsplit("/", 1)[1]))["cancel_url"]
        await buy.person.press_there(there, "card")
        assert (await buy.person.come_back(away)).heading == "Paid 9.00 €"
        assert await buy.result() == "paid 9.00 EUR"
        await shop.send_all()
        assert (await shop.statuses(), len(await shop.payments())) == (["accepted"], 1)


async def test_canceling_the_checkout_during_a_pending_transfer_does_not_decline(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        away = (await shop.session(there.rsplit("/", 1)[1]))["cancel_url"]
        await buy.person.press_there(there, "bank")
        await buy.person.come_back(away)
        assert not buy.call.done()
        await buy.person.press_there(there, "arrive")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        assert await shop.statuses() == ["accepted"]


async def test_canceling_an_earlier_tab_leaves_the_latest_tab_open(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await buy.person.come_back(await buy.person.press_there(earlier, "cancel"))
        assert not buy.call.done()
        await buy.person.press_there(latest, "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"


async def test_payment_after_canceling_the_checkout_is_used_by_the_next_same_call(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        shop.line.broken.append(EXPIRE)
        await buy.person.come_back(await buy.person.press_there(there, "cancel"))
        assert "ELICITATION_DENIED" in await buy.result()
        await buy.person.press_there(there, "card")
        await shop.send_all()
        assert await shop.ledger() == ["open"], "the payment can be used by the next call"
        assert await buy.again() == "paid 9.00 EUR"
        assert not buy.caller.has_links_left


async def test_declining_on_our_page_closes_the_checkout(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        await buy.person.decline(buy.link)
        assert "ELICITATION_DECLINED" in await buy.result()
        await shop.sweep()
        assert (await shop.session(there.rsplit("/", 1)[1]))["status"] == "expired"
        calls = len(shop.line.calls)
        await shop.sweep()
        assert len(shop.line.calls) == calls, "the second sweep sends no request to the provider"


async def test_question_expiry_closes_the_checkout_after_the_provider_was_down(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        id = there.rsplit("/", 1)[1]
        shop.clock.tick(minutes=29)
        shop.timeout = shop.timeout * 0
        shop.line.is_down = True
        shop.clock.tick(minutes=1)
        await shop.sweep()
        assert "ELICITATION_TIMEOUT" in await buy.result()
        await shop.sweep()
        assert await shop.statuses() == ["expired"]
        assert (await shop.session(id))["status"] == "open"
        shop.line.is_down = False
        await shop.sweep()
        assert (await shop.session(id))["status"] == "expired"


async def test_checkouts_of_both_tabs_are_closed_even_if_the_first_close_fails(shop: Shop) -> None:
    async with buying(shop) as buy:
        first, latest = (tab.rsplit("/", 1)[1] for tab in await two_tabs(shop, buy))
        await buy.person.decline(buy.link)
        await buy.result()
        shop.line.broken.append(f"{latest}{EXPIRE}")
        shop.line.broken.append(f"{FETCH}{latest}")
        await shop.sweep()
        assert (await shop.session(first))["status"] == "expired"
        shop.line.broken.clear()
        await shop.sweep()
        assert (await shop.session(latest))["status"] == "expired"


async def test_question_declined_during_checkout_creation_redirects_to_no_checkout(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        gate = shop.line.held[CREATE] = asyncio.Event()
        pressing = asyncio.create_task(buy.person.press(buy.link))
        await eventually(lambda: shop.line.count(CREATE))
        await (await shop.person()).decline(buy.link)
        await buy.result()
        gate.set()
        page = await soon(pressing)
        assert page.location is None or page.location.startswith(shop.url)


async def test_checkout_created_while_its_question_ends_is_closed(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        gate = shop.line.held[CREATE] = asyncio.Event()
        pressing = asyncio.create_task(buy.person.press(buy.link))
        await eventually(lambda: shop.line.count(CREATE))
        await (await shop.person()).decline(buy.link)
        await buy.result()
        sweeping = asyncio.create_task(shop.sweep())
        while not sweeping.done() and shop.line.count(CREATE) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gate.set()
        await soon(pressing)
        await sweeping
        await shop.sweep()
        made = (await shop.asked())[0].attempt
        assert made is not None
        assert isinstance(made.kept, dict)
        assert (await shop.session(made.kept["session"]))["status"] == "expired"


# Late payments.


async def test_payment_of_an_abandoned_call_is_stored_for_the_next_same_call(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        back = await buy.person.pay(buy.link)
        await shop.send_all()
        assert (await buy.person.come_back(back)).heading == "Paid 9.00 €"
        assert await shop.ledger() == ["open"]
        assert await buy.again() == "paid 9.00 EUR"
        assert not buy.caller.has_links_left, "the repeated call does not ask for a payment"
        await results_are_noted(shop)
        assert (await shop.ledger(), shop.bodies) == (["spent"], 1)


async def test_payment_after_expiry_is_stored_and_the_page_says_so(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        shop.clock.tick(minutes=30)
        back = await buy.person.press_there(there, "card")
        await shop.sweep()
        assert "ELICITATION_TIMEOUT" in await buy.result()
        await shop.send_all()
        page = await buy.person.come_back(back)
        assert page.heading == "Done. Ask your assistant to continue"
        assert await buy.again() == "paid 9.00 EUR"
        assert not buy.caller.has_links_left
        assert len(await shop.payments()) == 1


async def test_payment_at_timeout_is_delivered_once_if_webhook_runs_before_sweeper(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        shop.clock.tick(minutes=30)
        await shop.send_all()
        await shop.sweep()
        # The question expires and is paid at the same moment. The waiting tool gets either the
        # payment or the timeout.
        if "ELICITATION_TIMEOUT" in await buy.result():
            assert await buy.again() == "paid 9.00 EUR"
        assert (len(await shop.payments()), shop.bodies) == (1, 1)


async def test_payment_at_timeout_is_delivered_once_if_sweeper_runs_before_webhook(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        shop.clock.tick(minutes=30)
        shop.line.is_down = True  # so the sweeper cannot find the payment
        await shop.sweep()
        assert "ELICITATION_TIMEOUT" in await buy.result()
        await shop.send_all()
        assert (await shop.statuses(), await shop.ledger()) == (["accepted"], ["open"])
        assert await buy.again() == "paid 9.00 EUR"
        assert (len(await shop.payments()), shop.bodies) == (1, 1)


async def test_payment_one_microsecond_before_the_timeout_is_accepted(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        shop.clock.tick(minutes=30, microseconds=-1)
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"


async def test_payment_whose_webhook_was_lost_is_found_when_the_question_expires(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        shop.post.clear()
        await shop.expire()
        await shop.sweep()
        await buy.result()
        assert (await shop.statuses(), await shop.ledger()) == (["accepted"], ["open"])
        assert await buy.again() == "paid 9.00 EUR"


async def test_payment_after_the_decline_is_stored_for_a_later_call(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        await buy.person.decline(buy.link)
        assert "ELICITATION_DECLINED" in await buy.result()
        back = await buy.person.press_there(there, "card")
        await shop.send_all()
        assert (await buy.person.come_back(back)).heading == "Done. Ask your assistant to continue"
        assert await shop.ledger() == ["open"]
        assert await buy.again() == "paid 9.00 EUR"
        assert not buy.caller.has_links_left


async def test_late_payment_answers_a_newer_same_call_and_closes_its_checkout(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        shop.clock.tick(minutes=30)
        await buy.person.press_there(there, "card")
        shop.line.is_down = True
        await shop.sweep()
        await buy.result()
        shop.line.is_down = False
        call = buy.caller.call("report")
        other = await buy.person.go_on(await buy.caller.link())
        await shop.send_all()
        assert text_of(await soon(call)) == "paid 9.00 EUR"
        assert sorted(await shop.statuses()) == ["accepted", "superseded"]
        await shop.sweep()
        assert (await shop.session(other.rsplit("/", 1)[1]))["status"] == "expired"
        assert len(await shop.payments()) == 1


# Delayed payment methods.


async def test_pending_bank_transfer_is_shown_on_the_page_and_accepted_on_arrival(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await shop.send_all()
        page = await buy.person.visit(buy.link)
        assert page.status == 200
        assert "bank" in page.text
        assert page.csrf is None, "the page has no form while the transfer is pending"
        assert not buy.call.done()
        assert await shop.ledger() == []
        shop.clock.tick(minutes=10)
        await buy.person.press_there(there, "arrive")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_tool_can_return_during_a_pending_transfer_and_resume_with_the_same_call(
    shop: Shop, revision: str
) -> None:
    # finding: M5
    shop.processing = "return"
    async with buying(shop, revision=revision) as buy:
        there = await buy.press("bank")
        await shop.send_all()
        result = await buy.result()
        assert "[ELICITATION_PROCESSING]" in result
        assert "must not pay again: call the tool again later" in result
        assert "[ELICITATION_PROCESSING]" in await buy.again()
        assert (shop.bodies, await shop.statuses()) == (0, ["opened"])
        shop.clock.tick(minutes=10)
        await buy.person.press_there(there, "arrive")
        await shop.send_all()
        assert (await buy.again(), shop.bodies) == ("paid 9.00 EUR", 1)


async def test_bank_transfer_that_arrives_days_late_is_stored(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await shop.send_all()
        await shop.expire()
        assert "ELICITATION_TIMEOUT" in await buy.result()
        await shop.sweep()
        shop.clock.tick(days=6)
        await shop.sweep()
        await buy.person.press_there(there, "arrive")
        await shop.send_all()
        assert (await shop.statuses(), await shop.ledger()) == (["accepted"], ["open"])
        assert await buy.again() == "paid 9.00 EUR"


async def test_failed_bank_transfer_fails_the_waiting_tool(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await buy.person.press_there(there, "fail")
        await shop.send_all()
        assert "ELICITATION_FAILED" in await buy.result()
        assert (await shop.statuses(), await shop.ledger()) == (["failed"], [])


@pytest.mark.parametrize("polled_by", ["return page", "sweeper"])
async def test_failed_transfer_whose_event_was_lost_can_be_paid_again(
    shop: Shop, polled_by: str
) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await shop.send_all()
        back = await buy.person.press_there(there, "fail")
        shop.post.clear()
        if polled_by == "return page":
            assert "did not arrive" in (await buy.person.come_back(back)).text
            assert "did not arrive" in await buy.result()
        else:
            await shop.expire()
            assert "ELICITATION_TIMEOUT" in await buy.result()
        newer = buy.caller.call("report")
        await buy.person.pay(await buy.caller.link())
        await shop.send_all()
        assert text_of(await soon(newer)) == "paid 9.00 EUR"


@pytest.mark.parametrize("polled_by", ["next call", "sweeper"])
async def test_transfer_that_failed_after_its_question_expired_can_be_paid_again(
    shop: Shop, polled_by: str
) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await shop.send_all()
        await shop.expire()
        assert ON_ITS_WAY in await buy.result()
        await buy.person.press_there(there, "fail")
        shop.post.clear()
        if polled_by == "sweeper":
            shop.clock.tick(hours=12)
            await shop.sweep()
            calls = shop.line.count(FETCH)
            shop.clock.tick(days=2)
            await shop.sweep()
            assert shop.line.count(FETCH) == calls, (
                "the sweeper does not fetch a failed session again"
            )
            page = await buy.person.visit(buy.link)
            assert "on its way" not in f"{page.heading} {page.text}"
        newer = buy.caller.call("report")
        await buy.person.pay(await buy.caller.link())
        await shop.send_all()
        assert text_of(await soon(newer)) == "paid 9.00 EUR"
        await results_are_noted(shop)
        assert await shop.ledger() == ["spent"]


async def test_transfer_whose_events_arrive_in_the_wrong_order_is_accepted(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await buy.person.press_there(there, "arrive")
        shop.post.reverse()
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        assert (await shop.statuses(), len(await shop.payments())) == (["accepted"], 1)


async def test_pending_transfer_of_an_earlier_tab_is_not_shown_for_the_latest_tab(
    shop: Shop,
) -> None:
    # finding: T4
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await buy.person.press_there(earlier, "bank")
        await shop.send_all()
        page = await buy.person.visit(buy.link)
        assert "on its way" not in page.text
        await buy.person.press_there(latest, "bank")
        await shop.send_all()
        assert "on its way" in (await buy.person.visit(buy.link)).text


async def test_failed_transfer_of_an_earlier_tab_leaves_the_latest_tab_payable(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await buy.person.press_there(earlier, "bank")
        await buy.person.press_there(earlier, "fail")
        await shop.send_all()
        assert not buy.call.done()
        await buy.person.press_there(latest, "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"


@pytest.mark.parametrize("is_waited_for", [True, False])
@pytest.mark.parametrize("is_failure_first", [True, False])
async def test_event_order_of_failed_transfer_and_card_payment_does_not_change_final_state(
    shop: Shop, *, is_failure_first: bool, is_waited_for: bool
) -> None:
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await buy.person.press_there(latest, "bank")
        await shop.send_all()
        if not is_waited_for:
            await give_up(shop, buy)
        await buy.person.press_there(earlier, "card")
        await buy.person.press_there(latest, "fail")
        paid, failed = shop.post
        shop.post.clear()
        for event in [failed, paid] if is_failure_first else [paid, failed]:
            await shop.send(event)
            if is_waited_for and event is failed and is_failure_first:
                assert "did not arrive" in await buy.result()
        assert await shop.statuses() == ["accepted"]
        if is_waited_for and not is_failure_first:
            assert await buy.result() == "paid 9.00 EUR"
        if is_failure_first or not is_waited_for:
            assert await shop.ledger() == ["open"]
            assert (await buy.person.visit(buy.link)).heading == (
                "Done. Ask your assistant to continue" if is_failure_first else "Paid 9.00 €"
            )
            assert await buy.again() == "paid 9.00 EUR"
        await results_are_noted(shop)
        assert await shop.ledger() == ["spent"]


async def test_card_payment_right_after_a_failed_transfer_answers_the_waiting_call(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await buy.person.press_there(latest, "bank")
        await shop.send_all()
        await buy.person.press_there(earlier, "card")
        await buy.person.press_there(latest, "fail")
        paid, failed = shop.post
        shop.post[:] = [failed, paid]
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        await results_are_noted(shop)
        assert await shop.ledger() == ["spent"]
        assert await shop.statuses() == ["accepted"]


async def test_payment_in_older_tab_after_failed_transfer_answers_newer_call(
    shop: Shop,
) -> None:
    """After the failed transfer, a newer call asks again and gets the payment of the older page."""
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await buy.person.press_there(latest, "bank")
        await buy.person.press_there(latest, "fail")
        await shop.send_all()
        assert "did not arrive" in await buy.result()
        newer = buy.caller.call("report")
        await buy.caller.link()
        await buy.person.press_there(earlier, "card")
        await shop.send_all()
        assert text_of(await soon(newer)) == "paid 9.00 EUR"
        assert sorted(await shop.statuses()) == ["accepted", "superseded"]


# Double payments.


async def test_second_payment_from_another_tab_stays_open_in_the_ledger(shop: Shop) -> None:
    async with buying(shop) as buy:
        for tab in await two_tabs(shop, buy):
            await buy.person.press_there(tab, "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        while sorted(await shop.ledger()) != ["open", "spent"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len({payment.session for payment in await shop.payments()}) == 2
        assert len({payment.elicitation_id for payment in await shop.payments()}) == 1


async def test_pressing_continue_again_leads_to_the_open_checkout(shop: Shop) -> None:
    async with buying(shop) as buy:
        first = await buy.person.go_on(buy.link)
        assert await buy.person.go_on(buy.link) == first
        assert shop.line.count(CREATE) == 1
        await buy.person.come_back(await buy.person.press_there(first, "card"))
        assert await buy.result() == "paid 9.00 EUR"
        await shop.send_all()
        assert len(await shop.payments()) == 1


async def test_a_double_click_on_continue_makes_no_second_payment(shop: Shop) -> None:
    async with buying(shop) as buy:
        page = await buy.person.visit(buy.link)
        presses = [
            buy.person.browser.post(buy.link, data={"csrf": page.csrf or ""}) for _ in range(3)
        ]
        places = {answer.headers["location"] for answer in await asyncio.gather(*presses)}
        assert all(place.startswith(f"{shop.sandbox.url}/pay/") for place in places)
        await buy.person.press_there(min(places), "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        assert len(await shop.payments()) == 1


async def test_two_identical_concurrent_calls_pay_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        second = buy.caller.call("report")
        assert "Another call is waiting" in await buy.result()
        assert not buy.caller.has_links_left  # this client already shows the link
        await buy.pay()
        assert text_of(await soon(second)) == "paid 9.00 EUR"
        assert (len(await shop.payments()), shop.bodies) == (1, 1)


async def test_changed_price_between_two_calls_asks_for_payment_again(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        await buy.pay()
        shop.price = Money("90.00", "EUR")
        link = await buy.is_asked_again()
        assert (await buy.person.visit(link)).heading == "Pay 90.00 € to shop?"
        assert (await shop.ledger(), shop.bodies) == (["open"], 0)
        shop.price = Money("9.00", "EUR")
        assert await buy.again() == "paid 9.00 EUR"


@pytest.mark.parametrize("price", [Money("9.00", "USD"), Money("8.99", "EUR")])
async def test_different_currency_or_amount_is_another_question(shop: Shop, price: Money) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        await buy.pay()
        shop.price = price
        await buy.is_asked_again()
        assert (len(await shop.asked()), shop.bodies) == (2, 0)


async def test_permanent_purchase_is_asked_for_once(shop: Shop) -> None:
    shop.is_for_good = True
    async with buying(shop) as buy:
        assert await buy.paid() == "paid 9.00 EUR"
        await results_are_noted(shop)
        for _ in range(2):
            shop.clock.tick(days=40)
            assert await buy.again() == "paid 9.00 EUR"
        assert not buy.caller.has_links_left
        assert await shop.ledger() == ["spent"]
        assert shop.given[0].id == shop.given[2].id


async def test_single_use_payment_is_asked_for_again_at_the_next_call(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
        shop.clock.tick(minutes=2)
        link = await buy.is_asked_again()
        assert shop.env.id_of(link) != shop.env.id_of(buy.link)


# Receipts.


@pytest.mark.parametrize(("revision", "starts"), [(LEGACY, 2), (MODERN, 1)])
async def test_call_abandoned_after_the_payment_uses_the_payment_once(
    shop: Shop, revision: str, starts: int
) -> None:
    # finding: R14
    gate = asyncio.Event()

    async def slowly(receipt: Receipt) -> str:
        await gate.wait()
        return f"report {shop.bodies}"

    shop.body = slowly
    async with buying(shop, revision=revision) as buy:
        await buy.pay()
        await eventually(lambda: shop.bodies)
        await cut(buy.call)
        await shop.env.posts_are_over()
        # With protocol 2025-11-25, the client sends a cancel. With 2026-07-28, it disconnects.
        if revision == LEGACY:
            await bodies_are_over(shop)
        gate.set()
        await bodies_are_over(shop)
        assert await shop.ledger() == ["open"]
        assert await buy.again() == f"report {starts}"
        await results_are_noted(shop)
        assert (await shop.ledger(), shop.bodies) == (["spent"], starts)
        shop.clock.tick(minutes=2)
        await buy.is_asked_again()


async def test_spending_a_receipt_twice_in_the_same_run_succeeds(
    shop: Shop,
) -> None:
    async def spend(receipt: Receipt) -> str:
        await receipt.spend()
        await receipt.spend()
        return f"spent {receipt.id}"

    shop.body = spend
    async with buying(shop) as buy:
        await buy.pay()
        text = await buy.result()
        assert text == f"spent {shop.given[0].id}"
        (payment,) = await shop.payments()
        assert (payment.status, payment.spent_at) == ("spent", shop.clock())


async def test_superseded_request_cannot_spend_the_payment(shop: Shop) -> None:
    # finding: S19
    gate = asyncio.Event()

    async def spend(receipt: Receipt) -> str:
        await gate.wait()
        await receipt.spend()
        return "delivered"

    shop.body = spend
    async with buying(shop) as buy:
        await buy.pay()
        await eventually(lambda: shop.bodies)
        (asked,) = await shop.asked()
        (payment,) = await shop.payments()
        assert asked.take is not None
        # This process was paused for 31 seconds, so the same call continues in another process.
        shop.clock.tick(seconds=31)
        elicitations, ledger = shop.service.elicitations, shop.service.kinds.payments.ledger
        await elicitations.claim(asked.id, run=asked.take.run, request_id="of another process")
        gate.set()
        assert "delivered" not in await buy.result()
        assert await shop.ledger() == ["open"]
        run, request_id = asked.take.run, "of another process"
        spent = await ledger.spend(payment.owner, payment.id, run=run, request_id=request_id)
        assert spent.status == "spent"


async def test_tool_that_dies_after_spending_runs_again_with_the_same_receipt(
    shop: Shop,
) -> None:
    stuck = asyncio.Event()

    async def spend(receipt: Receipt) -> str:
        await receipt.spend()
        if shop.bodies == 1:
            await stuck.wait()
        return f"spent {receipt.status}"

    shop.body = spend
    async with buying(shop) as buy:
        await buy.pay()
        await eventually(lambda: shop.bodies)
        while await shop.ledger() != ["spent"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await shop.restart()
    shop.clock.tick(seconds=31)
    async with shop.env.caller(LEGACY) as caller:
        assert text_of(await soon(caller.call("report"))) == "spent spent"
        assert not caller.has_links_left
        assert len(await shop.payments()) == 1
        assert shop.given[0].id == shop.given[1].id


async def test_refund_called_twice_is_made_once_with_the_receipts_idempotency_key(
    shop: Shop,
) -> None:
    async def refund(receipt: Receipt) -> str:
        first = await receipt.refund(reason="out of paper")
        again = await receipt.refund(reason="as I said")
        assert first == again
        return f"refunded {first.price} {first.status}"

    shop.body = refund
    async with buying(shop) as buy:
        assert await buy.paid() == "refunded 9.00 EUR succeeded"
        assert f"refund:{shop.given[0].id}" in shop.line.keys
        (payment,) = await shop.payments()
        assert (payment.status, payment.reason) == ("refunded", "out of paper")
        assert payment.refunded_at == shop.clock()


async def test_a_refund_whose_reply_was_lost_is_not_made_twice(shop: Shop) -> None:
    async def refund(receipt: Receipt) -> str:
        shop.line.lost.append(REFUND)
        shop.line.broken.append("GET /stripe/v1/refunds")
        with pytest.raises(Failed):
            await receipt.refund()
        shop.line.broken.clear()
        assert await shop.ledger() == ["refunding"], (
            "no call can use a payment while its refund is pending"
        )
        return f"refunded {(await receipt.refund()).price}"

    shop.body = refund
    async with buying(shop) as buy:
        assert await buy.paid() == "refunded 9.00 EUR"
        assert await shop.ledger() == ["refunded"]
        refunds = await shop.refunds()
        assert len(refunds) == 1


async def test_spent_receipt_cannot_be_refunded(shop: Shop) -> None:
    async def both(receipt: Receipt) -> str:
        await receipt.spend()
        with pytest.raises(NotPossible):
            await receipt.refund()
        return "kept"

    shop.body = both
    async with buying(shop) as buy:
        assert await buy.paid() == "kept"
        assert shop.line.count(REFUND) == 0, "no refund is requested for a spent receipt"
        assert await shop.ledger() == ["spent"]


async def test_refunded_receipt_cannot_be_spent(shop: Shop) -> None:
    async def both(receipt: Receipt) -> str:
        await receipt.refund()
        with pytest.raises(NotPossible):
            await receipt.spend()
        return "refunded"

    shop.body = both
    async with buying(shop) as buy:
        assert await buy.paid() == "refunded"
        assert await shop.ledger() == ["refunded"]


async def test_receipt_refunded_before_a_crash_does_not_block_a_new_payment(
    shop: Shop,
) -> None:
    stuck = asyncio.Event()

    async def refund(receipt: Receipt) -> str:
        if shop.bodies > 1:
            return f"paid {receipt.price}"
        await receipt.refund()
        await stuck.wait()
        return "never"

    shop.body = refund
    async with buying(shop) as buy:
        await buy.pay()
        while await shop.ledger() != ["refunded"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await shop.restart()
    shop.clock.tick(seconds=31)
    async with shop.env.caller(LEGACY) as caller:
        assert "refunded in the meantime" in text_of(await soon(caller.call("report")))
        call = caller.call("report")
        await (await shop.person()).pay(await caller.link())
        await shop.send_all()
        assert text_of(await soon(call)) == "paid 9.00 EUR"
        assert sorted(await shop.ledger()) == ["refunded", "spent"]


# Processes and settings.


async def test_crash_before_the_checkout_was_stored_is_reconciled_with_the_same_key(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        (asked,) = await shop.asked()
        gate = shop.line.after[CREATE] = asyncio.Event()
        leaving = asyncio.create_task(depart(shop.service, asked, cookie="c"))
        made = await soon(shop.line.made.get())
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        gate.set()
        del shop.line.after[CREATE]
        await shop.restart()
    person = await shop.person()
    await person.press_there(made, "card")
    assert await shop.send_all() == ["waiting"]
    assert (await shop.statuses(), await shop.ledger()) == (["opened"], [])
    assert [hook.status for hook in await shop.webhooks()] == ["waiting"]
    await shop.sweep()
    assert (await shop.statuses(), await shop.ledger()) == (["accepted"], ["open"])
    assert [hook.status for hook in await shop.webhooks()] == ["applied"]
    assert len(set(shop.line.keys)) == 1, (
        "each request to create the checkout has the same idempotency key"
    )
    async with shop.env.caller(LEGACY) as caller:
        assert text_of(await soon(caller.call("report"))) == "paid 9.00 EUR"
        assert not caller.has_links_left


async def test_payment_made_during_a_restart_is_used_by_the_same_call(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        await shop.restart()
    person = buy.person
    back = await person.press_there(there, "card")
    await shop.send_all()
    assert (await person.come_back(back)).heading == "Paid 9.00 €"
    shop.clock.tick(seconds=31)
    async with shop.env.caller(LEGACY) as caller:
        assert text_of(await soon(caller.call("report"))) == "paid 9.00 EUR"
        assert not caller.has_links_left


async def test_missing_provider_settings_are_named_in_the_tool_error(shop: Shop) -> None:
    await shop.restart(sellers={})
    async with shop.env.caller(LEGACY) as caller:
        text = text_of(await soon(caller.call("report")))
        assert "ELICITATION_NOT_CONFIGURED" in text
        assert "ELICIT_STRIPE_KEY" in text
        assert "ELICIT_STRIPE_WEBHOOK_SECRET" in text
        assert await shop.asked() == []


async def test_removed_provider_does_not_stop_the_sweeper_for_other_questions(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await buy.person.go_on(buy.link)
        await buy.person.decline(buy.link)
        await buy.result()
        await give_up(shop, buy)
    sellers = shop.settings.sellers
    shop.clock.tick(seconds=1)
    async with buying(shop) as buy:
        await give_up(shop, buy)
    await shop.restart(sellers={})
    shop.clock.tick(minutes=30)
    await shop.sweep()
    assert await shop.statuses() == ["declined", "expired"]
    await shop.restart(sellers=sellers)
    await shop.sweep()
    assert shop.line.count(EXPIRE) == 1, "the open checkout is closed when the provider is back"


async def test_return_page_of_a_removed_provider_does_not_answer_500(shop: Shop) -> None:
    async with buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        await give_up(shop, buy)
    sellers = shop.settings.sellers
    await shop.restart(sellers={})
    page = await buy.person.visit(back)
    assert page.status == 303
    await shop.restart(sellers=sellers)
    await shop.send_all()
    assert await shop.ledger() == ["open"]


async def test_complete_elicitation_does_not_accept_payment_questions(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.person.go_on(buy.link)
        assert await shop.env.complete(buy.link, {"payment": "p"}) == "unknown"
        assert (await shop.statuses(), await shop.ledger()) == (["opened"], [])


async def test_stored_tool_error_is_returned_after_disconnect_and_payment_stays_usable(
    shop: Shop,
) -> None:
    # finding: M10
    gate = asyncio.Event()

    async def fail_once(_: Receipt) -> str:
        if shop.bodies > 1:
            return "report"
        await gate.wait()
        raise ToolError("out of paper")

    shop.body = fail_once
    person = await shop.person()
    first = (await shop.env.cut_off_caller(LEGACY)).call("report")
    await eventually(lambda: len(shop.service.elicitations.waiters))
    (asked,) = await shop.asked()
    await person.pay(shop.env.link_of(asked))
    await shop.send_all()
    await eventually(lambda: shop.bodies)
    await cut(first)
    await shop.env.posts_are_over()
    gate.set()
    await bodies_are_over(shop)
    async with shop.env.caller(LEGACY) as caller:
        assert "out of paper" in text_of(await soon(caller.call("report")))
        assert shop.bodies == 1  # the result was stored and is returned again
        assert text_of(await soon(caller.call("report"))) == "report"
        await results_are_noted(shop)
        assert (await shop.ledger(), shop.given[0].id) == (["spent"], shop.given[1].id)
        assert not caller.has_links_left


async def test_tool_that_fails_after_the_payment_can_be_called_again_without_paying(
    shop: Shop,
) -> None:
    async def fail_once(receipt: Receipt) -> str:
        if shop.bodies == 1:
            raise ToolError("out of paper")
        return "report"

    shop.body = fail_once
    async with buying(shop) as buy:
        assert "out of paper" in await buy.paid()
        assert await buy.again() == "report"
        await results_are_noted(shop)
        assert (await shop.ledger(), shop.given[0].id) == (["spent"], shop.given[1].id)
