"""Pages that a test serves to a browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, Route

from webapp.pages.renderer import our_files, without_hash

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'{targets}; frame-ancestors 'none'; base-uri 'none'"
)
ORIGIN = "http://127.0.0.1:8765"


@dataclass(slots=True, kw_only=True)
class Site:
    """A site that answers a browser as the server would, and records its requests."""

    html: str
    form_targets: str = " https://example.org"
    events: str = ": nothing yet\n\n"
    live_status: int = 200
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def answer(self, route: Route) -> None:
        request, path = route.request, urlsplit(route.request.url).path
        assert request.url.startswith(ORIGIN), request.url
        if path.startswith("/static/"):
            content, media_type = our_files()[without_hash(path.removeprefix("/static/"))]
            await route.fulfill(body=content, content_type=media_type)
            return
        self.requests.append((request.method, path, request.post_data))
        if path.endswith("/live"):
            await route.fulfill(
                status=self.live_status, body=self.events, content_type="text/event-stream"
            )
        elif request.method == "POST":
            await route.fulfill(status=204)
        else:
            await route.fulfill(
                body=self.html,
                content_type="text/html; charset=utf-8",
                headers={"content-security-policy": POLICY.format(targets=self.form_targets)},
            )

    async def watch(self, page: Page) -> None:
        """Answer the page's requests, and record its console messages and errors."""
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

        async def answer(route: Route) -> None:
            # Playwright sets an attribute on the bound method's object, and this class has slots.
            await self.answer(route)

        await page.route("**/*", answer)


@asynccontextmanager
async def visit(browser: Browser, site: Site, **options: Any) -> AsyncIterator[Page]:
    context = await browser.new_context(**options)
    page = await context.new_page()
    await site.watch(page)
    yield page
    await context.close()
