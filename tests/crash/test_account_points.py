"""Kill the server with SIGKILL while a person connects an account or types a secret.

Stored results are used, and nobody is asked again. An unknown result is reported as failed.
"""

import asyncio
from contextlib import suppress

import httpx
import pytest

from tests.crash.account_env import TOKEN, AccountEnv, Customer
from tests.crash.shop_env import GIVEN_AGAIN_OVER, LEASE_OVER, calling, held

pytest_plugins = ("tests.crash.fixtures",)

INTERRUPTED = 61
WIPED = 601


async def connected(account_env: AccountEnv, customer: Customer, *, mode: str, die: str) -> str:
    """Call `connect`, agree as the person, and wait until the server dies. Return the link."""
    async with account_env.start(die=die) as server, calling(server, "connect", mode=mode) as call:
        link = await held(server, call, mode=mode)
        back = await customer.press(await customer.to_provider(link))
        with suppress(httpx.TransportError):  # the reply can be lost with the process
            await customer.come_back(back)
        await server.died()
    return link


async def typed(
    account_env: AccountEnv, customer: Customer, tool: str, *, mode: str, die: str
) -> str:
    """Call the tool, type the secret as the person, and wait until the server dies.

    Return the link.
    """
    async with account_env.start(die=die) as server, calling(server, tool, mode=mode) as call:
        link = await held(server, call, mode=mode)
        with suppress(httpx.TransportError):
            await customer.press(link, typed="sesame")
        await server.died()
    return link


async def test_continue_works_again_after_redirect_to_provider_was_lost(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    async with (
        account_env.start(die="opened") as server,
        calling(server, "connect", mode=mode) as call,
    ):
        link = await call.link()
        with pytest.raises(httpx.TransportError):
            await customer.to_provider(link)
        await server.died()
    assert await account_env.statuses() == ["opened"]
    async with account_env.start() as server, calling(server, "connect", mode=mode) as call:
        await call.link()
        assert await customer.walk(link) == "GitHub is connected"
        assert account_env.is_served_once(await call.result())
    assert await account_env.statuses() == ["accepted"]
    assert len(await account_env.asked(f"POST {TOKEN}")) == 1


@pytest.mark.parametrize(("die", "times_asked"), [("exchanging", 0), ("exchanged", 1)])
async def test_exchange_interrupted_by_crash_fails_and_is_not_repeated(
    account_env: AccountEnv, customer: Customer, mode: str, die: str, times_asked: int
) -> None:
    link = await connected(account_env, customer, mode=mode, die=die)
    assert await account_env.statuses() == ["exchanging"]
    assert len(await account_env.asked(f"POST {TOKEN}")) == times_asked
    async with account_env.start(later=INTERRUPTED) as server:
        await account_env.until("failed")
        await offers_to_begin_again(customer, link)
        async with calling(server, "connect", mode=mode) as call:
            assert await customer.walk(await call.link()) == "GitHub is connected"
            assert account_env.is_served_once(await call.result())
    assert sorted(await account_env.statuses()) == ["accepted", "failed"]
    assert len(await account_env.asked(f"POST {TOKEN}")) == times_asked + 1


async def test_code_with_lost_token_reply_fails_and_page_says_so(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    async with account_env.start() as server, calling(server, "connect", mode=mode) as call:
        link = await held(server, call, mode=mode)
        back = await customer.press(await customer.to_provider(link))
        await account_env.withhold(TOKEN)
        press = asyncio.create_task(customer.come_back(back))
        assert b"access_token" in await account_env.lose_reply(server, press)
    assert await account_env.statuses() == ["exchanging"]
    async with account_env.start() as server:
        assert await customer.come_back(link) == "Finishing…"
        # The browser sends the same redirect again, whose state is already used.
        await customer.go(back)
        assert len(await account_env.asked(f"POST {TOKEN}")) == 1
    async with account_env.start(later=INTERRUPTED) as server:
        await account_env.until("failed")
        await offers_to_begin_again(customer, link)
        async with calling(server, "connect", mode=mode) as call:
            assert await customer.walk(await call.link()) == "GitHub is connected"
            assert account_env.is_served_once(await call.result())
    assert len(await account_env.asked(f"POST {TOKEN}")) == 2


@pytest.mark.parametrize("die", ["settled", "taken"])
async def test_connected_account_is_used_after_lease_of_killed_process_expires(
    account_env: AccountEnv, customer: Customer, mode: str, die: str
) -> None:
    # parity: L13
    link = await connected(account_env, customer, mode=mode, die=die)
    async with account_env.start(later=LEASE_OVER) as server:
        assert await customer.come_back(link) == "GitHub is connected"
        async with calling(server, "connect", mode=mode) as call:
            assert account_env.is_served_once(await call.result())
            assert call.times_asked == 0
    assert await account_env.statuses("account") == ["connected"]
    assert len(await account_env.asked(f"POST {TOKEN}")) == 1


async def test_result_with_account_is_repeated_for_a_while_then_work_runs_again(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await connected(account_env, customer, mode=mode, die="arrived")
    async with account_env.start() as server:
        for _ in range(2):
            async with calling(server, "connect", mode=mode) as call:
                assert account_env.is_served_once(await call.result())
    async with (
        account_env.start(later=GIVEN_AGAIN_OVER) as server,
        calling(server, "connect", mode=mode) as call,
    ):
        await call.result()
        assert call.times_asked == 0  # the account is stored, so only the work is repeated
    assert len(account_env.work) == 2


@pytest.mark.parametrize(("die", "tool"), [("settled", "unlock"), ("taken", "unlock_for_good")])
async def test_unused_secret_is_typed_only_once(
    account_env: AccountEnv, customer: Customer, mode: str, die: str, tool: str
) -> None:
    link = await typed(account_env, customer, tool, mode=mode, die=die)
    async with account_env.start(later=LEASE_OVER) as server:
        assert "sesame" not in await customer.text(link)
        async with calling(server, tool, mode=mode) as call:
            assert account_env.is_served_once(await call.result())
            assert call.times_asked == 0
    assert await account_env.statuses() == ["accepted"]


async def test_secret_is_erased_after_ten_minutes(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await typed(account_env, customer, "unlock", mode=mode, die="taken")
    async with (
        account_env.start(later=WIPED) as server,
        calling(server, "unlock", mode=mode) as call,
    ):
        await customer.press(await call.link(), typed="open sesame")
        assert (await call.result()).startswith("tea for 11 letters")


async def test_named_secret_is_still_stored_after_ten_minutes(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await typed(account_env, customer, "unlock_for_good", mode=mode, die="taken")
    async with account_env.start(later=WIPED) as server:
        for _ in range(2):
            async with calling(server, "unlock_for_good", mode=mode) as call:
                assert (await call.result()).startswith("tea for 6 letters")
                assert call.times_asked == 0


async def offers_to_begin_again(customer: Customer, link: str) -> None:
    page = await customer.text(link)
    assert "This did not work" in page
    assert "To start again" in page
    assert "remove it there" in page
