"""A service with a fake OAuth provider, and people who connect their accounts to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from flows import elicit
from flows.elicitation.states import Elicitation, Status
from flows.errors import NotAccepted
from flows.oauth.account import Account
from flows.oauth.connection import Connection
from flows.oauth.provider import Provider
from flows.providers import github
from flows.question import asking
from tests.support.clock import Clock
from tests.support.service_env import Holding, call_of, plain_settings
from webapp.calls.verbs import Verbs
from webapp.http.client import Outbound
from webapp.routes.redirect import depart, returned
from webapp.service import Service, ServiceOptions, open_service
from webapp.stores import Record, Store
from webapp.stores.sqlite import MemoryStore
from webapp.telemetry.work import NONE, Telemetry

HUB = github.at("http://127.0.0.1:8766")
CREDENTIALS = {"github": ("our-id", "our-secret-that-is-long")}
OCTOCAT = {"id": 583231, "login": "octocat", "name": "Octo Cat"}
Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Network(httpx.AsyncBaseTransport):
    """A transport that simulates a provider: it issues tokens for `scopes` and `person`."""

    def __init__(self) -> None:
        self.scopes = "repo"
        self.person: dict[str, Any] = OCTOCAT
        self.life_seconds: int | None = 3600
        self.has_refresh_token = False
        self.exchanges = 0
        self.token: Answer = self._token

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/access_token"):
            self.exchanges += 1
            return await self.token(request)
        return httpx.Response(200, json=self.person)

    async def _token(self, request: httpx.Request) -> httpx.Response:
        reply: dict[str, Any] = {
            "access_token": f"key-{self.exchanges}-of-{self.person['login']}",
            "token_type": "bearer",
            "scope": self.scopes,
        }
        if self.life_seconds is not None:
            reply["expires_in"] = self.life_seconds
        if self.has_refresh_token:
            reply["refresh_token"] = f"renew-{self.exchanges}"
        return httpx.Response(200, json=reply)


class Yielding(MemoryStore):
    """A store that yields to other tasks before and after each write, like a store on disk."""

    async def write(self, *records: Record) -> tuple[Record, ...]:
        await asyncio.sleep(0)
        written = await super().write(*records)
        await asyncio.sleep(0)
        return written


async def resolve(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@asynccontextmanager
async def serving_accounts(
    network: Network,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    providers: dict[str, Provider] | None = None,
    credentials: dict[str, tuple[str, str]] | None = None,
    telemetry: Telemetry = NONE,
    **more: Any,
) -> AsyncIterator[Service]:
    async with (
        httpx.AsyncClient(transport=network) as client,
        open_service(
            plain_settings(
                providers={"github": HUB} if providers is None else providers,
                credentials=CREDENTIALS if credentials is None else credentials,
                **more,
            ),
            ServiceOptions(
                clock=clock or Clock(),
                outbound=Outbound(client, allow_loopback=True, resolve=resolve),
                telemetry=telemetry,
            ),
            store=store or MemoryStore(),
        ) as service,
    ):
        yield service


class Asking:
    """A tool call that asks for an account."""

    def __init__(
        self,
        service: Service,
        *scopes: str,
        provider: Provider | str = github,
        account: str | None = None,
        reason: str | None = None,
        again: bool = False,
        tenant: str | None = None,
        **about: Any,
    ) -> None:
        self.presenter = Holding()
        self.call = call_of(service, presenter=self.presenter, **about)
        self.question = elicit.oauth(
            provider, scopes=scopes, account=account, reason=reason, again=again, tenant=tenant
        )
        self.task = asyncio.create_task(self._ask())

    async def _ask(self) -> Account:
        self.call.begin()
        try:
            with asking(Verbs(self.call)):
                account = await self.question
        except NotAccepted:
            await self._ended("no")
            raise
        await self._ended("yes")
        return account

    async def _ended(self, result: str) -> None:
        await self.call.finish(lambda: json.dumps(result))
        await self.call.delivered()

    async def elicitation(self) -> Elicitation:
        while self.presenter.shown is None and not self.task.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert self.presenter.shown is not None, self.task
        return self.presenter.shown.elicitation

    async def account(self) -> Account:
        return await self.task

    @property
    def has_asked(self) -> bool:
        return self.presenter.shown is not None


async def opened(service: Service, asked: Asking) -> tuple[Elicitation, str]:
    """Press Continue. Return the elicitation and the OAuth state in the provider's URL."""
    elicitation = await asked.elicitation()
    url = await depart(service, elicitation, cookie="a cookie")
    return elicitation, parse_qs(urlsplit(url).query)["state"][0]


async def come_home(service: Service, state: str) -> None:
    """Simulate the browser's return from the provider, with an authorization code."""
    back = await returned(service, [state], now=service.clock())
    await service.kinds.accounts.code_exchange.connect(
        back.elicitation, state=back.state, code="a-code"
    )


async def connect(service: Service, *scopes: str, **about: Any) -> Account:
    asked = Asking(service, *scopes, **about)
    _, state = await opened(service, asked)
    await come_home(service, state)
    return await asked.account()


async def status_of(service: Service, elicitation: Elicitation) -> Status:
    found = await service.elicitations.get(elicitation.id)
    assert found is not None
    return found.status


async def stored(service: Service) -> list[Connection]:
    rows = service.elicitations
    return [await rows.rows.open(each, Connection) for each in await rows.store.list("account")]


async def give_up(*askings: Asking) -> None:
    for each in askings:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in askings), return_exceptions=True)


async def press_allow(service: Service, elicitation: Elicitation) -> None:
    """Press Allow on the page that offers a connected account."""
    (offered, *_) = await service.kinds.accounts.offers(elicitation)
    account = offered.id.removeprefix(offered.owner)
    await service.kinds.accounts.share(elicitation, account=account)
