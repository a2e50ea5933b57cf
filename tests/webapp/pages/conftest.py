"""Samples of each page: with usual values, and with the worst values that others can supply."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.support.markup import Page
from tests.support.page_states import page_states
from tests.support.page_views import HOSTILE, Rendered, Shown, hostile_views
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import View


def _rendered(views: dict[str, View], pages: Renderer) -> Rendered:
    rendered: dict[str, tuple[View, Page]] = {}
    for name, view in views.items():
        try:
            rendered[name] = view, Page(pages.render(view))
        except Exception as error:
            error.add_note(f"This is the page {name!r}.")
            raise
    return rendered


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with `usual_view` once for each page. Tests without a browser loop over pages."""
    if "usual_view" in metafunc.fixturenames:
        views = page_states()
        metafunc.parametrize("usual_view", list(views.values()), ids=list(views))


@pytest.fixture(scope="session")
def pages() -> Renderer:
    return Renderer(folders=[template_folder()])


@pytest.fixture(scope="session")
def shown(pages: Renderer) -> Shown:
    return lambda view: Page(pages.render(view))


@pytest.fixture(scope="session")
def usual_pages(pages: Renderer) -> Rendered:
    return _rendered(page_states(), pages)


@pytest.fixture(scope="session")
def hostile_pages(pages: Renderer) -> Rendered:
    views = {key: view for name in HOSTILE for key, view in hostile_views(name).items()}
    return _rendered(views, pages)


@pytest.fixture(scope="session")
def all_pages(usual_pages: Rendered, hostile_pages: Rendered) -> Rendered:
    return {**usual_pages, **hostile_pages}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        await started.close()
