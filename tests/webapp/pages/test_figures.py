"""The figures in docs/how-to/pages.md: every page keeps the limits, and the table is up to date.

Axe takes most of the time, so by default it checks a selection: each state of each English page in
both color schemes, and the first state of each page in one other language and one color scheme.
With `--whole`, axe checks each state in each language and color scheme, as
`python -m tests.page_figures` does.
"""

from collections.abc import Sequence
from functools import partial

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
from tests.support.page_measures import SCHEMES, TOO_LOW, Scheme, both_schemes, figures_of
from tests.support.page_states import ASKING


def table() -> str:
    """Return the figures in docs/how-to/pages.md."""
    return FILE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


def stable_cells(row: str, varying: Sequence[str]) -> list[str]:
    return [cell for cell in row.split(" | ") if not any(word in cell for word in varying)]


def diagonal(language: str, number: int, is_first: bool, /) -> Sequence[Scheme]:
    """Return the color schemes in which axe checks the state with this number in this language."""
    if language == "English":
        return SCHEMES
    if not is_first:
        return ()
    _, *others = LANGUAGES
    turn, place = divmod(number, len(others))
    return (SCHEMES[turn % len(SCHEMES)],) if others[place] == language else ()


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.asyncio(loop_scope="session")
async def test_every_page_is_accessible_readable_and_fits_each_screen(
    name: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    # finding: XP15
    is_whole = request.config.getoption("--whole")
    schemes_of = both_schemes if is_whole else partial(diagonal, name)
    found = await figures_of(browser, LANGUAGES[name], schemes_of, loads_each=is_whole)
    assert found.violations == {scheme: [] for scheme in SCHEMES}
    assert min(found.contrast.values()) >= TOO_LOW
    assert {where: pages for where, pages in found.too_wide.items() if pages} == {}
    assert [row for row in found.folds if min(row.cells) < 0] == []
    assert found.moving == []
    assert heads_of(found) in table()
    (row,) = (line for line in table().splitlines() if line.startswith(f"| {name} |"))
    # Sizes in pixels depend on the fonts of the machine. The lowest contrast depends on the pages
    # that axe checks.
    varying = ("px",) if is_whole or name == "English" else ("px", ".")
    assert stable_cells(row_of(name, found), varying) == stable_cells(row, varying)


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
