"""Returns from a payment page without a payment: what the person reads."""

from dataclasses import replace

import pytest

from flows.elicitation.attempt import ATTEMPTS_AT_MOST
from tests.support.mcp_server import LEGACY, MODERN, eventually, soon, text_of
from tests.support.paying import give_up
from tests.support.shop_env import CREATE, FETCH, Shop, buying
from webapp.http.rate_limit import Rates
from webapp.payments.checkouts import BETWEEN_FETCHES, FETCHES_AT_ONCE


async def test_what_paypal_could_not_collect_can_be_tried_again_in_another_way(shop: Shop) -> None:
    shop.provider = "paypal"
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        back = await buy.person.press_there(there, "declined")
        page = await buy.person.come_back(back)
        assert page.heading == "Not paid yet"
        assert "PayPal (sandbox)</bdi>, and it has no" in page.text
        assert (await buy.person.visit(buy.link)).heading == "Not paid yet"
        # Pressing again leads to the same checkout page, and our page waits for the payment.
        assert await buy.person.go_on(buy.link) == there
        assert "Waiting for" in (await buy.person.visit(buy.link)).heading
        page = await buy.person.come_back(await buy.person.press_there(there, "balance"))
        assert page.heading == "Paid 9.00 €"
        assert await buy.result() == "paid 9.00 EUR"


async def test_a_page_of_mollies_that_lapsed_makes_way_for_another(shop: Shop) -> None:
    shop.provider = "mollie"
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        page = await buy.person.come_back(await buy.person.press_there(there, "expired"))
        assert page.heading == "The payment page has closed"
        assert "Mollie (sandbox)</bdi> has closed its page" in page.text
        again = await buy.person.go_on(buy.link)
        assert again != there
        page = await buy.person.come_back(await buy.person.press_there(again, "paid"))
        assert page.heading == "Paid 9.00 €"
        assert len(await shop.payments()) == 1


async def test_a_transfer_that_has_not_arrived_is_not_to_be_paid_again(shop: Shop) -> None:
    shop.provider = "mollie"
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        page = await buy.person.come_back(await buy.person.press_there(there, "open"))
        assert page.heading == "Not paid yet"
        assert "Then don't pay again" in page.text
        await buy.person.come_back(await buy.person.press_there(there, "paid"))
        assert await buy.result() == "paid 9.00 EUR"


async def test_what_was_paid_in_another_browser_is_found_though_its_way_back_is_refused(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        shop.post.clear()
        other = await shop.person()
        page = await other.visit(back)
        assert page.status == 403
        assert await buy.result() == "paid 9.00 EUR"


async def test_a_call_that_is_made_again_asks_once_in_two_seconds_and_finds_what_was_paid(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        there = await buy.person.go_on(buy.link)
        older = buy.caller.call("report")
        for _ in range(2):  # without moving the clock
            await eventually(lambda: len(shop.service.elicitations.waiters))
            newer = buy.caller.call("report")
            assert "Another call is waiting" in text_of(await soon(older))
            older = newer
        assert not buy.caller.has_links_left  # this client already shows the link
        assert shop.line.count(FETCH) == 1
        await buy.person.press_there(there, "card")
        shop.post.clear()
        shop.clock.tick(seconds=2)
        assert await buy.again() == "paid 9.00 EUR"


async def test_one_account_is_asked_so_often_and_no_more(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.person.go_on(buy.link)
        (asked,) = await shop.asked()
        checkouts = shop.service.kinds.payments.checkouts
        # A new `_moments` limiter makes each fetch count as the first one of another question.
        for number in range(FETCHES_AT_ONCE + 5):
            checkouts._moments = Rates(burst=1, every=BETWEEN_FETCHES, clock=shop.clock)
            await checkouts.ask_once(asked)
            assert shop.line.count(FETCH) == min(number + 1, FETCHES_AT_ONCE)
        shop.clock.tick(seconds=1)
        await checkouts.ask_once(asked)
        assert shop.line.count(FETCH) == FETCHES_AT_ONCE


async def test_the_way_back_of_an_earlier_press_says_nothing_of_the_latest(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        session = await shop.session(there.rsplit("/", 1)[1])
        await buy.person.go_on(buy.link)
        page = await buy.person.come_back(session["success_url"])
        assert "Waiting for" in page.heading


async def test_a_way_back_whose_provider_does_not_answer_says_only_that_it_waits(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        session = await shop.session(there.rsplit("/", 1)[1])
        shop.line.broken.append(FETCH)
        page = await buy.person.come_back(session["success_url"])
        assert "Waiting for" in page.heading


@pytest.mark.parametrize("name", ["stripe", "paypal", "mollie"])
async def test_a_provider_that_refused_is_said_to_have_and_nothing_is_over(
    name: str, shop: Shop
) -> None:
    registered = {
        "stripe": lambda: replace(shop.seller, key="sk_test_another"),
        "paypal": lambda: replace(shop.sandbox.paypal(), client_secret="another"),
        "mollie": lambda: replace(shop.sandbox.mollie(), key="test_another"),
    }
    await shop.restart(sellers={name: registered[name]()})
    async with buying(shop) as buy:
        page = await buy.person.press(buy.link)
        assert (page.status, page.heading.endswith(" (sandbox) refused the request")) == (502, True)
        assert await shop.statuses() == ["opened"]


@pytest.mark.parametrize("troubles", ["broken", "lost"])
async def test_a_provider_that_is_silent_is_not_said_to_have_refused(
    troubles: str, shop: Shop
) -> None:
    getattr(shop.line, troubles).append(CREATE)
    async with buying(shop) as buy:
        page = await buy.person.press(buy.link)
        assert (page.status, page.heading) == (502, f"{shop.seller.label} did not answer")


async def test_presses_that_open_nothing_cost_no_attempt(shop: Shop) -> None:
    # finding: R11
    async with buying(shop) as buy:
        shop.line.is_down = True
        for _ in range(2 * ATTEMPTS_AT_MOST):
            page = await buy.person.press(buy.link)
            assert (page.status, page.heading) == (502, f"{shop.seller.label} did not answer")
        shop.line.is_down = False
        await buy.person.come_back(await buy.person.pay(buy.link))
        assert await buy.result() == "paid 9.00 EUR"


async def test_presses_that_are_refused_cost_no_attempt(shop: Shop) -> None:
    # finding: R11
    await shop.restart(sellers={"stripe": replace(shop.seller, key="sk_test_another")})
    async with buying(shop) as buy:
        for _ in range(2 * ATTEMPTS_AT_MOST):
            assert (await buy.person.press(buy.link)).status == 502
        assert await shop.statuses() == ["opened"]


@pytest.mark.parametrize(
    ("trouble", "did"), [("silent", "did not answer"), ("refused", "refused the request")]
)
async def test_a_page_that_is_loaded_again_says_what_became_of_the_press(
    trouble: str, did: str, shop: Shop
) -> None:
    # finding: R11
    if trouble == "refused":
        await shop.restart(sellers={"stripe": replace(shop.seller, key="sk_test_another")})
    shop.line.is_down = trouble == "silent"
    async with buying(shop) as buy:
        await buy.person.press(buy.link)
        page = await buy.person.visit(buy.link)
        assert (page.status, page.heading) == (200, f"{shop.seller.label} {did}")
        assert "Try again" in page.text
        # The other person has not pressed Continue, so their browser shows the first page.
        other = await (await shop.person()).visit(buy.link)
        assert other.heading == "Pay 9.00 €"


async def test_a_page_whose_reply_was_lost_is_led_to_by_the_next_press(shop: Shop) -> None:
    # finding: R11
    async with buying(shop) as buy:
        shop.line.lost.append(CREATE)
        await buy.person.press(buy.link)
        assert "did not answer" in (await buy.person.visit(buy.link)).heading
        await buy.person.go_on(buy.link)
        assert "Waiting for" in (await buy.person.visit(buy.link)).heading
        assert len(set(shop.line.keys)) == 1, "it was made once"


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_what_is_refused_for_good_ends_with_the_providers_reason(
    shop: Shop, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: M6
    shop.line.refused[CREATE] = (400, "amount_too_small")
    async with buying(shop, revision=revision) as buy:
        page = await buy.person.press(buy.link)
        assert (page.status, page.location) == (303, buy.link)
        told = await buy.result()
        assert "ELICITATION_FAILED" in told
        assert "could not open its payment page (HTTP 400, amount_too_small)" in told
        page = await buy.person.visit(buy.link)
        assert page.heading == "The payment was refused"
        assert "amount_too_small" in page.text
        assert await shop.statuses() == ["failed"]
    (record,) = [record for record in caplog.records if record.message == "payment.refused"]
    assert "amount_too_small" in vars(record)["why"]


async def test_what_is_refused_for_now_ends_nothing(shop: Shop) -> None:
    # finding: M6
    async with buying(shop) as buy:
        for status, code in ((429, "rate_limit"), (409, "lock_timeout"), (403, "not_yet")):
            shop.line.refused[CREATE] = (status, code)
            assert (await buy.person.press(buy.link)).status == 502
        shop.line.refused.clear()
        await buy.person.come_back(await buy.person.pay(buy.link))
        assert await buy.result() == "paid 9.00 EUR"
