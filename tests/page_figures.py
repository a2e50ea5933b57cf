"""`python -m tests.page_figures`: measure every page, and write docs/how-to/pages.md.

tests/webapp/pages/test_figures.py measures the same and fails if a page breaks a limit. The second
table, the weight of the start pages, needs no browser, so a quick test checks that it is current.
"""

import asyncio
import gzip
import shutil
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright

from tests.browser.chrome import ARGUMENTS
from tests.support.markup import Page
from tests.support.page_measures import (
    SCHEMES,
    SCREENS,
    Figures,
    axe_version,
    every_state,
    figures_of,
)
from tests.support.page_states import ASKING
from tests.support.pictures import png
from tests.support.pseudo_languages import PSEUDO
from webapp.languages import CATALOGUES, ENGLISH, Language, language_in
from webapp.pages.renderer import Renderer, our_files, template_folder, without_hash
from webapp.pages.views import View
from webapp.settings.brand import IMAGE_BYTES_AT_MOST, Brand, accent, image_of

FILE = Path(__file__).parents[1] / "docs" / "how-to" / "pages.md"
BEGIN, END = (
    "<!-- Written by `python -m tests.page_figures`. -->\n",
    "<!-- End of the figures. -->\n",
)
LANGUAGES: Mapping[str, Language] = {
    "English": ENGLISH,
    "German": language_in(CATALOGUES / "de.po"),
    "pseudo-locale, longer": PSEUDO["accented"],
    "pseudo-locale, right to left": PSEUDO["right to left"],
}
WEIGHED = ("English", "German")
BYTES_AT_MOST, REQUESTS_AT_MOST = 25_000, 5
# A brand with everything that pages can show, and a link as long as a real server's.
BRAND = Brand(
    name="Acme Research",
    logo=image_of(png().ljust(IMAGE_BYTES_AT_MOST, b"\0")),
    accent=accent("#7a1fa2"),
    legal_name="Acme Research GmbH",
    contact="help@acme.example",
    privacy="https://acme.example/privacy",
    terms="https://acme.example/terms",
).of("my tools")
LINK = f"https://tools.example.com/e/{'aB3-_xY9' * 23}abc"


def parts_of(view: View, language: Language = ENGLISH) -> dict[str, int]:
    """Return the size of the page with `BRAND` and of each file that it loads, in bytes.

    Only static text files are compressed. A page is not compressed, because its compressed size
    would reveal its CSRF token.
    """
    renderer = Renderer(folders=[template_folder()], brand=BRAND)
    changes: dict[str, Any] = {"phone_url": LINK} if hasattr(view, "phone_url") else {}
    html = renderer.render(replace(view, **changes), language)
    parts, files = {"page": len(html.encode())}, {**renderer.files, **our_files()}
    page = Page(html)
    for address in (
        *(link["href"] for link in page.named("link")),
        *(one["src"] for tag in ("img", "script") for one in page.named(tag)),
    ):
        assert address is not None
        content, media_type = files[without_hash(address.removeprefix("/static/"))]
        is_image = media_type.startswith("image/") and media_type != "image/svg+xml"
        parts[address] = len(content if is_image else gzip.compress(content, mtime=0))
    return parts


def weights() -> str:
    """Return the table of the start pages. Their sizes are rounded up to whole kB."""
    lines = [f"| {name} | {_cells(view)} |" for name, view in ASKING.items()]
    heads = " | ".join(f"{name}, kB" for name in WEIGHED)
    return f"| start page | {heads} | requests |\n|---|{'---|' * (len(WEIGHED) + 1)}\n" + "".join(
        f"{line}\n" for line in lines
    )


def _cells(view: View) -> str:
    parts = [parts_of(view, LANGUAGES[name]) for name in WEIGHED]
    return (
        " | ".join(str(ceil(sum(each.values()) / 1000)) for each in parts) + f" | {len(parts[0])}"
    )


def row_of(name: str, figures: Figures) -> str:
    """Return a language's row in the table of the figures that need a browser."""
    cells = [
        *(str(len(figures.violations[scheme])) for scheme in SCHEMES),
        *(f"{figures.contrast[scheme]:.2f}" for scheme in SCHEMES),
        *(f"{pixels} px" for pixels in figures.fold),
        *(str(len(pages)) for pages in figures.too_wide.values()),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def heads_of(figures: Figures) -> str:
    heads = [
        "language",
        *(f"axe violations, {scheme}" for scheme in SCHEMES),
        *(f"lowest contrast, {scheme}" for scheme in SCHEMES),
        *(f"free pixels below the main button, {width} x {height}" for width, height in SCREENS),
        *(f"too wide, {where}" for where in figures.too_wide),
    ]
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def states_line() -> str:
    return f"Each row covers all {len(every_state())} page states, with axe-core {axe_version()}"


async def measured() -> dict[str, Figures]:
    """Measure every page in every language."""
    async with async_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        found = {name: await figures_of(browser, one) for name, one in LANGUAGES.items()}
        await browser.close()
    return found


def main() -> None:
    before, _, rest = FILE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    figures = asyncio.run(measured())
    table = "\n".join(row_of(name, one) for name, one in figures.items())
    first = f"{states_line()}:\n\n{heads_of(figures['English'])}\n{table}\n"
    FILE.write_text(f"{before}{BEGIN}\n{first}\n{weights()}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
