"""The server's own accounts at providers: no person is asked, and processes share each token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from flows.errors import Failed, InvalidQuestion
from flows.oauth.account import Account
from flows.oauth.provider import PersonProbe, Provider
from tests.support.account_env import Asking, Network, serving_accounts, stored
from tests.support.clock import Clock
from tests.support.program_site import program_site
from tests.support.shared_stores import STORES
from webapp.service import Service
from webapp.stores.opening import open_store
from webapp.stores.sqlite import MemoryStore

ROBOT = Provider(
    name="robot",
    label="Robot",
    token="https://robot.example/token",
    api="https://api.robot.example",
    service_account=True,
)
KEYS = {"robot": ("our-id", "our-secret-that-is-long")}


class Robots(Network):
    """A provider with the client credentials grant, which counts its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, list[str]]] = []
        self.refusal: httpx.Response | None = None
        self.api: list[str] = []
        self.revoked: set[str] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        if request.url.path != "/token":
            token = request.headers["authorization"].removeprefix("Bearer ")
            self.api.append(token)
            return httpx.Response(401 if token in self.revoked else 200, json={})
        self.asked.append(parse_qs(request.content.decode()))
        if self.refusal is not None:
            return self.refusal
        reply = {
            "access_token": f"token-{len(self.asked)}",
            "token_type": "Bearer",
            "expires_in": 3600,
            "refresh_token": "not-needed",
            "id_token": "a.b.c",
        }
        return httpx.Response(200, json=reply)


def serving(network: Robots, **more: Any) -> Any:
    return serving_accounts(network, providers={"robot": ROBOT}, credentials=KEYS, **more)


async def account(service: Service, *scopes: str, **about: Any) -> Account:
    asked = Asking(service, *scopes, provider="robot", **about)
    try:
        return await asked.account()
    finally:
        assert not asked.has_asked


@pytest.fixture(params=["sqlite", "postgres"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Any]]:
    """Provide two connections to one store, as two processes have."""
    async with STORES[request.param](tmp_path) as url, AsyncExitStack() as stack:
        found = [await open_store(url) for _ in range(2)]
        for one in found:
            stack.push_async_callback(one.aclose)
        yield found


async def test_all_callers_of_two_processes_share_one_token(stores: list[Any]) -> None:
    # finding: XO9
    network, clock = Robots(), Clock()
    async with (
        serving(network, store=stores[0], clock=clock) as one,
        serving(network, store=stores[1], clock=clock) as two,
    ):
        for number in (1, 2):  # the first token, and its renewal
            found = await asyncio.gather(
                *(
                    account(service, "read", subject=who, arguments=[number, who])
                    for service in (one, two)
                    for who in ("ann", "bob", "eve")
                )
            )
            assert {each.access_token for each in found} == {f"token-{number}"}
            assert len(network.asked) == number
            clock.tick(hours=1)
        assert network.asked[0] == {"grant_type": ["client_credentials"], "scope": ["read"]}
        (row,) = await stored(one)
        assert row.refresh_token is None
        assert row.status == "connected"


async def test_service_account_is_in_no_list_of_accounts(stores: list[Any]) -> None:
    network, clock = Robots(), Clock()
    about: dict[str, Any] = {"providers": {"robot": ROBOT}, "credentials": KEYS, "clock": clock}
    async with program_site(network, store=stores[0], **about) as site:
        asks = {"kind": "oauth", "provider": "robot", "scopes": ["read"]}
        answer = await site.program.asked(asks)
        assert answer["status"] == "accepted"
        assert await site.accounts() == []
        assert "Robot" not in (await site.person().visit("http://127.0.0.1:8765/connections")).text
        id = answer["account"]["id"]
        assert (await site.proxied(id, "https://api.robot.example/items")).status_code == 200
        clock.tick(minutes=1)
        (first,) = network.api
        network.revoked.add(first)  # the proxy gets another token, and sends the request again
        assert (await site.proxied(id, "https://api.robot.example/items")).status_code == 200
        *refused_with, last = network.api
        assert refused_with == [first, first]
        assert last != first
        path, user = f"accounts/{id}", {"user": "ann"}
        refused = await site.program.at(path, method="DELETE", params=user)
        assert refused.status_code == 403
        (row,) = await stored(site.service)
        assert row.is_connected


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (401, "invalid_client", "client id or secret"),
        (400, "unauthorized_client", "Only the server's operator can correct that"),
        (400, "invalid_scope", "Only the server's operator can correct that"),
        (400, "invalid_grant", "Only the server's operator can correct that"),
        (503, "temporarily_unavailable", "Robot"),
    ],
)
async def test_refusal_is_an_error_and_asks_nobody(status: int, error: str, says: str) -> None:
    network, clock = Robots(), Clock()
    network.refusal = httpx.Response(status, json={"error": error})
    async with serving(network, clock=clock) as service:
        with pytest.raises(Failed, match=says):
            await account(service, arguments=1)
        network.refusal = None
        clock.tick(minutes=11)
        assert (await account(service, arguments=2)).access_token == "token-2"
        (row,) = await stored(service)
        assert row.lapsed_at is None


async def test_named_account_is_refused() -> None:
    async with serving(Robots()) as service:
        with pytest.raises(InvalidQuestion, match="leave account out"):
            await account(service, account="ann")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"authorize": "https://robot.example/authorize"}, "authorize: leave it out"),
        (
            {"person": PersonProbe(url="https://api.robot.example/me", id="id", label="id")},
            "person",
        ),
        ({"client_auth": "none"}, "a public client has no secret"),
        ({"token": None}, "token: required"),
    ],
)
def test_invalid_service_account_declaration_is_refused(more: dict[str, Any], says: str) -> None:
    about: dict[str, Any] = {"token": "https://robot.example/token", **more}
    with pytest.raises(InvalidQuestion, match=says):
        Provider(
            name="robot",
            label="Robot",
            api="https://api.robot.example",
            service_account=True,
            **about,
        )


async def test_token_stored_for_another_client_id_is_not_used() -> None:
    store = MemoryStore()
    async with serving(network := Robots(), store=store) as service:
        await account(service)
    other = {"robot": ("another-id", "another-secret-that-is-long")}
    async with serving_accounts(
        network, store=store, providers={"robot": ROBOT}, credentials=other
    ) as service:
        assert (await account(service)).access_token == "token-2"
        assert len(await stored(service)) == 2
