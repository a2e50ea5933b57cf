"""Simultaneous partial refunds, also by several processes, refund no more than was requested."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from flows.errors import Failed, NotPossible
from flows.payments.receipt import Payment, ReceiptStatus
from flows.payments.refunds import ASKING_AT_MOST, UnderWay
from tests.support.mcp_server import eventually
from tests.support.paying import paid_in_vain
from tests.support.shop_env import REFUND, Process, Shop, buying
from webapp.payments.refunds import Refunds
from webapp.service import Service
from webapp.sweeper import fall_due

# finding: XM2
LISTED = "GET /stripe/v1/refunds"


@pytest.fixture
async def other(shop: Shop) -> AsyncIterator[Process]:
    """Start another process on the same store."""
    process = await shop.process()
    yield process
    await process.ended()


@pytest.fixture
async def payment(shop: Shop) -> Payment:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    return await the_payment(shop)


async def the_payment(shop: Shop) -> Payment:
    (payment,) = await shop.payments()
    return payment


async def amounts(shop: Shop) -> list[int]:
    return [one["amount"] for one in await shop.refunds()]


def refunds_of(service: Service) -> Refunds:
    return service.kinds.payments.refunds


async def give(service: Service, payment: Payment, up_to: int | None) -> int:
    refund = await refunds_of(service).refund(
        payment.owner, payment.id, reason=None, up_to=up_to, also_spent=True
    )
    return refund.price.minor_units


@pytest.mark.parametrize("second", [300, 600, None])
async def test_refund_is_refused_while_another_process_makes_a_part_refund(
    shop: Shop, other: Process, payment: Payment, second: int | None
) -> None:
    # finding: XM2
    gate = shop.line.held[REFUND] = asyncio.Event()
    first = asyncio.create_task(give(shop.service, payment, 600))
    await eventually(lambda: shop.line.count(REFUND))
    with pytest.raises(UnderWay, match=r"process is refunding 6\.00 EUR of 9\.00 EUR"):
        await give(other.service, payment, second)
    gate.set()
    assert await first == 600
    assert await amounts(shop) == [600]
    assert (await the_payment(shop)).refunded == 600


async def test_part_refund_is_refused_while_another_process_makes_a_whole_refund(
    shop: Shop, other: Process, payment: Payment
) -> None:
    gate = shop.line.held[REFUND] = asyncio.Event()
    first = asyncio.create_task(give(shop.service, payment, None))
    await eventually(lambda: shop.line.count(REFUND))
    with pytest.raises(NotPossible):
        await give(other.service, payment, 300)
    gate.set()
    await first
    assert await amounts(shop) == [900]


async def test_two_concurrent_part_refunds_refund_only_the_larger_total(
    shop: Shop, payment: Payment
) -> None:
    both = (give(shop.service, payment, up_to) for up_to in (300, 600))
    await asyncio.gather(*both)
    assert sum(await amounts(shop)) == 600
    assert (await the_payment(shop)).refunded == 600


async def test_automatic_refund_waits_for_a_part_refund(
    shop: Shop, other: Process, payment: Payment
) -> None:
    gate = shop.line.held[REFUND] = asyncio.Event()
    first = asyncio.create_task(give(shop.service, payment, 600))
    await eventually(lambda: shop.line.count(REFUND))
    shop.clock.tick(days=7)
    # Another process sweeps while the first refund request, now days old, is unanswered.
    sweeping = asyncio.create_task(fall_due(other.service))
    await eventually(lambda: shop.line.count(REFUND) > 1)
    del shop.line.held[REFUND]
    gate.set()
    await asyncio.gather(first, sweeping)
    assert await amounts(shop) == [600], (
        "both requests have the same key, so the provider made one refund"
    )
    await shop.sweep()
    assert sorted(await amounts(shop)) == [300, 600]
    assert (await the_payment(shop)).status is ReceiptStatus.REFUNDED


@pytest.mark.parametrize("died_before", [LISTED, REFUND, "the write"])
async def test_part_refund_of_a_dead_process_is_finished_by_the_sweeper(
    shop: Shop, other: Process, payment: Payment, died_before: str
) -> None:
    is_done = died_before == "the write"
    if is_done:
        shop.line.lost.append(REFUND)  # the server then asks for the existing refunds
    else:
        shop.line.held[died_before] = asyncio.Event()
    dying = asyncio.create_task(give(other.service, payment, 600))
    await eventually(lambda: shop.line.count(REFUND if is_done else died_before))
    if is_done:
        shop.line.held[LISTED] = asyncio.Event()
        await eventually(lambda: shop.line.count(LISTED) > 1)
    dying.cancel()
    await asyncio.wait({dying})
    shop.line.held.clear()
    for up_to in (300, 600, 700):
        with pytest.raises(UnderWay):
            await give(shop.service, payment, up_to)
    assert (await the_payment(shop)).due_at == shop.clock() + ASKING_AT_MOST
    shop.clock.tick(minutes=1)
    await shop.sweep()
    assert await amounts(shop) == [600]
    found = await the_payment(shop)
    assert (found.refunded, found.part) == (600, None)
    assert found.due_at == found.paid_at + timedelta(days=7)


async def test_later_part_refund_first_finishes_the_refund_of_a_dead_process(
    shop: Shop, other: Process, payment: Payment
) -> None:
    shop.line.held[REFUND] = asyncio.Event()
    dying = asyncio.create_task(give(other.service, payment, 600))
    await eventually(lambda: shop.line.count(REFUND))
    dying.cancel()
    await asyncio.wait({dying})
    shop.line.held.clear()
    shop.clock.tick(minutes=2)
    await give(shop.service, payment, 300)
    assert await amounts(shop) == [600]
    await give(shop.service, payment, 700)
    assert sorted(await amounts(shop)) == [100, 600]


async def test_unanswered_part_refund_is_retried_automatically(
    shop: Shop, payment: Payment
) -> None:
    shop.line.is_down = True
    with pytest.raises(Failed):
        await give(shop.service, payment, 600)
    with pytest.raises(Failed):
        await give(shop.service, payment, 300)
    shop.line.is_down = False
    shop.clock.tick(minutes=20)
    await shop.sweep()
    assert await amounts(shop) == [600]


async def test_part_refund_refused_by_the_provider_does_not_block_another_refund(
    shop: Shop, payment: Payment
) -> None:
    shop.line.refused[REFUND] = (400, "charge_disputed")
    with pytest.raises(Failed, match="charge_disputed"):
        await give(shop.service, payment, 600)
    shop.line.refused.clear()
    assert await give(shop.service, payment, 300) == 300
    assert await amounts(shop) == [300]


async def test_full_refund_replaces_an_unanswered_part_refund(shop: Shop, payment: Payment) -> None:
    shop.line.is_down = True
    with pytest.raises(Failed):
        await give(shop.service, payment, 600)
    shop.line.is_down = False
    shop.clock.tick(hours=1)
    await give(shop.service, payment, None)
    assert await amounts(shop) == [900]
    found = await the_payment(shop)
    assert (found.status, found.part) == (ReceiptStatus.REFUNDED, None)
