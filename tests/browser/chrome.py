"""Chromium as people use it, with every error and warning recorded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
)
Scheme: TypeAlias = Literal["light", "dark"]
PHONE, DESKTOP = (390, 844), (1280, 800)


@dataclass(kw_only=True)  # no slots: Playwright sets an attribute on the bound method's object
class Visitor:
    """A browser context with its own cookies."""

    context: BrowserContext
    complaints: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)  # of all requests

    @property
    def origins(self) -> set[str]:
        """The origins of all requests."""
        return {f"{parts.scheme}://{parts.netloc}" for parts in map(urlsplit, self.urls)}

    async def page(self) -> Page:
        """Open a page whose errors are recorded, including blocked and failed loads."""
        page = await self.context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("request", self._on_request)
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        # Chromium also logs the error status of the page itself. Count only resources that failed.
        is_status = "the server responded with a status of" in message.text
        is_page = message.page is not None and message.location["url"] == message.page.url
        if message.type in ("error", "warning") and not (is_status and is_page):
            self.complaints.append(message.text)

    def _on_error(self, error: Exception) -> None:
        self.complaints.append(str(error))

    def _on_request(self, request: Request) -> None:
        self.urls.append(request.url)


@asynccontextmanager
async def visitor(
    browser: Browser,
    *,
    size: tuple[int, int] = DESKTOP,
    scheme: Scheme = "light",
    **options: Any,
) -> AsyncIterator[Visitor]:
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        reduced_motion="reduce",  # without a graphics card an animated bar uses a complete core
        **options,
    )
    context.set_default_timeout(300_000)
    try:
        yield Visitor(context=context)
    finally:
        await context.close()


async def press(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name).click()


async def reads(page: Page, heading: str) -> None:
    await expect(page.get_by_role("heading", level=1)).to_contain_text(heading)


def is_untroubled(*visitors: Visitor) -> bool:
    """Return True if no policy was violated, nothing failed to load and no other host was used."""
    complaints = [complaint for one in visitors for complaint in one.complaints]
    hosts = {urlsplit(origin).hostname for one in visitors for origin in one.origins}
    return not complaints and hosts <= {"127.0.0.1", "localhost"}
