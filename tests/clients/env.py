"""The served application with the sandbox, on a loop without sockets and a manual clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import fastmcp
import httpx

from flows import Money, elicit
from flows.crypto.tokens import Purpose
from flows.elicitation.states import Elicitation
from flows.providers import github
from tests.clients.transport import Transport, from_here
from tests.support.clock import NOON, Clock
from tests.support.hand_loop import HandLoop
from tests.support.mcp_server import RING, TLS, UID, new_server, service_in
from tests.support.serving import transport_to
from webapp.app import open_app
from webapp.demo.walker import Page, walk
from webapp.http.client import Outbound
from webapp.http.exchange import ASGIApp
from webapp.sandbox import new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.service import Service
from webapp.settings.settings import Settings
from webapp.stores.sqlite import MemoryStore

URL, SANDBOX_URL = "http://127.0.0.1:8765", "http://127.0.0.1:8766"
THERE = "https://letters.example/sign"  # the page to which the `url` tool's link leads
NAME = "Ada"
# The tools' results after the person accepted. Each tool has the name of its kind of question.
RETURNS = {
    "form": f"hello {NAME}",
    "confirm": "booked: True",
    "gate": "erased 5",
    "url": f"signed by {NAME}",
    "oauth": "octocat",
    "payment": "9.00 EUR paid",
}
KINDS = tuple(RETURNS)
T = TypeVar("T")


@cache
def shop(library: str) -> tuple[Any, list[str]]:
    """Return a server with a tool for each kind, and the list of tools that have returned."""
    server, passed = new_server(library), list[str]()

    def note(kind: str, text: str) -> str:
        passed.append(kind)
        return text

    @server.tool()
    async def form(what: str) -> str:
        return note("form", f"hello {await elicit.form(f'Who wants {what}?')}")

    @server.tool()
    async def confirm(what: str) -> str:
        return note("confirm", f"booked: {await elicit.confirm(f'Book {what}?')}")

    @server.tool()
    @elicit.gate
    async def gate(what: str) -> str:
        return note("gate", f"erased {what}")

    @server.tool()
    async def url(what: str) -> str:
        return note("url", f"signed by {(await elicit.url(f'Sign {what}', THERE))['who']}")

    @server.tool()
    async def terms(what: str) -> str:
        await elicit.url(f"Read {what}", THERE, wait_for_completion=False)
        return note("terms", "agreed")

    @server.tool()
    async def oauth(what: str) -> str:
        return note("oauth", (await elicit.oauth(github, scopes=["repo"], reason=what)).label)

    @server.tool()
    async def payment(what: str) -> str:
        receipt = await elicit.payment(Money("9.00", "EUR"), what)
        return note("payment", f"{receipt.price} paid")

    return server, passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The served application, and a browser of this machine's user."""

    app: ASGIApp
    service: Service
    clock: Clock
    browser: httpx.AsyncClient
    passed: list[str]

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return (self.clock.now - NOON).total_seconds()

    def transport(self) -> Transport:
        return Transport(self.app, url=f"{URL}/mcp")

    async def go(self, link: str) -> None:
        """Open the link and do what its page asks for, including steps at the providers."""
        token = link.rsplit("/", 1)[1]
        id = self.service.links.read(token, purpose=Purpose.LINK, now=self.clock()).id
        (asked,) = [each for each in await self.elicitations() if each.id == id]
        if asked.kind != "url":
            answers = {"answer.value": NAME, "answer.response": NAME}
            await walk(self.browser, link, answers=answers, also=[SANDBOX_URL], say=lambda _: None)
            return
        (form, *_) = Page((await self.browser.get(link)).text).forms
        there = await self.browser.post(link, data=form.fields)
        assert there.headers["location"] == THERE
        await self.service.completing.complete(id, {"who": NAME})

    async def decline(self, link: str) -> None:
        """Press Decline on the page."""
        forms = Page((await self.browser.get(link)).text).forms
        (form,) = [each for each in forms if each.action.endswith("/decline")]
        assert (await self.browser.post(urljoin(link, form.action), data=form.fields)).is_redirect

    async def elicitations(self) -> list[Elicitation]:
        """Return all elicitations."""
        service = self.service.elicitations
        rows = await service.store.list("elicitation")
        return [await service.rows.open(row, Elicitation) for row in rows]


def by_hand(play: Callable[[Clock], Awaitable[T]]) -> T:
    """Run `play` on a loop of its own, whose clock moves only while every task waits."""
    clock = Clock()

    async def within_a_week() -> T:
        # The limit is measured on the manual clock. It ends a run that would wait forever.
        async with asyncio.timeout(7 * 86_400):
            return await play(clock)

    with asyncio.Runner(loop_factory=lambda: HandLoop(clock)) as runner:
        return runner.run(within_a_week())


@asynccontextmanager
async def shop_open(
    clock: Clock, *, has_streams: bool = True, **settings: Any
) -> AsyncIterator[Env]:
    """Serve the shop as `elicit serve --sandbox` does.

    Without streams the server cannot ask while a call is open, as with FASTMCP_JSON_RESPONSE.
    """
    server, passed = shop("mcp" if has_streams else "fastmcp")
    passed.clear()
    apps = _ByPort()
    async with AsyncExitStack() as stack:

        async def client() -> httpx.AsyncClient:
            opened = httpx.AsyncClient(transport=apps, verify=TLS)
            return await stack.enter_async_context(opened)

        sandbox = new_sandbox(url=SANDBOX_URL, serves=URL)
        post, browser, way_out = [await client() for _ in range(3)]
        apps.put(SANDBOX_URL, SandboxApp(sandbox, clock=clock, deliver=post.send))
        if not has_streams:
            stack.enter_context(_without_streams())
        app = await stack.enter_async_context(
            open_app(
                Settings(url=URL, ring=RING, store="memory:", uid=UID, **settings),
                server,
                store=MemoryStore(),
                clock=clock,
                sandbox=sandbox,
                outbound=Outbound(way_out, allow_loopback=True, resolve=_here),
            )
        )
        apps.put(URL, app)
        yield Env(app=app, service=service_in(app), clock=clock, browser=browser, passed=passed)


@contextmanager
def _without_streams() -> Iterator[None]:
    fastmcp.settings.json_response = True
    try:
        yield
    finally:
        fastmcp.settings.json_response = False


class _ByPort(httpx.AsyncBaseTransport):
    """A transport that passes a request in memory to the application registered for its port."""

    def __init__(self) -> None:
        self._apps: dict[int | None, httpx.AsyncBaseTransport] = {}

    def put(self, url: str, app: ASGIApp) -> None:
        self._apps[urlsplit(url).port] = transport_to(from_here(app))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._apps[request.url.port].handle_async_request(request)


async def _here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]
