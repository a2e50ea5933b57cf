"""The ways to take a payment back, each by its own door, and what that says."""

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import httpx
from msgspec.structs import replace

from flows.errors import StoreUnavailable
from tests.held.holds import Held
from tests.support import signing
from tests.support.disputes import CLOSED, claim
from tests.support.mcp_server import TLS
from tests.support.shop_env import AWAY
from webapp.cli.payments import refund_payment
from webapp.cli.purge import purge_owner
from webapp.command import CommandRefused
from webapp.sweeper import fall_due

Takes = Callable[[Held], Awaitable[str]]


async def _page(held: Held) -> str:
    url = f"{held.world.here.url}/payments"
    if "/refund" not in (await held.person.visit(url)).text:
        return "no button"
    pressed = await held.person.press(url, to="/refund")
    return "refunds" if pressed.status == 303 else "refuses"


async def _command(held: Held) -> str:
    payment = await held.world.payment()
    id = payment.id.removeprefix(payment.owner)
    try:
        await refund_payment(held.world.here.service, id, reason=None, also_spent=False)
    except CommandRefused:
        return "refuses"
    return "refunds"


async def _api(held: Held) -> str:
    path = f"payments/{(await held.world.payment()).id}/refund"
    answer = await held.world.till.at(path, method="POST", params={"user": "ann"}, json={})
    return "refunds" if answer.status_code == 200 else str(answer.status_code)


async def _clock(held: Held) -> str:
    here, payment = held.world.here, await held.world.payment()
    payments = here.service.kinds.payments
    ago = here.clock() - timedelta(seconds=1)
    change = lambda one: replace(one, refund_at=ago)  # noqa: E731
    due = await payments.ledger.change(payment.owner, payment.id, change)
    await payments.refunds.fall_due(due)
    is_refunded = (await held.world.payment()).status == "refunded"
    return "refunds" if is_refunded else "leaves it"


async def _purge(held: Held) -> str:
    payment = await held.world.payment()
    try:
        await purge_owner(held.world.here.service, payment.owner, is_sure=True)
    except CommandRefused:
        return "refuses"
    return "erases the rest"


async def _dispute(held: Held) -> str:
    return await _told(held, claim(await held.world.payment()))


async def _won(held: Held) -> str:
    await _dispute(held)
    return await _told(held, claim(await held.world.payment(), CLOSED, status="won"))


async def _told(held: Held, event: dict[str, Any]) -> str:
    """How the payment stands once its provider has told an event, and that was looked into."""
    here = held.world.here
    body = json.dumps(event).encode()
    headers = signing.stripe(body, secret=here.sandbox.webhook_secret, now=here.clock())
    async with httpx.AsyncClient(verify=TLS, base_url=here.url) as provider:
        answer = await provider.post("/webhooks/stripe", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
    for _ in range(3):
        here.clock.tick(seconds=15)
        await held.renew()
        await fall_due(here.service)
    return (await held.world.payment()).status.value


async def _cancel(held: Held) -> str:
    return await held.cancel()


async def _expiry(held: Held) -> str:
    here = held.world.here
    for _ in range(16 * 12):  # longer than any question lasts, in steps in which leases are renewed
        here.clock.tick(seconds=10)
        await held.renew()
    await fall_due(here.service)
    return "expired"


async def _failover(held: Held) -> str:
    """The store goes away and comes back, and nothing of it is lost."""
    here, store = held.world.here, held.world.store
    store.troubles.append(AWAY)
    try:
        await here.service.bodies.renew()
        await here.service.elicitations.store.check()
    except StoreUnavailable:
        here.clock.tick(seconds=12)
    store.troubles.clear()
    await held.renew()
    return "goes on"


TAKES: Mapping[str, Takes] = {
    "the person's page": _page,
    "`elicit payments refund`": _command,
    "the API": _api,
    "the clock": _clock,
    "`elicit purge`": _purge,
    "a bank's claim": _dispute,
    "a claim that is won": _won,
    "a cancel": _cancel,
    "the question's end": _expiry,
    "a store that fails over": _failover,
}
