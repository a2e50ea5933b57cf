"""A simulated provider that refuses each request that differs from its `Habits`.

The provider does not read a declaration. A test copies the rules of the vendor's page into
`Habits`. The declaration is right if an account can be connected, refreshed and read.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

import httpx
import msgspec
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from flows.elicitation.flow import CallbackParams, RedirectContext, Talk
from flows.oauth.authorization_code import Grant, OauthFlow
from flows.oauth.connection import Connection
from flows.oauth.provider import Client, Provider
from flows.oauth.refresh import Renewed, refresh
from tests.support.clock import NOON
from tests.support.oauth_flow import T, an_elicitation

SECRET = "our:secret/%+="
KEY = RSAKey.generate_key(2048, parameters={"kid": "ours"})
RETURN = "https://elicit.example/callback/x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """The rules of the provider and its replies. `extra` are additional required parameters."""

    pkce: str = "optional"  # "optional", "required" or "refused"
    auth: str = "basic"
    body: str = "form"
    id_parameter: str = "client_id"
    scope_parameter: str | None = "scope"
    separator: str = " "
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    token_extra: Mapping[str, str] = field(default_factory=dict[str, str])
    refresh_extra: Mapping[str, str] = field(default_factory=dict[str, str])
    optional: frozenset[str] = frozenset({"nonce", "login_hint", "prompt"})
    response_mode: str | None = None
    user_agent: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    token_type: Any = "Bearer"
    reply: Mapping[str, Any] = field(default_factory=dict[str, Any])
    nest: str | None = None  # the member that holds the token
    callback: Mapping[str, str] = field(default_factory=dict[str, str])
    # The parameters of the callback if it reports an error instead of a code.
    error: Mapping[str, str] = field(default_factory=dict[str, str])
    # The addresses that requests must have. None means that the provider accepts any address.
    authorize: str | None = None
    token: str | None = None
    refresh: str | None = None
    person: tuple[str, str] | None = None  # the method and the address
    who: Mapping[str, Any] = field(default_factory=dict[str, Any])
    bearer: str = "Bearer"
    metadata: Mapping[str, Any] | None = None
    userinfo: Mapping[str, Any] | None = None
    scopes: str | None = None  # the scopes in replies, or None for the requested scopes
    replies: str = "json"  # the format of the token endpoint's replies: "json" or "form"


class Refused(AssertionError):
    """The provider does not accept a request. `code` is the matching OAuth error."""

    code = "invalid_request"


class RefusedOnPage(Refused):
    """The provider refuses before it asks the person."""


class RefusedClient(Refused):
    """The provider does not accept how the client authenticates."""

    code = "invalid_client"


class RefusedCode(Refused):
    """The provider did not issue this code."""

    code = "invalid_grant"


class StrictProvider:
    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.secret = SECRET
        self._challenge: str | None = None
        self._nonce: str | None = None
        self._asked: str | None = None
        self.requests: list[httpx.Request] = []

    def authorized(self, url: str) -> CallbackParams:
        """Return the parameters of the redirect back to the server. Raises RefusedOnPage."""
        try:
            return self._authorized(url)
        except Refused as error:
            raise RefusedOnPage(str(error)) from error

    def _authorized(self, url: str) -> CallbackParams:
        habits, parts = self.habits, urlsplit(url)
        _same(
            "the authorize address",
            f"{parts.scheme}://{parts.netloc}{parts.path}",
            habits.authorize,
        )
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        sent = dict(pairs)
        if len(sent) < len(pairs):
            raise Refused("a parameter is repeated")
        required = {
            "response_type": "code",
            habits.id_parameter: "our id",
            "redirect_uri": RETURN,
            "state": "the-state",
            **habits.extra,
        }
        if habits.response_mode is not None:
            required["response_mode"] = habits.response_mode
        for name, value in required.items():
            _same(name, sent.pop(name, None), value)
        self._challenge = self._challenged(sent)
        if habits.scope_parameter is not None:
            self._asked = sent.pop(habits.scope_parameter, "")
            for other in {" ", ","} - {habits.separator}:
                if other in self._asked:
                    raise Refused("the separator of scopes")
        self._nonce = sent.get("nonce")
        if unknown := sent.keys() - habits.optional:
            raise Refused(f"unknown parameters: {sorted(unknown)}")
        came = habits.error or {"code": "the-code"}
        return CallbackParams(
            parameters=tuple({**came, "state": "the-state", **habits.callback}.items())
        )

    def _challenged(self, sent: dict[str, str]) -> str | None:
        challenge = sent.pop("code_challenge", None)
        method = sent.pop("code_challenge_method", None)
        kind = self.habits.pkce
        if kind != "optional" and (kind == "refused") is (challenge is not None):
            raise Refused("PKCE")
        if challenge is not None and method != "S256":
            raise Refused("PKCE without S256")
        return challenge

    def reply(self, request: httpx.Request) -> httpx.Response:
        """Return the reply of the token endpoint, the metadata or the API. Raises Refused."""
        self.requests.append(request)
        habits = self.habits
        agent = request.headers["user-agent"]
        if habits.user_agent is not None:
            _same("User-Agent", agent, habits.user_agent)
        for name, value in habits.headers.items():
            _same(name, request.headers.get(name), value)
        place = str(request.url).partition("?")[0]
        if place.endswith("/.well-known/openid-configuration"):
            return httpx.Response(200, json=habits.metadata)
        if place.endswith("/jwks"):
            return httpx.Response(200, json={"keys": [KEY.as_dict(private=False)]})
        if request.method == "GET" or "access-token" in request.headers.get("authorization", ""):
            return self._read(request)
        return self._token(request, place)

    def _read(self, request: httpx.Request) -> httpx.Response:
        _same(
            "Authorization",
            request.headers.get("authorization"),
            f"{self.habits.bearer} access-token",
        )
        if self.habits.userinfo is not None and request.url.path.endswith("/userinfo"):
            return httpx.Response(200, json=self.habits.userinfo)
        if self.habits.person is not None:
            method, url = self.habits.person
            _same("the method of the API", request.method, method)
            _same("the address of the API", str(request.url), url)
        return httpx.Response(200, json=self.habits.who)

    def _token(self, request: httpx.Request, place: str) -> httpx.Response:
        habits = self.habits
        kind = request.headers["content-type"]
        if habits.body == "json":
            _same("the body's type", kind, "application/json")
            sent = msgspec.json.decode(request.content, type=dict[str, str])
        else:
            _same("the body's type", kind, "application/x-www-form-urlencoded")
            pairs = parse_qs(request.content.decode(), keep_blank_values=True)
            sent = {name: value for name, (value,) in pairs.items()}
        self._authenticate(request, sent)
        grant = sent.pop("grant_type", None)
        if grant == "refresh_token":
            _same("the refresh address", place, habits.refresh or habits.token)
            _same("refresh_token", sent.pop("refresh_token", None), "refresh-token")
            extra = habits.refresh_extra
        else:
            _same("the token address", place, habits.token)
            _same("grant_type", grant, "authorization_code")
            if sent.pop("code", None) != "the-code":
                raise RefusedCode("the code")
            _same("redirect_uri", sent.pop("redirect_uri", None), RETURN)
            self._verify(sent.pop("code_verifier", None))
            extra = habits.token_extra
        _same("the other parameters", sent, dict(extra))
        reply: dict[str, Any] = {"access_token": "access-token", "token_type": habits.token_type}
        reply["refresh_token"] = "refresh-token"
        scope = habits.scopes if habits.scopes is not None else self._asked
        if scope:
            reply["scope"] = scope
        reply |= {} if habits.nest else habits.reply
        if self._nonce is not None and habits.metadata is not None:
            reply["id_token"] = self._id_token(habits.metadata["issuer"])
        if habits.nest is not None:
            reply = {**habits.reply, habits.nest: {**habits.reply.get(habits.nest, {}), **reply}}
        return self.shaped(reply)

    def shaped(self, reply: Mapping[str, Any], *, status: int = 200) -> httpx.Response:
        """Return a reply of the token endpoint in the provider's format."""
        if self.habits.replies == "form":
            kind = {"content-type": "application/x-www-form-urlencoded"}
            return httpx.Response(status, text=urlencode(reply), headers=kind)
        return httpx.Response(status, json=reply)

    def _id_token(self, issuer: str) -> str:
        seconds = int(NOON.timestamp())
        claims: dict[str, Any] = {
            "iss": issuer,
            "aud": "our id",
            "sub": "7",
            "email": "a@hub.example",
        }
        claims |= {"email": "a@hub.example", "nonce": self._nonce}
        claims |= {"iat": seconds, "exp": seconds + 300}
        return jwt.encode({"alg": "RS256", "kid": "ours"}, claims, KEY)

    def _verify(self, verifier: str | None) -> None:
        if self._challenge is None:
            _same("code_verifier", verifier, None)
            return
        digest = hashlib.sha256((verifier or "").encode()).digest()
        _same("PKCE", base64.urlsafe_b64encode(digest).rstrip(b"=").decode(), self._challenge)

    def _authenticate(self, request: httpx.Request, sent: dict[str, str]) -> None:
        auth, basic = self.habits.auth, request.headers.get("authorization")
        raw = None if basic is None else base64.b64decode(basic.removeprefix("Basic ")).decode()
        given = {
            name: sent.pop(name)
            for name in (
                self.habits.id_parameter,
                "client_secret",
                "client_assertion",
                "client_assertion_type",
            )
            if name in sent
        }
        id = {self.habits.id_parameter: "our id"}
        encoded = f"{quote('our id', safe='')}:{quote(SECRET, safe='')}"
        assertion = given.pop("client_assertion", None)
        expected: tuple[str | None, dict[str, str]]
        match auth:
            case "basic":
                expected = (encoded, {})
            case "basic_raw":
                expected = (f"our id:{SECRET}", {})
            case "both":
                expected = (encoded, id)
            case "post":
                expected = (None, {**id, "client_secret": SECRET})
            case "none":
                expected = (None, id)
            case _:
                kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
                expected = (None, {**id, "client_assertion_type": kind})
        if (raw, given) != expected:
            raise RefusedClient(f"the client authentication: {raw!r} and {sorted(given)}")
        if auth.endswith("_jwt"):
            self._check_assertion(assertion or "", str(request.url))
        elif assertion is not None:
            raise Refused("an assertion")

    def _check_assertion(self, assertion: str, url: str) -> None:
        is_key = self.habits.auth == "private_key_jwt"
        key: Any = (
            RSAKey.import_key(KEY.as_dict(private=False))
            if is_key
            else OctKey.import_key(self.secret)
        )
        read = jwt.decode(assertion, key, algorithms=["RS256", "HS256"])
        claims = read.claims
        _same("alg", read.header["alg"], "RS256" if is_key else "HS256")
        _same("iss and sub", (claims["iss"], claims["sub"]), ("our id", "our id"))
        _same("aud", claims["aud"], url)
        seconds = int(NOON.timestamp())
        if not (seconds - 5 <= claims["iat"] <= seconds < claims["exp"] <= seconds + 300):
            raise Refused("the assertion's times")
        if len(claims["jti"]) < 16:
            raise Refused("the assertion's id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A connected account, after one refresh."""

    grant: Grant
    renewed: Renewed


def secret_for(auth: str) -> str:
    if auth == "private_key_jwt":
        return msgspec.json.encode(KEY.as_dict(private=True)).decode()
    if auth == "none":
        return ""
    return "a secret that is long enough to sign with" if auth == "client_secret_jwt" else SECRET


def walk(
    provider: Provider,
    habits: Habits,
    *,
    scopes: tuple[str, ...] = (),
    refreshes: bool = True,
    tenant: str | None = None,
) -> Walk:
    """Connect an account at the provider, and refresh it. Raises Refused, Denied or Failed."""
    server = StrictProvider(habits)
    server.secret = secret_for(habits.auth)
    client = Client(
        provider=provider, client_id="our id", client_secret=secret_for(provider.client_auth)
    )
    flow = OauthFlow({provider.name: client})
    trip = RedirectContext(number=1, return_url=RETURN, state="the-state", now=NOON, tenant=tenant)
    stored: Any = flow.prepare(an_elicitation(provider, scopes=scopes), trip)
    going = an_elicitation(provider, scopes=scopes, attempt_data=stored)
    redirect = led(flow.begin(going, trip), server)
    stored = msgspec.json.decode(msgspec.json.encode(redirect.attempt_data))
    away = an_elicitation(provider, scopes=scopes, attempt_data=stored)
    arrival = server.authorized(redirect.url)
    code, members = flow.read_callback(away, arrival)
    grant = led(flow.finish(away, code=code, now=NOON, callback=members), server)
    client = client.for_tenant(tenant)
    connection = Connection(
        id="c",
        owner="o",
        lookup_key="k",
        server="s",
        provider=provider.name,
        person_id=grant.person.id,
        label=grant.person.label,
        connected_at=NOON,
        scopes=grant.scopes,
        tools=(),
        access_token=grant.tokens.access_token,
        refresh_token=grant.tokens.refresh_token,
        token_endpoint=stored["token"],
        client_auth=stored["client_auth"],
        issuer=grant.issuer,
    )
    if not refreshes:
        return Walk(grant=grant, renewed=Renewed(tokens=grant.tokens, scopes=grant.scopes))
    return Walk(grant=grant, renewed=led(refresh(client, connection, now=NOON), server))


def led(talk: Talk[T], server: StrictProvider) -> T:
    try:
        request = next(talk)
        while True:
            request = talk.send(server.reply(request))
    except StopIteration as stop:
        result: T = stop.value
        return result


def _same(name: str, sent: object, expected: object) -> None:
    if expected is not None and sent != expected:
        raise Refused(f"{name}: {sent!r} and not {expected!r}")
    if expected is None and name == "code_verifier" and sent is not None:
        raise Refused("code_verifier without a challenge")
