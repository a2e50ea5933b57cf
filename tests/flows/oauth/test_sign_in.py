"""Sign-in at the issuer: what is sent, what the browser stores, and who is signed in."""

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import httpx
import msgspec
import pytest
from joserfc import jwt

from flows.elicitation.flow import CallbackParams
from flows.errors import Denied, Failed
from flows.oauth.access_token import subject_of
from flows.oauth.authorization_code import Mixed
from flows.oauth.sign_in import Leaving, SignedIn, Unnamed
from tests.support.access_tokens import ENTRA, ISSUER, KEY, KEYS, NOW
from tests.support.clock import NOON
from tests.support.oauth_flow import talked
from tests.support.sign_in_flow import BACK, CLIENT, arrived, came_back, departed, metadata, sign_in


def reply(stored: Any, **changes: Any) -> httpx.Response:
    claims = {
        "iss": ISSUER,
        "sub": "alice",
        "aud": "our id",
        "nonce": stored["nonce"],
        "preferred_username": "alice@example",
        "iat": NOW,
        "exp": NOW + 300,
        **changes,
    }
    id_token = jwt.encode(
        {"alg": "ES256", "kid": "one"},
        {name: value for name, value in claims.items() if value is not None},
        KEY,
    )
    return httpx.Response(200, json={"access_token": "at", "id_token": id_token})


def key_set() -> httpx.Response:
    return httpx.Response(200, json={"keys": KEYS})


def test_sign_in_redirect_contains_state_nonce_and_challenge() -> None:
    asked, stored = departed()
    assert asked["response_type"] == ["code"]
    assert asked["client_id"] == ["our id"]
    assert asked["redirect_uri"] == [BACK]
    assert asked["scope"] == ["openid profile"]
    assert asked["tenant"] == ["a"]
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["state"] == [stored["state"]]
    assert asked["nonce"] == [stored["nonce"]]
    assert stored["verifier"] not in str(asked)
    assert len(stored["state"]) >= 22


def test_two_sign_ins_share_no_secret_values() -> None:
    (_, one), (_, other) = departed(), departed()
    assert not set(one.values()) & set(other.values())


def test_code_is_exchanged_with_verifier_and_person_is_identified() -> None:
    _, stored = departed()
    signed_in, (exchange, keys) = came_back(stored, reply(stored), key_set())
    whole = SignedIn(issuer=ISSUER, subject="alice", label="alice@example", sub="alice")
    assert replace(signed_in, id_token="") == whole
    assert signed_in.id_token
    assert signed_in.id_token not in repr(signed_in)
    sent = parse_qs(exchange.content.decode())
    assert exchange.url == f"{ISSUER}/token"
    assert exchange.headers["authorization"].startswith("Basic ")
    assert sent == {
        "grant_type": ["authorization_code"],
        "code": ["the-code"],
        "redirect_uri": [BACK],
        "code_verifier": [stored["verifier"]],
    }
    assert keys.url == f"{ISSUER}/jwks"


def test_issuer_supporting_only_client_secret_post_gets_secret_in_form() -> None:
    found = metadata(token_endpoint_auth_methods_supported=["client_secret_post"])
    _, stored = departed(found)
    _, (exchange, _) = came_back(stored, reply(stored), key_set(), found=found)
    assert parse_qs(exchange.content.decode())["client_secret"] == ["our:secret/%"]
    assert "authorization" not in exchange.headers


def test_token_caller_and_browser_of_same_person_have_same_subject() -> None:
    _, stored = departed()
    entra = {"sub": "pairwise-for-this-client", "oid": "o", "tid": "t"}
    signed_in, _ = came_back(stored, reply(stored, **entra), key_set(), claim=ENTRA)
    caller = {"sub": "pairwise-for-another", "oid": "o", "tid": "t"}
    assert signed_in.subject == subject_of(caller, claim=ENTRA)


@pytest.mark.parametrize("missing", ENTRA)
def test_sign_in_without_configured_claim_fails(missing: str) -> None:
    _, stored = departed()
    sent_claims = {"oid": "o", "tid": "t"} | {missing: None}
    with pytest.raises(Unnamed, match=r"no usable oid, tid\.") as error:
        came_back(stored, reply(stored, **sent_claims), key_set(), claim=ENTRA)
    assert "ELICIT_SUBJECT_CLAIM" in str(error.value.fix)


def test_name_is_fetched_from_userinfo_if_id_token_has_none() -> None:
    found = metadata(userinfo_endpoint=f"{ISSUER}/userinfo")
    _, stored = departed(found)
    userinfo = httpx.Response(200, json={"sub": "alice", "name": "Alice", "oid": "another's"})
    replies = (reply(stored, preferred_username=None), key_set(), userinfo)
    signed_in, requests = came_back(stored, *replies, found=found)
    assert (signed_in.subject, signed_in.label) == ("alice", "Alice")
    assert requests[2].headers["authorization"] == "Bearer at"


def test_userinfo_never_determines_the_subject() -> None:
    found = metadata(userinfo_endpoint=f"{ISSUER}/userinfo")
    _, stored = departed(found)
    nameless = reply(stored, preferred_username=None)
    of_mallory = httpx.Response(200, json={"sub": "mallory", "name": "Mallory"})
    with pytest.raises(Failed):
        came_back(stored, nameless, key_set(), of_mallory, found=found)
    adding = httpx.Response(200, json={"sub": "alice", "oid": "o", "tid": "t"})
    with pytest.raises(Failed):
        came_back(stored, nameless, key_set(), adding, found=found, claim=ENTRA)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "another"}, "the state is not this browser's"),
        ({"state": None}, "the state is not this browser's"),
        ({"state": "é\ud800"}, "the state is not this browser's"),
        ({"iss": "https://evil.example"}, "another issuer answers"),
        ({"error": "access_denied"}, "both a code and an error"),
        ({"code": None}, "neither a code nor an error"),
        ({"code": "x" * 5000}, "the code is not valid"),
    ],
)
def test_invalid_callback_is_refused(changes: dict[str, str | None], reason: str) -> None:
    _, stored = departed()
    with pytest.raises(Mixed) as mixed:
        came_back(stored, arrival=arrived(stored, **changes))
    assert mixed.value.reason == reason


@pytest.mark.parametrize("name", ["code", "state", "iss", "error"])
def test_callback_with_repeated_parameter_is_refused(name: str) -> None:
    _, stored = departed()
    twice = ((name, "a"), (name, "a"))
    with pytest.raises(Mixed):
        came_back(stored, arrival=CallbackParams(parameters=(*arrived(stored).parameters, *twice)))


def test_callback_without_promised_issuer_is_refused() -> None:
    found = metadata(authorization_response_iss_parameter_supported=True)
    _, stored = departed(found)
    with pytest.raises(Mixed):
        came_back(stored, found=found)
    came_back(stored, reply(stored), key_set(), found=found, arrival=arrived(stored, iss=ISSUER))


def test_callback_without_stored_sign_in_is_refused() -> None:
    _, stored = departed()
    nothings: tuple[Any, ...] = (None, {}, {"state": stored["state"]}, [])
    for nothing in nothings:
        with pytest.raises(Mixed):
            came_back(nothing, arrival=arrived(stored))


def test_access_denied_raises_denied_and_other_errors_raise_failed() -> None:
    _, stored = departed()
    with pytest.raises(Denied):
        came_back(stored, arrival=arrived(stored, code=None, error="access_denied"))
    with pytest.raises(Failed, match=r"refused \(server_error\)"):
        came_back(stored, arrival=arrived(stored, code=None, error="server_error"))
    with pytest.raises(Failed, match=r"refused\.$"):
        came_back(stored, arrival=arrived(stored, code=None, error="<b>"))


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another client"},
        {"iss": "https://evil.example"},
        {"exp": NOW - 61},
    ],
)
def test_id_token_for_another_purpose_is_refused(changes: dict[str, Any]) -> None:
    _, stored = departed()
    with pytest.raises(Failed):
        came_back(stored, reply(stored, **changes), key_set())


def test_nonce_with_lone_surrogate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # finding: S32
    _, stored = departed()
    claims = {"iss": ISSUER, "aud": CLIENT.client_id, "iat": NOW, "exp": NOW + 60, "sub": "alice"}
    # No library writes this nonce, but JSON can contain it.
    forged = {**claims, "nonce": "half \ud800"}
    monkeypatch.setattr("flows.oauth.id_token.signed_claims", lambda *_, **_options: forged)
    with pytest.raises(Failed, match="issued for another sign-in"):
        came_back(stored, reply(stored), key_set())


def test_repr_of_sign_in_hides_secrets() -> None:
    departure, _ = talked(sign_in().begin(metadata(), now=NOON))
    leaving = msgspec.convert(departure.attempt_data, Leaving)
    assert leaving.verifier not in repr(leaving)
    shown = repr(departure).replace(repr(departure.attempt_data), "")
    assert leaving.state not in repr(leaving) + shown
    assert CLIENT.client_secret not in repr(sign_in())
