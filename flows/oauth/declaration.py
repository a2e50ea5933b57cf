"""The declaration of a provider as data: its addresses, and where it differs from the standard.

Risks: a declaration weakens the flow unnoticed. `pkce` and `nonce` are the only checks that it can
turn off, and `declaration_checks` refuses both where nothing else protects the person.

A part of an address can be known later: the tenant's host, and members of the token's reply. Risks:
a tenant or a reply leads people, codes or access tokens to a stranger's host:
`evil.example#.myshopify.com`, a user name, a port, a look-alike. So the server never searches a
text for a host. The whole text must consist of ASCII labels and match a pattern of the declaration.
In a pattern, `*` stands for one label, and the end is a domain of the vendor.

A key in a query parameter appears in logs, errors and traces, which all write a request's URL. So
the URL that carries a key is written without the key. Or a redirect takes a key to another host:
httpx removes the Authorization header then, but no other header (see `BearerAuth`).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

import httpx
from msgspec import Struct

from flows.errors import InvalidQuestion
from flows.origin import is_origin, origin_of

AUTHORIZATION = "Authorization"
# Headers that each request sets itself; a declaration must not repeat them.
OUR_HEADERS = frozenset(
    {
        "accept",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "transfer-encoding",
        "user-agent",
    }
)
# Headers that cannot carry a key: a proxy or a client uses or removes them.
NO_KEY_HEADERS = (OUR_HEADERS - {"authorization"}) | {
    *("accept-encoding", "expect", "forwarded", "origin", "proxy-authorization", "range"),
    *("referer", "set-cookie", "te", "trailer", "upgrade", "via"),
}


class Carrier(Struct, frozen=True, kw_only=True):
    """A header with the token after its scheme, or the query parameter `query`."""

    header: str = AUTHORIZATION
    scheme: str = "Bearer"
    query: str | None = None

    def put(self, request: httpx.Request, token: str) -> None:
        """Add the token to the request, in place of one that it has already."""
        if self.query is None:
            request.headers[self.header] = self._value(token)
        else:
            request.url = _KeyedUrl(str(request.url), name=self.query, key=token)

    def _value(self, token: str) -> str:
        return f"{self.scheme} {token}" if self.scheme else token


class _KeyedUrl(httpx.URL):
    """A URL that is sent with a key in its query, and written without the key."""

    def __init__(self, url: str, *, name: str, key: str) -> None:
        super().__init__(httpx.URL(url).copy_set_param(name, key))
        self._shown = url

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"_KeyedUrl({self._shown!r})"


ClientAuth = Literal[
    "basic", "basic_raw", "both", "post", "none", "private_key_jwt", "client_secret_jwt"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonProbe:
    """The API request that returns whose account it is, with the members of its reply to read.

    A nested member is written with dots: `user.email`. A prefix "reply." names a member of the
    token endpoint's reply; if all members have it, no `url` is needed. If an id is only unique
    within a workspace, `id` names several members, the last of which is the person's own id. All
    members of `id` must be present, and those of `label` that are present are shown together. The
    prefix "callback." names a parameter of the callback, and `tenant` is the tenant's host.

    `post` is a JSON body, for a provider whose API needs POST instead of GET.
    """

    url: str | None = None
    id: str | tuple[str, ...]
    label: str | tuple[str, ...]
    name: str | None = None
    picture: str | None = None
    post: str | None = None

    def members(self) -> tuple[str, ...]:
        """Return the paths of all members that are read."""
        single = tuple(one for one in (self.name, self.picture) if one is not None)
        return (*paths_of(self.id), *paths_of(self.label), *single)


def paths_of(member: str | tuple[str, ...]) -> tuple[str, ...]:
    return (member,) if isinstance(member, str) else member


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """The way to revoke tokens at the provider.

    `form` is RFC 7009, and `json` the same in JSON. `delete` is a DELETE with Basic and JSON, and
    the address contains the client id as `{client_id}`. `bearer` is a POST with the access token
    in its Authorization header.
    """

    url: str
    kind: Literal["form", "json", "delete", "bearer"] = "form"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKey:
    """The keys of a provider that people make themselves and type on this server's page.

    `page` is the address where a person makes a key, and `label` its name there. Requests carry the
    key in `header`, after `prefix` (`Bearer` in the Authorization header, nothing in any other).
    `query` names a query parameter that carries it instead, for a provider that accepts no header.
    `user` is the label of the field for a user name. If it is set, the person types a user name and
    a password, which are sent as HTTP Basic.

    The request of the declaration's `person` tests each key before it is stored. `status` is the
    HTTP status of a reply that accepts the key.
    """

    page: str
    label: str = "API key"
    user: str | None = None
    header: str = "Authorization"
    prefix: str | None = None
    query: str | None = None
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExchange:
    """The exchange of a person's access token for one of the provider, so that nobody is asked.

    Only tokens of people of `issuer` are exchanged. `token_exchange` is RFC 8693 at the provider's
    token endpoint, `jwt_bearer` RFC 7523 there, and `id_jag` asks the issuer for an assertion that
    the provider accepts. `audience` and `resource` name what the token is for. `subject_type` is
    the end of the token type's URI. `matches` is the member of the `person` reply that has to equal
    the first claim by which the issuer's people are identified. `extra` are more parameters.
    """

    issuer: str
    kind: Literal["token_exchange", "jwt_bearer", "id_jag"] = "token_exchange"
    audience: str | None = None
    resource: str | None = None
    subject_type: Literal["access_token", "jwt", "id_token"] = "access_token"
    matches: str | None = None
    extra: tuple[tuple[str, str], ...] = ()


RefusalClass = Literal["ended", "client", "redirect", "passing", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRefusal:
    """A non-standard refusal of the token endpoint, and its meaning.

    A reply matches if it has everything that is named here: the HTTP `status`, the text or number
    `value` of the `member` (`error.code` for a nested one), and a part of the provider's
    `description`. `means` is `ended` (the refresh token has ended: the person has to connect
    again), `client` (client id or secret is wrong, which only the operator can correct) or
    `passing` (a temporary error that changes nothing).
    """

    status: int | None = None
    member: str = "error"
    value: str | None = None
    description: str | None = None
    means: Literal["ended", "client", "passing"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The fields of a provider's declaration.

    `tenants` are patterns of hosts, such as `*.example.com`, if each customer of the provider has
    a host. `{tenant}` stands for that host in the addresses. The tool names it, or the person
    types it where the page says `tenant_label`. All these hosts must belong to one vendor, because
    they share this server's registration. `tenant` is the host once it is known.

    `keep` maps names to members that are stored with the account as its details. A member's path
    is as in `PersonProbe`; "callback." begins a parameter of the callback, and "id_token." a claim.
    A detail's name in braces stands for its value in `api` and `api_hosts`. `hosts` are the
    patterns of the origins that result.

    `always` are scopes that are requested in addition to the tool's, mostly to find out whose
    account it is. `covers` lists the scopes that a scope includes. It also has the spelling of a
    scope in the provider's replies, if that differs. `unmentioned` are scopes that the replies
    leave out although they were granted. `scope_writes` are scopes that can change something, and
    `scope_deletes` those that can destroy it: pages mark these scopes, and every scope without
    `scope_words`. Without `person`, the person is read from the id_token, or with `nonce=False`
    from the userinfo endpoint.

    `issuer_tenants` are the ids of the tenants whose people may sign in, if `issuer` is a template
    with `{tenantid}`. `algorithms` are the accepted signatures of its tokens; all of
    `id_token.ALGORITHMS` if the list is empty. Only issuers where people sign in have these two.

    `refresh_unused_days` is the number of days after which an unused refresh token ends. The server
    uses the token before then. `refresh_token_expires_in` of a token reply takes precedence.
    `refresh` is the endpoint for refreshing if it is not `token`, and `rotates` means that a
    refresh ends the old pair of tokens. `manage` is the page where people remove a grant
    themselves.

    `key` describes API keys, for a provider without OAuth: people make a key there and type it
    here, which `elicit.api_key` asks for.

    With `service_account`, the account is this server's own at the provider (the client credentials
    grant, RFC 6749, 4.4): no person is asked, and `authorize` and `person` are not used.

    `exchange` declares how the server exchanges a person's own access token for a token of this
    provider.

    With `dpop`, each account's tokens are bound to a key of that account, and each request contains
    a proof that the server has this key (RFC 9449). `resource` is the address of the API that the
    tokens are for, if the provider requires it (RFC 8707).

    `extra` are parameters of the authorize address, `token_extra` of the request that redeems the
    code, and `refresh_extra` of a refresh. `switch` are authorize parameters that let the person
    choose another account. `lasting` are authorize parameters that are sent when the scope
    `offline_access` is requested. Both override `extra`, but `prompt` values are joined. `headers`
    are added to every request to the provider, and `user_agent` replaces the name of this library
    there. `token_types` are types of access tokens that are used as Bearer tokens, and
    `token_scheme` stands before a token in the Authorization header. `declines` are the provider's
    error codes for a person who declined. `troubles` are sentences for codes in its error
    descriptions, and `refusals` explain non-standard errors of its token endpoint.
    """

    name: str
    label: str
    tenants: tuple[str, ...] = ()
    tenant_label: str = "Its address there"
    tenant: str | None = None
    issuer: str | None = None
    issuer_tenants: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    sends_issuer: bool = False
    discovers: bool = False
    authorize: str | None = None
    token: str | None = None
    api: str
    api_hosts: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    keep: Mapping[str, str] = field(default_factory=dict[str, str], hash=False, repr=False)
    refresh: str | None = None
    rotates: bool = False
    refresh_unused_days: int | None = None
    revoke: Revocation | None = None
    manage: str | None = None
    device: str | None = None
    has_scopes: bool = True
    scope_parameter: str = "scope"
    scope_separator: str = " "
    reply_scope_separator: str = " "
    always: tuple[str, ...] = ()
    unmentioned: tuple[str, ...] = ()
    covers: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]], hash=False, repr=False
    )
    scope_words: Mapping[str, str] = field(default_factory=dict[str, str], hash=False, repr=False)
    scope_writes: tuple[str, ...] = ()
    scope_deletes: tuple[str, ...] = ()
    key: ProviderKey | None = None
    service_account: bool = False
    exchange: TokenExchange | None = None
    client_auth: ClientAuth = "basic"
    dpop: bool = False
    resource: str | None = None
    client_id_parameter: str = "client_id"
    pkce: bool = True
    nonce: bool = True
    response_mode: Literal["query", "form_post"] = "query"
    body: Literal["form", "json"] = "form"
    replies: Literal["json", "form"] = "json"
    token_path: tuple[str, ...] = ()
    token_types: tuple[str, ...] = ()
    token_scheme: str = "Bearer"  # noqa: S105  # the name of a scheme, not a token
    extra: tuple[tuple[str, str], ...] = ()
    token_extra: tuple[tuple[str, str], ...] = ()
    refresh_extra: tuple[tuple[str, str], ...] = ()
    switch: tuple[tuple[str, str], ...] = ()
    lasting: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    user_agent: str | None = None
    account_hint: str | None = None
    person: PersonProbe | None = None
    declines: tuple[str, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict[str, str], hash=False, repr=False)
    refusals: tuple[KnownRefusal, ...] = ()


# Addresses with a part that is known later.

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")
# TENANT_ID stands for the tenant in the issuer of a multi-tenant provider, such as Microsoft Entra.
# The metadata of SHARED_TENANT has the issuer with TENANT_ID instead of a tenant.
TENANT_ID, SHARED_TENANT = "{tenantid}", "organizations"
VALUE_AT_MOST = 2048  # characters of a member that is stored
HOST_AT_MOST = 253
_LABEL = r"(?!xn--)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST_PATTERN = re.compile(rf"(?:\*\.)*{_LABEL}(?:\.{_LABEL})+")


def host_pattern_fault(pattern: str) -> str | None:
    """Return why this pattern of hosts is not valid, or None. It can begin with `*` labels."""
    if len(pattern) <= HOST_AT_MOST and _HOST_PATTERN.fullmatch(pattern):
        return None
    return "must be a host, or *. and at least two labels, such as *.example.com."


def tenant_host(typed: str, patterns: Collection[str]) -> str:
    """Return the host of a tenant that a person or a tool named.

    The first label of a pattern is enough, and `https://` may stand before the host.

    Raises:
        InvalidQuestion: The text is not a host that matches a pattern.
    """
    text = typed.strip(" ")
    text = text.lower() if text.isascii() else ""
    host = text.removeprefix("https://").removesuffix("/")
    if re.fullmatch(_LABEL, host):
        host = next((f"{host}{one[1:]}" for one in patterns if one.startswith("*.")), host)
    if len(host) <= HOST_AT_MOST and any(_matches(host, one) for one in patterns):
        return host
    raise InvalidQuestion(f"The address must be like {' or '.join(patterns)}, and nothing else.")


def issuer_of_tenant(template: str, tenant: str) -> str:
    """Return the name of an issuer for one of its tenants."""
    return template.replace(TENANT_ID, tenant)


def placeholders(template: str) -> set[str]:
    return set(PLACEHOLDER.findall(template))


def filled(template: str, values: Mapping[str, str], *, hosts: Collection[str] = ()) -> str:
    """Return the address with its values. `hosts` are the patterns of origins that it may have.

    A value in the host is one label, or the tenant's verified host. If a template begins with a
    value, the value is a whole origin. Other values are percent-encoded, and lead to no parent
    folder.

    Raises:
        InvalidQuestion: A value is missing, or leads to another host.
    """
    if not placeholders(template):
        return template
    start = PLACEHOLDER.match(template)
    host_end = template.find("/", template.find("://") + 3) if start is None else start.end()
    host_end = len(template) if host_end < 0 else host_end

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise InvalidQuestion(f"The provider did not say {name}, which its address needs.")
        found = values[name]
        if match.start() >= host_end:
            return quote(found, safe="")
        if start is not None:
            return found.removesuffix("/")
        if name != "tenant" and not re.fullmatch(_LABEL, found):
            raise InvalidQuestion(f"{name} is not a part of a host name.")
        return found

    address = PLACEHOLDER.sub(value, template)
    head = PLACEHOLDER.sub(value, template[:host_end])
    if not is_origin(head) or origin_of(address) != head:
        raise InvalidQuestion("The provider named an address that is not an https origin.")
    if not {".", ".."}.isdisjoint(address.partition("?")[0].split("/")):
        raise InvalidQuestion("The provider named an address that leads to a parent folder.")
    if hosts and not any(_matches(head, one) for one in hosts):
        raise InvalidQuestion(f"{head} is not one of the provider's hosts.")
    return address


def _matches(text: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", _LABEL), text) is not None
