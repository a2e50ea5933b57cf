"""Simultaneous refunds, or a refund and a dispute, at a provider without idempotency keys."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from flows.errors import Failed, NotPossible
from flows.payments.claims import disputed
from flows.payments.receipt import (
    Dispute,
    Payment,
    ReceiptStatus,
    Refund,
)
from flows.payments.refunds import ASKING_AT_MOST, UnderWay
from tests.support.mcp_server import eventually
from tests.support.payment_env import (
    LEMON_SQUEEZY,
    Interrupted,
    LemonSqueezy,
    PaymentEnv,
    ordered,
    selling,
)
from tests.support.service_env import plain_settings
from webapp.http.client import Outbound
from webapp.payments.refunds import Refunds
from webapp.service import Service, ServiceOptions, open_service
from webapp.sweeper import fall_due


@pytest.fixture
def there() -> LemonSqueezy:
    return LemonSqueezy()


@pytest.fixture
def store() -> Interrupted:
    return Interrupted()


@pytest.fixture
async def payment_env(there: LemonSqueezy, store: Interrupted) -> AsyncIterator[PaymentEnv]:
    async with selling(LEMON_SQUEEZY, there, store=store) as payment_env:
        yield payment_env


@pytest.fixture
async def payment(payment_env: PaymentEnv) -> Payment:
    asked = await payment_env.begun()
    await ordered(payment_env, asked, "111")
    return await payment_env.receipt(asked)


@asynccontextmanager
async def another_process(
    payment_env: PaymentEnv, there: LemonSqueezy, *, sells: bool = True
) -> AsyncGenerator[Service]:
    async def public(_host: str, _port: int) -> list[str]:
        return ["93.184.215.14"]

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(there)) as client,
        open_service(
            plain_settings(
                sellers={LEMON_SQUEEZY.name: LEMON_SQUEEZY} if sells else {},
            ),
            ServiceOptions(
                clock=payment_env.clock,
                outbound=Outbound(client, allow_loopback=True, resolve=public),
            ),
            store=payment_env.store.sibling(),
        ) as service,
    ):
        yield service


def refunds_of(service: Service) -> Refunds:
    return service.kinds.payments.refunds


async def standing(payment_env: PaymentEnv, payment: Payment) -> ReceiptStatus:
    found = await payment_env.service.kinds.payments.ledger.read(payment.owner, payment.id)
    assert found is not None
    return found.status


async def test_two_concurrent_refunds_send_a_single_provider_request(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment
) -> None:
    there.answers.clear()
    refund = refunds_of(payment_env.service).refund
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(refund(payment.owner, payment.id, reason=reason))
            for reason in ("the person", "an operator")
        ]
        await eventually(lambda: there.refunds)
        there.answers.set()
    assert [str(one.result().price) for one in asking] == ["9.00 EUR"] * 2
    assert (there.refunds, there.refunded) == (1, 900)
    assert await standing(payment_env, payment) is ReceiptStatus.REFUNDED


async def test_refund_is_refused_while_another_process_refunds(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment
) -> None:
    there.answers.clear()
    async with another_process(payment_env, there) as other:
        first = asyncio.create_task(
            refunds_of(payment_env.service).refund(payment.owner, payment.id, reason="a")
        )
        await eventually(lambda: there.refunds)
        with pytest.raises(UnderWay, match="Another process is refunding"):
            await refunds_of(other).refund(payment.owner, payment.id, reason="b")
        payment_env.clock.tick(seconds=31)
        await fall_due(other)
        there.answers.set()
        await first
        # The second refund, repeated after the first one ended, returns the same refund.
        refund = await refunds_of(other).refund(payment.owner, payment.id, reason="b")
        assert str(refund.price) == "9.00 EUR"
    assert (there.refunds, there.refunded) == (1, 900)


async def test_refund_started_by_a_dead_process_is_retried_after_a_minute(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment
) -> None:
    there.answers.clear()
    async with another_process(payment_env, there) as other:
        dying = asyncio.create_task(
            refunds_of(other).refund(payment.owner, payment.id, reason=None)
        )
        await eventually(lambda: there.refunds)
        dying.cancel()
        await asyncio.wait({dying})
    there.answers.set()
    await fall_due(payment_env.service)
    assert (there.refunded, await standing(payment_env, payment)) == (0, ReceiptStatus.REFUNDING)
    payment_env.clock.now += ASKING_AT_MOST + timedelta(seconds=1)
    await fall_due(payment_env.service)
    assert (there.refunded, await standing(payment_env, payment)) == (900, ReceiptStatus.REFUNDED)


async def test_late_failure_of_an_earlier_refund_does_not_release_the_next_refund(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment
) -> None:
    # finding: T4
    async def refund(service: Service) -> Refund:
        return await refunds_of(service).refund(payment.owner, payment.id, reason=None)

    to_the_first, there.is_down = there.answers, True
    to_the_first.clear()
    async with (
        another_process(payment_env, there) as other,
        another_process(payment_env, there) as third,
    ):
        first = asyncio.create_task(refund(payment_env.service))
        await eventually(lambda: there.refunds == 1)
        payment_env.clock.now += ASKING_AT_MOST + timedelta(seconds=1)
        there.answers = asyncio.Event()
        second = asyncio.create_task(refund(other))
        await eventually(lambda: there.refunds == 2)
        to_the_first.set()
        with pytest.raises(Failed):
            await first
        there.is_down = False
        asking = asyncio.create_task(refund(third))
        await eventually(lambda: asking.done() or there.refunds > 2)
        there.answers.set()
        with pytest.raises(UnderWay):
            await asking
        await second
    assert (there.refunds, there.refunded) == (2, 900)


async def test_failed_refund_does_not_block_a_refund_by_another_process(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment
) -> None:
    there.is_down = True
    async with another_process(payment_env, there) as other:
        with pytest.raises(Failed):
            await refunds_of(payment_env.service).refund(payment.owner, payment.id, reason=None)
        (row,) = await payment_env.service.kinds.payments.ledger.all()
        assert row.due_at is not None
        assert row.due_at - payment_env.clock() == timedelta(minutes=5)
        there.is_down = False
        await refunds_of(other).refund(payment.owner, payment.id, reason=None)
    assert (there.refunded, await standing(payment_env, payment)) == (900, ReceiptStatus.REFUNDED)


async def test_manual_refund_is_refused_in_the_last_minute_before_the_automatic_retry(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment
) -> None:
    refund = refunds_of(payment_env.service).refund
    there.is_down = True
    with pytest.raises(Failed):
        await refund(payment.owner, payment.id, reason=None)
    there.is_down = False
    payment_env.clock.tick(minutes=4, seconds=30)
    with pytest.raises(UnderWay, match="again in a minute"):
        await refund(payment.owner, payment.id, reason=None)
    payment_env.clock.tick(seconds=31)
    await fall_due(payment_env.service)
    assert (there.refunded, await standing(payment_env, payment)) == (900, ReceiptStatus.REFUNDED)


async def test_sweeper_failure_does_not_release_the_refund_of_another_process(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment, store: Interrupted
) -> None:
    async with (
        another_process(payment_env, there) as other,
        another_process(payment_env, there) as third,
    ):
        asking: list[asyncio.Task[Refund]] = []

        async def nothing() -> None:
            pass

        async def begin() -> None:
            there.is_down = False
            there.answers.clear()
            refund = refunds_of(other).refund
            asking.append(asyncio.create_task(refund(payment.owner, payment.id, reason=None)))
            await eventually(lambda: there.refunds == 2)

        # The first write starts the refund, the second claims its turn. `begin` runs before the
        # third, which notes the failure.
        store.meanwhile += [begin, nothing, nothing]
        there.is_down = True
        payment_env.clock.tick(days=7, seconds=1)
        await fall_due(payment_env.service)
        assert there.refunds == 2
        with pytest.raises(UnderWay):
            await refunds_of(third).refund(payment.owner, payment.id, reason=None)
        there.answers.set()
        await asking[0]
    assert (there.refunds, there.refunded) == (2, 900)


async def test_process_without_the_provider_does_not_release_a_running_refund(
    payment_env: PaymentEnv, there: LemonSqueezy, payment: Payment
) -> None:
    there.is_down = True
    with pytest.raises(Failed):
        await refunds_of(payment_env.service).refund(payment.owner, payment.id, reason=None)
    payment_env.clock.tick(minutes=6)
    (due,) = await payment_env.service.kinds.payments.ledger.all()
    there.is_down = False
    there.answers.clear()
    async with another_process(payment_env, there, sells=False) as unable:
        asking = asyncio.create_task(
            refunds_of(payment_env.service).refund(payment.owner, payment.id, reason=None)
        )
        await eventually(lambda: there.refunds == 2)
        await refunds_of(unable).fall_due(due)
        async with another_process(payment_env, there) as third:
            with pytest.raises(UnderWay):
                await refunds_of(third).refund(payment.owner, payment.id, reason=None)
        there.answers.set()
        await asking
    assert (there.refunds, there.refunded) == (2, 900)


@pytest.mark.parametrize("is_by_itself", [False, True])
async def test_payment_disputed_as_its_refund_starts_is_not_refunded(
    payment_env: PaymentEnv,
    there: LemonSqueezy,
    payment: Payment,
    store: Interrupted,
    *,
    is_by_itself: bool,
) -> None:
    ledger = payment_env.service.kinds.payments.ledger

    async def report(stage: Dispute) -> None:
        await ledger.change(payment.owner, payment.id, lambda row: disputed(row, "claim-1", stage))

    store.meanwhile.append(lambda: report(Dispute.OPEN))
    if is_by_itself:
        payment_env.clock.tick(days=7, seconds=1)
        await fall_due(payment_env.service)
    else:
        with pytest.raises(NotPossible, match="disputed"):
            await refunds_of(payment_env.service).refund(
                payment.owner, payment.id, reason="no seats"
            )
    assert not store.meanwhile
    assert (there.refunds, await standing(payment_env, payment)) == (0, ReceiptStatus.DISPUTED)
    for _ in range(3):
        payment_env.clock.tick(days=7)
        await fall_due(payment_env.service)
    assert (there.refunds, await standing(payment_env, payment)) == (0, ReceiptStatus.DISPUTED)
    await report(Dispute.WON)  # the refund that had begun is then carried out
    payment_env.clock.tick(days=7)
    await fall_due(payment_env.service)
    assert (there.refunded, await standing(payment_env, payment)) == (900, ReceiptStatus.REFUNDED)
