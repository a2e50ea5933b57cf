"""Google: accounts by its OpenID Connect issuer, APIs on a host for each product."""

from dataclasses import replace

from flows.oauth.provider import Provider, Revocation

_API = "https://www.googleapis.com"
_PRODUCTS = ("docs", "forms", "gmail", "people", "sheets", "slides", "tasks", "youtube")


def _in_sandbox(base: str) -> Provider:
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
    api=_API,
    api_hosts=(_API, *(f"https://{product}.googleapis.com" for product in _PRODUCTS)),
    always=("openid", "email"),
    # Google returns a refresh token only with `access_type` and `prompt` set like this.
    # `include_granted_scopes` keeps the scopes of earlier grants.
    extra=(
        ("access_type", "offline"),
        ("prompt", "consent"),
        ("include_granted_scopes", "true"),
    ),
    switch=(("prompt", "select_account consent"),),
    account_hint="login_hint",
    client_auth="post",
    covers={
        f"{_API}/auth/userinfo.email": ("email",),
        f"{_API}/auth/userinfo.profile": ("profile",),
        f"{_API}/auth/calendar": (f"{_API}/auth/calendar.readonly",),
        f"{_API}/auth/drive": (f"{_API}/auth/drive.readonly", f"{_API}/auth/drive.file"),
        f"{_API}/auth/spreadsheets": (f"{_API}/auth/spreadsheets.readonly",),
    },
    scope_words={
        "openid": "Know that it is you",
        "email": "See your e-mail address",
        "profile": "See your name and picture",
        f"{_API}/auth/calendar": "See, change and delete all your calendars",
        f"{_API}/auth/calendar.readonly": "See your calendars",
        f"{_API}/auth/drive": "See, change and delete all your files in Google Drive",
        f"{_API}/auth/drive.file": "See and change the files that you open with it",
        f"{_API}/auth/drive.readonly": "See and download all your files in Google Drive",
        f"{_API}/auth/gmail.readonly": "Read all your mail",
        f"{_API}/auth/gmail.send": "Send mail as you",
        f"{_API}/auth/spreadsheets": "See, change and delete all your spreadsheets",
        f"{_API}/auth/spreadsheets.readonly": "See your spreadsheets",
    },
    scope_writes=(
        f"{_API}/auth/drive.file",
        f"{_API}/auth/gmail.send",
    ),
    scope_deletes=(
        f"{_API}/auth/calendar",
        f"{_API}/auth/drive",
        f"{_API}/auth/spreadsheets",
    ),
    sandbox=_in_sandbox,
)
