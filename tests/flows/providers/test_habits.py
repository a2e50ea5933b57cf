"""Habits of real providers: each is played by a server that insists on it."""

from dataclasses import replace
from typing import Any

import pytest

from flows.errors import Denied, Failed, InvalidQuestion
from flows.oauth.client_assertion import key_fault
from flows.oauth.provider import PersonProbe, Provider
from flows.providers import openid
from tests.support.strict_provider import KEY, Habits, Refused, walk

HUB = Provider(
    name="hub",
    label="Hub",
    authorize="https://hub.example/authorize",
    token="https://hub.example/token",
    api="https://api.hub.example",
    person=PersonProbe(url="https://api.hub.example/me", id="id", label="email"),
)
HERE = Habits(
    authorize="https://hub.example/authorize",
    token="https://hub.example/token",
    person=("GET", "https://api.hub.example/me"),
    who={"id": 7, "email": "a@hub.example"},
)
ISSUER = "https://login.hub.example"
OPEN = openid("hub", ISSUER)
METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "userinfo_endpoint": f"{ISSUER}/userinfo",
    "jwks_uri": f"{ISSUER}/jwks",
}
IDENTITY = Habits(
    authorize=f"{ISSUER}/authorize",
    token=f"{ISSUER}/token",
    metadata=METADATA,
    userinfo={"sub": "7", "email": "a@hub.example"},
    optional=frozenset(),
    reply={"id_token": "one.without.nonce"},
)
# finding: XO2, XO10
# A habit of a provider, and what the declaration says about it.
DECLARED: dict[str, tuple[Habits, dict[str, Any]]] = {
    "PKCE required": (replace(HERE, pkce="required"), {}),
    "PKCE refused": (replace(HERE, pkce="refused"), {"pkce": False}),
    "Basic": (replace(HERE, auth="basic"), {}),
    "Basic, not encoded": (replace(HERE, auth="basic_raw"), {"client_auth": "basic_raw"}),
    "Basic and client id": (replace(HERE, auth="both"), {"client_auth": "both"}),
    "secret in the body": (replace(HERE, auth="post"), {"client_auth": "post"}),
    "public client": (replace(HERE, auth="none", pkce="required"), {"client_auth": "none"}),
    "private_key_jwt": (replace(HERE, auth="private_key_jwt"), {"client_auth": "private_key_jwt"}),
    "client_secret_jwt": (
        replace(HERE, auth="client_secret_jwt"),
        {"client_auth": "client_secret_jwt"},
    ),
    "JSON body": (replace(HERE, body="json"), {"body": "json"}),
    "another name of the client id": (
        replace(HERE, auth="post", id_parameter="client_key"),
        {"client_auth": "post", "client_id_parameter": "client_key"},
    ),
    "parameters of the authorize address": (
        replace(HERE, extra={"access_type": "offline", "audience": "api"}),
        {"extra": (("access_type", "offline"), ("audience", "api"))},
    ),
    "parameters of the token request": (
        replace(HERE, token_extra={"resource": "https://api.hub.example", "expiring": "1"}),
        {"token_extra": (("resource", "https://api.hub.example"), ("expiring", "1"))},
    ),
    "parameters of a refresh": (
        replace(HERE, refresh_extra={"action": "requesttoken"}),
        {"refresh_extra": (("action", "requesttoken"),)},
    ),
    "form_post": (replace(HERE, response_mode="form_post"), {"response_mode": "form_post"}),
    "its own User-Agent": (
        replace(HERE, user_agent="web:tools:1.0 (by /u/acme)"),
        {"user_agent": "web:tools:1.0 (by /u/acme)"},
    ),
    "headers": (
        replace(HERE, headers={"X-Version": "2026-01"}),
        {"headers": (("X-Version", "2026-01"),)},
    ),
    "comma between scopes": (
        replace(HERE, separator=","),
        {"scope_separator": ",", "reply_scope_separator": ","},
    ),
    "user_scope": (replace(HERE, scope_parameter="user_scope"), {"scope_parameter": "user_scope"}),
    "no scopes": (replace(HERE, scope_parameter=None), {"has_scopes": False}),
    "token in a member": (replace(HERE, nest="authed_user"), {"token_path": ("authed_user",)}),
    "another refresh address": (
        replace(HERE, refresh="https://hub.example/refresh"),
        {"refresh": "https://hub.example/refresh"},
    ),
    "token_type null": (replace(HERE, token_type=None), {}),
    "token_type empty": (replace(HERE, token_type=""), {}),
    "token_type bearer": (replace(HERE, token_type="bearer"), {}),
    "token_type api_token": (
        replace(HERE, token_type="api_token"),
        {"token_types": ("api_token",)},
    ),
    "token_type JWT": (replace(HERE, token_type="JWT"), {"token_types": ("JWT",)}),
    "token scheme OAuth": (replace(HERE, bearer="OAuth"), {"token_scheme": "OAuth"}),
    "error false": (replace(HERE, reply={"error": False}), {}),
    "error 0": (replace(HERE, reply={"error": 0}), {}),
    "error empty": (replace(HERE, reply={"error": ""}), {}),
    "expires_in 0": (replace(HERE, reply={"expires_in": 0}), {}),
    "expires_in text": (replace(HERE, reply={"expires_in": "3600"}), {}),
    "id of two members": (
        replace(HERE, who={"id": 7, "team": "T1", "email": "a@hub.example"}),
        {"person": replace(HUB.person, id=("team", "id"), label=("email", "team"))},  # type: ignore[type-var]
    ),
    "id in the token reply": (
        replace(HERE, reply={"owner": {"id": 7, "email": "a@hub.example"}}),
        {"person": PersonProbe(id="reply.owner.id", label="reply.owner.email")},
    ),
    "POST asks who it is": (
        replace(HERE, person=("POST", "https://api.hub.example/me")),
        {"person": replace(HUB.person, post="{}")},  # type: ignore[type-var]
    ),
}


@pytest.mark.parametrize("habit", DECLARED)
def test_declared_habit_is_accepted_by_a_server_that_insists_on_it(habit: str) -> None:
    habits, said = DECLARED[habit]
    scopes = ("read", "write") if said.get("has_scopes", True) else ()
    walked = walk(replace(HUB, **said), habits, scopes=scopes)
    person = walked.grant.person
    expected = ("T1/7", "a@hub.example · T1") if person.own_id else ("7", "a@hub.example")
    assert (person.id, person.label) == expected
    assert walked.grant.scopes == scopes
    assert walked.renewed.tokens.access_token == "access-token"


# These differ from the standard, so a server that insists refuses the declaration without them.
PECULIAR = [
    habit
    for habit, (_, said) in DECLARED.items()
    if said and habit != "public client" and not habit.startswith("id ")
]


@pytest.mark.parametrize("habit", PECULIAR)
def test_habit_that_is_not_declared_is_refused_by_the_server(habit: str) -> None:
    habits, _ = DECLARED[habit]
    with pytest.raises((Refused, Failed)):
        walk(HUB, habits, scopes=("read", "write"))


def test_id_token_without_nonce_is_accepted_where_userinfo_says_who_it_is() -> None:
    # finding: XO2
    walked = walk(replace(OPEN, nonce=False), IDENTITY, refreshes=False)
    assert (walked.grant.person.id, walked.grant.person.label) == ("7", "a@hub.example")
    with pytest.raises(Refused, match="nonce"):
        walk(OPEN, IDENTITY)


def test_nonce_false_needs_userinfo_before_the_person_leaves() -> None:
    metadata = {name: METADATA[name] for name in METADATA if name != "userinfo_endpoint"}
    with pytest.raises(Failed, match="whose account it is"):
        walk(replace(OPEN, nonce=False), replace(IDENTITY, metadata=metadata))


@pytest.mark.parametrize("error", ["user_cancelled_login", "user_cancelled_authorize"])
def test_declared_error_of_a_person_who_declined_is_a_denial(error: str) -> None:
    # finding: XO10
    declares = replace(HUB, declines=("user_cancelled_login", "user_cancelled_authorize"))
    with pytest.raises(Denied):
        walk(declares, replace(HERE, error={"error": error}))
    with pytest.raises(Failed):
        walk(HUB, replace(HERE, error={"error": error}))


@pytest.mark.parametrize("kind", ["mac", "DPoP", 7, ["Bearer"]])
def test_token_that_needs_a_proof_is_never_used_as_bearer(kind: object) -> None:
    with pytest.raises(Failed, match="type"):
        walk(HUB, replace(HERE, token_type=kind))


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"pkce": False, "client_auth": "none"}, "pkce: must stay on"),
        ({"token_types": ("DPoP",)}, "token_types:"),
        ({"token_scheme": "Basic"}, "token_scheme:"),
        ({"token_scheme": "A\r\nB"}, "token_scheme:"),
        ({"client_id_parameter": "client id"}, "client_id_parameter:"),
        ({"client_id_parameter": "state"}, "client_id_parameter:"),
        ({"client_auth": "tls"}, "client_auth:"),
        ({"response_mode": "fragment"}, "response_mode:"),
        ({"user_agent": "a\r\nHost: b"}, "user_agent:"),
        ({"token_extra": (("code", "x"),)}, "token_extra: code"),
        ({"refresh_extra": (("client_secret", "x"),)}, "refresh_extra: client_secret"),
        ({"declines": ("access denied",)}, "declines:"),
        ({"person": PersonProbe(id="id", label="reply.email")}, "person.url:"),
        ({"person": PersonProbe(url="https://api.hub.example", id=(), label="a")}, "person:"),
    ],
)
def test_declaration_that_takes_a_proof_away_is_refused(said: Any, fault: str) -> None:
    with pytest.raises(InvalidQuestion, match=fault):
        replace(HUB, **said)


def test_key_of_client_assertion_is_checked_at_start() -> None:
    pem = KEY.as_pem(private=True).decode()
    for good in (pem, pem.replace("\n", "\\n")):
        assert key_fault(good, client_auth="private_key_jwt") is None
    public = KEY.as_pem(private=False).decode()
    for bad in ("", "a secret", public, "{}", '{"kty":"oct","k":"AAAA"}', "{" * 99):
        assert key_fault(bad, client_auth="private_key_jwt") is not None, bad
    assert key_fault("short", client_auth="client_secret_jwt") is not None
    assert key_fault("anything", client_auth="basic") is None
