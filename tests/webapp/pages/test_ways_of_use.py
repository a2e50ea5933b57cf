"""Use of each page with a keyboard only, with forced colours, and without JavaScript."""

import pytest
from playwright.async_api import Browser

from tests.support.page_measures import REPLACE, every_state, first_states, of_each
from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_views import usual
from webapp.pages.renderer import Renderer
from webapp.pages.views_operator import OperatorRecord

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The browser focuses an autofocus field before the first frame, so the script waits for a frame.
CONTROLS = """async () => {
    await new Promise((drawn) => requestAnimationFrame(drawn));
    const all = "a[href], button, input, select, textarea, summary, [tabindex='0']";
    window.controls = [...document.querySelectorAll(all)].filter((one) =>
        one.type !== "hidden" && !one.disabled && one.checkVisibility());
    document.body.tabIndex = -1;
    document.body.focus();
    return window.controls.length;
}"""
# The number of the control that has the focus, and how wide its outline is.
FOCUSED = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    const width = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
    return [window.controls.indexOf(one), width];
}"""
# Controls that nobody would recognize without backgrounds. A script shows the hidden ones.
BARE = """() => {
    for (const hidden of document.querySelectorAll("[hidden]")) hidden.hidden = false;
    return [...document.querySelectorAll("button, .button, input, select, textarea, a")]
    .filter((one) => one.type !== "hidden" && one.checkVisibility())
    .filter((one) => {
        const style = getComputedStyle(one);
        const isUnderlined = style.textDecorationLine.includes("underline");
        const hasBorder = style.borderBottomStyle !== "none"
            && parseFloat(style.borderBottomWidth) > 0;
        return !isUnderlined && !hasBorder && one.type !== "checkbox";
    })
    .map((one) => one.outerHTML.slice(0, 100));
}"""
# Controls that do nothing when no script runs.
DEAD = """() => [...document.querySelectorAll("button, input, select, textarea, a")]
    .filter((one) => one.type !== "hidden" && one.checkVisibility())
    .filter((one) => one.matches("a") ? !one.hasAttribute("href")
        : !one.form || (one.matches("button") && one.type !== "submit"))
    .map((one) => one.outerHTML.slice(0, 100))"""
# Without JavaScript, a page that would show a change has a link to check for it.
STALE = """() => document.querySelector("[data-live]") !== null
    && ![...document.querySelectorAll("a[href]")].some((one) =>
        one.checkVisibility({visibilityProperty: true}) && one.getClientRects().length > 0)"""


async def test_tab_key_reaches_every_control_in_order_and_shows_the_focus(
    pages: Renderer, browser: Browser, request: pytest.FixtureRequest
) -> None:
    is_whole = request.config.getoption("--whole")
    site = Site(html="")
    async with visit(browser, site, reduced_motion="reduce") as page:
        site.html = pages.render(usual(OperatorRecord))  # this page has all style sheets
        await page.goto(f"{ORIGIN}/e/abc")
        first = first_states()
        # States that only replace the HTML come first, while these style sheets are loaded.
        for name, view in sorted(every_state().items(), key=lambda state: state[0] in first):
            site.html = pages.render(view)
            if is_whole or name in first:
                await page.goto(f"{ORIGIN}/e/abc")
            else:
                await page.evaluate(REPLACE, site.html)
            count, reached = await page.evaluate(CONTROLS), list[int]()
            while len(reached) < count:
                await page.keyboard.press("Tab")
                number, outline = await page.evaluate(FOCUSED)
                assert number >= 0, (name, reached)
                assert outline >= 2, (name, number)
                if reached[-1:] != [number]:  # a field for a date and a time has several stops
                    reached.append(number)
            assert reached == list(range(count)), name
    assert site.complaints == []


async def test_keyboard_alone_answers_a_form(pages: Renderer, browser: Browser) -> None:
    site = Site(html=pages.render(every_state()["first screen of form"]))
    async with visit(browser, site) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        for text in ("Ada", "Main Street 1", "Ulm"):  # the first field has the focus
            await page.keyboard.type(text)
            await page.keyboard.press("Tab")
        async with page.expect_response(lambda response: response.status == 204):
            await page.keyboard.press("Enter")
    method, _, content = site.requests[-1]
    assert method == "POST"
    assert content is not None
    assert [part.partition("=")[2] for part in content.split("&")][1:] == [
        *("Ada", "Main+Street+1", "Ulm", ""),
    ]


async def test_controls_have_borders_or_underlines_with_forced_colors(
    pages: Renderer, browser: Browser
) -> None:
    # finding: XP19
    site = Site(html=pages.render(usual(OperatorRecord)))  # this page has all style sheets
    async with visit(browser, site, forced_colors="active") as page:
        await page.goto(f"{ORIGIN}/e/abc")
        shown = [(name, pages.render(view)) for name, view in every_state().items()]
        for name, bare in await page.evaluate(of_each(BARE), shown):
            assert bare == [], name


async def test_every_control_works_without_javascript(pages: Renderer, browser: Browser) -> None:
    site = Site(html=pages.render(usual(OperatorRecord)))  # this page has all style sheets
    async with visit(browser, site, java_script_enabled=False) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        shown = [(name, pages.render(view)) for name, view in every_state().items()]
        for name, dead in await page.evaluate(of_each(DEAD), shown):
            assert dead == [], name
        for name, is_stale in await page.evaluate(of_each(STALE), shown):
            assert not is_stale, name
