"""Provider accounts from start to end, with the replies that the providers' docs show.

No reply was captured from a vendor: the shapes are the published ones. All providers except
GitHub's OAuth app and Google are experimental until they have been tried with the vendor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from flows.errors import Failed
from flows.oauth.authorization_code import Grant
from flows.oauth.provider import Provider
from flows.oauth.refresh import RefreshTokenGone, refresh
from flows.oauth.requests import authorize_parameters
from flows.oauth.revocation import revoke
from flows.providers import (
    PROVIDERS,
    atlassian,
    discord,
    dropbox,
    github,
    github_app,
    gitlab,
    google,
    linear,
    microsoft,
    notion,
    slack,
)
from tests.support.account_life import a_client, a_connection, basic, json_reply, ok, values_of
from tests.support.clock import NOON
from tests.support.oauth_flow import (
    CALLBACK,
    KEY,
    an_elicitation,
    departed,
    granted,
    id_token,
    parameters_of,
    talked,
)

TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
HOSTED = gitlab("https://git.example/gitlab/", name="our_gitlab", label="Our GitLab")
EMPTY = httpx.Response(200)
GOOGLE = "https://accounts.google.com"
GOOGLE_METADATA = {
    "issuer": GOOGLE,
    "authorization_endpoint": f"{GOOGLE}/o/oauth2/v2/auth",
    "device_authorization_endpoint": "https://oauth2.googleapis.com/device/code",
    "token_endpoint": "https://oauth2.googleapis.com/token",
    "userinfo_endpoint": "https://openidconnect.googleapis.com/v1/userinfo",
    "revocation_endpoint": "https://oauth2.googleapis.com/revoke",
    "jwks_uri": "https://www.googleapis.com/oauth2/v3/certs",
    "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
    "authorization_response_iss_parameter_supported": True,
}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A provider with its requests, its replies, and their expected results."""

    provider: Provider
    scopes: tuple[str, ...]
    place: str
    asked: Mapping[str, str]  # parameters that only this provider needs
    exchanged: Mapping[str, Any]
    person: Mapping[str, Any]
    who: tuple[str, str]
    granted: tuple[str, ...]
    lasts: float | None  # seconds
    auth: str = "post"
    renewed: Mapping[str, Any]
    rotates: bool
    over: httpx.Response
    revoked: tuple[httpx.Response, ...] = (EMPTY, EMPTY)
    revoke_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def tokens(life: int, **more: Any) -> dict[str, Any]:
    return {"access_token": "the-key", "token_type": "bearer", "expires_in": life, **more}


INVALID_GRANT = json_reply(400, error="invalid_grant", error_description="The token is invalid.")
OCTOCAT = {
    "login": "octocat",
    "id": 583231,
    "avatar_url": "https://avatars.githubusercontent.com/u/583231?v=4",
    "name": "The Octocat",
    "email": None,
}
RECORDED = [
    Recorded(
        provider=github,
        scopes=("repo", "read:user"),
        place="https://github.com/login/oauth/authorize",
        asked={"scope": "repo read:user"},
        exchanged={"access_token": "gho_16C7", "scope": "read:user,repo", "token_type": "bearer"},
        person=OCTOCAT,
        who=("583231", "octocat"),
        granted=("read:user", "repo"),
        lasts=None,
        renewed=tokens(28800, refresh_token="ghr_2", scope="read:user,repo"),
        rotates=True,
        over=ok(error="bad_refresh_token", error_description="The refresh token is invalid."),
        revoked=(httpx.Response(204),),
        revoke_url="https://api.github.com/applications/our%20id/token",
    ),
    Recorded(
        provider=github_app,
        scopes=("repo",),
        place="https://github.com/login/oauth/authorize",
        asked={},
        exchanged=tokens(28800, refresh_token="ghr_1", scope="", refresh_token_expires_in=15811200),
        person=OCTOCAT,
        who=("583231", "octocat"),
        granted=(),
        lasts=28800,
        renewed=tokens(28800, refresh_token="ghr_2", scope=""),
        rotates=True,
        over=ok(error="bad_refresh_token"),
        revoked=(httpx.Response(204),),
        revoke_url="https://api.github.com/applications/our%20id/grant",
    ),
    Recorded(
        provider=microsoft(TENANT),
        scopes=("Mail.Read",),
        place=f"https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/authorize",
        asked={"scope": "offline_access User.Read Mail.Read"},
        exchanged=tokens(
            3599,
            token_type="Bearer",
            scope="Mail.Read User.Read",
            ext_expires_in=3599,
            refresh_token="0.ARwA",
        ),
        person={
            "@odata.context": "https://graph.microsoft.com/v1.0/$metadata#users/$entity",
            "id": "87d349ed-44d7-43e1-9a83-5f2406dee5bd",
            "displayName": "Adele Vance",
            "userPrincipalName": "AdeleV@contoso.example",
            "mail": "AdeleV@contoso.example",
        },
        who=("87d349ed-44d7-43e1-9a83-5f2406dee5bd", "AdeleV@contoso.example"),
        granted=("Mail.Read", "User.Read", "offline_access"),
        lasts=3599,
        renewed=tokens(3599, scope="Mail.Read User.Read", refresh_token="0.BRwA"),
        rotates=False,
        over=json_reply(
            400,
            error="invalid_grant",
            error_description="AADSTS700082: The refresh token has expired due to inactivity.",
            error_codes=[700082],
        ),
    ),
    Recorded(
        provider=HOSTED,
        scopes=("api",),
        place="https://git.example/gitlab/oauth/authorize",
        asked={"scope": "read_user api"},
        exchanged=tokens(
            7200,
            token_type="Bearer",
            refresh_token="803c1fd",
            scope="read_user api",
            created_at=1772366400,
        ),
        person={
            "id": 1,
            "username": "john_smith",
            "name": "John Smith",
            "avatar_url": "https://git.example/uploads/user/avatar/1/cd8.jpeg",
        },
        who=("1", "john_smith"),
        granted=("read_user", "api"),
        lasts=7200,
        renewed=tokens(7200, refresh_token="c4d8", scope="read_user api"),
        rotates=True,
        over=INVALID_GRANT,
        revoked=(ok(), ok()),
        revoke_url="https://git.example/gitlab/oauth/revoke",
    ),
    Recorded(
        provider=slack,
        scopes=("chat:write", "users:read"),
        place="https://slack.com/oauth/v2/authorize",
        asked={"user_scope": "chat:write,users:read"},
        exchanged={
            "ok": True,
            "app_id": "A0KRD7HC3",
            "authed_user": {
                "id": "U1234",
                "scope": "chat:write,users:read",
                "access_token": "xoxe.xoxp-1234",
                "token_type": "user",
                "refresh_token": "xoxe-1-1",
                "expires_in": 43200,
            },
            "team": {"name": "Slack Softball Team", "id": "T9TK3CUKW"},
            "enterprise": None,
            "is_enterprise_install": False,
        },
        person={
            "ok": True,
            "url": "https://subarachnoid.slack.com/",
            "team": "Subarachnoid Workspace",
            "user": "grace",
            "team_id": "T12345678",
            "user_id": "W12345678",
        },
        who=("T12345678/W12345678", "grace · Subarachnoid Workspace"),
        granted=("chat:write", "users:read"),
        lasts=43200,
        auth="basic",
        renewed={
            "ok": True,
            "access_token": "xoxe.xoxp-2",
            "expires_in": 43200,
            "refresh_token": "xoxe-1-2",
            "token_type": "user",
            "scope": "chat:write,users:read",
            "team": {"id": "T9TK3CUKW", "name": "Slack Softball Team"},
        },
        rotates=True,
        over=ok(ok=False, error="invalid_refresh_token"),
        revoked=(ok(ok=True, revoked=True),),
        revoke_url="https://slack.com/api/auth.revoke",
    ),
    Recorded(
        provider=notion,
        scopes=(),
        place="https://api.notion.com/v1/oauth/authorize",
        asked={"owner": "user"},
        exchanged={
            "access_token": "ntn_1",
            "token_type": "bearer",
            "refresh_token": "nrt_1",
            "bot_id": "b3414d65",
            "workspace_id": "78c1aa6b",
            "workspace_name": "Ada's Notion",
            "owner": {"type": "user", "user": {"object": "user", "id": "16d84278"}},
            "duplicated_template_id": None,
            "request_id": "3c90c3cc",
        },
        person={
            "object": "user",
            "id": "b3414d65",
            "type": "bot",
            "bot": {
                "owner": {
                    "type": "user",
                    "user": {
                        "object": "user",
                        "id": "16d84278",
                        "name": "Ada",
                        "avatar_url": "https://s3.example/ada.png",
                        "type": "person",
                        "person": {"email": "ada@example.org"},
                    },
                },
                "workspace_name": "Ada's Notion",
            },
        },
        who=("78c1aa6b/16d84278", "ada@example.org · Ada's Notion"),
        granted=(),
        lasts=None,
        auth="basic",
        renewed={"access_token": "ntn_2", "token_type": "bearer", "refresh_token": "nrt_2"},
        rotates=True,
        over=INVALID_GRANT,
        revoked=(ok(request_id="3c90c3cc"),),
        revoke_url="https://api.notion.com/v1/oauth/revoke",
        headers={"notion-version": "2022-06-28"},
    ),
    Recorded(
        provider=linear,
        scopes=("issues:create",),
        place="https://linear.app/oauth/authorize",
        asked={"scope": "read,issues:create"},
        exchanged=tokens(
            86399, token_type="Bearer", scope="read issues:create", refresh_token="sw1g"
        ),
        person={
            "data": {
                "viewer": {
                    "id": "a1b2",
                    "email": "ada@example.org",
                    "name": "Ada",
                    "avatarUrl": None,
                }
            }
        },
        who=("a1b2", "ada@example.org"),
        granted=("read", "issues:create"),
        lasts=86399,
        renewed=tokens(86399, scope="read issues:create", refresh_token="sw2g"),
        rotates=True,
        over=json_reply(400, error="invalid_grant", error_description="Token has been expired."),
        revoked=(EMPTY, httpx.Response(400)),
        revoke_url="https://api.linear.app/oauth/revoke",
    ),
    Recorded(
        provider=atlassian,
        scopes=("read:jira-work",),
        place="https://auth.atlassian.com/authorize",
        asked={
            "scope": "offline_access read:me read:jira-work",
            "audience": "api.atlassian.com",
            "prompt": "consent",
        },
        exchanged=tokens(
            3600, token_type="Bearer", scope="read:jira-work read:me", refresh_token="eyJ1"
        ),
        person={
            "account_type": "atlassian",
            "account_id": "112233aa-bb11-cc22-33dd-445566abcabc",
            "email": "mia@example.com",
            "name": "Mia Krystof",
            "picture": "https://avatar-management.example/mia.png",
            "account_status": "active",
        },
        who=("112233aa-bb11-cc22-33dd-445566abcabc", "mia@example.com"),
        granted=("read:jira-work", "read:me", "offline_access"),
        lasts=3600,
        renewed=tokens(3600, scope="read:jira-work read:me", refresh_token="eyJ2"),
        rotates=True,
        over=json_reply(
            403, error="invalid_grant", error_description="Unknown or invalid refresh token."
        ),
    ),
    Recorded(
        provider=discord,
        scopes=("guilds",),
        place="https://discord.com/oauth2/authorize",
        asked={"scope": "identify guilds"},
        exchanged=tokens(
            604800, token_type="Bearer", scope="guilds identify", refresh_token="D43f"
        ),
        person={
            "id": "80351110224678912",
            "username": "nelly",
            "discriminator": "0",
            "global_name": "Nelly",
            "avatar": "8342729096ea3675442027381ff50dfe",
        },
        who=("80351110224678912", "nelly"),
        granted=("guilds", "identify"),
        lasts=604800,
        auth="basic",
        renewed=tokens(604800, scope="guilds identify", refresh_token="D43g"),
        rotates=True,
        over=json_reply(400, error="invalid_grant"),
        revoked=(ok(), ok()),
        revoke_url="https://discord.com/api/oauth2/token/revoke",
    ),
    Recorded(
        provider=dropbox,
        scopes=("files.content.read",),
        place="https://www.dropbox.com/oauth2/authorize",
        asked={"scope": "account_info.read files.content.read", "token_access_type": "offline"},
        exchanged=tokens(
            14400,
            scope="account_info.read files.content.read",
            refresh_token="nBiM",
            uid="12345",
            account_id="dbid:AAH4f99T0taONIb-OurWxbNQ6ywGRopQngc",
        ),
        person={
            "account_id": "dbid:AAH4f99T0taONIb-OurWxbNQ6ywGRopQngc",
            "name": {"given_name": "Franz", "display_name": "Franz Ferdinand"},
            "email": "franz@example.org",
            "disabled": False,
        },
        who=("dbid:AAH4f99T0taONIb-OurWxbNQ6ywGRopQngc", "franz@example.org"),
        granted=("account_info.read", "files.content.read"),
        lasts=14400,
        auth="basic",
        renewed=tokens(14400),
        rotates=False,
        over=json_reply(400, error="invalid_grant", error_description="refresh token is invalid"),
        revoked=(httpx.Response(200, content=b"null"),),
        revoke_url="https://api.dropboxapi.com/2/auth/token/revoke",
    ),
]
every = pytest.mark.parametrize("one", RECORDED, ids=[one.provider.name for one in RECORDED])


def exchanged(one: Recorded) -> tuple[Grant, list[httpx.Request]]:
    _, away = departed(one.provider, scopes=one.scopes)
    return granted(one.provider, away, ok(**one.exchanged), ok(**one.person))


def test_every_built_in_provider_has_recorded_replies() -> None:
    assert {*PROVIDERS} - {one.provider.name for one in RECORDED} == {"google"}


@every
def test_redirect_url_contains_parameters_of_provider(one: Recorded) -> None:
    departure, _ = departed(one.provider, scopes=one.scopes)
    sent = parameters_of(departure.url)
    own_parameters = {"response_type", "client_id", "redirect_uri", "state", "code_challenge"}
    assert departure.url.partition("?")[0] == one.place
    assert sent["redirect_uri"] == [CALLBACK]
    assert sent["code_challenge_method"] == ["S256"]
    assert {key: values[0] for key, values in sent.items() if key not in own_parameters} == {
        "code_challenge_method": "S256",
        **one.asked,
    }


@every
def test_code_is_exchanged_for_token_and_person(one: Recorded) -> None:
    grant, (request, probe) = exchanged(one)
    assert (grant.person.id, grant.person.label) == one.who
    assert grant.scopes == one.granted
    assert grant.tokens.token_type == "Bearer"
    lasts = grant.tokens.expires_at
    assert (lasts and (lasts - NOON).total_seconds()) == one.lasts
    values = values_of(request)
    assert values["grant_type"] == "authorization_code"
    assert (request.headers.get("authorization") == basic()) is (one.auth == "basic")
    assert ("client_secret" in values) is (one.auth == "post")
    assert one.headers.items() <= dict(request.headers).items()
    assert one.headers.items() <= dict(probe.headers).items()
    assert probe.headers["authorization"] == f"Bearer {grant.tokens.access_token}"
    assert f"{probe.url.scheme}://{probe.url.host}" in one.provider.api_hosts


@every
def test_granted_scopes_are_sufficient_for_same_question(one: Recorded) -> None:
    """The granted scopes suffice. Otherwise the person would be asked again at each call."""
    grant, _ = exchanged(one)
    asks = one.provider.scopes_to_request(one.scopes)
    assert one.provider.missing(asks, granted=grant.scopes) == ()


@every
def test_access_token_is_refreshed(one: Recorded) -> None:
    connection = a_connection(one.provider, scopes=one.granted)
    talk = refresh(a_client(one.provider), connection, now=NOON)
    renewed, (request,) = talked(talk, ok(**one.renewed))
    assert request.url == one.provider.token
    assert values_of(request)["refresh_token"] == "old-refresh"
    assert renewed.tokens.access_token == one.renewed["access_token"]
    assert renewed.tokens.refresh_token == one.renewed.get("refresh_token", "old-refresh")
    assert set(renewed.scopes) == set(one.granted)
    assert one.provider.rotates is one.rotates


@every
def test_ended_grant_is_distinguished_from_temporary_failure(one: Recorded) -> None:
    client, connection = a_client(one.provider), a_connection(one.provider)
    with pytest.raises(RefreshTokenGone, match=one.provider.label):
        talked(refresh(client, connection, now=NOON), one.over)
    with pytest.raises(Failed, match=one.provider.label):
        talked(refresh(client, connection, now=NOON), httpx.Response(502))


@every
def test_tokens_are_revoked_where_provider_supports_revocation(one: Recorded) -> None:
    replies = one.revoked if one.revoke_url else ()
    is_gone, requests = talked(
        revoke(a_client(one.provider), a_connection(one.provider), now=NOON), *replies
    )
    assert is_gone is (one.revoke_url is not None)
    assert {str(request.url) for request in requests} == {one.revoke_url} - {None}
    assert all("old-key" not in str(request.url) for request in requests)


@every
def test_account_selection_is_requested_where_provider_supports_selection(one: Recorded) -> None:
    sent = authorize_parameters(
        a_client(one.provider),
        redirect_uri=CALLBACK,
        scopes=("x",),
        state="s",
        verifier="v" * 64,
        account="ada",
        switches=True,
    )
    assert all(sent[name] == value for name, value in one.provider.switch)
    assert one.provider.account_hint not in sent


class TestGoogle:
    def test_google_redirect_asks_for_offline_access(self) -> None:
        departure, _ = departed(google, metadata=GOOGLE_METADATA)
        sent = parameters_of(departure.url)
        assert (sent["access_type"], sent["prompt"]) == (["offline"], ["consent"])

    def test_google_account_selection_still_includes_consent_prompt(self) -> None:
        sent = authorize_parameters(
            a_client(google),
            redirect_uri=CALLBACK,
            scopes=("openid",),
            state="s",
            verifier="v" * 64,
            switches=True,
        )
        assert sent["prompt"] == "select_account consent"

    def test_code_is_exchanged_for_token_and_person(self) -> None:
        _, away = departed(google, metadata=GOOGLE_METADATA, scopes=())
        token = id_token(away, iss=GOOGLE, sub="1076", email="ada@example.org")
        reply = tokens(
            3599,
            token_type="Bearer",
            refresh_token="1//0g",
            scope="openid https://www.googleapis.com/auth/userinfo.email",
            id_token=token,
        )
        keys = ok(keys=[KEY.as_dict(private=False)])
        grant, _ = granted(google, away, ok(**reply), keys)
        assert (grant.person.id, grant.person.label) == ("1076", "ada@example.org")
        assert google.missing(google.scopes_to_request(()), granted=grant.scopes) == ()

    def test_access_token_is_refreshed_and_refresh_token_stays(self) -> None:
        connection = a_connection(google, token_endpoint="https://oauth2.googleapis.com/token")
        renewed, (request,) = talked(
            refresh(a_client(google), connection, now=NOON), ok(**tokens(3599))
        )
        assert str(request.url) == "https://oauth2.googleapis.com/token"
        assert renewed.tokens.refresh_token == "old-refresh"
        with pytest.raises(RefreshTokenGone):
            talked(refresh(a_client(google), connection, now=NOON), INVALID_GRANT)

    def test_revocation_succeeds_if_second_token_is_already_revoked(self) -> None:
        gone = json_reply(400, error="invalid_token", error_description="Token expired or revoked")
        is_gone, requests = talked(
            revoke(a_client(google), a_connection(google), now=NOON), ok(), gone
        )
        assert is_gone
        assert {str(each.url) for each in requests} == {"https://oauth2.googleapis.com/revoke"}


class TestDifferencesBetweenProviders:
    @pytest.mark.parametrize("code", ["AADSTS65001", "AADSTS90094"])
    def test_microsoft_admin_consent_error_names_administrator(self, code: str) -> None:
        organisation = microsoft()
        _, away = departed(organisation, scopes=("Mail.Read",))
        description = f"{code}: The grant requires admin permission. Trace ID: 7c9"
        reply = json_reply(400, error="invalid_grant", error_description=description)
        with pytest.raises(Failed, match="administrator of your organisation") as failed:
            granted(organisation, away, reply)
        assert "Trace" not in str(failed.value)

    def test_microsoft_issuer_is_specific_to_tenant(self) -> None:
        assert microsoft(TENANT).issuer == f"https://login.microsoftonline.com/{TENANT}/v2.0"
        assert microsoft().issuer is None

    def test_person_at_slack_linear_and_dropbox_is_fetched_with_post(self) -> None:
        bodies = {}
        for one in RECORDED:
            probe = exchanged(one)[1][1]
            if probe.method == "POST":
                assert probe.headers["content-type"] == "application/json"
                bodies[one.provider.name] = probe.content
        assert set(bodies) == {"slack", "linear", "dropbox"}
        assert b"viewer" in bodies["linear"]
        assert bodies["dropbox"] == b"null"

    def test_slack_error_with_status_200_gives_no_token_and_no_person(self) -> None:
        _, away = departed(slack, scopes=("chat:write",))
        with pytest.raises(Failed, match="invalid_code"):
            granted(slack, away, ok(ok=False, error="invalid_code"))
        one = next(one for one in RECORDED if one.provider is slack)
        with pytest.raises(Failed, match="whose account"):
            granted(slack, away, ok(**one.exchanged), ok(ok=False, error="invalid_auth"))

    def test_notion_and_atlassian_receive_json(self) -> None:
        for one in RECORDED:
            kind = exchanged(one)[1][0].headers["content-type"]
            is_json = one.provider in (notion, atlassian)
            assert ("json" in kind) is is_json

    def test_atlassian_token_is_sent_only_to_atlassian_api(self) -> None:
        assert urlsplit(atlassian.api).netloc == "api.atlassian.com"
        assert atlassian.api_hosts == ("https://api.atlassian.com",)

    def test_github_app_request_contains_no_scope(self) -> None:
        elicitation = an_elicitation(github_app, scopes=("repo",))
        assert elicitation.request.terms is not None
        departure, _ = departed(github_app, scopes=("repo",))
        assert "scope" not in parameters_of(departure.url)
