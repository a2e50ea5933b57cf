"""Payments claimed by a call that died: refunded as soon as the claim has certainly expired."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from flows import Receipt
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.shop_env import REFUND, Process, Shop, buying
from webapp.cli.payments import list_payments, refund_payment
from webapp.command import CommandRefused
from webapp.deadline import UNSURE, Steps


async def never(_: Receipt) -> str:
    await asyncio.Event().wait()
    return "never"


@asynccontextmanager
async def in_hand(shop: Shop) -> AsyncGenerator[None]:
    """Let a call claim its payment and keep running."""
    shop.body = never
    async with buying(shop) as buy:
        await buy.pay()
        await eventually(lambda: shop.bodies)
        yield


async def refund(process: Process) -> list[str]:
    """Run the refund command in this process."""
    (row,) = (await list_payments(process.service, only_open=True)).rows
    return await refund_payment(process.service, row.id, reason=None, also_spent=False)


async def standing(process: Process) -> str:
    (row,) = (await list_payments(process.service, only_open=True)).rows
    return row.standing


async def test_refund_command_refunds_the_payment_of_a_dead_call_after_a_wait(shop: Shop) -> None:
    # finding: XD2
    async with in_hand(shop):
        shop.clock.tick(seconds=31)  # and the lease is not renewed
        command = await shop.process()
        began = shop.clock()
        assert await standing(command) == "open"
        assert "is refunded" in (await refund(command))[0]
        assert shop.clock() - began == UNSURE, (
            "the refund waits until the dead call can no longer use the payment"
        )
        assert await shop.ledger() == ["refunded"]
        await command.ended()


async def test_refund_command_refuses_the_payment_of_a_live_call_at_once(shop: Shop) -> None:
    async with in_hand(shop):
        command = await shop.process()
        began = shop.clock()
        assert await standing(command) == "taken"
        with pytest.raises(CommandRefused, match="is using the payment at the moment"):
            await refund(command)
        assert shop.clock() == began
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
        await command.ended()


class Meanwhile(Clock):
    """A clock that runs a callback after each sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if self.meanwhile is not None:
            await self.meanwhile()


async def test_refund_command_refuses_if_the_call_renews_its_lease_during_the_wait(
    shop: Shop,
) -> None:
    async with in_hand(shop):
        clock = Meanwhile()
        clock.now = shop.clock.now
        shop.clock.tick(seconds=31)
        server, shop.clock = shop.service, clock
        clock.tick(seconds=31)
        command = await shop.process()
        clock.meanwhile = server.running_tools.renew
        with pytest.raises(CommandRefused, match="is using the payment at the moment"):
            await refund(command)
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
        await command.ended()


async def test_automatic_refund_right_after_a_start_is_not_delayed(shop: Shop) -> None:
    async with in_hand(shop):
        shop.clock.tick(days=7)
        # Claim all due rows for an hour, so that the earlier process's sweeper does not refund.
        await shop.store.due(shop.clock(), hold=timedelta(hours=1))
        fresh = await shop.process()
        (payment,) = await shop.payments()
        await fresh.service.kinds.payments.refunds.fall_due(payment)
        assert await shop.ledger() == ["refunded"]
        await fresh.ended()


async def test_lease_made_before_the_clock_was_set_back_expires_in_half_a_minute(
    shop: Shop,
) -> None:
    async with in_hand(shop):
        shop.clock.set(hours=-2)
        command = await shop.process()
        with pytest.raises(CommandRefused, match="is using the payment at the moment"):
            await refund(command)
        shop.clock.tick(seconds=31)
        await refund(command)
        assert await shop.ledger() == ["refunded"]
        await command.ended()


async def test_clock_step_uncertainty_is_waited_out_only_once() -> None:
    clock = Clock()
    steps = Steps(clock)
    began = clock()
    await steps.over()
    assert clock() - began == UNSURE
    await steps.over()
    assert clock() - began == UNSURE
