"""The ways to take a payment back, each through its real interface. Each returns its outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import httpx
from msgspec.structs import replace

from flows.errors import StoreUnavailable
from flows.payments.claims import state_of
from flows.payments.receipt import Payment
from tests.held.holds import Held
from tests.support.api_program import CONFIRM
from tests.support.disputes import CLOSED, claim
from tests.support.mcp_server import PATIENCE_SECONDS, TLS
from tests.support.records import go_back, scanned
from tests.support.shop_env import AWAY
from webapp.cli.payments import list_payments, refund_payment
from webapp.cli.purge import purge_owner
from webapp.command import CommandRefused
from webapp.demo.walker import Page as Forms
from webapp.elicitations.watcher import _apply
from webapp.stores import Record
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
    return "refunds" if is_refunded else "does nothing"


async def _purge(held: Held) -> str:
    payment = await held.world.payment()
    try:
        await purge_owner(held.world.here.service, payment.owner, is_sure=True)
    except CommandRefused:
        return "refuses"
    return "erases other data"


async def _dispute(held: Held) -> str:
    return await _deliver_and_sweep(held, claim(await held.world.payment()))


async def _won(held: Held) -> str:
    await _dispute(held)
    return await _deliver_and_sweep(held, claim(await held.world.payment(), CLOSED, status="won"))


async def _inquiry(held: Held) -> str:
    about = {"id": "dp_2", "status": "warning_needs_response"}
    return await _deliver_and_sweep(held, claim(await held.world.payment(), **about))


async def _deliver_and_sweep(held: Held, event: dict[str, Any]) -> str:
    """Deliver a provider event, run the sweeper, and return the payment's status."""
    await held.world.send(event)
    await held.sweep()
    return (await held.world.payment()).status.value


async def _failed_refund(held: Held) -> str:
    """Refund the payment at the provider, which reports days later that the refund failed."""
    payment, sandbox = await held.world.payment(), held.world.here.sandbox
    page = f"{sandbox.url}/pay/{payment.session}"
    headers = {"authorization": f"Bearer {sandbox.stripe_key}"}
    form = {"payment_intent": payment.payment_intent}
    async with httpx.AsyncClient(verify=TLS, base_url=sandbox.url) as provider:
        await _press_at_provider(provider, page, "slow")
        made = await provider.post("/stripe/v1/refunds", headers=headers, data=form)
        assert made.status_code == 200, made.text
        await _becomes(held, lambda one: one.refunded == one.amount)
        await _press_at_provider(provider, page, "refund_fails")
    await _becomes(held, lambda one: bool(one.failed_refunds))
    await held.sweep()
    return state_of(await held.world.payment())


async def _press_at_provider(provider: httpx.AsyncClient, page: str, button: str) -> None:
    forms = Forms((await provider.get(page)).text).forms
    (form,) = (one for one in forms if one.action.endswith(f"/{button}"))
    assert (await provider.post(form.action, data=form.fields)).status_code == 303


async def _becomes(held: Held, condition: Callable[[Payment], bool]) -> None:
    """Run the sweeper until the sandbox's event has changed the payment."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition(await held.world.payment()):
            await fall_due(held.world.here.service)
            await asyncio.sleep(0)


async def _cancel(held: Held) -> str:
    return await held.cancel()


async def _expiry(held: Held) -> str:
    here = held.world.here
    for _ in range(16 * 12):  # 32 minutes, longer than any question is open
        here.clock.tick(seconds=10)
        await held.renew()
    await fall_due(here.service)
    return "expired"


async def _failover(held: Held) -> str:
    """Make the store unavailable and available again, without loss."""
    here, store = held.world.here, held.world.store
    store.troubles.append(AWAY)
    try:
        await here.service.running_tools.renew()
        await here.service.elicitations.store.check()
    except StoreUnavailable:
        here.clock.tick(seconds=12)
    store.troubles.clear()
    await held.renew()
    return "continues"


async def _step_back(held: Held) -> str:
    """Make the store lose the last seconds while the work continues."""
    copies = await _marked(held)
    await _loses(held, copies)
    return "continues"


async def _lost_delivery(held: Held) -> str:
    """Make the store lose the delivery of the result. Return the status a week later."""
    copies = await _marked(held)
    await held.end()
    await _loses(held, copies)
    held.world.here.clock.tick(days=8)
    await held.sweep()
    (row,) = (await list_payments(held.world.here.service, only_open=True)).rows
    return "on the operator's list" if row.standing == "made" else row.standing


async def _marked(held: Held) -> list[Record]:
    """Return the store's records, with a new high-water mark."""
    here = held.world.here
    here.clock.tick(seconds=6)
    await held.renew()
    await here.service.elicitations.high_water.make_mark()
    return await scanned(held.world.store)


async def _loses(held: Held, copies: Sequence[Record]) -> None:
    """Reset the store to the copies. The process must notice and handle the loss."""
    here, payment = held.world.here, await held.world.payment()
    high_water = here.service.elicitations.high_water
    here.clock.tick(seconds=6)
    if held.came_to is None:
        await held.renew()
    await held.world.till.asked(CONFIRM, user="bob")  # other users write too
    await high_water.make_mark()
    await go_back(held.world.store, copies, newer=[payment.owner])
    await _apply(here.service.elicitations, None)
    await held.sweep()
    back = await high_water.step_back()
    assert back is not None
    assert back.is_handled


TAKES: Mapping[str, Takes] = {
    "the refund button on `/payments`": _page,
    "`elicit payments refund`": _command,
    "a refund over the API": _api,
    "the automatic refund": _clock,
    "`elicit purge`": _purge,
    "a dispute": _dispute,
    "a dispute that is won": _won,
    "a cancellation": _cancel,
    "the question expires": _expiry,
    "the store fails over": _failover,
    "the store loses the last seconds": _step_back,
    "the store loses the delivery": _lost_delivery,
    "a bank inquiry": _inquiry,
    "a refund that fails later": _failed_refund,
}
