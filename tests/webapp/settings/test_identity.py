"""Settings of identity: every problem is reported, and no part of a wrong setting is used."""

from collections.abc import Mapping

import pytest

from tests.support import settings
from tests.support.settings import problems_in, variables_in
from webapp.settings.identity import IdentitySettings, read_identity
from webapp.settings.settings import read_settings
from webapp.settings.table import Values

ISSUER = {
    "ELICIT_ISSUER": "https://login.example/tenant",
    "ELICIT_ISSUER_CLIENT_ID": "our id",
    "ELICIT_ISSUER_CLIENT_SECRET": "our secret",
}
PUBLIC = {**settings.PUBLIC, "HOME": "/nonexistent"}


def read(environment: Mapping[str, str]) -> tuple[IdentitySettings, list[str]]:
    values = Values(environment)
    return read_identity(values), values.problems


@pytest.mark.parametrize("name", ["ELICIT_SECRET", "ELICIT_ISSUER", "ELICIT_STRIPE_KEY"])
def test_value_which_is_not_utf_8_is_reported(name: str) -> None:
    # finding: S32
    broken = "a secret of more than 32 bytes \udcff\udcfe"
    assert problems_in({**PUBLIC, name: broken}) == [f"{name}: it is not UTF-8."]


def test_sign_in_is_disabled_without_settings() -> None:
    found, problems = read({})
    assert problems == []
    assert (found.client, found.issuer, found.can_ask_people) == (None, None, False)


@pytest.mark.parametrize(
    ("more", "asked", "needed"),
    [
        ({}, ("openid",), ()),
        ({"ELICIT_SCOPES": "tools:use"}, (), ("tools:use",)),
        (
            {"ELICIT_SCOPES": "tools", "ELICIT_ADVERTISED_SCOPES": "api://elicit/tools openid"},
            ("api://elicit/tools", "openid"),
            ("tools",),
        ),
        ({"ELICIT_ADVERTISED_SCOPES": "api://elicit/tools"}, ("api://elicit/tools",), ()),
    ],
)
def test_clients_are_always_given_scope_to_request(
    more: Mapping[str, str], asked: tuple[str, ...], needed: tuple[str, ...]
) -> None:
    # finding: I3
    found, problems = read({**ISSUER, **more})
    assert problems == []
    assert (found.advertised_scopes, found.scopes) == (asked, needed)


def test_issuer_with_registration_is_read() -> None:
    found, problems = read(
        ISSUER
        | {
            "ELICIT_SUBJECT_CLAIM": "oid, tid",
            "ELICIT_AUDIENCE": "api://elicit",
            "ELICIT_SCOPES": "tools:use",
        }
    )
    assert problems == []
    assert found.issuer == ISSUER["ELICIT_ISSUER"]
    assert found.client is not None
    assert (found.client.client_id, found.client.client_secret) == ("our id", "our secret")
    assert found.client.provider.label == "login.example"
    assert (found.claim, found.audiences) == (("oid", "tid"), ("api://elicit",))
    assert found.scopes == ("tools:use",)
    assert [*found.rules.issuers] == [found.issuer]
    assert "our secret" not in repr(found)


@pytest.mark.parametrize("name", ["ELICIT_API_SCOPE", "ELICIT_INBOX_SCOPE"])
def test_scope_that_gives_a_right_is_exactly_one(name: str) -> None:
    found, problems = read({**ISSUER, name: "person:act"})
    assert problems == []
    assert "person:act" in (found.act_scope, found.own_scope)
    assert read({**ISSUER, name: "person:act person:own"})[1] == [f"{name}: set only one scope."]


@pytest.mark.parametrize("missing", ["ELICIT_ISSUER_CLIENT_ID", "ELICIT_ISSUER_CLIENT_SECRET"])
def test_incomplete_registration_names_missing_variable(missing: str) -> None:
    _, problems = read({name: value for name, value in ISSUER.items() if name != missing})
    assert variables_in(problems) == [missing]


def test_registration_without_issuer_is_reported() -> None:
    given = {name: value for name, value in ISSUER.items() if name != "ELICIT_ISSUER"}
    _, problems = read(given | {"ELICIT_SCOPES": "tools:use"})
    assert {*variables_in(problems)} == {
        "ELICIT_ISSUER_CLIENT_ID",
        "ELICIT_ISSUER_CLIENT_SECRET",
        "ELICIT_SCOPES",
    }


@pytest.mark.parametrize(
    "issuer", ["login.example", "http://login.example", "https://login.example/?x=1", "https://[::"]
)
def test_invalid_issuer_is_reported(issuer: str) -> None:
    _, problems = read(ISSUER | {"ELICIT_ISSUER": issuer})
    assert problems
    assert all(problem.startswith("ELICIT_ISSUER:") for problem in problems)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ELICIT_BIND", "yes"),
        ("ELICIT_ANONYMOUS", "1"),
        ("ELICIT_SUBJECT_CLAIM", "o'id"),
        ("ELICIT_SCOPES", 'to"ols'),
    ],
)
def test_invalid_value_is_reported_with_variable(name: str, value: str) -> None:
    _, problems = read(ISSUER | {name: value})
    assert variables_in(problems) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "email",
        "Email",
        "email_verified",
        "preferred_username",
        "upn",
        "name",
        "nickname",
        "given_name",
        "family_name",
        "unique_name",
        "nonce",
        "phone_number",
        "mail",
        "groups",
        "azp",
        "jti",
    ],
)
@pytest.mark.parametrize("written", ["{}", "tid, {}", "{},sub"])
def test_subject_claim_editable_by_user_is_refused(name: str, written: str) -> None:
    _, problems = read(ISSUER | {"ELICIT_SUBJECT_CLAIM": written.format(name)})
    (problem,) = problems
    assert problem.startswith(f"ELICIT_SUBJECT_CLAIM: {name!r} ")
    assert "sub" in problem
    assert "oid,tid" in problem


@pytest.mark.parametrize("claim", ["tid", "iss", "iss,tid"])
def test_subject_claim_shared_by_several_people_is_refused(claim: str) -> None:
    _, problems = read(ISSUER | {"ELICIT_SUBJECT_CLAIM": claim})
    assert len(problems) == len(claim.split(","))
    assert all("belong to several people" in problem for problem in problems)
    assert not read(ISSUER | {"ELICIT_SUBJECT_CLAIM": "oid," + claim})[1]


@pytest.mark.parametrize("claim", ["sub", "oid,tid", "uid", "https://login.example/claims/email"])
def test_custom_claim_of_issuer_is_accepted_as_subject(claim: str) -> None:
    found, problems = read(ISSUER | {"ELICIT_SUBJECT_CLAIM": claim})
    assert (found.claim, problems) == (tuple(claim.split(",")), [])


def test_registration_at_issuer_is_no_provider_credential() -> None:
    read = read_settings(PUBLIC | ISSUER)
    assert read.credentials == {}
    assert read.identity.issuer == ISSUER["ELICIT_ISSUER"]


@pytest.mark.parametrize("allowed", [ISSUER, {"ELICIT_BIND": "code"}, {"ELICIT_ANONYMOUS": "code"}])
def test_exposed_server_must_identify_people(allowed: dict[str, str]) -> None:
    assert variables_in(problems_in(PUBLIC, host="0.0.0.0")) == ["ELICIT_EXPOSE"]
    assert read_settings(PUBLIC | allowed, host="0.0.0.0").identity.can_ask_people


def test_model_answers_setting_accepts_only_1_and_0() -> None:
    for value, lets in (("1", True), ("", False), ("0", False)):
        found, problems = read({"ELICIT_MODEL_ANSWERS": value})
        assert (found.rules.lets_model_answer, problems) == (lets, [])
    found, problems = read({"ELICIT_MODEL_ANSWERS": "yes"})
    assert not found.rules.lets_model_answer
    assert problems == ["ELICIT_MODEL_ANSWERS: must be 1 or 0."]


def test_paired_browser_setting_is_refused_with_issuer() -> None:
    # finding: S20
    assert read({})[0].pairs_for_yes is False
    found, problems = read({"ELICIT_LOCAL_YES": "paired"})
    assert (found.pairs_for_yes, found.rules.pairs_for_yes, problems) == (True, True, [])
    assert read({"ELICIT_LOCAL_YES": "yes"})[1] == [
        "ELICIT_LOCAL_YES: must be `paired`. Otherwise leave it out."
    ]
    (problem,) = read({**ISSUER, "ELICIT_LOCAL_YES": "paired"})[1]
    assert problem.startswith("ELICIT_LOCAL_YES: unset it")


# finding: XO7


def test_client_authentication_and_dpop_settings_of_issuer_are_read() -> None:
    found, problems = read({**ISSUER, "ELICIT_ISSUER_DPOP": "1"})
    assert problems == []
    assert found.client is not None
    assert (found.client.provider.client_auth, found.client.provider.dpop) == ("basic", True)
    public = {**ISSUER, "ELICIT_ISSUER_CLIENT_AUTH": "none", "ELICIT_ISSUER_CLIENT_SECRET": ""}
    found, problems = read(public)
    assert problems == []
    assert found.client is not None
    assert (found.client.provider.client_auth, found.client.client_secret) == ("none", "")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"ELICIT_ISSUER_CLIENT_AUTH": "mtls"}, "ELICIT_ISSUER_CLIENT_AUTH: must be one of basic"),
        ({"ELICIT_ISSUER_CLIENT_AUTH": "none"}, "ELICIT_ISSUER_CLIENT_SECRET: remove it"),
        (
            {"ELICIT_ISSUER_CLIENT_AUTH": "private_key_jwt"},
            "ELICIT_ISSUER_CLIENT_SECRET: must be a private key",
        ),
        (
            {"ELICIT_ISSUER_CLIENT_AUTH": "client_secret_jwt"},
            "ELICIT_ISSUER_CLIENT_SECRET: must have at least 32 bytes",
        ),
        ({"ELICIT_ISSUER_DPOP": "yes"}, "ELICIT_ISSUER_DPOP: must be 1 or 0"),
        ({"ELICIT_ISSUER": "", "ELICIT_ISSUER_DPOP": "1"}, "ELICIT_ISSUER_DPOP: set, but"),
    ],
)
def test_invalid_client_authentication_or_dpop_setting_is_reported(
    more: Mapping[str, str], problem: str
) -> None:
    _, problems = read({**ISSUER, **more})
    assert any(each.startswith(problem) for each in problems), problems
