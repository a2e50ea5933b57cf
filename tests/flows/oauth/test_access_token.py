"""Access tokens of callers: the claims that a token must have, and the caller that they name."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flows.oauth.access_token import (
    LIFE_AT_MOST,
    Resource,
    Verified,
    key_id_of,
    subject_of,
    verify,
)
from tests.support.access_tokens import (
    ENTRA,
    HERE,
    ISSUER,
    KEYS,
    NOW,
    RESOURCE,
    RSA,
    claims_of,
    read,
    refusal,
    token,
)
from tests.support.clock import NOON


def test_valid_token_identifies_its_caller() -> None:
    assert read(token()) == Verified(
        issuer=ISSUER,
        subject="alice",
        client_id="an assistant",
        scopes=("tools", "more"),
        expires_at=datetime.fromtimestamp(NOW + 300, UTC),
        signed_in_at=datetime.fromtimestamp(NOW, UTC),
        made_for=(RESOURCE.url,),
    )


@pytest.mark.parametrize("issued", [-1e300, -5, 0, NOW - 10, NOW + 30])
def test_issue_time_is_never_later_than_now(issued: float) -> None:
    found = read(token(iat=issued)).signed_in_at
    assert found == datetime.fromtimestamp(max(0, min(issued, NOW)), UTC)


@pytest.mark.parametrize(
    ("auth_time", "earliest"),
    [(NOW - 7200, NOW - 7200), (-5, 0), (NOW + 90, NOW), (10**400, NOW), ("x", NOW), (None, NOW)],
)
def test_auth_time_takes_precedence_over_later_iat(auth_time: object, earliest: float) -> None:
    # finding: XS11
    found = read(token(auth_time=auth_time)).signed_in_at
    assert found == datetime.fromtimestamp(earliest, UTC)


@pytest.mark.parametrize("alg", ["RS256", "RS512", "PS256", "PS384"])
def test_rsa_signature_is_accepted(alg: str) -> None:
    assert read(token(key=RSA, alg=alg)).subject == "alice"


@pytest.mark.parametrize("kind", ["at+jwt", "AT+JWT", "JWT", "jwt", "application/at+jwt", None])
def test_access_token_type_or_generic_jwt_type_is_accepted(kind: str) -> None:
    assert read(token(header={"typ": kind})).subject == "alice"


def test_token_without_typ_needs_a_claim_that_only_access_tokens_have() -> None:
    plain: dict[str, Any] = {"header": {"typ": None}, "client_id": None, "scope": None}
    assert refusal(token(**plain)) == "type"
    assert refusal(token(**plain, azp="an assistant")) == "type"
    assert read(token(**plain, scp=["tools"], cid="an assistant")) == Verified(
        issuer=ISSUER,
        subject="alice",
        client_id="an assistant",
        scopes=("tools",),
        expires_at=datetime.fromtimestamp(NOW + 300, UTC),
        signed_in_at=datetime.fromtimestamp(NOW, UTC),
        made_for=(RESOURCE.url,),
    )


@pytest.mark.parametrize("kind", ["id+jwt", "logout+jwt", "dpop+jwt", "secevent+jwt", "at", ""])
def test_token_of_another_type_is_refused(kind: str) -> None:
    assert refusal(token(header={"typ": kind})) == "type"


@pytest.mark.parametrize("kind", [7, None, ["at+jwt"], {"at+jwt": True}])
def test_non_text_token_type_is_refused(kind: Any) -> None:
    head = json.dumps({"alg": "ES256", "kid": "one", "typ": kind}).encode()
    written = base64.urlsafe_b64encode(head).rstrip(b"=").decode()
    assert refusal(f"{written}.{token().partition('.')[2]}") == "type"


@pytest.mark.parametrize("audience", [HERE, f"{HERE}/", [HERE], ["elsewhere", f"{HERE}/"]])
def test_audience_with_or_without_trailing_slash_is_accepted(audience: Any) -> None:
    assert read(token(aud=audience)).subject == "alice"


def test_audience_is_accepted_if_our_address_ends_with_slash() -> None:
    slashed = Resource(url=f"{HERE}/", issuer=ISSUER)
    assert read(token(aud=HERE), slashed).subject == "alice"
    assert refusal(token(aud=f"{HERE}//"), slashed) == "audience"


def test_configured_audience_is_accepted() -> None:
    named = Resource(url=HERE, issuer=ISSUER, audiences=("api://tools",))
    assert read(token(aud="api://tools"), named).subject == "alice"
    assert refusal(token(aud="api://tools/"), named) == "audience"
    assert refusal(token(aud="api://tools")) == "audience"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 59},
        {"nbf": NOW + 59},
        {"iat": NOW + 59},
        {"exp": NOW + 0.5},
    ],
)
def test_clock_difference_up_to_one_minute_is_accepted(changes: dict[str, Any]) -> None:
    assert read(token(**changes)).subject == "alice"


@pytest.mark.parametrize(
    ("claim", "changes", "subject"),
    [
        (("sub",), {"sub": "Alice"}, "Alice"),
        (("sub",), {"sub": None}, None),
        (("sub",), {"sub": ""}, None),
        (("sub",), {"sub": 7}, None),
        (("sub",), {"sub": "a\nb"}, None),
        (("sub",), {"sub": "x" * 256}, None),
        (("sub",), {"sub": ["alice"]}, None),
        (ENTRA, {"oid": "o", "tid": "t"}, '{"oid":"o","tid":"t"}'),
        (("tid", "oid"), {"oid": "o", "tid": "t"}, '{"oid":"o","tid":"t"}'),
        (ENTRA, {"oid": "o"}, None),
        (ENTRA, {"tid": "t"}, None),
        (ENTRA, {"oid": "o", "tid": ""}, None),
        (("oid",), {"oid": "alice", "sub": None}, '{"oid":"alice"}'),
        ((), {}, None),
    ],
)
def test_subject_consists_of_all_configured_claims_or_is_missing(
    claim: tuple[str, ...], changes: dict[str, Any], subject: str | None
) -> None:
    known = Resource(url=HERE, issuer=ISSUER, claim=claim)
    assert read(token(**changes), known).subject == subject
    assert subject_of(claims_of(**changes), claim=claim) == subject


def test_claim_pairs_with_equal_concatenation_are_different_subjects() -> None:
    one = subject_of({"oid": "a", "tid": "bc"}, claim=ENTRA)
    other = subject_of({"oid": "ab", "tid": "c"}, claim=ENTRA)
    quoted = subject_of({"oid": 'a","tid":"b', "tid": "c"}, claim=ENTRA)
    assert len({one, other, quoted}) == 3
    assert subject_of({"sub": "alice"}, claim=("sub",)) != subject_of(
        {"oid": "alice"}, claim=("oid",)
    )


@pytest.mark.parametrize(
    ("changes", "client_id"),
    [
        ({}, "an assistant"),
        ({"client_id": None, "azp": "by azp"}, "by azp"),
        ({"client_id": None, "appid": "by appid"}, "by appid"),
        ({"client_id": ["x"], "azp": "by azp"}, "by azp"),
        ({"client_id": None}, ""),
    ],
)
def test_client_id_is_read_from_each_known_claim(changes: dict[str, Any], client_id: str) -> None:
    assert read(token(**changes)).client_id == client_id


@pytest.mark.parametrize(
    ("changes", "scopes"),
    [
        ({"scope": None}, ()),
        ({"scope": ""}, ()),
        ({"scope": "b a  b"}, ("b", "a")),
        ({"scope": None, "scp": "x y"}, ("x", "y")),
        ({"scope": None, "scp": ["x", 7, "y"]}, ("x", "y")),
        ({"scope": {"a": 1}}, ()),
    ],
)
def test_scopes_are_read_in_each_spelling(changes: dict[str, Any], scopes: tuple[str, ...]) -> None:
    assert read(token(**changes)).scopes == scopes


@pytest.mark.parametrize("exp", [10**15, 10**400, 1e300])
def test_very_large_expiry_is_limited_to_maximum_lifetime(exp: float) -> None:
    assert read(token(exp=exp)).expires_at == NOON + LIFE_AT_MOST


def test_key_id_is_read_before_verification() -> None:
    assert key_id_of(token()) == "one"
    assert key_id_of(token(header={"kid": None})) is None


def test_token_without_key_id_is_verified_with_the_only_key() -> None:
    nameless = token(header={"kid": None})
    verified = verify(nameless, resource=RESOURCE, keys=KEYS[:1], now=NOON + timedelta(seconds=1))
    assert verified.subject == "alice"
    assert refusal(nameless) == "signature"
