"""Registrations: who we are at each provider.

What could go wrong: a key that goes to a provider of the same name at another place, such as a
sandbox. So what is kept is found by the place and our own id as well.
"""

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from flows.elicitation.states import Json
from flows.errors import Failed, InvalidQuestion, NotConfigured
from flows.oauth.provider import Client, Provider, as_data, provider_in
from webapp.missing_table import missing_table


class Clients:
    """`credentials` are our client ids and secrets by the provider's name."""

    def __init__(
        self,
        *,
        providers: Mapping[str, Provider],
        credentials: Mapping[str, tuple[str, str]],
        config: str,
    ) -> None:
        """`config` is how errors call the file that declares providers."""
        self._config = config
        self._providers = providers
        self._credentials = credentials
        self.clients: dict[str, Client] = {}
        self._learned: set[str] = set()  # as they were once; a tool that runs knows better
        for provider in providers.values():
            with suppress(NotConfigured):
                self._register(provider)

    def get(self, name: str) -> Client | None:
        """None if it is not configured any more."""
        return self.clients.get(name)

    def learn(self, declared: Json) -> None:
        """A provider that a tool's code has declared in another process, or before a restart."""
        name = declared.get("name") if isinstance(declared, Mapping) else None
        if isinstance(name, str) and name not in self.clients and name not in self._providers:
            with suppress(NotConfigured, InvalidQuestion, msgspec.ValidationError):
                self._register(provider_in(declared))
                self._learned.add(name)

    def declared(self, client: Client) -> Json:
        """Its declaration, where not every process has it."""
        known = self._providers.get(client.provider.name)
        return None if known == client.provider else as_data(client.provider)

    def provider(self, name: str) -> Provider | None:
        """As it is declared, whether or not we are registered there."""
        client = self.clients.get(name)
        return self._providers.get(name) if client is None else client.provider

    def of(self, provider: Provider | str) -> Client:
        """Raises NotConfigured, or Failed where two providers have one name."""
        if isinstance(provider, Provider):
            return self._register(self._providers.get(provider.name, provider))
        if provider not in self._providers:
            known = self._providers
            raise missing_table("providers", provider, known=known, config=self._config)
        return self._register(self._providers[provider])

    def _register(self, provider: Provider) -> Client:
        known = self.clients.get(provider.name)
        if known is not None and known.provider == provider:
            return known
        credentials = self._credentials.get(provider.name)
        if credentials is None:
            name = provider.name.upper()
            raise NotConfigured(
                f"ELICIT_{name}_CLIENT_ID",
                f"ELICIT_{name}_CLIENT_SECRET",
                has_none=not self._credentials,
            )
        client = Client(
            provider=provider,
            client_id=credentials[0],
            client_secret=credentials[1],
            is_operators=self._providers.get(provider.name) == provider,
        )
        if known is None or provider.name in self._learned:
            self._learned.discard(provider.name)
            self.clients[provider.name] = client
            return client
        raise Failed(f"Two providers are declared by the name {provider.name!r}.")


def place_of(client: Client) -> str:
    """The origin that the person is sent to, or by which it is found."""
    parts = urlsplit(client.provider.authorize or client.provider.issuer or "")
    return f"{parts.scheme}://{parts.netloc}"


def is_at_sandbox(client_id: str) -> bool:
    """Whether we are called so at a sandbox; an address on this machine may be anybody's."""
    return client_id.startswith("elicit-sandbox-")
