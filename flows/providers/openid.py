"""Any OpenID Connect issuer: its endpoints are found by discovery."""

from collections.abc import Mapping

from flows.oauth.provider import Provider

_WORDS = {
    "openid": "Know that it is you",
    "email": "See your e-mail address",
    "profile": "See your name and picture",
    "offline_access": "Go on while you are away",
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
    """Return a provider for an issuer.

    Its API is at the issuer unless `api` is given.

    `switch` is the `prompt` value that lets a person choose another account; `login` works
    everywhere. Raises InvalidQuestion with a line for each fault.
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
