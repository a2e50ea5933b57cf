"""The web application examples, each served with its own sign-in and used by browsers."""

import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import Person, eventually, new_browser
from tests.support.serving import serving_at
from tests.support.settings import SECRET
from webapp.http.exchange import ASGIApp

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.parametrize("name", ["connect_in_fastapi", "connect_in_litestar"])


class Customer(Guest):
    """A person who uses the application's own pages and the pages that it links to."""

    def __init__(self, browser: httpx.AsyncClient, shop: ModuleType, url: str) -> None:
        super().__init__(Person(browser))
        self._shop = shop
        self._url = url

    async def sign_in(self, user: str) -> None:
        await self._post("/login", user=user)

    async def ask_for_report(self) -> None:
        await self._post("/report")

    async def next_link(self, user: str, *, after: str | None = None) -> str:
        """Return the link on the person's page, once the link has changed."""
        await eventually(lambda: self._shop.links.get(user, after) != after)
        text = (await self.person.browser.get(self._url)).text
        return text.split('href="')[1].split('"')[0]

    async def page_of(self, user: str) -> str:
        await eventually(lambda: user in self._shop.results)
        return (await self.person.browser.get(self._url)).text

    async def _post(self, path: str, **fields: str) -> None:
        sent = await self.person.browser.post(urljoin(self._url, path), data=fields)
        assert sent.status_code == 303, sent.text


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def _served(name: str, patch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ModuleType, str]]:
    made: list[ModuleType] = []
    patch.setenv("ELICIT_STORE", "memory:")
    patch.setenv("ELICIT_SECRET", SECRET)

    def make(url: str) -> ASGIApp:
        patch.setenv("ELICIT_URL", url)
        made.append(_loaded(name))
        app: ASGIApp = made[0].app
        return app

    async with serving_at(make) as url:
        yield made[0], url
    del sys.modules[name]


async def test_user_connects_pays_types_key_and_gets_report(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _served(name, monkeypatch) as (shop, url), new_browser() as browser:
        customer = Customer(browser, shop, url)
        await customer.sign_in("ann")
        await customer.ask_for_report()
        first = await customer.next_link("ann")
        await customer.connect(first)
        second = await customer.next_link("ann", after=first)
        await customer.pay(second)
        await customer.type(await customer.next_link("ann", after=second))
        assert "9.00 EUR was paid, and the key has 30 characters." in await customer.page_of("ann")


async def test_other_user_cannot_open_link_and_sees_sign_in(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        _served(name, monkeypatch) as (shop, url),
        new_browser() as one,
        new_browser() as two,
    ):
        ann, bob = Customer(one, shop, url), Customer(two, shop, url)
        await ann.sign_in("ann")
        await ann.ask_for_report()
        link = await ann.next_link("ann")
        assert 'href="/login"' in (await bob.person.visit(link)).text
        await bob.sign_in("bob")
        page = await bob.person.visit(link)
        assert (page.status, page.heading) == (403, "This link belongs to someone else")
        await ann.decline(link)
        assert "The person declined" in await ann.page_of("ann")
