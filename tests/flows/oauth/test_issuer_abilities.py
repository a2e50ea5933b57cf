"""Features that issuers require or offer: metadata of RFC 8414, PAR, Ed25519, signed userinfo.

In the hostile cases, a reply tries to send the client secret or the person to another site.
"""

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey

from flows.elicitation.flow import Redirect
from flows.elicitation.states import Elicitation
from flows.errors import Failed
from flows.oauth.client_assertion import Signatures
from flows.oauth.provider import PersonProbe, Provider
from flows.oauth.token_errors import TokenRefused
from flows.providers import openid
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
    granted,
    id_token,
    key_set,
    parameters_of,
    talked,
)

PAR = f"{ISSUER}/par"
OFFERED: dict[str, Any] = {**METADATA, "pushed_authorization_request_endpoint": PAR}
DEMANDED: dict[str, Any] = {**OFFERED, "require_pushed_authorization_requests": True}
URN = "urn:ietf:params:oauth:request_uri:6esc_11ACC5bwc014ltc14eY22c"
TOKEN = {"access_token": "t", "token_type": "Bearer"}


def left(provider: Provider, *replies: httpx.Response) -> tuple[Redirect, list[httpx.Request]]:
    flow = a_flow(provider)
    going = an_elicitation(provider, attempt_data=flow.prepare(an_elicitation(provider), TRIP))
    return talked(flow.begin(going, TRIP), *replies)


def pushed(uri: Any = URN) -> httpx.Response:
    return httpx.Response(201, json={"request_uri": uri, "expires_in": 60})


# finding: XO7


@pytest.mark.parametrize("path", ["", "/tenant/a"])
def test_metadata_is_also_read_from_oauth_address(path: str) -> None:
    # finding: I6
    provider = openid("acme", ISSUER + path)
    reply = httpx.Response(200, json={**METADATA, "issuer": ISSUER + path})
    departure, requests = left(provider, httpx.Response(404), reply)
    assert [str(one.url) for one in requests] == [
        f"{ISSUER}{path}/.well-known/openid-configuration",
        f"{ISSUER}/.well-known/oauth-authorization-server{path}",
    ]
    assert departure.url.startswith(f"{ISSUER}/authorize?")


def test_metadata_of_another_issuer_at_oauth_address_is_refused() -> None:
    reply = httpx.Response(200, json={**METADATA, "issuer": "https://evil.example"})
    with pytest.raises(Failed, match="differs from the configured one") as error:
        left(ACME, httpx.Response(404), reply)
    assert "evil" not in str(error.value)
    assert "https://evil.example" in getattr(error.value, "why", "")


def test_account_of_server_without_openid_connect_is_connected() -> None:
    # finding: I6
    probe = PersonProbe(url=f"{ISSUER}/me", id="id", label="login")
    provider = Provider(
        name="acme", label="Acme", issuer=ISSUER, discovers=True, api=ISSUER, person=probe
    )
    stored = a_flow(provider).prepare(an_elicitation(provider), TRIP)
    going = an_elicitation(provider, attempt_data=stored)
    metadata = {
        key: value
        for key, value in METADATA.items()
        if key not in ("jwks_uri", "userinfo_endpoint")
    }
    departure, _ = talked(
        a_flow(provider).begin(going, TRIP), httpx.Response(404), httpx.Response(200, json=metadata)
    )
    away = an_elicitation(provider, attempt_data=departure.attempt_data)
    who = httpx.Response(200, json={"id": 7, "login": "ada"})
    grant, _ = granted(provider, away, httpx.Response(200, json=TOKEN), who)
    assert (grant.person.id, grant.person.label) == ("7", "ada")


@pytest.mark.parametrize("metadata", [OFFERED, DEMANDED], ids=["offered", "demanded"])
def test_authorization_request_is_pushed_with_client_secret(metadata: dict[str, Any]) -> None:
    departure, (_, push) = left(ACME, httpx.Response(200, json=metadata), pushed())
    assert parameters_of(departure.url) == {
        "tenant": ["a b"],
        "client_id": ["our id"],
        "request_uri": [URN],
    }
    sent = parse_qs(push.content.decode())
    assert (push.method, str(push.url), push.headers["authorization"][:6]) == (
        "POST",
        PAR,
        "Basic ",
    )
    assert sent["redirect_uri"] == [TRIP.return_url]
    assert sent["state"] == ["the-state"]
    assert sent["code_challenge_method"] == ["S256"]
    assert "request_uri" not in sent


@pytest.mark.parametrize(
    "uri",
    [
        "https://evil.example/request.jwt",
        "http://127.0.0.1/x",
        "urn:x",
        "URN:ietf:x y",
        "data:text/plain,x",
        f"urn:ietf:{'x' * 1000}",
        f"{URN}\n&client_id=evil",
        ["urn:ietf:x"],
        7,
        "",
    ],
)
def test_request_uri_that_server_would_fetch_is_refused(uri: Any) -> None:
    with pytest.raises(Failed, match="wrong id"):
        left(ACME, httpx.Response(200, json=OFFERED), pushed(uri))


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(404),
        httpx.Response(503),
        httpx.Response(200, html="<h1>Hello</h1>"),
        httpx.Response(302, headers={"location": "https://evil.example"}),
        httpx.Response(400, json={"error": "unauthorized_client"}),
    ],
    ids=["404", "503", "page", "redirect", "not for this client"],
)
def test_browser_carries_the_request_if_an_optional_push_fails(reply: httpx.Response) -> None:
    departure, _ = left(ACME, httpx.Response(200, json=OFFERED), reply)
    assert parameters_of(departure.url)["code_challenge_method"] == ["S256"]
    with pytest.raises(Failed):
        left(ACME, httpx.Response(200, json=DEMANDED), reply)


def test_wrong_secret_is_found_by_push_before_person_leaves() -> None:
    reply = httpx.Response(401, json={"error": "invalid_client"})
    with pytest.raises(TokenRefused) as error:
        left(ACME, httpx.Response(200, json=OFFERED), reply)
    assert error.value.refusal.means == "client"


def test_demanded_push_without_endpoint_is_refused_before_person_leaves() -> None:
    metadata = {**METADATA, "require_pushed_authorization_requests": True}
    with pytest.raises(Failed, match="publishes no endpoint"):
        left(ACME, httpx.Response(200, json=metadata))


@pytest.mark.parametrize(
    "endpoint", ["http://login.example/par", "https://login.example/par#x", 7, "file:///etc/passwd"]
)
def test_unsafe_push_endpoint_receives_no_secret(endpoint: Any) -> None:
    metadata = {**METADATA, "pushed_authorization_request_endpoint": endpoint}
    with pytest.raises(Failed, match="not safe"):
        left(ACME, httpx.Response(200, json=metadata))


# Signatures

ED = OKPKey.generate_key("Ed25519", parameters={"kid": "ed"})


def signed(away: Elicitation, key: Any, algorithm: str, *, kid: str | None, **changes: Any) -> str:
    stored: Any = away.attempt.kept if away.attempt else None
    now = int(NOON.timestamp())
    claims = {"iss": ISSUER, "sub": "sub-1", "aud": "our id", "nonce": stored["nonce"]}
    claims |= {"iat": now, "exp": now + 300, "name": "Ada", **changes}
    header = {"alg": algorithm} | ({} if kid is None else {"kid": kid})
    return jwt.encode(header, claims, key, registry=Signatures(algorithms=[algorithm]))


def keys(*published: Any) -> httpx.Response:
    return httpx.Response(200, json={"keys": [*published]})


@pytest.mark.parametrize("algorithm", ["EdDSA", "Ed25519"])
@pytest.mark.parametrize("named", [None, "EdDSA", "Ed25519"])
@pytest.mark.parametrize("kid", ["ed", None])
def test_ed25519_signature_is_accepted(algorithm: str, named: str | None, kid: str | None) -> None:
    # finding: I8
    _, away = departed(ACME)
    public = {**ED.as_dict(private=False), **({} if named is None else {"alg": named})}
    token_reply = {**TOKEN, "id_token": signed(away, ED, algorithm, kid=kid)}
    both = keys(KEY.as_dict(private=False), public)
    grant, _ = granted(ACME, away, httpx.Response(200, json=token_reply), both)
    assert grant.person.label == "Ada"


def test_token_without_key_id_is_verified_next_to_key_of_another_type() -> None:
    _, away = departed(ACME)
    token_reply = {**TOKEN, "id_token": signed(away, KEY, "ES256", kid=None)}
    both = keys(ED.as_dict(private=False), KEY.as_dict(private=False))
    grant, _ = granted(ACME, away, httpx.Response(200, json=token_reply), both)
    assert grant.person.id == "sub-1"


def test_signature_by_another_key_or_curve_is_refused() -> None:
    _, away = departed(ACME)
    other = OKPKey.generate_key("Ed25519", parameters={"kid": "ed"})
    ed448 = OKPKey.generate_key("Ed448", parameters={"kid": "ed"})
    for token, published in (
        (signed(away, other, "EdDSA", kid="ed"), ED.as_dict(private=False)),
        (signed(away, ED, "EdDSA", kid="ed"), ed448.as_dict(private=False)),
        (signed(away, ED, "EdDSA", kid="ed"), {**ED.as_dict(private=False), "use": "enc"}),
        (signed(away, ED, "EdDSA", kid="ed"), {**ED.as_dict(private=False), "kty": "EC"}),
    ):
        token_reply = {**TOKEN, "id_token": token}
        with pytest.raises(Failed, match=r"ID token|no usable keys"):
            granted(ACME, away, httpx.Response(200, json=token_reply), keys(published))


@pytest.mark.parametrize(
    "secret", ["our:secret/% of twenty", ED.as_dict(private=False)["x"]], ids=["ours", "public key"]
)
def test_id_token_signed_with_secret_is_refused_with_reason(secret: Any) -> None:
    _, away = departed(ACME)
    token = jwt.encode(
        {"alg": "HS256", "kid": "ed"}, {"sub": "x"}, OctKey.import_key(secret), algorithms=["HS256"]
    )
    token_reply = {**TOKEN, "id_token": token}
    with pytest.raises(Failed, match="signed with HS256"):
        granted(ACME, away, httpx.Response(200, json=token_reply), keys(ED.as_dict(private=False)))


# Userinfo


def info(
    key: Any = KEY, *, algorithm: str = "ES256", kid: str = "one", **changes: Any
) -> httpx.Response:
    claims = {"iss": ISSUER, "aud": "our id", "sub": "sub-1", "email": "ada@hub.example"}
    header = {"alg": algorithm, "kid": kid}
    text = jwt.encode(header, {**claims, **changes}, key, algorithms=[algorithm])
    return httpx.Response(200, text=text, headers={"content-type": "application/jwt"})


def labelled(away: Elicitation, *replies: httpx.Response) -> str:
    token_reply = {**TOKEN, "id_token": id_token(away)}
    grant, _ = granted(ACME, away, httpx.Response(200, json=token_reply), key_set(), *replies)
    assert grant.person.id == "sub-1"
    return grant.person.label


def test_signed_userinfo_is_verified_and_used() -> None:
    # finding: I5
    _, away = departed(ACME)
    assert labelled(away, info(), key_set()) == "ada@hub.example"


@pytest.mark.parametrize(("only", "label"), [((), "ada@hub.example"), (("ES256",), "sub-1")])
def test_userinfo_needs_one_of_the_declared_algorithms(only: tuple[str, ...], label: str) -> None:
    provider = replace(ACME, algorithms=only)
    _, away = departed(provider)
    token_reply = {**TOKEN, "id_token": id_token(away)}
    other = ECKey.generate_key("P-384", parameters={"kid": "other"})
    both = keys(other.as_dict(private=False), KEY.as_dict(private=False))
    reply = info(other, algorithm="ES384", kid="other")
    grant, _ = granted(
        provider, away, httpx.Response(200, json=token_reply), key_set(), reply, both
    )
    assert grant.person.label == label


@pytest.mark.parametrize(
    "reply",
    [
        info(iss="https://evil.example"),
        info(aud="another client"),
        info(key=ECKey.generate_key("P-256", parameters={"kid": "one"})),
        httpx.Response(200, text="a.b.c", headers={"content-type": "application/jwt"}),
        httpx.Response(200, text="a.b.c.d.e", headers={"content-type": "application/jwt"}),
    ],
    ids=["issuer", "audience", "key", "no token", "encrypted"],
)
def test_wrongly_signed_userinfo_is_ignored_and_label_is_the_id(reply: httpx.Response) -> None:
    # finding: I5
    _, away = departed(ACME)
    assert labelled(away, reply, key_set()) == "sub-1"


@pytest.mark.parametrize("reply", [httpx.Response(500), httpx.Response(200, html="<p>")])
def test_unreadable_userinfo_is_ignored_and_label_is_the_id(reply: httpx.Response) -> None:
    # finding: I5
    _, away = departed(ACME)
    assert labelled(away, reply) == "sub-1"


def test_userinfo_of_another_person_is_refused() -> None:
    _, away = departed(ACME)
    with pytest.raises(Failed, match="whose account"):
        labelled(away, info(sub="sub-2"), key_set())
