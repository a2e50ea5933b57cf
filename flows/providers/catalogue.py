"""The catalogue: each declared provider with its source, how well it is tested, and its limits.

`flows.providers.PROVIDERS` are the built-in providers: `elicit.toml` cannot use their names.
`CATALOGUE` has further providers: a table in `elicit.toml` replaces the provider of the same name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flows.oauth.provider import Provider
from flows.providers.catalogue_business import (
    facebook,
    hubspot,
    instagram,
    intercom,
    linkedin,
    mailchimp,
    paypal_login,
    quickbooks,
    reddit,
    salesforce,
    shopify,
    spotify,
    strava,
    stripe_connect,
    tiktok,
    x,
    xero,
    zendesk,
    zoho,
)
from flows.providers.catalogue_work import (
    airtable,
    asana,
    atlassian,
    box,
    calendly,
    canva,
    clickup,
    discord,
    dropbox,
    figma,
    github_enterprise,
    gitlab,
    linear,
    miro,
    monday,
    notion,
    supabase,
    typeform,
    vercel,
    webflow,
    zoom,
)
from flows.providers.github import github, github_app
from flows.providers.openid import google, microsoft
from flows.providers.slack import slack

Status = Literal["documented", "other clients"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A provider of the catalogue.

    `status` says where the declaration is from: the vendor's documentation, or other clients' code
    that works with the provider. `source` is a page of the vendor, or the names of these clients.
    `cannot` says what the declaration cannot express, so that the tool has to handle it.
    """

    provider: Provider
    source: str
    status: Status = "documented"
    cannot: str = ""


def _listed(
    provider: Provider, source: str, cannot: str = "", *, status: Status = "documented"
) -> CatalogueEntry:
    return CatalogueEntry(provider=provider, source=source, status=status, cannot=cannot)


def _as_others(provider: Provider, source: str, cannot: str = "") -> CatalogueEntry:
    return _listed(provider, source, cannot, status="other clients")


# In the order in which people ask for them.
LISTINGS = (
    _as_others(google, "Nango, Arctic", "A refresh token of an app in Testing ends after 7 days."),
    _listed(
        microsoft(), "https://learn.microsoft.com/entra/identity-platform/v2-oauth2-auth-code-flow"
    ),
    _listed(github, "https://docs.github.com/apps/oauth-apps/building-oauth-apps"),
    _listed(
        github_app,
        "https://docs.github.com/developers/apps/refreshing-user-to-server-access-tokens",
    ),
    _as_others(
        github_enterprise,
        "python-social-auth",
        "Each enterprise has its own registration: copy this entry with `like` and `tenant`.",
    ),
    _listed(gitlab(), "https://docs.gitlab.com/api/oauth2/"),
    _listed(slack, "https://docs.slack.dev/authentication/using-token-rotation"),
    _listed(notion, "https://developers.notion.com/reference/create-a-token"),
    _listed(linear, "https://linear.app/developers/oauth-2-0-authentication"),
    _as_others(
        atlassian,
        "Nango, better-auth",
        "Paths contain the id of a site: the tool has to ask the API for it.",
    ),
    _listed(
        hubspot,
        "https://developers.hubspot.com/docs/api-reference/latest/authentication",
        "`account.id` is the portal, not the person.",
    ),
    _as_others(salesforce, "Nango, python-social-auth", "Sandboxes need a table of their own."),
    _as_others(
        shopify,
        "Nango, django-allauth",
        "The Admin API takes the token only as X-Shopify-Access-Token: set that header from "
        "`account.access_token`. The callback's `hmac` is not checked.",
    ),
    _as_others(quickbooks, "Nango, Socialite, Arctic"),
    _listed(
        xero,
        "https://developer.xero.com/faq/oauth2",
        "The tool has to ask for the tenant at `/connections`.",
    ),
    _listed(
        zoho,
        "https://www.zoho.com/accounts/protocol/oauth/web-apps.html",
        "The person types the sign-in page of their region.",
    ),
    _as_others(zendesk, "Nango, Socialite"),
    _as_others(intercom, "Nango, Socialite", "Only the US region."),
    _listed(asana, "https://developers.asana.com/docs/oauth"),
    _as_others(clickup, "Nango, Socialite"),
    _as_others(
        monday,
        "Nango",
        "An administrator installs the app first. Only the legacy OAuth 2.0 flow of older apps: "
        "the API refuses its tokens from API version 2027-04 "
        "(`developer.monday.com/apps/docs/oauth-2-0`). New apps use OAuth 2.1, with PKCE and "
        "another token endpoint (`developer.monday.com/apps/docs/oauth-2-1`): declare that in a "
        "table of `elicit.toml`.",
    ),
    _as_others(airtable, "Nango"),
    _as_others(dropbox, "Nango, Arctic"),
    _as_others(box, "Nango, Arctic, django-allauth"),
    _as_others(
        figma, "Nango, Arctic", "A refresh ends the app's other access token for this person."
    ),
    _listed(canva, "https://www.canva.dev/docs/connect/authentication/"),
    _listed(miro, "https://developers.miro.com/reference/get-new-access-token-using-refresh-token"),
    _as_others(zoom, "Nango, Arctic"),
    _listed(calendly, "https://developer.calendly.com/api-docs/calendly-o-auth/o-auth"),
    _listed(discord, "https://discord.com/developers/docs/topics/oauth2"),
    _listed(x, "https://docs.x.com/fundamentals/authentication/oauth-2-0"),
    _as_others(linkedin, "Nango, python-social-auth", "Most apps get no refresh token."),
    _as_others(
        facebook,
        "Nango, python-social-auth",
        "There is no refresh token: after about 60 days the person connects again.",
    ),
    _as_others(
        instagram,
        "Nango",
        "The token works for one hour. The server does not exchange it for a 60-day token.",
    ),
    _listed(tiktok, "https://developers.tiktok.com/doc/oauth-user-access-token-management"),
    _as_others(
        reddit, "Nango, python-social-auth", "Set `user_agent` to a name of your own, with `like`."
    ),
    _as_others(spotify, "Nango, Arctic", "A refresh token ends after 6 months."),
    _as_others(
        strava,
        "Nango, python-social-auth",
        "The server does not notice scopes that the person unticked.",
    ),
    _as_others(
        stripe_connect,
        "Nango, python-social-auth",
        "The client secret is the platform's API key. Disconnecting does not deauthorize it there.",
    ),
    _as_others(paypal_login, "Nango, better-auth", "Live accounts only."),
    _as_others(mailchimp, "Nango, python-social-auth"),
    _as_others(typeform, "Nango"),
    _as_others(webflow, "Nango, Socialite"),
    _listed(
        supabase,
        "https://supabase.com/docs/guides/integrations/build-a-supabase-oauth-integration",
        "Scopes are set on the app.",
    ),
    _as_others(
        vercel,
        "better-auth",
        "Only for Sign in with Vercel. Vercel integrations use another flow.",
    ),
)
CATALOGUE: Mapping[str, Provider] = {each.provider.name: each.provider for each in LISTINGS}
