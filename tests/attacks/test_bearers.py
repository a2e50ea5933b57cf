"""Tokens and sessions as an attacker uses them. Each must be refused."""

import base64
import hmac
import json
from datetime import timedelta
from string import ascii_letters
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey
from joserfc.jws import JWSRegistry

from flows.crypto.tokens import Claims, Purpose, Ring, Tokens
from flows.oauth.access_token import BadBearer, Resource, verify
from flows.oauth.authorization_code import Mixed
from flows.oauth.sign_in import SignedIn
from tests.support.access_tokens import (
    HERE,
    ISSUER,
    KEY,
    KEYS,
    NOW,
    RESOURCE,
    RSA,
    claims_of,
    refusal,
    token,
)
from tests.support.bearers import ProtectedEndpoint, bearer
from tests.support.clock import NOON, Clock
from tests.support.mcp_server import new_browser, new_server
from tests.support.serving import serving_at
from tests.support.sessions import (
    ALICE,
    ATTEMPT_DATA,
    LOCAL,
    RING,
    URL,
    jar,
    sessions_of,
    signed_in,
)
from tests.support.sign_in_flow import arrived, came_back, departed
from webapp.connecting import utc_now
from webapp.http.exchange import ASGIApp
from webapp.identity.bearer_auth import protected
from webapp.identity.sessions import Sessions
from webapp.server import HostedServer
from webapp.stores.sqlite import MemoryStore

GOOD = token()
CLIENT = {"name": "an assistant", "version": "1"}
MALLORY = SignedIn(issuer=ISSUER, subject="mallory", label="Mallory")
STRANGER = ECKey.generate_key("P-256", parameters={"kid": "one"})
PEM = RSA.as_pem(private=False)


def written(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """Return a token built from these parts."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def by_hmac(secret: bytes, kid: str) -> str:
    signed = written({"alg": "HS256", "kid": kid, "typ": "at+jwt"}, claims_of())[:-1]
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), "sha256"))
    return f"{signed}.{signature.rstrip(b'=').decode()}"


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, ["ES256"]])
@pytest.mark.parametrize("signature", [b"", b"signature"])
def test_unsigned_token_is_refused(alg, signature):
    header = {"alg": alg, "typ": "at+jwt", "kid": "one"}
    assert refusal(written(header, claims_of(), signature)) in ("algorithm", "no token")


@pytest.mark.parametrize(
    "secret",
    [PEM, json.dumps(RSA.as_dict(private=False)).encode(), str(KEYS[1]["n"]).encode()],
)
def test_token_signed_with_public_key_as_hmac_secret_is_refused(secret):
    assert refusal(by_hmac(secret, "two")) == "algorithm"


@pytest.mark.parametrize(
    "header",
    [{}, {"jwk": STRANGER.as_dict(private=False)}, {"jku": "https://evil.example/jwks"}],
)
def test_token_signed_with_attackers_key_is_refused(header):
    assert refusal(token(key=STRANGER, header=header)) == "signature"


def test_token_naming_another_key_than_its_signer_is_refused():
    assert refusal(token(header={"kid": "two"})) == "signature"
    assert refusal(token(header={"kid": "three"})) == "signature"
    assert refusal(token(key=RSA, alg="RS256", header={"kid": "one"})) == "signature"
    with pytest.raises(BadBearer) as refused:
        verify(token(), resource=RESOURCE, keys=[], now=NOON)
    assert refused.value.reason == "unknown key"


def test_token_with_changed_claims_is_refused():
    head, _, signature = token().split(".")
    body = written({}, claims_of(sub="bob")).split(".")[1]
    assert refusal(f"{head}.{body}.{signature}") == "signature"


@settings(deadline=None, max_examples=200)
@given(at=st.integers(min_value=0), character=st.sampled_from("AQgwabcXYZ019-_.=+ é"))
def test_token_with_changed_character_is_refused(at, character):
    at %= len(GOOD)
    changed = GOOD[:at] + character + GOOD[at + 1 :]
    if changed != GOOD:
        refusal(changed)


@settings(deadline=None)
@given(text=st.text(max_size=80) | st.text(alphabet=ascii_letters + "-_.", max_size=80))
def test_random_text_is_only_ever_refused(text):
    refusal(text)
    refusal(f"{GOOD.partition('.')[0]}.{text}")


async def test_protocol_session_of_another_person_is_refused(library):
    """Mallory has a valid token of her own, and knows the id of Alice's session."""
    door = ProtectedEndpoint()
    headers = {"accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
    served = HostedServer(new_server(library), clock=utc_now)

    def endpoint(_: str) -> ASGIApp:
        return protected(served, tokens=door.tokens, name="shop")

    async def post(url: str, who: str, message: dict[str, Any]) -> httpx.Response:
        sent_headers = {**headers, "authorization": f"Bearer {token(sub=who)}"}
        body = {"jsonrpc": "2.0", "id": 1, **message}
        return await browser.post(f"{url}/mcp", json=body, headers=sent_headers)

    async with serving_at(endpoint) as url, new_browser() as browser:
        opened = await post(url, "alice", {"method": "initialize", "params": hello})
        assert opened.status_code == 200
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        headers["mcp-protocol-version"] = "2025-11-25"
        asks = {"method": "tools/list", "params": {}}
        assert (await post(url, "mallory", asks)).status_code == 404
        assert (await post(url, "alice", asks)).status_code == 200
        door.clock.tick(minutes=10)
        assert (await post(url, "alice", asks)).status_code == 401  # her token has expired


@pytest.mark.parametrize(
    "audience",
    [
        None,
        "",
        [],
        "https://tools.example",
        "https://tools.example/",
        "https://tools.example/mcp2",
        "https://tools.example/mcp?x=1",
        "https://TOOLS.example/mcp",
        "http://tools.example/mcp",
        "https://tools.example.evil/mcp",
        ["https://other.example/mcp"],
        {"https://tools.example/mcp": True},
        [[HERE]],
    ],
)
def test_token_for_another_audience_is_refused(audience):
    """Refuse the token: otherwise the other server could impersonate each of its users here."""
    assert refusal(token(aud=audience)) == "audience"


@pytest.mark.parametrize(
    "issuer",
    [
        "https://evil.example",
        f"{ISSUER}/",
        f"{ISSUER}/another-tenant",
        "https://LOGIN.example",
        None,
        [ISSUER],
    ],
)
def test_token_of_another_issuer_is_refused(issuer):
    """Refuse even a token signed with our issuer's key, because tenants can share keys."""
    assert refusal(token(iss=issuer)) == "issuer"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 60},
        {"exp": None},
        {"exp": "never"},
        {"exp": str(NOW + 300)},
        {"exp": True},
        {"nbf": NOW + 61},
        {"nbf": "now"},
        {"iat": NOW + 61},
        {"iat": None},
        {"iat": 10**400},
        {"nbf": 10**400},
        {"exp": -(10**400)},
    ],
)
def test_token_outside_its_validity_period_is_refused(changes):
    assert refusal(token(**changes)) == "time"


def test_token_with_nan_or_infinite_expiry_is_refused():
    for word in ("NaN", "Infinity"):
        payload = json.dumps(claims_of()).replace(str(NOW + 300), word).encode()
        body = base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
        head = token().partition(".")[0]
        signed = f"{head}.{body}".encode()
        signature = JWSRegistry(algorithms=["ES256"]).get_alg("ES256").sign(signed, KEY)
        text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
        assert refusal(f"{head}.{body}.{text}") in ("time", "signature")


@pytest.mark.parametrize(
    "claims", [{"nonce": "n"}, {"at_hash": "h"}, {"c_hash": "h"}, {"events": {}}]
)
def test_id_token_is_refused_as_access_token(claims):
    """Refuse an id_token whose audience is ours: one client id can serve for both tokens."""
    one = Resource(url=HERE, issuer=ISSUER, audiences=("our id",))
    assert refusal(token(aud="our id", header={"typ": "JWT"}, **claims), one) == (
        "another kind of token"
    )


@pytest.mark.parametrize("header", [{}, {"typ": "JWT"}, {"typ": None}])
@pytest.mark.parametrize(
    "key",
    [
        {"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"},
        {"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"},
        {"jwk": KEYS[0]},
        {},
        "",
    ],
)
async def test_key_bound_token_is_refused_as_plain_bearer(key, header):
    """Refuse a key-bound token sent as a bearer, so that a thief needs the key (RFC 9449, 7.2)."""
    bound = token(cnf=key, header=header)
    assert refusal(bound) == "another kind of token"
    assert (await ProtectedEndpoint().ask(bearer(bound))).status == 401


async def test_token_without_subject_identifies_no_person():
    door = ProtectedEndpoint()
    for nameless in (token(sub=None), token(sub=""), token(sub=["alice"]), token(sub=0)):
        answer = await door.ask(bearer(nameless))
        assert answer.seen.subject is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "a.b",
        token() + ".x",
        token() + "=",
        f" {token()}é",
        "x" * 9000,
        token().replace(".", ".."),
        "e30." * 2,
        written({"alg": "ES256", "typ": "at+jwt", "kid": 7}, {}),
        written({"alg": "ES256", "typ": "at+jwt", "crit": ["exp"]}, {}),
        base64.urlsafe_b64encode(b"[" * 4000).decode() + ".x.x",
        base64.urlsafe_b64encode(b"7").decode() + ".x.x",
    ],
)
async def test_malformed_token_is_refused_with_invalid_token(text):
    answer = await ProtectedEndpoint().ask(bearer(text or " "))
    assert answer.status == 401
    assert answer.problem["code"] == "invalid_token"


async def test_flood_of_unknown_key_ids_does_not_reach_issuer():
    door = ProtectedEndpoint()
    for number in range(200):
        answer = await door.ask(bearer(token(header={"kid": f"made up {number}"})))
        # finding: XO11
        assert answer.status == (503 if number else 401)  # the first request fetched the keys
    assert door.there.fetches == 1
    assert (await door.ask(bearer())).seen.subject == "alice"
    door.clock.tick(seconds=30)
    for number in range(200):
        await door.ask(bearer(token(header={"kid": f"more {number}"})))
    assert door.there.fetches == 2


async def test_malformed_token_does_not_reach_issuer():
    door = ProtectedEndpoint()
    for text in ("rubbish", written({"alg": "none", "kid": "x", "typ": "at+jwt"}, {})):
        await door.ask(bearer(text))
    assert door.there.fetches == 0


@pytest.mark.parametrize("query", ["access_token={}", "a=b&access_token={}&c", "access%5Ftoken={}"])
async def test_token_in_query_is_refused(query):
    """Refuse a token in a query: logs store addresses, and a header could have another token."""
    door = ProtectedEndpoint()
    for headers in ([], [bearer()]):
        answer = await door.ask(*headers, query=query.format(token()))
        assert answer.status == 400
        assert answer.problem["code"] == "invalid_request"
        assert token().partition(".")[0] not in answer.body.decode() + str(answer.headers)


async def test_too_many_query_parameters_are_refused():
    query = "&".join(f"a{number}=b" for number in range(1000)) + f"&access_token={token()}"
    assert (await ProtectedEndpoint().ask(bearer(), query=query)).status == 400


@pytest.mark.parametrize(
    "second",
    [bearer(), ("authorization", "Bearer x"), ("AUTHORIZATION", "Basic YTpi"), bearer(" ")],
)
async def test_second_authorization_header_is_refused(second):
    door = ProtectedEndpoint()
    for headers in ((bearer(), second), (second, bearer())):
        answer = await door.ask(*headers)
        assert answer.status == 400
        assert 'error="invalid_request"' in answer.headers["www-authenticate"]


async def test_two_tokens_in_same_header_are_refused():
    for text in (f"{token()}, Bearer {token()}", f"{token()} {token()}", f"{token()},{token()}"):
        assert (await ProtectedEndpoint().ask(bearer(text))).status == 401


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(store: MemoryStore, clock: Clock) -> Sessions:
    return sessions_of(store, clock)


async def test_session_fixed_by_attacker_ends_when_person_signs_in(sessions: Sessions):
    """Mallory sets her cookie in Alice's browser and waits until Alice signs in."""
    planted = await signed_in(sessions, MALLORY)
    cookies = await signed_in(sessions, ALICE, cookies=planted)
    assert cookies != planted
    session = await sessions.of(cookies)
    assert session is not None
    assert session.subject == "alice"
    assert await sessions.of(planted) is None


async def test_sign_in_begun_by_attacker_is_refused():
    """Mallory makes Alice's browser open the callback with her own code: login CSRF."""
    _, of_mallory = departed()
    _, of_alice = departed()
    with pytest.raises(Mixed):
        came_back(of_alice, arrival=arrived(of_mallory))
    with pytest.raises(Mixed):
        came_back(None, arrival=arrived(of_mallory))


async def test_stolen_cookie_is_refused_after_sign_out(
    sessions: Sessions, store: MemoryStore, clock: Clock
):
    cookies = await signed_in(sessions)
    clock.tick(minutes=10)
    session = await sessions.of(cookies)
    assert session is not None
    later = jar(sessions.renewed(session) or "")
    await sessions.end(session)
    for stolen in (cookies, later):
        assert await sessions.of(stolen) is None
        assert await sessions_of(store.sibling(), clock).of(stolen) is None
    await store.erase(owner="alice's own rows")
    assert await sessions.of(later) is None


async def test_session_of_another_server_is_refused(store: MemoryStore, clock: Clock):
    sessions = sessions_of(store, clock)
    other_ring = Ring([b"another server's secret of 32 b."])
    of_another_key = await signed_in(sessions_of(store, clock, ring=other_ring))
    assert await sessions.of(of_another_key) is None
    (text,) = (await signed_in(sessions_of(store, clock, public_url=LOCAL))).values()
    assert await sessions.of({sessions.cookie_name: text}) is None


async def test_other_token_types_are_refused_as_session(sessions: Sessions, clock: Clock):
    tokens = Tokens(RING, origin=URL)
    rest = json.dumps({"id": "x", "issuer": ISSUER, "subject": "alice", "label": "Alice"})
    for purpose in Purpose:
        claims = Claims(
            purpose=purpose, id="x", expires_at=clock.now + timedelta(hours=1), rest=rest
        )
        text = tokens.mint(claims, now=clock.now)
        assert await sessions.of({sessions.cookie_name: text}) is None
        assert sessions.sign_in_state({sessions.sign_in_cookie_name: text}) is None
    (leaving,) = jar(sessions.sign_in_cookie(ATTEMPT_DATA, back="/")).values()
    assert await sessions.of({sessions.cookie_name: leaving}) is None


async def test_cookie_with_longer_expiry_still_ends_at_session_limit(
    sessions: Sessions, clock: Clock
):
    cookies = await signed_in(sessions)
    session = await sessions.of(cookies)
    assert session is not None
    claims = Claims(
        purpose=Purpose.SESSION,
        id=session.id,
        expires_at=clock.now + timedelta(days=30),
        rest=json.dumps(
            {
                "id": session.id,
                "issuer": session.issuer,
                "subject": session.subject,
                "label": session.label,
                "signed_in_at": session.signed_in_at.isoformat(),
                "seen_at": session.seen_at.isoformat(),
            }
        ),
    )
    long = {sessions.cookie_name: Tokens(RING, origin=URL).mint(claims, now=clock.now)}
    assert await sessions.of(long) is not None
    clock.tick(hours=8)
    assert await sessions.of(long) is None


def test_error_description_from_issuer_is_not_shown():
    _, stored = departed()
    arrival = arrived(stored, code=None, error="x", error_description="Call +1 555 to unlock")
    with pytest.raises(Exception, match="refused") as failed:
        came_back(stored, httpx.Response(500), arrival=arrival)
    assert "555" not in str(failed.value)
