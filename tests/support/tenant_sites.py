"""Providers with tenants or stored account details, and a transport that simulates them."""

from typing import Any

import httpx

from flows.oauth.provider import PersonProbe, Provider, Revocation
from tests.support.account_env import Network

SHOP = Provider(
    name="shop",
    label="Shop",
    tenants=("*.shops.example",),
    tenant_label="Your shop",
    authorize="https://{tenant}/admin/oauth/authorize",
    token="https://{tenant}/admin/oauth/access_token",
    api="https://{tenant}/admin/api",
    revoke=Revocation(url="https://{tenant}/admin/oauth/revoke"),
    client_auth="post",
    person=PersonProbe(url="https://{tenant}/me", id="id", label=("email", "tenant")),
)
BOOKS = Provider(
    name="books",
    label="Books",
    authorize="https://books.example/authorize",
    token="https://books.example/token",
    api="https://api.books.example/v3/company/{realm_id}",
    keep={"realm_id": "callback.realmId"},
    person=PersonProbe(
        url="https://api.books.example/me", id=("callback.realmId", "id"), label="email"
    ),
)
FORCE = Provider(
    name="force",
    label="Force",
    authorize="https://login.force.example/authorize",
    token="https://login.force.example/token",
    api="{instance_url}/services",
    api_hosts=("{instance_url}", "https://login.force.example"),
    hosts=("https://*.my.force.example", "https://login.force.example"),
    keep={"instance_url": "reply.instance_url"},
    person=PersonProbe(url="https://login.force.example/me", id="id", label="email"),
)


class Sites(Network):
    """A transport that simulates the providers of this module. Each host issues its own tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[httpx.Request] = []
        self.extra: dict[str, Any] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        host = request.url.host
        if request.url.path.endswith(("/access_token", "/token")):
            self.exchanges += 1
            reply: dict[str, Any] = {
                "access_token": f"key-of-{host}-{self.exchanges}",
                "token_type": "bearer",
            }
            reply |= {"refresh_token": f"refresh-of-{host}", "scope": "read", "expires_in": 3600}
            return httpx.Response(200, json=reply | self.extra)
        return httpx.Response(200, json={"id": 7, "email": "ada@example.org"})
