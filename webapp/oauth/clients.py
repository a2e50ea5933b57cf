"""This server's OAuth clients at each provider.

Risks: a token is sent to a provider of the same name at another origin, such as a sandbox. So
stored accounts are found by the origin and the client id as well.
"""

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from flows.elicitation.states import Json
from flows.errors import Failed, InvalidQuestion, NotConfigured
from flows.oauth.client_assertion import key_fault
from flows.oauth.provider import Client, Provider, as_data, provider_in
from flows.providers.catalogue import CATALOGUE
from webapp.elicitations.question_kind import missing_table


class Clients:
    """The OAuth clients by provider. `credentials` are client ids and secrets by provider name."""

    def __init__(
        self,
        *,
        providers: Mapping[str, Provider],
        credentials: Mapping[str, tuple[str, str]],
        config: str,
    ) -> None:
        """`config` is the name of the file that declares providers, for errors."""
        self._config = config
        self._providers = providers
        self._credentials = credentials
        self.clients: dict[str, Client] = {}
        self._learned: set[str] = set()  # registered by `learn`; a running tool may replace them
        for provider in providers.values():
            with suppress(NotConfigured):
                self._register(provider)

    def get(self, name: str) -> Client | None:
        """Return the client, or None if it is no longer configured."""
        return self.clients.get(name)

    def learn(self, declared: Json) -> None:
        """Register a provider that a tool declared in another process, or before a restart."""
        name = declared.get("name") if isinstance(declared, Mapping) else None
        if isinstance(name, str) and name not in self.clients and name not in self._providers:
            with suppress(NotConfigured, InvalidQuestion, msgspec.ValidationError):
                self._register(provider_in(declared))
                self._learned.add(name)

    def declared(self, client: Client) -> Json:
        """Return the provider's declaration, or None if it is in every process's configuration."""
        known = self._providers.get(client.provider.name)
        return None if known == client.provider else as_data(client.provider)

    def provider(self, name: str) -> Provider | None:
        """Return the declared provider, whether or not this server is registered there."""
        client = self.clients.get(name)
        return self._providers.get(name) if client is None else client.provider

    def of(self, provider: Provider | str) -> Client:
        """Return the client at the provider.

        Raises:
            NotConfigured: The provider or the client's credentials are not configured.
            Failed: Two providers have the same name.
        """
        if isinstance(provider, Provider):
            return self._register(self._providers.get(provider.name, provider))
        # The built-in providers are not in `_providers`, so that a tool can declare its own
        # provider with the name of a built-in one.
        declared = self._providers.get(provider) or CATALOGUE.get(provider)
        if declared is None:
            known = {**CATALOGUE, **self._providers}
            raise missing_table("providers", provider, known=known, config=self._config)
        return self._register(declared)

    def _register(self, provider: Provider) -> Client:
        known = self.clients.get(provider.name)
        if known is not None and known.provider == provider:
            return known
        # Each person enters their own API key for such a provider, so this server needs no client
        # id or secret there.
        keyless = None if provider.key is None else ("", "")
        credentials = keyless or self._credentials.get(provider.name)
        if credentials is None:
            name = provider.name.upper()
            raise NotConfigured(
                f"ELICIT_{name}_CLIENT_ID",
                f"ELICIT_{name}_CLIENT_SECRET",
                has_none=not self._credentials,
            )
        fault = key_fault(credentials[1], client_auth=provider.client_auth)
        if fault is not None:
            raise Failed(f"ELICIT_{provider.name.upper()}_CLIENT_SECRET {fault}")
        client = Client(
            provider=provider,
            client_id=credentials[0],
            client_secret=credentials[1],
            is_operators=provider
            in (self._providers.get(provider.name), CATALOGUE.get(provider.name)),
        )
        if known is None or provider.name in self._learned:
            self._learned.discard(provider.name)
            self.clients[provider.name] = client
            return client
        raise Failed(
            f"Two providers are declared with the name {provider.name!r}. Give each provider its "
            "own name."
        )


def place_of(client: Client) -> str:
    """Return the origin that people are sent to, or else the issuer's origin.

    The origin is the same for all tenants of a provider: `{tenant}` replaces the tenant's host.
    """
    tenant = client.provider.tenant
    origin = _origin_of(client)
    return origin if tenant is None else origin.replace(tenant, "{tenant}", 1)


def origins_of(client: Client) -> tuple[str, ...]:
    """Return the origins to show to people, with `*` in them while the tenant is unknown."""
    if not client.provider.tenants:
        return (_origin_of(client),)
    return tuple(_origin_of(client).replace("{tenant}", one) for one in client.provider.tenants)


def _origin_of(client: Client) -> str:
    provider = client.provider
    own = provider.api if provider.key is not None else ""
    parts = urlsplit(provider.authorize or provider.issuer or own or provider.token or "")
    return f"{parts.scheme}://{parts.netloc}"


def is_at_sandbox(client_id: str) -> bool:
    """Return True if a sandbox issued the client id.

    A provider's address on this machine does not prove that it is a sandbox.
    """
    return client_id.startswith("elicit-sandbox-")
