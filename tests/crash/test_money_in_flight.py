"""A kill -9 at each point of a payment while its webhooks are in flight.

Several copies of each webhook were sent and not answered. The provider sends them again later in
another order. At the end the books agree, and the paid work was done once.
"""

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx
import pytest

from flows.payments.receipt import Payment
from tests.crash.account_env import REFUNDS, SESSIONS, AccountEnv, Customer
from tests.crash.books import COMPLETED, agreed
from tests.crash.post import TIMES_RESENT
from tests.crash.shop_env import LEASE_OVER, calling, held

pytest_plugins = ("tests.crash.fixtures",)

NOTHING = "nothing"
REFUNDED = "charge.refunded"
COPIES = 3
PARTS = (100, 200)
EVENTS = 1 + len(PARTS)  # one of the payment, and one of each partial refund
PAID = EVENTS * COPIES
RESENT = EVENTS * TIMES_RESENT


async def pay(account_env: AccountEnv, customer: Customer, there: str) -> str:
    """Pay, refund two parts of the payment, and return the URL that leads back to our server.

    The provider sends webhooks for the payment and for each refund. This function does not wait for
    them. `Server.says` reports when they are in flight.
    """
    await account_env.control(hold=True, duplicates=COPIES - 1)
    back = await customer.press(there)
    session = await account_env.stripe(f"{SESSIONS}/{there.rpartition('/')[2]}")
    for part in PARTS:
        await account_env.refund(session["payment_intent"], part)
    await account_env.control(release=True)
    return back


async def lost(account_env: AccountEnv, customer: Customer, *, mode: str) -> tuple[str, Any]:
    """Return a link and a checkout session. The server died before it read the session's URL."""
    await account_env.withhold(SESSIONS)
    async with account_env.start() as server, calling(server, "buy", mode=mode) as call:
        link = await held(server, call, mode=mode)
        press = asyncio.create_task(customer.to_provider(link))
        return link, json.loads(await account_env.lose_reply(server, press))


async def swept(account_env: AccountEnv, *, later: int = LEASE_OVER) -> None:
    """Run a server until no webhook waits.

    Its first sweep handles what the previous server left.
    """
    async with account_env.start(later=later):
        await account_env.none_is("waiting", "hook")
        await account_env.delivered()


async def ledger(account_env: AccountEnv, *, later: int = LEASE_OVER) -> list[Payment]:
    """Return the payments once all work is done and the books agree."""
    await swept(account_env, later=2 * later)
    return await agreed(account_env)


async def had_once(account_env: AccountEnv, *, mode: str, later: int = LEASE_OVER) -> None:
    """Check that a repeated call returns the paid result without a question. Check the books."""
    async with account_env.start(later=later) as server:
        await account_env.resend_webhooks()
        await account_env.delivered()
        async with calling(server, "buy", mode=mode) as call:
            assert account_env.is_served_once(await call.result())
            assert call.times_asked == 0
            await account_env.come_to("payment", "spent")
        await account_env.resend_webhooks()
        await account_env.delivered()
    (payment,) = await ledger(account_env, later=later)
    assert (payment.status, payment.refunded) == ("spent", sum(PARTS))
    assert len(account_env.work) == 1


@pytest.mark.parametrize(
    ("die", "reads"),
    [
        ("verified", COMPLETED),
        ("hook written", COMPLETED),
        ("taken", COMPLETED),
        ("taken", NOTHING),
        ("finished", NOTHING),
        ("delivering", COMPLETED),
    ],
)
async def test_paid_work_is_done_once_wherever_process_died(
    account_env: AccountEnv, customer: Customer, mode: str, die: str, reads: str
) -> None:
    async with (
        account_env.start(die=die, reads=reads, flying=PAID) as server,
        calling(server, "buy", mode=mode) as call,
    ):
        link = await held(server, call, mode=mode)
        back = await pay(account_env, customer, await customer.to_provider(link))
        if reads == NOTHING:  # the return URL settles the payment
            await server.says("webhooks in flight")
            with suppress(httpx.TransportError):
                await customer.come_back(back)
        await server.died()
    await had_once(account_env, mode=mode)


async def test_session_with_lost_address_is_charged_only_once(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    """Pay at the session whose address was lost, and press Continue again."""
    link, made = await lost(account_env, customer, mode=mode)
    async with account_env.start(die="opened", reads=NOTHING, flying=PAID) as server:
        await pay(account_env, customer, made["url"])
        await server.says("webhooks in flight")
        with pytest.raises(httpx.TransportError):
            await customer.to_provider(link)
        await server.died()
    first, again = await account_env.asked(f"POST {SESSIONS}")
    assert again == first  # same body, same idempotency key
    async with account_env.start():
        await account_env.resend_webhooks()
        await account_env.delivered()
    await swept(account_env)
    await had_once(account_env, mode=mode, later=2 * LEASE_OVER)


async def test_next_press_opens_same_checkout_after_its_address_was_lost(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    link, made = await lost(account_env, customer, mode=mode)
    async with account_env.start(die="hook written", reads=COMPLETED, flying=PAID) as server:
        there = await customer.to_provider(link)
        assert there == made["url"]
        await pay(account_env, customer, there)
        await server.died()
    await had_once(account_env, mode=mode, later=LEASE_OVER)


@pytest.mark.parametrize("die", ["opened", "settled"])
async def test_next_sweeper_continues_after_sweeper_died_while_reconciling(
    account_env: AccountEnv, customer: Customer, mode: str, die: str
) -> None:
    """The sweeper stores first which session is ours, then that it is paid, and dies at `die`."""
    _, made = await lost(account_env, customer, mode=mode)
    async with account_env.start(reads=COMPLETED, flying=PAID) as server:
        await pay(account_env, customer, made["url"])
        await server.says("webhook unanswered")
    assert await account_env.statuses("hook") == ["waiting"]
    async with account_env.start(
        die=die, reads=NOTHING, flying=RESENT, waits_to_sweep=True
    ) as server:
        await account_env.resend_webhooks()
        await server.says("webhooks in flight")
        await server.let_sweep()
        await server.died()
    assert await account_env.statuses("hook") == ["waiting"]
    await swept(account_env)
    await had_once(account_env, mode=mode, later=2 * LEASE_OVER)


async def test_requested_refund_is_made_once_and_tool_continues(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    """The provider made the refund, but our server read neither the reply nor a webhook."""
    await refunded(account_env, customer, mode=mode, reads=NOTHING)
    assert await account_env.statuses("payment") == ["refunding"]
    async with (
        account_env.start(later=LEASE_OVER) as server,
        calling(server, "refund", mode=mode) as call,
    ):
        assert (await call.result()).startswith("9.00 EUR back")
        assert call.times_asked == 0
        await account_env.resend_webhooks()
        await account_env.delivered()
    (payment,) = await ledger(account_env)
    assert (payment.status, payment.refunded) == ("refunded", payment.amount)
    assert len(account_env.work) == 1


@pytest.mark.parametrize("reads", [NOTHING, REFUNDED])
async def test_next_call_reports_refund_not_seen_by_tool(
    account_env: AccountEnv, customer: Customer, mode: str, reads: str
) -> None:
    """The ledger has the refund, from the reply or from a webhook, but the tool never saw it."""
    await refunded(account_env, customer, mode=mode, reads=reads, die="refunded")
    assert await account_env.statuses("payment") == ["refunded"]
    async with account_env.start(later=LEASE_OVER) as server:
        await account_env.resend_webhooks()
        await account_env.delivered()
        async with calling(server, "refund", mode=mode) as call:
            with pytest.raises(AssertionError, match="refunded in the meantime"):
                await call.result()
            assert call.times_asked == 0
    (payment,) = await ledger(account_env)
    assert (payment.status, payment.refunded) == ("refunded", payment.amount)
    assert account_env.work == []


async def refunded(
    account_env: AccountEnv, customer: Customer, *, mode: str, reads: str, die: str | None = None
) -> None:
    """Run a call that pays and refunds, until its server dies.

    The server receives the provider's reply to the refund only if `die` is set and the server reads
    no webhook.
    """
    await account_env.control(duplicates=COPIES - 1)
    has_reply = die is not None and reads == NOTHING
    if not has_reply:
        await account_env.withhold(REFUNDS)
    async with (
        account_env.start(die=die, reads=reads, flying=2 * COPIES) as server,
        calling(server, "refund", mode=mode) as call,
    ):
        link = await held(server, call, mode=mode)
        back = await customer.press(await customer.to_provider(link))
        with suppress(httpx.TransportError):
            await customer.come_back(back)
        if die is not None:
            await server.died()
        else:
            await server.says("webhooks in flight")
    assert len((await account_env.stripe(REFUNDS))["data"]) == 1
