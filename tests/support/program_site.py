"""An application with a program that asks its users, in this process and on any store.

Requests to providers go to a transport of the test.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from flows.oauth.provider import Provider
from tests.support.account_env import resolve
from tests.support.api_program import Program
from tests.support.asking_env import APPLICATION, COOKIE, by_cookie
from tests.support.clock import Clock
from tests.support.mcp_server import Person, service_in
from tests.support.service_env import plain_settings
from tests.support.serving import transport_to
from webapp.app import open_app
from webapp.http.client import Outbound
from webapp.identity.api_keys import KeyScope
from webapp.identity.users import Users
from webapp.service import Service
from webapp.stores import Store


@dataclass(slots=True, kw_only=True)
class ProgramSite:
    program: Program
    service: Service
    app: Any
    asked_as: object

    def person(self, user: str = "ann") -> Person:
        """Return a user of the application with a new browser."""
        browser = httpx.AsyncClient(transport=transport_to(self.app))
        browser.cookies.set(COOKIE, user)
        return Person(browser)

    async def proxied(self, account: str, url: str, **more: Any) -> httpx.Response:
        """Send a request to `url` with Ann's account."""
        where = {"user": "ann", "url": url}
        return await self.program.at(f"accounts/{account}/proxy", params=where, **more)

    async def accounts(self, user: str = "ann") -> list[dict[str, Any]]:
        found = (await self.program.at("accounts", params={"user": user})).json()
        listed: list[dict[str, Any]] = found["accounts"]
        return listed


@asynccontextmanager
async def program_site(
    network: httpx.AsyncBaseTransport,
    *,
    store: Store,
    providers: Mapping[str, Provider],
    credentials: Mapping[str, tuple[str, str]],
    clock: Clock | None = None,
) -> AsyncIterator[ProgramSite]:
    clock = clock or Clock()
    settings = plain_settings(providers=dict(providers), credentials=dict(credentials))
    async with (
        httpx.AsyncClient(transport=network) as out,
        open_app(
            settings,
            None,
            store=store,
            clock=clock,
            outbound=Outbound(out, allow_loopback=True, resolve=resolve),
            users=Users(application=APPLICATION, who=by_cookie),
            asked_as=(asked_as := object()),
        ) as app,
    ):
        service = service_in(app)
        key, _ = await service.identity.api_keys.new(
            program="shop",
            scopes=[KeyScope.ASK, KeyScope.TOKENS],
            owners=(),
            expires_at=clock() + timedelta(days=90),
        )
        about = {"authorization": f"Bearer {key}"}
        url = settings.url
        async with httpx.AsyncClient(
            base_url=url, headers=about, transport=transport_to(app)
        ) as client:
            yield ProgramSite(
                program=Program(client=client, key=key),
                service=service,
                app=app,
                asked_as=asked_as,
            )
