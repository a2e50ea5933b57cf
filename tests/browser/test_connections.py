"""The page of connected accounts in Chromium: disconnect, stop sharing, switch accounts."""

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.chrome import Scheme, Visitor, press, reads
from tests.browser.env import SERVER, ServerEnv
from tests.browser.visits import Way, at_sandbox, connect, meeting, opened

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODE = "2026-07-28"
SMALL, LARGE = (375, 812), (1280, 800)
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
FITS = "() => document.documentElement.scrollWidth <= window.innerWidth"


async def two_accounts(env: ServerEnv, ann: Visitor) -> None:
    """Connect an account for two tools, then replace it by another account."""
    await connect(env, ann, mode=MODE)
    async with env.calling("export_all", mode=MODE) as call:
        await press(await opened(call, ann), "Allow")
        await call.text()
    await stop_sharing(await overview(env, ann), "export_all")
    async with env.calling("export_all", mode=MODE) as call:
        page = await opened(call, ann)
        await press(page, "Another account")
        await page.get_by_role("radio", name="Hubot").check()
        await press(page, "Approve")
        assert await call.text() == "Exported everything of hubot."


async def overview(env: ServerEnv, ann: Visitor) -> Page:
    page = await ann.page()
    await page.goto(f"{env.url}/connections")
    await reads(page, "Your accounts")
    return page


def card(page: Page, name: str) -> Locator:
    return page.locator("article", has=page.get_by_text(name, exact=True))


async def stop_sharing(page: Page, tool: str) -> None:
    await press(page, f"Stop sharing with {tool}")
    await reads(page, "Your accounts")


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["phone", "desktop"])
async def test_accounts_page_fits_screen_and_has_large_buttons(
    browser: Browser, size: tuple[int, int]
) -> None:
    async with meeting(browser, Way(mode=MODE, size=size, scheme="light")) as (env, ann):
        await two_accounts(env, ann)
        page = await overview(env, ann)
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            assert await page.evaluate(FITS)
        await expect(card(page, "Hubot")).to_contain_text("In use")
        await expect(card(page, "Octo Cat")).to_contain_text("Not in use")
        for button in await page.get_by_role("button").all():
            box = await button.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 44


async def test_without_javascript_tool_loses_account_and_asks_again(browser: Browser) -> None:
    way = Way(mode=MODE, size=SMALL, scheme="dark")
    async with meeting(browser, way, java_script_enabled=False) as (env, ann):
        await connect(env, ann, mode=MODE)
        page = await overview(env, ann)
        await stop_sharing(page, "list_my_repositories")
        await expect(card(page, "Octo Cat")).to_contain_text("None at the moment")
        async with env.calling("list_my_repositories", mode=MODE) as call:
            await reads(await opened(call, ann), f"Let {SERVER} use octocat at GitHub?")


async def test_switched_account_is_used_from_next_call(browser: Browser) -> None:
    async with meeting(browser) as (env, ann):
        await two_accounts(env, ann)
        page = await overview(env, ann)
        await press(page, "Use octocat")
        await expect(card(page, "Octo Cat")).to_contain_text("In use")
        await expect(card(page, "Hubot").get_by_role("button", name="Use hubot")).to_be_visible()
        async with env.calling("list_my_repositories", mode=MODE) as call:
            assert (await call.text()).startswith("octocat has 3 repositories")


async def test_disconnected_account_is_gone_and_tool_asks_again(browser: Browser) -> None:
    async with meeting(browser) as (env, ann):
        await connect(env, ann, mode=MODE)
        page = await overview(env, ann)
        await page.get_by_role("link", name="Disconnect").click()
        await reads(page, "Disconnect octocat at GitHub?")
        await press(page, "Disconnect")
        await reads(page, "GitHub is disconnected")
        await expect(page.get_by_role("main")).to_contain_text("GitHub has confirmed")
        await page.reload()
        await reads(page, "GitHub is disconnected")
        await page.get_by_role("link", name="Back to your accounts").click()
        await expect(page.get_by_role("main")).to_contain_text("Nothing is connected.")
        async with env.calling("list_my_repositories", mode=MODE) as call:
            await at_sandbox(call, ann)


async def test_accounts_page_is_linked_from_home_and_connected_page(
    browser: Browser,
) -> None:
    async with meeting(browser) as (env, ann):
        async with env.calling("list_my_repositories", mode=MODE) as call:
            page = await at_sandbox(call, ann)
            await press(page, "Approve")
            await reads(page, "GitHub is connected")
            await page.get_by_role("link", name="Your accounts").first.click()
            await reads(page, "Your accounts")
        await page.goto(env.url)
        await page.get_by_role("link", name="Accounts").click()
        await reads(page, "Your accounts")
