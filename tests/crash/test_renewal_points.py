"""Token refreshes of an account by two processes, or with a kill -9 during the refresh.

Concurrent calls cause one refresh, and a lost reply to a refresh costs one question. The provider
rotates refresh tokens and treats the reuse of an old one as theft.
"""

import asyncio
from dataclasses import replace
from socket import socket
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.crash.account_env import TOKEN, AccountEnv, Customer
from tests.crash.account_server import AccountOrders
from tests.crash.shop_env import PortRouter, Server, calling, no_certificates
from tests.support.serving import bound

pytest_plugins = ("tests.crash.fixtures",)

DUE = 3600
CLAIM_OVER = 61
FIFTY = 50


async def connected(account_env: AccountEnv, customer: Customer, *, mode: str) -> None:
    async with account_env.start() as server, calling(server, "connect", mode=mode) as call:
        assert await customer.walk(await call.link()) == "GitHub is connected"
        await call.result()
    assert await renewals(account_env) == 0


async def renewals(account_env: AccountEnv) -> int:
    asked = await account_env.asked(f"POST {TOKEN}")
    return sum("grant_type=refresh_token" in one["body"] for one in asked)


async def test_due_access_token_is_refreshed_without_question(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await connected(account_env, customer, mode=mode)
    async with (
        account_env.start(later=DUE) as server,
        calling(server, "connect", mode=mode) as call,
    ):
        assert "tea for" in await call.result()
        assert call.times_asked == 0
    assert await renewals(account_env) == 1


async def test_person_is_asked_once_after_refresh_reply_was_lost(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await connected(account_env, customer, mode=mode)
    await account_env.withhold(TOKEN)
    async with (
        account_env.start(later=DUE) as server,
        calling(server, "connect", mode=mode) as call,
    ):
        assert b"refresh_token" in await account_env.withheld()
        server.kill()
    assert call.times_asked == 0
    async with account_env.start(later=DUE + CLAIM_OVER) as server:
        async with calling(server, "connect", mode=mode) as call:
            assert await customer.walk(await call.link()) == "GitHub is connected"
            assert "tea for" in await call.result()
        async with calling(server, "connect", mode=mode) as call:
            await call.result()
            assert call.times_asked == 0
    assert await renewals(account_env) == 2
    assert await account_env.statuses("account") == ["connected"]


async def test_another_process_waits_for_claim_of_killed_process(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await connected(account_env, customer, mode=mode)
    await account_env.withhold(TOKEN)
    async with account_env.start(later=DUE) as server, calling(server, "connect", mode=mode):
        await account_env.withheld()
        server.kill()
    async with (
        account_env.start(later=DUE) as server,
        calling(server, "connect", mode=mode) as call,
    ):
        for _ in range(3):
            await server.says("read account")  # the call polls and asks nobody
        assert await renewals(account_env) == 1
        assert call.times_asked == 0
        await server.set_clock(DUE + CLAIM_OVER)
        await customer.walk(await call.link())
        assert "tea for" in await call.result()
    assert await renewals(account_env) == 2


async def test_fifty_calls_in_two_processes_refresh_token_once(
    account_env: AccountEnv, customer: Customer, mode: str
) -> None:
    await connected(account_env, customer, mode=mode)
    with bound("127.0.0.1") as reserved:
        async with (
            account_env.start(later=DUE) as first,
            with_second_process(first, account_env, reserved) as second,
        ):
            results = await asyncio.gather(
                *(results_of(server, mode=mode, calls=FIFTY // 2) for server in (first, second))
            )
    texts = [text for each in results for text in each]
    assert len(texts) == FIFTY
    assert [text for text in texts if not text.startswith("tea for octocat")] == []
    assert await renewals(account_env) == 1


def with_second_process(server: Server, account_env: AccountEnv, reserved: socket) -> Server:
    """Start another process behind the same public address."""
    port = reserved.getsockname()[1]
    assert isinstance(server.orders, AccountOrders)
    return account_env.process_pool.start(replace(server.orders, port=port))


async def results_of(server: Server, *, mode: str, calls: int) -> list[str]:
    """Return the results of this many concurrent calls in a process. None may ask a question."""
    url = f"http://127.0.0.1:{server.orders.public_port}/mcp"
    road: dict[str, list[Any]] = {"request": [PortRouter(server)]}
    async with (
        httpx2.AsyncClient(verify=no_certificates(), timeout=300, event_hooks=road) as http_client,
        Client(streamable_http_client(url, http_client=http_client), mode=mode) as client,
        asyncio.timeout(300),
    ):
        results = await asyncio.gather(*(client.call_tool("connect", {}) for _ in range(calls)))
    return ["".join(getattr(part, "text", "") for part in each.content) for each in results]
