"""`[teams.NAME]` in `elicit.toml`: the people of a team, and what they share."""

from pathlib import Path

import pytest

from tests.support.settings import PUBLIC, problems_in
from webapp.settings.config_file import BadDeclaration, read_declarations
from webapp.settings.settings import read_settings

TEAM = '[teams.engineering]\nlabel = "Engineering"\nproviders = ["github"]\n'


def test_team_is_read_with_its_people_and_providers() -> None:
    # finding: XO9
    table = (
        TEAM + 'claims = { groups = ["eng", "ops"] }\nusers = ["ann"]\nissuers = ["https://i"]\n'
    )
    (team,) = read_declarations(table, source="elicit.toml").teams
    assert team.pairs == {("groups", "eng"), ("groups", "ops")}
    assert team.label == "Engineering"
    assert team.providers == {"github"}
    assert team.users == {"ann"}
    assert team.issuers == {"https://i"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "teams.engineering.claims: required"),
        ('claims = { email = ["a@b.example"] }', "people can change this claim"),
        ('claims = { groups = "eng" }', "must be a table of lists of texts"),
        ('users = [""]', "is not a valid user id"),
        ('claims = { groups = ["eng"] }\nmembers = ["ann"]', "members: unknown"),
        ('claims = { groups = ["eng"] }\nlabel = ""', "label: must have 1 to 40"),
    ],
)
def test_mistake_in_team_table_is_refused_with_reason(line: str, says: str) -> None:
    table = (TEAM.replace('label = "Engineering"\n', "") if "label" in line else TEAM) + line
    with pytest.raises(BadDeclaration) as refused:
        read_declarations(table, source="elicit.toml")
    assert says in str(refused.value)


def test_team_with_an_unknown_provider_is_refused() -> None:
    table = TEAM.replace("github", "gitub") + 'users = ["ann"]\n'
    with pytest.raises(BadDeclaration, match=r"Perhaps github is meant"):
        read_declarations(table, source="elicit.toml")


def test_more_claim_values_than_a_cookie_can_store_are_refused() -> None:
    values = ", ".join(f'"g{number}"' for number in range(21))
    with pytest.raises(BadDeclaration, match="more than 20 values"):
        read_declarations(TEAM + f"claims = {{ groups = [{values}] }}\n", source="elicit.toml")


def test_team_with_claims_needs_an_issuer(tmp_path: Path) -> None:
    path = tmp_path / "elicit.toml"
    path.write_text(TEAM + 'claims = { groups = ["eng"] }\n')
    (problem,) = [one for one in problems_in({"ELICIT_CONFIG": str(path)}) if "teams" in one]
    assert problem.startswith("ELICIT_ISSUER: required, because teams.engineering names a claim")
    issuer = {
        "ELICIT_ISSUER": "https://login.example/tenant",
        "ELICIT_ISSUER_CLIENT_ID": "our id",
        "ELICIT_ISSUER_CLIENT_SECRET": "our secret",
    }
    settings = read_settings({**PUBLIC, **issuer, "ELICIT_CONFIG": str(path)})
    assert settings.identity.teams[0].issuers == {"https://login.example/tenant"}
    path.write_text(TEAM + 'claims = { groups = ["eng"] }\nissuers = ["https://evil.example"]\n')
    (problem,) = problems_in({**PUBLIC, **issuer, "ELICIT_CONFIG": str(path)})
    assert "nobody signs in at" in problem


def test_exchange_of_an_issuer_where_nobody_signs_in_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "elicit.toml"
    path.write_text(
        '[providers.crm]\nauthorize = "https://crm.example/a"\ntoken = "https://crm.example/t"\n'
        'api = "https://crm.example"\nexchange = { issuer = "https://login.example" }\n'
        'person = { url = "https://crm.example/me", id = "id", label = "email" }\n'
    )
    found = problems_in({**PUBLIC, "ELICIT_CONFIG": str(path)})
    assert any(one.startswith("providers.crm.exchange.issuer: nobody signs in at") for one in found)
