"""`[issuers.NAME]` and issuers of several tenants: what is read, and how mistakes are reported."""

from pathlib import Path

import pytest

from tests.support.settings import problems_in
from webapp.connecting import registrations_of
from webapp.settings.settings import Settings, read_settings

TENANT, OTHER = "0b1f7d3e-5d7c-4f0e-9f53-2f1f2a3b4c5d", "1b1f7d3e-5d7c-4f0e-9f53-2f1f2a3b4c5d"
TEMPLATE = "https://login.example/{tenantid}/v2.0"
BASE = {
    "ELICIT_URL": "https://tools.example",
    "ELICIT_SECRET": "a secret of the tests and 32 bytes",
    "ELICIT_ISSUER": "https://login.example",
    "ELICIT_ISSUER_CLIENT_ID": "our id",
    "ELICIT_ISSUER_CLIENT_SECRET": "our secret",
}
PARTNER = """
[issuers.partner]
issuer = "https://login.partner.example/realms/a"
"""
KEYS = {
    "ELICIT_ISSUER_PARTNER_CLIENT_ID": "their id",
    "ELICIT_ISSUER_PARTNER_CLIENT_SECRET": "their secret",
}


def with_file(folder: Path, text: str, **more: str) -> dict[str, str]:
    file = folder / "elicit.toml"
    file.write_text(text)
    return {**BASE, **KEYS, "ELICIT_CONFIG": str(file), **more}


def read(folder: Path, text: str, **more: str) -> Settings:
    return read_settings(with_file(folder, text, **more))


def test_single_issuer_from_environment_needs_no_table() -> None:
    found = read_settings(BASE).identity
    assert [one.name for one in found.issuers] == [""]
    assert found.claims_by_issuer == {"https://login.example": ("sub",)}
    assert found.operator_rules.issuers == {"https://login.example"}


def test_table_adds_issuer_with_its_own_settings(tmp_path: Path) -> None:
    about = """
label = "Partner"
claim = ["oid", "tid"]
audiences = ["api://partner"]
scopes = ["use"]
advertised_scopes = ["api://partner/use"]
algorithms = ["ES256"]
client_auth = "post"
introspect = true
"""
    more = {"ELICIT_SCOPES": "tools", "ELICIT_AUDIENCE": "first"}
    found = read(tmp_path, PARTNER + about, **more)
    first, partner = found.identity.issuers
    assert (partner.name, partner.claim) == ("partner", ("oid", "tid"))
    assert (partner.audiences, partner.scopes) == (("api://partner",), ("use",))
    assert partner.advertised_scopes == ("api://partner/use",)
    assert (partner.introspects, first.introspects) == (True, False)
    provider = partner.client.provider
    assert (provider.label, provider.client_auth) == ("Partner", "post")
    assert provider.algorithms == ("ES256",)
    assert (partner.client.client_id, partner.client.client_secret) == ("their id", "their secret")
    assert (first.audiences, first.scopes) == (("first",), ("tools",))
    assert found.credentials == {}


def test_table_inherits_scopes_of_first_issuer_but_not_its_audience(tmp_path: Path) -> None:
    found = read(tmp_path, PARTNER, ELICIT_SCOPES="tools", ELICIT_AUDIENCE="first").identity
    assert found.issuers[1].scopes == ("tools",)
    assert found.issuers[1].audiences == ()


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("[issuers.partner]\nlabel = 'P'", {}, "issuers.partner.issuer: required."),
        (PARTNER + "issuers = 1", {}, "issuers.partner.issuers: unknown;"),
        (PARTNER + "claim = ['email']", {}, "issuers.partner.claim: 'email' can change"),
        (PARTNER + "claim = []", {}, "claim: name at least one"),
        (PARTNER + "algorithms = ['HS256']", {}, "algorithms: HS256: only RS256"),
        (PARTNER + "algorithms = []", {}, "algorithms: name at least one"),
        (PARTNER + "client_auth = 'magic'", {}, "client_auth: must be one of basic"),
        (PARTNER + "client_secret = 'x'", {}, "a secret does not belong in this file"),
        (PARTNER + "label = ''", {}, "label: must have 1 to 40"),
        (PARTNER + f"tenants = ['{TENANT}']", {}, "{tenantid} and a list of tenants must"),
        (
            PARTNER,
            {"ELICIT_ISSUER_PARTNER_CLIENT_ID": ""},
            "ELICIT_ISSUER_PARTNER_CLIENT_ID: required",
        ),
        (
            PARTNER,
            {"ELICIT_ISSUER_PARTNER_CLIENT_SECRET": ""},
            "ELICIT_ISSUER_PARTNER_CLIENT_SECRET: required",
        ),
        (PARTNER + "client_auth = 'none'", {}, "CLIENT_SECRET: remove it"),
        (
            PARTNER,
            {"ELICIT_ISSUER": "https://login.partner.example/realms/a"},
            "is already the issuer of ELICIT_ISSUER",
        ),
        (
            PARTNER + PARTNER.replace("partner]", "again]"),
            {},
            "already the issuer of [issuers.partner]",
        ),
        (
            PARTNER + "introspect = true",
            {"ELICIT_INTROSPECT": "1"},
            "only one issuer can check tokens that are not JWTs",
        ),
        (
            "[issuers.partner]\nissuer = 'https://login.example/realms/a'",
            {},
            "people cannot tell it from another issuer of this server: set label",
        ),
        (
            PARTNER + "[approvers.boss]\nsubjects = ['ann']\nissuers = ['https://x.example']",
            {},
            "approvers.boss.issuers: nobody signs in at 'https://x.example'",
        ),
        (
            PARTNER,
            {"ELICIT_OPERATORS": "ann", "ELICIT_OPERATORS_ISSUER": "https://x.example"},
            "ELICIT_OPERATORS_ISSUER, as issuers: nobody signs in at",
        ),
        ("", {"ELICIT_ISSUER_ALGORITHMS": "HS256"}, "ELICIT_ISSUER_ALGORITHMS: "),
        ("", {"ELICIT_ISSUER": TEMPLATE}, "{tenantid} and a list of tenants must be used together"),
        ("", {"ELICIT_ISSUER_TENANTS": TENANT}, "{tenantid} and a list of tenants must"),
        *(
            (
                "",
                {"ELICIT_ISSUER": template, "ELICIT_ISSUER_TENANTS": tenants},
                says,
            )
            for template, tenants, says in (
                (TEMPLATE, "common", "'common' is not the id of a tenant"),
                (TEMPLATE, "*", "'*' is not the id of a tenant"),
                (TEMPLATE, TENANT.upper(), "must be a UUID in lower case"),
                (TEMPLATE, f"{TENANT},{TENANT}", "a tenant is listed twice"),
                ("https://{tenantid}.login.example", TENANT, "one whole part of the path"),
                ("https://login.example/a{tenantid}", TENANT, "one whole part of the path"),
            )
        ),
        (
            "[approvers.boss]\nsubjects = ['ann']",
            {"ELICIT_ISSUER": TEMPLATE, "ELICIT_ISSUER_TENANTS": f"{TENANT} {OTHER}"},
            "approvers.boss.issuers: required, because people of several tenants",
        ),
        (
            "",
            {
                "ELICIT_ISSUER": TEMPLATE,
                "ELICIT_ISSUER_TENANTS": f"{TENANT} {OTHER}",
                "ELICIT_OPERATORS": "ann",
            },
            "ELICIT_OPERATORS_ISSUER, as issuers: required",
        ),
        (
            "",
            {
                "ELICIT_ISSUER": TEMPLATE,
                "ELICIT_ISSUER_TENANTS": TENANT,
                "ELICIT_INTROSPECT": "1",
            },
            "ELICIT_INTROSPECT: unset it, because a token that is not a JWT names no tenant",
        ),
    ],
)
def test_mistake_in_issuers_is_refused_at_startup(
    tmp_path: Path, text: str, more: dict[str, str], says: str
) -> None:
    problems = problems_in(with_file(tmp_path, text, **more))
    assert any(says in line for line in problems), problems


def test_table_without_first_issuer_is_refused(tmp_path: Path) -> None:
    changed = with_file(tmp_path, PARTNER)
    without = {name: text for name, text in changed.items() if name not in list(BASE)[2:]}
    assert any("ELICIT_ISSUER: required" in line for line in problems_in(without))


def test_address_of_each_tenant_is_accepted_as_issuer(tmp_path: Path) -> None:
    more = {"ELICIT_ISSUER": TEMPLATE, "ELICIT_ISSUER_TENANTS": f"{TENANT}, {OTHER}"}
    found = read(tmp_path, "", **more).identity
    assert [*found.claims_by_issuer] == [
        f"https://login.example/{tenant}/v2.0" for tenant in (TENANT, OTHER)
    ]
    assert found.first_names == frozenset()


def test_each_issuer_has_its_own_redirect_address_and_setting_names(tmp_path: Path) -> None:
    first, partner = registrations_of(read(tmp_path, PARTNER))
    assert first.redirect_uri == "https://tools.example/signin/callback"
    assert partner.redirect_uri == "https://tools.example/signin/callback/partner"
    assert first.setting("client_secret") == "ELICIT_ISSUER_CLIENT_SECRET"
    assert partner.setting("client_secret") == "ELICIT_ISSUER_PARTNER_CLIENT_SECRET"
    assert first.set_to("client_auth", "post") == "set ELICIT_ISSUER_CLIENT_AUTH=post"
    written = 'write client_auth = "post" in [issuers.partner] of elicit.toml'
    assert partner.set_to("client_auth", "post") == written
    assert partner.set_to("dpop", "1") == "write dpop = true in [issuers.partner] of elicit.toml"
