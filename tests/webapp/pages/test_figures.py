"""The figures in docs/how-to/pages.md: every page keeps the limits, and the table is up to date."""

import pytest
from playwright.async_api import Browser

from tests.page_figures import (
    BEGIN,
    BYTES_AT_MOST,
    END,
    FILE,
    LANGUAGES,
    REQUESTS_AT_MOST,
    WEIGHED,
    heads_of,
    parts_of,
    row_of,
    states_line,
    weights,
)
from tests.support.page_measures import SCHEMES, TOO_LOW, figures_of
from tests.support.page_states import ASKING


def table() -> str:
    """Return the figures in docs/how-to/pages.md."""
    return FILE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.asyncio(loop_scope="session")
async def test_every_page_is_accessible_readable_and_fits_each_screen(
    name: str, browser: Browser
) -> None:
    # finding: XP15
    found = await figures_of(browser, LANGUAGES[name])
    assert found.violations == {scheme: [] for scheme in SCHEMES}
    assert min(found.contrast.values()) >= TOO_LOW
    assert {where: pages for where, pages in found.too_wide.items() if pages} == {}
    assert [row for row in found.folds if min(row.cells) < 0] == []
    assert found.moving == []
    # Pixels depend on the fonts of a machine; the other cells do not.
    assert heads_of(found) in table()
    assert [cell for cell in row_of(name, found).split(" | ") if "px" not in cell] == [
        cell
        for line in table().splitlines()
        if line.startswith(f"| {name} |")
        for cell in line.split(" | ")
        if "px" not in cell
    ]


@pytest.mark.parametrize("language", WEIGHED)
@pytest.mark.parametrize("name", ASKING)
def test_start_page_with_logo_is_small_and_makes_few_requests(name: str, language: str) -> None:
    parts = parts_of(ASKING[name], LANGUAGES[language])
    assert sum(parts.values()) <= BYTES_AT_MOST, parts
    assert len(parts) <= REQUESTS_AT_MOST, parts


def test_documentation_has_the_current_figures() -> None:
    assert states_line() in table(), "run: python -m tests.page_figures"
    assert weights() in table(), "run: python -m tests.page_figures"
    assert [name for name in LANGUAGES if f"\n| {name} |" not in table()] == []
