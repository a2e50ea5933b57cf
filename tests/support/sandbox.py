"""A sandbox without a socket, a client of it, and a browser with cookies."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]

from tests.support.clock import Clock
from tests.support.serving import transport_to
from webapp.sandbox import Sandbox
from webapp.sandbox.app import SandboxApp

URL = "http://127.0.0.1:8766"
MAIN = "http://127.0.0.1:8765"
CALLBACK = f"{MAIN}/callback/sandbox"


class Form(HTMLParser):
    """The only form of a page, as a browser without JavaScript sends it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self.action = given["action"] or ""
        if tag == "input" and (given["type"] != "radio" or "checked" in given):
            self.fields[given["name"] or ""] = given["value"] or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The endpoints of one of the three authorization servers."""

    authorize: str
    token: str


OIDC = Provider(authorize="/oidc/authorize", token="/oidc/token")
GITHUB = Provider(
    authorize="/github/login/oauth/authorize", token="/github/login/oauth/access_token"
)
SLACK = Provider(authorize="/slack/oauth/v2/authorize", token="/slack/api/oauth.v2.access")


class Person:
    """A browser at the sandbox, and the OAuth client that sent the browser there."""

    def __init__(self, http: httpx.AsyncClient, sandbox: Sandbox) -> None:
        self.http = http
        self.sandbox = sandbox
        self.verifier = secrets.token_urlsafe(32)

    def query(self, **changes: str | None) -> dict[str, str]:
        """Return a valid authorization request with changes. None removes a parameter."""
        given: dict[str, str | None] = {
            "response_type": "code",
            "client_id": self.sandbox.client_id,
            "redirect_uri": CALLBACK,
            "scope": "openid profile",
            "state": "the-state",
            "code_challenge": create_s256_code_challenge(self.verifier),
            "code_challenge_method": "S256",
            **changes,
        }
        return {name: value for name, value in given.items() if value is not None}

    async def open(self, provider: Provider = OIDC, **changes: str | None) -> httpx.Response:
        return await self.http.get(provider.authorize, params=self.query(**changes))

    async def press(
        self, page: httpx.Response, decision: str = "approve", **changes: str
    ) -> httpx.Response:
        form = Form(page.text)
        return await self.http.post(
            form.action, data={**form.fields, "decision": decision, **changes}
        )

    async def approve(self, provider: Provider = OIDC, **changes: str | None) -> dict[str, str]:
        """Press Approve, and return the callback's parameters."""
        return redirect_parameters(await self.press(await self.open(provider, **changes)))

    async def token(self, provider: Provider = OIDC, **changes: str | None) -> httpx.Response:
        """Call the token endpoint with the client secret in the form. None removes a field."""
        given = {
            "client_id": self.sandbox.client_id,
            "client_secret": self.sandbox.client_secret,
            **changes,
        }
        data = {name: value for name, value in given.items() if value is not None}
        return await self.http.post(
            provider.token, data=data, headers={"accept": "application/json"}
        )

    async def exchange(
        self, code: str, provider: Provider = OIDC, **changes: str | None
    ) -> httpx.Response:
        return await self.token(
            provider,
            **{
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": CALLBACK,
                "code_verifier": self.verifier,
                **changes,
            },
        )

    async def connect(self, provider: Provider = OIDC, **changes: str | None) -> dict[str, Any]:
        """Approve and exchange the code, and return the token reply."""
        code = (await self.approve(provider, **changes))["code"]
        reply: dict[str, Any] = (await self.exchange(code, provider)).json()
        return reply

    async def refresh(self, token: str, provider: Provider = OIDC) -> httpx.Response:
        return await self.token(provider, grant_type="refresh_token", refresh_token=token)

    async def get(self, path: str, token: str) -> httpx.Response:
        return await self.http.get(path, headers={"authorization": f"Bearer {token}"})

    async def plan(self, **wish: Any) -> httpx.Response:
        bearer = {"authorization": f"Bearer {self.sandbox.client_secret}"}
        return await self.http.post("/control", json=wish, headers=bearer)


def redirect_parameters(response: httpx.Response) -> dict[str, str]:
    """Return the parameters of a redirect to the callback. Each must occur once."""
    assert response.status_code == 303, response.text
    location = response.headers["location"]
    assert location.startswith(f"{CALLBACK}?")
    parameters = parse_qs(urlsplit(location).query, strict_parsing=True)
    assert all(len(values) == 1 for values in parameters.values())
    return {name: values[0] for name, values in parameters.items()}


async def nobody_listens(request: httpx.Request) -> httpx.Response:
    raise AssertionError(request)


@asynccontextmanager
async def person_at(sandbox: Sandbox, *, clock: Clock) -> AsyncIterator[Person]:
    app = SandboxApp(sandbox, clock=clock, deliver=nobody_listens)
    transport = transport_to(app)
    async with httpx.AsyncClient(transport=transport, base_url=sandbox.url) as http:
        yield Person(http, sandbox)
