"""A person's steps in a real browser: open a link, connect an account, return."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Browser, Page, expect

from tests.browser.chrome import DESKTOP, Scheme, Visitor, press, reads, visitor
from tests.browser.env import ServerEnv, open_env
from tests.browser.shop_env import Calling


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The client's revision (its `mode`) and the person's browser."""

    mode: str
    size: tuple[int, int]
    scheme: Scheme


NEW = Way(mode="2026-07-28", size=DESKTOP, scheme="light")
REPOSITORIES = "octocat has 3 repositories: octocat/hello-sandbox, octocat/secret-plans, "


@asynccontextmanager
async def meeting(
    browser: Browser, way: Way = NEW, **options: Any
) -> AsyncIterator[tuple[ServerEnv, Visitor]]:
    async with (
        open_env() as env,
        visitor(browser, size=way.size, scheme=way.scheme, **options) as ann,
    ):
        yield env, ann
        assert ann.complaints == []
        assert ann.origins <= {env.url, env.sandbox_url}


async def opened(call: Calling, ann: Visitor) -> Page:
    page = await ann.page()
    await page.goto(await call.link())
    return page


async def at_sandbox(call: Calling, ann: Visitor) -> Page:
    """Open the link and press Continue."""
    page = await opened(call, ann)
    await press(page, "Continue")
    await expect(page.get_by_text("Sandbox: nothing here is real.")).to_be_visible()
    return page


async def approve(page: Page) -> None:
    await press(page, "Approve")
    await reads(page, "GitHub is connected")


async def connect(env: ServerEnv, ann: Visitor, *, mode: str) -> None:
    async with env.calling("list_my_repositories", mode=mode) as call:
        page = await at_sandbox(call, ann)
        await approve(page)
        assert (await call.text()).startswith(REPOSITORIES)
