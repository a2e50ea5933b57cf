"""`account.invalidate()`: an author reports that an API refused the access token."""

import asyncio

from msgspec.structs import replace

from flows.oauth.connection import Connection
from tests.support.account_env import Asking, connect, give_up, serving_accounts, stored
from tests.support.clock import Clock
from tests.support.renewing import Renewing, again, connected, reach_of, the_one
from webapp.oauth.access_tokens import FRESH
from webapp.service import Service

FIFTY = 50


async def test_next_call_refreshes_an_invalidated_token_once() -> None:
    # finding: XA1
    async with connected() as (service, network, clock):
        clock.tick(minutes=5)
        account = await again(service, "first")
        await asyncio.gather(*(account.invalidate() for _ in range(FIFTY)))
        assert network.refreshes == 0  # invalidate() itself sends no request
        later = await asyncio.gather(*(again(service, number) for number in range(FIFTY)))
        assert {one.access_token for one in later} == {"key-1.1-of-octocat"}
        assert network.refreshes == 1
        await account.invalidate()  # the token was replaced already
        assert (await again(service, "last")).access_token == "key-1.1-of-octocat"
        assert network.refreshes == 1


async def test_token_issued_a_moment_ago_cannot_be_invalidated() -> None:
    # finding: XA1
    async with connected() as (service, network, clock):
        for number in range(1, FIFTY):
            account = await again(service, number)
            await account.invalidate()
        assert network.refreshes == 0  # the account was connected a moment ago
        clock.tick(seconds=FRESH.total_seconds() + 1)
        for number in range(1, FIFTY):
            account = await again(service, f"later {number}")
            await account.invalidate()
        assert network.refreshes == 1


async def test_account_without_refresh_token_is_asked_for_again() -> None:
    # finding: XA1
    network, clock = Renewing(), Clock()
    async with serving_accounts(network, clock=clock) as service:
        await connect(service, "repo")
        account = await the_one(service)
        await service.elicitations.write_rebuilt(lambda: without_refresh_token(service))
        clock.tick(minutes=5)
        await (await again(service, "first")).invalidate()
        asked = Asking(service, "repo", arguments="second")
        assert (await asked.elicitation()).kind == "oauth"
        assert network.refreshes == 0
        await give_up(asked)
        assert (await the_one(service)).id == account.id


async def test_other_owner_and_unshared_tool_invalidate_nothing() -> None:
    # finding: XA1
    clock = Clock()
    async with serving_accounts(network := Renewing(), clock=clock) as service:
        await connect(service, "repo", subject="alice")
        await connect(service, "repo", subject="bob")
        clock.tick(minutes=5)
        alice, bob = await stored(service)
        await reach_of(service, bob.owner).invalidate(alice.id, alice.access_token)
        await reach_of(service, alice.owner, tool="other").invalidate(alice.id, alice.access_token)
        await reach_of(service, alice.owner).invalidate(alice.id, "a token from before")
        assert await stored(service) == [alice, bob]
        assert network.refreshes == 0


async def without_refresh_token(service: Service) -> list[Connection]:
    return [replace(await the_one(service), refresh_token=None)]
