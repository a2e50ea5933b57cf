"""An application without an MCP server, its users' browsers, and the sandbox.

The application reads the user from a cookie, as an author's own session would.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx
from starlette.requests import Request

from flows.elicitation.shown_link import ShownLink
from flows.oauth.connection import Connection
from flows.oauth.provider import Provider
from tests.support.clock import Clock
from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import TLS, Person, eventually, new_browser, service_in, soon
from tests.support.oauth_env import Gate, ground
from tests.support.serving import serving
from webapp.app import open_app
from webapp.coroutines import asking
from webapp.http.exchange import ASGIApp
from webapp.identity.users import Users, Who
from webapp.limits import CallLimits
from webapp.sandbox import Sandbox
from webapp.service import Service
from webapp.settings.identity import IdentitySettings
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings
from webapp.stores import Store
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

T = TypeVar("T")
APPLICATION = "corner shop"
COOKIE = "user"


async def by_cookie(request: Request) -> str | None:
    return request.cookies.get(COOKIE)


@dataclass(slots=True, kw_only=True)
class Block(Awaitable[T]):
    """A running block of the application's code, and the links it was given to show."""

    task: asyncio.Task[T]
    shown: list[ShownLink]

    async def link(self, number: int = 0) -> ShownLink:
        """Wait until the link with this number is shown.

        If the block raises first, raise its error.
        """
        await eventually(lambda: len(self.shown) > number or self.task.done())
        if len(self.shown) <= number:
            await self.task
        return self.shown[number]

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def __await__(self) -> Any:
        return soon(self.task).__await__()


@dataclass(slots=True, kw_only=True)
class AskingEnv:
    url: str
    service: Service
    settings: Settings
    sandbox: Sandbox
    gate: Gate
    clock: Clock
    app: object
    asgi: ASGIApp
    exit_stack: AsyncExitStack
    blocks: list[asyncio.Task[Any]] = field(default_factory=list)

    def begin(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        owner: str = "ann",
        key: str | None = "wish",
    ) -> Block[T]:
        """Start `work` in a block that asks this user. The block's links are recorded."""
        shown: list[ShownLink] = []

        async def run() -> T:
            async with asking(owner, show=shown.append, key=key, app=self.app):
                return await work()

        task = asyncio.create_task(run())
        self.blocks.append(task)
        return Block(task=task, shown=shown)

    async def browser(self, user: str | None = "ann") -> Person:
        """Return a person with a new browser, signed in at the application as this user."""
        browser = await self.exit_stack.enter_async_context(new_browser())
        if user is not None:
            browser.cookies.set(COOKIE, user)
        return Person(browser)

    async def guest(self, user: str | None = "ann") -> Guest:
        return Guest(await self.browser(user))

    async def pass_time(self, **amount: float) -> None:
        self.clock.tick(**amount)
        await fall_due(self.service)

    async def connections(self) -> list[Connection]:
        rows = self.service.elicitations
        return [await rows.rows.open(r, Connection) for r in await rows.store.list("account")]


@asynccontextmanager
async def asking_env(
    *,
    who: Who | None = by_cookie,
    server: Any = None,
    store: Store | None = None,
    identity: IdentitySettings | None = None,
    policies: PolicySettings | None = None,
    limits: CallLimits | None = None,
    sign_in_url: str | None = None,
    clock: Clock | None = None,
    plugins: Sequence[object] = (),
    providers: Mapping[str, Provider] | None = None,
) -> AsyncIterator[AskingEnv]:
    """Serve the application. `providers` are declared in addition to the sandbox's."""
    clock = clock or Clock()
    async with AsyncExitStack() as stack:
        post = await stack.enter_async_context(httpx.AsyncClient(verify=TLS))
        on = await stack.enter_async_context(ground(clock, deliver=post.send))
        settings = replace(
            on.settings,
            identity=identity or IdentitySettings(),
            policies=policies or on.settings.policies,
            providers={**on.settings.providers, **(providers or {})},
            credentials={
                **on.settings.credentials,
                **dict.fromkeys(providers or (), ("our-id", "our-secret-that-is-long")),
            },
        )
        key = object()
        users = Users(
            application=APPLICATION if server is None else server.name,
            who=who,
            sign_in_url=sign_in_url,
        )
        app = await stack.enter_async_context(
            open_app(
                settings,
                server,
                store=store or MemoryStore(),
                clock=clock,
                limits=limits,
                sandbox=on.sandbox,
                users=users,
                asked_as=key,
                plugins=plugins,
            )
        )
        await stack.enter_async_context(serving(app, port=on.port))
        exit_stack = await stack.enter_async_context(AsyncExitStack())
        here = AskingEnv(
            url=settings.url,
            service=service_in(app),
            settings=settings,
            sandbox=on.sandbox,
            gate=on.gate,
            clock=clock,
            app=key,
            asgi=app,
            exit_stack=exit_stack,
        )
        try:
            yield here
        finally:
            for task in here.blocks:
                task.cancel()
            await asyncio.gather(*here.blocks, return_exceptions=True)
