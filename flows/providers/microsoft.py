"""Microsoft identity platform: accounts of one organisation, of any, or personal accounts.

Experimental: written from Microsoft's documentation, untested. Tokens are never revoked, because
Microsoft has no revocation endpoint.
"""

import re

from flows.errors import InvalidQuestion
from flows.oauth.provider import PersonProbe, Provider, TokenExchange

_LOGIN = "https://login.microsoftonline.com"
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
    place = f"{_LOGIN}/{tenant}/oauth2/v2.0"
    manage = "https://myapps.microsoft.com"
    if tenant == "consumers":
        manage = "https://account.live.com/consent/Manage"
    return Provider(
        name=name,
        label="Microsoft",
        refresh_unused_days=90,
        issuer=f"{_LOGIN}/{tenant}/v2.0" if _ID.fullmatch(tenant) else None,
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
            "offline_access": "Go on while you are away",
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
        scope_writes=(
            "Calendars.ReadWrite",
            "Mail.Send",
        ),
        scope_deletes=(
            "Files.ReadWrite",
            "Mail.ReadWrite",
        ),
    )
