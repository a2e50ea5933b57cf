"""The library's own provider declarations are valid, and invalid declarations are refused."""

import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

import flows.providers
from flows.errors import InvalidQuestion
from flows.oauth.provider import SCOPE, PersonProbe, Provider, Revocation
from flows.origin import is_origin, origin_of
from flows.providers import PROVIDERS, github, gitlab, google, microsoft, openid, slack

SANDBOX = "http://127.0.0.1:8766"
MADE = (microsoft(), microsoft("consumers"), gitlab(), openid("acme", "https://login.example"))
every = pytest.mark.parametrize("provider", PROVIDERS.values(), ids=list(PROVIDERS))
every_made = pytest.mark.parametrize(
    "provider", [*PROVIDERS.values(), *MADE], ids=lambda provider: provider.name
)
PLAYED = {name: each for name, each in PROVIDERS.items() if each.sandbox is not None}
every_played = pytest.mark.parametrize("provider", PLAYED.values(), ids=list(PLAYED))


def addresses_of(provider: Provider) -> list[str]:
    places = (
        provider.issuer,
        provider.authorize,
        provider.token,
        provider.refresh,
        provider.manage,
        provider.device,
        provider.api,
        provider.person.url if provider.person else None,
        provider.revoke.url.replace("{client_id}", "id") if provider.revoke else None,
    )
    return [place for place in (*places, *provider.api_hosts) if place]


def test_provider_imported_by_name_is_declaration_and_not_module() -> None:
    assert isinstance(github, Provider)
    assert isinstance(google, Provider)
    assert flows.providers.github is github
    assert list(PROVIDERS) == [
        "atlassian",
        "discord",
        "dropbox",
        "github",
        "github_app",
        "google",
        "linear",
        "notion",
        "slack",
    ]
    functions = ["gitlab", "microsoft", "openid"]
    assert flows.providers.__all__ == [
        *("PROVIDERS", "PersonProbe", "Provider", "ProviderKey"),
        *sorted([*PROVIDERS, *functions]),
    ]
    assert all(getattr(flows.providers, name) is each for name, each in PROVIDERS.items())


@every
def test_provider_is_registered_under_its_own_name(provider: Provider) -> None:
    assert PROVIDERS[provider.name] is provider
    assert re.fullmatch(r"[a-z][a-z0-9_]{0,31}", provider.name)
    assert provider.label != provider.name
    assert hash(provider) == hash(replace(provider))


@every_made
def test_all_provider_addresses_use_https(provider: Provider) -> None:
    assert all(urlsplit(address).scheme == "https" for address in addresses_of(provider))


@every_made
def test_token_origins_of_provider_include_its_api(provider: Provider) -> None:
    assert all(is_origin(host) for host in provider.api_hosts)
    assert origin_of(provider.api) in provider.api_hosts


@every_made
def test_provider_can_identify_the_account_owner(provider: Provider) -> None:
    assert provider.person is not None or "openid" in provider.always


@every_made
def test_scopes_of_provider_have_readable_descriptions(provider: Provider) -> None:
    assert bool(provider.scope_words) is provider.has_scopes
    for scope, words in provider.scope_words.items():
        assert SCOPE.fullmatch(scope)
        assert words[0].isupper()
        assert words == words.strip()
        assert not words.endswith(".")
    assert {*provider.always, *provider.unmentioned} <= set(provider.scope_words)


@every_made
def test_scopes_that_write_or_delete_are_marked(provider: Provider) -> None:
    marked = {*provider.scope_writes, *provider.scope_deletes}
    assert marked <= set(provider.scope_words)
    for scope, words in provider.scope_words.items():
        is_read = re.match("(Read|See|Know|Download|Search|Keep access)\\b", words) is not None
        changes = re.search(r"\b(write|change|delete|set|mark)\b", words) is not None
        assert (scope in marked) is (changes or not is_read), words
        assert (scope in provider.scope_deletes) >= ("elete" in words), words


@every_made
def test_covered_scopes_are_transitive(provider: Provider) -> None:
    for covered in provider.covers.values():
        for scope in covered:
            assert set(provider.covers.get(scope, ())) <= set(covered)


@every_made
def test_provider_supports_revocation_or_names_page_to_remove_access(provider: Provider) -> None:
    assert provider.revoke or provider.manage or provider.discovers


@every_played
def test_sandbox_version_of_provider_stays_on_sandbox_origin(provider: Provider) -> None:
    played = provider.at(SANDBOX)
    assert (played.name, played.label) == (provider.name, provider.label)
    assert {origin_of(address) for address in addresses_of(played)} == {SANDBOX}
    assert played.sends_issuer == provider.sends_issuer
    assert played != provider


def test_sandbox_serves_providers_at_expected_addresses() -> None:
    played = github.at(SANDBOX)
    assert played.issuer == f"{SANDBOX}/github/login/oauth"
    assert played.authorize == f"{SANDBOX}/github/login/oauth/authorize"
    assert played.token == f"{SANDBOX}/github/login/oauth/access_token"
    assert played.api == f"{SANDBOX}/github/api"
    assert played.person is not None
    assert played.person.url == f"{SANDBOX}/github/api/user"
    assert google.at(SANDBOX).issuer == f"{SANDBOX}/oidc"
    assert slack.at(SANDBOX).token == f"{SANDBOX}/slack/api/oauth.v2.access"
    assert list(PLAYED) == ["github", "google", "slack"]


def test_unknown_provider_cannot_be_simulated_by_sandbox() -> None:
    with pytest.raises(InvalidQuestion, match="cannot simulate Acme"):
        openid("acme", "https://login.example").at(SANDBOX)


def test_issuer_address_is_enough_to_declare_openid_provider() -> None:
    acme = openid("acme_works", "https://login.example")
    assert acme.label == "Acme Works"
    assert acme.discovers
    assert acme.api_hosts == ("https://login.example",)
    other = openid(
        "acme",
        "https://login.example",
        label="ACME",
        api="https://api.example/v1",
        scope_words={"anvils": "Order anvils"},
    )
    assert other.api_hosts == ("https://api.example",)
    assert other.scope_words["anvils"] == "Order anvils"
    assert "openid" in other.scope_words


def test_self_hosted_gitlab_uses_its_own_address() -> None:
    hosted = gitlab("https://git.example/gitlab/", name="ours", label="Ours")
    assert hosted.token == "https://git.example/gitlab/oauth/token"
    assert hosted.api_hosts == ("https://git.example",)
    with pytest.raises(InvalidQuestion, match="https"):
        gitlab("http://git.example")


@pytest.mark.parametrize("tenant", ["", "a/b", "a?b", "..", "a b", "x" * 300])
def test_invalid_microsoft_tenant_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidQuestion, match="tenant"):
        microsoft(tenant)


def test_provider_without_scopes_requests_none_and_misses_none() -> None:
    plain = replace(github, has_scopes=False, always=("repo",))
    assert plain.scopes_to_request(("gist",)) == ()
    assert plain.missing(("gist",), granted=()) == ()


def test_scope_omitted_from_replies_is_not_missing() -> None:
    plain = replace(github, unmentioned=("offline_access",))
    assert plain.missing(("offline_access", "repo"), granted=("repo",)) == ()
    assert plain.granted(("offline_access",), named=()) == ("offline_access",)


def test_covered_scope_is_not_missing() -> None:
    assert github.missing(("repo", "public_repo"), granted=("repo",)) == ()
    assert github.missing(("repo",), granted=("public_repo",)) == ("repo",)
    assert (
        google.missing(
            ("openid", "email"),
            granted=("https://www.googleapis.com/auth/userinfo.email", "openid"),
        )
        == ()
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "GitHub"}, "name:"),
        ({"name": "1password"}, "name:"),
        ({"name": "a" * 33}, "name:"),
        ({"name": "../x"}, "name:"),
        ({"label": ""}, "label:"),
        ({"scope_words": {"read": ""}}, "scope_words: the words of 'read' must be 1 to 200"),
        ({"scope_words": {"read": "\u200b\u202e"}}, "scope_words: the words of 'read'"),
        ({"scope_words": {"read": "x" * 201}}, "scope_words: the words of 'read'"),
        ({"label": " GitHub"}, "label:"),
        ({"label": "Git\u202eHub"}, "label:"),
        ({"label": "G" * 41}, "label:"),
        ({"issuer": "http://github.com"}, "issuer:"),
        ({"issuer": "https://github.com?x"}, "issuer:"),
        ({"issuer": None}, "issuer:"),
        ({"authorize": None}, "authorize:"),
        ({"authorize": "http://github.com/authorize"}, "authorize:"),
        ({"authorize": "https://github.com/authorize#x"}, "authorize:"),
        ({"token": None}, "token:"),
        ({"token": "ftp://github.com"}, "token:"),
        ({"api": "api.github.com"}, "api:"),
        ({"api_hosts": ("https://api.github.com/user",)}, "api_hosts:"),
        ({"api_hosts": ("http://api.github.com",)}, "api_hosts:"),
        ({"api_hosts": ("https://uploads.github.com",)}, "person.url:"),
        ({"person": None}, "person:"),
        ({"person": PersonProbe(url="https://x.example", id="i", label="l")}, "person.url:"),
        ({"person": PersonProbe(url="x", id="i", label="l")}, "person.url:"),
        ({"client_auth": "mtls"}, "client_auth:"),
        ({"body": "xml"}, "body:"),
        ({"replies": "xml"}, "replies:"),
        ({"scope_separator": ""}, "scope_separator:"),
        ({"reply_scope_separator": ", "}, "reply_scope_separator:"),
        ({"extra": (("state", "x"),)}, "extra:"),
        ({"extra": (("redirect_uri", "x"),)}, "extra:"),
        ({"extra": (("a", "x"), ("a", "y"))}, "extra:"),
        ({"account_hint": "code_challenge"}, "extra:"),
        ({"always": ("two words",)}, "always:"),
        ({"always": ("",)}, "always:"),
        ({"discovers": True}, "authorize, token:"),
        ({"refresh": "http://github.com/refresh"}, "refresh:"),
        ({"manage": "github.com/settings"}, "manage:"),
        ({"device": "ftp://github.com"}, "device:"),
        ({"revoke": Revocation(url="http://github.com/revoke")}, "revoke:"),
        ({"revoke": Revocation(url="https://github.com", kind="bearer")}, "revoke:"),
        ({"revoke": Revocation(url="https://github.com", kind="x")}, "revoke:"),  # type: ignore[arg-type]
        ({"switch": (("state", "x"),)}, "switch:"),
        ({"switch": (("a", "x"), ("a", "y"))}, "switch:"),
        ({"scope_parameter": "client_id"}, "scope_parameter:"),
        ({"scope_parameter": "user_scope", "extra": (("user_scope", "x"),)}, "extra:"),
        ({"unmentioned": ("two words",)}, "unmentioned:"),
        ({"headers": (("Authorization", "x"),)}, "headers:"),
        ({"headers": (("X-A", "x"), ("x-a", "y"))}, "headers:"),
        ({"headers": (("X-A", "x\r\nHost: evil.example"),)}, "headers:"),
        ({"headers": (("X A", "x"),)}, "headers:"),
        (
            {
                "person": PersonProbe(
                    url="https://api.github.com/user", id="id", label="login", post="{"
                )
            },
            "person.post:",
        ),
    ],
)
def test_invalid_declaration_field_is_named_in_error(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidQuestion) as refused:
        replace(github, **change)
    assert any(line.startswith(fault) for line in str(refused.value).splitlines())


def test_issuer_unable_to_identify_people_is_refused() -> None:
    with pytest.raises(InvalidQuestion, match="always:"):
        replace(google, always=())
    with pytest.raises(InvalidQuestion, match="issuer:"):
        replace(google, issuer=None)


def test_all_invalid_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidQuestion) as refused:
        replace(github, name="X", label="", authorize=None, body="xml")  # type: ignore[arg-type]
    assert len(str(refused.value).splitlines()) == 4
