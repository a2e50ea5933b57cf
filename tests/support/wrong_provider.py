"""An OpenID provider without a network that a test can misconfigure, and a server that uses it."""

import base64
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any, cast
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from flows.oauth.provider import Provider
from tests.support.clock import Clock
from tests.support.mcp_server import RING, UID
from tests.support.oauth_env import OAuthEnv, process
from tests.support.serving import bound
from tests.support.settings import AT_ONCE
from webapp.http.client import Outbound
from webapp.settings.identity import IdentitySettings
from webapp.settings.settings import Settings
from webapp.stores.sqlite import MemoryStore

HUB = "https://hub.example"
ID, SECRET = "our-id", "our secret: with/signs, and long enough"
_KEY = ECKey.generate_key("P-256", {"kid": "one"})
_OK_METHODS = ("client_secret_basic",)
Reply = Callable[[httpx.Request], httpx.Response]


@dataclass(kw_only=True)
class WrongProvider(httpx.AsyncBaseTransport):
    """The provider. Its fields configure it. `replies` overrides its replies, by path."""

    client_id: str = ID
    secret: str = SECRET
    methods: Sequence[str] = _OK_METHODS
    takes: str = "basic"
    refuses: str = "invalid_client"  # the error for an unknown client
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    replies: Mapping[str, Reply] = field(default_factory=dict[str, Reply])
    algorithm: str = "ES256"
    redirect_uri: str | None = None  # None accepts any redirect URI
    demands_par: bool = False
    demands_dpop: bool = False
    clock_is_ahead: timedelta = timedelta()
    clock: Callable[[], datetime] = field(default_factory=Clock)
    secrets_sent_to: set[str] = field(default_factory=set[str])
    _nonces: dict[str, str] = field(default_factory=dict[str, str])
    _pushed: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        text = request.content.decode("utf-8", "replace")
        raw = base64.b64decode(request.headers.get("authorization", "").partition(" ")[2] + "==")
        if SECRET in unquote(text.replace("+", " ")) or SECRET in unquote(raw.decode("latin-1")):
            self.secrets_sent_to.add(request.url.host)
        reply = self._reply(request)
        reply.headers["date"] = format_datetime(self.now, usegmt=True)
        return reply

    @property
    def now(self) -> datetime:
        return self.clock() + self.clock_is_ahead

    def bearer(self, audience: str) -> dict[str, str]:
        """Return the header with an access token of Ada."""
        now = int(self.now.timestamp())
        claims = {"iss": HUB, "aud": audience, "sub": "ada", "client_id": "assistant"}
        times = {"iat": now, "exp": now + 300}
        header = {"alg": "ES256", "kid": "one", "typ": "at+jwt"}
        return {"authorization": f"Bearer {jwt.encode(header, {**claims, **times}, _KEY)}"}

    def arrive(self, url: str) -> str | None:
        """Consent in a browser. Return the address to go back to, or None for an error page."""
        sent = dict(parse_qsl(urlsplit(url).query))
        back = self._authorized(sent)
        location: str | None = back.headers.get("location")
        return location

    def _reply(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.url.host != "hub.example":
            return httpx.Response(404)
        if path in self.replies:
            return self.replies[path](request)
        match path:
            case "/.well-known/openid-configuration":
                return httpx.Response(200, json=self._metadata())
            case "/jwks":
                return httpx.Response(200, json={"keys": [_KEY.as_dict(private=False)]})
            case "/authorize":
                return self._authorized(dict(request.url.params))
            case "/par":
                return self._push(request)
            case "/token":
                return self._token(request)
            case _:
                return httpx.Response(404)

    def _metadata(self) -> dict[str, Any]:
        places = {
            "authorization_endpoint": f"{HUB}/authorize",
            "token_endpoint": f"{HUB}/token",
            "jwks_uri": f"{HUB}/jwks",
        }
        if self.demands_par:
            places["pushed_authorization_request_endpoint"] = f"{HUB}/par"
        return {
            "issuer": HUB,
            **places,
            "require_pushed_authorization_requests": self.demands_par,
            "token_endpoint_auth_methods_supported": [*self.methods],
            "id_token_signing_alg_values_supported": ["ES256"],
            "subject_types_supported": ["public"],
            **self.metadata,
        }

    def _authorized(self, sent: dict[str, str]) -> httpx.Response:
        is_pushed = "request_uri" in sent
        if is_pushed:
            sent = self._pushed[sent["request_uri"]]
        redirect = sent.get("redirect_uri", "")
        if sent.get("client_id") != self.client_id or redirect != (self.redirect_uri or redirect):
            return httpx.Response(400, html="<h1>Wrong client</h1>")
        if self.demands_par and not is_pushed:
            parameters = {"error": "invalid_request", "error_description": "PAR is required"}
        elif sent.get("prompt") == "none":
            parameters = {"error": "login_required"}
        else:
            code = secrets.token_urlsafe(8)
            self._nonces[code] = sent["nonce"]
            parameters = {"code": code}
        query = urlencode({**parameters, "state": sent["state"]})
        return httpx.Response(302, headers={"location": f"{redirect}?{query}"})

    def _push(self, request: httpx.Request) -> httpx.Response:
        sent = _form(request)
        if not self._accepts(request, sent):
            return httpx.Response(401, json={"error": self.refuses})
        uri = f"urn:ietf:params:oauth:request_uri:{len(self._pushed)}"
        self._pushed[uri] = sent
        return httpx.Response(201, json={"request_uri": uri, "expires_in": 60})

    def _accepts(self, request: httpx.Request, sent: Mapping[str, str]) -> bool:
        given = (sent.get("client_id", ""), sent.get("client_secret", ""))
        if self.takes == "none":
            return given == (self.client_id, "") and "authorization" not in request.headers
        if self.takes in ("basic", "basic_raw", "both"):
            encoded = request.headers.get("authorization", "").removeprefix("Basic ")
            id, _, secret = base64.b64decode(encoded).decode().partition(":")
            if self.takes == "both" and "client_id" not in sent:
                return False
            given = (id, secret) if self.takes == "basic_raw" else (unquote(id), unquote(secret))
        return given == (self.client_id, self.secret)

    def _token(self, request: httpx.Request) -> httpx.Response:
        sent = _form(request)
        if not self._accepts(request, sent):
            return httpx.Response(401, json={"error": self.refuses})
        if self.demands_dpop and "dpop" not in request.headers:
            return httpx.Response(400, json={"error": "invalid_dpop_proof"})
        nonce = self._nonces.pop(sent.get("code", ""), None)
        if nonce is None:
            return httpx.Response(400, json={"error": "invalid_grant"})
        now = int(self.now.timestamp())
        claims: dict[str, Any] = {"iss": HUB, "aud": self.client_id, "sub": "ada", "name": "Ada"}
        claims |= {"nonce": nonce, "iat": now, "exp": now + 300}
        key = _KEY if self.algorithm == "ES256" else OctKey.import_key(self.secret)
        header = {"alg": self.algorithm, "kid": "one"}
        token = jwt.encode(header, claims, key, algorithms=[self.algorithm])
        kind = "DPoP" if "dpop" in request.headers else "Bearer"
        reply = {"access_token": "a-token", "token_type": kind, "id_token": token}
        return httpx.Response(200, json=reply)


def _form(request: httpx.Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.content.decode()).items()}


async def _resolve(_: str, __: int) -> Sequence[str]:
    return ["93.184.215.14"]


def outbound_to(provider: httpx.AsyncBaseTransport, client: httpx.AsyncClient) -> Outbound:
    return Outbound(client, allow_loopback=False, resolve=_resolve)


@asynccontextmanager
async def served(
    network: httpx.AsyncBaseTransport,
    *,
    provider: Provider | None = None,
    credentials: tuple[str, str] = (ID, SECRET),
    identity: IdentitySettings | None = None,
    clock: Clock,
) -> AsyncIterator[OAuthEnv]:
    """Serve an application that uses the provider for accounts or for sign-in."""
    with bound("127.0.0.1") as place:
        port: int = place.getsockname()[1]
    settings = Settings(
        url=f"http://127.0.0.1:{port}",
        ring=RING,
        store="memory:",
        uid=UID,
        policies=AT_ONCE,
        providers={} if provider is None else {provider.name: provider},
        credentials={} if provider is None else {provider.name: credentials},
        identity=identity or IdentitySettings(),
    )
    async with (
        httpx.AsyncClient(transport=network) as client,
        process(
            settings,
            store=MemoryStore(),
            clock=clock,
            gate=cast("Any", None),
            sandbox=cast("Any", None),
            played=False,
            port=port,
            outbound=outbound_to(network, client),
        ) as here,
    ):
        yield here


def logged_texts(records: Sequence[logging.LogRecord], *events: str) -> str:
    """Return the texts of these events in the log, as one text."""
    names = ("why", "fix", "error", "http_status", "description")
    return "\n".join(
        json.dumps({name: vars(one).get(name) for name in ("message", *names)}, default=str)
        for one in records
        if one.message in events
    )
