"""Payments whose delivery record the store has lost: the operator decides about them."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from flows.errors import NotPossible
from flows.payments.refunds import RefundRequest
from tests.support.mcp_server import LEGACY
from tests.support.paying import paid_in_vain, results_are_noted
from tests.support.records import go_back, scanned
from tests.support.shop_env import REFUND, Buying, Shop, buying
from webapp.cli.payments import end_payment, list_payments, refund_payment
from webapp.deadline import STEP
from webapp.elicitations.watcher import _apply
from webapp.operations.payment_rows import PaymentRow
from webapp.records.high_water import MARK, restored
from webapp.stores import Record

# finding: XV1, XV2
FOR_GOOD = pytest.mark.parametrize("is_for_good", [False, True])


async def marked(shop: Shop) -> list[Record]:
    """Make a new high-water mark, and return the records of the store."""
    shop.clock.tick(seconds=6)
    await shop.service.elicitations.high_water.make_mark()
    return await scanned(shop.store)


async def goes_back(shop: Shop, copies: Sequence[Record]) -> None:
    owners = {payment.owner for payment in await shop.payments()}
    await go_back(shop.store, copies, newer=[*owners])


async def steps_back(shop: Shop, copies: Sequence[Record]) -> None:
    """Restore the store to these earlier copies, and let its process notice the loss."""
    shop.clock.tick(seconds=6)
    await shop.service.elicitations.high_water.make_mark()
    await goes_back(shop, copies)
    await _apply(shop.service.elicitations, None)
    assert await shop.service.elicitations.high_water.step_back() is not None


async def a_backup_is_restored(shop: Shop, copies: Sequence[Record]) -> None:
    mark = next((one for one in copies if one.kind == MARK), None)
    now = shop.clock() - timedelta(seconds=5)  # the clock of the machine that restores is slow
    marks = restored(mark, made_at=now, now=now)
    others = [one for one in copies if one.kind != MARK]
    await goes_back(shop, [*others, *marks])
    await shop.restart()


LOSSES: dict[str, Callable[..., object]] = {
    "failover": steps_back,
    "restore": a_backup_is_restored,
}
losing = pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)


async def listed(shop: Shop) -> list[PaymentRow]:
    return [*(await list_payments(shop.service, only_open=True)).rows]


async def a_week_later(shop: Shop) -> None:
    for _ in range(3):
        shop.clock.tick(days=8)
        await shop.sweep()


async def is_left_to_the_operator(shop: Shop) -> PaymentRow:
    await a_week_later(shop)
    assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
    (row,) = await listed(shop)
    assert (row.standing, row.refund_due_at) == ("made", None)
    assert row.note == (
        "may have been used by a call that the store lost: check, then refund it, "
        "or run elicit payments done"
    )
    return row


async def delivered_in_what_is_lost(shop: Shop, buy: Buying) -> None:
    """Pay, then use the payment in the period whose writes the store loses."""
    await paid_in_vain(shop, buy)
    copies = await marked(shop)
    assert await buy.again() == "paid 9.00 EUR"
    await results_are_noted(shop)
    await steps_back(shop, copies)
    assert await shop.ledger() == ["open"]


@losing
@FOR_GOOD
async def test_payment_whose_use_the_store_lost_is_never_refunded_automatically(
    shop: Shop, lose: Callable[..., object], is_for_good: bool
) -> None:
    shop.is_for_good = is_for_good
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        copies = await marked(shop)
        await buy.again()
        await results_are_noted(shop)
        assert await shop.ledger() == ["spent"]
        await lose(shop, copies)  # type: ignore[misc]
    await is_left_to_the_operator(shop)


@losing
async def test_payment_made_and_used_in_lost_store_data_is_never_refunded_automatically(
    shop: Shop, lose: Callable[..., object]
) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        copies = await marked(shop)
        await buy.person.press_there(there, "card")
        await shop.send_all()
        assert await buy.result() == "paid 9.00 EUR"
        await results_are_noted(shop)
        await lose(shop, copies)  # type: ignore[misc]
    assert await shop.ledger() == []
    await shop.expire()  # the provider is asked when the question ends
    await is_left_to_the_operator(shop)


@pytest.mark.parametrize("lose", [a_backup_is_restored])
async def test_overdue_payment_in_a_restored_backup_is_not_refunded_automatically(
    shop: Shop, lose: Callable[..., object]
) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        copies = await scanned(shop.store)
        shop.clock.tick(days=8)
        await lose(shop, copies)  # type: ignore[misc]
    payments = shop.service.kinds.payments
    (payment,) = await shop.payments()
    with pytest.raises(NotPossible):
        await payments.ledger.begin_refund(
            payment.owner, payment.id, RefundRequest(), only_due=True
        )
    await payments.refunds.fall_due(payment)
    assert await shop.ledger() == ["open"]
    await is_left_to_the_operator(shop)


async def test_same_call_after_a_lost_delivery_gets_the_receipt_and_uses_the_payment(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await delivered_in_what_is_lost(shop, buy)
        await shop.sweep()
    async with shop.env.caller(LEGACY) as caller:
        assert await Buying(
            shop=shop, caller=caller, call=buy.call, link=buy.link, person=buy.person
        ).again() == ("paid 9.00 EUR")
        await results_are_noted(shop)
    assert (await shop.ledger(), await listed(shop)) == (["spent"], [])


async def test_operator_can_close_or_refund_a_payment_whose_delivery_was_lost(shop: Shop) -> None:
    async with buying(shop) as buy:
        await delivered_in_what_is_lost(shop, buy)
        row = await is_left_to_the_operator(shop)
        page = await buy.person.visit(f"{shop.url}/payments")
        assert "Perhaps used." in page.text
        assert "/refund" not in page.text
    copies = await scanned(shop.store)
    assert "counts as used" in (await end_payment(shop.service, row.id))[0]
    assert await shop.ledger() == ["spent"]
    await go_back(shop.store, copies)
    lines = await refund_payment(shop.service, row.id, reason=None, also_spent=False)
    assert "is refunded" in lines[0]


async def test_unused_payment_made_after_the_store_loss_is_refunded_automatically(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        copies = await marked(shop)
        await buy.person.go_on(buy.link)
        await steps_back(shop, copies)
        shop.clock.tick(seconds=STEP.total_seconds() + 1)
        await paid_in_vain(shop, buy)
    await a_week_later(shop)
    assert await shop.ledger() == ["refunded"]
