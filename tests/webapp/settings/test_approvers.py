"""Approvers in elicit.toml: every mistake is reported, and users cannot appoint themselves."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.settings import PUBLIC, problems_in
from webapp.identity.approvers import Approver
from webapp.settings.config_file import BadDeclaration, read_declarations
from webapp.settings.settings import read_settings

ISSUER = {
    "ELICIT_ISSUER": "https://login.example/tenant",
    "ELICIT_ISSUER_CLIENT_ID": "our id",
    "ELICIT_ISSUER_CLIENT_SECRET": "our secret",
}
FINANCE = """
[approvers.finance]
subjects = ["auth0|1", "auth0|2"]
claims = { groups = ["finance", "owners"], role = ["cfo"] }
users = ["ann"]
local = true
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(BadDeclaration) as refused:
        read_declarations(text, source="elicit.toml")
    return refused.value.problems


def test_every_form_of_approver_is_read() -> None:
    (finance,) = read_declarations(FINANCE, source="elicit.toml").approvers
    assert finance == Approver(
        name="finance",
        subjects=frozenset({"auth0|1", "auth0|2"}),
        claims={"groups": ("finance", "owners"), "role": ("cfo",)},
        users=frozenset({"ann"}),
        is_local=True,
    )
    assert ("groups", "owners") in finance.pairs


@pytest.mark.parametrize("claim", ["email", "Email", "preferred_username", "name", "upn", "scope"])
def test_claim_editable_by_user_cannot_define_approver(claim: str) -> None:
    (problem,) = problems_of(f'[approvers.finance]\nclaims = {{ {claim} = ["x"] }}')
    assert problem.startswith(f"approvers.finance.claims.{claim}: people can change this claim")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[approvers.Finance]\nlocal = true", "approvers.Finance: a name has 1 to 32"),
        ("[approvers.finance]", "approvers.finance: names nobody"),
        ("[approvers.finance]\nlocal = false\nusers = []", "approvers.finance: names nobody"),
        ("[approvers.finance]\nemails = []", "approvers.finance.emails: unknown"),
        ('[approvers.finance]\nsubjects = "x"', "approvers.finance.subjects: must be a list"),
        ('[approvers.finance]\nusers = [""]', "approvers.finance.users: '' is not a valid user id"),
        ("[approvers]\nfinance = 1", "approvers.finance: it must be a table"),
        (
            f"[approvers.finance]\nclaims = {{ groups = {[str(n) for n in range(21)]} }}",
            "approvers: the claims list more than 20 values",
        ),
    ],
)
def test_mistake_is_reported_with_location(text: str, problem: str) -> None:
    assert any(each.startswith(problem) for each in problems_of(text))


def test_approvers_of_issuer_need_issuer_setting(tmp_path: Path) -> None:
    file = tmp_path / "elicit.toml"
    file.write_text(FINANCE, "utf-8")
    environment = {**PUBLIC, "ELICIT_CONFIG": str(file)}
    (problem,) = problems_in(environment)
    assert problem.startswith("ELICIT_ISSUER: required, because approvers")
    found = read_settings({**environment, **ISSUER, "ELICIT_APPROVERS_SIGN_IN": "30m"})
    (finance,) = found.identity.approval.approvers
    assert finance.name == "finance"
    assert found.identity.approval.sign_in_counts_for.total_seconds() == 1800
    assert not found.identity.approval.lets_askers_decide
    assert problems_in({**environment, **ISSUER, "ELICIT_APPROVERS_ASKER": "never"}) == [
        "ELICIT_APPROVERS_ASKER: must be `may`. Otherwise leave it out."
    ]


VOTING = """
[approvers.finance]
users = ["ann", "bob"]
needs = 2
comment = "required"
delegate = true
escalate_after = "1d"
escalate_to = "managers"

[approvers.managers]
users = ["mia"]
"""


def test_settings_of_votes_are_read() -> None:
    finance, managers = read_declarations(VOTING, source="elicit.toml").approvers
    assert (finance.needs, finance.comment, finance.lets_delegate) == (2, "required", True)
    assert (finance.escalate_after, finance.escalate_to) == (timedelta(days=1), "managers")
    assert (managers.needs, managers.comment, managers.escalate_to) == (1, "none", None)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("needs = 2", "needs = 0", "approvers.finance.needs: must be a whole number from 1 to 10"),
        ("needs = 2", "needs = 4", "approvers.finance.needs: it is 4, and the table lists fewer"),
        ("needs = 2", 'needs = "2"', "approvers.finance.needs: must be a whole number"),
        ('"required"', '"always"', "approvers.finance.comment: must be one of none, optional, r"),
        (
            '"managers"',
            '"mangers"',
            "approvers.finance.escalate_to: there is no table [approvers.m",
        ),
        ('"managers"', '"finance"', "approvers.finance.escalate_to: names this table itself"),
        ('escalate_to = "managers"', "", "approvers.finance.escalate_after: it has no effect wi"),
        ('escalate_after = "1d"', "", "approvers.finance.escalate_to: it has no effect without"),
        ('"1d"', '"soon"', "approvers.finance.escalate_after: must be a number of seconds"),
        ('"1d"', '"8d"', "approvers.finance.escalate_after: must be a number of seconds"),
    ],
)
def test_mistake_in_settings_of_votes_is_reported(before: str, after: str, problem: str) -> None:
    (found,) = problems_of(VOTING.replace(before, after, 1))
    assert found.startswith(problem)
