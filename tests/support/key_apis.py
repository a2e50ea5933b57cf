"""Providers with API keys, and a transport that simulates their APIs."""

import base64
from dataclasses import replace

import httpx

from flows.providers import PersonProbe, Provider, ProviderKey

KEY = "sk-live-7Zk2mQ"
ACME = Provider(
    name="acme",
    label="Acme",
    api="https://api.acme.example/v1",
    key=ProviderKey(page="https://acme.example/settings/keys", header="X-Acme-Key"),
    person=PersonProbe(url="https://api.acme.example/v1/me", id="id", label="email"),
)
DESK = Provider(
    name="desk",
    label="Desk",
    tenants=("*.desk.example",),
    tenant_label="Your desk",
    api="https://{tenant}/api",
    key=ProviderKey(page="https://{tenant}/account", label="Password", user="User name"),
    person=PersonProbe(url="https://{tenant}/api/me", id="id", label=("email", "tenant")),
)
ASKED = replace(
    ACME,
    name="asked",
    label="Asked",
    key=ProviderKey(page="https://acme.example/settings/keys", query="api_key"),
)


class Api(httpx.AsyncBaseTransport):
    """The APIs of these providers. `status` answers the next requests if it is set."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.good = {KEY}
        self.status: int | None = None
        self.down = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.down:
            raise httpx.ConnectError("nobody there", request=request)
        if self.status is not None:
            return httpx.Response(self.status, json={})
        key = self.key_in(request)
        if key not in self.good:
            return httpx.Response(401, json={"error": "bad key"})
        if request.url.path.endswith("/away"):
            return httpx.Response(302, headers={"location": "https://evil.example/collect"})
        who = {"id": 7, "email": "ada@example.org", "seen": key == KEY}
        return httpx.Response(200, json=who)

    def key_in(self, request: httpx.Request) -> str | None:
        query = dict(httpx.QueryParams(request.url.query))
        basic = request.headers.get("authorization", "")
        if basic.startswith("Basic "):
            return base64.b64decode(basic[6:]).decode().partition(":")[2]
        return request.headers.get("x-acme-key") or query.get("api_key")
