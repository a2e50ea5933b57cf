"""An issuer on a port of this machine. People sign in there, and it creates access tokens.

It simulates the issuer that an operator sets by ELICIT_ISSUER. Nobody types a password:
`come_back_as` adds the person's name to the address as a parameter.
"""

import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from html import unescape
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey

from flows.oauth.id_token import unsigned_claims
from flows.oauth.provider import Client
from flows.oauth.token_trial import MADE_UP
from flows.providers import openid
from tests.support.mcp_server import Page, Person
from tests.support.serving import serving_at
from webapp.connecting import utc_now
from webapp.http.exchange import ASGIApp, Receive, Scope, Send
from webapp.settings.identity import PROVIDER, IdentitySettings, IssuerSettings

CLIENT_ID = "the pages"
CLIENT_SECRET = "the secret of the pages"
LIFE_SECONDS = 600


def is_made_up(token: str) -> bool:
    """Return True for the token with which a starting server tests its registration."""
    return (unsigned_claims(token) or {}).get("sub") == MADE_UP


class Issuing:
    """A running issuer.

    If `denies`, people decline to sign in. `claims` are added to every id_token. If `is_down`,
    every request gets a 503. With `tenants`, the `iss` of its tokens names one tenant
    (`of_tenant`), and its metadata has a template for the issuers of all tenants.
    """

    def __init__(self, url: str, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.url = url
        self._clock = clock
        self.denies = False
        self.end_session: str | None = None
        self.is_down = False
        self.claims: dict[str, Any] = {}
        self.tenants: tuple[str, ...] = ()
        self.key_issuer: str | None = None  # the `issuer` of the published key
        self.exchanges = 0
        # answers token exchange requests (RFC 8693) with a status and a JSON object
        self.token_exchange: Callable[[dict[str, str]], tuple[int, Any]] | None = None
        self.key = ECKey.generate_key("P-256", {"kid": "one"})
        self._codes: dict[str, dict[str, str]] = {}

    def who(self, **options: Any) -> IdentitySettings:
        """Return identity settings that use this issuer."""
        return IdentitySettings(client=self.client(), **options)

    def client(self, **options: Any) -> Client:
        """Return the registration of the pages at this issuer."""
        provider = openid(PROVIDER, self.url, label=urlsplit(self.url).netloc)
        if self.tenants:
            options |= {"issuer": self.template, "issuer_tenants": self.tenants}
        provider = replace(provider, **options)
        return Client(provider=provider, client_id=CLIENT_ID, client_secret=CLIENT_SECRET)

    def further(self, name: str = "partner", **options: Any) -> IssuerSettings:
        """Return this issuer as the table `[issuers.NAME]` of another server's settings."""
        return IssuerSettings(name=name, client=self.client(), **options)

    @property
    def template(self) -> str:
        return f"{self.url}/{{tenantid}}/v2.0"

    def of_tenant(self, tenant: str) -> dict[str, str]:
        """Return the claims of a token of this tenant."""
        return {"iss": self.template.replace("{tenantid}", tenant), "tid": tenant}

    def token(self, subject: str | None, *, audience: str, **claims: Any) -> str:
        """Return an access token for a caller."""
        now = int(self._clock().timestamp())
        payload = {
            "iss": self.url,
            "sub": subject,
            "aud": audience,
            "client_id": "assistant",
            "iat": now,
            "exp": now + LIFE_SECONDS,
            **claims,
        }
        return self._signed(payload, kind="at+jwt")

    def logout_token(
        self, *, header: dict[str, Any] | None = None, key: Any = None, **claims: Any
    ) -> str:
        """Return a logout token for the pages. A claim that is None is left out."""
        now = int(self._clock().timestamp())
        payload = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 120,
            "jti": secrets.token_urlsafe(8),
            "events": {"http://schemas.openid.net/event/backchannel-logout": {}},
            **claims,
        }
        header = {"alg": "ES256", "kid": "one", "typ": "logout+jwt"} | (header or {})
        given = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(header, given, key or self.key)

    def bearer(self, subject: str | None, *, audience: str, **claims: Any) -> dict[str, str]:
        token = self.token(subject, audience=audience, **claims)
        return {"authorization": f"Bearer {token}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _body(receive)
        path = scope["path"]
        status, headers, content = self._answer(path, scope["query_string"].decode(), body)
        payload = b"" if content is None else json.dumps(content).encode()
        named = [(b"content-type", b"application/json"), *headers]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": payload})

    def _answer(
        self, path: str, query: str, body: bytes
    ) -> tuple[int, list[tuple[bytes, bytes]], Any]:
        if self.is_down:
            return 503, [], {}
        match path:
            case "/.well-known/openid-configuration" if not self.tenants:
                return 200, [], self._metadata()
            case "/organizations/v2.0/.well-known/openid-configuration" if self.tenants:
                return 200, [], self._metadata()
            case "/jwks":
                key = dict(self.key.as_dict(private=False))
                if self.key_issuer is not None:
                    key["issuer"] = self.key_issuer
                return 200, [], {"keys": [key]}
            case "/authorize":
                return 302, [(b"location", self._back(dict(parse_qsl(query))).encode())], None
            case "/token":
                sent = {k: v[0] for k, v in parse_qs(body.decode()).items()}
                if self.token_exchange is not None and "subject_token" in sent:
                    if is_made_up(sent["subject_token"]):
                        return 400, [], {"error": "invalid_request"}
                    status, reply = self.token_exchange(sent)
                    return status, [], reply
                return self._exchange(sent)
            case _:
                return 404, [], {}

    def _metadata(self) -> dict[str, Any]:
        places = ("authorization_endpoint", "authorize"), ("token_endpoint", "token")
        return {
            "issuer": self.template if self.tenants else self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_response_iss_parameter_supported": not self.tenants,
            "end_session_endpoint": self.end_session,
            **{name: f"{self.url}/{place}" for name, place in places},
        }

    def _back(self, asked: dict[str, str]) -> str:
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        parameters = {"state": asked["state"], **({} if self.tenants else {"iss": self.url})}
        if self.denies:
            return f"{asked['redirect_uri']}?{urlencode({'error': 'access_denied', **parameters})}"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, **parameters})}"

    def _exchange(self, sent: dict[str, str]) -> tuple[int, list[tuple[bytes, bytes]], Any]:
        # The server tries its client secret with such a code when it starts.
        self.exchanges += not sent.get("code", "").startswith("made-up-by-elicit-doctor-")
        asked = self._codes.pop(sent.get("code", ""), None)
        if asked is None:
            return 400, [], {"error": "invalid_grant"}
        now = int(self._clock().timestamp())
        claims = {
            "iss": self.url,
            "sub": asked["as"],
            "aud": CLIENT_ID,
            "nonce": asked["nonce"],
            "preferred_username": asked["as"],
            "iat": now,
            "exp": now + LIFE_SECONDS,
            **self.claims,
        }
        reply = {"access_token": "opaque", "token_type": "Bearer"}
        return 200, [], {**reply, "id_token": self._signed(claims)}

    def signed(self, **claims: Any) -> str:
        """Return a token with exactly these claims."""
        return self._signed(claims)

    def _signed(self, claims: dict[str, Any], *, kind: str = "JWT") -> str:
        header = {"alg": "ES256", "kid": "one", "typ": kind}
        return jwt.encode(header, {k: v for k, v in claims.items() if v is not None}, self.key)


@asynccontextmanager
async def issuing(clock: Callable[[], datetime] = utc_now) -> AsyncIterator[Issuing]:
    made: list[Issuing] = []

    def make(url: str) -> ASGIApp:
        made.append(Issuing(url, clock=clock))
        return made[0]

    async with serving_at(make):
        yield made[0]


async def leave_to_sign_in(person: Person, page: Page, *, at: str | None = None) -> str:
    """Press the sign-in button of a page, and return the address at the issuer.

    `at` is the name of a further issuer, whose button is pressed instead of the first one.
    """
    fields = dict(_hidden(page, "/signin"))
    if at is not None:
        assert f'name="at" value="{at}"' in page.text
        fields["at"] = at
    response = await person.browser.post(page.leading("/signin"), data=fields)
    assert response.status_code == 303, response.text
    return response.headers["location"]


async def come_back_as(person: Person, place: str, subject: str) -> str:
    """Sign in as `subject` at the issuer, and return the address of the redirect."""
    response = await person.browser.get(f"{place}&as={subject}")
    assert response.status_code == 302
    return response.headers["location"]


async def sign_in(person: Person, page: Page, subject: str, *, at: str | None = None) -> Page:
    """Sign in from a page with a sign-in button, and return the page after the last redirect."""
    back = await come_back_as(person, await leave_to_sign_in(person, page, at=at), subject)
    returned = await person.visit(back)
    assert returned.status == 303, returned.text
    assert returned.location is not None
    return await person.visit(returned.location)


def _hidden(page: Page, action: str) -> list[tuple[str, str]]:
    """Return the hidden fields of the form with this action."""
    form = re.search(
        rf'<form[^>]*action="[^"]*{re.escape(action)}"[^>]*>(.*?)</form>', page.text, re.DOTALL
    )
    assert form is not None, page.text
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[1])
    return [(unescape(name), unescape(value)) for name, value in found]


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body
