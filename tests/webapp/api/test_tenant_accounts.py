"""Accounts with a tenant or details over the HTTP API and its proxy, on SQLite and PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from flows.oauth.provider import PersonProbe, Provider
from tests.support.program_site import ProgramSite, program_site
from tests.support.shared_stores import STORES
from tests.support.tenant_sites import BOOKS, FORCE, SHOP, Sites
from webapp.stores.opening import open_store

pytestmark = pytest.mark.in_turn("site")  # each case runs on one store
NOTES = Provider(
    name="notes",
    label="Notes",
    authorize="https://notes.example/authorize",
    token="https://notes.example/token",
    api="https://api.notes.example/v1",
    keep={"workspace": "reply.workspace_id"},
    person=PersonProbe(
        url="https://api.notes.example/v1/me",
        id=("reply.workspace_id", "id"),
        label=("email", "reply.workspace_id"),
    ),
)
ALL = {each.name: each for each in (SHOP, BOOKS, FORCE, NOTES)}
KEYS = dict.fromkeys(ALL, ("our-id", "our-secret-that-is-long"))


@pytest.fixture
def network() -> Sites:
    return Sites()


@pytest.fixture(params=["sqlite", "postgres"])
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, network: Sites
) -> AsyncIterator[ProgramSite]:
    async with STORES[request.param](tmp_path) as url:
        store = await open_store(url)
        try:
            async with program_site(network, store=store, providers=ALL, credentials=KEYS) as site:
                yield site
        finally:
            await store.aclose()


async def connected(
    site: ProgramSite,
    provider: str,
    *,
    tenant: str | None = None,
    typed: str | None = None,
    another: bool = False,
    **callback: str,
) -> dict[str, Any]:
    """Ask Ann for an account as the program, connect it as Ann, and return it."""
    asks: dict[str, Any] = {"kind": "oauth", "provider": provider, "scopes": ["read"]}
    asks |= {} if tenant is None else {"tenant": tenant}
    asks |= {"scopes": ["read", "write"]} if another else {}
    asked = await site.program.asked(asks)
    person = site.person()
    page = await person.visit(asked["url"])
    data = {"csrf": page.csrf, **({} if typed is None else {"tenant": typed})}
    there = await person.browser.post(asked["url"], data=data)
    assert there.status_code == 303, there.text
    state = parse_qs(urlsplit(there.headers["location"]).query)["state"][0]
    query = urlencode({"code": "a-code", "state": state, **callback})
    back = await person.browser.get(
        f"{asked['url'].partition('/e/')[0]}/callback/{provider}?{query}"
    )
    assert back.status_code in (200, 303), back.text
    answer = await site.program.read(asked["id"], wait=5)
    assert answer["status"] == "accepted", answer
    account: dict[str, Any] = answer["account"]
    return account


async def disconnected(site: ProgramSite, account: dict[str, Any]) -> None:
    path = f"accounts/{account['id']}"
    ended = await site.program.at(path, method="DELETE", params={"user": "ann"})
    assert ended.json()["ended"], ended.text
    assert account["id"] not in [one["id"] for one in await site.accounts()]
    gone = await site.proxied(account["id"], f"{account['api']}/items")
    assert (gone.status_code, gone.json()["code"]) == (404, "NO_SUCH_ACCOUNT")


async def test_two_shops_are_connected_listed_called_and_disconnected(
    site: ProgramSite, network: Sites
) -> None:
    # finding: XO3
    red = await connected(site, "shop", tenant="red")
    blue = await connected(site, "shop", tenant="blue")
    hosts = {"red.shops.example": red, "blue.shops.example": blue}
    listed = {one["id"]: one["tenant"] for one in await site.accounts()}
    assert listed == {red["id"]: "red.shops.example", blue["id"]: "blue.shops.example"}
    for host, account in hosts.items():
        assert account["api"] == f"https://{host}/admin/api"
        assert (await site.proxied(account["id"], f"{account['api']}/items")).status_code == 200
        sent = network.asked[-1]
        assert sent.url.host == host
        assert sent.headers["authorization"].startswith(f"Bearer key-of-{host}")
    wrong = await site.proxied(red["id"], "https://blue.shops.example/admin/api/items")
    assert wrong.json()["code"] == "NOT_THE_PROVIDER"
    hostile = await site.program.ask(
        {"kind": "oauth", "provider": "shop", "tenant": "evil.example#.shops.example"}
    )
    assert hostile.status_code == 400
    network.asked.clear()
    await disconnected(site, red)
    assert {each.url.host for each in network.asked} == {"red.shops.example"}  # revoked there
    assert [one["id"] for one in await site.accounts()] == [blue["id"]]
    assert (await site.proxied(blue["id"], f"{blue['api']}/items")).status_code == 200


async def test_tenant_typed_by_user_is_completed_to_host_name(site: ProgramSite) -> None:
    account = await connected(site, "shop", typed="Green")
    assert account["tenant"] == "green.shops.example"


async def test_two_workspaces_of_one_person_are_two_accounts(
    site: ProgramSite, network: Sites
) -> None:
    # finding: XO6
    network.extra = {"workspace_id": "w-1"}
    first = await connected(site, "notes")
    network.extra = {"workspace_id": "w-2", "scope": "read write"}
    second = await connected(site, "notes", another=True)
    assert [first["label"], second["label"]] == [
        "ada@example.org · w-1",
        "ada@example.org · w-2",
    ]
    assert {one["details"]["workspace"] for one in await site.accounts()} == {"w-1", "w-2"}
    tokens = list[str]()
    for account in (first, second):
        reply = await site.proxied(account["id"], f"{account['api']}/items")
        assert reply.status_code == 200
        tokens.append(network.asked[-1].headers["authorization"])
    assert len({*tokens}) == 2
    await disconnected(site, first)
    assert [one["id"] for one in await site.accounts()] == [second["id"]]
    assert (await site.proxied(second["id"], f"{second['api']}/items")).status_code == 200


async def test_realm_id_of_callback_is_inserted_into_api_address(
    site: ProgramSite, network: Sites
) -> None:
    account = await connected(site, "books", realmId="9130357")
    assert account["details"] == {"realm_id": "9130357"}
    assert account["api"] == "https://api.books.example/v3/company/9130357"
    assert (await site.proxied(account["id"], f"{account['api']}/bills")).status_code == 200
    assert network.asked[-1].url.path == "/v3/company/9130357/bills"
    await disconnected(site, account)


async def test_instance_url_of_token_reply_becomes_api_host(
    site: ProgramSite, network: Sites
) -> None:
    network.extra = {"instance_url": "https://acme.my.force.example"}
    account = await connected(site, "force")
    assert account["api"] == "https://acme.my.force.example/services"
    assert (await site.proxied(account["id"], f"{account['api']}/data")).status_code == 200
    assert network.asked[-1].url.host == "acme.my.force.example"
    other = await site.proxied(account["id"], "https://other.my.force.example/services/data")
    assert other.json()["code"] == "NOT_THE_PROVIDER"
    await disconnected(site, account)


@pytest.mark.parametrize("host", ["https://evil.example", "https://my.force.example.evil.example"])
async def test_instance_at_another_host_is_refused(
    site: ProgramSite, network: Sites, host: str
) -> None:
    network.extra = {"instance_url": host}
    asked = await site.program.asked({"kind": "oauth", "provider": "force"})
    person = site.person()
    page = await person.visit(asked["url"])
    there = await person.browser.post(asked["url"], data={"csrf": page.csrf})
    state = parse_qs(urlsplit(there.headers["location"]).query)["state"][0]
    query = urlencode({"code": "a-code", "state": state})
    await person.browser.get(f"{asked['url'].partition('/e/')[0]}/callback/force?{query}")
    answer = await site.program.read(asked["id"], wait=5)
    assert answer["status"] == "failed"
    assert await site.accounts() == []
    assert host not in {f"https://{each.url.host}" for each in network.asked}
