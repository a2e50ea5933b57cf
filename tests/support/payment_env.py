"""Fake payment providers, and a service that sells through one of them.

A test posts webhooks to the real route, from an address that it chooses.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import msgspec
from litestar import Litestar
from litestar.di import Provide
from litestar.exceptions import HTTPException
from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.payments.declared.declaration import DeclaredAccount
from flows.payments.gateway import MerchantAccount
from flows.payments.receipt import Payment
from flows.payments.session import CheckoutTerms, UnresolvedPayment
from tests.support import signing
from tests.support.clock import Clock
from tests.support.service_env import URL, plain_settings, question_in_store
from tests.support.serving import transport_to
from tests.support.signers import EXAMPLES
from webapp.http.client import Outbound
from webapp.pages.renderer import Renderer, template_folder
from webapp.payments.certificates import Certificates
from webapp.payments.webhook_log import WebhookLog
from webapp.records.values import StoredWebhook
from webapp.routes.answers import Answers
from webapp.routes.redirect import depart
from webapp.routes.webhooks import hooked
from webapp.service import Service, ServiceOptions, open_service
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

Provider = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]
HALF_AN_HOUR = timedelta(minutes=30)
SENDER = "203.0.113.9"
Body = dict[str, Any]


class PayPal:
    """PayPal's Orders v2 API, as its OpenAPI documents describe it. An order is captured once."""

    def __init__(self) -> None:
        self.orders: dict[str, Body] = {}
        self.calls: list[str] = []
        self.captured = 0
        self.capture_keys: list[str] = []
        self.is_down = False
        self._by_key: dict[str, Body] = {}

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append(f"{request.method} {path}")
        if self.is_down:
            return httpx.Response(503)
        if path == "/v1/oauth2/token":
            return httpx.Response(200, json={"access_token": "t"})
        if path == "/v2/checkout/orders":
            return httpx.Response(201, json=self._made(request))
        if path.endswith("/capture"):
            self.capture_keys.append(request.headers["PayPal-Request-Id"])
            return self._capture(self.orders[path.split("/")[-2]])
        if path.endswith("/refund"):
            return httpx.Response(201, json=self._refund(path.split("/")[-2]))
        return httpx.Response(200, json=self.orders[path.split("/")[-1]])

    def approve(self, order: str) -> None:
        self.orders[order]["status"] = "APPROVED"

    def unit(self, order: str) -> Body:
        return cast("Body", self.orders[order]["purchase_units"][0])

    def _made(self, request: httpx.Request) -> Body:
        id = f"O{len(self.orders) + 1}"
        page = {"rel": "payer-action", "href": f"https://www.sandbox.paypal.com/pay?token={id}"}
        fresh = {"id": id, "status": "PAYER_ACTION_REQUIRED", "links": [page]}
        order = self._by_key.setdefault(
            request.headers["PayPal-Request-Id"], {**json.loads(request.content), **fresh}
        )
        self.orders[order["id"]] = order
        return order

    def _capture(self, order: Body) -> httpx.Response:
        if order["status"] != "APPROVED":
            return httpx.Response(422, json={"details": [{"issue": "ORDER_ALREADY_CAPTURED"}]})
        self.captured += 1
        order["status"] = "COMPLETED"
        unit = order["purchase_units"][0]
        capture = {"id": f"C{order['id']}", "status": "COMPLETED", "amount": unit["amount"]}
        unit["payments"] = {"captures": [capture]}
        return httpx.Response(201, json=order)

    def _refund(self, capture: str) -> Body:
        unit = self.unit(capture.removeprefix("C"))
        refund = {"id": "R1", "status": "COMPLETED", "amount": unit["amount"]}
        unit["payments"]["refunds"] = [refund]
        unit["payments"]["captures"][0]["status"] = "REFUNDED"
        return refund


class Mollie:
    """Mollie's Payments v2 API, as its OpenAPI document describes it."""

    def __init__(self) -> None:
        self.payments: dict[str, Body] = {}
        self.refunds: list[Body] = []
        self.calls: list[str] = []
        self.is_down = False
        self.loses_replies = False
        self._by_key: dict[str, Body] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append(f"{request.method} {path}")
        if self.is_down:
            return httpx.Response(503)
        if path == "/v2/payments" and request.method == "GET":
            latest = list(self.payments.values())[::-1]
            return httpx.Response(200, json={"_embedded": {"payments": latest}, "_links": {}})
        if path == "/v2/payments":
            made = self._made(request)
            return httpx.Response(502) if self.loses_replies else httpx.Response(201, json=made)
        if path.endswith("/refunds"):
            if request.method == "GET":
                return httpx.Response(200, json={"_embedded": {"refunds": self.refunds}})
            refund = {**json.loads(request.content), "id": "re_1", "status": "queued"}
            self.refunds.append(refund)
            return httpx.Response(201, json=refund)
        return httpx.Response(200, json=self.payments[path.split("/")[-1]])

    def query(self, payment: str) -> str:
        """Return the query of the webhook address that Mollie received for this payment."""
        return urlsplit(str(self.payments[payment]["webhookUrl"])).query

    def _made(self, request: httpx.Request) -> Body:
        id = f"tr_{len(self.payments) + 1}"
        page = {"checkout": {"href": f"https://www.mollie.com/checkout/{id}"}}
        fresh = {"id": id, "mode": "test", "status": "open", "_links": page}
        payment = self._by_key.setdefault(
            request.headers["Idempotency-Key"], {**json.loads(request.content), **fresh}
        )
        self.payments[payment["id"]] = payment
        return payment


_LEMON_SECRET = "shh"
LEMON_SQUEEZY = DeclaredAccount(
    declaration=EXAMPLES["lemon_squeezy"],
    secret="a-key",
    webhook_secrets=(_LEMON_SECRET,),
    is_live=False,
    own={"store": "1", "variant": "2"},
    more_checkout_origins=("https://shop.lemonsqueezy.com",),
)


class LemonSqueezy:
    """Lemon Squeezy. Each refund request waits for `answers` and then refunds the order."""

    def __init__(self) -> None:
        self.refunds = 0
        self.refunded = 0
        self.orders_given_back: list[str] = []
        self.is_down = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/checkouts":
            return httpx.Response(201, json={"data": self._made(request)})
        order = request.url.path.split("/")[3]
        if request.method == "POST":
            self.refunds += 1
            await self.answers.wait()
            if self.is_down:
                return httpx.Response(503)
            self.refunded += 900
            self.orders_given_back.append(order)
        units = 900 * self.orders_given_back.count(order)
        about: Body = {"currency": "EUR", "refunded_amount": units}
        if units:
            about |= {"status": "refunded", "refunded": True}
        data = {"type": "orders", "id": order, "attributes": about}
        return httpx.Response(200, json={"data": data})

    def _made(self, request: httpx.Request) -> Body:
        wanted = json.loads(request.content)["data"]["attributes"]
        about = {
            "url": "https://shop.lemonsqueezy.com/c1",
            "test_mode": True,
            "preview": {"total": 900, "currency": "EUR"},
            "checkout_data": wanted["checkout_data"],
            "expires_at": wanted["expires_at"],
        }
        return {"type": "checkouts", "id": "c1", "attributes": about}


class Interrupted(MemoryStore):
    """A store that runs a callback once, right after a refund is begun."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], Awaitable[object]]] = []

    async def write(self, *records: Record) -> tuple[Record, ...]:
        written = await super().write(*records)
        is_begun = any((row.kind, row.status) == ("payment", "refunding") for row in written)
        if is_begun and self.meanwhile:
            await self.meanwhile.pop()()
        return written


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentEnv:
    """A service with one merchant account, and its webhook route."""

    service: Service
    seller: MerchantAccount
    clock: Clock
    store: MemoryStore
    app: Any

    async def asked(self, join: str = "a question", *, is_live: bool = False) -> Elicitation:
        """Store a question for 9 EUR, and return the stored elicitation."""
        fresh = question_in_store(self.service, kind="payment", join=join, timeout=HALF_AN_HOUR)
        terms = CheckoutTerms(
            seller=self.seller.name, amount=900, currency="EUR", what="Report", is_live=is_live
        )
        about = replace(fresh.request, url=None, terms=msgspec.to_builtins(terms))
        asked = replace(fresh, request=about)
        await self.service.elicitations.write(asked)
        return await self.now(asked)

    async def now(self, asked: Elicitation) -> Elicitation:
        found = await self.service.elicitations.get(asked.id)
        assert found is not None
        return found

    async def go_on(self, asked: Elicitation) -> str:
        """Press Continue, and return the address of the payment page."""
        return await depart(self.service, await self.now(asked), cookie="a browser")

    async def begun(self) -> Elicitation:
        """Return a question whose person has opened the payment page."""
        asked = await self.asked()
        await self.go_on(asked)
        return asked

    async def paid(self, asked: Elicitation) -> Payment | None:
        return await self.service.kinds.payments.ledger.paid(await self.now(asked))

    async def receipt(self, asked: Elicitation) -> Payment:
        payment = await self.paid(asked)
        assert payment is not None
        return payment

    async def post(
        self,
        body: bytes,
        *,
        query: str = "",
        headers: list[tuple[str, str]] | None = None,
        sender: str = SENDER,
    ) -> httpx.Response:
        """Post a webhook, and return the response."""
        door = transport_to(self.app, client=(sender, 50000))
        async with httpx.AsyncClient(transport=door, base_url=URL) as client:
            path = f"/webhooks/{self.seller.name}" + (f"?{query}" if query else "")
            return await client.post(path, content=body, headers=headers)

    async def counts(self) -> dict[str, int]:
        """Return the number of rejected webhooks by reason."""
        await self.service.webhooks.log.write_counts()
        return {
            row.reason: row.count
            for row in await WebhookLog(self.service.elicitations).unverified()
        }

    async def unresolved(self, *, status: str | None = None) -> list[UnresolvedPayment]:
        return await self.service.elicitations.all(UnresolvedPayment, status=status)

    async def webhooks(self) -> list[StoredWebhook]:
        return await self.service.webhooks.log.webhooks()

    async def sweep(self, **later: float) -> None:
        """Move the clock, then run the sweeper until nothing is due, at most ten times."""
        self.clock.tick(**later)
        for _ in range(10):
            self.clock.tick(seconds=31)
            if not await fall_due(self.service):
                return


@asynccontextmanager
async def selling(
    seller: MerchantAccount,
    provider: Provider,
    *,
    certificates: Callable[[Clock], Certificates] | None = None,
    store: MemoryStore | None = None,
    is_unreached: bool = False,
) -> AsyncGenerator[PaymentEnv]:
    """Run a service that sells only through this seller, which `provider` simulates."""
    clock, store = Clock(), store or MemoryStore()
    client = httpx.AsyncClient(transport=httpx.MockTransport(cast("Any", provider)))
    async with (
        client,
        open_service(
            plain_settings(sellers={seller.name: seller}, asks=is_unreached),
            ServiceOptions(
                clock=clock,
                outbound=Outbound(client, allow_loopback=True, resolve=_public),
                certificates=None if certificates is None else certificates(clock),
            ),
            store=store,
        ) as service,
    ):
        answers = Answers(pages=Renderer(folders=[template_folder()]), server="s")
        app = Litestar(
            [hooked],
            dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
            exception_handlers={
                Exception: answers.problem_for_error,
                HTTPException: answers.problem_for_error,
            },
            openapi_config=None,
            logging_config=None,
        )
        yield PaymentEnv(service=service, seller=seller, clock=clock, store=store, app=app)


def approved(asked: Elicitation, order: str) -> bytes:
    """Return PayPal's webhook for an order that the person has approved."""
    unit = {"custom_id": asked.id}
    return json.dumps(
        {
            "id": "WH-1",
            "event_type": "CHECKOUT.ORDER.APPROVED",
            "resource": {"id": order, "purchase_units": [unit]},
        }
    ).encode()


async def ordered(payment_env: PaymentEnv, asked: Elicitation, order: str) -> str:
    """Post Lemon Squeezy's webhook for a paid order, and return its result."""
    attributes = {
        "status": "paid",
        "total": 900,
        "currency": "EUR",
        "test_mode": True,
        "refunded_amount": 0,
    }
    about = {"event_name": "order_created", "custom_data": {"elicitation": f"{asked.id}:1"}}
    data = {"type": "orders", "id": order, "attributes": attributes}
    body = json.dumps({"meta": about, "data": data}).encode()
    answer = await payment_env.post(body, headers=signing.lemon_squeezy(body, secret=_LEMON_SECRET))
    assert answer.status_code == 200
    return str(answer.json()["received"])


async def _public(host: str, port: int) -> list[str]:
    return ["93.184.215.14"]
