"""Measures of a page in a browser: its first screen."""

from dataclasses import dataclass

from playwright.async_api import Page

SCREENS = ((390, 664), (1280, 720))
MAIN = "main .button.primary, main .button.danger"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRow:
    """A page, and how many pixels its main button is above the lower edge of each screen."""

    name: str
    cells: tuple[int, ...]


async def fold_of(page: Page, name: str, url: str) -> FoldRow:
    """Measure the first main button of the page at `url`. A button below the edge is negative."""
    cells = list[int]()
    for width, height in SCREENS:
        await page.set_viewport_size({"width": width, "height": height})
        await page.goto(url)
        box = await page.locator(MAIN).first.bounding_box()
        assert box is not None, name
        cells.append(round(height - box["y"] - box["height"]))
    return FoldRow(name=name, cells=tuple(cells))
