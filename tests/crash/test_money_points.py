"""A kill -9 where money is paid or given back; the provider lives on.

Nobody pays twice, nothing that was paid is lost, and what was bought is handed out once.
"""

import asyncio
import json
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from tests.crash.account_env import REFUNDS, SESSIONS, Customer, Market
from tests.crash.shop_env import GIVEN_AGAIN_OVER, LEASE_OVER, calling, held

pytest_plugins = ("tests.crash.fixtures",)


async def paid(
    market: Market, customer: Customer, *, mode: str, die: str, tool: str = "buy"
) -> str:
    """A call whose person has paid and come back, in a server that died at that point. The link.

    Webhooks come when they are let go: what settles is the way back.
    """
    await market.control(hold=True)
    async with market.start(die=die) as server, calling(server, tool, mode=mode) as call:
        link = await held(server, call, mode=mode)
        back = await customer.press(await customer.to_provider(link))
        with suppress(httpx.TransportError):  # the reply may be lost with the process
            await customer.come_back(back)
        await server.died()
    return link


async def lost(market: Market, customer: Customer, *, mode: str) -> tuple[str, str]:
    """A payment page that the provider has made, and whose address died with the server.

    The link, and the address.
    """
    await market.withhold(SESSIONS)
    async with market.start() as server, calling(server, "buy", mode=mode) as call:
        link = await held(server, call, mode=mode)
        press = asyncio.create_task(customer.to_provider(link))
        reply = await market.lose_reply(server, press)
    assert await market.statuses() == ["opened"]
    return link, json.loads(reply)["url"]


async def test_whose_redirect_to_the_checkout_was_lost_presses_again(
    market: Market, customer: Customer, mode: str
) -> None:
    async with market.start(die="opened") as server, calling(server, "buy", mode=mode) as call:
        link = await call.link()
        with pytest.raises(httpx.TransportError):
            await customer.to_provider(link)
        await server.died()
    assert await market.asked(f"POST {SESSIONS}") == []
    async with market.start() as server, calling(server, "buy", mode=mode) as call:
        await call.link()
        assert await customer.walk(link) == "Paid 9.00 €"
        assert market.is_served_once(await call.result())
        await market.come_to("payment", "spent")
    assert await market.statuses() == ["accepted"]


async def test_a_checkout_whose_address_was_lost_is_found_by_the_next_press(
    market: Market, customer: Customer, mode: str
) -> None:
    link, _ = await lost(market, customer, mode=mode)
    async with market.start() as server, calling(server, "buy", mode=mode) as call:
        await call.link()
        assert await customer.walk(link) == "Paid 9.00 €"
        assert market.is_served_once(await call.result())
        await market.come_to("payment", "spent")
    first, again = await market.asked(f"POST {SESSIONS}")
    assert again == first  # the same words under the same key


async def test_a_webhook_about_a_session_that_we_lost_is_kept_and_reconciled(
    market: Market, customer: Customer, mode: str
) -> None:
    link, there = await lost(market, customer, mode=mode)
    async with market.start() as server:
        await customer.press(there)  # somebody pays what nobody here knows of
        await server.says("wrote hook waiting")
    assert await market.statuses() == ["opened"]
    async with market.start() as server:
        await market.until("accepted")
        assert await customer.come_back(link) == "Paid 9.00 €"
        async with calling(server, "buy", mode=mode) as call:
            assert market.is_served_once(await call.result())
            assert call.times_asked == 0
            await market.come_to("payment", "spent")
    first, again = await market.asked(f"POST {SESSIONS}")
    assert again == first  # the same words under the same key
    (id,) = await market.records("elicitation")
    assert first["key"] == f"{id.id}:1"
    assert await market.statuses("hook") == ["applied"]


async def test_the_same_words_under_the_same_key_make_the_same_session(
    market: Market, customer: Customer
) -> None:
    _, there = await lost(market, customer, mode="legacy")
    (asked,) = await market.asked(f"POST {SESSIONS}")
    assert (await market.stripe(SESSIONS, asked=asked))["url"] == there


@pytest.mark.parametrize("die", ["settled", "taken"])
async def test_what_was_paid_is_used_when_the_lease_of_the_dead_is_out(
    market: Market, customer: Customer, mode: str, die: str
) -> None:
    link = await paid(market, customer, mode=mode, die=die)
    assert await market.statuses("payment") == ["open"]
    async with market.start(later=LEASE_OVER) as server:
        assert await customer.come_back(link) == "Paid 9.00 €"
        async with calling(server, "buy", mode=mode) as call:
            assert market.is_served_once(await call.result())
            assert call.times_asked == 0
            await market.come_to("payment", "spent")
        await market.control(release=True)  # late, and about what is settled
        await server.says("wrote hook repeated")
    assert len(await market.asked(f"POST {SESSIONS}")) == 1
    assert await market.statuses() == ["accepted"]


async def test_a_result_that_was_paid_for_is_given_again_and_the_next_is_paid_anew(
    market: Market, customer: Customer, mode: str
) -> None:
    await paid(market, customer, mode=mode, die="finished")
    async with market.start() as server:
        for _ in range(2):
            async with calling(server, "buy", mode=mode) as call:
                assert market.is_served_once(await call.result())
                assert call.times_asked == 0
    async with (
        market.start(later=GIVEN_AGAIN_OVER) as server,
        calling(server, "buy", mode=mode) as call,
    ):
        assert await customer.walk(await call.link()) == "Paid 9.00 €"
        await call.result()
        await market.come_to("payment", "spent", "spent")
    assert len(market.work) == 2


async def test_a_refund_whose_reply_was_lost_gives_the_money_back_once(
    market: Market, customer: Customer, mode: str
) -> None:
    await market.control(hold=True)  # or the provider would tell us that it is done
    async with market.start() as server, calling(server, "give_back", mode=mode) as call:
        link = await held(server, call, mode=mode)
        back = await customer.press(await customer.to_provider(link))
        await market.withhold(REFUNDS)
        press = asyncio.create_task(customer.come_back(back))
        await market.lose_reply(server, press)
    async with (
        market.start(later=LEASE_OVER) as server,
        calling(server, "give_back", mode=mode) as call,
    ):
        result = await call.result()
        assert result.startswith("9.00 EUR back")
        assert call.times_asked == 0
    assert len(await market.asked(f"POST {REFUNDS}")) == 2
    assert len((await market.stripe(REFUNDS))["data"]) == 1
    assert await market.statuses("payment") == ["refunded"]


async def test_what_was_given_back_before_the_crash_is_asked_for_anew_and_never_used(
    market: Market, customer: Customer, mode: str
) -> None:
    await paid(market, customer, mode=mode, die="refunded", tool="give_back")
    assert await market.statuses("payment") == ["refunded"]
    async with market.start(later=LEASE_OVER) as server:
        async with calling(server, "give_back", mode=mode) as call:
            with pytest.raises(AssertionError, match="given back meanwhile"):
                await call.result()
        async with calling(server, "give_back", mode=mode) as call:
            there = await customer.to_provider(await call.link())
            assert urlsplit(there).path.startswith("/pay/")
            await customer.come_back(await customer.press(there))
            assert (await call.result()).startswith("9.00 EUR back")
    assert await market.statuses("payment") == ["refunded", "refunded"]
