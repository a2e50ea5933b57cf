"""A store with payments of a provider that was removed from the settings."""

from collections.abc import AsyncIterator

import httpx
import pytest

from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed, NotConfigured
from flows.payments.receipt import ReceiptStatus
from tests.support.payment_env import LEMON_SQUEEZY, LemonSqueezy, PaymentEnv, ordered, selling
from tests.support.service_env import plain_settings
from webapp.cli.payments import list_payments, refund_payment, show_payment
from webapp.cli.webhooks import list_hooks, replay_hook
from webapp.command import CommandRefused
from webapp.http.client import Outbound
from webapp.records.ids import tail_of
from webapp.routes.redirect import depart
from webapp.service import Service, ServiceOptions, open_service
from webapp.sweeper import fall_due


@pytest.fixture
async def payment_env() -> AsyncIterator[PaymentEnv]:
    async with selling(LEMON_SQUEEZY, LemonSqueezy()) as payment_env:
        yield payment_env


@pytest.fixture
async def without(payment_env: PaymentEnv) -> AsyncIterator[Service]:
    """Return a service on the same store that has no payment provider."""
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(500))) as client,
        open_service(
            plain_settings(),
            ServiceOptions(clock=payment_env.clock, outbound=Outbound(client, allow_loopback=True)),
            store=payment_env.store.sibling(),
        ) as service,
    ):
        yield service


async def paid(payment_env: PaymentEnv) -> Elicitation:
    asked = await payment_env.begun()
    assert await ordered(payment_env, asked, "111") == "accepted"
    return asked


async def test_payment_of_a_removed_provider_is_listed_and_its_refund_is_refused(
    payment_env: PaymentEnv, without: Service
) -> None:
    payment = await payment_env.receipt(await paid(payment_env))
    [row] = (await list_payments(without, only_open=True)).rows
    assert row == await show_payment(without, tail_of(payment))
    assert "lemon_squeezy" in repr(row)
    with pytest.raises(CommandRefused, match="no provider of this name is configured"):
        await refund_payment(without, tail_of(payment), reason=None, also_spent=False)
    for days in (1, 7, 20):
        payment_env.clock.tick(days=days)
        await fall_due(without)
    found = await without.kinds.payments.ledger.read(payment.owner, payment.id)
    assert found is not None
    assert found.status is ReceiptStatus.OPEN
    assert len((await list_payments(without, only_open=True)).rows) == 1


async def test_open_question_of_a_removed_provider_is_not_polled_and_expires(
    payment_env: PaymentEnv, without: Service
) -> None:
    asked, fresh = await payment_env.begun(), await payment_env.asked(join="another question")
    with pytest.raises(Failed, match="The payment provider is not configured any more"):
        await without.kinds.payments.checkouts.ask_provider(await payment_env.now(asked))
    with pytest.raises(NotConfigured, match="the payment provider 'lemon_squeezy'"):
        await depart(without, await payment_env.now(fresh), cookie="a browser")
    payment_env.clock.tick(minutes=31)
    for _ in range(10):
        payment_env.clock.tick(seconds=31)
        await fall_due(without)
    assert (await payment_env.now(asked)).status is Status.EXPIRED
    assert (await payment_env.now(fresh)).status is Status.EXPIRED


async def test_webhook_of_a_removed_provider_is_listed_and_its_replay_is_refused(
    payment_env: PaymentEnv, without: Service
) -> None:
    await paid(payment_env)
    [hook] = await payment_env.webhooks()
    assert "lemon_squeezy" in repr((await list_hooks(without)).rows)
    with pytest.raises(CommandRefused, match="lemon_squeezy is not set up here"):
        await replay_hook(without, tail_of(hook))
