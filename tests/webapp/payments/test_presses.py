"""Pressing Continue on a payment any number of times leaves one open checkout page."""

import asyncio

from tests.support.mcp_server import eventually
from tests.support.shop_env import CREATE, EXPIRE, FETCH, Payer, Shop, buying
from webapp.routes.redirect import depart

BROWSERS = 10


async def pressed(payer: Payer, link: str) -> str:
    """Press Continue on an open page, and return the address of the redirect."""
    page = await payer.visit(link)
    answer = await payer.browser.post(link, data={"csrf": page.csrf or ""})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def session_in(page: str) -> str:
    return page.rsplit("/", 1)[1]


async def open_there(shop: Shop, pages: set[str]) -> list[str]:
    return [page for page in pages if (await shop.session(session_in(page)))["status"] == "open"]


async def test_ten_browsers_pressing_continue_at_once_leave_a_single_open_checkout(
    shop: Shop,
) -> None:
    # finding: M4
    async with buying(shop) as buy:
        people = [await shop.person() for _ in range(BROWSERS)]
        pages = await asyncio.gather(*(pressed(payer, buy.link) for payer in people))
        assert len(set(pages)) == BROWSERS, "each browser gets its own checkout page"
        (left,) = await open_there(shop, set(pages))
        back = await buy.person.press_there(left, "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        payer = people[pages.index(left)]
        assert (await payer.come_back(back)).heading == "Paid 9.00 €"
        assert len(await shop.payments()) == 1


async def test_second_press_waits_for_the_first_checkout_and_closes_the_first(shop: Shop) -> None:
    # finding: M4
    async with buying(shop) as buy:
        (asked,) = await shop.asked()
        await shop.service.elicitations.open_attempt(asked.id, browser="opened")
        gate = shop.line.held[CREATE] = asyncio.Event()
        first, second = (
            asyncio.create_task(depart(shop.service, asked, cookie=shop.service.browser.fresh()))
            for _ in range(2)
        )
        await eventually(lambda: shop.line.count(CREATE))
        del shop.line.held[CREATE]
        gate.set()
        earlier, latest = await first, await second
        assert shop.line.calls == [
            CREATE,
            f"POST /stripe/v1/checkout/sessions/{session_in(earlier)}{EXPIRE}",
            CREATE,
        ]
        assert await open_there(shop, {earlier, latest}) == [latest]
        assert not buy.call.done()


async def test_payment_made_before_another_browser_presses_continue_is_accepted(shop: Shop) -> None:
    # finding: M4
    async with buying(shop) as buy:
        other = await shop.person()
        there = await other.go_on(buy.link)
        await other.press_there(there, "card")  # no event arrives
        page = await buy.person.press(buy.link)
        assert page.location is not None
        assert page.location.startswith(shop.url)
        assert await buy.result() == "paid 9.00 EUR"
        assert (await buy.person.visit(buy.link)).heading == "Paid 9.00 €"
        assert (shop.line.calls.count(CREATE), len(await shop.payments())) == (1, 1)


async def test_transfer_started_in_another_browser_is_shown_instead_of_a_new_checkout(
    shop: Shop,
) -> None:
    # finding: M4
    async with buying(shop) as buy:
        other = await shop.person()
        await other.press_there(await other.go_on(buy.link), "bank")
        await buy.person.press(buy.link)
        assert (await buy.person.visit(buy.link)).heading == "Your payment is on its way"
        assert shop.line.calls.count(CREATE) == 1


async def test_checkout_that_cannot_be_closed_blocks_a_new_checkout(shop: Shop) -> None:
    # finding: M4
    async with buying(shop) as buy:
        there = await (await shop.person()).go_on(buy.link)
        shop.line.broken += [EXPIRE, FETCH]
        assert (await buy.person.press(buy.link)).status == 502
        shop.line.broken.clear()
        again = await buy.person.go_on(buy.link)
        assert await open_there(shop, {there, again}) == [again]


async def test_press_in_another_process_closes_the_checkout_being_created(
    shop: Shop,
) -> None:
    # finding: M4
    async with buying(shop) as buy:
        other = await shop.process()
        # The page was created, and the reply is delayed.
        gate = shop.line.after[CREATE] = asyncio.Event()
        first = asyncio.create_task(buy.person.press(buy.link))
        made = await shop.line.made.get()
        del shop.line.after[CREATE]
        (asked,) = await shop.asked()
        latest = await depart(other.service, asked, cookie=other.service.browser.fresh())
        gate.set()
        page = await first
        assert (page.status, page.location) == (303, buy.link), (
            "the first press does not redirect to the closed checkout"
        )
        assert await open_there(shop, {made, latest}) == [latest]
        await other.ended()
