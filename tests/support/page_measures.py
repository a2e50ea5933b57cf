"""Measures of pages in a browser: accessibility, contrast, the first screen, and overflow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from playwright.async_api import Browser, Page

from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_states import ASKING, page_states
from tests.support.page_views import usual
from webapp.languages import ENGLISH, Language
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import View
from webapp.pages.views_operator import OperatorRecord
from webapp.settings.brand import Brand

SCREENS = ((390, 664), (1280, 720))
MAIN = "main .button.primary, main .button.danger"
Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
NARROW = (320, 640)  # WCAG 2.2, 1.4.10: a desktop's 1280 pixels, zoomed to 400 %
TWICE = 32  # pixels: the browser's text at 200 %
TOO_LOW = 7.0  # WCAG 2.2, 1.4.6 (AAA). Large text needs less there, but has the same limit here.
# The rules of axe: WCAG 2.2 A and AA, its best practices, and the contrast of AAA.
RULES: Mapping[str, Any] = {
    "runOnly": {
        "type": "tag",
        "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    },
    "rules": {"color-contrast-enhanced": {"enabled": True}},
    # Off, because they take half of the time: a selector for each element, and frames.
    "selectors": False,
    "iframes": False,
    "preload": False,
}
CONTRAST = {**RULES, "runOnly": {"type": "rule", "values": ["color-contrast-enhanced"]}}
OF_COLORS = {
    **RULES,
    "runOnly": {
        "type": "rule",
        "values": ["color-contrast", "color-contrast-enhanced", "link-in-text-block"],
    },
}
RUN_AXE = """async (rules) => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    const found = await axe.run(document, rules);
    const ratios = [...found.passes, ...found.violations]
        .filter((rule) => rule.id === "color-contrast-enhanced")
        .flatMap((rule) => rule.nodes.flatMap((node) => node.any))
        .map((check) => check.data.contrastRatio)
        .filter((ratio) => ratio > 0);
    return {
        violations: found.violations.map((rule) => `${rule.id}: ${rule.nodes[0].html}`),
        undecided: found.incomplete.map((rule) => `${rule.id}: ${rule.nodes[0].html}`),
        lowest: Math.min(...ratios),
    };
}"""
RUNNING = "() => document.getAnimations().filter((one) => one.playState === 'running').length"
# A link's padding is larger than its line, so that a finger can hit it. The padding overlaps the
# text of the next line, and axe then cannot determine the background of that text.
WITHOUT_PADDING = """() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync("a:not(.button) { padding: 0 !important }");
    document.adoptedStyleSheets = [sheet];
}"""
# Show another page without a navigation: its scripts do not run, and the style sheets stay.
REPLACE = """(html) => {
    const next = new DOMParser().parseFromString(html, "text/html");
    document.documentElement.lang = next.documentElement.lang;
    document.documentElement.dir = next.documentElement.dir;
    document.title = next.title;
    document.body.replaceWith(document.adoptNode(next.body));
    for (const details of document.querySelectorAll("details")) details.open = true;
}"""
# How much wider the page is than the screen, and the readable texts that are cut off.
TOO_WIDE = """() => {
    const cut = [...document.querySelectorAll("body *")].filter((one) =>
        one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
        && getComputedStyle(one).overflowX !== "visible"
        && !one.matches(".unseen, textarea, input, select, svg, .bar"));
    const page = document.documentElement;
    return [page.scrollWidth - page.clientWidth, ...cut.map((one) => one.outerHTML.slice(0, 80))];
}"""


def of_each(measure: str) -> str:
    """Return a script that shows each page in turn and returns its name and what it measures.

    One script measures all pages, because drawing them one by one would take most of the time.
    """
    return f"(pages) => pages.map(([name, html]) => [name, (({REPLACE})(html), ({measure})())])"


# The operator's names and links, which the start pages show when the fold is measured.
BRAND = Brand(
    legal_name="Acme Research GmbH",
    contact="help@acme.example",
    privacy="https://acme.example/privacy",
    terms="https://acme.example/terms",
).of("my tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRow:
    """A page, and how many pixels its main button is above the lower edge of each screen."""

    name: str
    cells: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Figures:
    """The figures of all pages in one language. The lists name the pages that break a rule."""

    violations: dict[str, list[str]] = field(default_factory=lambda: {one: [] for one in SCHEMES})
    contrast: dict[str, float] = field(default_factory=dict)
    moving: list[str] = field(default_factory=list)
    too_wide: dict[str, list[str]] = field(default_factory=dict)
    folds: list[FoldRow] = field(default_factory=list)

    @property
    def fold(self) -> tuple[int, ...]:
        """The smallest distance of a main button from the lower edge, for each screen."""
        return tuple(min(cells) for cells in zip(*(row.cells for row in self.folds), strict=True))


def every_state() -> dict[str, View]:
    """Return a view of each state of each page, and of each start page with four fields."""
    return {**page_states(), **{f"first screen of {name}": view for name, view in ASKING.items()}}


@cache
def axe() -> str:
    """Return the script of axe-core. No other Python package contains it."""
    return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")


def axe_version() -> str:
    return axe().partition("axe v")[2].partition("\n")[0]


def first_states() -> set[str]:
    """Return the names of each page's first state. The other states use the same scripts."""
    by_page = dict[type[View], str]()
    for name, view in every_state().items():
        by_page.setdefault(type(view), name)
    return set(by_page.values())


def both_schemes(_number: int, _is_first: bool, /) -> Sequence[Scheme]:
    return SCHEMES


async def figures_of(
    browser: Browser,
    language: Language = ENGLISH,
    schemes_of: Callable[[int, bool], Sequence[Scheme]] = both_schemes,
    *,
    loads_each: bool = True,
) -> Figures:
    """Measure every page in this language, in one tab of the browser.

    Args:
        browser: A running Chromium.
        language: The language of the pages.
        schemes_of: Returns the color schemes in which axe checks a state, given its number, and
            True for the first state of a page. The other measures do not depend on the scheme, and
            include each state.
        loads_each: Load each state in English, where its scripts run, not only the first state of
            each page.
    """
    pages, site, found = Renderer(folders=[template_folder()]), Site(html=""), Figures()
    branded = Renderer(folders=[template_folder()], brand=BRAND)

    def html(view: View) -> str:
        renderer = branded if view in ASKING.values() else pages
        return renderer.render(view, language if view.is_translated else ENGLISH)

    width, height = NARROW
    screen = {"width": width, "height": height}
    async with visit(browser, site, reduced_motion="reduce", viewport=screen) as page:
        await page.add_init_script(axe())
        site.html = html(usual(OperatorRecord))  # it has all style sheets
        await page.goto(f"{ORIGIN}/e/abc")
        shown = {name: html(view) for name, view in every_state().items()}
        first = first_states()
        # States that are not loaded come first: they need this page, which has all style sheets.
        order = sorted(enumerate(shown.items()), key=lambda state: state[1][0] in first)
        for number, (name, site.html) in order:
            schemes = schemes_of(number, name in first)
            if language is ENGLISH and (loads_each or name in first):
                await page.goto(f"{ORIGIN}/e/abc", wait_until="domcontentloaded")
                found.moving += [name] if await page.evaluate(RUNNING) else []
            elif schemes:  # without a navigation, which takes half of the time
                await page.evaluate(REPLACE, site.html)
            await _run_axe(page, name, schemes, found)
        site.html = html(usual(OperatorRecord))
        await page.goto(f"{ORIGIN}/e/abc")
        moving = await page.evaluate(of_each(RUNNING), [*shown.items()])
        found.moving += [name for name, running in moving if running]
        found.too_wide["320 px"] = await _too_wide(page, shown)
        found.folds = await folds_of(page, site, html)
        site.html = html(usual(OperatorRecord))
        await page.goto(f"{ORIGIN}/e/abc")
        await _with_large_text(page, found, shown)
    assert site.complaints == []
    return found


async def _run_axe(page: Page, name: str, schemes: Sequence[Scheme], found: Figures) -> None:
    """Run axe on the current page: all rules in the first scheme, those of colors in the second."""
    for scheme in schemes:
        await page.emulate_media(color_scheme=scheme)
        rules = RULES if scheme == schemes[0] else OF_COLORS
        seen = await page.evaluate(RUN_AXE, dict(rules))
        if seen["undecided"]:
            await page.evaluate(WITHOUT_PADDING)
            again = await page.evaluate(RUN_AXE, CONTRAST)
            await page.evaluate("() => { document.adoptedStyleSheets = []; }")
            others = [one for one in seen["undecided"] if not one.startswith("color-contrast")]
            seen["violations"] += [*others, *again["violations"], *again["undecided"]]
            seen["lowest"] = min(seen["lowest"], again["lowest"])
        found.violations[scheme] += [f"{name}: {one}" for one in seen["violations"]]
        found.contrast[scheme] = min(found.contrast.get(scheme, 21), seen["lowest"])


async def _with_large_text(page: Page, found: Figures, pages: Mapping[str, str]) -> None:
    """Measure the pages on both screens in a browser whose text is twice as large."""
    session = await page.context.new_cdp_session(page)
    sizes = {"standard": TWICE, "fixed": TWICE * 13 // 16}
    await session.send("Page.setFontSizes", {"fontSizes": sizes})
    for width, height in SCREENS:
        await page.set_viewport_size({"width": width, "height": height})
        found.too_wide[f"200 % at {width} px"] = await _too_wide(page, pages)


async def _too_wide(page: Page, pages: Mapping[str, str]) -> list[str]:
    found = list[str]()
    for name, (excess, *cut) in await page.evaluate(of_each(TOO_WIDE), [*pages.items()]):
        found += [f"{name}: {one}" for one in ([f"{excess} px"] if excess > 0 else []) + cut]
    return found


async def folds_of(page: Page, site: Site, html: Callable[[View], str]) -> list[FoldRow]:
    """Measure the first screen of each start page."""
    found = list[FoldRow]()
    for name, view in ASKING.items():
        site.html = html(view)
        found.append(await fold_of(page, name, f"{ORIGIN}/e/abc"))
    return found


async def fold_of(page: Page, name: str, url: str) -> FoldRow:
    """Measure how far the first main button at `url` is above the edge (negative: below it)."""
    cells = list[int]()
    for width, height in SCREENS:
        await page.set_viewport_size({"width": width, "height": height})
        await page.goto(url)
        box = await page.locator(MAIN).first.bounding_box()
        assert box is not None, name
        cells.append(round(height - box["y"] - box["height"]))
    return FoldRow(name=name, cells=tuple(cells))
