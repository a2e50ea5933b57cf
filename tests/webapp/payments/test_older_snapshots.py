"""An older snapshot of the provider that arrives late does not undo a newer statement.

Two processes share a store. The reply to one process is delayed, and the other process receives
newer statements in the meantime.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.elicitation.states import Elicitation
from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import paypal
from flows.payments.receipt import ReceiptStatus
from tests.support.acme import DECLARED, Acme, declared, send
from tests.support.payment_env import Mollie, PaymentEnv, PayPal, Provider, selling
from webapp.stores.sqlite import MemoryStore

OPEN, DISPUTED = ReceiptStatus.OPEN, ReceiptStatus.DISPUTED
NEWS = """
[sellers.acme.news]
"claim.opened" = "open"
"claim.won" = "won"
"""


@dataclass(eq=False)
class Delayed:
    """A provider whose reply to the next GET request waits for `gate`, if `gate` is set."""

    provider: Provider
    gate: asyncio.Event | None = None
    is_made: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        reply = self.provider(request)
        if inspect.isawaitable(reply):
            reply = await reply
        assert isinstance(reply, httpx.Response)
        gate, is_held = self.gate, self.gate is not None and request.method == "GET"
        if gate is not None and is_held:
            self.gate = None
            self.is_made.set()
            await gate.wait()
        return reply


@dataclass(eq=False)
class Paid:
    """A payment at a provider, and two processes of the server."""

    provider: Any
    first: PaymentEnv
    second: PaymentEnv
    slow: Delayed
    asked: Elicitation
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def charge_back(self, *, is_won: bool = False) -> None:
        """Let the bank take the money at the provider, or return it."""
        match self.provider:
            case Mollie():
                value = "0.00" if is_won else "9.00"
                charged_back = {"currency": "EUR", "value": value}
                self.provider.payments["tr_1"]["amountChargedBack"] = charged_back
            case PayPal():
                (capture,) = self.provider.unit("O1")["payments"]["captures"]
                capture["status"] = "COMPLETED" if is_won else "REVERSED"
            case Acme():
                self.provider.checkouts["co-1"]["charged_back"] = 0 if is_won else 900

    async def poll(self, env: PaymentEnv | None = None) -> ReceiptStatus:
        """Ask the provider, and return the status in the ledger."""
        env = env or self.second
        checkouts = env.service.kinds.payments.checkouts
        await checkouts.ask_provider(await env.now(self.asked))
        return await self.status()

    async def poll_slowly(self) -> "asyncio.Task[ReceiptStatus]":
        """Ask the provider in the first process. The reply is made now, and arrives later."""
        self.gate = self.slow.gate = asyncio.Event()
        polling = asyncio.create_task(self.poll(self.first))
        await self.slow.is_made.wait()
        self.tick()
        return polling

    async def status(self) -> ReceiptStatus:
        (payment,) = await self.second.service.kinds.payments.ledger.all()
        return payment.status

    async def report(self, kind: str) -> ReceiptStatus:
        """Send an event of the declared provider."""
        event = self.provider.event().replace(b"checkout.updated", kind.encode())
        assert (await send(self.second, event, id=kind.replace(".", "_"))).status_code == 200
        self.tick()
        return await self.status()

    def tick(self) -> None:
        for env in (self.first, self.second):
            env.clock.tick(minutes=1)


@pytest.fixture
async def paid(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Paid]:
    provider: Any = request.param()
    match provider:
        case Mollie():
            seller: Any = mollie("test_x", webhook_url="https://shop.example/webhooks/mollie")
        case PayPal():
            seller = paypal("an-id", "a-secret", is_live=False)
        case _:
            seller = declared(DECLARED + NEWS, folder=tmp_path)
    slow, store = Delayed(provider), MemoryStore()
    async with (
        selling(seller, slow, store=store.sibling()) as first,
        selling(seller, provider, store=store.sibling()) as second,
    ):
        asked = await first.begun()
        match provider:
            case Mollie():
                provider.payments["tr_1"]["status"] = "paid"
            case PayPal():
                provider.approve("O1")
            case _:
                provider.pay()
        paid = Paid(provider, first, second, slow, asked)
        assert await paid.poll() is OPEN
        yield paid


every_provider = pytest.mark.parametrize("paid", [Mollie, PayPal, Acme], indirect=True)
declared_provider = pytest.mark.parametrize("paid", [Acme], indirect=True)


@every_provider
async def test_delayed_reply_with_a_chargeback_does_not_override_its_later_reversal(
    paid: Paid,
) -> None:
    paid.charge_back()
    assert await paid.poll() is DISPUTED
    polling = await paid.poll_slowly()
    paid.charge_back(is_won=True)
    assert await paid.poll() is OPEN
    paid.tick()
    paid.gate.set()
    assert await polling is OPEN
    paid.charge_back()
    assert await paid.poll() is DISPUTED


@every_provider
async def test_delayed_reply_without_a_chargeback_does_not_override_a_later_one(
    paid: Paid,
) -> None:
    polling = await paid.poll_slowly()
    paid.charge_back()
    assert await paid.poll() is DISPUTED
    paid.tick()
    paid.gate.set()
    assert await polling is DISPUTED
    paid.charge_back(is_won=True)
    assert await paid.poll() is OPEN


@declared_provider
async def test_delayed_reply_with_a_chargeback_does_not_override_a_won_event(paid: Paid) -> None:
    paid.charge_back()
    assert await paid.report("claim.opened") is DISPUTED
    polling = await paid.poll_slowly()
    paid.charge_back(is_won=True)
    assert await paid.report("claim.won") is OPEN
    paid.gate.set()
    assert await polling is OPEN
    paid.charge_back()
    assert await paid.poll() is DISPUTED
