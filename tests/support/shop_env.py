"""A shop that sells through the sandbox's checkout. Tests control the provider's API and webhooks.

The application is served on one port and the sandbox on another. Webhooks of the checkout wait in
`post` until a test delivers them. Processes of the shop can be ended and started again on the same
store.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urljoin, urlsplit

import httpx
import mcp_types as types

from flows import Money, Receipt, elicit
from flows.elicitation.states import Elicitation
from flows.errors import StoreUnavailable
from flows.payments.receipt import Payment
from flows.payments.stripe.gateway import StripeAccount
from tests.support import signing
from tests.support.clock import Clock
from tests.support.living import Living
from tests.support.mcp_server import (
    LEGACY,
    RING,
    UID,
    Caller,
    Page,
    Person,
    ServerEnv,
    _Posts,
    eventually,
    new_browser,
    new_server,
    service_in,
    soon,
    text_of,
)
from tests.support.serving import serving_at, transport_to
from tests.support.settings import AT_ONCE
from webapp.app import open_app
from webapp.calls.call import Call
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.records.values import StoredWebhook
from webapp.sandbox import Sandbox, new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.service import Service
from webapp.settings.sandboxed import with_sandbox
from webapp.settings.settings import Settings
from webapp.stores import Record, Store, open_store
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

if TYPE_CHECKING:
    from webapp.limits import CallLimits

CREATE = "POST /stripe/v1/checkout/sessions"
FETCH = "GET /stripe/v1/checkout/sessions/"
EXPIRE = "/expire"
REFUND = "POST /stripe/v1/refunds"
CLAIM_OVER_SECONDS = 31
AWAY = "the store is away"
Body = Callable[[Receipt], Awaitable[str]]


class ProviderLine:
    """A proxy in front of the provider's API that records, delays, loses and fails calls."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.calls: list[str] = []
        self.keys: list[str] = []  # the idempotency keys of the calls
        self.is_down = False
        self.lost: list[str] = []  # calls that succeed but whose reply is lost
        self.broken: list[str] = []  # calls that do not arrive
        self.held: dict[str, asyncio.Event] = {}  # calls that wait before they arrive
        self.after: dict[str, asyncio.Event] = {}  # calls whose reply waits
        self.refused: dict[str, tuple[int, str]] = {}  # calls that get this status and code
        # calls that get this status and code once
        self.refused_once: dict[str, tuple[int, str]] = {}
        self.amends: dict[str, Any] = {}  # values that replace those of a fetched session
        self.made: asyncio.Queue[str] = asyncio.Queue()  # addresses in replies that wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/stripe/v1/"):
            await self.app(scope, receive, send)
            return
        call = f"{scope['method']} {scope['path']}"
        self.calls.append(call)
        self.keys += [v.decode() for k, v in scope["headers"] if k == b"idempotency-key"]
        for words, gate in tuple(self.held.items()):
            if words in call:
                await gate.wait()
        if self.is_down or any(words in call for words in self.broken):
            await _gateway_failed(send)
            return
        app = next(
            (_refusing(*no) for words, no in self.refused.items() if words in call), self.app
        )
        for words in [words for words in self.refused_once if words in call]:
            app = _refusing(*self.refused_once.pop(words))
        for words in self.lost:
            if words in call:
                self.lost.remove(words)
                await self.app(scope, receive, _nowhere)
                await _gateway_failed(send)
                return
        for words, gate in tuple(self.after.items()):
            if words in call:
                await self.app(scope, receive, self._slowly(send, gate))
                return
        is_fetch = call.startswith(FETCH) and self.amends
        await app(scope, receive, self._amended(send) if is_fetch else send)

    def _amended(self, send: Send) -> Send:
        head: list[Message] = []

        async def send_amended(message: Message) -> None:
            if message["type"] == "http.response.start":
                head.append(message)
                return
            body = json.dumps({**json.loads(message["body"]), **self.amends}).encode()
            length = (b"content-length", str(len(body)).encode())
            others = [pair for pair in head[0]["headers"] if pair[0] != b"content-length"]
            await send({**head[0], "headers": [*others, length]})
            await send({**message, "body": body})

        return send_amended

    def _slowly(self, send: Send, gate: asyncio.Event) -> Send:
        async def send_later(message: Message) -> None:
            if message["type"] == "http.response.body":
                self.made.put_nowait(json.loads(message["body"])["url"])
                await gate.wait()
            await send(message)

        return send_later

    def count(self, words: str) -> int:
        return sum(words in call for call in self.calls)


class FrailStore(MemoryStore):
    """A memory store that a test can make unavailable, for all its siblings at once."""

    def __init__(self, *, shares_with: "FrailStore | None" = None) -> None:
        super().__init__(shares_with=shares_with)
        self.troubles: list[str] = [] if shares_with is None else shares_with.troubles

    def sibling(self) -> "FrailStore":
        return FrailStore(shares_with=self)

    async def write(self, *records: Record) -> tuple[Record, ...]:
        await self.check()
        return await super().write(*records)

    async def check(self) -> None:
        await super().check()
        if self.troubles:
            raise StoreUnavailable(self.troubles[0])


class AwayStore(FrailStore):
    """A store that becomes unavailable, for all its siblings, when a result is about to be sent."""

    def __init__(self, *, shares_with: "AwayStore | None" = None) -> None:
        super().__init__(shares_with=shares_with)
        self.goes: list[bool] = [True] if shares_with is None else shares_with.goes

    def sibling(self) -> "AwayStore":
        return AwayStore(shares_with=self)

    async def write(self, *records: Record) -> tuple[Record, ...]:
        written = await super().write(*records)
        is_result = any((row.kind, row.status) == ("run", "finished") for row in records)
        (first, *others) = records
        is_long = first.kind == "payment" and first.version > 0 and not others
        if self.goes[0] and (is_result or is_long):
            self.troubles.append(AWAY)
        return written


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the shop."""

    app: ASGIApp
    life: Living[ASGIApp]

    @property
    def service(self) -> Service:
        return service_in(self.app)

    async def ended(self) -> None:
        await self.life.ended()


class Shop:
    """A store, a clock, a seller, and the processes that serve."""

    def __init__(
        self,
        *,
        url: str,
        sandbox: Sandbox,
        line: ProviderLine,
        clock: Clock,
        store: Store,
        address: str,
        library: str = "mcp",
    ) -> None:
        self.library = library
        self.url = url
        self.sandbox = sandbox
        self.line = line
        self.clock = clock
        self.store = store
        self.settings = with_sandbox(
            Settings(url=url, ring=RING, store=address, uid=UID, policies=AT_ONCE), sandbox
        )
        self.post: list[bytes] = []  # webhooks that the checkout has to deliver, oldest first
        self.price = Money("9.00", "EUR")
        self.timeout = timedelta(minutes=30)
        self.limits: CallLimits | None = None  # how long requests stay open
        self.is_for_good = False
        self.is_bought_again = False
        self.processing: Literal["wait", "return"] = "wait"
        self.title: str | None = None  # the tool's title; a change applies from the next restart on
        self.provider: str | None = None  # the payment provider, or None for the checkout
        self.body: Body = _paid_text
        self.bodies = 0
        self.given: list[Receipt] = []
        self.env: ServerEnv
        self._process: Process
        self._browsers: list[httpx.AsyncClient] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._posts(scope, receive, send)

    @property
    def service(self) -> Service:
        return self._process.service

    @property
    def seller(self) -> StripeAccount:
        seller = self.settings.sellers["stripe"]
        assert isinstance(seller, StripeAccount)
        return seller

    async def start(self) -> None:
        self._process = await self.process()
        self._posts = _Posts(self._process.app)
        self.env = ServerEnv(
            url=self.url, service=self.service, settings=self.settings, posts=self._posts
        )

    async def restart(self, **changes: Any) -> None:
        """End the process and start another one on the same store."""
        await self._process.ended()
        self.settings = replace(self.settings, **changes)
        await self.start()

    async def process(self) -> Process:
        """Start another process on the same store."""
        self.server = server = new_server(self.library)
        self._sell(server)
        store = self.store.sibling() if isinstance(self.store, MemoryStore) else None
        life = Living(
            open_app(self.settings, server, store=store, clock=self.clock, limits=self.limits)
        )
        return Process(await life.started(), life)

    async def aclose(self) -> None:
        await self.env.aclose()
        await self._process.ended()
        for browser in self._browsers:
            await browser.aclose()
        await self.store.aclose()

    # The person.

    async def person(self) -> "Payer":
        browser = new_browser()
        self._browsers.append(browser)
        return Payer(browser, shop=self)

    # The provider.

    async def send(self, body: bytes | dict[str, Any], **about: Any) -> httpx.Response:
        """Sign an event and deliver it to the serving process, or to the process `to`."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = signing.stripe(text, secret=self.sandbox.webhook_secret, now=self.clock())
        return await self.deliver(text, headers, **about)

    async def deliver(
        self,
        body: bytes | AsyncIterator[bytes],
        headers: list[tuple[str, str]] | list[tuple[bytes, bytes]],
        *,
        to: Process | None = None,
        path: str = "/webhooks/stripe",
    ) -> httpx.Response:
        app = to.app if to is not None else self._process.app
        transport = transport_to(app, raises=False)
        async with httpx.AsyncClient(transport=transport, base_url=self.url) as provider:
            return await provider.post(path, content=body, headers=headers)

    async def send_all(self) -> list[str]:
        """Deliver all events once, oldest first. Return what the shop did with each."""
        became = []
        while self.post:
            answer = await self.send(self.post.pop(0))
            assert answer.status_code == 200, answer.text
            became.append(answer.json()["received"])
        return became

    async def session(self, id: str) -> dict[str, Any]:
        """Return the provider's session, fetched past the proxy."""
        return await self._in_sandbox(f"checkout/sessions/{id}")

    async def refunds(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._in_sandbox("refunds?limit=100"))["data"]
        return found

    async def refund_by_hand(self, **about: str) -> dict[str, Any]:
        """Refund the latest payment, or a part of it, at the provider and not through the shop."""
        payment = (await self.payments())[-1]
        assert payment.payment_intent is not None
        return await self.refund_at_provider(payment.payment_intent, **about)

    async def refund_at_provider(self, payment_intent: str, **about: str) -> dict[str, Any]:
        posted = len(self.post)
        refund = await self._in_sandbox("refunds", payment_intent=payment_intent, **about)
        await eventually(lambda: len(self.post) > posted)
        return refund

    async def make_session(self, **about: str) -> dict[str, Any]:
        """Create a checkout session of the same seller for 9 EUR that the shop did not start."""
        item = "line_items[0]"
        form = {
            "mode": "payment",
            "success_url": "https://elsewhere.example",
            f"{item}[quantity]": "1",
            f"{item}[price_data][currency]": "eur",
            f"{item}[price_data][unit_amount]": "900",
            f"{item}[price_data][product_data][name]": "Premium report",
            **about,
        }
        return await self._in_sandbox("checkout/sessions", **form)

    async def _in_sandbox(self, path: str, **form: str) -> dict[str, Any]:
        """Call the provider's API past the proxy: POST with a form, otherwise GET."""
        transport = transport_to(self.line.app)
        headers = {"authorization": f"Bearer {self.sandbox.stripe_key}"}
        async with httpx.AsyncClient(transport=transport, base_url=self.sandbox.url) as asker:
            method, data = ("POST", form) if form else ("GET", None)
            answer = await asker.request(method, f"/stripe/v1/{path}", headers=headers, data=data)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    # The clock, the sweeper and the store.

    async def sweep(self, *, running: Iterable[Call] = ()) -> None:
        """Let earlier claims expire, then run the sweeper until nothing is due.

        The calls in `running` renew their leases, as the process does every ten seconds.
        """
        self.clock.tick(seconds=CLAIM_OVER_SECONDS)
        for call in running:
            await call.renew()
        for _ in range(10):
            if not await fall_due(self.service):
                return
        raise AssertionError("the sweeper never comes to an end")

    async def expire(self) -> None:
        self.clock.tick(seconds=self.timeout.total_seconds())
        await self.sweep()

    async def payments(self) -> list[Payment]:
        """Return the payments in the ledger, oldest first."""
        rows = self.service.elicitations.rows
        found = [await rows.open(r, Payment) for r in await self.store.list("payment")]
        return sorted(found, key=lambda payment: payment.paid_at)

    async def webhooks(self) -> list[StoredWebhook]:
        rows = self.service.elicitations.rows
        found = [await rows.open(r, StoredWebhook) for r in await self.store.list("hook")]
        return sorted(found, key=lambda hook: hook.received_at)

    async def asked(self) -> list[Elicitation]:
        return await self.env.elicitations()

    async def statuses(self) -> list[str]:
        return [str(elicitation.status) for elicitation in await self.asked()]

    async def ledger(self) -> list[str]:
        return [str(payment.status) for payment in await self.payments()]

    def _sell(self, server: Any) -> None:
        plain: dict[str, Any] = (
            {"output_schema": None} if self.library == "fastmcp" else {"structured_output": False}
        )

        @server.tool(title=self.title, **plain)
        async def report(topic: str = "tea") -> str:
            receipt = await elicit.payment(
                self.price,
                "Premium report",
                provider=self.provider,
                once=self.is_for_good,
                again=self.is_bought_again,
                processing=self.processing,
                timeout=self.timeout,
            )
            self.bodies += 1
            self.given.append(receipt)
            return await self.body(receipt)


class Payer(Person):
    """A person with one browser, who pays."""

    def __init__(self, browser: httpx.AsyncClient, *, shop: Shop) -> None:
        super().__init__(browser)
        self._shop = shop

    async def press_there(self, url: str, button: str) -> str:
        """Press a button of the checkout page.

        Return the redirect's address; events are in `post`.
        """
        page = await self.browser.get(url)
        mark = re.search(
            rf'action="/pay/\w+/{button}">\s*<input [^>]*name="csrf" value="(\w+)"', page.text
        )
        assert mark is not None, f"the page has no button {button}"
        posted = len(self._shop.post)
        there = await self.browser.post(f"{_plain(url)}/{button}", data={"csrf": mark[1]})
        assert there.status_code == 303, there.text
        if button in ("card", "bank", "arrive", "fail"):
            await eventually(lambda: len(self._shop.post) > posted)
        return urljoin(url, there.headers["location"])

    async def pay(self, link: str, *, button: str = "card") -> str:
        """Open our link and pay. Return the return URL."""
        return await self.press_there(await self.go_on(link), button)

    async def come_back(self, url: str) -> Page:
        """Follow the return URL to our page."""
        answer = await self.visit(url)
        assert answer.location is not None, f"{answer.status} {answer.heading}"
        return await self.visit(answer.location)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buying:
    """A call of the tool that waits for its payment, and the person with the link."""

    shop: "Shop"
    caller: Caller
    call: asyncio.Task[types.CallToolResult]
    link: str
    person: Payer

    async def press(self, button: str) -> str:
        """Go to the checkout and press this button. Return the checkout's address."""
        there = await self.person.go_on(self.link)
        await self.person.press_there(there, button)
        return there

    async def pay(self) -> None:
        """Pay, and deliver the provider's events."""
        await self.person.pay(self.link)
        await self.shop.send_all()

    async def paid(self) -> str:
        """Pay, and return the tool's result."""
        await self.pay()
        return await self.result()

    async def result(self) -> str:
        return text_of(await soon(self.call))

    async def again(self) -> str:
        """Return the result of the same call made again. Fail if it asks for a payment."""
        call = self.caller.call("report")
        await eventually(lambda: call.done() or self.caller.has_links_left)
        assert not self.caller.has_links_left, "the repeated call must not ask for a payment"
        return text_of(call.result())

    async def is_asked_again(self) -> str:
        """Return the link that the same call made again asks to open. Fail if it asks for none."""
        call = self.caller.call("report")
        await eventually(lambda: call.done() or self.caller.has_links_left)
        assert self.caller.has_links_left, "it does not ask to pay"
        return await self.caller.link()


@asynccontextmanager
async def buying(shop: "Shop", *, revision: str = LEGACY) -> AsyncIterator[Buying]:
    """Call the tool, and provide the call once it waits for its payment."""
    async with shop.env.caller(revision) as caller:
        call = caller.call("report")
        link = await caller.link()
        await shop.env.waited_for_by_another(link, None)
        person = await shop.person()
        yield Buying(shop=shop, caller=caller, call=call, link=link, person=person)


async def _paid_text(receipt: Receipt) -> str:
    return f"paid {receipt.price}"


async def _nowhere(message: Any) -> None:
    """Lose a reply."""


def _refusing(status: int, code: str) -> ASGIApp:
    about = {"type": code} if code == "idempotency_error" else {"code": code}
    body = json.dumps({"error": about}).encode()
    headers = [(b"content-length", str(len(body)).encode())]

    async def refuse(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return refuse


async def _gateway_failed(send: Send) -> None:
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 504, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _plain(url: str) -> str:
    return urlsplit(url)._replace(query="", fragment="").geturl()


@asynccontextmanager
async def open_shop(
    *,
    clock: Clock | None = None,
    store: MemoryStore | None = None,
    folder: Path | None = None,
    library: str = "mcp",
) -> AsyncIterator[Shop]:
    """Serve the shop and the sandbox on two ports. With a folder, the store is SQLite."""
    clock = clock or Clock()
    address = "memory:" if folder is None else f"sqlite:///{folder / 'shop.db'}"
    opened = store or (MemoryStore() if folder is None else await open_store(address))
    shops: list[Shop] = []

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await shops[0](scope, receive, send)

    async def keep_post(request: httpx.Request) -> httpx.Response:
        shops[0].post.append(request.content)
        return httpx.Response(200)

    async with serving_at(lambda _: serve) as url:
        lines: list[tuple[Sandbox, ProviderLine]] = []

        def make(at: str) -> ASGIApp:
            sandbox = new_sandbox(url=at, serves=url)
            played = SandboxApp(sandbox, clock=clock, deliver=keep_post)
            lines.append((sandbox, ProviderLine(cast("Any", played))))
            return lines[0][1]

        async with serving_at(make):
            sandbox, line = lines[0]
            shops.append(
                Shop(
                    url=url,
                    sandbox=sandbox,
                    line=line,
                    clock=clock,
                    store=opened,
                    address=address,
                    library=library,
                )
            )
            await shops[0].start()
            try:
                yield shops[0]
            finally:
                await shops[0].aclose()
    await opened.aclose()
