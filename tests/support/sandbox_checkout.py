"""The sandbox's Stripe checkout, a shop that sells through it, and a person who pays.

The shop calls the sandbox with Stripe's own package. Webhooks arrive at `deliver`, which answers as
the test sets.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import stripe

from tests.support.clock import Clock
from tests.support.serving import transport_to
from webapp.sandbox.app import SandboxApp
from webapp.sandbox.checkout.deliveries import Deliver
from webapp.sandbox.settings import Sandbox, new_sandbox

URL = "http://127.0.0.1:8766"
SHOP = "http://127.0.0.1:8765"
KEY = "sk_test_sandbox_1"
SECRET = "whsec_of_the_sandbox"
BACK = f"{SHOP}/back?session={{CHECKOUT_SESSION_ID}}"


class Shop:
    """A shop that records its webhooks. It answers with the next of `answers`, or 200."""

    def __init__(self) -> None:
        self.received: list[httpx.Request] = []
        self.answers: list[int | Exception] = []
        self.pauses: list[float] = []

    async def deliver(self, request: httpx.Request) -> httpx.Response:
        self.received.append(request)
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    @property
    def events(self) -> list[stripe.Event]:
        """The received webhooks, verified and parsed by Stripe's own library."""
        return [
            stripe.Webhook.construct_event(
                request.content, request.headers["stripe-signature"], SECRET, tolerance=0
            )
            for request in self.received
        ]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


class ServerEnv:
    """The sandbox's checkout with its clients."""

    def __init__(self, *, url: str = URL, deliver: Deliver | None = None) -> None:
        self.clock = Clock()
        self.shop = Shop()
        self.settings = sandbox(url)
        self.app = SandboxApp(
            self.settings,
            clock=self.clock,
            deliver=deliver or self.shop.deliver,
            pause=self.shop.pause,
        )
        self.browser = self.client()
        self._marks: dict[str, str] = {}
        self.stripe = stripe.StripeClient(
            KEY,
            base_addresses={"api": f"{url}/stripe"},
            http_client=OverHttpx(self.client()),
        ).v1

    def client(self) -> httpx.AsyncClient:
        # Do not raise the app's exceptions: a real client only sees the server's response.
        transport = transport_to(self.app, raises=False)
        return httpx.AsyncClient(transport=transport, base_url=self.settings.url)

    async def begin(self, **others: Any) -> stripe.checkout.Session:
        return await self.stripe.checkout.sessions.create_async(order(**others))

    async def session(self, id: str) -> stripe.checkout.Session:
        return await self.stripe.checkout.sessions.retrieve_async(id)

    async def press(
        self, session: stripe.checkout.Session, button: str, *, late: bool = False
    ) -> httpx.Response:
        return await self.press_at(session.id, button, late=late)

    async def press_at(self, id: str, button: str, *, late: bool = False) -> httpx.Response:
        """Open the page in the browser and press one of its buttons.

        With `late`, press a button that only an older tab still shows.
        """
        page = await self.browser.get(f"/pay/{id}")
        for mark in re.findall(r'name="csrf" value="(\w+)"', page.text):
            self._marks[id] = mark
        action = f"/pay/{id}/{button}"
        assert (f'action="{action}"' in page.text) is not late, button
        return await self.browser.post(action, data={"csrf": self._marks.get(id, "")})

    async def post(
        self, path: str, content: str, *, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Call the API without Stripe's package, to send requests that the package never sends."""
        headers = {
            "authorization": f"Bearer {KEY}",
            "content-type": "application/x-www-form-urlencoded",
            **(headers or {}),
        }
        return await self.browser.post(f"/stripe{path}", content=content, headers=headers)

    async def control(self, **wishes: Any) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {KEY}"}
        reply = await self.browser.post("/stripe/control", json=wishes, headers=headers)
        assert reply.status_code == 200, reply.text
        state: dict[str, Any] = reply.json()
        return state


class OverHttpx(stripe.HTTPClient):
    """Stripe's HTTP client on an httpx client that needs no network."""

    name = "httpx"

    def __init__(self, client: httpx.AsyncClient) -> None:
        super().__init__()
        self._client = client

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        reply = await self._client.request(method, url, headers=dict(headers), content=post_data)
        return reply.content, reply.status_code, reply.headers


def sandbox(url: str) -> Sandbox:
    return replace(
        new_sandbox(url=url, serves=SHOP),
        stripe_key=KEY,
        webhook_secret=SECRET,
    )


def order(
    *, amount: int = 900, currency: str = "eur", name: str = "Premium report", **others: Any
) -> Any:
    """Return the parameters of a session, like those that our flow sends."""
    price = {"currency": currency, "unit_amount": amount, "product_data": {"name": name}}
    return {
        "mode": "payment",
        "line_items": [{"price_data": price, "quantity": 1}],
        "success_url": BACK,
        "cancel_url": f"{SHOP}/cancelled",
        "client_reference_id": "e1",
        "metadata": {"elicitation": "e1"},
        "payment_intent_data": {"metadata": {"elicitation": "e1"}},
        **others,
    }


@asynccontextmanager
async def checkout_env() -> AsyncIterator[ServerEnv]:
    env = ServerEnv()
    try:
        yield env
    finally:
        await env.browser.aclose()
