"""Prices on each payment page, for people of several languages."""

from collections.abc import AsyncIterator

import httpx
import pytest

from flows import Money
from tests.support.paying import give_up
from tests.support.shop_env import Shop, buying, open_shop


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with open_shop() as shop:
        shop.price = Money("123456.78", "EUR")
        yield shop


# finding: XP18
@pytest.mark.parametrize(
    ("accepted", "tag", "price"),
    [
        ("de-DE,de;q=0.9,en;q=0.8", "de", "123.456,78 €"),
        ("de-CH", "de", "EUR 123\u2019456.78"),
        ("en-US,en;q=0.5", "en", "€123,456.78"),
        ("en-IN, hi", "en", "€1,23,456.78"),
        ("ar", "en", "€123,456.78"),
        ("sv;q=0, *", "en", "€123,456.78"),
        (";;q=,,,<script>_@;q=9" * 400, "en", "€123,456.78"),
    ],
    ids=range(7),
)
async def test_every_payment_page_shows_prices_in_the_language_of_the_page(
    shop: Shop, accepted: str, tag: str, price: str
) -> None:
    asked, paid = {
        "en": (f"Pay {price} to shop?", f"Paid {price}"),
        "de": (f"{price} an shop zahlen?", f"{price} bezahlt"),
    }[tag]
    async with buying(shop) as buy:
        browser = buy.person.browser
        browser.headers["accept-language"] = accepted
        assert (await buy.person.visit(buy.link)).heading == asked
        back = await buy.person.pay(buy.link)
        page = await buy.person.come_back(back)
        assert page.heading == paid
        # The model gets the same text in every language.
        assert await buy.result() == "paid 123456.78 EUR"
        listed = await browser.get(f"{shop.url}/payments")
        assert price in listed.text.replace("\u00a0", " ")
        assert listed.headers["content-language"] == tag
        assert listed.headers["vary"] == "accept-language"
        assert listed.headers["cache-control"] == "no-store"


async def test_two_people_at_same_link_see_same_amount(shop: Shop) -> None:
    async with buying(shop) as buy:
        for accepted, price in (("fr", "€123,456.78"), ("en-IN", "€1,23,456.78")):
            page = await buy.person.browser.get(buy.link, headers={"accept-language": accepted})
            assert price in page.text
            assert page.headers["cache-control"] == "no-store"


async def test_several_accept_language_lines_are_combined(shop: Shop) -> None:
    async with buying(shop) as buy:
        lines = [("accept-language", "tlh"), ("accept-language", "de;q=0.1, en;q=0.2")]
        page = await buy.person.browser.get(buy.link, headers=httpx.Headers(lines))
        assert "€123,456.78" in page.text


async def test_refunds_are_shown_in_the_language_of_the_page(shop: Shop) -> None:
    async with buying(shop) as buy:
        buy.person.browser.headers["accept-language"] = "de"
        await give_up(shop, buy)
        await buy.person.pay(buy.link)
        await shop.send_all()
        await shop.refund_by_hand(amount="123456")
        await shop.send_all()
        page = await buy.person.visit(f"{shop.url}/payments")
        assert "1.234,56 €" in page.text.replace("\u00a0", " ")
        await shop.refund_by_hand()
        await shop.send_all()
        page = await buy.person.visit(buy.link)
        assert page.heading == "Erstattet: 123.456,78 €"
