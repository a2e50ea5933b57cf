"""A fixture with one Chromium for all tests of a run."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.chrome import ARGUMENTS


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        await started.close()
