"""Chromium as a person has it, with everything noted that it complains about."""

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


@dataclass(kw_only=True)  # without slots: Playwright writes on the object whose method it is given
class Visitor:
    """One browser context: its cookies are nobody else's."""

    context: BrowserContext
    complaints: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)  # of everything that was asked for

    @property
    def origins(self) -> set[str]:
        """Whom its pages asked for anything."""
        return {f"{parts.scheme}://{parts.netloc}" for parts in map(urlsplit, self.urls)}

    async def page(self) -> Page:
        """A page whose every complaint is noted, refused policies and failed loads included."""
        page = await self.context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("request", self._on_request)
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        # Of a page that is no 200 Chromium says so; what the page loads must not fail.
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
        reduced_motion="reduce",  # without a graphics card a moving bar takes a whole core
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
    """Nothing broke a policy or failed to load, and no other machine was asked for anything."""
    complaints = [complaint for one in visitors for complaint in one.complaints]
    hosts = {urlsplit(origin).hostname for one in visitors for origin in one.origins}
    return not complaints and hosts <= {"127.0.0.1", "localhost"}
