"""The declaration of a provider as data: its addresses, and its differences from the standard.

An address can have placeholders. The server replaces them later, with the tenant's host or with
values from the token response.

Risks:
- A declaration turns off a check of the flow. Only PKCE (`pkce`) and the nonce (`nonce`) can be
  turned off, and `declaration_checks` refuses this if no other check protects the person.
- The value of a placeholder sends people, codes or access tokens to a stranger's host. Examples are
  `evil.example#.myshopify.com`, a user name, a port and a look-alike. So the server does not
  extract a host from a longer text. The complete text must consist of ASCII labels and match a
  pattern of the declaration. In a pattern, `*` stands for one label, and the end is a domain of the
  vendor.
- An API key in a query parameter appears in logs, errors and traces, because they contain the URLs
  of requests. So the text of such a URL does not contain the key (`_KeyedUrl`).
- A redirect sends an API key to another host. On a redirect to another host, httpx removes only the
  Authorization header (see `BearerAuth`).
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
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
# Headers that must not carry an API key, because proxies or HTTP clients set or remove them.
NO_KEY_HEADERS = (OUR_HEADERS - {"authorization"}) | {
    *("accept-encoding", "expect", "forwarded", "origin", "proxy-authorization", "range"),
    *("referer", "set-cookie", "te", "trailer", "upgrade", "via"),
}


class Carrier(Struct, frozen=True, kw_only=True):
    """The place of a token in a request.

    If `query` is None, the token is in the header `header`, after `scheme`. Otherwise, the token is
    in the query parameter `query`.
    """

    header: str = AUTHORIZATION
    scheme: str = "Bearer"
    query: str | None = None

    def put(self, request: httpx.Request, token: str) -> None:
        """Add the token to the request. Replace a token that the request already has."""
        if self.query is None:
            request.headers[self.header] = self._value(token)
        else:
            request.url = _KeyedUrl(str(request.url), name=self.query, key=token)

    def _value(self, token: str) -> str:
        return f"{self.scheme} {token}" if self.scheme else token


class _KeyedUrl(httpx.URL):
    """A URL with a key in its query. `str()` and `repr()` return the URL without the key."""

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
    """The API request that identifies the person, and the paths of the members in its reply.

    A path names a nested member with dots, such as `user.email`. The prefix "reply." names a member
    of the token endpoint's reply, "callback." a parameter of the callback, and "id_token." a claim.
    The path `tenant` stands for the tenant's host. If no path names a member of the API's reply,
    `url` can be None.

    Attributes:
        url: The address of the API request.
        id: The path of the person's id, which must be present. If the id is unique only within a
            workspace, write several paths, and the path of the person's own id last. All must be
            present.
        label: The path of the text that pages show. If there are several paths, pages show all
            values that are present.
        post: The JSON body of a POST request. If it is None, the request is a GET.
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
    """The request that revokes tokens at the provider.

    Each `kind` is a different request:

    - `form`: a POST as in RFC 7009.
    - `json`: the same POST with a JSON body.
    - `delete`: a DELETE with HTTP Basic and a JSON body. `{client_id}` in `url` stands for the
      client id.
    - `bearer`: a POST with the access token in the Authorization header.
    """

    url: str
    kind: Literal["form", "json", "delete", "bearer"] = "form"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKey:
    """The API keys of a provider. A person creates a key there and types it on this server's page.

    The request in `person` of the declaration tests each key before the key is stored.

    Attributes:
        page: The address of the provider's page where people create keys.
        label: The provider's name for a key.
        user: The label of the field for a user name. If it is set, the person types a user name and
            a password, and the server sends them as HTTP Basic.
        header: The header that contains the key.
        prefix: The text before the key in the header. None stands for `Bearer` in the Authorization
            header, and for no text in other headers.
        query: The query parameter that contains the key, if the provider accepts no header.
        status: The HTTP status of the test request's reply if the key is valid.
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
    """The exchange of a person's access token for a token of the provider, without a question.

    Attributes:
        issuer: The issuer whose tokens the server exchanges. It exchanges no other tokens.
        kind: The protocol. `token_exchange` is RFC 8693 and `jwt_bearer` is RFC 7523, both at the
            provider's token endpoint. With `id_jag`, the server gets an assertion from the issuer,
            and redeems it at the provider.
        audience: The `audience` parameter: the name of the API that the token is for.
        resource: The `resource` parameter: the address of the API that the token is for.
        subject_type: The end of the URI of the person's token type.
        matches: The member of the `person` reply that must be equal to the first of the claims that
            identify people at the issuer.
        extra: More parameters of the token request.
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

    A reply matches if all values that are set here match.

    Attributes:
        status: The HTTP status.
        member: The member of the reply that contains `value`, such as `error.code`.
        value: The text or number of the member.
        description: A part of the provider's error description.
        means: The meaning. `ended`: the refresh token has expired, so the person has to connect
            again. `client`: the client id or secret is wrong, and only the operator can correct it.
            `passing`: a temporary error.
    """

    status: int | None = None
    member: str = "error"
    value: str | None = None
    description: str | None = None
    means: Literal["ended", "client", "passing"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The fields of a provider's declaration.

    Tenants: if each customer of the provider has a host, `tenants` are patterns of these hosts,
    such as `*.example.com`. All these hosts must belong to one vendor, because they share this
    server's registration. `{tenant}` in an address stands for the host. Either the tool passes the
    host, or the person types the host in a field with the label `tenant_label`. The field `tenant`
    then contains the host.

    Details: the server stores details with an account. `keep` maps the name of each detail to a
    path as in `PersonProbe`. In `api` and `api_hosts`, a detail's name in braces stands for its
    value. `hosts` are the patterns of the origins that such addresses may have.

    Scopes: the server requests `always` in addition to the tool's scopes, mostly to identify the
    person. `covers` lists the scopes that a scope includes. If the provider's replies spell a scope
    differently, `covers` maps that spelling to the declared scope. `unmentioned` are scopes that
    the provider grants without listing them in its replies. `scope_words` describe scopes for
    people. Pages mark a scope that can change something (`scope_writes`) or destroy something
    (`scope_deletes`), and a scope without a description.

    Person: `person` is the API request that identifies the person. If it is None, the person is
    read from the id_token, or from the userinfo endpoint if `nonce` is False.

    Sign-in: only issuers where people sign in have `issuer_tenants` and `algorithms`. If `issuer`
    is a template with `{tenantid}`, `issuer_tenants` are the ids of the tenants whose people may
    sign in. `algorithms` are the accepted signature algorithms of the issuer's tokens. If
    `algorithms` is empty, all of `id_token.ALGORITHMS` are accepted.

    Refresh tokens: an unused refresh token expires after `refresh_unused_days`, so the server uses
    the token before then. `refresh_token_expires_in` in a token reply takes precedence. `refresh`
    is the endpoint for refreshing, if it is not `token`. With `rotates`, a refresh ends the
    previous pair of tokens.

    `manage` is the provider's page where people remove a grant.

    `key` describes the API keys of a provider without OAuth, which `elicit.api_key` asks for.

    With `service_account`, the account is this server's own at the provider (the client credentials
    grant, RFC 6749, 4.4): no person is asked, and `authorize` and `person` are not used.

    `exchange` declares how the server exchanges a person's own access token for a token of this
    provider.

    With `dpop`, each account's tokens are bound to a key of that account, and each request contains
    a proof that the server has this key (RFC 9449). `resource` is the address of the API that the
    tokens are for, if the provider requires it (RFC 8707).

    More parameters of requests:

    - `extra`: of the authorize address.
    - `token_extra`: of the request that redeems the code.
    - `refresh_extra`: of a refresh.
    - `switch`: of the authorize address, to let the person choose another account.
    - `lasting`: of the authorize address, if the scope `offline_access` is requested.

    `switch` and `lasting` override `extra`, but values of `prompt` are joined.

    `headers` are added to every request to the provider. `user_agent` replaces this library's name
    in the User-Agent header. `token_types` are the provider's names of token types that the server
    uses as Bearer tokens. `token_scheme` is the scheme before a token in the Authorization header.

    `declines` are the provider's error codes for a person who declined. `troubles` maps codes in
    the provider's error descriptions to sentences for people. `refusals` explain non-standard
    errors of its token endpoint.
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
# In the metadata of SHARED_TENANT, the issuer contains TENANT_ID in place of a tenant's id.
TENANT_ID, SHARED_TENANT = "{tenantid}", "organizations"
VALUE_AT_MOST = 2048  # characters of a member that is stored
HOST_AT_MOST = 253
_LABEL = r"(?!xn--)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST_PATTERN = re.compile(rf"(?:\*\.)*{_LABEL}(?:\.{_LABEL})+")


def host_pattern_fault(pattern: str) -> str | None:
    """Return why this pattern of hosts is not valid, or None. It may begin with `*` labels."""
    if len(pattern) <= HOST_AT_MOST and _HOST_PATTERN.fullmatch(pattern):
        return None
    return "must be a host, or *. and at least two labels, such as *.example.com."


def tenant_host(typed: str, patterns: Collection[str]) -> str:
    """Return the host of a tenant that a person or a tool named.

    The text can be the complete host, with or without `https://`. If a pattern begins with `*.`,
    the text can also be only the first label.

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


# The fields that are addresses. Only `api` may contain placeholders for the values of `keep`.
ADDRESSES = ("issuer", "authorize", "token", "refresh", "manage", "device", "resource", "api")


def with_addresses(provider: Declaration, change: Callable[[str], str]) -> dict[str, Any]:
    """Return the fields that are or have addresses, with each address changed."""
    person, revoke, key = provider.person, provider.revoke, provider.key
    found: dict[str, Any] = {"api_hosts": tuple(map(change, provider.api_hosts))}
    found |= {
        name: change(address)
        for name in ADDRESSES
        if (address := getattr(provider, name)) is not None
    }
    if person is not None and person.url is not None:
        found["person"] = replace(person, url=change(person.url))
    if revoke is not None:
        found["revoke"] = replace(revoke, url=change(revoke.url))
    if key is not None:
        found["key"] = replace(key, page=change(key.page))
    return found


def placeholders(template: str) -> set[str]:
    return set(PLACEHOLDER.findall(template))


def filled(template: str, values: Mapping[str, str], *, hosts: Collection[str] = ()) -> str:
    """Replace the placeholders of an address. `hosts` are the patterns of the allowed origins.

    A value in the host must be one label, or the tenant's verified host. If the template begins
    with a placeholder, the value must be a complete origin. All other values are percent-encoded.

    Raises:
        InvalidQuestion: A value is missing, or the address leads to another host or has a path
            with `.` or `..`.
    """
    if not placeholders(template):
        return template
    start = PLACEHOLDER.match(template)
    host_end = template.find("/", template.find("://") + 3) if start is None else start.end()
    host_end = len(template) if host_end < 0 else host_end

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise InvalidQuestion(f"The provider did not say {name}, which is part of its address.")
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
