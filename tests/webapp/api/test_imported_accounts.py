"""POST /api/accounts: which accounts of another product a program can store, and for whom."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from flows.oauth.connection import Connection
from flows.oauth.provider import PersonProbe, Provider
from flows.providers import openid
from tests.support.clock import NOON, Clock
from tests.support.program_site import ProgramSite, program_site
from tests.support.shared_stores import STORES
from tests.support.tenant_sites import SHOP
from webapp.api.asking import owner_of_user
from webapp.identity.api_keys import KeyScope
from webapp.stores.opening import open_store

pytestmark = pytest.mark.in_turn("site")  # each case runs on one store
TOKEN, REFRESH = "token-of-the-other-product", "refresh-of-the-other-product"
LOGIN = "https://login.example"
HUB = Provider(
    name="hub",
    label="Hub",
    authorize="https://hub.example/authorize",
    token="https://hub.example/token",
    api="https://api.hub.example",
    person=PersonProbe(url="https://api.hub.example/me", id="id", label="login"),
)
SILENT = Provider(
    name="silent",
    label="Silent",
    authorize="https://silent.example/authorize",
    token="https://silent.example/token",
    api="https://api.silent.example",
    person=PersonProbe(id="reply.id", label="reply.id"),
)
WHO = openid("who", LOGIN, label="Who", api="https://api.who.example")
ALL = {each.name: each for each in (HUB, SILENT, SHOP, WHO)}
KEYS = dict.fromkeys(ALL, ("our-id", "our-secret-that-is-long"))


class Apis(httpx.AsyncBaseTransport):
    """The APIs of all providers. `people` maps each access token to the id of its person."""

    def __init__(self) -> None:
        self.people = {TOKEN: "583231"}
        self.asked: list[httpx.Request] = []
        self.is_down = False
        self.renews: str | None = None  # the access token that a refresh returns
        self.refreshed_with: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # At its start, the server tries the client secret with a POST, which is not recorded.
        if request.method == "GET":
            self.asked.append(request)
        if self.is_down:
            raise httpx.ConnectError("down", request=request)
        if request.url.path == "/.well-known/openid-configuration":
            names = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
            places = {name: f"{LOGIN}/{name}" for name in names}
            return httpx.Response(200, json={"issuer": LOGIN, **places})
        if self.renews is not None and b"grant_type=refresh_token" in request.content:
            (sent,) = parse_qs(request.content.decode())["refresh_token"]
            self.refreshed_with.append(sent)
            number = len(self.refreshed_with)
            more = {"refresh_token": f"rotated-{number}", "token_type": "Bearer"}
            return httpx.Response(200, json={"access_token": self.renews, **more})
        sent = " ".join(request.headers.values())
        found = [who for token, who in self.people.items() if token in sent]
        if not found:
            return httpx.Response(401)
        profile = {"id": found[0], "sub": found[0], "login": "octocat", "email": "ada@example.org"}
        return httpx.Response(200, json=profile)

    @property
    def sent(self) -> list[httpx.Request]:
        """The requests that had credentials."""
        return [one for one in self.asked if "authorization" in one.headers]


@pytest.fixture
def apis() -> Apis:
    return Apis()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, apis: Apis, clock: Clock
) -> AsyncIterator[ProgramSite]:
    async with STORES[request.param](tmp_path) as url:
        store = await open_store(url)
        try:
            async with program_site(
                apis, store=store, providers=ALL, credentials=KEYS, clock=clock
            ) as site:
                yield site
        finally:
            await store.aclose()


def account(**change: Any) -> dict[str, Any]:
    about = {"provider": "hub", "access_token": TOKEN, "refresh_token": REFRESH, "scopes": ["repo"]}
    return {k: v for k, v in (about | change).items() if v is not None}


async def send(
    site: ProgramSite,
    body: Any,
    *,
    user: str | None = "ann",
    scopes: tuple[KeyScope, ...] = (KeyScope.IMPORT,),
    owners: tuple[str, ...] = (),
) -> httpx.Response:
    key, _ = await site.service.identity.api_keys.new(
        program="mover",
        scopes=scopes,
        owners=owners,
        expires_at=site.service.clock() + timedelta(days=1),
    )
    return await site.program.client.post(
        "/api/accounts",
        json=body,
        params={} if user is None else {"user": user},
        headers={"authorization": f"Bearer {key}"},
    )


async def rows(site: ProgramSite, user: str = "ann") -> list[Connection]:
    owner = owner_of_user(site.service, user)
    return [*await site.service.kinds.accounts.connections.all_of(owner)]


async def test_account_is_imported_for_its_user_and_shared_with_nobody(
    site: ProgramSite, apis: Apis
) -> None:
    # finding: XO9
    response = await send(site, account(account_id="583231", label="somebody else"))
    assert (response.status_code, response.json()) == (200, {"result": "imported"})
    (row,) = await rows(site)
    assert (row.person_id, row.label, row.scopes, row.tools) == ("583231", "octocat", ("repo",), ())
    assert (row.access_token, row.refresh_token) == (TOKEN, REFRESH)
    assert await site.accounts() == []
    assert await rows(site, "bob") == []
    assert [one.url.host for one in apis.sent] == ["api.hub.example"]
    assert (await send(site, account())).json() == {"result": "unchanged"}
    apis.people["newer"] = "583231"
    assert (await send(site, account(access_token="newer"))).json() == {"result": "kept"}
    assert [one.access_token for one in await rows(site)] == [TOKEN]
    apis.people["other"] = "7"
    assert (await send(site, account(access_token="other"))).json() == {"result": "imported"}
    assert [one.access_token for one in await rows(site) if one.is_active] == [TOKEN]


async def test_userinfo_of_issuer_names_person_of_imported_account(
    site: ProgramSite, apis: Apis
) -> None:
    assert (await send(site, account(provider="who"))).json() == {"result": "imported"}
    (row,) = await rows(site)
    assert (row.provider, row.person_id, row.label) == ("who", "583231", "ada@example.org")


PAST = (NOON - timedelta(seconds=1)).isoformat()
REFUSED: dict[str, dict[str, Any]] = {
    "expired": {"expires_at": PAST, "refresh_token": None},
    "expired, with a refresh token": {"expires_at": PAST},
    "refresh token expired": {"refresh_expires_at": PAST},
    "no time zone": {"expires_at": "2099-01-01T00:00:00"},
    "time after the last year": {"expires_at": "9999-12-31T23:59:59-12:00"},
    "refused by the provider": {"access_token": "made-up"},
    "account id of another person": {"account_id": "7"},
    "unknown provider": {"provider": "elsewhere"},
    "invalid provider name": {"provider": "../hub"},
    "provider without a person": {"provider": "silent"},
    "scope": {"scopes": ['re"po']},
    "more scopes than a row holds": {"scopes": [f"{number:030}" for number in range(1900)]},
    "details": {"details": {"api_domain": "https://evil.example"}},
    "bidirectional control character in the account id": {"account_id": "583231\u202e"},
}
INVALID: dict[str, dict[str, Any]] = {
    "no token": {"access_token": None},
    "empty token": {"access_token": ""},
    "line break in the token": {"access_token": "a\r\nX-Evil: 1"},
    "list": {"access_token": [TOKEN]},
    "a person of the sender's choice": {"subject": "ann", "issuer": LOGIN},
    "an owner of the sender's choice": {"owner": "x"},
    "tools": {"tools": ["who"]},
    "tenant of a provider without tenants": {"tenant": "red"},
    "no tenant": {"provider": "shop"},
    "another host": {"provider": "shop", "tenant": "evil.example"},
    "fragment": {"provider": "shop", "tenant": "evil.example#.shops.example"},
    "path": {"provider": "shop", "tenant": "evil.example/.shops.example"},
    "user information": {"provider": "shop", "tenant": "evil.example@red.shops.example"},
}


async def test_invalid_account_import_is_refused_and_stores_no_row(
    site: ProgramSite, apis: Apis
) -> None:
    for cases, status in ((REFUSED, 422), (INVALID, 400)):
        for name, change in cases.items():
            response = await send(site, account(**change))
            assert response.status_code == status, (name, response.text)
            assert TOKEN not in response.text, name
            assert "evil" not in response.text, name
    assert await rows(site) == []
    assert {one.url.host for one in apis.sent} <= {"api.hub.example"}
    for body in (None, [], "x", [account()]):
        assert (await send(site, body)).status_code == 400, body
    huge = await send(site, account(label="x" * 1024 * 1024))
    assert huge.status_code == 413
    apis.is_down = True
    down = await send(site, account())
    assert (down.status_code, down.json()["code"]) == (502, "PROVIDER_FAILED")
    assert await rows(site) == []


async def test_key_imports_only_with_its_scope_and_for_its_users(
    site: ProgramSite, apis: Apis
) -> None:
    for scopes in (
        (KeyScope.ASK,),
        (KeyScope.ASK, KeyScope.TOKENS, KeyScope.REFUND),
        (KeyScope.OPERATE,),
    ):
        assert (await send(site, account(), scopes=scopes)).status_code == 403, scopes
    approves = (KeyScope.APPROVE,)
    assert (await send(site, account(), scopes=approves, owners=("ann",))).status_code == 403
    assert (await send(site, account(), owners=("bob",))).status_code == 403
    assert (await send(site, account(), user=None)).status_code == 400
    assert (await send(site, account(), user=None, owners=("ann", "bob"))).status_code == 400
    assert apis.sent == []
    assert await rows(site) == []
    assert (await send(site, account(), user=None, owners=("ann",))).status_code == 200
    listed = await site.program.client.get("/api/accounts", params={"user": "ann"})
    assert listed.json() == {"accounts": []}
    for owners in ((), ("ann",)):
        key, _ = await site.service.identity.api_keys.new(
            program="mover",
            scopes=[KeyScope.IMPORT],
            owners=owners,
            expires_at=site.service.clock() + timedelta(days=1),
        )
        headers = {"authorization": f"Bearer {key}"}
        read = await site.program.client.get(
            "/api/accounts", params={"user": "ann"}, headers=headers
        )
        assert read.status_code == 403


@pytest.mark.parametrize("scope", [KeyScope.APPROVE, KeyScope.OPERATE])
async def test_key_that_approves_or_operates_cannot_import(
    site: ProgramSite, scope: KeyScope
) -> None:
    with pytest.raises(ValueError, match="can have no other scope"):
        await site.service.identity.api_keys.new(
            program="mover",
            scopes=[KeyScope.IMPORT, scope],
            owners=("ann",) if scope is KeyScope.APPROVE else (),
            expires_at=site.service.clock() + timedelta(days=1),
        )


async def test_imported_token_is_in_no_answer_and_no_log(
    site: ProgramSite, apis: Apis, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await send(site, account())).status_code == 200
    page = await site.person().visit(f"{site.service.public_url}/connections")
    assert "octocat" in page.text
    for text in (page.text, caplog.text, json.dumps(await site.accounts())):
        assert TOKEN not in text
        assert REFRESH not in text


@pytest.mark.parametrize("whose", ["583231", "666"])
async def test_refresh_token_of_another_account_ends_the_imported_account(
    site: ProgramSite, apis: Apis, whose: str
) -> None:
    keys = site.service.kinds.accounts.keys
    assert (await send(site, account())).json() == {"result": "imported"}
    (row,) = await rows(site)
    apis.people["renewed"], apis.renews = whose, "renewed"
    await keys.refresh_again(row)
    (row,) = await rows(site)
    assert (row.access_token == "renewed", row.is_connected) == (whose == "583231",) * 2
    if row.is_connected:  # the account is proven, so the profile is not fetched again
        count = len(apis.sent)
        await keys.refresh_again(row)
        assert len(apis.sent) == count


async def test_refresh_token_is_sent_once_if_the_provider_does_not_name_its_person(
    site: ProgramSite, apis: Apis, clock: Clock
) -> None:
    keys = site.service.kinds.accounts.keys
    assert (await send(site, account())).json() == {"result": "imported"}
    (row,) = await rows(site)
    apis.renews = "renewed"
    for number in range(2):  # the API refuses to say whose account it is
        await keys.refresh_again(row)
        (row,) = await rows(site)
        assert (row.access_token, row.refresh_token) == (TOKEN, f"rotated-{number + 1}")
        assert (row.is_unproven, row.is_connected, row.claim) == (True, True, None)
        clock.tick(minutes=1)
    apis.people["renewed"] = "583231"
    await keys.refresh_again(row)
    (row,) = await rows(site)
    assert (row.access_token, row.is_unproven) == ("renewed", False)
    assert apis.refreshed_with == [REFRESH, "rotated-1", "rotated-2"]
