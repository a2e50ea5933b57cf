"""`python -m tests.contact_sheet FOLDER`: take a picture of every state of every page.

The folder gets one picture of each state and screen, and `index.html`, which shows all of them with
the table of the first screens.
"""

import argparse
import asyncio
import re
import shutil
from collections.abc import Mapping
from html import escape
from pathlib import Path

from playwright.async_api import async_playwright

from tests.browser.chrome import ARGUMENTS
from tests.support.page_measures import BRAND, SCREENS, FoldRow, fold_of
from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_states import ASKING, page_states
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import View

LOOKS: Mapping[str, tuple[int, int, str]] = {
    "phone-light": (390, 664, "light"),
    "phone-dark": (390, 664, "dark"),
    "desktop-light": (1280, 720, "light"),
    "desktop-dark": (1280, 720, "dark"),
}
FIRST = "first screen of "
UNSTUCK = "document.querySelectorAll('.stay').forEach(one => one.classList.remove('stay'))"
STYLE = """body { font: 1rem/1.4 system-ui, sans-serif; margin: 2rem; }
section { display: flex; flex-wrap: wrap; gap: 1rem; align-items: start; }
img { max-width: 30rem; max-height: 60rem; border: 1px solid #bbb; }
td, th { padding: .25rem .75rem; text-align: start; border-top: 1px solid #bbb; }"""


def named(state: str) -> str:
    """Return the file name for a state's pictures, without the extension."""
    return re.sub(r"[^a-z0-9]+", "-", state.lower()).strip("-")


async def picture(folder: Path, states: Mapping[str, View], looks: tuple[str, ...]) -> None:
    """Write a picture of each state on each screen."""
    pages, site = Renderer(folders=[template_folder()]), Site(html="")
    branded = Renderer(folders=[template_folder()], brand=BRAND)
    chromium = shutil.which("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for look in looks:
            width, height, scheme = LOOKS[look]
            size = {"width": width, "height": height}
            options = {"color_scheme": scheme, "reduced_motion": "reduce", "viewport": size}
            async with visit(browser, site, **options) as page:
                for state, view in states.items():
                    is_first = state.startswith(FIRST)
                    site.html = (branded if is_first else pages).render(view)
                    await page.goto(f"{ORIGIN}/e/abc")
                    if not is_first:  # buttons that stay on the screen would cover the text
                        await page.evaluate(UNSTUCK)
                    await page.screenshot(
                        path=folder / f"{named(state)}.{look}.png", full_page=not is_first
                    )
        await browser.close()


async def folds() -> list[FoldRow]:
    """Measure the first screen of each start page."""
    pages, site = Renderer(folders=[template_folder()]), Site(html="")
    async with async_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        async with visit(browser, site) as page:
            found = list[FoldRow]()
            for name, view in ASKING.items():
                site.html = pages.render(view)
                found.append(await fold_of(page, name, f"{ORIGIN}/e/abc"))
        await browser.close()
    return found


def sheet(states: Mapping[str, View], looks: tuple[str, ...], rows: list[FoldRow]) -> str:
    """Return the page with all pictures."""
    heads = "".join(f"<th>{width}x{height}</th>" for width, height in SCREENS)
    lines = "".join(
        f"<tr><th>{escape(row.name)}</th>{''.join(f'<td>{cell}</td>' for cell in row.cells)}</tr>"
        for row in rows
    )
    shown = "".join(
        f"<h2>{escape(state)}</h2><section>"
        + "".join(
            f'<img loading="lazy" src="{named(state)}.{look}.png" alt="{escape(state)}, {look}">'
            for look in looks
        )
        + "</section>"
        for state in states
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Contact sheet</title>'
        f"<style>{STYLE}</style><h1>{len(states)} page states</h1>"
        f"<h2>Distance of the main button from the lower edge of the first screen, in pixels</h2>"
        f"<table><tr><th>page</th>{heads}</tr>{lines}</table>{shown}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.contact_sheet", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a part of the names of the states")
    parser.add_argument("--look", action="append", choices=LOOKS, help="default: all")
    given = parser.parse_args()
    every = {**page_states(), **{f"{FIRST}{name}": view for name, view in ASKING.items()}}
    states = {name: view for name, view in every.items() if given.only.lower() in name.lower()}
    looks = tuple(given.look or LOOKS)
    given.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(picture(given.folder, states, looks))
    rows = asyncio.run(folds())
    (given.folder / "index.html").write_text(sheet(states, looks, rows), "utf-8")


if __name__ == "__main__":
    main()
