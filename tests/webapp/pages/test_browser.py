"""The pages in Chromium with their content security policy, in both sizes and both schemes.

The browser's driver answers the requests, so these tests open no port.
"""

from collections.abc import AsyncIterator
from dataclasses import fields
from datetime import timedelta
from itertools import product
from typing import Literal
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_views import HOSTILE, USUAL, hostile_views, usual
from webapp.pages.renderer import Renderer
from webapp.pages.views import Done, StartAccount, StartPayment, StartUrl, View, Waiting
from webapp.pages.views_own import Home

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE, DESKTOP = (390, 844), (1280, 800)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LOOK = """() => ({
    width: document.documentElement.scrollWidth,
    ground: getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number),
    targets: [...document.querySelectorAll("button, a, summary, select, label, input")]
        .filter((target) => target.checkVisibility() && target.type !== "checkbox")
        .filter((target) => target.nodeName !== "LABEL" || target.parentNode.className === "tick")
        .map((target) => target.getBoundingClientRect())
        .map((box) => [box.width, box.height]),
})"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def screen(browser: Browser) -> AsyncIterator[tuple[Page, Site]]:
    """Open one browser page for all views. A page for each view takes ten times as long."""
    site = Site(html="")
    async with visit(browser, site, reduced_motion="reduce") as page:
        yield page, site


async def test_page_fits_viewport_and_has_large_targets(
    usual_view: View, pages: Renderer, screen: tuple[Page, Site], pytestconfig: pytest.Config
) -> None:
    # The scheme changes colors, and no sizes.
    together = product if pytestconfig.getoption("--whole") else zip
    page, site = screen
    site.html = pages.render(usual_view)
    site.complaints.clear()
    await page.goto(f"{ORIGIN}/e/abc")
    for (width, height), scheme in together((PHONE, DESKTOP), SCHEMES):
        await page.set_viewport_size({"width": width, "height": height})
        await page.emulate_media(color_scheme=scheme)
        seen = await page.evaluate(LOOK)
        assert seen["width"] <= width
        # finding: XP16
        assert all(side >= 44 for sides in seen["targets"] for side in sides)
        assert (seen["ground"][0] > 200) == (scheme == "light")
    assert site.complaints == []


@pytest.mark.parametrize("words", HOSTILE)
async def test_hostile_text_does_not_overflow_phone_screen(
    words: str, pages: Renderer, browser: Browser, pytestconfig: pytest.Config
) -> None:
    # The longest word is in every page, and each other text in every third page.
    step = 1 if words == "endless" or pytestconfig.getoption("--whole") else 3
    views = [*hostile_views(words).items()][list(HOSTILE).index(words) % step :: step]
    site = Site(html="")
    async with visit(browser, site, viewport={"width": 320, "height": 640}) as page:
        for name, view in views:
            if len(fields(view)) == 1:
                continue  # the view's only text is the server's name, which every page has
            site.html = pages.render(view)
            await page.goto(f"{ORIGIN}/e/abc")
            seen = await page.evaluate(LOOK)
            assert seen["width"] <= 320, name
    assert site.complaints == []


@pytest.mark.parametrize(
    "view",
    [
        usual(StartUrl),
        usual(StartAccount, is_sandbox=False, reason=None, account=None),
        usual(StartPayment, is_test=False),
    ],
    ids=["url", "account", "payment"],
)
async def test_usual_request_shows_buttons_on_phone_without_scrolling(
    view: View, pages: Renderer, browser: Browser
) -> None:
    site = Site(html=pages.render(view))
    async with visit(browser, site, viewport={"width": 390, "height": 844}) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        await expect(page.get_by_role("button", name="Decline")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("name", ["Continue to example.org", "Decline"])
async def test_buttons_work_without_javascript(
    name: str, pages: Renderer, browser: Browser
) -> None:
    site = Site(html=pages.render(usual(StartUrl)))
    async with visit(browser, site, java_script_enabled=False) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        async with page.expect_request(lambda request: request.method == "POST"):
            await page.get_by_role("button", name=name).click()
    where = "/e/abc/decline" if name == "Decline" else "/e/abc/go"
    assert site.requests[1:] == [("POST", where, "csrf=c5f1")]


async def test_second_press_sends_no_second_request(pages: Renderer, browser: Browser) -> None:
    site = Site(html=pages.render(usual(StartUrl)))
    async with visit(browser, site) as page:
        await page.clock.install()
        await page.goto(f"{ORIGIN}/e/abc")
        button = page.get_by_role("button", name="Continue")
        async with page.expect_response(lambda response: response.status == 204):
            await button.click()
        await expect(button).to_have_attribute("aria-disabled", "true")
        await button.click(force=True)
        # If no page followed the first press, the person can press again after a few seconds.
        await page.clock.run_for(8_000)
        await expect(button).not_to_have_attribute("aria-disabled", "true")
        async with page.expect_response(lambda response: response.status == 204):
            await button.click()
    assert [method for method, _, _ in site.requests] == ["GET", "POST", "POST"]


async def test_timer_counts_down_and_page_reloads_once(pages: Renderer, browser: Browser) -> None:
    site = Site(html=pages.render(usual(StartUrl)))
    over = pages.render(usual(StartUrl, expires_at=USUAL["now"]))
    async with visit(browser, site) as page:
        # The page's clock moves only when the test moves it, however busy the machine is.
        await page.clock.install(time=USUAL["now"])
        await page.clock.pause_at(USUAL["now"] + timedelta(seconds=1))
        await page.goto(f"{ORIGIN}/e/abc?again=1")
        timer = page.get_by_role("timer")
        await expect(timer).to_have_text("4:30")
        await page.clock.run_for(31_000)
        await expect(timer).to_have_text("3:59")
        site.html = over
        async with page.expect_navigation():
            await page.clock.run_for(240_000)
        await expect(timer).to_have_text("0:00")
        await page.clock.run_for(60_000)
    assert site.complaints == []
    assert len(site.requests) == 2


async def test_waiting_page_advances_when_status_changes(pages: Renderer, browser: Browser) -> None:
    site = Site(html=pages.render(usual(Waiting)), events="data: opened\n\ndata: accepted\n\n")
    async with visit(browser, site) as page:
        async with page.expect_event(
            "framenavigated", lambda frame: urlsplit(frame.url).path == "/e/abc"
        ):
            await page.goto(f"{ORIGIN}/e/abc/returned")
            site.html = pages.render(Done(server="my tools"))
        await expect(page.get_by_role("heading", level=1)).to_have_text("Done")
    assert [path for _, path, _ in site.requests] == ["/e/abc/returned", "/e/abc/live", "/e/abc"]


async def test_waiting_page_stays_while_status_is_unchanged(
    pages: Renderer, browser: Browser
) -> None:
    site = Site(html=pages.render(usual(Waiting)), events="retry: 60000\ndata: opened\n\n")
    async with visit(browser, site) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        await expect(page.get_by_role("status")).to_have_text(
            "When you're done there, this page moves on by itself."
        )
    assert [path for _, path, _ in site.requests] == ["/e/abc", "/e/abc/live"]


async def test_waiting_page_listens_again_after_an_error_of_a_proxy(
    pages: Renderer, browser: Browser
) -> None:
    late = USUAL["now"] + timedelta(days=30)
    site = Site(html=pages.render(usual(Waiting, expires_at=late)), live_status=502)
    async with visit(browser, site) as page:
        await page.clock.install(time=USUAL["now"])
        await page.clock.pause_at(USUAL["now"] + timedelta(seconds=1))
        await page.goto(f"{ORIGIN}/e/abc")
        while [path for _, path, _ in site.requests].count("/e/abc/live") < 2:
            await page.clock.run_for(300_000)
        await expect(page.get_by_role("status")).to_contain_text("check here")
        site.live_status, site.events = 200, "data: accepted\n\n"
        site.html = pages.render(Done(server="my tools"))
        while [path for _, path, _ in site.requests].count("/e/abc") < 2:
            await page.clock.run_for(300_000)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Done")


async def test_pauses_between_failed_live_requests_double_up_to_five_minutes(
    pages: Renderer, browser: Browser
) -> None:
    late = USUAL["now"] + timedelta(days=30)
    site = Site(html=pages.render(usual(Waiting, expires_at=late)), live_status=502)
    async with visit(browser, site) as page:
        # Each pause is recorded and ends at once.
        await page.add_init_script(
            "window.pauses = []; const wait = setTimeout;"
            "window.setTimeout = (run, pause) => { pauses.push(pause); return wait(run, 0); };"
        )
        await page.goto(f"{ORIGIN}/e/abc")
        while len(pauses := await page.evaluate("pauses")) < 6:
            pass
        assert pauses[:6] == [20_000, 40_000, 80_000, 160_000, 300_000, 300_000]
        await expect(page.get_by_role("status")).to_contain_text("check here")
        # After a successful connection, the pauses start again with the shortest one.
        site.live_status, site.events = 200, "retry: 1\ndata: opened\n\n"
        await expect(page.get_by_role("status")).to_contain_text("moves on by itself")
        site.live_status = 502
        while (await page.evaluate("pauses")).count(20_000) < 2:
            pass


async def test_waiting_page_can_be_checked_manually(pages: Renderer, browser: Browser) -> None:
    site = Site(html=pages.render(usual(Waiting)))
    async with visit(browser, site, java_script_enabled=False) as page:
        await page.goto(f"{ORIGIN}/e/abc/returned")
        await expect(page.get_by_role("status")).to_contain_text("check here")
        await page.get_by_role("link", name="Check now").click()
        await page.wait_for_url(f"{ORIGIN}/e/abc")
    assert [path for _, path, _ in site.requests] == ["/e/abc/returned", "/e/abc"]


async def test_settings_can_be_copied(pages: Renderer, browser: Browser) -> None:
    home = usual(Home)
    assert isinstance(home, Home)
    site = Site(html=pages.render(home))
    async with visit(browser, site, permissions=["clipboard-read", "clipboard-write"]) as page:
        await page.goto(ORIGIN)
        await page.locator("summary").click()  # the part for developers is folded
        await page.get_by_role("button", name="Copy the settings for VS Code").click()
        await expect(page.get_by_role("status")).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == home.vscode_settings


async def test_copy_buttons_are_hidden_without_javascript(
    pages: Renderer, browser: Browser
) -> None:
    site = Site(html=pages.render(usual(Home)))
    async with visit(browser, site, java_script_enabled=False) as page:
        await page.goto(ORIGIN)
        await expect(page.locator("button:visible")).to_have_count(0)
