"""The declaration of a provider: a service where people have accounts.

Risks: a declaration sends an access token to a wrong host. Every address is https (http on
loopback). Access tokens go only to the provider's `api_hosts`, also to find out whose account it
is, and to the addresses that are declared here for refreshing and revoking.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_type_hints

import msgspec

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.origin import is_origin, origin_of

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
LABEL_AT_MOST = 40
# Parameters that the flow itself adds to an authorize address; a declaration must not repeat them.
OUR_PARAMETERS = frozenset(
    {
        "client_id",
        "code_challenge",
        "code_challenge_method",
        "nonce",
        "redirect_uri",
        "request",
        "request_uri",
        "response_mode",
        "response_type",
        "scope",
        "state",
        "uri",
    }
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonProbe:
    """The API request that returns whose account it is, with the members of its reply to read.

    A nested member is written with dots: `user.email`. `post` is a JSON body, for a provider that
    needs POST instead of GET.
    """

    url: str
    id: str
    label: str
    name: str | None = None
    picture: str | None = None
    post: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """The way to revoke tokens at the provider.

    `form` is RFC 7009, and `json` the same in JSON. `delete` is a DELETE with Basic and JSON, and
    the address contains the client id as `{client_id}`. `bearer` is a POST with the access token
    in its Authorization header.
    """

    url: str
    kind: Literal["form", "json", "delete", "bearer"] = "form"


RefusalClass = Literal["ended", "client", "redirect", "passing", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRefusal:
    """A non-standard refusal of the token endpoint, and its meaning.

    A reply matches if it has everything that is named here: the HTTP `status`, the text or number
    `value` of the `member` (`error.code` for a nested one), and a part of the provider's
    `description`. `means` is `ended` (the refresh token has ended: the person has to connect
    again), `client` (client id or secret is wrong, which only the operator can correct) or
    `passing` (a temporary error without consequences).
    """

    status: int | None = None
    member: str = "error"
    value: str | None = None
    description: str | None = None
    means: Literal["ended", "client", "passing"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A service where people have accounts. Raises InvalidQuestion with a line for each fault.

    `always` are scopes that are requested in addition to the tool's, mostly to find out whose
    account it is. `covers` lists the scopes that a scope includes, or its other spelling in the
    provider's replies. `unmentioned` are scopes that the replies leave out although they were
    granted. `scope_writes` are scopes that can change something, and `scope_deletes` those that can
    destroy it: pages mark them, and a scope without `scope_words` too. Without `person`, the person
    is read from the id_token.

    `refresh` is the endpoint for refreshing if it is not `token`, and `rotates` means that a
    refresh ends the old pair of tokens. `manage` is the page where people remove a grant
    themselves. `switch` are authorize parameters that let the person choose another account, and
    `lasting` those for `offline_access`; both override `extra`, but `prompt` values are joined.
    `headers` are added to every request to the provider. `troubles` are sentences for codes in its
    error descriptions, and `refusals` explain non-standard errors of its token endpoint.
    """

    name: str
    label: str
    issuer: str | None = None
    sends_issuer: bool = False
    discovers: bool = False
    authorize: str | None = None
    token: str | None = None
    api: str
    api_hosts: tuple[str, ...] = ()
    refresh: str | None = None
    rotates: bool = False
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
    client_auth: Literal["basic", "post"] = "basic"
    body: Literal["form", "json"] = "form"
    replies: Literal["json", "form"] = "json"
    token_path: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    switch: tuple[tuple[str, str], ...] = ()
    lasting: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    account_hint: str | None = None
    person: PersonProbe | None = None
    troubles: Mapping[str, str] = field(default_factory=dict[str, str], hash=False, repr=False)
    refusals: tuple[KnownRefusal, ...] = ()
    sandbox: "Callable[[str], Provider] | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.api_hosts and not _fault_of(self.api):
            object.__setattr__(self, "api_hosts", (origin_of(self.api),))
        faults = [
            *self._naming_faults(),
            *self._finding_faults(),
            *self._address_faults(),
            *self._spelling_faults(),
            *self._parameter_faults(),
            *self._header_faults(),
            *self._refusal_faults(),
        ]
        if faults:
            raise InvalidQuestion("\n".join(faults))

    def risk_of(self, scope: str) -> Literal["read", "write", "delete"]:
        """Return what the scope can do at worst. A scope without words counts as a write."""
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

    def asks(self, scopes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the scopes to request for a tool's; none if the provider has no scopes."""
        return tuple(dict.fromkeys((*self.always, *scopes))) if self.has_scopes else ()

    def missing(self, scopes: tuple[str, ...], *, granted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the scopes that were granted neither by name nor by a scope that covers them."""
        if not self.has_scopes:
            return ()
        has = {*granted, *self.unmentioned}
        for scope in granted:
            has.update(self.covers.get(scope, ()))
        return tuple(scope for scope in scopes if scope not in has)

    def granted(self, asked: tuple[str, ...], *, said: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the granted scopes: `asked` if the reply names no scopes (`said` is None)."""
        if said is None:
            return asked
        missing = self.missing(asked, granted=said)
        return tuple(dict.fromkeys((*said, *(scope for scope in asked if scope not in missing))))

    def _naming_faults(self) -> list[str]:
        faults: list[str] = []
        if not NAME.fullmatch(self.name):
            faults.append(
                "name: must be 1 to 32 characters of a-z, 0-9 and _, and begin with a letter."
            )
        if not self.label.strip() or len(self.label) > LABEL_AT_MOST or not _is_plain(self.label):
            faults.append(f"label: must be 1 to {LABEL_AT_MOST} visible characters.")
        return faults

    def _finding_faults(self) -> list[str]:
        """Return what is missing for finding the endpoints, and for knowing whose account it is."""
        faults: list[str] = []
        if self.sends_issuer and self.issuer is None:
            faults.append("issuer: required, to compare with the issuer that the provider sends.")
        if not self.discovers:
            faults += [
                f"{key}: required, because there is no issuer to discover it from."
                for key in ("authorize", "token", "person")
                if getattr(self, key) is None
            ]
            return faults
        if self.issuer is None:
            faults.append("issuer: required, to discover the provider's endpoints.")
        if self.authorize is not None or self.token is not None:
            faults.append("authorize, token: leave them out, because the issuer publishes them.")
        if self.person is None and "openid" not in self.always:
            faults.append(
                'always: add "openid", or set person, so that the server knows whose account it is.'
            )
        return faults

    def _address_faults(self) -> list[str]:
        faults: list[str] = []
        for key in ("issuer", "authorize", "token", "api", "refresh", "manage", "device"):
            address: str | None = getattr(self, key)
            if address is not None and (fault := _fault_of(address)):
                faults.append(f"{key}: {fault}")
        if self.issuer is not None and ("?" in self.issuer or "#" in self.issuer):
            faults.append("issuer: must have no query and no fragment.")
        if self.authorize is not None and "#" in self.authorize:
            faults.append("authorize: must have no fragment.")
        faults += [
            f"api_hosts: {_fault_of(host) or 'each must be scheme://host, without a path.'}"
            for host in self.api_hosts
            if _fault_of(host) or not is_origin(host)
        ]
        return [*faults, *self._probe_faults(), *self._revocation_faults()]

    def _probe_faults(self) -> list[str]:
        if self.person is None:
            return []
        if fault := _fault_of(self.person.url):
            return [f"person.url: {fault}"]
        if origin_of(self.person.url) not in self.api_hosts:
            return [
                (
                    "person.url: its host is not in api_hosts. The server sends an access token "
                    "only to the hosts in api_hosts, so add it there."
                )
            ]
        if self.person.post is not None and not _is_json(self.person.post):
            return ["person.post: must be JSON."]
        return []

    def _revocation_faults(self) -> list[str]:
        if self.revoke is None:
            return []
        url, kind = self.revoke.url.replace("{client_id}", "id"), self.revoke.kind
        if fault := _fault_of(url):
            return [f"revoke: {fault}"]
        if kind not in ("form", "json", "delete", "bearer"):
            return ["revoke: kind must be form, json, delete or bearer."]
        if kind == "bearer" and origin_of(url) not in self.api_hosts:
            return [
                (
                    "revoke: its host is not in api_hosts. The server sends an access token only "
                    "to the hosts in api_hosts, so add it there."
                )
            ]
        return []

    def _spelling_faults(self) -> list[str]:
        faults = [
            f"{key}: it must be {' or '.join(allowed)}."
            for key, allowed in (
                ("client_auth", ("basic", "post")),
                ("body", ("form", "json")),
                ("replies", ("json", "form")),
                ("scope_parameter", ("scope", "user_scope")),
            )
            if getattr(self, key) not in allowed
        ]
        faults += [
            f"{key}: must be one character."
            for key in ("scope_separator", "reply_scope_separator")
            if len(getattr(self, key)) != 1
        ]
        faults += [
            f"{key}: a scope must be ASCII characters without spaces (RFC 6749, 3.3)."
            for key in ("always", "unmentioned")
            if not all(SCOPE.fullmatch(scope) for scope in getattr(self, key))
        ]
        return faults

    def _parameter_faults(self) -> list[str]:
        faults: list[str] = []
        hint = [] if self.account_hint is None else [self.account_hint]
        for key, named in (
            ("extra", [*(name for name, _ in self.extra), *hint]),
            ("switch", [name for name, _ in self.switch]),
            ("lasting", [name for name, _ in self.lasting]),
        ):
            reserved = sorted((OUR_PARAMETERS | {self.scope_parameter}) & set(named))
            if reserved:
                faults.append(
                    f"{key}: {', '.join(reserved)} is set by the server itself; leave it out."
                )
            if len(set(named)) < len(named):
                faults.append(f"{key}: a parameter is listed twice.")
        return faults

    def _header_faults(self) -> list[str]:
        named = [name.lower() for name, _ in self.headers]
        if OUR_HEADERS & set(named):
            return ["headers: the server sets one of these headers itself; leave it out."]
        if len(set(named)) < len(named):
            return ["headers: a header is listed twice."]
        if not all(
            HEADER.fullmatch(name) and value.isascii() and _is_plain(value)
            for name, value in self.headers
        ):
            return [
                "headers: a name must be letters, digits and -, and a value must be plain ASCII."
            ]
        return []

    def _refusal_faults(self) -> list[str]:
        faults: list[str] = []
        for known in self.refusals:
            if known.means not in ("ended", "client", "passing"):
                faults.append("refusals: means must be ended, client or passing.")
            if (known.status, known.value, known.description) == (None, None, None):
                faults.append("refusals: each entry needs a status, a value or a description.")
        return faults


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


_NOT_KEPT = frozenset({"sandbox"})
_HINTS = {name: hint for name, hint in get_type_hints(Provider).items() if name not in _NOT_KEPT}


def as_data(provider: Provider) -> Json:
    """Return a declaration as JSON data without its default values, to store with a question.

    Only the process that ran a tool knows a provider that the tool's code declares. Other
    processes need the stored declaration to complete the flow and to revoke the grant. A
    declaration contains no secret.
    """
    data: dict[str, Json] = {}
    for each in fields(provider):
        value = getattr(provider, each.name)
        default = each.default if each.default is not MISSING else None
        if each.name not in _NOT_KEPT and value not in (default, (), {}):
            data[each.name] = msgspec.to_builtins(value)
    return data


def provider_in(data: Json) -> Provider:
    """Return the provider that `as_data` made this data from.

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


def _fault_of(address: str) -> str | None:
    try:
        origin_of(address)
    except InvalidQuestion as error:
        return str(error)
    return None


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True


def _is_plain(text: str) -> bool:
    return text.isprintable() and text == text.strip()
