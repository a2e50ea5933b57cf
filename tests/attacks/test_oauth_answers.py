"""OAuth responses and replies as an attacker sends them. Each must be refused."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from joserfc.jws import JWSRegistry

from flows.elicitation.flow import CallbackParams
from flows.elicitation.states import Elicitation
from flows.errors import Failed, InvalidQuestion
from flows.oauth import api_key
from flows.oauth.account import BearerAuth, KeyTransport
from flows.oauth.authorization_code import Mixed
from flows.oauth.provider import Client, PersonProbe, Provider, ProviderKey, TokenExchange
from flows.oauth.responses import TOKEN_BYTES_AT_MOST
from flows.oauth.token_exchange import SubjectToken, exchanged
from flows.providers import github, openid
from tests.support.clock import NOON
from tests.support.oauth_flow import (
    ACME,
    ISSUER,
    KEY,
    METADATA,
    OCTOCAT,
    TRIP,
    a_flow,
    an_elicitation,
    departed,
    granted,
    id_token,
    key_set,
    talked,
)

GITHUB = ("iss", "https://github.com/login/oauth")
CODE, STATE = ("code", "the-code"), ("state", "the-state")
NOW = int(NOON.timestamp())


@pytest.mark.parametrize(
    ("story", "parameters"),
    [
        ("another issuer answers", [CODE, STATE, ("iss", "https://evil.example")]),
        ("another issuer answers", [CODE, STATE, ("iss", "https://github.com/login/oauth/")]),
        ("another issuer answers", [CODE, STATE, ("iss", "https://GITHUB.com/login/oauth")]),
        ("another issuer answers", [("error", "access_denied"), STATE, ("iss", "https://evil")]),
        ("another issuer answers", [CODE, STATE, ("iss", "")]),
        ("the issuer is missing", [CODE, STATE]),
        ("the issuer is missing", [("error", "access_denied"), STATE]),
        ("code is repeated", [CODE, ("code", "other"), STATE, GITHUB]),
        ("code is repeated", [CODE, CODE, STATE, GITHUB]),
        ("state is repeated", [CODE, STATE, ("state", "other"), GITHUB]),
        ("iss is repeated", [CODE, STATE, GITHUB, ("iss", "https://evil.example")]),
        ("error is repeated", [("error", "a"), ("error", "b"), STATE, GITHUB]),
        ("both a code and an error", [CODE, ("error", "access_denied"), STATE, GITHUB]),
        ("both a code and an error", [CODE, ("error", ""), STATE, GITHUB]),
        ("neither a code nor an error", [STATE, GITHUB]),
        ("neither a code nor an error", [("code", ""), STATE, GITHUB]),
        ("the code is not valid", [("code", "x" * 5000), STATE, GITHUB]),
        ("the code is not valid", [("code", "a\r\nb"), STATE, GITHUB]),
        ("the code is not valid", [("code", "cöde"), STATE, GITHUB]),
    ],
)
def test_mixed_up_response_is_refused(story, parameters):
    _, away = departed()
    with pytest.raises(Mixed) as mixed:
        a_flow().read_callback(away, CallbackParams(parameters=tuple(parameters)))
    assert mixed.value.reason == story
    assert mixed.value.http_status == 400
    assert "the-code" not in str(mixed.value)


def test_response_without_issuer_is_refused_if_metadata_promises_issuer():
    promise = {"authorization_response_iss_parameter_supported": True}
    _, away = departed(ACME, metadata=METADATA | promise)
    with pytest.raises(Mixed):
        a_flow(ACME).read_callback(away, CallbackParams(parameters=(CODE, STATE)))
    _, away = departed(ACME)
    assert (
        a_flow(ACME).read_callback(away, CallbackParams(parameters=(CODE, STATE)))[0] == "the-code"
    )


FORM = {"Content-Type": "application/x-www-form-urlencoded"}
NO_KEY = {
    "did not issue an access token (HTTP 500).": [httpx.Response(500, text="oops")],
    "did not issue an access token (HTTP 401).": [httpx.Response(401, json={})],
    "did not issue an access token (HTTP 302).": [httpx.Response(302, headers={"Location": "/"})],
    "did not issue an access token (HTTP 204).": [httpx.Response(204)],
    "did not issue an access token (HTTP 400).": [
        httpx.Response(400, json={"access_token": "gho_x"})
    ],
    "did not issue an access token (HTTP 200).": [
        httpx.Response(200, html="<html>Sign in</html>"),
        httpx.Response(200, content=b"\xff\xfe"),
        httpx.Response(200, content=b""),
        httpx.Response(200, json="gho_x"),
        httpx.Response(200, json=[{}]),
        httpx.Response(200, text="[" * 500_000),
        httpx.Response(200, text='{"access_token":' + '{"a":' * 200_000),
        httpx.Response(200, text='{"access_token": "t", "expires_in": ' + "9" * 10_000 + "}"),
        httpx.Response(200, text='{"access_token": NaN}'),
        httpx.Response(200, text="access_token=a&access_token=b", headers=FORM),
        httpx.Response(200, text="a=b&" * 1000 + "access_token=t", headers=FORM),
    ],
    "did not issue an access token (bad_verification_code).": [
        httpx.Response(200, json={"error": "bad_verification_code", "access_token": "gho_x"}),
        httpx.Response(200, text="error=bad_verification_code", headers=FORM),
    ],
    "did not issue an access token.": [
        httpx.Response(200, json={"error": "<script>", "access_token": "gho_x"}),
        httpx.Response(200, json={"error": {"a": 1}, "access_token": "gho_x"}),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"access_token": None}),
        httpx.Response(200, json={"access_token": ""}),
    ],
    "did not issue an access token (invalid_code).": [
        httpx.Response(200, json={"ok": False, "error": "invalid_code"})
    ],
    "did not issue an access token (invalid_grant).": [
        httpx.Response(400, json={"error": "invalid_grant", "error_description": "call us"})
    ],
    "issued an access token that is not valid.": [
        httpx.Response(200, json={"access_token": 7}),
        httpx.Response(200, json={"access_token": ["gho_x"]}),
        httpx.Response(200, json={"access_token": "x" * (TOKEN_BYTES_AT_MOST + 1)}),
        httpx.Response(200, json={"access_token": "a\r\nHost: evil"}),
        httpx.Response(200, json={"access_token": "kéy"}),
        httpx.Response(200, json={"access_token": "t", "refresh_token": {}}),
    ],
    "issued an access token of a type that this server does not support.": [
        httpx.Response(200, json={"access_token": "t", "token_type": "mac"}),
        httpx.Response(200, json={"access_token": "t", "token_type": 1}),
    ],
}


@pytest.mark.parametrize(
    ("explanation", "reply"),
    [(words, reply) for words, replies in NO_KEY.items() for reply in replies],
)
def test_reply_without_valid_token_fails_with_explanation(explanation, reply):
    _, away = departed()
    with pytest.raises(Failed) as failed:
        granted(github, away, reply)
    assert str(failed.value) == f"GitHub {explanation}"


def unsigned(claims: dict[str, Any]) -> str:
    """Return a token with `alg: none`."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def claims_for(away: Elicitation, **changes: Any) -> dict[str, Any]:
    payload = id_token(away, **changes).split(".")[1]
    claims: dict[str, Any] = json.loads(
        base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    )
    return claims


def without(claim: str) -> Callable[[Elicitation], str]:
    def forge(away: Elicitation) -> str:
        claims = claims_for(away)
        del claims[claim]
        return jwt.encode({"alg": "ES256", "kid": "one"}, claims, KEY)

    return forge


def signed_with(key: Any, alg: str, **header: Any) -> Callable[[Elicitation], str]:
    registry = JWSRegistry(algorithms=[alg], strict_check_header=False)
    return lambda away: jwt.encode({"alg": alg, **header}, claims_for(away), key, registry=registry)


SECRET = OctKey.import_key(b"our:secret/%-and-then-some-more-bytes")
STRANGER = ECKey.generate_key("P-256", parameters={"kid": "one"})
UNKNOWN = ECKey.generate_key("P-256", parameters={"kid": "two"})


@pytest.mark.parametrize(
    "forge",
    [
        lambda away: unsigned(claims_for(away)),
        lambda away: unsigned(claims_for(away)) + "AAAA",
        signed_with(SECRET, "HS256"),
        signed_with(SECRET, "HS256", kid="one"),
        signed_with(STRANGER, "ES256", kid="one"),
        signed_with(UNKNOWN, "ES256", kid="two"),
        signed_with(STRANGER, "ES256", kid="one", jwk=STRANGER.as_dict(private=False)),
        signed_with(STRANGER, "ES256", kid="one", jku="https://evil.example/jwks"),
        lambda away: id_token(away)[:-8] + "AAAAAAAA",
        lambda away: id_token(away, exp=NOW - 61),
        *map(without, ("iss", "aud", "exp", "iat", "nonce")),
        lambda away: id_token(away, exp="never"),
        lambda away: id_token(away, exp=None),
        lambda away: id_token(away, iat=NOW + 3600),
        lambda away: id_token(away, iat=None),
        lambda away: id_token(away, nbf=NOW + 3600),
        lambda away: id_token(away, iss="https://evil.example"),
        lambda away: id_token(away, iss=ISSUER + "/"),
        lambda away: id_token(away, iss=[ISSUER]),
        lambda away: id_token(away, aud="another client"),
        lambda away: id_token(away, aud=["another client"]),
        lambda away: id_token(away, aud=["our id", "another client"]),
        lambda away: id_token(away, aud=["our id", "another client"], azp="another client"),
        lambda away: id_token(away, azp="another client"),
        lambda away: id_token(away, aud={"our id": 1}),
        lambda away: id_token(away, aud=None),
        lambda away: id_token(away, nonce="of another sign-in"),
        lambda away: id_token(away, nonce=None),
        lambda away: id_token(away, nonce=["n"]),
        lambda away: id_token(away, sub=None, email="ada@example.com"),
        lambda away: id_token(away, sub=7, email="ada@example.com"),
        lambda away: id_token(away, sub="", email="ada@example.com"),
        lambda _: "",
        lambda _: "not.a.token",
        lambda _: "..",
        lambda _: "é.é.é",
        lambda _: "a.b.c.d.e",
        lambda _: "x" * 500_000,
        lambda _: base64.urlsafe_b64encode(b"[" * 300).decode().rstrip("=") + ".e30.AAAA",
        lambda _: None,
        lambda _: {"sub": "sub-1"},
    ],
)
def test_forged_id_token_connects_no_account(forge: Callable[[Elicitation], Any]):
    _, away = departed(ACME)
    tokens = {"access_token": "t", "id_token": forge(away)}
    with pytest.raises(Failed, match=r"sent an ID token|did not say wh"):
        granted(ACME, away, httpx.Response(200, json=tokens), key_set())


@pytest.mark.parametrize(
    "keys",
    [
        httpx.Response(500),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"keys": []}),
        httpx.Response(200, json={"keys": "all"}),
        httpx.Response(200, json={"keys": [1, None, {"kty": "EC"}, {"kty": "RSA", "n": "AQ"}]}),
        httpx.Response(200, json={"keys": [{**KEY.as_dict(private=False), "use": "enc"}]}),
        httpx.Response(200, json={"keys": [SECRET.as_dict(private=True) | {"kid": "one"}]}),
    ],
)
def test_id_token_is_refused_if_issuer_has_no_usable_key(keys: httpx.Response):
    _, away = departed(ACME)
    tokens = {"access_token": "t", "id_token": id_token(away, email="ada@example.com")}
    with pytest.raises(Failed, match=r"did not send its keys|publishes no usable keys"):
        granted(ACME, away, httpx.Response(200, json=tokens), keys)


def test_id_token_signed_with_published_secret_is_refused():
    _, away = departed(ACME)
    forged = signed_with(SECRET, "HS256", kid="one")(away)
    keys = {"keys": [SECRET.as_dict(private=True) | {"kid": "one"}, KEY.as_dict(private=False)]}
    tokens = {"access_token": "t", "id_token": forged}
    with pytest.raises(Failed, match="an ID token"):
        granted(ACME, away, httpx.Response(200, json=tokens), httpx.Response(200, json=keys))


def test_broken_key_next_to_valid_key_is_ignored():
    _, away = departed(ACME)
    small = {"kty": "RSA", "kid": "small", "n": "wQ", "e": "AQAB"}
    curve = {**KEY.as_dict(private=False), "kid": "curve", "crv": "brainpoolP256r1"}
    keys = {"keys": [small, curve, {"kty": "ML-KEM"}, KEY.as_dict(private=False)]}
    tokens = {"access_token": "t", "id_token": id_token(away, email="ada@example.com")}
    grant, _ = granted(ACME, away, httpx.Response(200, json=tokens), httpx.Response(200, json=keys))
    assert grant.person.id == "sub-1"


def test_rsa_signature_of_issuer_is_accepted():
    _, away = departed(ACME)
    key = RSAKey.generate_key(2048, parameters={"kid": "rsa"})
    token = signed_with(key, "RS256", kid="rsa")(away)
    tokens = {"access_token": "t", "id_token": token}
    keys = {"keys": [key.as_dict(private=False)]}
    grant, _ = granted(
        ACME,
        away,
        httpx.Response(200, json=tokens),
        httpx.Response(200, json=keys),
        httpx.Response(200, json={"sub": "sub-1", "name": "Ada"}),
    )
    assert grant.person.label == "Ada"


@pytest.mark.parametrize("sub", ["sub-2", "", None, 1])
def test_userinfo_of_another_subject_connects_no_account(sub):
    _, away = departed(ACME)
    tokens = {"access_token": "t", "id_token": id_token(away)}
    more = {"sub": sub, "email": "victim@example.com"}
    with pytest.raises(Failed, match="whose account"):
        granted(
            ACME,
            away,
            httpx.Response(200, json=tokens),
            key_set(),
            httpx.Response(200, json=more),
        )


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://evil.example"},
        {"issuer": ISSUER + "/"},
        {"issuer": None},
        {"authorization_endpoint": "http://login.example/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": f"{ISSUER}/authorize#x"},
        {"authorization_endpoint": None},
        {"token_endpoint": "http://login.example/token"},
        {"token_endpoint": "http://127.0.0.1/token"},
        {"token_endpoint": "http://169.254.169.254/latest"},
        {"token_endpoint": "https://user:pass@login.example/token"},
        {"token_endpoint": ["https://login.example/token"]},
        {"token_endpoint": None},
        {"jwks_uri": "http://login.example/jwks"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"userinfo_endpoint": "http://login.example/userinfo"},
    ],
)
def test_metadata_with_foreign_or_unsafe_endpoints_is_refused(change):
    with pytest.raises(Failed):
        departed(ACME, metadata=METADATA | change)


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(404),
        httpx.Response(302, headers={"Location": "https://evil.example"}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, text="[" * 200_000),
        httpx.Response(200, json=[METADATA]),
    ],
)
def test_unreadable_metadata_fails_before_redirect(reply: httpx.Response):
    flow = a_flow(ACME)
    going = an_elicitation(ACME, attempt_data=flow.prepare(an_elicitation(ACME), TRIP))
    replies = [reply, reply] if reply.status_code == 404 else [reply]
    with pytest.raises(Failed, match="does not publish its endpoints"):
        talked(flow.begin(going, TRIP), *replies)


def test_local_issuer_may_declare_local_endpoints():
    here = "http://127.0.0.1:8766/oidc"
    metadata = {
        "issuer": here,
        "authorization_endpoint": f"{here}/authorize",
        "token_endpoint": f"{here}/token",
        "jwks_uri": f"{here}/jwks",
    }
    departure, _ = departed(openid("acme", here), metadata=metadata)
    assert departure.url.startswith(f"{here}/authorize?")


async def test_redirect_to_another_host_does_not_receive_access_token():
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("Authorization")))
        if request.url.host == "api.github.com":
            return httpx.Response(302, headers={"Location": "https://evil.example/steal"})
        return httpx.Response(200, json=OCTOCAT)

    auth = BearerAuth("gho_x", origins=github.api_hosts)
    async with httpx.AsyncClient(
        transport=KeyTransport(httpx.MockTransport(answer), auth.on_wire),
        auth=auth,
        follow_redirects=True,
    ) as client:
        await client.get("https://api.github.com/user")
    assert seen == [("api.github.com", "Bearer gho_x"), ("evil.example", None)]


CRM = Provider(
    name="crm",
    label="CRM",
    authorize="https://crm.example/authorize",
    token="https://crm.example/token",
    api="https://crm.example",
    person=PersonProbe(url="https://crm.example/me", id="id", label="email"),
)
MINE = SubjectToken(text="the.persons.token", issuer=ISSUER, subject="ann", claim=("sub",))


def requests_of(
    talk: Any, answer: Callable[[httpx.Request], httpx.Response]
) -> list[httpx.Request]:
    """Run `talk`, which must fail. Reply with `answer`, and return the requests that it sent."""
    requests = list[httpx.Request]()

    def run() -> None:
        request = next(talk)
        while True:
            requests.append(request)
            reply = answer(request)
            reply.request = request
            request = talk.send(reply)

    with pytest.raises((Failed, api_key.KeyRefused)):
        run()
    return requests


@pytest.mark.parametrize("kind", ["token_exchange", "jwt_bearer"])
@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(307, headers={"location": "https://evil.example/token"}),
        httpx.Response(200, html="<h1>Sign in</h1>"),
        httpx.Response(200, json={"access_token": "x" * (TOKEN_BYTES_AT_MOST + 1)}),
        httpx.Response(200, json={"token_endpoint": "https://evil.example/token"}),
    ],
)
def test_exchange_sends_token_of_a_person_to_no_other_host(kind: Any, reply: httpx.Response):
    provider = replace(CRM, exchange=TokenExchange(issuer=ISSUER, kind=kind))
    client = Client(provider=provider, client_id="id", client_secret="a long secret")
    talk = exchanged(client, MINE, scopes=(), issuer_client=None, now=NOON)
    requests = requests_of(talk, lambda _: reply)
    assert [one.url.host for one in requests] == ["crm.example"]


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://crm.example/token"},
        {"token_endpoint": "https://evil.example/token", "issuer": "https://evil.example"},
    ],
)
@pytest.mark.parametrize("kind", ["token_exchange", "id_jag"])
def test_metadata_of_another_issuer_gets_no_token_of_a_person(kind: Any, change: Any):
    how = TokenExchange(issuer=ISSUER, kind=kind, audience="https://crm.example")
    who = PersonProbe(url=f"{ISSUER}/userinfo", id="sub", label="sub")
    provider = replace(ACME, api=ISSUER, api_hosts=(), person=who, exchange=how)
    client = Client(provider=provider, client_id="id", client_secret="a long secret")
    people = Client(provider=ACME, client_id="id", client_secret="a long secret")
    talk = exchanged(client, MINE, scopes=(), issuer_client=people, now=NOON)
    requests = requests_of(talk, lambda _: httpx.Response(200, json={**METADATA, **change}))
    assert {one.method for one in requests} == {"GET"}
    assert all(MINE.text not in str(one.url) for one in requests)


def test_redirected_test_of_a_key_sends_the_key_to_no_other_host():
    provider = Provider(
        name="acme",
        label="Acme",
        api="https://api.acme.example",
        key=ProviderKey(page="https://acme.example/keys"),
        person=PersonProbe(url="https://api.acme.example/me", id="id", label="id"),
    )
    client = Client(provider=provider, client_id="", client_secret="")
    away = httpx.Response(307, headers={"location": "https://evil.example/me"})
    requests = requests_of(api_key.tested(client, "sk-live", now=NOON), lambda _: away)
    assert [one.url.host for one in requests] == ["api.acme.example"]
    with pytest.raises(InvalidQuestion, match="its host is not in api_hosts"):
        replace(provider, person=PersonProbe(url="https://evil.example/me", id="id", label="id"))
