"""A server of this project with a real provider, where people connect accounts and sign in."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from flows import elicit
from tests.oidc.env import (
    Guest,
    OpenIdProvider,
    bearer_of,
    real_time,
    registration,
    sign_in_for,
)
from tests.support.issuer import leave_to_sign_in
from tests.support.mcp_server import Page, Person, ServerEnv, new_server
from tests.support.oauth_env import OAuthEnv, oauth_env
from webapp.settings.identity import IdentitySettings, read_identity
from webapp.settings.table import Values

WORDS = "Only for the eyes of alice"


@asynccontextmanager
async def office(*providers: OpenIdProvider, **declared: Any) -> AsyncIterator[OAuthEnv]:
    """Run the application, registered at one provider as `acme`, or also at a second as `rival`."""
    names = ("acme", "rival")[: len(providers)]
    declarations = [
        each.declared(name, **declared) for name, each in zip(names, providers, strict=True)
    ]
    async with oauth_env(providers=declarations, clock=real_time(), played=False) as here:
        for name, each in zip(names, providers, strict=True):
            each.configure(clients=[our_settings(here, f"/callback/{name}")])
        yield here


def our_settings(here: OAuthEnv, *paths: str, **changes: Any) -> dict[str, Any]:
    """Return the application's registration at `acme`."""
    id, secret = here.settings.credentials["acme"]
    addresses = [f"{here.url}{path}" for path in paths]
    return registration(*addresses, **{"client_id": id, "client_secret": secret, **changes})


def served() -> object:
    server = new_server("mcp")

    @server.tool()
    async def visit() -> str:
        await elicit.url(WORDS, "https://shop.example/terms")
        return "done"

    return server


def known_at(
    acme: OpenIdProvider, more: Mapping[str, str] | None = None, **wanted: Any
) -> Callable[[str], IdentitySettings]:
    """Return a function that makes the sign-in settings for a server URL. `more` adds variables."""

    def who(url: str) -> IdentitySettings:
        values = Values({**sign_in_for(acme, url, **wanted), **(more or {})})
        found = read_identity(values)
        assert not values.problems
        return found

    return who


async def bearer(env: ServerEnv, guest: Guest, *, scope: str = "openid tools") -> dict[str, str]:
    got = await bearer_of(guest, env.mcp_url, scope=scope)
    return {"authorization": f"Bearer {got['access_token']}"}


async def sign_in(person: Person, page: Page, guest: Guest) -> Page:
    """Sign in as the guest from a page with a sign-in button, and return the last page."""
    back = await guest.walk(await leave_to_sign_in(person, page))
    returned = await person.visit(back)
    assert returned.status == 303, returned.text
    assert returned.location is not None
    return await person.visit(returned.location)
