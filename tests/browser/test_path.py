"""A person's path in Chromium, from the link to the tool's result, and its variations."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.browser.chrome import (
    ARGUMENTS,
    DESKTOP,
    PHONE,
    Scheme,
    Visitor,
    is_untroubled,
    reads,
    visitor,
)
from tests.browser.shop_env import TIMEOUT, Calling, Shop, open_shop
from tests.browser.visits import opened
from tests.crash.shop_env import no_certificates

OLD, NEW = "legacy", "2026-07-28"  # the client's `mode` for the two revisions

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def shopping(
    browser: Browser, *, mode: str = OLD, way: str = "checkout", **options: Any
) -> AsyncIterator[tuple[Shop, Calling, Visitor]]:
    """Provide a shop, a call and a visitor. Fail if the visitor's browser reported a problem."""
    async with (
        open_shop() as shop,
        shop.calling(mode=mode, way=way) as call,
        visitor(browser, **options) as ann,
    ):
        yield shop, call, ann
        assert is_untroubled(ann)


async def go_on(page: Page) -> None:
    """Press Continue, and wait for the checkout."""
    await page.get_by_role("button", name="Continue").click()
    await reads(page, "Till")


async def pay(page: Page) -> None:
    await page.get_by_role("link", name="Pay").click()


async def pay_to_the_end(page: Page, call: Calling) -> None:
    await pay(page)
    await reads(page, "Done")
    assert await call.text() == "Booked: {}"


async def call_back(page: Page) -> None:
    """Report the payment to our callback, while the person is still at the checkout."""
    callback = parse_qs(urlsplit(page.url).query)["callback"][0]
    async with httpx.AsyncClient(verify=no_certificates()) as payment_env:
        assert (await payment_env.post(callback, json={"paid": 9})).is_success


@pytest.mark.parametrize(
    ("mode", "size", "scheme"),
    [
        pytest.param(OLD, PHONE, "light", id="2025-11-25-phone-light"),
        pytest.param(OLD, DESKTOP, "dark", id="2025-11-25-desktop-dark"),
        pytest.param(NEW, PHONE, "dark", id="2026-07-28-phone-dark"),
        pytest.param(NEW, DESKTOP, "light", id="2026-07-28-desktop-light"),
    ],
)
async def test_tool_gets_result_when_person_returns(
    browser: Browser, mode: str, size: tuple[int, int], scheme: Scheme
) -> None:
    async with shopping(browser, mode=mode, size=size, scheme=scheme) as (_, call, ann):
        page = await opened(call, ann)
        await reads(page, "for Table service?")
        await expect(page.get_by_role("button", name="Decline")).to_be_in_viewport(ratio=1)
        await go_on(page)
        assert not call.task.done()
        await pay_to_the_end(page, call)


async def test_custom_route_completes_with_bound_browser(
    browser: Browser,
) -> None:
    async with (
        open_shop() as shop,
        shop.calling(mode=NEW, way="route") as call,
        visitor(browser) as ann,
        visitor(browser) as eve,
    ):
        page = await opened(call, ann)
        await go_on(page)
        stranger = await eve.context.request.get(page.url.replace("/checkout?", "/paid?"))
        assert not stranger.ok
        assert not call.task.done()
        await pay(page)
        await reads(page, "Completion: accepted")
        assert await call.text() == "Booked: {'paid': 9}"
        assert is_untroubled(ann)


async def test_continue_works_when_service_redirects_to_another_origin(
    browser: Browser,
) -> None:
    async with shopping(browser, way="hop") as (_, call, ann):
        page = await opened(call, ann)
        await go_on(page)
        await pay_to_the_end(page, call)


@pytest.mark.parametrize(
    ("mode", "is_begun"),
    [
        pytest.param(OLD, False, id="2025-11-25-at once"),
        pytest.param(NEW, True, id="2026-07-28-from the waiting page"),
    ],
)
async def test_decline_ends_call_and_link(browser: Browser, mode: str, is_begun: bool) -> None:
    async with shopping(browser, mode=mode) as (_, call, ann):
        page = await ann.page()
        link = await call.link()
        await page.goto(link)
        if is_begun:
            await go_on(page)
            await page.goto(link)
            await reads(page, "Waiting for localhost")
        await page.get_by_role("button", name="Decline").click()
        await reads(page, "You declined")
        assert (await call.result()).is_error
        assert "The person declined" in await call.text()
        await page.goto(link)
        await reads(page, "You declined")
        await expect(page.get_by_role("button")).to_have_count(0)


async def test_back_after_continue_shows_waiting_page_with_link_to_service(
    browser: Browser,
) -> None:
    async with shopping(browser) as (_, call, ann):
        page = await opened(call, ann)
        await go_on(page)
        await page.go_back()
        await reads(page, "Waiting for localhost")
        await page.get_by_role("button", name="Open localhost").click()
        await reads(page, "Till")
        await pay_to_the_end(page, call)


async def test_back_from_done_page_offers_nothing_again(browser: Browser) -> None:
    async with shopping(browser) as (_, call, ann):
        page = await opened(call, ann)
        await go_on(page)
        await pay(page)
        await reads(page, "Done")
        await page.go_back()
        await reads(page, "Till")
        await page.go_back()
        await reads(page, "Done")
        await expect(page.get_by_role("button")).to_have_count(0)


async def test_only_last_browser_to_press_continue_can_finish(browser: Browser) -> None:
    async with (
        open_shop() as shop,
        shop.calling() as call,
        visitor(browser) as first,
        visitor(browser) as second,
    ):
        link = await call.link()
        one, two = await first.page(), await second.page()
        for page in (one, two):
            await page.goto(link)
            await go_on(page)
        await pay(one)
        await reads(one, "This link was opened in another browser")
        assert not call.task.done()
        await pay_to_the_end(two, call)
        assert is_untroubled(first, second)


async def test_waiting_page_moves_on_automatically(browser: Browser) -> None:
    async with shopping(browser, mode=NEW) as (_, call, ann):
        payment_env, page = await ann.page(), await ann.page()
        link = await call.link()
        await payment_env.goto(link)
        await go_on(payment_env)
        await page.goto(link)
        await expect(page.get_by_role("status")).to_contain_text("moves on by itself")
        await call_back(payment_env)
        await reads(page, "Done")
        assert await call.text() == "Booked: {'paid': 9}"


async def test_without_javascript_waiting_page_offers_check_now(browser: Browser) -> None:
    async with shopping(browser, java_script_enabled=False) as (_, call, ann):
        payment_env, page = await ann.page(), await ann.page()
        link = await call.link()
        await payment_env.goto(link)
        await go_on(payment_env)
        await page.goto(link)
        await page.get_by_role("link", name="Check now").click()
        await reads(page, "Waiting for localhost")
        await call_back(payment_env)
        await page.get_by_role("link", name="Check now").click()
        await reads(page, "Done")
        assert await call.text() == "Booked: {'paid': 9}"


async def test_browser_without_cookies_is_asked_to_allow_cookies(
    chromium: str, tmp_path: Path
) -> None:
    preferences = tmp_path / "Default" / "Preferences"
    preferences.parent.mkdir()
    blocked = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    preferences.write_text(json.dumps(blocked))
    async with open_shop() as shop, shop.calling() as call, async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            tmp_path, executable_path=chromium, args=ARGUMENTS
        )
        page = await context.new_page()
        await page.goto(await call.link())
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_text("allow cookies for this address")).to_be_visible()
        assert await context.cookies() == []
        assert [record.status for record in await shop.records()] == ["pending"]
        await context.close()


@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["with js", "without js"])
async def test_double_click_on_continue_continues_once(
    browser: Browser, java_script_enabled: bool
) -> None:
    async with shopping(browser, java_script_enabled=java_script_enabled) as (_, call, ann):
        page = await opened(call, ann)
        await page.get_by_role("button", name="Continue").dblclick()
        await reads(page, "Till")
        await pay_to_the_end(page, call)


async def test_link_scanner_opening_link_first_changes_nothing(browser: Browser) -> None:
    async with open_shop() as shop, shop.calling() as call, visitor(browser) as ann:
        link = await call.link()
        before = await shop.records()
        async with httpx.AsyncClient(verify=no_certificates()) as scanner:
            assert (await scanner.get(link)).status_code == 200
            for path in ("", "/decline"):
                await scanner.get(link + path)
                await scanner.head(link + path)
                assert (await scanner.post(link + path)).status_code == 403
        assert await shop.records() == before
        page = await ann.page()
        await page.goto(link)
        await go_on(page)
        await pay_to_the_end(page, call)


async def test_link_answers_head_request_like_get() -> None:
    async with (
        open_shop() as shop,
        shop.calling() as call,
        httpx.AsyncClient(verify=no_certificates()) as scanner,
    ):
        assert (await scanner.head(await call.link())).status_code == 200


async def test_expired_link_shows_expired_page(browser: Browser) -> None:
    async with shopping(browser) as (shop, call, ann):
        page = await ann.page()
        link = await call.link()
        await page.goto(link)
        shop.later = TIMEOUT
        await page.get_by_role("button", name="Continue").click()
        await reads(page, "This link has expired")
        await page.goto(link)
        await reads(page, "This link has expired")


async def test_truncated_link_shows_unknown_link_page(browser: Browser) -> None:
    async with shopping(browser) as (_, call, ann):
        page = await ann.page()
        response = await page.goto((await call.link())[:-3])
        assert response is not None
        assert response.status == 404
        await reads(page, "We do not know this link")


async def test_home_page_is_shown_to_any_visitor(browser: Browser) -> None:
    async with open_shop() as shop, visitor(browser) as ann:
        page = await ann.page()
        await page.goto(shop.url)
        await reads(page, "Table service")
        assert is_untroubled(ann)
