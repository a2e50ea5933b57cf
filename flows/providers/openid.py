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
    """Return a provider for an OpenID Connect issuer, whose addresses are discovered.

    Args:
        name: The name of the provider, and of its settings.
        issuer: The address of the issuer.
        label: The name that people read.
        api: The base address of the API. Without it, the issuer.
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
