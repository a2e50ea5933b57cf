"""The main button of each question page is on the first screen, and large enough for a finger."""

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from flows.schema.schema import schema_of
from flows.shown import Argument
from tests.support.page_measures import MAIN, SCREENS
from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_states import ASKING, LABEL
from tests.support.page_views import usual
from webapp.pages.form import form_of
from webapp.pages.renderer import Renderer
from webapp.pages.views import StartUrl, View
from webapp.pages.views_forms import Decide, StartConfirm, StartForm

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = tuple(Argument(name=f"line {number}", value="DROP TABLE x") for number in range(40))


async def shown(view: View, pages: Renderer, page: Page, site: Site) -> None:
    site.html = pages.render(view)
    await page.goto(f"{ORIGIN}/e/abc")


@pytest.mark.parametrize("screen", SCREENS, ids=["phone", "desktop"])
async def test_main_button_is_visible_without_scrolling(
    screen: tuple[int, int], pages: Renderer, browser: Browser
) -> None:
    # finding: XP5
    width, height = screen
    site = Site(html="")
    async with visit(browser, site, viewport={"width": width, "height": height}) as page:
        for name, view in ASKING.items():
            await shown(view, pages, page, site)
            button = page.locator(MAIN).first
            box = await button.bounding_box()
            assert box is not None, name
            assert box["y"] + box["height"] <= height, (name, box)
            assert box["height"] >= 44, name
            assert await page.evaluate("scrollY") == 0, name


@pytest.mark.parametrize("screen", SCREENS, ids=["phone", "desktop"])
@pytest.mark.parametrize("kind", [StartConfirm, Decide])
async def test_approval_button_is_below_arguments_that_fill_the_screen(
    kind: type[View], screen: tuple[int, int], pages: Renderer, browser: Browser
) -> None:
    # finding: XP5
    width, height = screen
    site = Site(html="")
    async with visit(browser, site, viewport={"width": width, "height": height}) as page:
        await shown(usual(kind, arguments=LONG), pages, page, site)
        button = page.locator(MAIN).first
        await expect(button).not_to_be_in_viewport()
        last = await page.get_by_text("line 39").bounding_box()
        box = await button.bounding_box()
        assert last is not None
        assert box is not None
        assert box["y"] > last["y"]


async def test_focused_field_is_not_behind_buttons(pages: Renderer, browser: Browser) -> None:
    # finding: XP5
    names = [f"field{number}" for number in range(20)]
    schema = schema_of({"type": "object", "properties": dict.fromkeys(names, LABEL)})
    site = Site(html="")
    async with visit(browser, site, viewport={"width": 390, "height": 664}) as page:
        await shown(usual(StartForm, form=form_of(schema), arguments=()), pages, page, site)
        for number in range(1, 21):
            field, bar = page.locator(f"#answer-{number}"), page.locator(".actions.stay")
            await expect(field).to_be_focused()
            box, above = await field.bounding_box(), await bar.bounding_box()
            assert box is not None
            assert above is not None
            assert box["y"] + box["height"] <= above["y"]
            await page.keyboard.press("Tab")


async def test_scroll_padding_is_at_least_as_high_as_the_button_bar(
    pages: Renderer, browser: Browser
) -> None:
    # finding: XP5
    site, padding = Site(html=""), "getComputedStyle(document.documentElement).scrollPaddingBottom"
    async with visit(browser, site, viewport={"width": 320, "height": 568}) as page:
        for name, view in ASKING.items():
            await shown(view, pages, page, site)
            for bar in await page.locator(".actions.stay").all():
                box, padding_bottom = await bar.bounding_box(), await page.evaluate(padding)
                assert box is not None
                assert box["height"] <= float(padding_bottom.removesuffix("px")), name


async def test_forced_colors_tell_main_button_and_decline_apart(
    pages: Renderer, browser: Browser
) -> None:
    # finding: XP19
    site = Site(html="")
    colour = "(button) => getComputedStyle(button).backgroundColor"
    async with visit(browser, site, forced_colors="active") as page:
        for view in (usual(StartUrl), usual(StartConfirm)):
            await shown(view, pages, page, site)
            main: Any = await page.locator(MAIN).first.evaluate(colour)
            decline = await page.get_by_role("button", name="Decline").evaluate(colour)
            assert main != decline
