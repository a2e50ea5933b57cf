"""Habits of real providers: a simulated server enforces each of them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.errors import Denied, Failed, InvalidQuestion
from flows.oauth.client_assertion import key_fault
from flows.oauth.provider import PersonProbe
from flows.providers import openid
from flows.providers.catalogue import CATALOGUE
from tests.habits.document import DOCUMENT, document
from tests.habits.habit import HERE, ISSUER, METADATA, Habit, Stage, report_on
from tests.habits.rows import IDENTITY, KNOWN, PLAYED
from tests.support.strict_provider import KEY, Refused, walk

HUB = Habit().declared
OPEN = openid("hub", ISSUER)


# finding: XO2, XO10
@pytest.mark.parametrize("habit", PLAYED)
def test_declared_habit_is_accepted_by_a_server_that_insists_on_it(habit: str) -> None:
    row = PLAYED[habit]
    provider = row.declared
    scopes = ("read", "write") if provider.has_scopes else ()
    walked = walk(provider, row.plays, scopes=scopes)
    person = walked.grant.person
    expected = ("T1/7", "a@hub.example · T1") if person.own_id else ("7", "a@hub.example")
    assert (person.id, person.label) == expected
    assert walked.grant.scopes == provider.scopes_to_request(scopes)
    assert walked.renewed.tokens.access_token == "access-token"
    findings = report_on(provider, row.plays).findings
    assert [one for one in findings if one.fix is not None] == []


@pytest.mark.parametrize("habit", PLAYED)
def test_habit_that_is_refused_only_after_consent_states_why(habit: str) -> None:
    row, stage = PLAYED[habit], PLAYED[habit].stage()
    assert stage is not Stage.AFTER or row.without, (
        "the row must say why the habit cannot be detected before consent"
    )
    assert row.declares or stage is Stage.NEVER
    walked_on = stage in (Stage.NEVER, Stage.AFTER)
    assert walked_on or not row.without


@pytest.mark.parametrize("habit", [*PLAYED, *KNOWN])
def test_built_in_providers_declare_the_habits_that_name_them(habit: str) -> None:
    row = PLAYED.get(habit) or KNOWN[habit]
    keys = re.findall(r"^([a-z_]+) = ", row.declares, re.MULTILINE)
    for name in {*row.at} & CATALOGUE.keys():
        for key in keys:
            assert getattr(CATALOGUE[name], key) != getattr(HUB, key), (name, key)


def test_page_of_habits_is_up_to_date() -> None:
    assert len(PLAYED) + len(KNOWN) >= 45
    assert DOCUMENT.read_text("utf-8") == document(), (
        "the page is out of date: run python -m tests.habits"
    )


def test_habits_name_tests_that_exist() -> None:
    tests = Path(__file__).parents[2].rglob("test_*.py")
    names = {name for each in tests for name in re.findall(r"def (test_\w+)\(", each.read_text())}
    assert {row.test for row in KNOWN.values()} <= names


def test_id_token_without_nonce_is_accepted_if_userinfo_names_the_person() -> None:
    # finding: XO2
    walked = walk(replace(OPEN, nonce=False), IDENTITY, refreshes=False)
    assert (walked.grant.person.id, walked.grant.person.label) == ("7", "a@hub.example")
    with pytest.raises(Refused, match="nonce"):
        walk(OPEN, IDENTITY)


def test_nonce_false_without_userinfo_endpoint_is_refused_before_redirect() -> None:
    metadata = {name: METADATA[name] for name in METADATA if name != "userinfo_endpoint"}
    with pytest.raises(Failed, match="publishes no userinfo endpoint"):
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
    ("changes", "fault"),
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
def test_insecure_or_malformed_declaration_is_refused(changes: Any, fault: str) -> None:
    with pytest.raises(InvalidQuestion, match=fault):
        replace(HUB, **changes)


def test_key_of_client_assertion_is_checked_at_start() -> None:
    pem = KEY.as_pem(private=True).decode()
    for good in (pem, pem.replace("\n", "\\n")):
        assert key_fault(good, client_auth="private_key_jwt") is None
    public = KEY.as_pem(private=False).decode()
    for bad in ("", "a secret", public, "{}", '{"kty":"oct","k":"AAAA"}', "{" * 99):
        assert key_fault(bad, client_auth="private_key_jwt") is not None, bad
    assert key_fault("short", client_auth="client_secret_jwt") is not None
    assert key_fault("anything", client_auth="basic") is None
