"""The declarations of an operator's providers as the sandbox simulates them.

Built-in providers have a simulation of their own (`Provider.sandbox`). Of the others, the sandbox
simulates those with API keys, service accounts and exchanges, with the habits of the standard.

Risks: a key or a person's token for the real provider reaches another host. So a simulated
declaration has no address but the sandbox's, and keeps only the fields that are listed here.
"""

from dataclasses import replace
from typing import Any, Final

from flows.oauth.declaration import PersonProbe
from flows.oauth.provider import Provider

_COPIED_FIELDS: Final = (
    *("name", "label", "has_scopes", "always", "unmentioned", "covers"),
    *("scope_words", "scope_writes", "scope_deletes"),
)


def simulated(provider: Provider, base: str) -> Provider | None:
    """Return the provider as the sandbox at `base` simulates it, or None if it does not.

    The sandbox has no host for each tenant, so it does not simulate providers with tenants.
    """
    if provider.sandbox is not None:
        return provider.at(base)
    api = f"{base}/apis/{provider.name}"
    about: dict[str, Any] = {name: getattr(provider, name) for name in _COPIED_FIELDS} | {
        "api": api
    }
    who = PersonProbe(url=f"{api}/me", id="id", label="login", name="name")
    token = f"{base}/oidc/token"
    if provider.tenants:
        return None
    if provider.key is not None:
        key = replace(provider.key, page=f"{base}/keys", status=200)
        return Provider(**about, key=key, person=who)
    if provider.service_account:
        return Provider(**about, token=token, service_account=True)
    if provider.exchange is not None:
        exchange = replace(provider.exchange, kind="token_exchange", matches=None, extra=())
        return Provider(
            **about,
            authorize=f"{base}/oidc/authorize",
            token=token,
            person=who,
            exchange=exchange,
        )
    return None
