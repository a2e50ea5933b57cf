"""OpenID Connect: Google, Microsoft, and any issuer whose endpoints are found by discovery.

Google has a host for each product's API. The tenant of Microsoft selects the accounts: those of one
organisation, of any organisation, or personal accounts. Microsoft is experimental: written from its
documentation, untested. Microsoft's tokens are never revoked, because Microsoft has no revocation
endpoint.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from flows.errors import InvalidQuestion
from flows.oauth.provider import PersonProbe, Provider, Revocation, TokenExchange

_WORDS = {
    "openid": "Know that it is you",
    "email": "See your e-mail address",
    "profile": "See your name and picture",
    "offline_access": "Keep access while you are away",
}


def openid(
    name: str,
    issuer: str,
    *,
    label: str | None = None,
    api: str | None = None,
    api_hosts: tuple[str, ...] = (),
    sends_issuer: bool = False,
    scope_words: Mapping[str, str] | None = None,
    switch: str = "select_account",
) -> Provider:
    """Return a provider for an OpenID Connect issuer, whose addresses are discovered.

    Args:
        name: The name of the provider, and of its settings.
        issuer: The address of the issuer.
        label: The name that people read.
        api: The base address of the API. The default is the issuer.
        api_hosts: Further hosts that receive the access token.
        sends_issuer: The issuer sends `iss` to the callback (RFC 9207).
        scope_words: What each scope allows, in words for the page.
        switch: The `prompt` value that lets a person choose another account; `login` works
            everywhere.

    Returns:
        The provider.

    Raises:
        InvalidQuestion: The declaration is wrong. The message has a line for each fault.
    """
    return Provider(
        name=name,
        label=label or name.replace("_", " ").title(),
        issuer=issuer,
        sends_issuer=sends_issuer,
        discovers=True,
        api=api or issuer,
        api_hosts=api_hosts,
        always=("openid",),
        switch=(("prompt", switch),),
        # Without `prompt=consent`, a strict provider ignores offline_access (OIDC Core 1.0, 11).
        lasting=(("prompt", "consent"),),
        account_hint="login_hint",
        scope_words={**_WORDS, **(scope_words or {})},
    )


_GOOGLE = "https://www.googleapis.com"
_GOOGLE_PRODUCTS = ("docs", "forms", "gmail", "people", "sheets", "slides", "tasks", "youtube")


def _google_in_sandbox(base: str) -> Provider:
    issuer = f"{base}/oidc"
    return replace(
        google,
        issuer=issuer,
        api=issuer,
        api_hosts=(),
        revoke=None,  # found in the issuer's metadata
        manage=None,
        device=None,
    )


google: Provider = Provider(
    name="google",
    label="Google",
    refresh_unused_days=180,
    issuer="https://accounts.google.com",
    sends_issuer=True,
    discovers=True,
    revoke=Revocation(url="https://oauth2.googleapis.com/revoke"),  # revokes the whole grant
    manage="https://myaccount.google.com/connections",
    device="https://oauth2.googleapis.com/device/code",
    api=_GOOGLE,
    api_hosts=(_GOOGLE, *(f"https://{product}.googleapis.com" for product in _GOOGLE_PRODUCTS)),
    always=("openid", "email"),
    # Google returns a refresh token only with `access_type` and `prompt` set like this.
    # `include_granted_scopes` keeps the scopes of earlier grants.
    extra=(("access_type", "offline"), ("prompt", "consent"), ("include_granted_scopes", "true")),
    switch=(("prompt", "select_account consent"),),
    account_hint="login_hint",
    client_auth="post",
    covers={
        f"{_GOOGLE}/auth/userinfo.email": ("email",),
        f"{_GOOGLE}/auth/userinfo.profile": ("profile",),
        f"{_GOOGLE}/auth/calendar": (f"{_GOOGLE}/auth/calendar.readonly",),
        f"{_GOOGLE}/auth/drive": (f"{_GOOGLE}/auth/drive.readonly", f"{_GOOGLE}/auth/drive.file"),
        f"{_GOOGLE}/auth/spreadsheets": (f"{_GOOGLE}/auth/spreadsheets.readonly",),
    },
    scope_words={
        "openid": "Know that it is you",
        "email": "See your e-mail address",
        "profile": "See your name and picture",
        f"{_GOOGLE}/auth/calendar": "See, change and delete all your calendars",
        f"{_GOOGLE}/auth/calendar.readonly": "See your calendars",
        f"{_GOOGLE}/auth/drive": "See, change and delete all your files in Google Drive",
        f"{_GOOGLE}/auth/drive.file": "See and change the files that you open with it",
        f"{_GOOGLE}/auth/drive.readonly": "See and download all your files in Google Drive",
        f"{_GOOGLE}/auth/gmail.readonly": "Read all your mail",
        f"{_GOOGLE}/auth/gmail.send": "Send mail as you",
        f"{_GOOGLE}/auth/spreadsheets": "See, change and delete all your spreadsheets",
        f"{_GOOGLE}/auth/spreadsheets.readonly": "See your spreadsheets",
    },
    scope_writes=(f"{_GOOGLE}/auth/drive.file", f"{_GOOGLE}/auth/gmail.send"),
    scope_deletes=(
        f"{_GOOGLE}/auth/calendar",
        f"{_GOOGLE}/auth/drive",
        f"{_GOOGLE}/auth/spreadsheets",
    ),
    sandbox=_google_in_sandbox,
)


_MICROSOFT = "https://login.microsoftonline.com"
_GRAPH = "https://graph.microsoft.com"
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,253}")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ADMINISTRATOR = (
    "An administrator of your organisation has to approve this at Microsoft first. Ask an "
    "administrator to do so."
)


def on_behalf_of(issuer: str, *, matches: str = "id") -> TokenExchange:
    """Return the exchange of a person's own token at Entra: jwt-bearer with an extra parameter.

    `issuer` is the exact name in the people's tokens. Graph's tokens do not name a person, so
    `matches` is the member of Graph's reply that must equal the person's `oid`.
    """
    use = (("requested_token_use", "on_behalf_of"),)
    return TokenExchange(issuer=issuer, kind="jwt_bearer", matches=matches, extra=use)


def microsoft(tenant: str = "common", *, name: str = "microsoft") -> Provider:
    """Return the provider for a tenant of Microsoft Entra.

    Args:
        tenant: An id, a domain, `common`, `organizations` or `consumers`. The issuer is known only
            for an id.
        name: The name of the provider, and of its settings.

    Returns:
        The provider.

    Raises:
        InvalidQuestion: The tenant or the name is not valid.
    """
    if not _TENANT.fullmatch(tenant):
        raise InvalidQuestion("tenant: must be an id, a domain, or common.")
    place = f"{_MICROSOFT}/{tenant}/oauth2/v2.0"
    manage = "https://myapps.microsoft.com"
    if tenant == "consumers":
        manage = "https://account.live.com/consent/Manage"
    return Provider(
        name=name,
        label="Microsoft",
        refresh_unused_days=90,
        issuer=f"{_MICROSOFT}/{tenant}/v2.0" if _ID.fullmatch(tenant) else None,
        authorize=f"{place}/authorize",
        token=f"{place}/token",
        device=f"{place}/devicecode",
        manage=manage,
        api=f"{_GRAPH}/v1.0",
        client_auth="post",
        always=("offline_access", "User.Read"),
        unmentioned=("offline_access",),
        switch=(("prompt", "select_account"),),
        account_hint="login_hint",
        person=PersonProbe(
            url=f"{_GRAPH}/v1.0/me", id="id", label="userPrincipalName", name="displayName"
        ),
        troubles={"AADSTS65001": _ADMINISTRATOR, "AADSTS90094": _ADMINISTRATOR},
        covers={
            "Calendars.ReadWrite": ("Calendars.Read",),
            "Contacts.ReadWrite": ("Contacts.Read",),
            "Files.ReadWrite": ("Files.Read",),
            "Mail.ReadWrite": ("Mail.Read",),
            "User.ReadWrite": ("User.Read",),
        },
        scope_words={
            "offline_access": "Keep access while you are away",
            "User.Read": "See your name and e-mail address",
            "Calendars.Read": "See your calendars",
            "Calendars.ReadWrite": "See and change your calendars",
            "Contacts.Read": "See your contacts",
            "Files.Read": "See your files in OneDrive",
            "Files.ReadWrite": "See, change and delete your files in OneDrive",
            "Mail.Read": "Read your mail",
            "Mail.ReadWrite": "Read, change and delete your mail",
            "Mail.Send": "Send mail as you",
        },
        scope_writes=("Calendars.ReadWrite", "Mail.Send"),
        scope_deletes=("Files.ReadWrite", "Mail.ReadWrite"),
    )
