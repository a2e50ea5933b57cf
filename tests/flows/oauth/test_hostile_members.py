"""Replies and tokens in which one member has an arbitrary JSON value, which is used or refused.

A provider or issuer can send any JSON in any member. The code must use the value or raise an
`ElicitError`: any other exception is an internal error that does not name its cause.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from joserfc import jws

from flows.errors import ElicitError
from flows.oauth.access_token import Resource, introspected, verify
from flows.oauth.declaration import TokenExchange
from flows.oauth.device_flow import start
from flows.oauth.discovery import discover
from flows.oauth.id_token import owner_of_token, verified_claims
from flows.oauth.provider import Client, Provider
from flows.oauth.refresh import refresh
from flows.oauth.registered_client import RegisteredClient
from flows.oauth.registration import examined
from flows.oauth.requests import ApiAccess
from flows.oauth.revocation import revoke
from flows.oauth.sign_in import EVENT, verified_logout
from flows.oauth.token_exchange import SubjectToken, exchanged
from flows.providers import dropbox, github, notion, slack
from tests.support.account_life import PLAIN, a_connection
from tests.support.clock import NOON
from tests.support.oauth_flow import (
    ACME,
    ISSUER,
    KEY,
    METADATA,
    TRIP,
    a_flow,
    an_elicitation,
    departed,
    id_token,
)

# Written as JSON text, because some of the values have no Python equivalent.
VALUES = (
    *("null", "true", "false", "0", "-1", "3.5", "1e308", "-1e308", "9" * 400, "-" + "9" * 400),
    *("9" * 5000, "-62135596801", "253402300800", '""', '" "', '"x"', r'"\u0000"', r'"\ud800"'),
    *(r'"\u202e"', f'"{"x" * 10_000}"', '"1e5"', '"-5"', '"MAC"', '"https://evil.example"'),
    *("[]", "[null]", '["a"]', '[["a"]]', "{}", '{"a": {}}', '{"sub": "x"}', '"eyJhbGciO.e30."'),
)
NO_JSON = ("NaN", "-Infinity", "1e400")  # not JSON, but joserfc accepts these numbers in a token
NOW = int(NOON.timestamp())
PLACES = ("revocation", "device_authorization", "introspection", "end_session")
SAYS: Mapping[str, Any] = {
    **METADATA,
    **{f"{name}_endpoint": f"{ISSUER}/{name}" for name in PLACES},
    "token_endpoint_auth_methods_supported": ["client_secret_basic"],
    "revocation_endpoint_auth_methods_supported": ["client_secret_basic"],
    "id_token_signing_alg_values_supported": ["ES256"],
    "dpop_signing_alg_values_supported": ["ES256"],
    "subject_types_supported": ["public"],
    "pushed_authorization_request_endpoint": f"{ISSUER}/par",
    "require_pushed_authorization_requests": False,
    "authorization_response_iss_parameter_supported": False,
    "backchannel_logout_supported": True,
}
REPLY = {
    "access_token": "t",
    "token_type": "bearer",
    "refresh_token": "r",
    "expires_in": 3600,
    "refresh_token_expires_in": 100_000,
    "scope": "repo",
    "id_token": "a.b.c",
    "error": None,
    "error_description": "d",
    "ok": True,
    "issued_token_type": "x",
    "request_uri": "urn:x:y",
    "device_code": "d",
    "user_code": "u",
    "verification_uri": ISSUER,
    "interval": 5,
    "id": 7,
    "login": "l",
    "sub": "s",
    "name": "n",
    "email": "e",
    "picture": "p",
    "bot": {},
    "authed_user": {},
    "team": {},
    "account_id": "a",
    "revoked": True,
}
PROVIDERS = (github, slack, notion, dropbox, ACME)
MINE = SubjectToken(text="a.persons.token", issuer=ISSUER, subject="ann", claim=("sub",))
RESOURCE = Resource(url="https://tools.example/mcp", issuer=ISSUER)
ACCESS = {
    "iss": ISSUER,
    "aud": RESOURCE.url,
    "sub": "a",
    "iat": NOW,
    "nbf": NOW,
    "exp": NOW + 300,
    "scope": "read",
    "client_id": "c",
    "azp": "c",
    "auth_time": NOW,
    "token_type": "Bearer",
}
LOGOUT = {
    "iss": ISSUER,
    "aud": "our id",
    "sub": "a",
    "sid": "s",
    "jti": "j",
    "azp": "our id",
    "iat": NOW,
    "nbf": NOW,
    "exp": NOW + 300,
    "events": {EVENT: {}},
}
PERSON = {**LOGOUT, "nonce": "n", "email": "a@example.com", "picture": ISSUER}


def a_client(provider: Provider) -> Client:
    return Client(provider=provider, client_id="our id", client_secret="our secret")


def text_with(members: Mapping[str, Any], name: str, value: str) -> bytes:
    """Return `members` as JSON text, in which the member `name` has the JSON text `value`."""
    return json.dumps({**members, name: "@@"}).replace('"@@"', value).encode()


def survives(talk: Any, reply: Callable[[httpx.Request], httpx.Response]) -> None:
    """Run the talk until it ends or raises an `ElicitError`. Any other error fails the test."""
    with suppress(StopIteration, ElicitError):
        request = next(talk)
        for _ in range(20):
            answer = reply(request)
            answer.request = request
            request = talk.send(answer)
        raise AssertionError("the talk does not end")


def _same(reply: httpx.Response, _: httpx.Request) -> httpx.Response:
    return reply


def exchanging(kind: Any) -> Any:
    how = TokenExchange(issuer=ISSUER, kind=kind, audience="https://api.example")
    client, issuer = a_client(replace(PLAIN, exchange=how)), a_client(ACME)
    return exchanged(client, MINE, scopes=(), issuer_client=issuer, now=NOON)


def finishing(provider: Provider) -> Any:
    stored: Any = a_flow(provider).prepare(an_elicitation(provider), TRIP)
    if provider.discovers:
        stored = departed(provider)[0].attempt_data
    away = an_elicitation(provider, attempt_data=stored)
    return a_flow(provider).finish(away, code="the-code", now=NOON)


def checking() -> Any:
    where = "https://tools.example/callback"
    registered = RegisteredClient(client=a_client(ACME), redirect_uri=where, claim=("sub",))
    return examined(registered, now=NOON)


def refreshing(provider: Provider) -> Any:
    return refresh(a_client(provider), a_connection(provider, is_unproven=True), now=NOON)


TALKS: Mapping[str, Callable[[], Any]] = {
    **{f"exchange at {one.name}": partial(finishing, one) for one in PROVIDERS},
    **{f"refresh at {one.name}": partial(refreshing, one) for one in PROVIDERS},
    "revocation": lambda: revoke(a_client(ACME), a_connection(ACME), now=NOON),
    "device": lambda: start(a_client(ACME), (), now=NOON),
    "token exchange": lambda: exchanging("token_exchange"),
    "jwt bearer": lambda: exchanging("jwt_bearer"),
    "assertion": lambda: exchanging("id_jag"),
    "owner": lambda: owner_of_token(a_client(ACME), access=ApiAccess(token="t", now=NOON)),
    "check": checking,
}


@pytest.mark.parametrize("name", TALKS)
def test_any_json_value_in_a_reply_causes_no_internal_error(name: str) -> None:
    keys = {"keys": [KEY.as_dict(private=False)]}
    for member in REPLY:
        for value in VALUES:
            body = text_with(REPLY, member, value)

            def reply(request: httpx.Request, body: bytes = body) -> httpx.Response:
                if "well-known" in request.url.path:
                    return httpx.Response(200, json=SAYS)
                if request.url.path == "/jwks":
                    return httpx.Response(200, json=keys)
                return httpx.Response(200, content=body)

            survives(TALKS[name](), reply)


def test_any_json_value_in_metadata_or_a_key_causes_no_internal_error() -> None:
    for member in SAYS:
        for value in VALUES:
            found = httpx.Response(200, content=text_with(SAYS, member, value))
            survives(discover(ACME), partial(_same, found))
    _, away = departed(ACME)
    token, published = id_token(away), KEY.as_dict(private=False)
    claims: Any = {"provider": ACME, "client_id": "our id", "issuer": ISSUER, "now": NOON}
    for member in published:
        for value in VALUES:
            key = json.loads(text_with(published, member, value)) if len(value) < 5000 else {}
            with suppress(ElicitError):
                verified_claims(token, nonce="n", keys=[key], **claims)


@pytest.mark.parametrize("name", ["access", "introspection", "logout", "id"])
def test_any_json_value_in_a_signed_claim_causes_no_internal_error(name: str) -> None:
    keys, client = [KEY.as_dict(private=False)], a_client(ACME)
    header = {"alg": "ES256", "kid": "one"}
    about: Any = {"keys": keys, "now": NOON}

    def read(body: bytes) -> None:
        token = jws.serialize_compact(header, body, KEY)
        if name == "access":
            verify(token, resource=RESOURCE, **about)
        elif name == "introspection":
            introspected({**json.loads(body), "active": True}, resource=RESOURCE, now=NOON)
        elif name == "logout":
            verified_logout(token, client=client, issuer=ISSUER, **about)
        else:
            of_us: Any = {"provider": ACME, "client_id": "our id", "issuer": ISSUER, "nonce": "n"}
            verified_claims(token, **of_us, **about)

    claims: Mapping[str, Any] = {"logout": LOGOUT, "id": PERSON}.get(name, ACCESS)
    read(json.dumps(claims).encode())  # the unchanged claims are accepted
    for member in claims:
        for value in (*VALUES, *NO_JSON):
            if name != "introspection" or len(value) < 5000:
                with suppress(ElicitError):
                    read(text_with(claims, member, value))
