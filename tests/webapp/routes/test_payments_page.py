"""The page of payments: people see what they paid, and request refunds of unused payments."""

import asyncio
import re
from datetime import timedelta
from html import unescape

import pytest
from msgspec.structs import replace

from flows import Receipt
from tests.support.disputes import claimed
from tests.support.mcp_server import Page, eventually, soon
from tests.support.paying import give_up, results_are_noted
from tests.support.shop_env import REFUND, Buying, Payer, Shop, buying

FORWARDED = {"x-forwarded-for": "203.0.113.9"}


async def paid_in_vain(shop: Shop, buy: Buying) -> str:
    """Pay for an abandoned call, and return the address that refunds the payment."""
    await give_up(shop, buy)
    await buy.person.pay(buy.link)
    await shop.send_all()
    return await address(shop)


async def address(shop: Shop) -> str:
    payment = (await shop.payments())[-1]
    return f"{shop.url}/payments/{payment.id.removeprefix(payment.owner)}/refund"


async def page_of(shop: Shop, person: Payer) -> Page:
    return await person.visit(f"{shop.url}/payments")


async def field(shop: Shop, person: Payer) -> dict[str, str]:
    """Return the form fields of the latest payment in this browser."""
    browser = shop.service.browser
    cookie = person.browser.cookies[browser.cookie_name]
    return {"csrf": browser.csrf(cookie, subject=(await shop.payments())[-1].id)}


async def test_payments_page_shows_price_purpose_and_status(shop: Shop) -> None:
    async with buying(shop) as buy:
        page = await page_of(shop, buy.person)
        assert (page.status, page.heading) == (200, "Your payments")
        assert "You have no payments" in page.text
        await paid_in_vain(shop, buy)
        page = await page_of(shop, buy.person)
        for words in ("9.00 €", "Premium report", "report", "Not used yet", "7 days", "Test"):
            assert words in page.text
        assert await buy.again() == "paid 9.00 EUR"
        await results_are_noted(shop)
        page = await page_of(shop, buy.person)
        assert "Used." in page.text
        assert "/refund" not in page.text
        (payment,) = await shop.payments()
        for hidden in (payment.owner, payment.session, str(payment.payment_intent)):
            assert hidden not in page.text


async def test_payments_and_receipt_name_tool_by_its_title(shop: Shop) -> None:
    shop.title = "Make a report"
    await shop.restart()
    async with buying(shop) as buy:
        receipt = (await paid_in_vain(shop, buy)).removesuffix("/refund")
        for address in (f"{shop.url}/payments", receipt):
            page = await buy.person.visit(address)
            assert "<bdi>Make a report</bdi>" in page.text
            assert "<bdi>report</bdi>" not in page.text


async def test_refund_button_refunds_payment_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        to = await paid_in_vain(shop, buy)
        # finding: XP11
        page = await buy.person.visit(to)
        assert page.heading == "Refund 9.00 €?"
        assert page.actions == (to,)
        assert page.csrf is not None
        for _ in range(2):
            answer = await buy.person.browser.post(to, data={"csrf": page.csrf})
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/payments#")
        (payment,) = await shop.payments()
        assert (payment.status, payment.reason) == ("refunded", "the person asked for it")
        assert (shop.line.count(REFUND), len(await shop.refunds())) == (1, 1)
        assert "Refunded." in (await page_of(shop, buy.person)).text
        assert (await buy.person.browser.get(to)).headers["location"].startswith("/payments#")
        assert "refunded in the meantime" in await buy.again()
        await buy.is_asked_again()


async def test_get_request_refunds_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        to = await paid_in_vain(shop, buy)
        await page_of(shop, buy.person)
        assert (await buy.person.browser.get(to)).status_code == 200
        assert await shop.ledger() == ["open"]


async def test_form_without_valid_csrf_field_refunds_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        to = await paid_in_vain(shop, buy)
        await page_of(shop, buy.person)
        for data in ({}, {"csrf": ""}, {"csrf": "x"}):
            answer = await buy.person.browser.post(to, data=data)
            assert answer.status_code in (400, 403)
        assert await shop.ledger() == ["open"]


async def test_stranger_sees_and_refunds_no_payment(shop: Shop) -> None:
    async with buying(shop) as buy:
        to = await paid_in_vain(shop, buy)
        await page_of(shop, buy.person)
        data = await field(shop, buy.person)
        stranger = await shop.person()
        stranger.browser.headers.update(FORWARDED)
        stranger.browser.cookies = buy.person.browser.cookies
        page = await page_of(shop, stranger)
        assert page.status == 403
        for hidden in ("9.00", "Premium", "Refund"):
            assert hidden not in page.text
        assert (await stranger.browser.post(to, data=data)).status_code == 403
        assert await shop.ledger() == ["open"]


async def test_payment_of_other_person_is_hidden(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        (mine,) = await shop.payments()
        owner = shop.service.elicitations.owners.tag(issuer="https://i.example", subject="bob")
        bobs = replace(
            mine, owner=owner, id=f"{owner}-of-bobs", dedupe_key="b", what="Bob's report", version=0
        )
        await shop.service.elicitations.write(bobs)
        page = await page_of(shop, buy.person)
        assert "Bob" not in page.text
        cookie = buy.person.browser.cookies[shop.service.browser.cookie_name]
        data = {"csrf": shop.service.browser.csrf(cookie, subject=bobs.id)}
        for tail in ("-of-bobs", bobs.id, f"..%2f{bobs.id}"):
            answer = await buy.person.browser.post(f"{shop.url}/payments/{tail}/refund", data=data)
            assert answer.status_code in (400, 404)
        assert await shop.ledger() == ["open", "open"]


async def test_claimed_or_used_payment_is_not_refunded_and_page_says_why(shop: Shop) -> None:
    gate = asyncio.Event()

    async def slowly(receipt: Receipt) -> str:
        await gate.wait()
        return f"paid {receipt.price}"

    shop.body = slowly
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        await shop.send_all()
        await eventually(lambda: shop.bodies)
        await page_of(shop, buy.person)
        data, to = await field(shop, buy.person), await address(shop)
        answer = await buy.person.browser.post(to, data=data)
        assert answer.status_code == 409
        assert "using it at this moment" in answer.text
        gate.set()
        assert await buy.result() == "paid 9.00 EUR"
        await results_are_noted(shop)
        answer = await buy.person.browser.post(to, data=data)
        assert answer.status_code == 409
        assert "has used it" in answer.text
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["spent"], 0)


async def test_refund_with_unreachable_provider_is_retried_automatically(shop: Shop) -> None:
    async with buying(shop) as buy:
        to = await paid_in_vain(shop, buy)
        await page_of(shop, buy.person)
        shop.line.is_down = True
        answer = await buy.person.browser.post(to, data=await field(shop, buy.person))
        assert answer.status_code == 502
        assert "You don't need to do anything" in answer.text
        assert "being refunded" in (await page_of(shop, buy.person)).text
        shop.line.is_down = False
        shop.clock.tick(minutes=5)
        await shop.sweep()
        assert "Refunded." in (await page_of(shop, buy.person)).text


async def test_page_of_link_shows_dispute_and_refunds(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        page = await buy.person.visit(buy.link)
        assert page.heading == "Paid 9.00 €"
        assert 'href="/payments"' in page.text
        (payment,) = await shop.payments()
        await claimed(shop, payment)
        page = await buy.person.visit(buy.link)
        assert page.heading == "9.00 € is disputed"
        await claimed(shop, payment, "charge.dispute.closed", status="won")
        await shop.refund_by_hand(amount="300")
        await shop.send_all()
        assert "3.00 €" in (await page_of(shop, buy.person)).text
        page = await buy.person.visit(buy.link)
        assert page.heading == "Paid 9.00 €"
        assert "of it was refunded" in page.text
        await shop.refund_by_hand()
        await shop.send_all()
        page = await buy.person.visit(buy.link)
        assert page.heading == "9.00 € was refunded"


@pytest.mark.parametrize("number", [1, 30, 300])
async def test_long_list_of_payments_is_paged_and_filtered(shop: Shop, number: int) -> None:
    # finding: XP13
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        (mine,) = await shop.payments()
        more = [
            replace(
                mine,
                id=f"{mine.owner}-more-{one}",
                dedupe_key=f"j{one}",
                paid_at=mine.paid_at - timedelta(hours=one),
                version=0,
            )
            for one in range(1, number)
        ]
        for one in more:
            await shop.service.elicitations.write(one)
        page = await page_of(shop, buy.person)
        seen, url = list[str](), f"{shop.url}/payments"
        while url:
            page = await buy.person.visit(url)
            found = re.findall(r'<section class="row" id="([^"]*)"', page.text)
            assert 0 < len(found) <= 20
            assert len(page.text) < 120_000
            names = re.findall(r'<a class="button small"[^>]*>(.*?)</a>', page.text)
            assert len(set(names)) == len(names)
            seen += found
            older = re.search(r'rel="next" href="([^"]*)"', page.text)
            url = f"{shop.url}{unescape(older[1])}" if older else ""
        assert len(seen) == len(set(seen)) == number
        for odd in ("page=0", "page=999999", "page=-1", "page=x", f"page={'9' * 50}", "show=x"):
            assert 'class="row"' in (await buy.person.visit(f"{shop.url}/payments?{odd}")).text
        used = await buy.person.visit(f"{shop.url}/payments?show=used")
        assert "No payment matches this filter." in used.text


async def test_receipt_can_be_printed_with_date_seller_amount_and_reference(shop: Shop) -> None:
    # finding: XP13
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        (payment,) = await shop.payments()
        tail = payment.id.removeprefix(payment.owner)
        page = await buy.person.visit(f"{shop.url}/payments/{tail}")
        assert page.heading == "Receipt"
        day = f"{payment.paid_at.day} {payment.paid_at:%b %Y, %H:%M} UTC"
        for words in (day, "9.00 €", "Premium report", tail, "data-print"):
            assert words in page.text
        assert payment.owner not in page.text


async def test_activity_lists_questions_and_their_outcomes(shop: Shop) -> None:
    # finding: XP13
    async with buying(shop) as buy:
        url = f"{shop.url}/activity"
        page = await buy.person.visit(url)
        assert "Waiting for you" in page.text
        # The sentence and the price are in the language of the page, not as the tool wrote them.
        assert "<h2><bdi>Pay 9.00 € to shop?</bdi></h2>" in page.text
        assert "Premium report" in page.text
        (link,) = re.findall(r'href="([^"]*/e/[^"]*)"', page.text)
        assert (await buy.person.visit(unescape(link))).csrf is not None
        await buy.person.decline(buy.link)
        page = await buy.person.visit(url)
        assert "Declined" in page.text
        assert "/e/" not in page.text
        assert "Nothing matches this filter." in (await buy.person.visit(f"{url}?show=done")).text
        for tab in ("/inbox", "/connections", "/payments", "/activity"):
            assert f'href="{tab}"' in page.text


async def test_activity_updates_itself_when_a_question_ends(shop: Shop) -> None:
    # finding: XP7
    async with buying(shop) as buy:
        url = f"{shop.url}/activity"
        page = await buy.person.visit(f"{url}?show=waiting")
        (here,) = re.findall(r'data-live="/activity/live" data-here="([^"]*)"', page.text)
        assert unescape(here) == "/activity?show=waiting"
        assert f'<noscript><p class="hint"><a href="{here}">Reload this page</a>' in page.text
        (status,) = re.findall(r'data-live="/activity/live"[^>]* data-status="([^"]*)"', page.text)
        async with buy.person.browser.stream("GET", f"{url}/live") as live:
            lines = (line async for line in live.aiter_lines() if line.startswith("data:"))
            assert await soon(anext(lines)) == f"data: {status}"
            await buy.person.decline(buy.link)
            page = await buy.person.visit(url)
            (now,) = re.findall(r'data-live="/activity/live"[^>]* data-status="(.*?)"', page.text)
            assert now != status
            while await soon(anext(lines)) != f"data: {now}":
                pass
        stranger = await shop.person()
        stranger.browser.headers.update(FORWARDED)
        assert (await stranger.browser.get(f"{url}/live")).status_code == 403


async def test_list_of_payments_updates_itself(shop: Shop) -> None:
    # finding: XP7
    async with buying(shop) as buy:
        to = await paid_in_vain(shop, buy)
        page = await page_of(shop, buy.person)
        (status,) = re.findall(r'data-live="/payments/live"[^>]* data-status="([^"]*)"', page.text)
        async with buy.person.browser.stream("GET", f"{shop.url}/payments/live") as live:
            lines = (line async for line in live.aiter_lines() if line.startswith("data:"))
            assert await soon(anext(lines)) == f"data: {status}"
            await buy.person.browser.post(to, data=await field(shop, buy.person))
            page = await page_of(shop, buy.person)
            (now,) = re.findall(r'data-live="/payments/live"[^>]* data-status="(.*?)"', page.text)
            assert now != status
            while await soon(anext(lines)) != f"data: {now}":
                pass
        assert "Refunded." in page.text
        stranger = await shop.person()
        stranger.browser.headers.update(FORWARDED)
        assert (await stranger.browser.get(f"{shop.url}/payments/live")).status_code == 403
