"""A server of this project with a real provider, at which accounts are connected."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.oidc.env import OpenIdProvider, real_time, registration
from tests.support.oauth_env import OAuthEnv, oauth_env


@asynccontextmanager
async def office(*providers: OpenIdProvider, **declared: Any) -> AsyncIterator[OAuthEnv]:
    """Run the application, registered at one provider as `acme`, or also at a second as `rival`."""
    names = ("acme", "rival")[: len(providers)]
    declarations = [
        each.declared(name, **declared) for name, each in zip(names, providers, strict=True)
    ]
    async with oauth_env(providers=declarations, clock=real_time(), played=False) as here:
        for name, each in zip(names, providers, strict=True):
            each.configure(clients=[ours(here, f"/callback/{name}")])
        yield here


def ours(here: OAuthEnv, *paths: str, **changes: Any) -> dict[str, Any]:
    """Return the application's registration at `acme`."""
    id, secret = here.settings.credentials["acme"]
    addresses = [f"{here.url}{path}" for path in paths]
    return registration(*addresses, client_id=id, client_secret=secret, **changes)
