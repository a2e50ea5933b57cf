"""A kill -9 while money is paid or refunded; the provider survives.

Nobody pays twice, no payment is lost, and the purchase is delivered once.
"""

import asyncio
import json
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from tests.crash.account_env import REFUNDS, SESSIONS, AccountEnv, Customer
from tests.crash.shop_env import GIVEN_AGAIN_OVER, LEASE_OVER, calling, held

pytest_plugins = ("tests.crash.fixtures",)


async def paid(
    account_env: AccountEnv, customer: Customer, *, mode: str, die: str, tool: str = "buy"
) -> str:
    """Call the tool, pay and return as the person, and wait until the server dies.

    Return the link. Webhooks are held back, so the request to the return URL settles the payment.
    """
    await account_env.control(hold=True)
    async with account_env.start(die=die) as server, calling(server, tool, mode=mode) as call:
        link = await held(server, call, mode=mode)
        back = await customer.press(await customer.to_provider(link))
        with suppress(httpx.TransportError):  # the reply can be lost with the process
            await customer.come_back(back)
        await server.died()
    return link


async def lost(account_env: AccountEnv, customer: Customer, *, mode: str) -> tuple[str, str]:
    """Return a link and a payment page's URL. The server died before it read this URL."""
    await account_env.withhold(SESSIONS)
    async with account_env.start() as server, calling(server, "buy", mode=mode) as call:
        link = await held(server, call, mode=mode)
        press = asyncio.create_task(customer.to_provider(link))
        reply = await account_env.lose_reply(server, press)
    assert await account_env.statuses() == ["opened"]
    return link, json.loads(reply)["url"]


async def test_continue_works_again_after_redirect_to_checkout_was_lost(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    async with account_env.start(die="opened") as server, calling(server, "buy", mode=mode) as call:
        link = await call.link()
        with pytest.raises(httpx.TransportError):
            await customer.to_provider(link)
        await server.died()
    assert await account_env.asked(f"POST {SESSIONS}") == []
    async with account_env.start() as server, calling(server, "buy", mode=mode) as call:
        await call.link()
        assert await customer.walk(link) == "Paid 9.00 €"
        assert account_env.is_served_once(await call.result())
        await account_env.come_to("payment", "spent")
    assert await account_env.statuses() == ["accepted"]


async def test_next_press_finds_checkout_with_lost_address(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    link, _ = await lost(account_env, customer, mode=mode)
    async with account_env.start() as server, calling(server, "buy", mode=mode) as call:
        await call.link()
        assert await customer.walk(link) == "Paid 9.00 €"
        assert account_env.is_served_once(await call.result())
        await account_env.come_to("payment", "spent")
    first, again = await account_env.asked(f"POST {SESSIONS}")
    assert again == first  # same body, same idempotency key


async def test_webhook_about_lost_session_is_stored_and_reconciled(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    link, there = await lost(account_env, customer, mode=mode)
    async with account_env.start() as server:
        await customer.press(there)  # somebody pays at a session that our server does not know
        await server.says("wrote hook waiting")
    assert await account_env.statuses() == ["opened"]
    async with account_env.start() as server:
        await account_env.until("accepted")
        assert await customer.come_back(link) == "Paid 9.00 €"
        async with calling(server, "buy", mode=mode) as call:
            assert account_env.is_served_once(await call.result())
            assert call.times_asked == 0
            await account_env.come_to("payment", "spent")
    first, again = await account_env.asked(f"POST {SESSIONS}")
    assert again == first  # same body, same idempotency key
    (id,) = await account_env.records("elicitation")
    assert first["key"] == f"{id.id}:1"
    assert await account_env.statuses("hook") == ["applied"]


async def test_same_request_with_same_idempotency_key_returns_same_session(
    account_env: AccountEnv, customer: Customer
) -> None:
    _, there = await lost(account_env, customer, mode="legacy")
    (asked,) = await account_env.asked(f"POST {SESSIONS}")
    assert (await account_env.stripe(SESSIONS, asked=asked))["url"] == there


@pytest.mark.parametrize("die", ["settled", "taken"])
async def test_payment_is_used_after_lease_of_killed_process_expires(
    account_env: AccountEnv, customer: Customer, mode: str, die: str
) -> None:
    link = await paid(account_env, customer, mode=mode, die=die)
    assert await account_env.statuses("payment") == ["open"]
    async with account_env.start(later=LEASE_OVER) as server:
        assert await customer.come_back(link) == "Paid 9.00 €"
        async with calling(server, "buy", mode=mode) as call:
            assert account_env.is_served_once(await call.result())
            assert call.times_asked == 0
            await account_env.come_to("payment", "spent")
        await account_env.control(release=True)  # the webhook of a settled payment arrives late
        await server.says("wrote hook repeated")
    assert len(await account_env.asked(f"POST {SESSIONS}")) == 1
    assert await account_env.statuses() == ["accepted"]


async def test_paid_result_is_repeated_for_a_while_then_next_call_pays_again(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await paid(account_env, customer, mode=mode, die="finished")
    async with account_env.start() as server:
        for _ in range(2):
            async with calling(server, "buy", mode=mode) as call:
                assert account_env.is_served_once(await call.result())
                assert call.times_asked == 0
    async with (
        account_env.start(later=GIVEN_AGAIN_OVER) as server,
        calling(server, "buy", mode=mode) as call,
    ):
        assert await customer.walk(await call.link()) == "Paid 9.00 €"
        await call.result()
        await account_env.come_to("payment", "spent", "spent")
    assert len(account_env.work) == 2


async def test_refund_with_lost_reply_refunds_once(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await account_env.control(hold=True)  # no webhook may report the refund
    async with account_env.start() as server, calling(server, "refund", mode=mode) as call:
        link = await held(server, call, mode=mode)
        back = await customer.press(await customer.to_provider(link))
        await account_env.withhold(REFUNDS)
        press = asyncio.create_task(customer.come_back(back))
        await account_env.lose_reply(server, press)
    async with (
        account_env.start(later=LEASE_OVER) as server,
        calling(server, "refund", mode=mode) as call,
    ):
        result = await call.result()
        assert result.startswith("9.00 EUR back")
        assert call.times_asked == 0
    assert len(await account_env.asked(f"POST {REFUNDS}")) == 2
    assert len((await account_env.stripe(REFUNDS))["data"]) == 1
    assert await account_env.statuses("payment") == ["refunded"]


async def test_payment_refunded_before_crash_is_not_used_and_is_asked_again(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await paid(account_env, customer, mode=mode, die="refunded", tool="refund")
    assert await account_env.statuses("payment") == ["refunded"]
    async with account_env.start(later=LEASE_OVER) as server:
        async with calling(server, "refund", mode=mode) as call:
            with pytest.raises(AssertionError, match="refunded in the meantime"):
                await call.result()
        async with calling(server, "refund", mode=mode) as call:
            there = await customer.to_provider(await call.link())
            assert urlsplit(there).path.startswith("/pay/")
            await customer.come_back(await customer.press(there))
            assert (await call.result()).startswith("9.00 EUR back")
    assert await account_env.statuses("payment") == ["refunded", "refunded"]
