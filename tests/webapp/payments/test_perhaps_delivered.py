"""Results sent while the store was unreachable: their payments are not refunded automatically."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from flows import Receipt, elicit
from flows.elicitation.run import Run
from flows.elicitation.states import Json
from flows.elicitation.tool_call import ToolCall
from flows.question import asking
from tests.support.mcp_server import LEGACY, eventually, soon, text_of
from tests.support.paying import paid_in_vain, results_are_noted
from tests.support.service_env import Holding
from tests.support.shop_env import AWAY, REFUND, AwayStore, Buying, Shop, buying, open_shop
from webapp.calls.call import Call, Interrupted
from webapp.calls.verbs import Verbs
from webapp.cli.payments import end_payment, list_payments, refund_payment
from webapp.command import CommandRefused
from webapp.http.exchange import StreamConnection
from webapp.operations.payment_rows import PaymentRow

# finding: XV1
LONG = 100_000  # characters of a result that is too long to be stored


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with open_shop(store=AwayStore()) as shop:
        yield shop


def goes_away(shop: Shop) -> None:
    assert isinstance(shop.store, AwayStore)
    shop.store.troubles.append(AWAY)


def comes_back(shop: Shop) -> None:
    assert isinstance(shop.store, AwayStore)
    shop.store.goes[0] = False
    shop.store.troubles.clear()


async def long(_: Receipt) -> str:
    return "x" * LONG


async def with_once(_: Receipt) -> str:
    async def ship(_key: str) -> Json:
        return "shipped"

    return str(await elicit.once("ship", ship))


BODIES = {"short": None, "long": long, "once": with_once}


async def delivered(shop: Shop, buy: Buying) -> str:
    """Deliver a result to the client while the store is unreachable, so no delivery is stored."""
    await buy.pay()
    text = text_of(await soon(buy.call))
    await eventually(lambda: shop.service.running_tools.is_storing_result)
    return text


async def listed(shop: Shop) -> list[PaymentRow]:
    return [*(await list_payments(shop.service, only_open=True)).rows]


@pytest.mark.parametrize("body", BODIES)
async def test_delivery_is_stored_when_the_store_is_available_again(
    shop: Shop, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.body = BODIES[body] or shop.body
    with caplog.at_level(logging.INFO, logger="webapp"):
        async with buying(shop) as buy:
            await delivered(shop, buy)
            await shop.service.running_tools.renew()
            assert shop.service.running_tools.is_storing_result, (
                "the delivery cannot be stored while the store is unavailable"
            )
            comes_back(shop)
            await shop.service.running_tools.renew()
            await eventually(lambda: not shop.service.running_tools.is_storing_result)
            assert await shop.ledger() == ["spent"]
            assert all(run.is_delivered for run in await shop.service.elicitations.all(Run))
    (failed,) = [vars(one) for one in caplog.records if one.msg == "call.bookkeeping_failed"]
    (payment,) = await shop.payments()
    assert (failed["tool"], failed["payments"], failed["why"]) == ("report", payment.id, AWAY)
    assert failed["call"]
    assert "call.recorded" in [one.msg for one in caplog.records]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("unused", [timedelta(minutes=1), timedelta(days=7)])
async def test_payment_of_a_possibly_delivered_result_is_never_refunded_automatically(
    shop: Shop, body: str, unused: timedelta
) -> None:
    # finding: XV1
    await shop.restart(refund_unused=unused)
    shop.body = BODIES[body] or shop.body
    async with buying(shop) as buy:
        await delivered(shop, buy)
    await died(shop)
    for _ in range(3):
        shop.clock.tick(seconds=unused.total_seconds())
        await shop.sweep()
    assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
    (row,) = await listed(shop)
    assert (row.standing, row.refund_due_at) == ("made", None)
    assert str(row.note).startswith("result made, delivery not confirmed")


async def died(shop: Shop) -> None:
    """End the process before it can store the delivery. Then make the store reachable again."""
    await shop.restart()
    comes_back(shop)
    shop.clock.tick(minutes=1)


async def test_operator_can_close_a_payment_whose_delivery_is_unconfirmed(shop: Shop) -> None:
    async with buying(shop) as buy:
        await delivered(shop, buy)
    await died(shop)
    (row,) = await listed(shop)
    assert await end_payment(shop.service, row.id) == [
        "9.00 EUR counts as used, and is no longer listed."
    ]
    assert (await shop.ledger(), await listed(shop)) == (["spent"], [])


async def test_operator_can_refund_an_unconfirmed_delivery_after_the_process_died(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await delivered(shop, buy)
        (row,) = await listed(shop)
        assert row.standing == "taken"
        comes_back(shop)
        with pytest.raises(CommandRefused, match="at the moment"):
            await end_payment(shop.service, row.id)
        goes_away(shop)
    await died(shop)
    lines = await refund_payment(shop.service, row.id, reason=None, also_spent=False)
    assert "is refunded" in lines[0]
    assert await shop.ledger() == ["refunded"]


async def test_payments_page_says_perhaps_used_and_offers_no_refund(shop: Shop) -> None:
    async with buying(shop) as buy:
        await delivered(shop, buy)
        await died(shop)
        page = await buy.person.visit(f"{shop.url}/payments")
        assert "Perhaps used." in page.text
        assert "/refund" not in page.text


async def test_same_call_after_a_crash_gets_the_stored_result_and_uses_the_payment(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await delivered(shop, buy)
        await died(shop)
    async with shop.env.caller(LEGACY) as caller:  # the session ended with the process
        assert text_of(await soon(caller.call("report"))) == "paid 9.00 EUR"
        await results_are_noted(shop)
        assert (await shop.ledger(), shop.bodies) == (["spent"], 1)


async def made(shop: Shop) -> Call:
    """Return a call that used a payment to make its result and has not sent the result."""
    comes_back(shop)
    service, presenter = shop.service, Holding()
    call = Call(
        service,
        service.identity.caller(None, subject=None, client="c"),
        ToolCall(server="shop", tool="report", client="c", arguments="{}"),
        presenter=presenter,
    )

    async def body() -> None:
        call.begin()
        with asking(Verbs(call)):
            await elicit.payment(shop.price, "Premium report")
        await call.finish(lambda: '"a report"')

    running = asyncio.create_task(body())
    await eventually(lambda: presenter.shown)
    assert presenter.shown is not None
    link = service.links.of(presenter.shown.elicitation, now=shop.clock())
    await (await shop.person()).pay(link)
    await shop.send_all()
    await soon(running)
    return call


async def test_payment_of_an_undelivered_result_is_refunded_automatically(
    shop: Shop,
) -> None:
    call, connection = await made(shop), StreamConnection()
    (payment,) = await shop.payments()
    assert payment.may_be_delivered
    shop.service.running_tools.deliver(call, connection)
    connection.end(is_delivered=False)
    await eventually(lambda: not shop.service.running_tools.is_storing_result)
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["refunded"]


async def test_repeated_result_marks_the_payment_as_possibly_delivered(shop: Shop) -> None:
    call, connection = await made(shop), StreamConnection()
    shop.service.running_tools.deliver(call, connection)
    connection.end(is_delivered=False)
    await eventually(lambda: not shop.service.running_tools.is_storing_result)
    again = Call(shop.service, call.caller, call.tool, presenter=Holding())
    with pytest.raises(Interrupted):
        await again.current_run()
    (payment,) = await shop.payments()
    assert payment.may_be_delivered
    assert payment.due_at is None


async def test_lease_is_renewed_while_a_result_is_being_sent(shop: Shop) -> None:
    call, connection = await made(shop), StreamConnection()
    shop.service.running_tools.deliver(call, connection)
    for _ in range(3):
        shop.clock.tick(seconds=20)
        await shop.service.running_tools.renew()
    (row,) = await listed(shop)
    assert row.standing == "taken"
    connection.end(is_delivered=True)
    await eventually(lambda: not shop.service.running_tools.is_storing_result)
    assert await shop.ledger() == ["spent"]


async def test_payment_with_completed_once_work_is_never_refunded_automatically(shop: Shop) -> None:
    comes_back(shop)
    done = asyncio.Event()

    async def ship_and_stop(receipt: Receipt) -> str:
        await with_once(receipt)
        done.set()
        await asyncio.Event().wait()
        return "never"

    shop.body = ship_and_stop
    async with buying(shop) as buy:
        await buy.pay()
        await soon(done.wait())
        goes_away(shop)
        await died(shop)
        shop.clock.tick(days=8)
        await shop.sweep()
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["open"], 0)
        (row,) = await listed(shop)
        assert str(row.note).startswith("work done by once(), delivery not confirmed")
        page = await buy.person.visit(f"{shop.url}/payments")
        assert "Not used yet" in page.text


async def test_unused_and_undelivered_payment_is_refunded_automatically(shop: Shop) -> None:
    comes_back(shop)
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
    shop.clock.tick(days=7)
    await shop.sweep()
    assert await shop.ledger() == ["refunded"]
