"""A protected endpoint, and callers with access tokens."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
from mcp.server.auth.middleware.auth_context import get_access_token

from flows.oauth.access_token import Resource
from flows.oauth.provider import Client
from flows.providers import openid
from tests.support.access_tokens import ISSUER, KEYS, RESOURCE, token
from tests.support.clock import Clock
from webapp.http.exchange import Message, Receive, Scope, Send
from webapp.identity.access_tokens import IssuerTokens
from webapp.identity.bearer_auth import protected
from webapp.identity.introspection import Introspection
from webapp.identity.issuer import Issuer


class FakeIssuer:
    """A fake issuer that counts requests for its keys and introspections."""

    def __init__(self) -> None:
        self.is_down = False
        self.fetches = 0
        self.introspected = list[str]()
        self.at_once = self.most_at_once = 0
        self.says: dict[str, Any] = {}
        self.issuer = ISSUER

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.is_down:
            raise httpx.ConnectError("down", request=request)
        if request.url.path == "/jwks":
            self.fetches += 1
            return httpx.Response(200, json={"keys": KEYS})
        if request.url.path.endswith("/introspect"):
            self.introspected.append(request.content.decode())
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0)
            self.at_once -= 1
            is_made_up = b"made-up" in request.content
            return httpx.Response(200, json={"active": False} if is_made_up else self.says)
        names = {"authorization": "authorize", "token": "token", "introspection": "introspect"}
        places = {f"{name}_endpoint": place for name, place in names.items()}
        says = {name: f"{self.issuer}/{place}" for name, place in places.items()}
        says |= {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/jwks"}
        return httpx.Response(200, json=says)


@dataclass(slots=True)
class Answer:
    """The result of a request: the scope that reached the application, or the refusal."""

    passed: Scope | None = None
    seen: Any = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def problem(self) -> Any:
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)


class ProtectedEndpoint:
    """The protected endpoint, called without a network."""

    def __init__(self, resource: Resource = RESOURCE, *, asks: bool = False) -> None:
        self.there = FakeIssuer()
        self.there.issuer = resource.issuer
        self.clock = Clock()
        provider = openid("signin", resource.issuer, label="Example")
        self.issuer = Issuer(provider, fetch=self.there, clock=self.clock)
        self._answer = Answer()
        about: Any = {"issuer": self.issuer, "resource": resource, "clock": self.clock}
        client = Client(provider=provider, client_id="us", client_secret="a secret")
        self.introspection = Introspection(client=client, **about)
        introspection = self.introspection if asks else None
        self.tokens = IssuerTokens(
            self.issuer, resource=resource, clock=self.clock, introspection=introspection
        )
        self.app = protected(self._pass, name="my tools", tokens=self.tokens)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._answer.passed = scope
        self._answer.seen = get_access_token()

    async def ask(
        self, *headers: tuple[str, str], path: str = "/mcp", query: str = "", **changes: Any
    ) -> Answer:
        answer = self._answer = Answer()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                answer.body += message.get("body", b"")
                answer.status = answer.status or message.get("code", 0)

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            **changes,
        }
        await self.app(scope, asyncio.Queue[Message]().get, send)
        assert (answer.passed is None) == (answer.status != 0)
        return answer


def bearer(text: str | None = None) -> tuple[str, str]:
    return ("Authorization", f"Bearer {text or token()}")
