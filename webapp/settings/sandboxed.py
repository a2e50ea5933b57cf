"""The settings of a server whose sandbox simulates the providers that are not configured.

Built-in providers have a simulation of their own (`Provider.sandbox`). The sandbox also simulates
other providers that use API keys, service accounts or token exchange. These simulations follow the
standards and ignore the peculiarities of each provider.

Risks: a key or a person's token for the real provider reaches another host. So a simulated
declaration has only addresses of the sandbox, and copies only the fields in `_COPIED_FIELDS`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flows.oauth.declaration import PersonProbe
from flows.oauth.provider import Provider
from webapp.settings.settings import Settings

if TYPE_CHECKING:  # most servers have no sandbox
    from webapp.sandbox.settings import Sandbox


def with_sandbox(settings: Settings, sandbox: "Sandbox") -> Settings:
    """Return the settings with the sandbox in place of the providers that are not configured.

    The sandbox simulates account providers that have no credentials (among them all that use API
    keys, because people enter those keys), and payment providers if no merchant account is
    configured.

    Raises ValueError unless the server is on loopback.
    """
    if not settings.is_local:
        raise ValueError("The sandbox is for a server on this machine only.")
    played = {
        name: found
        for name, provider in settings.providers.items()
        if name not in settings.credentials
        and (found := simulated(provider, sandbox.url)) is not None
    }
    credentials = {
        name: (sandbox.client_id, sandbox.client_secret)
        for name, provider in played.items()
        if provider.key is None
    }
    return replace(
        settings,
        providers={**settings.providers, **played},
        credentials={**settings.credentials, **credentials},
        sellers=settings.sellers or sandbox.merchant_accounts(),
        sandbox_url=sandbox.url,
    )


_COPIED_FIELDS: Final = (
    *("name", "label", "has_scopes", "always", "unmentioned", "covers"),
    *("scope_words", "scope_writes", "scope_deletes"),
)


def simulated(provider: Provider, base: str) -> Provider | None:
    """Return the provider as the sandbox at `base` simulates it, or None if it cannot.

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
