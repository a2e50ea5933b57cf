"""Accounts with API keys over the HTTP API and its proxy, on each shared store."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flows import elicit
from tests.support.key_apis import ACME, ASKED, DESK, KEY, Api
from tests.support.program_site import ProgramSite, program_site
from tests.support.shared_stores import STORES
from webapp.client.requests import body_of
from webapp.coroutines import asking
from webapp.stores.opening import open_store

pytestmark = pytest.mark.in_turn("site")  # each case runs on one store
ALL = {each.name: each for each in (ACME, ASKED, DESK)}
AT = {"acme": "https://api.acme.example", "asked": "https://api.acme.example"}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture(params=list(STORES))
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, api: Api
) -> AsyncIterator[ProgramSite]:
    async with STORES[request.param](tmp_path) as url:
        store = await open_store(url)
        try:
            async with program_site(api, store=store, providers=ALL, credentials={}) as site:
                yield site
        finally:
            await store.aclose()


async def connected(site: ProgramSite, provider: str, **typed: str) -> dict[str, Any]:
    """Ask Ann for a key as the program, type it as Ann, and return the account."""
    asked = await site.program.asked({"kind": "api_key", "provider": provider})
    await typed_by_ann(site, asked["url"], **typed)
    answer = await site.program.read(asked["id"], wait=1)
    account: dict[str, Any] = answer["account"]
    assert KEY not in str(answer)
    return account


async def typed_by_ann(site: ProgramSite, url: str, **typed: str) -> None:
    person = site.person()
    page = await person.visit(url)
    data = {f"answer.{name}": value for name, value in typed.items()}
    done = await person.browser.post(url, data={"csrf": page.csrf, **data})
    assert done.status_code == 303, done.text


async def test_block_of_application_gets_typed_key(site: ProgramSite) -> None:
    shown = list[Any]()

    async def show(link: Any) -> None:
        shown.append(link)
        await typed_by_ann(site, link.url, key=KEY)

    async with asking("ann", show=show, key="wish", app=site.asked_as):
        account = await elicit.api_key(ACME, reason="To read your items")
        assert (account.label, account.access_token) == ("ada@example.org", KEY)
        async with account.client() as api:
            assert api.base_url == "https://api.acme.example/v1/"
    assert len(shown) == 1


def test_client_asks_for_key_without_scopes() -> None:
    body = body_of(elicit.api_key("desk", tenant="red", reason="To look"))
    assert "scopes" not in body
    assert (body["provider"], body["tenant"], body["reason"]) == ("desk", "red", "To look")


@pytest.mark.parametrize("provider", ["acme", "asked"])
async def test_program_uses_key_through_proxy_and_disconnects(
    site: ProgramSite, api: Api, provider: str
) -> None:
    account = await connected(site, provider, key=KEY)
    assert (account["label"], account["status"]) == ("ada@example.org", "connected")
    assert [one["id"] for one in await site.accounts()] == [account["id"]]
    sneaky = {"x-acme-key": "sk-of-program"} if provider == "acme" else {}
    url = f"{AT[provider]}/v1/me?page=2&api_key=sk-of-program"
    reply = await site.proxied(account["id"], url, headers=sneaky)
    assert (reply.status_code, reply.json()["seen"]) == (200, True)
    assert "authorization" not in api.requests[-1].headers
    away = await site.proxied(account["id"], f"{AT[provider]}/v1/away")
    assert (away.status_code, away.headers["location"]) == (302, "https://evil.example/collect")
    elsewhere = await site.proxied(account["id"], "https://evil.example/collect")
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (400, "NOT_THE_PROVIDER")
    read = await site.program.at(f"accounts/{account['id']}/token", params={"user": "ann"})
    sent = {"acme": ("X-Acme-Key", None), "asked": ("Authorization", "api_key")}[provider]
    assert read.json()["access_token"] == KEY
    assert (read.json()["header"], read.json()["query"]) == sent
    ended = await site.program.at(
        f"accounts/{account['id']}", method="DELETE", params={"user": "ann"}
    )
    reported = {"ended": True, "revoked": None, "manage": "https://acme.example/settings/keys"}
    assert ended.json() == reported
    assert await site.accounts() == []


async def test_two_tenants_of_one_user_are_two_accounts(site: ProgramSite, api: Api) -> None:
    red = await connected(site, "desk", key=KEY, user="ada", tenant="red")
    assert red["tenant"] == "red.desk.example"
    asked = await site.program.asked({"kind": "api_key", "provider": "desk", "tenant": "blue"})
    person = site.person()
    page = await person.visit(asked["url"])
    assert "answer.tenant" not in page.text  # the program has already named the tenant
    data = {"csrf": page.csrf, "answer.user": "ada", "answer.key": KEY}
    assert (await person.browser.post(asked["url"], data=data)).status_code == 303
    blue = (await site.program.read(asked["id"], wait=1))["account"]
    assert {one["tenant"] for one in await site.accounts()} == {red["tenant"], blue["tenant"]}
    for one in (red, blue):
        url = f"https://{one['tenant']}/api/items"
        assert (await site.proxied(one["id"], url)).status_code == 200
        assert api.requests[-1].url.host == one["tenant"]
    wrong = await site.proxied(red["id"], f"https://{blue['tenant']}/api/items")
    assert wrong.json()["code"] == "NOT_THE_PROVIDER"


async def test_another_user_cannot_type_a_key_for_the_question(site: ProgramSite, api: Api) -> None:
    asked = await site.program.asked({"kind": "api_key", "provider": "acme"})
    bob = site.person("bob")
    page = await bob.browser.get(asked["url"])
    assert "answer.key" not in page.text
    ann = await site.person().visit(asked["url"])
    data = {"csrf": ann.csrf, "answer.key": KEY}
    assert (await bob.browser.post(asked["url"], data=data)).status_code == 403
    # Only KEY is searched for: at its start, the server sends requests with made-up keys.
    assert not any(KEY in value for one in api.requests for value in one.headers.values())


async def test_oauth_at_key_provider_and_scopes_for_api_key_are_refused(site: ProgramSite) -> None:
    oauth = await site.program.ask({"kind": "oauth", "provider": "acme"})
    assert oauth.status_code == 400
    assert "elicit.api_key" in oauth.json()["detail"]
    unknown = await site.program.ask({"kind": "api_key", "provider": "acme", "scopes": ["x"]})
    assert unknown.status_code == 400
    assert "scopes" in unknown.json()["detail"]
