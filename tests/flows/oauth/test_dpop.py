"""Tokens that are bound to a key of their account (DPoP, RFC 9449), and resource indicators."""

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast
from urllib.parse import parse_qs

import httpx
import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from flows.elicitation.states import Elicitation
from flows.errors import Failed, InvalidQuestion
from flows.oauth.account import BearerAuth, KeyTransport, Newer
from flows.oauth.authorization_code import Grant
from flows.oauth.connection import Connection
from flows.oauth.dpop import new_key, thumbprint_of
from flows.oauth.provider import PersonProbe, Provider
from flows.oauth.refresh import refresh, refreshed
from flows.oauth.token_errors import TokenRefused
from tests.support.account_life import a_connection
from tests.support.clock import NOON
from tests.support.oauth_flow import (
    TRIP,
    a_flow,
    an_elicitation,
    granted,
    parameters_of,
    talked,
)

HUB = "https://hub.example"
PROVIDER = Provider(
    name="hub",
    label="Hub",
    authorize=f"{HUB}/authorize",
    token=f"{HUB}/token?tenant=1",
    api=f"{HUB}/api",
    dpop=True,
    resource="https://api.hub.example/v1",
    person=PersonProbe(url=f"{HUB}/api/me", id="id", label="login"),
)
TOKEN = {"access_token": "the-token", "refresh_token": "the-refresh", "token_type": "DPoP"}
WHO = httpx.Response(200, json={"id": 7, "login": "ada"})
NONCE = httpx.Response(400, json={"error": "use_dpop_nonce"}, headers={"dpop-nonce": "the-nonce"})

# finding: XO7, I8


def token_reply(**changes: Any) -> httpx.Response:
    return httpx.Response(200, json={**TOKEN, **changes})


def left(provider: Provider = PROVIDER) -> tuple[str, Elicitation, Any]:
    flow = a_flow(provider)
    going = an_elicitation(provider, attempt_data=flow.prepare(an_elicitation(provider), TRIP))
    departure, _ = talked(flow.begin(going, TRIP))
    stored: Any = msgspec.json.decode(msgspec.json.encode(departure.attempt_data))
    return departure.url, an_elicitation(provider, attempt_data=stored), stored["dpop_key"]


def proof_in(request: httpx.Request, key: str) -> dict[str, Any]:
    """Return the claims of the request's proof, checked as RFC 9449, 4.3 demands."""
    (text,) = request.headers.get_list("dpop")
    public = ECKey.import_key(msgspec.json.decode(key)).as_dict(private=False)
    read = jwt.decode(text, ECKey.import_key(public), algorithms=["ES256"])
    assert (read.header["typ"], read.header["alg"]) == ("dpop+jwt", "ES256")
    assert read.header["jwk"] == {name: public[name] for name in ("kty", "crv", "x", "y")}
    claims = read.claims
    assert claims["htm"] == request.method
    assert claims["htu"] == str(request.url).partition("?")[0]
    assert claims["iat"] == int(NOON.timestamp())
    assert len(claims["jti"]) >= 16
    return claims


def digest_of(token: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()


def test_code_token_and_api_request_are_bound_to_key_of_account() -> None:
    url, away, key = left()
    assert parameters_of(url)["dpop_jkt"] == [thumbprint_of(key)]
    grant, (exchange, who) = granted(PROVIDER, away, token_reply(), WHO)
    assert "ath" not in proof_in(exchange, key)
    assert who.headers["authorization"] == "DPoP the-token"
    assert proof_in(who, key)["ath"] == digest_of("the-token")
    assert grant.dpop_key == key
    assert left()[2] != key
    assert all(key not in repr(one) for one in (grant, away))


def test_token_request_is_repeated_once_with_nonce_and_new_proof() -> None:
    _, away, key = left()
    _, (first, second, _) = granted(PROVIDER, away, NONCE, token_reply(), WHO)
    one, two = proof_in(first, key), proof_in(second, key)
    assert ("nonce" in one, two["nonce"]) == (False, "the-nonce")
    assert one["jti"] != two["jti"]
    assert first.content == second.content


def test_server_that_always_wants_another_nonce_is_asked_twice_only() -> None:
    _, away, _ = left()
    with pytest.raises(TokenRefused, match="DPoP"):
        granted(PROVIDER, away, NONCE, NONCE)


@pytest.mark.parametrize(
    "nonce", ["", "x" * 5000, b"\xe9", b"a\tb"], ids=["none", "long", "not ascii", "tab"]
)
def test_request_is_not_repeated_with_an_invalid_nonce(nonce: Any) -> None:
    _, away, _ = left()
    reply = httpx.Response(400, json={"error": "use_dpop_nonce"}, headers=[("dpop-nonce", nonce)])
    with pytest.raises(TokenRefused):
        granted(PROVIDER, away, reply)


def test_token_that_is_not_bound_is_refused() -> None:
    _, away, _ = left()
    with pytest.raises(Failed, match="of a type"):
        granted(PROVIDER, away, token_reply(token_type="Bearer"))


def test_bound_token_is_refused_if_provider_does_not_declare_dpop() -> None:
    provider = replace(PROVIDER, dpop=False)
    _, away, key = left(provider)
    assert key is None
    with pytest.raises(Failed, match="of a type"):
        granted(provider, away, token_reply())


@pytest.mark.parametrize(
    "body",
    [
        {"error": "invalid_dpop_proof"},
        {"error": "use_dpop_nonce"},
        {"error": "invalid_request", "error_description": "DPoP proof JWT not provided"},
        {"error": "invalid_grant", "error_description": "DPoP proof JWT not provided"},
    ],
)
def test_error_of_provider_that_demands_dpop_names_the_setting(body: dict[str, str]) -> None:
    provider = replace(PROVIDER, dpop=False)
    _, away, _ = left(provider)
    with pytest.raises(TokenRefused, match="requires DPoP") as error:
        granted(provider, away, httpx.Response(400, json=body))
    assert error.value.refusal.means == "client"


def connection(grant: Grant) -> Connection:
    return Connection(
        id="c",
        owner="o",
        lookup_key="k",
        server="s",
        provider="hub",
        person_id="7",
        label="ada",
        connected_at=NOON,
        scopes=(),
        tools=(),
        access_token=grant.tokens.access_token,
        refresh_token=grant.tokens.refresh_token,
        dpop_key=grant.dpop_key,
    )


def test_refresh_proves_same_key_and_names_resource() -> None:
    # finding: I4
    url, away, key = left()
    grant, (exchange, _) = granted(PROVIDER, away, token_reply(), WHO)
    client = a_flow(PROVIDER)._clients["hub"]
    reply = token_reply(access_token="newer")
    renewed, (request,) = talked(refresh(client, connection(grant), now=NOON), reply)
    assert renewed.tokens.access_token == "newer"
    proof_in(request, key)
    assert parameters_of(url)["resource"] == [PROVIDER.resource]
    for one in (exchange, request):
        assert parse_qs(one.content.decode())["resource"] == [PROVIDER.resource]
    assert key not in repr(connection(grant))


@pytest.mark.parametrize("requested", [None, ("read",)], ids=["person", "server"])
@pytest.mark.parametrize("kind", ["DPoP", "Bearer"])
def test_account_from_before_dpop_gets_key_if_its_new_token_is_bound(
    kind: str, requested: tuple[str, ...] | None
) -> None:
    before = a_connection(PROVIDER, requested=requested)
    client, reply = a_flow(PROVIDER)._clients["hub"], token_reply(token_type=kind)
    renewed, (request,) = talked(refresh(client, before, now=NOON), reply)
    after = refreshed(before, renewed, now=NOON)
    assert (after.dpop_key is not None) is (kind == "DPoP")
    assert "dpop" in request.headers
    if after.dpop_key is not None:
        proof_in(request, after.dpop_key)
        assert after.dpop_key not in repr(renewed)


def api(answer: Callable[[httpx.Request], httpx.Response], key: str, **more: Any) -> httpx.Client:
    auth = BearerAuth("the-token", origins=(HUB,), key=key, now=lambda: NOON, **more)
    transport = KeyTransport(httpx.MockTransport(answer), auth.on_wire)
    return httpx.Client(transport=transport, auth=auth)


def test_api_request_has_proof_with_latest_nonce() -> None:
    key, seen = new_key(), list[dict[str, Any]]()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(proof_in(request, key))
        assert request.headers["authorization"] == "DPoP the-token"
        assert seen[-1]["ath"] == digest_of("the-token")
        if seen[-1].get("nonce") == "n":
            return httpx.Response(200)
        wanted = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": "n"}
        return httpx.Response(401, headers=wanted)

    with api(answer, key) as client:
        assert client.post(f"{HUB}/x?a=b", json={}).status_code == 200
        assert client.get(f"{HUB}/y").status_code == 200
    assert [one.get("nonce") for one in seen] == [None, "n", "n"]


def test_api_that_always_wants_another_nonce_is_asked_twice_only() -> None:
    key, seen = new_key(), list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        wanted = {"www-authenticate": "DPoP use_dpop_nonce", "dpop-nonce": f"n{len(seen)}"}
        return httpx.Response(401, headers=wanted)

    with api(answer, key) as client:
        assert client.get(f"{HUB}/x").status_code == 401
    assert len(seen) == 2


class RenewedKey:
    """An API that accepts only a renewed token with a proof of its new key, and with a nonce."""

    def __init__(self, before: str | None) -> None:
        self.key = new_key()
        self.nonces: list[str | None] = []
        self.auth = BearerAuth(
            "the-token",
            origins=(HUB,),
            key=before,
            now=lambda: NOON,
            renew=self.renew,
            wait=self.wait,
        )
        self.transport = KeyTransport(httpx.MockTransport(self.answer), self.auth.on_wire)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] != "DPoP the-newer":
            assert not self.nonces
            return httpx.Response(401)
        self.nonces.append(proof_in(request, self.key).get("nonce"))
        if self.nonces[-1] == "n":
            return httpx.Response(200)
        wanted = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": "n"}
        return httpx.Response(401, headers=wanted)

    async def renew(self, refused: str) -> tuple[str, str | None]:
        assert refused == "the-token"
        return "the-newer", self.key

    def wait(self, work: Coroutine[Any, Any, Newer]) -> Newer:
        with pytest.raises(StopIteration) as stopped:
            work.send(None)
        return cast("Newer", stopped.value.value)


@pytest.mark.parametrize("before", [None, new_key()])
async def test_renewed_token_is_sent_with_the_key_that_it_is_bound_to(before: str | None) -> None:
    site = RenewedKey(before)
    async with httpx.AsyncClient(transport=site.transport, auth=site.auth) as client:
        assert (await client.get(f"{HUB}/x")).status_code == 200
    assert site.nonces == [None, "n"]


@pytest.mark.parametrize("before", [None, new_key()])
def test_sync_client_sends_a_renewed_token_with_its_key(before: str | None) -> None:
    site = RenewedKey(before)
    with httpx.Client(transport=site.transport, auth=site.auth) as client:
        assert client.get(f"{HUB}/x").status_code == 200
    assert site.nonces == [None, "n"]


def test_proof_and_token_go_to_no_other_host() -> None:
    seen = list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(
            401, headers={"dpop-nonce": "n", "www-authenticate": "use_dpop_nonce"}
        )

    with api(answer, new_key()) as client:
        client.get("https://evil.example/x")
    (request,) = seen
    assert not {"authorization", "dpop"} & request.headers.keys()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"resource": "https://api.example/#x"}, "resource: must have no fragment"),
        ({"resource": "http://api.example"}, "resource: "),
        ({"extra": (("resource", "https://other.example"),)}, "extra: resource is set"),
        ({"token_extra": (("resource", "https://other.example"),)}, "token_extra: resource is"),
        ({"extra": (("dpop_jkt", "x"),)}, "extra: dpop_jkt is set"),
        ({"token_scheme": "Token"}, "token_scheme: leave it out"),
        ({"token_types": ("dpop",)}, "write dpop = true"),
    ],
)
def test_wrong_declaration_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidQuestion, match=fault):
        replace(PROVIDER, **fields)
