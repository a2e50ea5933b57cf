"""The pages that a person sees after leaving a checkout page without having paid."""

from dataclasses import replace

import pytest

from flows.elicitation.flow import ATTEMPTS_AT_MOST
from tests.support.mcp_server import LEGACY, MODERN, eventually, soon, text_of
from tests.support.paying import give_up
from tests.support.shop_env import CREATE, FETCH, Shop, buying
from webapp.http.rate_limit import Rates
from webapp.payments.checkouts import BETWEEN_FETCHES, FETCHES_AT_ONCE


async def test_declined_paypal_payment_can_be_tried_again_in_another_way(shop: Shop) -> None:
    shop.provider = "paypal"
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        back = await buy.person.press_there(there, "declined")
        page = await buy.person.come_back(back)
        assert page.heading == "Not paid yet"
        assert "PayPal (sandbox)</bdi>, which has not received" in page.text
        assert (await buy.person.visit(buy.link)).heading == "Not paid yet"
        # Pressing again leads to the same checkout page, and our page waits for the payment.
        assert await buy.person.go_on(buy.link) == there
        assert "Waiting for" in (await buy.person.visit(buy.link)).heading
        page = await buy.person.come_back(await buy.person.press_there(there, "balance"))
        assert page.heading == "Paid 9.00 €"
        assert await buy.result() == "paid 9.00 EUR"


async def test_expired_mollie_page_is_replaced_on_retry(shop: Shop) -> None:
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


async def test_pending_transfer_page_says_not_to_pay_again(shop: Shop) -> None:
    shop.provider = "mollie"
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        page = await buy.person.come_back(await buy.person.press_there(there, "open"))
        assert page.heading == "Not paid yet"
        assert "Then don't pay again" in page.text
        await buy.person.come_back(await buy.person.press_there(there, "paid"))
        assert await buy.result() == "paid 9.00 EUR"


async def test_payment_from_another_browser_is_found_although_return_is_refused(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        shop.post.clear()
        other = await shop.person()
        page = await other.visit(back)
        assert page.status == 403
        assert await buy.result() == "paid 9.00 EUR"


async def test_repeated_call_polls_provider_once_in_two_seconds_and_finds_payment(
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


async def test_polling_of_merchant_account_is_limited(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.person.go_on(buy.link)
        (asked,) = await shop.asked()
        checkouts = shop.service.kinds.payments.checkouts
        # A new limiter makes each fetch count as the first one of another question.
        for number in range(FETCHES_AT_ONCE + 5):
            checkouts._poll_limit = Rates(burst=1, every=BETWEEN_FETCHES, clock=shop.clock)
            await checkouts.ask_once(asked)
            assert shop.line.count(FETCH) == min(number + 1, FETCHES_AT_ONCE)
        shop.clock.tick(seconds=1)
        await checkouts.ask_once(asked)
        assert shop.line.count(FETCH) == FETCHES_AT_ONCE


async def test_return_from_earlier_checkout_shows_latest_as_waiting(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        session = await shop.session(there.rsplit("/", 1)[1])
        await buy.person.go_on(buy.link)
        page = await buy.person.come_back(session["success_url"])
        assert "Waiting for" in page.heading


async def test_return_with_unreachable_provider_shows_waiting_page(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        session = await shop.session(there.rsplit("/", 1)[1])
        shop.line.broken.append(FETCH)
        page = await buy.person.come_back(session["success_url"])
        assert "Waiting for" in page.heading


@pytest.mark.parametrize("name", ["stripe", "paypal", "mollie"])
async def test_refusing_provider_is_named_and_question_stays_open(name: str, shop: Shop) -> None:
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
async def test_unreachable_provider_is_not_called_refusing(troubles: str, shop: Shop) -> None:
    getattr(shop.line, troubles).append(CREATE)
    async with buying(shop) as buy:
        page = await buy.person.press(buy.link)
        assert (page.status, page.heading) == (502, f"{shop.seller.label} did not answer")


async def test_failed_checkouts_do_not_count_as_attempts(shop: Shop) -> None:
    # finding: R11
    async with buying(shop) as buy:
        shop.line.is_down = True
        for _ in range(2 * ATTEMPTS_AT_MOST):
            page = await buy.person.press(buy.link)
            assert (page.status, page.heading) == (502, f"{shop.seller.label} did not answer")
        shop.line.is_down = False
        await buy.person.come_back(await buy.person.pay(buy.link))
        assert await buy.result() == "paid 9.00 EUR"


async def test_refused_checkouts_do_not_count_as_attempts(shop: Shop) -> None:
    # finding: R11
    await shop.restart(sellers={"stripe": replace(shop.seller, key="sk_test_another")})
    async with buying(shop) as buy:
        for _ in range(2 * ATTEMPTS_AT_MOST):
            assert (await buy.person.press(buy.link)).status == 502
        assert await shop.statuses() == ["opened"]


@pytest.mark.parametrize(
    ("trouble", "did"), [("silent", "did not answer"), ("refused", "refused the request")]
)
async def test_reloaded_page_shows_result_of_press(trouble: str, did: str, shop: Shop) -> None:
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
        assert other.heading == "Pay 9.00 € to shop?"


async def test_checkout_with_lost_response_is_opened_by_next_press(shop: Shop) -> None:
    # finding: R11
    async with buying(shop) as buy:
        shop.line.lost.append(CREATE)
        await buy.person.press(buy.link)
        assert "did not answer" in (await buy.person.visit(buy.link)).heading
        await buy.person.go_on(buy.link)
        assert "Waiting for" in (await buy.person.visit(buy.link)).heading
        assert len(set(shop.line.keys)) == 1, "each press uses the same idempotency key"


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_permanent_refusal_fails_question_with_reason_of_provider(
    shop: Shop, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: M6
    shop.line.refused[CREATE] = (400, "amount_too_small")
    async with buying(shop, revision=revision) as buy:
        page = await buy.person.press(buy.link)
        assert (page.status, page.location) == (303, buy.link)
        result = await buy.result()
        assert "ELICITATION_FAILED" in result
        assert "could not open its payment page (HTTP 400, amount_too_small)" in result
        page = await buy.person.visit(buy.link)
        assert page.heading == "The payment was refused"
        assert "amount_too_small" in page.text
        assert await shop.statuses() == ["failed"]
    (record,) = [record for record in caplog.records if record.message == "payment.refused"]
    assert "amount_too_small" in vars(record)["why"]


async def test_temporary_refusal_ends_nothing(shop: Shop) -> None:
    # finding: M6
    async with buying(shop) as buy:
        for status, code in ((429, "rate_limit"), (409, "lock_timeout"), (403, "not_yet")):
            shop.line.refused[CREATE] = (status, code)
            assert (await buy.person.press(buy.link)).status == 502
        shop.line.refused.clear()
        await buy.person.come_back(await buy.person.pay(buy.link))
        assert await buy.result() == "paid 9.00 EUR"
