"""The declaration of a provider: a service where people have accounts.

Risks: a declaration makes the server send an access token to a wrong host. Every address must
therefore be https (http on loopback). The server sends access tokens only to the provider's
`api_hosts`, and to the declared addresses for refreshing and revoking. The request that identifies
the account's person can go only to `api_hosts`, too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

import msgspec

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.oauth.declaration import (
    AUTHORIZATION,
    Carrier,
    Declaration,
    KnownRefusal,
    PersonProbe,
    ProviderKey,
    RefusalClass,
    Revocation,
    TokenExchange,
    filled,
    issuer_of_tenant,
    placeholders,
    tenant_host,
    with_addresses,
)
from flows.oauth.declaration_checks import (
    NAME,
    OUR_PARAMETERS,
    SCOPE,
    fault_of,
    faults_of,
)
from flows.origin import origin_of

__all__ = [
    "NAME",
    "OUR_PARAMETERS",
    "SCOPE",
    "Client",
    "KnownRefusal",
    "PersonProbe",
    "Provider",
    "ProviderKey",
    "RefusalClass",
    "Revocation",
    "TokenExchange",
    "as_data",
    "provider_in",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider(Declaration):
    """A service where people have accounts. Raises InvalidQuestion with a line for each fault."""

    sandbox: "Callable[[str], Provider] | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.api_hosts and not placeholders(self.api) and not fault_of(self.api):
            object.__setattr__(self, "api_hosts", (origin_of(self.api),))
        if self.key is not None:  # a key has no scopes
            object.__setattr__(self, "has_scopes", False)
        if faults := faults_of(self):
            raise InvalidQuestion("\n".join(faults))

    def risk_of(self, scope: str) -> Literal["read", "write", "delete"]:
        """Return the most harmful action that the scope allows.

        A scope that has no description in `scope_words` counts as a write.
        """
        if scope in self.scope_deletes:
            return "delete"
        is_read = scope in self.scope_words and scope not in self.scope_writes
        return "read" if is_read else "write"

    def at(self, base: str) -> "Provider":
        """Return the declaration of this provider as the sandbox at origin `base` simulates it.

        Raises:
            InvalidQuestion: The sandbox does not simulate this provider.
        """
        if self.sandbox is None:
            raise InvalidQuestion(f"The sandbox cannot simulate {self.label}.")
        return self.sandbox(base)

    def for_tenant(self, tenant: str) -> "Provider":
        """Return the declaration of this provider with the addresses of one tenant.

        `tenant` is the tenant's host. It may be a text that a person typed.

        Raises:
            InvalidQuestion: The provider has no tenants, or `tenant` is not a host of a tenant.
        """
        if not self.tenants:
            raise InvalidQuestion(f"{self.label} has no tenants. Do not set tenant.")
        host = tenant_host(tenant, self.tenants)
        changed = with_addresses(self, lambda one: one.replace("{tenant}", host))
        return replace(self, tenants=(), tenant=host, **changed)

    @property
    def carrier(self) -> Carrier:
        """The place in a request that carries an account's access token or key."""
        key = self.key
        if key is None:
            return Carrier(scheme=self.token_scheme)
        if key.user is not None:
            return Carrier(scheme="Basic")
        prefix = "Bearer" if key.header.title() == AUTHORIZATION else ""
        scheme = prefix if key.prefix is None else key.prefix
        return Carrier(header=key.header, scheme=scheme, query=key.query)

    @property
    def manage_page(self) -> str | None:
        """The page of the provider where people change or remove what they granted."""
        return self.manage or (None if self.key is None else self.key.page)

    def api_and_hosts(self, details: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        """Return the API's address and the hosts that its access token is sent to.

        Raises:
            InvalidQuestion: A detail is missing, or leads to a host that is not declared.
        """
        api = filled(self.api, details, hosts=self.hosts)
        hosts = tuple(filled(one, details, hosts=self.hosts) for one in self.api_hosts)
        return api, hosts or (origin_of(api),)

    def scopes_to_request(self, scopes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the scopes to request if a tool needs `scopes`. Empty if the provider has none."""
        return tuple(dict.fromkeys((*self.always, *scopes))) if self.has_scopes else ()

    def scope_parameters(self, scopes: tuple[str, ...]) -> Mapping[str, str]:
        """Return the parameter of a request that names the scopes, if there are any."""
        return {self.scope_parameter: self.scope_separator.join(scopes)} if scopes else {}

    @property
    def issuers(self) -> Mapping[str, str | None]:
        """The values that the claim `iss` of the issuer's tokens can have, each with its tenant.

        The tenant is None if the issuer has no tenants.
        """
        if self.issuer is None or not self.issuer_tenants:
            return {} if self.issuer is None else {self.issuer: None}
        return {issuer_of_tenant(self.issuer, one): one for one in self.issuer_tenants}

    def issuer_among(self, name: object) -> str | None:
        """Return `name` if it is one of `issuers`, else the declared issuer."""
        return name if isinstance(name, str) and name in self.issuers else self.issuer

    def keys_from(
        self, keys: Sequence[Mapping[str, Any]], *, issuer: str
    ) -> list[Mapping[str, Any]]:
        """Return the keys that may sign tokens whose claim `iss` is `issuer`.

        If an issuer has several tenants, a key's member `issuer` can name the tenant of the key.
        """
        tenant = self.issuers.get(issuer)
        if tenant is None:
            return list(keys)
        named = ((key, key.get("issuer", self.issuer)) for key in keys)
        return [
            key
            for key, name in named
            if isinstance(name, str) and issuer_of_tenant(name, tenant) == issuer
        ]

    @property
    def resource_parameter(self) -> Mapping[str, str]:
        """The parameter `resource`, which names the API to request tokens for (RFC 8707)."""
        return {} if self.resource is None else {"resource": self.resource}

    def missing(self, scopes: tuple[str, ...], *, granted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the scopes of `scopes` that are missing in the grant.

        A scope counts as granted if the grant names it or a scope that covers it. Scopes that the
        provider never names in a grant (`unmentioned`) also count as granted.
        """
        if not self.has_scopes:
            return ()
        has = {*granted, *self.unmentioned}
        for scope in granted:
            has.update(self.covers.get(scope, ()))
        return tuple(scope for scope in scopes if scope not in has)

    def granted(self, asked: tuple[str, ...], *, named: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the granted scopes.

        If the reply names no scopes (`named` is None), return `asked`. Otherwise return the named
        scopes, and those of `asked` that `missing` counts as granted.
        """
        if named is None:
            return asked
        missing = self.missing(asked, granted=named)
        return tuple(dict.fromkeys((*named, *(scope for scope in asked if scope not in missing))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """This server's own OAuth registration at a provider.

    `is_operators` is True if the provider is built in or in the operator's own file. Otherwise a
    tool's code declares the addresses, perhaps from a model's output.
    """

    provider: Provider
    client_id: str
    client_secret: str = field(repr=False)
    is_operators: bool = field(default=True, compare=False)

    def for_tenant(self, tenant: str | None) -> "Client":
        """Return this client at a tenant's host, or this client if the provider has no tenants.

        Raises:
            InvalidQuestion: The provider has tenants and `tenant` is missing, or `tenant` is not a
                host of a tenant.
        """
        if tenant is None and not self.provider.tenants:
            return self
        return replace(self, provider=self.provider.for_tenant(tenant or ""))


_NOT_STORED = frozenset({"sandbox"})
_HINTS = {name: hint for name, hint in get_type_hints(Provider).items() if name not in _NOT_STORED}


def as_data(provider: Provider) -> Json:
    """Return a declaration as JSON data without its default values, to store with a question.

    If a tool's code declares a provider, only the process that ran the tool knows the provider.
    Other processes read the stored declaration to complete the flow and to revoke the grant. A
    declaration contains no secret.
    """
    data: dict[str, Json] = {}
    for each in fields(provider):
        value = getattr(provider, each.name)
        default = each.default if each.default is not MISSING else None
        if each.name not in _NOT_STORED and value not in (default, (), {}):
            data[each.name] = msgspec.to_builtins(value)
    return data


def provider_in(data: Json) -> Provider:
    """Return the provider that `as_data` converted to this data.

    Raises:
        InvalidQuestion: The declaration has faults.
        msgspec.ValidationError: A value has the wrong type.
    """
    known: dict[str, Any] = {
        name: msgspec.convert(value, _HINTS[name])
        for name, value in (data.items() if isinstance(data, Mapping) else ())
        if name in _HINTS
    }
    return Provider(**known)
