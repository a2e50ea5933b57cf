"""A gateway with the sandbox that simulates its provider, and a person who pays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from flows.elicitation.flow import RedirectContext, Talk
from flows.elicitation.states import Elicitation
from flows.payments.gateway import Gateway, ProviderSession, verify_session
from flows.payments.mollie.gateway import MollieGateway
from flows.payments.money import Money
from flows.payments.paypal.gateway import PayPalGateway
from flows.payments.receipt import Payment
from flows.payments.session import SessionStatus
from tests.support import gateway_env
from tests.support.gateway_env import BACK, NINE, stored_checkout
from tests.support.sandbox_checkout import ServerEnv, checkout_env
from webapp.http.client import Outbound

T = TypeVar("T")
WENT_BACK = f"{BACK}?state=s-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paying:
    """A gateway and the person who pays. `secret` authorizes control of the sandbox."""

    env: ServerEnv
    gateway: Gateway
    outbound: Outbound
    secret: str
    pays: str  # the button of a payment that settles immediately
    pays_later: str  # the button of a payment that settles later

    @property
    def name(self) -> str:
        return self.gateway.seller.name

    async def run(self, talk: Talk[T]) -> T:
        return await self.outbound.run(talk)

    def asked(self, price: Money = NINE) -> Elicitation:
        return gateway_env.asked(self.name, price)

    def prepared(self, elicitation: Elicitation | None = None, *, number: int = 1) -> Elicitation:
        return gateway_env.prepared(self.gateway, elicitation or self.asked(), number=number)

    async def begun(
        self, elicitation: Elicitation | None = None, *, number: int = 1
    ) -> Elicitation:
        """Return an elicitation with an attempt that created a session."""
        before = self.prepared(elicitation, number=number)
        now = self.env.clock()
        context = RedirectContext(number=number, return_url=BACK, state="s-1", now=now)
        departure = await self.run(self.gateway.begin(before, context))
        return gateway_env.with_stored(before, departure.attempt_data)

    async def repeated(self, elicitation: Elicitation) -> str:
        """Repeat the request that creates a session, and return the id of the session."""
        assert elicitation.attempt is not None
        stored = await self.run(self.gateway.repeat(elicitation, elicitation.attempt))
        assert stored.session is not None
        return stored.session

    async def fetched(self, elicitation: Elicitation) -> ProviderSession:
        return await self.run(self.gateway.fetch(elicitation, session_of(elicitation)))

    async def collected(self, elicitation: Elicitation) -> ProviderSession:
        return await self.run(self.gateway.collect(elicitation, session_of(elicitation)))

    async def verified_status(self, elicitation: Elicitation) -> SessionStatus:
        """Collect the payment, and return the verified status of the session."""
        found = await self.collected(elicitation)
        return verify_session(elicitation, found, seller=self.gateway.seller)

    async def press(self, elicitation: Elicitation, button: str, *, late: bool = False) -> str:
        """Press a button of the page, and return the address of the redirect."""
        gone = await self.env.press_at(session_of(elicitation), button, late=late)
        assert gone.status_code == 303
        return gone.headers["location"]

    async def paid(self) -> tuple[Elicitation, Payment]:
        """Return a paid question, and its payment as the ledger stores it."""
        begun = await self.begun()
        await self.press(begun, self.pays)
        return begun, await self.payment(begun)

    async def page(self, elicitation: Elicitation) -> httpx.Response:
        return await self.env.browser.get(f"/pay/{session_of(elicitation)}")

    async def payment(self, elicitation: Elicitation) -> Payment:
        """Return the payment as the ledger stores it."""
        found = await self.collected(elicitation)
        return gateway_env.payment(self.name, session=found.id, payment_intent=found.payment)

    async def control(self, **wishes: Any) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.secret}"}
        reply = await self.env.browser.post(f"/{self.name}/control", json=wishes, headers=headers)
        assert reply.status_code == 200, reply.text
        state: dict[str, Any] = reply.json()
        return state


@asynccontextmanager
async def paying_at(name: str) -> AsyncIterator[Paying]:
    """Provide a person who pays at the sandbox's Mollie or PayPal."""
    async with checkout_env() as env, env.client() as client:
        settings, is_mollie = env.settings, name == "mollie"
        mollie, paypal = MollieGateway(settings.mollie()), PayPalGateway(settings.paypal())
        yield Paying(
            env=env,
            gateway=mollie if is_mollie else paypal,
            outbound=Outbound(client, allow_loopback=True),
            secret=settings.mollie_key if is_mollie else settings.paypal_secret,
            pays="paid" if is_mollie else "balance",
            pays_later="pending" if is_mollie else "bank",
        )


def session_of(elicitation: Elicitation) -> str:
    session = stored_checkout(elicitation).session
    assert session is not None
    return session


def page_of(elicitation: Elicitation) -> str | None:
    return stored_checkout(elicitation).url
