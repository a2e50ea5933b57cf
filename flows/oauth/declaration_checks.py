"""The checks of a provider's declaration: a sentence for each fault, with the field's name.

Risks: a declaration sends an access token to a wrong host, repeats a parameter that the flow sets
itself, or turns off a check that nothing else replaces.
"""

import re
from dataclasses import fields
from typing import get_args
from urllib.parse import urlsplit

import msgspec

from flows.errors import InvalidQuestion
from flows.oauth.declaration import (
    ADDRESSES,
    NO_KEY_HEADERS,
    OUR_HEADERS,
    PLACEHOLDER,
    SHARED_TENANT,
    TENANT_ID,
    ClientAuth,
    Declaration,
    host_pattern_fault,
    issuer_of_tenant,
    paths_of,
    placeholders,
    with_addresses,
)
from flows.origin import is_origin, origin_of
from flows.shown import looks_of

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_TENANT = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
LABEL_AT_MOST = 40
WORDS_AT_MOST = 200  # characters of the words that describe a scope
# Prefixes of member paths that are read from the token response, the callback or the ID token, and
# not from the response of the API in `person.url`.
NOT_OF_API = ("reply.", "callback.", "id_token.")
DETAIL = re.compile(r"[a-z][a-z0-9_]{0,31}")
# Parameters that the flow itself adds to an authorize address; a declaration must not repeat them.
OUR_PARAMETERS = frozenset(
    {
        *("client_id", "code_challenge", "code_challenge_method", "dpop_jkt", "nonce"),
        *("redirect_uri", "request", "request_uri", "response_mode", "response_type"),
        *("scope", "state", "uri"),
    }
)
# Parameters of a token request that the flow sets.
OUR_TOKEN_PARAMETERS = frozenset(
    {
        *("actor_token", "actor_token_type", "assertion", "client_assertion"),
        *("client_assertion_type", "client_id", "client_secret", "code", "code_verifier"),
        *("device_code", "grant_type", "redirect_uri", "refresh_token"),
        *("subject_token", "subject_token_type"),
    }
)
# The fields of a declaration that describe OAuth, which a provider with API keys does not have.
_OF_OAUTH = frozenset(
    {
        *("issuer", "sends_issuer", "discovers", "authorize", "token", "refresh", "rotates"),
        *("refresh_unused_days",),
        *("revoke", "device", "resource", "always", "dpop", "token_scheme", "token_types"),
        *("pkce", "nonce", "extra", "token_extra", "refresh_extra", "switch", "lasting"),
        *("service_account", "exchange"),
    }
)
# The fields that a provider of service accounts cannot use, because they are about a person.
_OF_PEOPLE = frozenset(
    {
        *("authorize", "person", "keep", "device", "revoke", "refresh", "rotates"),
        *("refresh_unused_days", "refresh_extra", "extra", "switch", "lasting", "account_hint"),
    }
)
PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
# Types of tokens that are bound to a key of the client. A Bearer request cannot prove that the
# client has the key.
_BOUND_TYPES = frozenset({"dpop", "mac", "pop"})


def faults_of(provider: Declaration) -> list[str]:
    """Return a sentence for each fault of the declaration."""
    if templates := _issuer_faults(provider) or _template_faults(provider):
        return templates
    return [
        *_naming_faults(provider),
        *(_finding_faults(provider) if provider.key is None else _key_faults(provider)),
        *_address_faults(_sample_of(provider)),
        *_spelling_faults(provider),
        *_proof_faults(provider),
        *_parameter_faults(provider),
        *_header_faults(provider),
        *_refusal_faults(provider),
        *_exchange_faults(provider),
    ]


def _issuer_faults(provider: Declaration) -> list[str]:
    """Return the faults of a multi-tenant issuer, which needs a list of its tenants."""
    parts = urlsplit(provider.issuer or "")
    is_template = TENANT_ID in parts.path.split("/") and provider.discovers
    if (TENANT_ID in (provider.issuer or "")) is not bool(provider.issuer_tenants):
        return [f"issuer: {TENANT_ID} and a list of tenants must be used together."]
    if not provider.issuer_tenants:
        return []
    faults = [] if is_template else [f"issuer: {TENANT_ID} must be one whole part of the path."]
    faults += [
        f"tenants: {one!r} is not the id of a tenant: it must be a UUID in lower case."
        for one in provider.issuer_tenants
        if not _TENANT.fullmatch(one)
    ]
    if len(set(provider.issuer_tenants)) < len(provider.issuer_tenants):
        faults.append("tenants: a tenant is listed twice.")
    return faults


def fault_of(address: str) -> str | None:
    try:
        origin_of(address)
    except InvalidQuestion as error:
        return str(error)
    return None


def _template_faults(provider: Declaration) -> list[str]:
    faults = [
        f"tenants: each {fault}"
        for one in provider.tenants
        if (fault := host_pattern_fault(one)) is not None
    ]
    faults += [
        f"hosts: {one!r} must be https:// and a host pattern, such as https://*.example.com."
        for one in provider.hosts
        if host_pattern_fault(one.removeprefix("https://")) or one[:8] != "https://"
    ]
    if not all(map(DETAIL.fullmatch, provider.keep)) or "tenant" in provider.keep:
        faults.append("keep: a name must be letters, digits and _, and not tenant.")
    if not all(provider.keep.values()):
        faults.append("keep: each name needs the path of a member, such as reply.instance_url.")
    known = {"tenant"} if provider.tenants else set[str]()
    for key, template in _templates(provider):
        allowed = known | ({*provider.keep} if key in ("api", "api_hosts") else set[str]())
        if unknown := placeholders(template) - allowed:
            faults.append(f"{key}: no value is declared for {', '.join(sorted(unknown))}.")
        host = PLACEHOLDER.sub(_star, template.partition("://")[2].partition("/")[0])
        if "*" in host and host_pattern_fault(host) is not None:
            faults.append(f"{key}: two fixed labels must follow a placeholder in the host.")
        if PLACEHOLDER.match(template) and not provider.hosts:
            faults.append(f"hosts: required, because {key} begins with a placeholder.")
    if provider.tenants and not any("{tenant}" in one for _, one in _templates(provider)):
        faults.append("tenants: no address contains {tenant}: add it to one, or remove tenants.")
    return faults


def _star(match: re.Match[str]) -> str:
    return match[0] if match[1] == "tenant" else "*"


def _templates(provider: Declaration) -> list[tuple[str, str]]:
    found = [(key, getattr(provider, key)) for key in ADDRESSES]
    found[0] = ("issuer", _sample_issuer(provider))
    found += [("api_hosts", host) for host in provider.api_hosts]
    found.append(("person.url", None if provider.person is None else provider.person.url))
    found.append(("revoke", None if provider.revoke is None else provider.revoke.url))
    found.append(("key.page", None if provider.key is None else provider.key.page))
    return [(key, one.replace("{client_id}", "id")) for key, one in found if isinstance(one, str)]


def _sample_issuer(provider: Declaration) -> str | None:
    if provider.issuer is None or not provider.issuer_tenants:
        return provider.issuer
    return issuer_of_tenant(provider.issuer, SHARED_TENANT)


def _sample_of(provider: Declaration) -> Declaration:
    """Return a copy with sample values for the placeholders, so that addresses can be checked."""
    if not provider.tenants and not provider.keep:
        return provider
    tenant = provider.tenants[0].replace("*", "a") if provider.tenants else ""
    values = {**dict.fromkeys(provider.keep, "a"), "tenant": tenant, "client_id": "id"}
    origin = provider.hosts[0].replace("*", "a") if provider.hosts else ""

    def sample(template: str) -> str:
        if PLACEHOLDER.match(template):
            template = PLACEHOLDER.sub(lambda _: origin, template, count=1)
        return PLACEHOLDER.sub(lambda match: values[match[1]], template)

    named = {each.name: getattr(provider, each.name) for each in fields(Declaration)}
    named |= with_addresses(provider, sample)
    if not provider.api_hosts and not fault_of(named["api"]):
        named["api_hosts"] = (origin_of(named["api"]),)
    return Declaration(**named)


def _naming_faults(provider: Declaration) -> list[str]:
    faults: list[str] = []
    if not NAME.fullmatch(provider.name):
        faults.append(
            "name: must be 1 to 32 characters of a-z, 0-9 and _, and begin with a letter."
        )
    if not (0 < len(provider.label) <= LABEL_AT_MOST and _is_plain(provider.label)):
        faults.append(f"label: must be 1 to {LABEL_AT_MOST} visible characters.")
    return faults + [
        f"scope_words: the words of {scope!r} must be 1 to {WORDS_AT_MOST} visible characters."
        for scope, words in provider.scope_words.items()
        if not (looks_of(words) and len(words) <= WORDS_AT_MOST)
    ]


def _finding_faults(provider: Declaration) -> list[str]:
    """Return the faults of the fields that locate the provider's endpoints and the account's owner.

    The server needs these fields to send requests and to identify the person.
    """
    faults: list[str] = []
    if provider.service_account:
        return _service_faults(provider)
    if provider.sends_issuer and provider.issuer is None:
        faults.append("issuer: required, to compare with the issuer that the provider sends.")
    if not provider.discovers:
        faults += [
            f"{key}: required, because there is no issuer to discover it from."
            for key in ("authorize", "token", "person")
            if getattr(provider, key) is None
        ]
        return faults
    if provider.issuer is None:
        faults.append("issuer: required, to discover the provider's endpoints.")
    if provider.authorize is not None or provider.token is not None:
        faults.append("authorize, token: leave them out, because the issuer publishes them.")
    if provider.person is None and "openid" not in provider.always:
        faults.append(
            'always: add "openid", or set person, so that the server knows whose account it is.'
        )
    return faults


def _service_faults(provider: Declaration) -> list[str]:
    faults = [
        f"{each.name}: leave it out, because a service account belongs to no person."
        for each in fields(Declaration)
        if each.name in _OF_PEOPLE and getattr(provider, each.name) != each.default
        if each.name != "keep" or provider.keep
    ]
    if provider.client_auth == "none":
        faults.append(
            "client_auth: a public client has no secret, so it cannot have a service account."
        )
    if (provider.token is None) is not provider.discovers:
        faults.append("token: required, unless the issuer publishes it.")
    return faults


def _exchange_faults(provider: Declaration) -> list[str]:
    how = provider.exchange
    if how is None:
        return []
    faults = [
        f"exchange.extra: the flow sets {name} itself."
        for name, _ in how.extra
        if name in OUR_TOKEN_PARAMETERS
    ]
    if provider.person is None or provider.service_account or provider.key is not None:
        faults.append("exchange: person is required. key and service_account are not allowed.")
    if provider.dpop or provider.tenants:
        faults.append("exchange: cannot be used with dpop or tenants; leave out one side.")
    if fault := fault_of(how.issuer):
        faults.append(f"exchange.issuer: {fault}")
    return faults


def _key_faults(provider: Declaration) -> list[str]:
    """Return the faults of a provider of API keys.

    Check how a key is tested and sent, and that no OAuth field is declared.
    """
    key, person = provider.key, provider.person
    assert key is not None
    faults = [
        f"{each.name}: leave it out, because this provider uses API keys instead of OAuth."
        for each in fields(Declaration)
        if each.name in _OF_OAUTH and getattr(provider, each.name) != each.default
    ]
    if person is None or person.url is None:
        faults.append("person: required with a url, to test a key before it is stored.")
    elif any(path.startswith(NOT_OF_API) for path in person.members()):
        faults.append("person: name members of the API's reply; API keys have no token reply.")
    faults += [
        f"key.{name}: must be 1 to {LABEL_AT_MOST} visible characters."
        for name, text in (("label", key.label), ("user", key.user))
        if text is not None and not (0 < len(text) <= LABEL_AT_MOST and _is_plain(text))
    ]
    if not HEADER.fullmatch(key.header) or key.header.lower() in NO_KEY_HEADERS:
        faults.append(
            "key.header: must be letters, digits and -, and must not be a connection header."
        )
    if key.header.lower() in [name.lower() for name, _ in provider.headers]:
        faults.append("key.header: headers has the same header; remove it from headers.")
    if key.prefix and (not HEADER.fullmatch(key.prefix) or key.prefix.lower() == "basic"):
        faults.append("key.prefix: must be letters, digits and -. For Basic, declare key.user.")
    if key.query is not None and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", key.query):
        faults.append("key.query: must be the name of a query parameter.")
    ways = [key.header != "Authorization" or key.prefix is not None, key.query, key.user]
    if sum(map(bool, ways)) > 1:
        faults.append("key: declare either header and prefix, or query, or user.")
    if not 200 <= key.status < 300:
        faults.append("key.status: must be an HTTP status of success, 200 to 299.")
    return faults


def _address_faults(provider: Declaration) -> list[str]:
    faults: list[str] = []
    if provider.key is not None and (fault := fault_of(provider.key.page)):
        faults.append(f"key.page: {fault}")
    for key in ("issuer", "authorize", "token", "api", "refresh", "manage", "device", "resource"):
        address = _sample_issuer(provider) if key == "issuer" else getattr(provider, key)
        if address is not None and (fault := fault_of(address)):
            faults.append(f"{key}: {fault}")
    if provider.issuer is not None and ("?" in provider.issuer or "#" in provider.issuer):
        faults.append("issuer: must have no query and no fragment.")
    if provider.authorize is not None and "#" in provider.authorize:
        faults.append("authorize: must have no fragment.")
    if provider.resource is not None and "#" in provider.resource:
        faults.append("resource: must have no fragment.")
    faults += [
        f"api_hosts: {fault_of(host) or 'each must be scheme://host, without a path.'}"
        for host in provider.api_hosts
        if fault_of(host) or not is_origin(host)
    ]
    return [*faults, *_probe_faults(provider), *_revocation_faults(provider)]


def _probe_faults(provider: Declaration) -> list[str]:
    if provider.person is None:
        return []
    paths = provider.person.members()
    if not all(paths) or not paths_of(provider.person.id) or not paths_of(provider.person.label):
        return ["person: id and label must each name a member, or a list of members."]
    if provider.person.url is None:
        is_alone = all(path == "tenant" or path.startswith(NOT_OF_API) for path in paths)
        return [] if is_alone else ["person.url: required, if a member is read from the API."]
    if fault := fault_of(provider.person.url):
        return [f"person.url: {fault}"]
    if origin_of(provider.person.url) not in provider.api_hosts:
        return [
            (
                "person.url: its host is not in api_hosts. The server sends an access token "
                "only to the hosts in api_hosts, so add it there."
            )
        ]
    if provider.person.post is not None and not _is_json(provider.person.post):
        return ["person.post: must be JSON."]
    return []


def _revocation_faults(provider: Declaration) -> list[str]:
    if provider.revoke is None:
        return []
    url, kind = provider.revoke.url.replace("{client_id}", "id"), provider.revoke.kind
    if fault := fault_of(url):
        return [f"revoke: {fault}"]
    if kind not in ("form", "json", "delete", "bearer"):
        return ["revoke: kind must be form, json, delete or bearer."]
    if kind == "bearer" and origin_of(url) not in provider.api_hosts:
        return [
            (
                "revoke: its host is not in api_hosts. The server sends an access token only "
                "to the hosts in api_hosts, so add it there."
            )
        ]
    return []


def _spelling_faults(provider: Declaration) -> list[str]:
    faults = [
        f"{key}: it must be {' or '.join(allowed)}."
        for key, allowed in (
            ("client_auth", get_args(ClientAuth)),
            ("response_mode", ("query", "form_post")),
            ("body", ("form", "json")),
            ("replies", ("json", "form")),
            ("scope_parameter", ("scope", "user_scope")),
        )
        if getattr(provider, key) not in allowed
    ]
    if provider.refresh_unused_days is not None and not 2 <= provider.refresh_unused_days <= 3650:
        faults.append("refresh_unused_days: must be 2 to 3650.")
    faults += [
        f"{key}: must be one character."
        for key in ("scope_separator", "reply_scope_separator")
        if len(getattr(provider, key)) != 1
    ]
    faults += [
        f"{key}: a scope must be ASCII characters without spaces (RFC 6749, 3.3)."
        for key in ("always", "unmentioned")
        if not all(SCOPE.fullmatch(scope) for scope in getattr(provider, key))
    ]
    return faults


def _proof_faults(provider: Declaration) -> list[str]:
    """Return the faults of the fields about PKCE, DPoP, token types, error codes and headers."""
    faults: list[str] = []
    if not provider.pkce and provider.client_auth == "none":
        faults.append(
            "pkce: must stay on for client_auth none: without a secret, only PKCE proves that the "
            "program that redeems a code also asked for it."
        )
    own = provider.client_id_parameter
    if not PARAMETER.fullmatch(own) or (own != "client_id" and own in OUR_PARAMETERS):
        faults.append("client_id_parameter: must be letters, digits and _, and not already in use.")
    if provider.dpop and provider.token_scheme.lower() != "bearer":
        faults.append("token_scheme: leave it out, because DPoP has a scheme of its own.")
    if {one.lower() for one in provider.token_types} & _BOUND_TYPES:
        faults.append(
            "token_types: tokens that are bound to a key cannot be used as Bearer tokens. For "
            "DPoP, write dpop = true."
        )
    if not all(map(PARAMETER.fullmatch, provider.declines)):
        faults.append("declines: an error code must be letters, digits and _.")
    if not HEADER.fullmatch(provider.token_scheme) or provider.token_scheme.lower() == "basic":
        faults.append("token_scheme: must be letters, digits and -, and not Basic.")
    agent = provider.user_agent
    if agent is not None and not (agent and agent.isascii() and _is_plain(agent)):
        faults.append("user_agent: must be plain ASCII.")
    return faults


def _parameter_faults(provider: Declaration) -> list[str]:
    faults: list[str] = []
    hint = [] if provider.account_hint is None else [provider.account_hint]
    for key, named in (
        ("extra", [*(name for name, _ in provider.extra), *hint]),
        ("switch", [name for name, _ in provider.switch]),
        ("lasting", [name for name, _ in provider.lasting]),
        ("token_extra", [name for name, _ in provider.token_extra]),
        ("refresh_extra", [name for name, _ in provider.refresh_extra]),
    ):
        own_parameters = OUR_PARAMETERS | {provider.scope_parameter}
        if key in ("token_extra", "refresh_extra"):
            own_parameters = OUR_TOKEN_PARAMETERS
        if provider.resource is not None:
            own_parameters |= {"resource"}
        reserved = sorted((own_parameters | {provider.client_id_parameter}) & set(named))
        if reserved:
            faults.append(
                f"{key}: {', '.join(reserved)} is set by the server itself; leave it out."
            )
        if len(set(named)) < len(named):
            faults.append(f"{key}: a parameter is listed twice.")
    return faults


def _header_faults(provider: Declaration) -> list[str]:
    named = [name.lower() for name, _ in provider.headers]
    if OUR_HEADERS & set(named):
        return ["headers: the server sets one of these headers itself; leave it out."]
    if len(set(named)) < len(named):
        return ["headers: a header is listed twice."]
    if not all(
        HEADER.fullmatch(name) and value.isascii() and _is_plain(value)
        for name, value in provider.headers
    ):
        return ["headers: a name must be letters, digits and -, and a value must be plain ASCII."]
    return []


def _refusal_faults(provider: Declaration) -> list[str]:
    faults: list[str] = []
    for known in provider.refusals:
        if known.means not in ("ended", "client", "passing"):
            faults.append("refusals: means must be ended, client or passing.")
        if (known.status, known.value, known.description) == (None, None, None):
            faults.append("refusals: each entry needs a status, a value or a description.")
    return faults


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True


def _is_plain(text: str) -> bool:
    return text.isprintable() and text == text.strip()
