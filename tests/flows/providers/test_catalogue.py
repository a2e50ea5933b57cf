"""The catalogue: a simulated server enforces the requirements that each provider documents."""

from dataclasses import replace
from typing import Any

import pytest

from flows.oauth.provider import as_data, provider_in
from flows.providers import PROVIDERS
from flows.providers.catalogue import CATALOGUE, LISTINGS
from tests.support.strict_provider import Habits, walk


def habits(authorize: str, token: str, **about: Any) -> Habits:
    return Habits(authorize=f"https://{authorize}", token=f"https://{token}", **about)


def issuer(place: str, authorize: str, token: str, **about: Any) -> Habits:
    metadata = {
        "issuer": f"https://{place}",
        "authorization_endpoint": f"https://{authorize}",
        "token_endpoint": f"https://{token}",
        "jwks_uri": f"https://{place}/jwks",
    }
    return habits(authorize, token, metadata=metadata, **about)


def get(url: str, **who: Any) -> dict[str, Any]:
    return {"person": ("GET", f"https://{url}"), "who": who}


def ask(url: str, **who: Any) -> dict[str, Any]:
    return {"person": ("POST", f"https://{url}"), "who": who}


MAIL = "a@hub.example"
GITHUB = {"auth": "post", "who": {"id": 7, "login": "ada"}, "scopes": "a,b"}
ME = {"id": 7, "email": MAIL}
NONE = {"scope_parameter": None}
COMMA = {"separator": ","}
# The behaviour that each provider documents, written independently of our declarations.
HABITS: dict[str, Habits] = {
    "google": issuer(
        "accounts.google.com",
        "accounts.google.com/o/oauth2/v2/auth",
        "oauth2.googleapis.com/token",
        auth="post",
        extra={"access_type": "offline", "include_granted_scopes": "true"},
        callback={"iss": "https://accounts.google.com"},
    ),
    "microsoft": habits(
        "login.microsoftonline.com/common/oauth2/v2.0/authorize",
        "login.microsoftonline.com/common/oauth2/v2.0/token",
        auth="post",
        **get("graph.microsoft.com/v1.0/me", id="7", userPrincipalName=MAIL),
    ),
    "github": habits(
        "github.com/login/oauth/authorize",
        "github.com/login/oauth/access_token",
        callback={"iss": "https://github.com/login/oauth"},
        **GITHUB,
    ),
    "github_app": habits(
        "github.com/login/oauth/authorize",
        "github.com/login/oauth/access_token",
        callback={"iss": "https://github.com/login/oauth"},
        **{**GITHUB, **NONE},
    ),
    "github_enterprise": habits(
        "acme.ghe.com/login/oauth/authorize", "acme.ghe.com/login/oauth/access_token", **GITHUB
    ),
    "gitlab": habits(
        "gitlab.com/oauth/authorize",
        "gitlab.com/oauth/token",
        auth="post",
        **get("gitlab.com/api/v4/user", id=7, username="ada"),
    ),
    "slack": habits(
        "slack.com/oauth/v2/authorize",
        "slack.com/api/oauth.v2.access",
        scope_parameter="user_scope",
        separator=",",
        nest="authed_user",
        token_type="user",
        **ask(
            "slack.com/api/auth.test", ok=True, user_id="U7", team_id="T1", user="ada", team="Acme"
        ),
    ),
    "notion": habits(
        "api.notion.com/v1/oauth/authorize",
        "api.notion.com/v1/oauth/token",
        body="json",
        extra={"owner": "user"},
        headers={"Notion-Version": "2022-06-28"},
        reply={"workspace_id": "w1", "workspace_name": "Acme"},
        **NONE,
        **get(
            "api.notion.com/v1/users/me",
            bot={"owner": {"user": {"id": "7", "person": {"email": MAIL}}}},
        ),
    ),
    "linear": habits(
        "linear.app/oauth/authorize",
        "api.linear.app/oauth/token",
        auth="post",
        **COMMA,
        **ask("api.linear.app/graphql", data={"viewer": ME}),
    ),
    "atlassian": habits(
        "auth.atlassian.com/authorize",
        "auth.atlassian.com/oauth/token",
        auth="post",
        body="json",
        extra={"audience": "api.atlassian.com", "prompt": "consent"},
        **get("api.atlassian.com/me", account_id="7", email=MAIL),
    ),
    "hubspot": habits(
        "app.hubspot.com/oauth/authorize",
        "api.hubapi.com/oauth/v3/token",
        auth="post",
        **get("api.hubapi.com/account-info/v3/details", portalId=7),
    ),
    "salesforce": habits(
        "login.salesforce.com/services/oauth2/authorize",
        "login.salesforce.com/services/oauth2/token",
        auth="post",
        reply={"instance_url": "https://acme.my.salesforce.com"},
        **get(
            "login.salesforce.com/services/oauth2/userinfo",
            user_id="7",
            organization_id="o1",
            email=MAIL,
        ),
    ),
    "shopify": habits(
        "acme.myshopify.com/admin/oauth/authorize",
        "acme.myshopify.com/admin/oauth/access_token",
        auth="post",
        token_extra={"expiring": "1"},
        **COMMA,
    ),
    "quickbooks": habits(
        "appcenter.intuit.com/connect/oauth2",
        "oauth.platform.intuit.com/oauth2/v1/tokens/bearer",
        callback={"realmId": "42"},
        **get("accounts.platform.intuit.com/v1/openid_connect/userinfo", sub="7", email=MAIL),
    ),
    "xero": issuer(
        "identity.xero.com",
        "login.xero.com/identity/connect/authorize",
        "identity.xero.com/connect/token",
    ),
    "zoho": habits(
        "accounts.zoho.eu/oauth/v2/auth",
        "accounts.zoho.eu/oauth/v2/token",
        auth="post",
        **COMMA,
        extra={"access_type": "offline", "prompt": "consent"},
        bearer="Zoho-oauthtoken",
        reply={"api_domain": "https://www.zohoapis.eu"},
        **get("accounts.zoho.eu/oauth/user/info", ZUID=7, Email=MAIL),
    ),
    "zendesk": habits(
        "acme.zendesk.com/oauth/authorizations/new",
        "acme.zendesk.com/oauth/tokens",
        auth="post",
        token_extra={"expires_in": "172800", "refresh_token_expires_in": "7776000"},
        refresh_extra={"expires_in": "172800", "refresh_token_expires_in": "7776000"},
        **get("acme.zendesk.com/api/v2/users/me.json", user=ME),
    ),
    "intercom": habits(
        "app.intercom.com/oauth",
        "api.intercom.io/auth/eagle/token",
        auth="post",
        **NONE,
        **get("api.intercom.io/me", app={"id_code": "abc", "name": "Acme"}, **ME),
    ),
    "asana": habits(
        "app.asana.com/-/oauth_authorize",
        "app.asana.com/-/oauth_token",
        auth="post",
        **get("app.asana.com/api/1.0/users/me", data={"gid": "7", "email": MAIL}),
    ),
    "clickup": habits(
        "app.clickup.com/api",
        "api.clickup.com/api/v2/oauth/token",
        auth="post",
        **NONE,
        **get("api.clickup.com/api/v2/user", user=ME),
    ),
    "monday": habits(
        "auth.monday.com/oauth2/authorize",
        "auth.monday.com/oauth2/token",
        auth="post",
        pkce="refused",
        **ask("api.monday.com/v2", data={"me": {**ME, "account": {"id": 1}}}),
    ),
    "airtable": habits(
        "airtable.com/oauth2/v1/authorize",
        "airtable.com/oauth2/v1/token",
        pkce="required",
        **get("api.airtable.com/v0/meta/whoami", **ME),
    ),
    "dropbox": habits(
        "www.dropbox.com/oauth2/authorize",
        "api.dropboxapi.com/oauth2/token",
        extra={"token_access_type": "offline"},
        **ask("api.dropboxapi.com/2/users/get_current_account", account_id="7", email=MAIL),
    ),
    "box": habits(
        "account.box.com/api/oauth2/authorize",
        "api.box.com/oauth2/token",
        auth="post",
        **get("api.box.com/2.0/users/me", id="7", login=MAIL),
    ),
    "figma": habits(
        "www.figma.com/oauth",
        "api.figma.com/v1/oauth/token",
        **COMMA,
        refresh="https://api.figma.com/v1/oauth/refresh",
        **get("api.figma.com/v1/me", **ME),
    ),
    "canva": habits(
        "www.canva.com/api/oauth/authorize",
        "api.canva.com/rest/v1/oauth/token",
        pkce="required",
        **get("api.canva.com/rest/v1/users/me", team_user={"user_id": "7", "team_id": "t1"}),
    ),
    "miro": habits(
        "miro.com/oauth/authorize",
        "api.miro.com/v1/oauth/token",
        auth="post",
        **NONE,
        reply={"team_id": 3458764513820540929},
        **get("api.miro.com/v1/users/me", id="7", name="Ada"),
    ),
    "zoom": habits(
        "zoom.us/oauth/authorize",
        "zoom.us/oauth/token",
        **COMMA,
        **get("api.zoom.us/v2/users/me", **ME),
    ),
    "calendly": habits(
        "auth.calendly.com/oauth/authorize",
        "auth.calendly.com/oauth/token",
        **get(
            "api.calendly.com/users/me",
            resource={"uri": "7", "email": MAIL, "current_organization": "o"},
        ),
    ),
    "discord": habits(
        "discord.com/oauth2/authorize",
        "discord.com/api/oauth2/token",
        **get("discord.com/api/v10/users/@me", id="7", username="ada"),
    ),
    "x": habits(
        "x.com/i/oauth2/authorize",
        "api.x.com/2/oauth2/token",
        pkce="required",
        **get("api.x.com/2/users/me", data={"id": "7", "username": "ada"}),
    ),
    "linkedin": habits(
        "www.linkedin.com/oauth/v2/authorization",
        "www.linkedin.com/oauth/v2/accessToken",
        auth="post",
        pkce="refused",
        optional=frozenset(),
        **get("api.linkedin.com/v2/userinfo", sub="7", email=MAIL),
    ),
    "facebook": habits(
        "www.facebook.com/v21.0/dialog/oauth",
        "graph.facebook.com/v21.0/oauth/access_token",
        auth="post",
        pkce="refused",
        **COMMA,
        **get("graph.facebook.com/v21.0/me?fields=id,name", id="7", name="Ada"),
    ),
    "instagram": habits(
        "www.instagram.com/oauth/authorize",
        "api.instagram.com/oauth/access_token",
        auth="post",
        pkce="refused",
        **COMMA,
        **get("graph.instagram.com/me?fields=id,username", id="7", username="ada"),
    ),
    "tiktok": habits(
        "www.tiktok.com/v2/auth/authorize/",
        "open.tiktokapis.com/v2/oauth/token/",
        auth="post",
        pkce="refused",
        id_parameter="client_key",
        **COMMA,
        **get(
            "open.tiktokapis.com/v2/user/info/?fields=open_id,display_name",
            data={"user": {"open_id": "7", "display_name": "Ada"}},
        ),
    ),
    "reddit": habits(
        "www.reddit.com/api/v1/authorize",
        "www.reddit.com/api/v1/access_token",
        extra={"duration": "permanent"},
        user_agent="web:elicit-url:v1",
        **get("oauth.reddit.com/api/v1/me", id="7", name="ada"),
    ),
    "spotify": habits(
        "accounts.spotify.com/authorize",
        "accounts.spotify.com/api/token",
        **get("api.spotify.com/v1/me", id="7", display_name="Ada"),
    ),
    "strava": habits(
        "www.strava.com/oauth/authorize",
        "www.strava.com/api/v3/oauth/token",
        auth="post",
        **COMMA,
        extra={"approval_prompt": "auto"},
        scopes="",
        reply={"expires_at": 1800000000, "expires_in": 21600},
        **get("www.strava.com/api/v3/athlete", id=7, firstname="Ada", lastname="L"),
    ),
    "stripe_connect": habits(
        "connect.stripe.com/oauth/authorize",
        "connect.stripe.com/oauth/token",
        auth="post",
        reply={"stripe_user_id": "acct_7", "livemode": False},
    ),
    "paypal_login": habits(
        "www.paypal.com/signin/authorize",
        "api-m.paypal.com/v1/oauth2/token",
        **get(
            "api-m.paypal.com/v1/identity/oauth2/userinfo?schema=paypalv1.1",
            user_id="7",
            name="Ada",
        ),
    ),
    "mailchimp": habits(
        "login.mailchimp.com/oauth2/authorize",
        "login.mailchimp.com/oauth2/token",
        auth="post",
        **NONE,
        bearer="OAuth",
        reply={"expires_in": 0},
        **get("login.mailchimp.com/oauth2/metadata", user_id=7, dc="us6", login={"email": MAIL}),
    ),
    "typeform": habits(
        "api.typeform.com/oauth/authorize",
        "api.typeform.com/oauth/token",
        auth="post",
        pkce="refused",
        **get("api.typeform.com/me", user_id="7", email=MAIL),
    ),
    "webflow": habits(
        "webflow.com/oauth/authorize",
        "api.webflow.com/oauth/access_token",
        auth="post",
        **get("api.webflow.com/v2/token/authorized_by", **ME),
    ),
    "supabase": habits(
        "api.supabase.com/v1/oauth/authorize",
        "api.supabase.com/v1/oauth/token",
        **NONE,
        **get("api.supabase.com/v1/profile", gotrue_id="7", primary_email=MAIL),
    ),
    "vercel": habits(
        "vercel.com/oauth/authorize",
        "api.vercel.com/login/oauth/token",
        auth="post",
        pkce="required",
        **get("api.vercel.com/login/oauth/userinfo", sub="7", email=MAIL),
    ),
}
TENANTS = {
    "shopify": "acme",
    "zendesk": "acme",
    "github_enterprise": "acme",
    "zoho": "accounts.zoho.eu",
}
APIS = {
    "salesforce": "https://acme.my.salesforce.com/services/data",
    "shopify": "https://acme.myshopify.com/admin/api",
    "quickbooks": "https://quickbooks.api.intuit.com/v3/company/42",
    "zoho": "https://www.zohoapis.eu",
    "zendesk": "https://acme.zendesk.com/api/v2",
    "mailchimp": "https://us6.api.mailchimp.com/3.0",
    "github_enterprise": "https://api.acme.ghe.com",
}


def test_every_provider_of_the_catalogue_is_simulated() -> None:
    assert [each.provider.name for each in LISTINGS] == list(CATALOGUE)
    assert HABITS.keys() == CATALOGUE.keys()
    assert len(CATALOGUE) >= 40
    assert PROVIDERS.keys() <= CATALOGUE.keys()


@pytest.mark.parametrize("name", HABITS)
def test_account_is_connected_and_refreshed_despite_habits_of_provider(name: str) -> None:
    # finding: XO2, XO3
    provider, habits = CATALOGUE[name], HABITS[name]
    assert provider.has_scopes is (habits.scope_parameter is not None)
    # The scopes that the declaration requests, as the provider's reply would spell them.
    spelled = provider.reply_scope_separator.join(provider.scopes_to_request(()))
    scopes = habits.scopes if habits.scopes == "" or habits.scope_parameter is None else spelled
    walked = walk(provider, replace(habits, scopes=scopes), tenant=TENANTS.get(name))
    assert walked.grant.person.id
    asked = provider.scopes_to_request(())
    assert provider.missing(asked, granted=walked.grant.scopes) == ()
    filled = provider.for_tenant(TENANTS[name]) if name in TENANTS else provider
    api, hosts = filled.api_and_hosts(walked.grant.details)
    assert api == APIS.get(name, provider.api)
    assert all(host.startswith("https://") and "{" not in host for host in hosts)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("quickbooks", f"{MAIL} · 42"),
        ("salesforce", f"{MAIL} · https://acme.my.salesforce.com"),
        ("miro", "Ada · 3458764513820540929"),
    ],
)
def test_label_tells_two_organizations_of_one_person_apart(name: str, label: str) -> None:
    walked = walk(CATALOGUE[name], HABITS[name])
    assert walked.grant.person.label == label
    assert walked.grant.person.is_called(label.partition(" · ")[0])


def test_account_with_several_ids_has_a_label_of_several_parts() -> None:
    people = [one.person for one in CATALOGUE.values() if one.person is not None]
    several = [one for one in people if not isinstance(one.id, str)]
    assert several
    assert [one.id for one in several if isinstance(one.label, str)] == []


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda one: one.provider.name)
def test_listing_names_its_source_and_is_stored_like_any_declaration(listing: Any) -> None:
    is_page = listing.source.startswith("https://")
    assert is_page is (listing.status == "documented")
    assert provider_in(as_data(listing.provider)) == listing.provider
