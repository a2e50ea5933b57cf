"""OAuth clients, connections and talks for tests of token exchange, refresh and revocation."""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qs

import httpx

from flows.elicitation.flow import Talk
from flows.oauth.connection import Connection
from flows.oauth.provider import Client, Provider
from flows.providers import github
from tests.support.clock import NOON

T = TypeVar("T")
ISSUER = "https://login.example"
METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "revocation_endpoint": f"{ISSUER}/revoke",
    "device_authorization_endpoint": f"{ISSUER}/device",
    "userinfo_endpoint": f"{ISSUER}/userinfo",
}
PLAIN = replace(
    github,
    name="acme",
    label="Acme",
    issuer=None,
    sends_issuer=False,
    authorize=f"{ISSUER}/authorize",
    token=f"{ISSUER}/token",
    revoke=None,
    device=None,
    sandbox=None,
    client_auth="basic",
    replies="json",
)


def a_client(provider: Provider = PLAIN) -> Client:
    return Client(provider=provider, client_id="our id", client_secret="our:secret/%")


def a_connection(provider: Provider = PLAIN, **changes: Any) -> Connection:
    values: dict[str, Any] = {
        "id": "c1",
        "owner": "o",
        "lookup_key": "k",
        "server": "tools",
        "provider": provider.name,
        "person_id": "1",
        "label": "ada",
        "connected_at": NOON - timedelta(hours=8),
        "issued_at": NOON - timedelta(hours=1),
        "expires_at": NOON,
        "scopes": ("repo",),
        "tools": ("list",),
        "access_token": "old-key",
        "refresh_token": "old-refresh",
        "token_endpoint": provider.token or f"{ISSUER}/token",
        "client_auth": provider.client_auth,
        **changes,
    }
    return Connection(**values)


def ok(**members: Any) -> httpx.Response:
    return httpx.Response(200, json=members)


def json_reply(status: int, **members: Any) -> httpx.Response:
    return httpx.Response(status, json=members)


def unanswered(talk: Talk[T]) -> T:
    """Return the result of a talk whose first request times out."""
    request = next(talk)
    try:
        talk.throw(httpx.ConnectTimeout("too slow", request=request))
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("The talk sent another request after the timeout.")


async def led(talk: Talk[T], http: httpx.AsyncClient) -> T:
    """Run the talk to completion, and send its requests with `http`."""
    try:
        request = next(talk)
        while True:
            request = talk.send(await http.send(request))
    except StopIteration as stop:
        result: T = stop.value
        return result


def form_of(request: httpx.Request) -> dict[str, str]:
    return {key: value[0] for key, value in parse_qs(request.content.decode()).items()}


def values_of(request: httpx.Request) -> Mapping[str, Any]:
    """Return the values of a request's body, JSON or form-encoded."""
    if "json" in request.headers.get("content-type", ""):
        values: Mapping[str, Any] = json.loads(request.content)
        return values
    return form_of(request)


def basic(client: str = "our%20id:our%3Asecret%2F%25") -> str:
    return f"Basic {base64.b64encode(client.encode()).decode()}"
