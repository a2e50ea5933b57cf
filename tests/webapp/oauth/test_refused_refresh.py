"""Refused refreshes: an account lapses only if the refusal proves that its access has ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.errors import Failed, NotAccepted
from flows.oauth.provider import KnownRefusal
from flows.providers import openid
from tests.support.account_env import CREDENTIALS, Asking, connect, give_up, serving_accounts
from tests.support.clock import Clock
from tests.support.refusals import ENDED, OPERATORS, PAGES, PASSING
from tests.support.renewing import HUB, Renewing, connected, the_one
from webapp.oauth.access_tokens import PAGE_AGAIN_AFTER, REFUSED_AGAIN_AFTER
from webapp.service import Service
from webapp.stores import open_store
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

SECOND_LOOK = REFUSED_AGAIN_AFTER + timedelta(seconds=1)


def answering(network: Renewing, reply: httpx.Response, *, api: int | None = None) -> None:
    """Refuse every refresh with this reply, and each access token at the API with this status."""

    async def renews(request: httpx.Request) -> httpx.Response:
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    network.renews = renews
    if api == 401:
        network.good.clear()
    elif api is not None:
        network.api_status = api


async def called(service: Service, arguments: object) -> str:
    """Return the result of a call: the token, the error, or `asked` if the person is asked."""
    asked = Asking(service, "repo", arguments=arguments)
    while not (asked.task.done() or asked.has_asked):  # noqa: ASYNC110
        await asyncio.sleep(0)
    if asked.has_asked:
        await give_up(asked)
        return "asked"
    try:
        return (await asked.account()).access_token
    except (Failed, NotAccepted) as error:
        return str(error)


@pytest.mark.parametrize("reply", ENDED.values(), ids=ENDED)
async def test_refused_refresh_and_refused_access_token_lapse_account_immediately(
    reply: httpx.Response,
) -> None:
    # finding: XO1
    async with connected(minutes=59, seconds=30) as (service, network, _):
        answering(network, reply, api=401)
        assert [await called(service, n) for n in range(5)] == ["asked"] * 5
        assert (await the_one(service)).status == "lapsed"
        assert network.refreshes == 1


@pytest.mark.diagonal
@pytest.mark.parametrize("api", [200, 403, 500])
@pytest.mark.parametrize("reply", ENDED.values(), ids=ENDED)
async def test_second_refusal_some_minutes_later_lapses_account(
    reply: httpx.Response, api: int
) -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        answering(network, reply, api=api)
        for n in range(5):
            assert "is asked to connect the account again" in await called(service, n)
        assert (await the_one(service)).status == "connected"
        assert network.refreshes == 1
        clock.tick(seconds=SECOND_LOOK.total_seconds())
        assert await called(service, "later") == "asked"
        assert network.refreshes == 2


@pytest.mark.diagonal
@pytest.mark.parametrize("api", [200, 401, 500])
@pytest.mark.parametrize("reply", PAGES.values(), ids=PAGES)
async def test_web_page_instead_of_token_lapses_account_after_an_hour(
    reply: httpx.Response, api: int
) -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        answering(network, reply, api=api)
        for _ in range(PAGE_AGAIN_AFTER // REFUSED_AGAIN_AFTER):
            assert "is asked to connect the account again" in await called(service, str(clock()))
            clock.tick(seconds=REFUSED_AGAIN_AFTER.total_seconds())
        assert (await the_one(service)).status == "connected"
        await fall_due(service)
        assert await called(service, "later") == "asked"


async def test_account_survives_provider_showing_page_for_some_minutes() -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        renews = network.renews
        answering(network, PAGES["redirect"], api=500)
        for _ in range(5):
            await called(service, str(clock()))
            clock.tick(seconds=SECOND_LOOK.total_seconds())
        network.renews = renews
        assert (await called(service, "again")).startswith("key-1.")


async def test_sweeper_retries_refresh_without_calls_and_lapses_account() -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        answering(network, ENDED["HubSpot"], api=500)
        await called(service, 1)
        await fall_due(service)
        assert (await the_one(service)).status == "connected"
        clock.tick(seconds=SECOND_LOOK.total_seconds())
        await fall_due(service)
        assert (await the_one(service)).status == "lapsed"
        assert network.refreshes == 2


async def test_successful_refresh_after_refusal_leaves_account_connected() -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        renews = network.renews
        answering(network, ENDED["a plain 403"], api=500)
        await called(service, 1)
        network.renews = renews
        clock.tick(seconds=SECOND_LOOK.total_seconds())
        assert await called(service, 2) == "key-1.2-of-octocat"
        account = await the_one(service)
        assert (account.status, account.refused_at, account.due_at) == ("connected", None, None)


@pytest.mark.diagonal
@pytest.mark.parametrize("api", [200, 401, 500])
@pytest.mark.parametrize("reply", PASSING.values(), ids=PASSING)
async def test_account_survives_provider_outage_of_several_days(
    reply: httpx.Response, api: int
) -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        renews, good = network.renews, dict(network.good)
        answering(network, reply, api=api)
        for n in range(6):
            assert "could not renew" in await called(service, n)
            await fall_due(service)
            clock.tick(hours=12)
        assert (await the_one(service)).status == "connected"
        network.renews, network.good, network.api_status = renews, good, 200
        assert (await called(service, "again")).startswith("key-1.")


async def test_outage_between_two_refusals_does_not_lapse_account() -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        answering(network, ENDED["Zoho"], api=500)
        await called(service, 1)
        clock.tick(seconds=SECOND_LOOK.total_seconds())
        answering(network, PASSING["502"])
        for n in range(3):
            await called(service, f"down {n}")
            await fall_due(service)
            clock.tick(minutes=10)
        assert (await the_one(service)).status == "connected"


@pytest.mark.parametrize("is_page", [True, False])
async def test_refused_expired_access_token_lapses_account_unless_refresh_got_a_web_page(
    *, is_page: bool
) -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, _):
        reply = httpx.Response(403, html="<h1>Blocked</h1>") if is_page else ENDED["HubSpot"]
        answering(network, reply, api=401)
        result = await called(service, 1)
        assert (result == "asked") is not is_page


async def test_refused_refresh_lapses_account_if_unexpired_access_token_is_refused() -> None:
    # finding: XO1
    async with connected() as (service, network, clock):
        clock.tick(minutes=1)
        found = await the_one(service)
        answering(network, httpx.Response(403, html="<h1>Blocked</h1>"), api=401)
        refused = {"refused": found.access_token, "tool": "t", "client": found.clients[0]}
        keys = service.kinds.accounts.keys
        assert await keys.instead_of(found.owner, found.id, **refused) is None  # type: ignore[arg-type]
        assert (await the_one(service)).status == "lapsed"


async def test_access_token_of_issuer_account_is_tried_at_userinfo_endpoint() -> None:
    # finding: XO1
    issuer = "http://127.0.0.1:8766"
    acme = openid("acme", issuer)

    class Issuer(Renewing):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/openid-configuration"):
                return httpx.Response(
                    200,
                    json={
                        "issuer": issuer,
                        "authorization_endpoint": f"{issuer}/authorize",
                        "token_endpoint": f"{issuer}/access_token",
                        "userinfo_endpoint": f"{issuer}/userinfo",
                        "jwks_uri": f"{issuer}/jwks",
                    },
                )
            return await super().handle_async_request(request)

    network, clock = Issuer(), Clock()
    credentials = {**CREDENTIALS, "acme": ("id", "a-secret-that-is-long")}
    async with serving_accounts(
        network, clock=clock, providers={"github": HUB, "acme": acme}, credentials=credentials
    ) as service:
        await connect(service, "repo")
        found = await the_one(service)
        accounts = service.kinds.accounts
        client = accounts.connections._clients.of(acme)
        key = accounts.connections.key(client, server=found.server)
        changed = replace_connection(found, key=key)
        await service.elicitations.write(changed)
        clock.tick(hours=2)
        answering(network, ENDED["X"], api=401)
        assert await accounts.keys.working(changed) is None


def replace_connection(found: Any, *, key: str) -> Any:
    from msgspec.structs import replace as struct_replace

    return struct_replace(
        found,
        id=found.owner + "acme",
        lookup_key=key,
        provider="acme",
        token_endpoint=None,
        version=0,
    )


@pytest.mark.parametrize("reply", OPERATORS.values(), ids=OPERATORS)
async def test_operator_error_never_lapses_account(reply: httpx.Response) -> None:
    # finding: XO1
    async with connected(hours=2) as (service, network, clock):
        renews, good = network.renews, dict(network.good)
        answering(network, reply, api=401)
        for n in range(5):
            result = await called(service, n)
            assert "operator" in result
            assert "moment" not in result
        assert network.refreshes == 1
        for n in range(5):
            clock.tick(hours=1)
            await fall_due(service)
            assert "operator" in await called(service, f"later {n}")
        assert (await the_one(service)).status == "connected"
        network.renews, network.good = renews, good
        clock.tick(hours=1)
        assert (await called(service, "corrected")).startswith("key-1.")


async def test_declared_refusal_lapses_account_without_second_attempt() -> None:
    # finding: XO1
    known = KnownRefusal(status=400, member="status", value="BAD_REFRESH_TOKEN")
    hub = replace(HUB, refusals=(known,))
    async with connected(hours=2, providers={"github": hub}) as (service, network, _):
        answering(network, ENDED["HubSpot"], api=500)
        assert await called(service, 1) == "asked"


@asynccontextmanager
async def two_processes(network: Renewing, clock: Clock, folder: Path) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        services: list[Service] = []
        for _ in range(2):
            store = await open_store(f"sqlite:///{folder / 'elicit.db'}")
            stack.push_async_callback(store.aclose)
            opening = serving_accounts(network, store=store, clock=clock)
            services.append(await stack.enter_async_context(opening))
        yield services


async def test_refusals_seen_by_two_processes_are_counted_together(tmp_path: Path) -> None:
    # finding: XO1
    network, clock = Renewing(), Clock()
    async with two_processes(network, clock, tmp_path) as (one, other):
        await connect(one, "repo")
        clock.tick(hours=2)
        answering(network, ENDED["Zoom"], api=500)
        for n, service in enumerate((one, other, one, other)):
            assert "is asked to connect the account again" in await called(service, n)
        assert network.refreshes == 1
        clock.tick(seconds=SECOND_LOOK.total_seconds())
        assert await called(other, "later") == "asked"
        assert await called(one, "later") == "asked"
        assert network.refreshes == 2


async def test_clock_set_back_neither_lapses_account_nor_postpones_lapse_forever() -> None:
    # finding: XO1
    network, clock, store = Renewing(), Clock(), MemoryStore()
    async with serving_accounts(network, store=store, clock=clock) as service:
        await connect(service, "repo")
        clock.tick(days=2)
        answering(network, ENDED["Zoom"], api=500)
        await called(service, 1)
        clock.tick(days=-1)
        await called(service, 2)
        assert (await the_one(service)).status == "connected"
        clock.tick(seconds=SECOND_LOOK.total_seconds())
        assert await called(service, 3) == "asked"
