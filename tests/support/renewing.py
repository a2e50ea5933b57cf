"""A fake provider that rotates and revokes tokens, and people with accounts there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import httpx

from flows.elicitation.tool_call import ToolCall
from flows.oauth.account import Account
from flows.oauth.connection import Connection
from flows.oauth.provider import Revocation
from flows.providers import github
from tests.support.account_env import Answer, Asking, Network, connect, serving_accounts, stored
from tests.support.clock import Clock
from webapp.calls.call import Call
from webapp.calls.resources import OwnersReach
from webapp.identity.identity import Caller
from webapp.service import Service

BASE = "http://127.0.0.1:8766"
HUB = github.at(BASE)
REVOKE = f"{BASE}/github/login/oauth/revoke"
# The same provider with other ways to revoke tokens.
BY_FORM = replace(HUB, revoke=Revocation(url=REVOKE), manage="https://hub.example/apps")
NO_WAY = replace(HUB, revoke=None, manage="https://hub.example/apps")


class Renewing(Network):
    """A provider that rotates refresh tokens: only the latest pair is valid, and only once."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshes = 0
        self.probes = 0
        self.api_status = 200  # the API's status for a valid access token
        self.renews: Answer = self._renew
        self.revoked: list[str] = []
        self.revokes: Answer = self._revoke
        self.good: dict[str, str] = {}  # the latest access token of each person
        self.token = self._exchange

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        path = request.url.path
        if path.endswith("/access_token"):
            if b"grant_type=refresh_token" in request.content:
                self.refreshes += 1
                return await self.renews(request)
            return await super().handle_async_request(request)
        if "revoke" in path or "/applications/" in path:
            return await self.revokes(request)
        self.probes += 1
        if request.headers.get("Authorization", "")[7:] not in self.good.values():
            return httpx.Response(401)
        return httpx.Response(self.api_status, json=self.person)

    def pair(self, name: str, *, number: str) -> httpx.Response:
        self.good[name] = f"key-{number}-of-{name}"
        reply: dict[str, Any] = {
            "access_token": self.good[name],
            "refresh_token": f"more-{number}-of-{name}",
            "token_type": "bearer",
            "scope": self.scopes,
        }
        if self.life_seconds is not None:
            reply["expires_in"] = self.life_seconds
        return httpx.Response(200, json=reply)

    async def _exchange(self, request: httpx.Request) -> httpx.Response:
        return self.pair(self.person["login"], number=str(self.exchanges))

    async def _renew(self, request: httpx.Request) -> httpx.Response:
        given = parse_qs(request.content.decode())["refresh_token"][0]
        number, _, name = given.removeprefix("more-").partition("-of-")
        if self.good.get(name) != f"key-{number}-of-{name}":
            return httpx.Response(200, json={"error": "bad_refresh_token"})
        await asyncio.sleep(0)
        return self.pair(name, number=f"{number}.{self.refreshes}")

    async def _revoke(self, request: httpx.Request) -> httpx.Response:
        self.revoked.append(request.content.decode())
        return httpx.Response(204 if request.method == "DELETE" else 200)


async def gone(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"error": "bad_refresh_token"})


async def down(request: httpx.Request) -> httpx.Response:
    return httpx.Response(503)


async def the_one(service: Service) -> Connection:
    (connection,) = await stored(service)
    return connection


@asynccontextmanager
async def connected(
    *, tool: str = "t", hours: int = 0, minutes: int = 0, seconds: int = 0, **more: Any
) -> AsyncIterator[tuple[Service, Renewing, Clock]]:
    """Provide an account that was connected this long ago. The access token lives for an hour."""
    network, clock = Renewing(), Clock()
    async with serving_accounts(network, clock=clock, **more) as service:
        await connect(service, "repo", tool=tool)
        clock.tick(hours=hours, minutes=minutes, seconds=seconds)
        yield service, network, clock


async def again(service: Service, arguments: object = "again", **about: object) -> Account:
    """Make another call, and return its account. Fail if the call asks the person."""
    asked = Asking(service, "repo", arguments=arguments, **about)  # type: ignore[arg-type]
    return await unasked(asked)


async def unasked(asked: Asking) -> Account:
    while not (asked.task.done() or asked.has_asked):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not asked.has_asked
    return await asked.account()


def reach_of(service: Service, owner: str, *, tool: str = "t") -> OwnersReach:
    presenter: Any = None  # this call asks nothing
    about = ToolCall(server="s", tool=tool, client="c", arguments="{}")
    call = Call(service, Caller(owner=owner, client="c"), about, presenter=presenter)
    return OwnersReach(call=call, owner=owner, run="r")
