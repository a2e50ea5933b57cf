"""A served application, the sandbox as its OAuth provider, and tools that wait for accounts.

A gate in front of the sandbox counts the token exchanges and can answer instead of the sandbox.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from mcp.server.mcpserver import MCPServer

from flows import elicit
from flows.crypto.tokens import Purpose
from flows.elicitation.states import Elicitation
from flows.errors import ElicitError
from flows.oauth.account import Account
from flows.oauth.connection import Connection
from flows.oauth.provider import Provider
from flows.providers import github
from flows.question import asking
from tests.support.clock import Clock
from tests.support.mcp_server import (
    RING,
    UID,
    Page,
    Person,
    eventually,
    new_browser,
    service_in,
    soon,
)
from tests.support.sandbox import Form, nobody_listens
from tests.support.service_env import Holding, call_of
from tests.support.serving import bound, serving, serving_at
from tests.support.settings import AT_ONCE
from webapp.app import open_app
from webapp.calls.call import Call
from webapp.calls.verbs import Verbs
from webapp.http.client import Outbound
from webapp.http.exchange import ASGIApp, Receive, Scope, Send
from webapp.limits import CallLimits
from webapp.sandbox import Sandbox, new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.sandbox.checkout.deliveries import Deliver
from webapp.service import Service
from webapp.settings.settings import Settings
from webapp.stores import Store
from webapp.stores.sqlite import MemoryStore

TOKEN_PATHS = ("/github/login/oauth/access_token", "/oidc/token")


class Gate:
    """A wrapper of the sandbox that counts token exchanges and can answer them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.exchanges = 0
        # answers to the next exchanges, instead of the sandbox's
        self.answers: deque[ASGIApp] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] in TOKEN_PATHS:
            self.exchanges += 1
            if self.answers:
                app = self.answers.popleft()
        await app(scope, receive, send)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A tool call that awaits an account."""

    presenter: Holding
    task: asyncio.Task[Account]

    async def link(self) -> str:
        await eventually(lambda: self.presenter.shown is not None or self.task.done())
        assert self.presenter.shown is not None, self.task
        return self.presenter.shown.url

    async def account(self) -> Account:
        return cast("Account", await soon(self.task))

    @property
    def has_asked(self) -> bool:
        return self.presenter.shown is not None


@dataclass(slots=True, kw_only=True)
class OAuthEnv:
    """A process of the application, and the sandbox."""

    url: str
    service: Service
    clock: Clock
    gate: Gate
    sandbox: Sandbox
    settings: Settings
    exit_stack: AsyncExitStack
    tasks: list[asyncio.Task[Account]] = field(default_factory=list)

    async def person(self, **headers: str) -> Person:
        """Return a person with a new browser."""
        browser = await self.exit_stack.enter_async_context(new_browser())
        browser.headers.update(headers)
        return Person(browser)

    def ask(
        self,
        *scopes: str,
        tool: str = "list",
        server: str = "shop",
        arguments: object = None,
        owner: str | None = None,
        provider: Provider | str = github,
        account: str | None = None,
        reason: str | None = None,
        client: str = "c",
        title: str | None = None,
        client_title: str | None = None,
    ) -> Asking:
        """Call a tool that awaits an account."""
        presenter = Holding()
        call = call_of(
            self.service,
            presenter=presenter,
            owner=owner or self.service.identity.local_owner,
            server=server,
            tool=tool,
            arguments=arguments,
            client=client,
            title=title,
            client_title=client_title,
        )

        async def body() -> Account:
            call.begin()
            try:
                with asking(Verbs(call)):
                    connected = await elicit.oauth(
                        provider, scopes=scopes, account=account, reason=reason
                    )
            except ElicitError:
                await self._ended(call, "no")
                raise
            except BaseException:
                await call.finish()
                raise
            await self._ended(call, "yes")
            return connected

        task = asyncio.create_task(body())
        self.tasks.append(task)
        return Asking(presenter=presenter, task=task)

    async def connect(self, *scopes: str, person: Person | None = None, **about: Any) -> Account:
        """Connect an account, with a person who accepts everything."""
        asked = self.ask(*scopes, **about)
        person = person or await self.person()
        at_provider = await person.go_on(await asked.link())
        await person.visit(await approve(person, at_provider))
        return await asked.account()

    async def plan(self, fault: str) -> None:
        """Set the next failure of the sandbox."""
        await self._control({"next": fault})

    async def release(self) -> None:
        """Release the replies that the sandbox holds back."""
        await self._control({"release": True})

    async def row(self, link: str) -> Elicitation:
        token = link.rsplit("/", 1)[1]
        found = await self.service.elicitations.get(id_in(self.service, token))
        assert found is not None
        return found

    async def connections(self) -> list[Connection]:
        service = self.service.elicitations
        return [
            await service.rows.open(record, Connection)
            for record in await service.store.list("account")
        ]

    async def aclose(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _ended(self, call: Call, result: str) -> None:
        await call.finish(lambda: json.dumps(result))
        await call.delivered()

    async def _control(self, wish: dict[str, Any]) -> None:
        bearer = {"authorization": f"Bearer {self.sandbox.client_secret}"}
        async with new_browser() as browser:
            done = await browser.post(f"{self.sandbox.url}/control", json=wish, headers=bearer)
        assert done.status_code == 200, done.text


@asynccontextmanager
async def oauth_env(
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    server: Any = None,
    providers: Sequence[Provider] = (),
    played: bool = True,
    limits: CallLimits | None = None,
    change: Callable[[Settings, Sandbox], Settings] = lambda settings, _: settings,
) -> AsyncIterator[OAuthEnv]:
    """Run the application on loopback with the sandbox.

    If `played` is False, the sandbox does not simulate GitHub.
    """
    clock = clock or Clock()
    async with (
        ground(clock) as on,
        process(
            change(with_providers(on.settings, providers, on.sandbox), on.sandbox),
            store=store or MemoryStore(),
            clock=clock,
            server=server,
            gate=on.gate,
            sandbox=on.sandbox,
            played=played,
            port=on.port,
            limits=limits,
        ) as here,
    ):
        yield here


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A port for an application process, and the sandbox of that process."""

    settings: Settings
    sandbox: Sandbox
    gate: Gate
    port: int


@asynccontextmanager
async def ground(clock: Clock, *, deliver: Deliver = nobody_listens) -> AsyncIterator[Ground]:
    with bound("127.0.0.1") as place:
        port: int = place.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        made: list[tuple[Sandbox, Gate]] = []

        def make(address: str) -> ASGIApp:
            sandbox = new_sandbox(url=address, serves=url)
            app = SandboxApp(sandbox, clock=clock, deliver=deliver)
            made.append((sandbox, Gate(cast("Any", app))))
            return made[0][1]

        async with serving_at(make):
            ((sandbox, gate),) = made
            settings = Settings(url=url, ring=RING, store="memory:", uid=UID, policies=AT_ONCE)
            yield Ground(settings=settings, sandbox=sandbox, gate=gate, port=port)


@asynccontextmanager
async def process(
    settings: Settings,
    *,
    store: Store,
    clock: Clock,
    gate: Gate,
    sandbox: Sandbox,
    server: Any = None,
    played: bool = True,
    port: int = 0,
    limits: CallLimits | None = None,
    outbound: Outbound | None = None,
) -> AsyncIterator[OAuthEnv]:
    """Run one process of the application.

    If its URL has another port than `port`, requests need a Host header.
    """
    async with (
        open_app(
            settings,
            server or MCPServer("shop"),
            store=store,
            clock=clock,
            sandbox=sandbox if played else None,
            limits=limits,
            outbound=outbound,
        ) as app,
        serving(app, port=port) as url,
        AsyncExitStack() as exit_stack,
    ):
        here = OAuthEnv(
            url=url,
            service=service_in(app),
            clock=clock,
            gate=gate,
            sandbox=sandbox,
            settings=settings,
            exit_stack=exit_stack,
        )
        try:
            yield here
        finally:
            await here.aclose()


def with_providers(settings: Settings, providers: Sequence[Provider], sandbox: Sandbox) -> Settings:
    """Return settings with these declared providers, registered with the sandbox's client."""
    client_credentials = (sandbox.client_id, sandbox.client_secret)
    return replace(
        settings,
        providers={**settings.providers, **{each.name: each for each in providers}},
        credentials={
            **settings.credentials,
            **{each.name: client_credentials for each in providers},
        },
    )


async def decide(person: Person, at_provider: str, decision: str, /, **changes: str) -> str:
    """Press a button of the sandbox's page, and return the address of the redirect."""
    page = await person.browser.get(at_provider)
    assert page.status_code == 200, page.text
    form = Form(page.text)
    action = str(page.url.join(form.action))
    data = {**form.fields, "decision": decision, **changes}
    location = (await person.browser.post(action, data=data)).headers["location"]
    assert isinstance(location, str)
    return location


async def decided(
    here: OAuthEnv, *scopes: str, decision: str = "approve", **about: Any
) -> tuple[Asking, Person, str, str]:
    """Call a tool and decide at the provider. Return call, person, link and callback URL."""
    asked, person = here.ask(*scopes, **about), await here.person()
    link = await asked.link()
    return asked, person, link, await decide(person, await person.go_on(link), decision)


async def approve(person: Person, at_provider: str, /, **changes: str) -> str:
    return await decide(person, at_provider, "approve", **changes)


def changed(callback: str, **changes: str | None) -> str:
    """Return the address with changed parameters. None removes a parameter."""
    parts = urlsplit(callback)
    pairs = [(name, text) for name, text in parse_qsl(parts.query) if name not in changes]
    pairs += [(name, text) for name, text in changes.items() if text is not None]
    return parts._replace(query=urlencode(pairs)).geturl()


def parameter(address: str, name: str) -> str:
    return dict(parse_qsl(urlsplit(address).query))[name]


async def ends(person: Person, page: Page) -> Page:
    """Follow the redirects, and return the last page."""
    while page.location is not None:
        page = await person.visit(page.location)
    return page


def id_in(service: Service, token: str) -> str:
    return service.links.read(token, purpose=Purpose.LINK, now=service.clock()).id
