"""Providers with a host for each customer, and details that come with the token."""

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from flows.elicitation.flow import CallbackParams
from flows.errors import Failed, InvalidQuestion, NotConfigured
from flows.oauth.account import Account
from tests.support.account_env import Asking, give_up, serving_accounts, stored
from tests.support.clock import Clock
from tests.support.tenant_sites import BOOKS, FORCE, SHOP, Sites
from webapp.routes.connections import start_reconnecting
from webapp.routes.redirect import depart, returned
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

ALL = {each.name: each for each in (SHOP, BOOKS, FORCE)}
KEYS = dict.fromkeys(ALL, ("our-id", "our-secret-that-is-long"))


async def come_back(service: Service, url: str, **callback: str) -> None:
    """Return from the provider with a code and these parameters, as the route does."""
    state = parse_qs(urlsplit(url).query)["state"][0]
    back = await returned(service, [state], now=service.clock())
    accounts = service.kinds.accounts
    arrival = CallbackParams(parameters=(("code", "a-code"), *callback.items()))
    code, members = accounts.flow.read_callback(back.elicitation, arrival)
    await accounts.code_exchange.connect(
        back.elicitation, state=back.state, code=code, callback=members
    )


async def connected(
    service: Service, provider: str, *, typed: str | None = None, back: Any = None, **about: Any
) -> Account:
    asked = Asking(service, "read", provider=provider, **about)
    elicitation = await asked.elicitation()
    url = await depart(service, elicitation, cookie="c", tenant=typed)
    await come_back(service, url, **(back or {}))
    return await asked.account()


def sites(network: Sites, **about: Any) -> Any:
    return serving_accounts(network, providers=ALL, credentials=KEYS, **about)


async def test_two_shops_of_one_registration_are_two_accounts() -> None:
    # finding: XO3
    network, clock = Sites(), Clock()
    async with sites(network, clock=clock) as service:
        red = await connected(service, "shop", tenant="red")
        blue = await connected(service, "shop", tenant="https://blue.shops.example/")
        assert (red.tenant, blue.tenant) == ("red.shops.example", "blue.shops.example")
        assert (red.api, red.api_hosts) == (
            "https://red.shops.example/admin/api",
            ("https://red.shops.example",),
        )
        assert red.access_token == "key-of-red.shops.example-1"
        assert {row.tenant for row in await stored(service)} == {red.tenant, blue.tenant}
        for tenant in ("red", "blue.shops.example"):
            asked = Asking(service, "read", provider="shop", tenant=tenant, arguments=tenant)
            assert (await asked.account()).tenant == f"{tenant.partition('.')[0]}.shops.example"
            assert not asked.has_asked
        asked = Asking(service, "read", provider="shop", tenant="green")
        await asked.elicitation()
        await give_up(asked)
        # A refresh and a revocation go to the account's own host.
        clock.tick(hours=2)
        network.asked.clear()
        again = Asking(service, "read", provider="shop", tenant="blue", arguments="later")
        await again.account()
        assert {each.url.host for each in network.asked} == {"blue.shops.example"}
        row = next(each for each in await stored(service) if each.tenant == red.tenant)
        network.asked.clear()
        done = await service.kinds.accounts.keys.disconnect(row.owner, row.id)
        assert done.revoked
        assert {each.url.host for each in network.asked} == {"red.shops.example"}


async def test_person_types_the_tenant_where_the_tool_names_none() -> None:
    async with sites(Sites()) as service:
        account = await connected(service, "shop", typed="Red")
        assert account.tenant == "red.shops.example"
        assert account.label == "ada@example.org · red.shops.example"
        asked = Asking(service, "read", provider="shop", arguments=2)
        assert (await asked.account()).tenant == account.tenant


HOSTILE = [
    "evil.example#.shops.example",
    "evil.example/.shops.example",
    "a@red.shops.example",
    "red.shops.example:444",
    "red.shops.example.",
    "r\u0435d",
    "evil.example",
    "",
    None,
]


@pytest.mark.parametrize("typed", HOSTILE)
async def test_hostile_tenant_is_refused_before_the_browser_leaves(typed: str | None) -> None:
    # finding: XO3
    network = Sites()
    async with sites(network) as service:
        asked = Asking(service, "read", provider="shop")
        elicitation = await asked.elicitation()
        with pytest.raises(InvalidQuestion, match="address must be like"):
            await depart(service, elicitation, cookie="c", tenant=typed)
        current = await service.elicitations.get(elicitation.id)
        assert current is not None
        assert current.attempt is None
        await give_up(asked)
        if typed is not None:
            with pytest.raises(InvalidQuestion, match="address must be like"):
                await Asking(service, "read", provider="shop", tenant=typed).account()
        assert network.asked == []


async def test_tool_that_names_a_tenant_is_not_overruled_by_the_form() -> None:
    async with sites(Sites()) as service:
        asked = Asking(service, "read", provider="shop", tenant="red")
        url = await depart(service, await asked.elicitation(), cookie="c", tenant="blue")
        assert urlsplit(url).netloc == "red.shops.example"
        await give_up(asked)


async def test_reconnected_account_keeps_its_tenant() -> None:
    async with sites(Sites()) as service:
        await connected(service, "shop", tenant="red")
        (row,) = await stored(service)
        question = await start_reconnecting(service, row)
        assert question is not None
        url = await depart(service, question, cookie="c")
        assert urlsplit(url).netloc == "red.shops.example"
        await come_back(service, url)
        (after,) = await stored(service)
        assert (after.id, after.tenant) == (row.id, row.tenant)


async def test_parameter_of_the_callback_is_stored_and_names_the_api() -> None:
    # finding: XO3
    async with sites(Sites()) as service:
        first = await connected(service, "books", back={"realmId": "42"})
        assert (first.details, first.id) == ({"realm_id": "42"}, "42/7")
        assert first.api == "https://api.books.example/v3/company/42"
        second = await connected(service, "books", back={"realmId": "43"}, account="43/7")
        assert second.api.endswith("/43")
        assert len(await stored(service)) == 2


async def test_callback_without_its_parameter_connects_nothing() -> None:
    async with sites(Sites()) as service:
        with pytest.raises(Failed, match="whose account"):
            await connected(service, "books")
        assert await stored(service) == []


async def test_member_of_the_reply_is_the_api() -> None:
    network = Sites()
    network.extra = {"instance_url": "https://acme.my.force.example"}
    store = MemoryStore()
    async with sites(network, store=store) as service:
        account = await connected(service, "force")
        assert account.api == "https://acme.my.force.example/services"
        assert account.api_hosts == (
            "https://acme.my.force.example",
            "https://login.force.example",
        )
        (row,) = await stored(service)
        assert service.kinds.accounts.connections.reach(row)[0] == account.api


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example",
        "https://evil.example#.my.force.example",
        "https://acme.my.force.example:444",
        "https://acme.my.force.example@evil.example",
        "http://acme.my.force.example",
        "https://acme.my.force.example.",
        7,
        {"url": "x"},
        None,
    ],
)
async def test_reply_that_leads_to_another_host_connects_nothing(address: object) -> None:
    # finding: XO3
    network = Sites()
    network.extra = {"instance_url": address}
    async with sites(network) as service:
        with pytest.raises(Failed, match="did not name a usable API"):
            await connected(service, "force")
        assert await stored(service) == []


async def test_provider_of_the_catalogue_is_found_by_its_name_also_after_a_restart() -> None:
    network, store = Sites(), MemoryStore()
    network.extra = {"stripe_user_id": "acct_7"}
    about: dict[str, Any] = {
        "providers": {},
        "credentials": {"stripe_connect": ("our-id", "our-secret-that-is-long")},
        "store": store,
    }
    async with serving_accounts(network, **about) as service:
        account = await connected(service, "stripe_connect")
        assert account.id == "acct_7"
        with pytest.raises(NotConfigured, match="ELICIT_HUBSPOT_CLIENT_ID"):
            await Asking(service, "read", provider="hubspot").account()
    async with serving_accounts(network, **about) as service:
        (row,) = await stored(service)
        assert service.kinds.accounts.connections.client(row) is not None
        asked = Asking(service, "read", provider="stripe_connect", arguments=2)
        assert (await asked.account()).id == "acct_7"
        assert not asked.has_asked


async def test_provider_declared_by_a_tool_overrides_the_catalogue() -> None:
    own = replace(BOOKS, name="zendesk", label="Our desk")
    credentials = {"zendesk": ("our-id", "our-secret-that-is-long")}
    async with serving_accounts(Sites(), providers={}, credentials=credentials) as service:
        asked = Asking(service, "read", provider=own)
        url = await depart(service, await asked.elicitation(), cookie="c")
        assert urlsplit(url).netloc == "books.example"
        await give_up(asked)
