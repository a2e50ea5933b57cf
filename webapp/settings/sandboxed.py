"""The settings of a server whose sandbox simulates the providers that are not configured."""

from dataclasses import replace
from typing import TYPE_CHECKING

from flows.providers.simulated import simulated
from webapp.settings.settings import Settings

if TYPE_CHECKING:  # most servers have no sandbox
    from webapp.sandbox.settings import Sandbox


def with_sandbox(settings: Settings, sandbox: "Sandbox") -> Settings:
    """Return the settings with the sandbox in place of the providers that are not configured.

    The sandbox simulates account providers that have no credentials (among them all with API
    keys, which people bring), and payment providers if no
    merchant account is configured.

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
